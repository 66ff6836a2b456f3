/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's operators of sequences, recurrence and shapes against values computed elsewhere: by hand
 * where they are short, else by PyTorch 1.13 in double, with params, x and dy multiples of 1/8 (for attention
 * 1/4), so that they are exact in float:
 *
 *     def grid(*shape, k=8): return torch.randint(-8, 9, shape).double() / k
 *     torch.manual_seed(5); net = torch.nn.LSTM(2, 2, batch_first=True).double()        # or GRU, RNN
 *     for p in net.parameters(): p.data.copy_(grid(*p.shape))
 *     x = grid(1, 3, 2).requires_grad_(); dy = grid(1, 3, 2); y, _ = net(x); (y * dy).sum().backward()
 *
 *     torch.manual_seed(6); x = grid(1, 3, 12, k=4); dy = grid(1, 3, 4)
 *     q, k, v = (t.reshape(1, 3, 2, 2).transpose(1, 2) for t in x.split(4, 2))
 *     s = q @ k.transpose(2, 3) / 2 ** .5           # causal: .masked_fill(ones(3, 3).triu(1).bool(), -inf)
 *     y = (s.softmax(3) @ v).transpose(1, 2).reshape(1, 3, 4)
 *
 *     torch.manual_seed(7); x, w, b, dy = grid(2, 4), grid(4), grid(4), grid(2, 4)
 *     y = torch.nn.functional.layer_norm(x, (4,), w, b, 1e-5)
 *     # rms: x / (x.pow(2).mean(1, True) + 1e-5).sqrt() * w
 */
#include "tests/lib/test.h"
#include "kernels/reference/sequence.h"

#include <math.h>

#include "kernels/reference/shape.h"

/* The constants have 8 digits. The reference rounds each result once, those of gates a few times: 1e-6 for
 * numbers up to 2. */
static void assert_floats(const float *got, const float *want, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (!(fabsf(got[i] - want[i]) <= 1e-6f * (1.0f + fabsf(want[i]))))
                        fail_msg("element %zu is %.8g, not %.8g", i, (double)got[i], (double)want[i]);
}
#define CHECK(got, want) assert_floats(got, want, MFL_ARRAY_SIZE(want))

/* Three positions, two features, two units. */
struct recurrent_case {
        enum mfl_cell cell;
        const float *w_ih, *w_hh, *b_ih, *b_hh, *x, *dy, *y, *dx, *dw_ih, *dw_hh, *db_ih, *db_hh;
};

static void check_recurrent(const struct recurrent_case *k)
{
        struct mfl_ref_recurrent v = {.rows = 1,
                .positions = 3,
                .features = 2,
                .hidden = 2,
                .cell = k->cell,
                .weight_ih = k->w_ih,
                .weight_hh = k->w_hh,
                .bias_ih = k->b_ih,
                .bias_hh = k->b_hh};
        size_t gates = (size_t)mfl_cell_gates(k->cell);
        float kept[3 * MFL_REF_RECURRENT_KEPT * 2 + MFL_REF_RECURRENT_SCRATCH * 2], y[6], dx[6];
        float dw_ih[16], dw_hh[16], db_ih[8], db_hh[8];
        mfl_ref_recurrent_forward(&v, k->x, kept, y);
        assert_floats(y, k->y, 6);
        mfl_ref_recurrent_backward(&v, k->x, y, kept, k->dy, false, dx, dw_ih, dw_hh, db_ih, db_hh);
        assert_floats(dx, k->dx, 6);
        assert_floats(dw_ih, k->dw_ih, gates * 4);
        assert_floats(dw_hh, k->dw_hh, gates * 4);
        assert_floats(db_ih, k->db_ih, gates * 2);
        assert_floats(db_hh, k->db_hh, gates * 2);
}

static void lstm_is_pytorchs(void **state)
{
        static const float w_ih[] = {-0.5f, -0.875f, 0.625f, 0.0f, -0.75f, 1.0f, 0.625f, -0.125f, 0.75f,
                -0.625f, 0.0f, 0.625f, -0.625f, 0.625f, 0.0f, 0.875f};
        static const float w_hh[] = {0.75f, -0.5f, -1.0f, -0.125f, 0.875f, -0.25f, 0.875f, 0.25f, -0.375f,
                -0.25f, -0.375f, -0.75f, -1.0f, 0.5f, 0.125f, -0.5f};
        static const float b_ih[] = {0.5f, 0.625f, -0.125f, -0.375f, -0.625f, 0.0f, 1.0f, -0.75f};
        static const float b_hh[] = {0.5f, 0.625f, 0.125f, -1.0f, -0.625f, 0.625f, -0.125f, 0.625f};
        static const float x[] = {-0.25f, 0.875f, -0.25f, 0.125f, -1.0f, 0.125f};
        static const float dy[] = {-1.0f, -0.25f, 0.375f, -0.125f, 0.375f, -1.0f};
        static const float y[] = {
                -0.42539987f, 0.35997278f, -0.57341086f, 0.2086864f, -0.7398914f, 0.21979472f};
        static const float dx[] = {
                -0.13506852f, -0.08654031f, 0.10338458f, -0.030434691f, 0.016498104f, -0.22401313f};
        static const float dw_ih[] = {0.0063424972f, 0.095542181f, 0.044497559f, -0.020116065f, 0.031911486f,
                -0.0074869199f, 0.013076191f, -0.0016918616f, -0.0092924165f, -0.014418352f, 0.16286508f,
                -0.043188241f, 0.016778457f, 0.058560004f, 0.12622244f, -0.040311685f};
        static const float dw_hh[] = {0.036522436f, -0.024664638f, 0.023242165f, -0.0085960609f, 0.028822088f,
                -0.018144119f, 0.0076705306f, -0.0029170751f, -0.017811816f, 0.013254701f, 0.090953612f,
                -0.034095604f, 0.031238025f, -0.019156543f, 0.066274485f, -0.022787939f};
        static const float db_ih[] = {0.042331822f, -0.057880626f, -0.059895359f, -0.013534893f, 0.017450868f,
                -0.18638882f, 0.011831842f, -0.14370215f};
        static const float db_hh[] = {0.042331822f, -0.057880626f, -0.059895359f, -0.013534893f, 0.017450868f,
                -0.18638882f, 0.011831842f, -0.14370215f};
        const struct recurrent_case kase = {
                MFL_CELL_LSTM, w_ih, w_hh, b_ih, b_hh, x, dy, y, dx, dw_ih, dw_hh, db_ih, db_hh};
        check_recurrent(&kase);
}

static void gru_is_pytorchs(void **state)
{
        static const float w_ih[] = {
                0.5f, 0.625f, 0.0f, -0.5f, -0.375f, 0.125f, 0.875f, 0.5f, 0.125f, 0.25f, -0.5f, 0.5f};
        static const float w_hh[] = {
                -0.5f, -0.875f, 0.625f, 0.0f, -0.75f, 1.0f, 0.625f, -0.125f, 0.75f, -0.625f, 0.0f, 0.625f};
        static const float b_ih[] = {-0.625f, 0.625f, 0.0f, 0.875f, 0.75f, -0.5f};
        static const float b_hh[] = {-1.0f, -0.125f, 0.875f, -0.25f, 0.875f, 0.25f};
        static const float x[] = {-0.375f, -0.25f, -0.375f, -0.75f, -1.0f, 0.5f};
        static const float dy[] = {0.125f, -0.5f, 0.5f, 0.625f, -0.125f, -0.375f};
        static const float y[] = {
                0.17242392f, -0.1224929f, 0.30007332f, -0.31137276f, 0.43889226f, -0.050671797f};
        static const float dx[] = {
                0.082609324f, -0.055515384f, -0.0039305402f, 0.10920178f, 0.11622896f, -0.05347442f};
        static const float dw_ih[] = {-0.0032531594f, -0.01048278f, 0.0030914446f, -0.0025935792f,
                0.024088985f, 0.048401324f, -0.060031882f, 0.0056954767f, -0.049652997f, -0.10555801f,
                0.15267807f, -0.1440263f};
        static const float dw_hh[] = {0.0007394992f, -0.00022791697f, 0.00017980598f, 7.1521348e-05f,
                -0.0028061667f, 0.00082664448f, 0.022440042f, -0.021282932f, 0.0008525931f, -0.00033356879f,
                -0.011321961f, 0.017212332f};
        static const float db_ih[] = {
                0.013723452f, -0.0048618491f, -0.084043084f, 0.069430151f, 0.16206049f, -0.15104184f};
        static const float db_hh[] = {
                0.013723452f, -0.0048618491f, -0.084043084f, 0.069430151f, 0.01636372f, -0.081515348f};
        const struct recurrent_case kase = {
                MFL_CELL_GRU, w_ih, w_hh, b_ih, b_hh, x, dy, y, dx, dw_ih, dw_hh, db_ih, db_hh};
        check_recurrent(&kase);
}

static void rnn_is_pytorchs(void **state)
{
        static const float w_ih[] = {0.125f, 0.5f, 0.75f, -0.125f};
        static const float w_hh[] = {-0.25f, -0.375f, 0.625f, -0.625f};
        static const float b_ih[] = {-0.75f, -0.375f};
        static const float b_hh[] = {-0.25f, -0.25f};
        static const float x[] = {1.0f, -0.875f, -0.125f, 1.0f, 0.125f, -0.25f};
        static const float dy[] = {-0.875f, 0.5f, 0.75f, 0.75f, 0.875f, 0.25f};
        static const float y[] = {
                -0.86490662f, 0.23017571f, -0.36765964f, -0.91011202f, -0.5890226f, -0.15959128f};
        static const float dx[] = {
                0.11954793f, -0.1508848f, 0.13147253f, 0.32015161f, 0.2541521f, 0.25525633f};
        static const float dw_ih[] = {-0.26211116f, 0.73392014f, 0.22352902f, -0.17121326f};
        static const float dw_hh[] = {-0.77812644f, -0.36888623f, -0.14651617f, -0.20657909f};
        static const float db_ih[] = {0.97673966f, 0.51077346f};
        static const float db_hh[] = {0.97673966f, 0.51077346f};
        const struct recurrent_case kase = {
                MFL_CELL_TANH, w_ih, w_hh, b_ih, b_hh, x, dy, y, dx, dw_ih, dw_hh, db_ih, db_hh};
        check_recurrent(&kase);
}

static void rnn_of_relu_is_pytorchs(void **state)
{
        static const float w_ih[] = {0.5f, 0.875f, -0.5f, -0.125f};
        static const float w_hh[] = {0.875f, -0.875f, -0.25f, 0.375f};
        static const float b_ih[] = {-0.375f, 0.125f};
        static const float b_hh[] = {0.25f, 0.0f};
        static const float x[] = {0.625f, -0.75f, -0.5f, -0.25f, 0.125f, -0.375f};
        static const float dy[] = {-0.625f, -0.125f, -0.5f, 0.0f, -0.75f, -0.25f};
        static const float y[] = {0.0f, 0.0f, 0.0f, 0.40625f, 0.0f, 0.26171875f};
        static const float dx[] = {0.0f, 0.0f, 0.046875f, 0.01171875f, 0.125f, 0.03125f};
        static const float dw_ih[] = {0.0f, 0.0f, 0.015625f, 0.1171875f};
        static const float dw_hh[] = {0.0f, 0.0f, 0.0f, -0.1015625f};
        static const float db_ih[] = {0.0f, -0.34375f};
        static const float db_hh[] = {0.0f, -0.34375f};
        const struct recurrent_case kase = {
                MFL_CELL_RELU, w_ih, w_hh, b_ih, b_hh, x, dy, y, dx, dw_ih, dw_hh, db_ih, db_hh};
        check_recurrent(&kase);
}

/* Three positions, two heads of two. `add` adds the gradient to what is there. */
static void attention_is_pytorchs(void **state)
{
        static const float x[] = {-0.5f, -1.0f, 0.25f, 0.25f, -1.25f, 2.0f, 1.5f, -0.5f, 0.25f, 1.0f, -0.25f,
                -1.25f, 0.25f, -1.5f, 1.5f, -1.25f, -0.5f, 0.75f, -1.25f, -0.25f, 0.5f, -2.0f, 1.75f, 0.5f,
                0.25f, 0.0f, 0.25f, 0.5f, -1.5f, -1.0f, 1.25f, 2.0f, 1.75f, 1.75f, -2.0f, 1.5f};
        static const float dy[] = {
                -0.5f, 1.0f, 0.125f, 0.0f, -0.25f, 0.125f, -0.625f, 0.875f, 0.125f, -1.0f, 1.0f, -0.125f};
        static const float full_y[] = {1.4308013f, 1.1056972f, -0.67131513f, 0.41647703f, 1.507551f,
                1.1549194f, -0.30369719f, -0.97738276f, 0.8052921f, 0.12612315f, -0.92930634f, 0.64185589f};
        static const float full_dx[] = {-0.28241832f, -0.42085758f, -0.10686035f, -0.12858215f, -0.066293571f,
                -0.039670912f, -0.21238563f, 0.29747107f, -0.010248653f, -0.2347787f, -0.26359288f,
                0.74466907f, -0.013437106f, -0.0046601093f, -0.04328196f, 0.42603736f, 0.27697901f,
                0.31249171f, 0.091686019f, 0.1713309f, -0.069400117f, -0.19442799f, 0.17010068f, 0.012601968f,
                0.49022295f, 0.30627519f, -0.76269371f, -1.1289599f, -0.21068544f, -0.27282079f, 0.12069961f,
                -0.46880197f, -0.54535123f, 0.55420669f, 0.5934922f, -0.0072710351f};
        static const float causal_y[] = {0.25f, 1.0f, -0.25f, -1.25f, 0.45282226f, -1.4338671f, -0.16684953f,
                -1.1772433f, 0.8052921f, 0.12612315f, -0.92930634f, 0.64185589f};
        static const float causal_dx[] = {0.0f, 0.0f, 0.0f, 0.0f, -0.041975437f, -0.071043947f, 0.028712888f,
                0.091104779f, -0.50683618f, 0.70085638f, -0.22323046f, 0.80727354f, -0.035521974f,
                0.05920329f, -0.021792296f, 0.0019811178f, 0.1241691f, 0.071043947f, 0.092216037f,
                0.15075307f, -0.15676134f, -0.2670762f, 0.14250078f, 0.01531767f, 0.49022295f, 0.30627519f,
                -0.76269371f, -1.1289599f, -0.082193667f, 0.0f, -0.12092893f, -0.24185785f, 0.038597522f,
                -0.30878018f, 0.58072968f, -0.07259121f};
        struct mfl_ref_attention v = {.rows = 1, .positions = 3, .width = 4, .heads = 2};
        float kept[2 * 9 + 3], y[12], dx[36];
        for (int causal = 0; causal < 2; causal++) {
                v.causal = causal;
                mfl_ref_attention_forward(&v, x, kept, y);
                assert_floats(y, causal ? causal_y : full_y, 12);
                for (int i = 0; i < 36; i++)
                        dx[i] = 1;
                mfl_ref_attention_backward(&v, x, kept, dy, true, dx);
                for (int i = 0; i < 36; i++)
                        dx[i] -= 1;
                assert_floats(dx, causal ? causal_dx : full_dx, 36);
        }
}

/* Dropped weights count as 0 and the others more. With equal scores each of two positions has weight 1/2
 * before dropout, so the output is the sum of v keep / 2. */
static void attention_drops_by_its_place_in_the_step(void **state)
{
        struct mfl_rng_key key = mfl_rng_derive(1, MFL_RNG_DROPOUT, 2, 3);
        struct mfl_ref_attention v = {.rows = 2,
                .first_row = 3,
                .positions = 2,
                .width = 1,
                .heads = 1,
                .rate = 0.5f,
                .dropout = &key};
        const float x[] = {0, 0, 1, 0, 0, 4, 0, 0, 16, 0, 0, 64};
        float kept[2 * 4 + 2], y[4];
        mfl_ref_attention_forward(&v, x, kept, y);
        for (uint64_t r = 0; r < 2; r++)
                for (uint64_t i = 0; i < 2; i++) {
                        float want = 0;
                        for (uint64_t j = 0; j < 2; j++) {
                                uint64_t e = ((r + 3) * 2 + i) * 2 + j;
                                float keep = mfl_u32_to_unit(mfl_rng_block(key, e / 4).v[e % 4]) >= 0.5f
                                                     ? 2.0f
                                                     : 0.0f;
                                want += 0.5f * keep * x[(r * 2 + j) * 3 + 2];
                        }
                        assert_true(y[r * 2 + i] == want);
                }
}

static void norms_of_rows_are_pytorchs(void **state)
{
        static const float x[] = {0.125f, -0.375f, 0.0f, 0.125f, 0.75f, 0.5f, -0.875f, 0.125f};
        static const float weight[] = {-0.125f, -0.75f, -0.5f, -0.625f};
        static const float bias[] = {0.125f, 0.875f, -0.25f, 0.75f};
        static const float dy[] = {0.875f, 0.75f, -0.25f, 1.0f, 0.5f, -0.625f, 0.125f, 0.125f};
        static const float y[] = {0.02969974f, 2.1329634f, -0.32624021f, 0.2734987f, -0.0012674189f,
                0.42043729f, 0.55811148f, 0.75f};
        static const float dx[] = {0.52135943f, -0.49132496f, 1.964533f, -1.9945674f, -0.339759f, 0.57142655f,
                0.0019271718f, -0.23359472f};
        static const float dw[] = {1.1721715f, -1.6367657f, -0.24014797f, 0.76240208f};
        static const float db[] = {1.375f, 0.125f, -0.125f, 1.125f};
        static const float rms_y[] = {-0.075369066f, 1.3566432f, -0.0f, -0.37684533f, -0.14852027f,
                -0.59408107f, 0.69309458f, -0.12376689f};
        static const float rms_dx[] = {-0.94544195f, -1.4597109f, 0.60295253f, -3.4326211f, -0.27228281f,
                0.62708847f, 0.103134f, -0.15264511f};
        static const float rms_dw[] = {1.1216645f, -1.8517108f, -0.17327365f, 0.62770591f};
        struct mfl_ref_rownorm v = {.n = 2, .width = 4, .eps = 1e-5f, .centred = true};
        double kept[4];
        float got_y[8], got_dx[8], got_dw[4], got_db[4];
        mfl_ref_rownorm_forward(&v, x, weight, bias, kept, got_y);
        mfl_ref_rownorm_backward(&v, x, kept, dy, weight, false, got_dx, got_dw, got_db);
        CHECK(got_y, y);
        CHECK(got_dx, dx);
        CHECK(got_dw, dw);
        CHECK(got_db, db);
        v.centred = false;
        mfl_ref_rownorm_forward(&v, x, weight, NULL, kept, got_y);
        mfl_ref_rownorm_backward(&v, x, kept, dy, weight, false, got_dx, got_dw, NULL);
        CHECK(got_y, rms_y);
        CHECK(got_dx, rms_dx);
        CHECK(got_dw, rms_dw);
}

/* exp of log 1, log 3: shares 1/4 and 3/4; ds = p (dp - sum p dp) = {1/4 (1 - 1/4), 3/4 (0 - 1/4)}. The same
 * with 1000 added, where exp overflows. */
static void softmax_gives_shares(void **state)
{
        const float x[] = {0, logf(3), 1000, 1000 + logf(3)}, dy[] = {1, 0, 1, 0};
        const float want[] = {0.25f, 0.75f}, want_dx[] = {0.1875f, -0.1875f};
        float y[4], dx[4];
        mfl_ref_softmax_forward(2, 2, x, y);
        mfl_ref_softmax_backward(2, 2, y, dy, false, dx);
        CHECK(y, want);
        CHECK(dx, want_dx);
        /* log 3 has only 14 bits behind the point at 1000. */
        assert_true(fabsf(y[3] - 0.75f) < 1e-4f && fabsf(dx[3] + 0.1875f) < 1e-4f);
}

/* {1 2 3; 4 5 6} x {1 0; 2 1; 0 3} = {5 11; 14 23}. With dy the identity dx is x2 transposed and dx2 is x
 * transposed. */
static void matmul_is_exact_in_small_numbers(void **state)
{
        const float x[] = {1, 2, 3, 4, 5, 6}, x2[] = {1, 0, 2, 1, 0, 3}, turned[] = {1, 2, 0, 0, 1, 3};
        const float want[] = {5, 11, 14, 23}, dy[] = {1, 0, 0, 1}, x_turned[] = {1, 4, 2, 5, 3, 6};
        struct mfl_ref_matmul v = {.n = 1, .m = 2, .k = 3, .width = 2};
        float y[4], dx[6], dx2[6];
        for (int t = 0; t < 2; t++) {
                v.transposed = t;
                const float *second = t ? turned : x2;
                mfl_ref_matmul_forward(&v, x, second, y);
                CHECK(y, want);
                mfl_ref_matmul_backward(&v, second, dy, false, dx);
                assert_floats(dx, turned, 6); /* dy x2^T */
                mfl_ref_matmul_backward2(&v, x, dy, false, dx2);
                assert_floats(dx2, t ? x : x_turned, 6);
        }
}

/* Tokens outside the vocabulary become the nearest inside; a token that occurs twice gets both gradients. */
static void embedding_looks_rows_up(void **state)
{
        const float x[] = {2, -1, 7, 2}, weight[] = {1, 2, 3, 4, 5, 6}, dy[] = {1, 10, 2, 20, 3, 30, 4, 40};
        const float want[] = {5, 6, 1, 2, 5, 6, 5, 6}, want_dw[] = {2, 20, 0, 0, 8, 80};
        float y[8], dw[6] = {0};
        mfl_ref_embedding_forward(4, 2, 3, x, weight, y);
        mfl_ref_embedding_backward(4, 2, 3, -1, x, dy, dw);
        CHECK(y, want);
        CHECK(dw, want_dw);
        const float want_padded[] = {2, 20, 0, 0, 0, 0};
        memset(dw, 0, sizeof dw);
        mfl_ref_embedding_backward(4, 2, 3, 2, x, dy, dw);
        CHECK(dw, want_padded);
}

/* x of 2x3 with x2 of 2x1: each of x2's numbers is used three times. */
static void joins_repeat_the_second(void **state)
{
        struct mfl_shape a = {2, {2, 3}}, b = {2, {2, 1}};
        struct mfl_ref_join v = mfl_ref_join_of(&a, &b);
        const float x[] = {1, 2, 3, 4, 5, 6}, x2[] = {10, 20}, dy[] = {1, 1, 2, 0, 3, 1};
        const float sum[] = {11, 12, 13, 24, 25, 26}, product[] = {10, 20, 30, 80, 100, 120};
        const float dx_product[] = {10, 10, 20, 0, 60, 20}, dx2_sum[] = {4, 4}, dx2_product[] = {9, 21};
        float y[6], dx[6], dx2[2];
        mfl_ref_join_forward(&v, 1, MFL_OP_ADD, x, x2, y);
        CHECK(y, sum);
        mfl_ref_join_forward(&v, 1, MFL_OP_MULTIPLY, x, x2, y);
        CHECK(y, product);
        mfl_ref_join_backward(&v, 1, MFL_OP_MULTIPLY, NULL, dy, false, dx);
        CHECK(dx, dy);
        mfl_ref_join_backward(&v, 1, MFL_OP_MULTIPLY, x2, dy, false, dx);
        CHECK(dx, dx_product);
        mfl_ref_join_backward2(&v, 1, NULL, dy, false, dx2);
        CHECK(dx2, dx2_sum);
        mfl_ref_join_backward2(&v, 1, x, dy, false, dx2);
        CHECK(dx2, dx2_product);
}

/* For two rows {0 1 2; 3 4 5} and {6 7 8; 9 10 11}: their columns 1 and 2, and back. */
static void parts_are_cut_and_put_back(void **state)
{
        const float x[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
        const float want[] = {1, 2, 4, 5, 7, 8, 10, 11}, back[] = {9, 2, 4, 9, 8, 10, 9, 14, 16, 9, 20, 22};
        struct mfl_ref_axis axis = mfl_ref_axis_of(&(struct mfl_shape){2, {2, 3}}, 1, 2);
        float part[8], whole[12] = {9, 1, 2, 9, 4, 5, 9, 7, 8, 9, 10, 11};
        mfl_ref_part_copy(&axis, 1, 2, true, false, x, part);
        CHECK(part, want);
        mfl_ref_part_copy(&axis, 1, 2, false, true, part, whole);
        CHECK(whole, back);
}

/* {1,2,3} by order {2,0,1}: output dimension 0 is input dimension 2. */
static void transposing_there_and_back_changes_nothing(void **state)
{
        const struct mfl_shape in = {3, {1, 2, 3}};
        const int order[] = {2, 0, 1};
        const float x[] = {0, 1, 2, 3, 4, 5}, want[] = {0, 3, 1, 4, 2, 5};
        float y[6], again[6];
        mfl_ref_transpose(&in, order, 1, false, false, x, y);
        CHECK(y, want);
        mfl_ref_transpose(&in, order, 1, true, false, y, again);
        CHECK(again, x);
}

static void means_and_largest_go_over_one_axis(void **state)
{
        const float x[] = {1, 2, 3, 5, 4, 6}, dy[] = {3, 6};
        const float want_dx[] = {1, 2, 1, 2, 1, 2}, planes_dy[] = {7, 8}, planes_dx[] = {0, 0, 7, 0, 0, 8};
        const float ties[] = {4, 4, 1}, ties_dx[] = {5, 0, 0};
        struct mfl_ref_axis axis = mfl_ref_axis_of(&(struct mfl_shape){2, {3, 2}}, 0, 1);
        float y[2], dx[6];
        mfl_ref_mean_forward(&axis, x, y); /* columns {1 3 4} and {2 5 6} */
        assert_floats(y, (const float[]){8.0f / 3, 13.0f / 3}, 2);
        mfl_ref_mean_backward(&axis, dy, false, dx);
        CHECK(dx, want_dx);
        mfl_ref_global_maxpool_forward(2, 3, x, y);
        assert_true(y[0] == 3 && y[1] == 6);
        mfl_ref_global_maxpool_backward(2, 3, x, planes_dy, false, dx);
        CHECK(dx, planes_dx);
        mfl_ref_global_maxpool_backward(1, 3, ties, (const float[]){5}, false, dx); /* the first wins */
        CHECK(dx, ties_dx);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(lstm_is_pytorchs),
                cmocka_unit_test(gru_is_pytorchs), cmocka_unit_test(rnn_is_pytorchs),
                cmocka_unit_test(rnn_of_relu_is_pytorchs), cmocka_unit_test(attention_is_pytorchs),
                cmocka_unit_test(attention_drops_by_its_place_in_the_step),
                cmocka_unit_test(norms_of_rows_are_pytorchs), cmocka_unit_test(softmax_gives_shares),
                cmocka_unit_test(matmul_is_exact_in_small_numbers), cmocka_unit_test(embedding_looks_rows_up),
                cmocka_unit_test(joins_repeat_the_second), cmocka_unit_test(parts_are_cut_and_put_back),
                cmocka_unit_test(transposing_there_and_back_changes_nothing),
                cmocka_unit_test(means_and_largest_go_over_one_axis)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
