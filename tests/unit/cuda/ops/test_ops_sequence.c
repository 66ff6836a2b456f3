/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of sequences, shapes and optimizers alone on the emulated device: exact where sums are of whole
 * numbers; nothing is written for groups that rest, or beyond a tensor's end. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <math.h>

#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/cuda/ops/ops_shape.h"

#define GROUPS 5
#define BATCH 4

static struct ops_steps steps_new(void)
{
        return ops_steps_new(GROUPS, BATCH, ops_counts(GROUPS, BATCH), 1);
}

/* Compares the floats of each group that counts with want; the others' memory is unchanged. */
static void compare(const struct ops_steps *s, struct ops_buffer *b, const float *want, int64_t each,
        float bound, const char *what)
{
        float *got = ops_zeros(GROUPS * each);
        ops_get(b, got);
        for (int g = 0; g < GROUPS; g++) {
                size_t bytes = (size_t)each * sizeof(float);
                if (s->count[g] == 0)
                        ops_assert_untouched(b, (size_t)g * bytes, bytes);
                for (int64_t i = g * each; s->count[g] && i < (g + 1) * each; i++)
                        if (!(fabsf(got[i] - want[i]) <= bound))
                                fail_msg("%s: element %d: %g, not %g", what, (int)i, (double)got[i],
                                        (double)want[i]);
        }
        free(got);
        ops_free(b);
}

static float *of(const struct ops_buffer *b)
{
        return (float *)(void *)b->at;
}

static struct ops_buffer floats(const float *v, int64_t n)
{
        return ops_new_from(v, (size_t)n * sizeof *v);
}

/* c = 2 a' b of pairs whose columns lie apart. */
static void try_matmul(int m, int n, int k)
{
        struct ops_steps s = steps_new();
        int outer = 2, inner = 3, pairs = outer * inner;
        int64_t a_each = (int64_t)pairs * k * m, b_each = (int64_t)pairs * k * n,
                c_each = (int64_t)pairs * m * n;
        float *a = ops_whole(GROUPS * a_each, 3, 1), *b = ops_whole(GROUPS * b_each, 3, 2);
        float *want = ops_zeros(GROUPS * c_each);
        for (int g = 0; g < GROUPS; g++)
                for (int p = 0; p < pairs; p++)
                        for (int i = 0; i < m; i++)
                                for (int j = 0; j < n; j++) {
                                        float sum = 0;
                                        for (int e = 0; e < k; e++)
                                                sum += a[g * a_each + ((int64_t)p * k + e) * m + i] *
                                                       b[g * b_each + ((int64_t)e * n + j) * pairs + p];
                                        want[g * c_each + ((int64_t)p * m + i) * n + j] = 2 * sum;
                                }
        struct ops_buffer ba = floats(a, GROUPS * a_each), bb = floats(b, GROUPS * b_each);
        struct ops_buffer bc = ops_new((size_t)(GROUPS * c_each) * sizeof(float));
        struct mfl_cuda_matmul v = {.groups = GROUPS,
                .outer = outer,
                .inner = inner,
                .m = m,
                .n = n,
                .k = k,
                .a = {ba.at, a_each, (int64_t)inner * k * m, (int64_t)k * m, 1, m, MFL_CUDA_F32},
                .b = {bb.at, b_each, inner, 1, (int64_t)n * pairs, pairs, MFL_CUDA_F32},
                .c = {bc.at, c_each, (int64_t)inner * m * n, (int64_t)m * n, n, 1, MFL_CUDA_F32},
                .alpha = 2.0f,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_matmul(&v, NULL));
        compare(&s, &bc, want, c_each, 0.0f, "product");
        ops_free(&ba);
        ops_free(&bb);
        free(a);
        free(b);
        free(want);
        ops_steps_free(&s);
}

OPS_TEST(products_of_strided_matrices)
{
        try_matmul(1, 1, 1);
        try_matmul(33, 5, 33);
        try_matmul(7, 40, 34);
}

OPS_TEST(rows_of_a_table_get_their_gradients)
{
        enum { POSITIONS = 70, WIDTH = 5, VOCABULARY = 6 };
        struct ops_steps s = steps_new();
        int64_t places = BATCH * POSITIONS, each = places * WIDTH, stride = 64;
        float *tokens = ops_zeros(GROUPS * places), *dy = ops_whole(GROUPS * each, 9, 3);
        float *want = ops_zeros(GROUPS * stride);
        for (int64_t i = 0; i < GROUPS * places; i++) /* token 1 never comes, and some are outside */
                tokens[i] = i % 7 == 1 ? 4.0f : (float)(i * i % 13) - 2.0f;
        for (int g = 0; g < GROUPS; g++)
                for (int64_t i = 0; i < (int64_t)s.count[g] * POSITIONS; i++)
                        for (int k = 0; k < WIDTH; k++) {
                                int64_t at = g * places + i;
                                want[g * stride + mfl_token(tokens[at], VOCABULARY) * WIDTH + k] +=
                                        dy[at * WIDTH + k];
                        }
        struct ops_buffer bt = floats(tokens, GROUPS * places), bdy = floats(dy, GROUPS * each);
        struct ops_buffer dw = ops_new((size_t)(GROUPS * stride) * 4),
                          links = ops_new((size_t)(GROUPS * places) * 4);
        struct mfl_cuda_embedding a = {.padding = -1,
                .groups = GROUPS,
                .batch = BATCH,
                .positions = POSITIONS,
                .width = WIDTH,
                .vocabulary = VOCABULARY,
                .tokens = of(&bt),
                .stride = (uint64_t)stride,
                .dout = bdy.at,
                .dweight = of(&dw),
                .links = (uint32_t *)(void *)links.at,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_embedding_backward(&a, NULL));
        float *got = ops_zeros(GROUPS * stride);
        ops_get(&dw, got);
        for (int g = 0; g < GROUPS; g++) {
                size_t at = (size_t)(g * stride) * 4, used = s.count[g] ? VOCABULARY * WIDTH * 4 : 0;
                if (used)
                        ops_assert_equal(got + g * stride, want + g * stride, VOCABULARY * WIDTH, "dw");
                ops_assert_untouched(&dw, at + used, (size_t)stride * 4 - used);
        }
        ops_free(&bt);
        ops_free(&bdy);
        ops_free(&dw);
        ops_free(&links);
        float *all[] = {tokens, dy, want, got};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
        ops_steps_free(&s);
}

/* A slice of the middle dimension, added to what is there. */
OPS_TEST(moves_are_exact)
{
        struct ops_steps s = steps_new();
        int64_t whole = 3 * 7 * 5, part = 3 * 4 * 5;
        float *x = ops_whole(GROUPS * BATCH * whole, 99, 4), *want = ops_zeros(GROUPS * BATCH * part);
        for (int64_t r = 0; r < GROUPS * BATCH; r++)
                for (int64_t e = 0; e < part; e++)
                        want[r * part + e] = x[r * whole + e / 20 * 35 + e % 20 + 10];
        struct ops_buffer from = floats(x, GROUPS * BATCH * whole);
        struct ops_buffer to = ops_new((size_t)(GROUPS * BATCH * part) * 4);
        struct mfl_cuda_move a = {.groups = GROUPS,
                .batch = BATCH,
                .dim = {3, 4, 5},
                .source = {(int)whole, 10, {35, 5, 1}, 1, 1},
                .target = {(int)part, 0, {20, 5, 1}, 1, 1},
                .from = from.at,
                .to = to.at,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_move(&a, NULL));
        a.add = true;
        OPS_OK(mfl_cuda_move(&a, NULL));
        for (int64_t i = 0; i < GROUPS * BATCH * part; i++)
                want[i] *= 2;
        compare(&s, &to, want, BATCH * part, 0.0f, "moved");
        ops_free(&from);
        free(x);
        free(want);
        ops_steps_free(&s);
}

/* x2 is repeated along the first and the last dimension: few or many partners for each of its elements. */
static void try_join(int i, int k)
{
        struct ops_steps s = steps_new();
        int64_t each = (int64_t)i * 3 * k, rows = GROUPS * BATCH;
        float *x = ops_whole(rows * each, 5, 5), *dy = ops_whole(rows * each, 5, 6),
              *want = ops_zeros(rows * 3);
        for (int64_t e = 0; e < rows * each; e++)
                want[e / each * 3 + e / k % 3] += x[e] * dy[e];
        struct ops_buffer in = floats(x, rows * each), dout = floats(dy, rows * each);
        struct ops_buffer d2 = ops_new((size_t)(rows * 3) * 4);
        struct mfl_cuda_join a = {.groups = GROUPS,
                .batch = BATCH,
                .dim = {i, 3, k},
                .dim2 = {1, 3, 1},
                .multiply = true,
                .x = {(int)each, 0, {3 * k, k, 1}, 1, 1},
                .x2 = {3, 0, {0, 1, 0}, 1, 1},
                .y = {(int)each, 0, {3 * k, k, 1}, 1, 1},
                .in = in.at,
                .dout = dout.at,
                .din2 = d2.at,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_join_backward(&a, NULL));
        compare(&s, &d2, want, BATCH * 3, 0.0f, "dx2");
        ops_free(&in);
        ops_free(&dout);
        free(x);
        free(dy);
        free(want);
        ops_steps_free(&s);
}

OPS_TEST(what_was_repeated_gets_a_sum)
{
        try_join(1, 4);
        try_join(5, 19);
}

/* Statistics by two passes: a large mean costs no digits of the deviation. */
OPS_TEST(vectors_are_normalised)
{
        enum { VECTORS = 11, WIDTH = 45 };
        struct ops_steps s = steps_new();
        int64_t each = VECTORS * WIDTH;
        float *x = ops_uniform(GROUPS * each, MFL_CUDA_F32, 7),
              *w = ops_uniform(GROUPS * 64, MFL_CUDA_F32, 8);
        float *want = ops_zeros(GROUPS * each);
        for (int64_t i = 0; i < GROUPS * each; i++)
                x[i] += 1000.0f;
        for (int64_t v = 0; v < GROUPS * VECTORS; v++) {
                double mean = 0, square = 0;
                for (int k = 0; k < WIDTH; k++)
                        mean += (double)x[v * WIDTH + k] / WIDTH;
                for (int k = 0; k < WIDTH; k++)
                        square += pow((double)x[v * WIDTH + k] - mean, 2);
                for (int k = 0; k < WIDTH; k++)
                        want[v * WIDTH + k] =
                                (float)(((double)x[v * WIDTH + k] - mean) / sqrt(square / WIDTH + 1e-5) *
                                        (double)w[v / VECTORS * 64 + k]);
        }
        struct ops_buffer in = floats(x, GROUPS * each), bw = floats(w, GROUPS * 64);
        struct ops_buffer out = ops_new((size_t)(GROUPS * each) * 4);
        struct mfl_cuda_rownorm a = {.groups = GROUPS,
                .vectors = VECTORS,
                .width = WIDTH,
                .centred = true,
                .eps = 1e-5f,
                .weight = of(&bw),
                .stride = 64,
                .in = in.at,
                .out = out.at,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_rownorm_forward(&a, NULL));
        /* The mean is a sum of 45 numbers near 1000: 6 roundings of 2^-24 * 4.5e4, over 45, of a unit. */
        compare(&s, &out, want, each, 1e-3f, "norm");
        ops_free(&in);
        ops_free(&bw);
        free(x);
        free(w);
        free(want);
        ops_steps_free(&s);
}

/* Rates by group and step, clipping, and the CPU's bits. */
OPS_TEST(adaptive_steps_have_the_cpu_s_bits)
{
        enum { N = 300, STRIDE = 320, STEPS = 3 };
        struct ops_steps s = steps_new();
        const struct mfl_optimizer opts[] = {{.kind = MFL_OPTIMIZER_ADAM,
                                                     .beta1 = 0.9f,
                                                     .beta2 = 0.99f,
                                                     .eps = 1e-6f,
                                                     .weight_decay = 0.1f},
                {.kind = MFL_OPTIMIZER_ADAMW,
                        .beta1 = 0.9f,
                        .beta2 = 0.99f,
                        .eps = 1e-6f,
                        .weight_decay = 0.1f,
                        .prox_mu = 0.1f,
                        .clip_norm = 4.0f},
                {.kind = MFL_OPTIMIZER_ADAGRAD, .eps = 1e-3f, .clip_norm = 1e9f}};
        for (size_t o = 0; o < MFL_ARRAY_SIZE(opts); o++) {
                float *v[5], *want = ops_zeros(GROUPS * STRIDE);
                struct ops_buffer b[5];
                struct mfl_rate rates[GROUPS * STEPS];
                for (uint64_t k = 0; k < 5; k++) /* params, m, v, first, gradients */
                        v[k] = ops_whole(GROUPS * STRIDE, 8, k + 9);
                for (int i = 0; i < GROUPS * STRIDE; i++)
                        v[2][i] = fabsf(v[2][i]);
                for (int i = 0; i < GROUPS * STEPS; i++)
                        rates[i] = (struct mfl_rate){0.01f * (float)(i + 1), 0.5f, 0.25f};
                for (int k = 0; k < 5; k++)
                        b[k] = floats(v[k], GROUPS * STRIDE);
                struct ops_buffer br = ops_new_from(rates, sizeof rates);
                struct ops_buffer norms = ops_new((size_t)(GROUPS * mfl_cuda_norms_count(N)) * 4);
                struct mfl_cuda_sgd_args a = {.groups = GROUPS,
                        .n = N,
                        .n_norm = N,
                        .stride = STRIDE,
                        .params = of(&b[0]),
                        .momentum = of(&b[1]),
                        .second = of(&b[2]),
                        .first = of(&b[3]),
                        .first_stride = STRIDE,
                        .grads = of(&b[4]),
                        .rates = (struct mfl_rate *)(void *)br.at,
                        .norms = of(&norms),
                        .opt = opts[o],
                        .steps = s.on_device};
                for (int g = 0; g < GROUPS; g++) {
                        float square = 0; /* whole: exact in any order */
                        for (int i = 0; i < N; i++)
                                square += v[4][g * STRIDE + i] * v[4][g * STRIDE + i];
                        float factor = mfl_clip_factor(opts[o].clip_norm, sqrtf(square));
                        for (int i = 0; i < STRIDE; i++) {
                                int at = g * STRIDE + i;
                                float m = v[1][at], second = v[2][at];
                                float grad = factor == 1.0f ? v[4][at] : v[4][at] * factor;
                                want[at] = v[0][at];
                                if (i < N && s.count[g])
                                        mfl_adaptive_update(&opts[o], &rates[g * STEPS + (int)OPS_STEP],
                                                &want[at], &m, &second, &v[3][at], grad);
                        }
                }
                if (opts[o].clip_norm > 0)
                        OPS_OK(mfl_cuda_norms(&a, NULL));
                OPS_OK(mfl_cuda_sgd(&a, NULL));
                float *got = ops_zeros(GROUPS * STRIDE);
                ops_get(&b[0], got);
                ops_assert_equal(got, want, GROUPS * STRIDE, "params");
                free(got);
                free(want);
                for (int k = 0; k < 5; k++) {
                        ops_free(&b[k]);
                        free(v[k]);
                }
                ops_free(&br);
                ops_free(&norms);
        }
        ops_steps_free(&s);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(products_of_strided_matrices),
                cmocka_unit_test(rows_of_a_table_get_their_gradients),
                cmocka_unit_test(moves_are_exact),
                cmocka_unit_test(what_was_repeated_gets_a_sum),
                cmocka_unit_test(vectors_are_normalised),
                cmocka_unit_test(adaptive_steps_have_the_cpu_s_bits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
