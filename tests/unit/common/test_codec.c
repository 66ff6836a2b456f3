/* SPDX-License-Identifier: Apache-2.0 */
/* Packing without loss, whatever the bytes; and rounding to a grid: unbiased, within a step, the same for everybody. */
#include "tests/lib/test.h"
#include "common/base/rng.h"
#include "common/codec/bf16.h"
#include "common/codec/grid.h"
#include "common/codec/grid_down.h"
#include "common/codec/pack.h"
#include "common/codec/top_k.h"

#include <math.h>

#define N_MAX 2000

/* Packs, unpacks in place, compares. Returns the packed length. */
static size_t there_and_back(bool floats, const void *elements, size_t bytes)
{
        struct mfl_error err = {""};
        uint8_t *out = mfl_malloc(mfl_pack_room(bytes)), *back = mfl_malloc(bytes);
        memset(back, 0xa5, bytes);
        size_t packed = mfl_pack(floats, elements, bytes, out);
        assert_true(packed < bytes);
        if (packed) {
                memcpy(back + (bytes - packed), out, packed);
                if (mfl_unpack(floats, back, bytes, packed, &err))
                        fail_msg("%s", err.text);
                assert_memory_equal(back, elements, bytes);
        }
        free(out);
        free(back);
        return packed;
}

static void integers_of_every_width_come_back(void **state)
{
        static int64_t v[N_MAX];
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        for (unsigned width = 0; width <= 64; width++) {
                for (unsigned shift = 0; shift + width <= 64; shift += 7) {
                        size_t n = 1 + mfl_rng_below(&rng, N_MAX);
                        for (size_t i = 0; i < n; i++) {
                                int64_t x = (int64_t)mfl_rng_u64(&rng);
                                v[i] = width ? (int64_t)((uint64_t)(x >> (64 - width)) << shift) : 0;
                        }
                        size_t packed = there_and_back(false, v, n * sizeof *v);
                        size_t blocks = (n + MFL_PACK_BLOCK - 1) / MFL_PACK_BLOCK;
                        if (width < 63 && n > 32)
                                assert_true(packed && packed <= n * width / 8 + 3 * blocks);
                }
        }
        const int64_t ends[] = {INT64_MIN, INT64_MAX, -1, 0, 1};
        assert_int_equal(there_and_back(false, ends, sizeof ends), 0);
}

static void floats_come_back_with_their_bits(void **state)
{
        static float v[N_MAX];
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        for (unsigned width = 1; width <= 24; width++) {
                size_t n = 40 + mfl_rng_below(&rng, N_MAX - 40);
                int e = (int)mfl_rng_below(&rng, 200) - 120;
                for (size_t i = 0; i < n; i++)
                        v[i] = (float)ldexp((double)((int64_t)mfl_rng_u64(&rng) >> (64 - width)), e);
                size_t packed = there_and_back(true, v, n * sizeof *v);
                assert_true(packed && packed <= n * width / 8 + 3 * (n / MFL_PACK_BLOCK + 1));
        }
        /* What has no common step stays as it is: whole blocks, and the largest and smallest numbers. */
        for (size_t i = 0; i < N_MAX; i++) {
                uint32_t bits = i < 1024 ? mfl_rng_u32(&rng) : 0;
                memcpy(&v[i], &bits, sizeof bits);
        }
        assert_int_equal(there_and_back(true, v, 1024 * sizeof *v), 0);
        there_and_back(true, v, sizeof v);
        const float odd[] = {-0.0f, 0.0f, INFINITY, 0x1p-149f, 0x1.fffffep127f, -0x1p-126f, 0x1p127f, 3};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(odd); i++) {
                float zeros[300] = {0};
                zeros[7] = odd[i];
                there_and_back(true, zeros, sizeof zeros);
        }
}

/* A block that packs badly behind blocks that pack well: in place, the elements would run over what is still packed. */
static void what_would_overwrite_itself_is_not_packed(void **state)
{
        static int64_t v[4 * MFL_PACK_BLOCK];
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, 0, 0);
        for (size_t i = 3 * MFL_PACK_BLOCK; i < MFL_ARRAY_SIZE(v); i++)
                v[i] = (int64_t)mfl_rng_u64(&rng);
        v[MFL_ARRAY_SIZE(v) - 1] |= 1;
        uint8_t *out = mfl_malloc(mfl_pack_room(sizeof v));
        assert_int_equal(mfl_pack(false, v, sizeof v, out), 0);
        free(out);
}

static void no_bytes_lead_outside(void **state)
{
        struct mfl_rng rng = mfl_rng_new(4, MFL_RNG_TEST, 0, 0);
        uint32_t refused = 0;
        for (int i = 0; i < 20000; i++) {
                bool floats = i & 1;
                size_t unit = floats ? 4 : 8, bytes = unit * (1 + mfl_rng_below(&rng, 600));
                size_t packed = 1 + mfl_rng_below(&rng, (uint32_t)bytes);
                uint8_t *memory = mfl_malloc(bytes); /* of that size: the sanitizer sees a byte beyond */
                for (size_t k = 0; k < bytes; k++)
                        memory[k] = (uint8_t)mfl_rng_u32(&rng);
                if (packed > 2 && i % 4 < 2)
                        memory[bytes - packed] = (uint8_t)mfl_rng_below(&rng, 26);
                struct mfl_error err = {""};
                int r = mfl_unpack(floats, memory, bytes, packed, &err);
                assert_true(r == 0 || (r == MFL_INVALID && *err.text));
                refused += r != 0;
                free(memory);
        }
        assert_true(refused > 19000);
}

/* ---- grids ---- */

static struct mfl_graph *make_graph(void)
{
        const struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {3, {1, 8, 8}}},
                {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 4, .kernel = {3, 3}, .bias = true},
                {.op = MFL_OP_BATCHNORM, .input = 1}, {.op = MFL_OP_FLATTEN, .input = 2},
                {.op = MFL_OP_DENSE, .input = 3, .out_channels = 4, .bias = true}};
        struct mfl_graph *graph;
        struct mfl_error err = {""};
        if (mfl_graph_build("t", layers, 5, 4, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static void the_step_follows_from_the_largest(void **state)
{
        assert_int_equal(mfl_grid_exponent(8, 0), MFL_GRID_EXACT);
        assert_int_equal(mfl_grid_exponent(8, 0.25), -7); /* range 1, 2^7 steps */
        assert_int_equal(mfl_grid_exponent(8, 0.2500001), -6);
        assert_int_equal(mfl_grid_exponent(16, 0.2), -15);
        assert_int_equal(mfl_grid_exponent(8, 1e-300), MFL_GRID_LEAST);
}

static void rounding_is_unbiased_and_within_a_step(void **state)
{
        struct mfl_graph *graph = make_graph();
        uint64_t n = graph->n_moving;
        uint32_t n_tensors = mfl_grid_tensors(graph);
        float *delta = mfl_calloc(n, sizeof *delta), *v = mfl_calloc(n, sizeof *v);
        double *mean = mfl_calloc(n, sizeof *mean);
        int32_t exponent[16];
        struct mfl_rng rng = mfl_rng_new(5, MFL_RNG_TEST, 0, 0);
        enum { DRAWS = 4000 };
        assert_true(n_tensors < MFL_ARRAY_SIZE(exponent) && graph->statistics.n);
        for (uint64_t i = 0; i < n; i++)
                delta[i] = (float)(mfl_rng_unit(&rng) - 0.5);
        for (uint32_t t = 0; t < n_tensors; t++)
                exponent[t] = -6 + (int)t % 3;
        exponent[1] = MFL_GRID_EXACT;
        for (int k = 0; k < DRAWS; k++) {
                memcpy(v, delta, n * sizeof *v);
                assert_int_equal(mfl_grid_round(graph, 8, exponent, 9, (uint64_t)k, 3, v), 0);
                for (uint64_t i = 0; i < n; i++)
                        mean[i] += (double)v[i] / DRAWS;
                for (uint32_t t = 0; k == 0 && t < n_tensors; t++) {
                        const struct mfl_param *param = &graph->params[graph->i_moving + (int)t];
                        double step = ldexp(1, exponent[t]);
                        bool exact = exponent[t] == MFL_GRID_EXACT || mfl_param_is_statistics(param);
                        for (uint64_t i = 0; i < param->count; i++) {
                                float x = delta[param->offset + i], y = v[param->offset + i];
                                if (exact)
                                        assert_true(x == y);
                                else
                                        assert_true(fabs((double)x - (double)y) < step &&
                                                    fmod((double)y, step) == 0);
                        }
                }
        }
        /* The variance is at most a quarter of the step's square. */
        for (uint64_t i = 0; i < n; i++)
                assert_true(fabs(mean[i] - (double)delta[i]) <= 5 * 0.5 * ldexp(1, -4) / sqrt(DRAWS));
        /* The same client in the same round has the same numbers; another one has others. */
        float *again = mfl_calloc(n, sizeof *again);
        memcpy(again, delta, n * sizeof *again);
        mfl_grid_round(graph, 8, exponent, 9, DRAWS - 1, 3, again);
        assert_memory_equal(again, v, n * sizeof *v);
        memcpy(again, delta, n * sizeof *again);
        mfl_grid_round(graph, 8, exponent, 9, DRAWS, 3, again);
        assert_memory_not_equal(again, v, n * sizeof *v);
        free(again);
        free(mean);
        free(v);
        free(delta);
        mfl_graph_free(graph);
}

static void what_is_beyond_is_counted(void **state)
{
        struct mfl_graph *graph = make_graph();
        uint64_t n = graph->n_moving;
        float *v = mfl_calloc(n, sizeof *v);
        int32_t exponent[16];
        double largest[16] = {0}, *d = mfl_calloc(n, sizeof *d);
        for (uint32_t t = 0; t < mfl_grid_tensors(graph); t++)
                exponent[t] = -7;
        v[0] = 1;
        v[1] = -5;
        v[2] = 0.9921875f;
        assert_int_equal(mfl_grid_round(graph, 8, exponent, 1, 1, 1, v), 2);
        assert_true(v[0] == 0.9921875f && v[1] == -0.9921875f && v[2] == 0.9921875f);
        /* In pieces that are cut anywhere, each tensor has its largest. */
        d[0] = -3;
        d[n - 1] = 2;
        for (uint64_t at = 0; at < n; at += 7)
                mfl_grid_measure(graph, at, MFL_MIN(n - at, (uint64_t)7), d + at, largest);
        assert_true(largest[0] == 3 && largest[mfl_grid_tensors(graph) - 1] == 2 && largest[1] == 0);
        free(d);
        free(v);
        mfl_graph_free(graph);
}

static float upper_half(float v)
{
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&v, &bits, sizeof v);
        return v;
}

/* Of any exponents, infinity and -0 too: 2 bytes a number and 2 a block; with one lower byte, 4. */
static void halves_take_two_bytes(void **state)
{
        static float v[N_MAX];
        struct mfl_rng rng = mfl_rng_new(5, MFL_RNG_TEST, 0, 0);
        for (size_t i = 0; i < N_MAX; i++) {
                uint32_t bits = mfl_rng_u32(&rng) & 0xffff0000u;
                memcpy(&v[i], &bits, sizeof bits);
        }
        size_t blocks = (N_MAX + MFL_PACK_BLOCK - 1) / MFL_PACK_BLOCK;
        assert_int_equal(there_and_back(true, v, sizeof v), 2 * N_MAX + 2 * blocks);
        v[7] = 1.00000012f;
        assert_int_equal(there_and_back(true, v, sizeof v), 2 * N_MAX + 2 * blocks + 2 * MFL_PACK_BLOCK);
}

static void bfloat16_is_the_nearest(void **state)
{
        struct mfl_rng rng = mfl_rng_new(6, MFL_RNG_TEST, 0, 0);
        for (int i = 0; i < 100000; i++) {
                double x = ldexp((double)mfl_rng_u32(&rng) - 0x1p31, (int)mfl_rng_below(&rng, 200) - 130);
                float got = mfl_bf16_nearest(x);
                assert_true(got == upper_half(got));
                double unit = got != 0 ? ldexp(1, ilogb((double)got) - 7) : 0x1p-126;
                assert_true(fabs((double)got - x) <= unit / 2 || (got == 0 && fabs(x) < unit));
        }
        assert_true(mfl_bf16_nearest(1 + 0x1p-8) == 1 && mfl_bf16_nearest(1 + 3 * 0x1p-8) == 1 + 0x1p-6);
        assert_true(mfl_bf16_nearest(0x1.fffp127) == MFL_BF16_MAX &&
                    mfl_bf16_nearest(-0x1.fffp127) == -MFL_BF16_MAX);
        assert_true(mfl_bf16_nearest(0x1p-127) == 0 && mfl_bf16_nearest(-0.1) == -0x1.9ap-4f);
}

/* A param that gets a thousandth of its last place each time moves on in the end. */
static void what_rounding_leaves_is_not_lost(void **state)
{
        float v = 1, rest = 0;
        for (int i = 0; i < 2000; i++) {
                v += 0x1p-17f;
                mfl_bf16_feed(1, &v, &rest);
                assert_true(v == upper_half(v));
        }
        assert_true((double)v + (double)rest == 1 + 2000 * 0x1p-17 && v == 1.015625f);
}

static void updates_are_rounded_without_bias(void **state)
{
        struct mfl_graph *graph = make_graph();
        uint64_t n = graph->n_moving;
        float *v = mfl_calloc(n, sizeof *v), *again = mfl_calloc(n, sizeof *v);
        double *mean = mfl_calloc(n, sizeof *mean);
        const uint32_t rounds = 4000;
        for (uint32_t r = 0; r < rounds; r++) {
                for (uint64_t i = 0; i < n; i++)
                        v[i] = 1 + (float)(i % 64) * 0x1p-13f;
                mfl_bf16_round(graph, 3, 4, r, v);
                for (uint64_t i = 0; i < n; i++)
                        mean[i] += (double)v[i] / rounds;
        }
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                for (uint64_t i = param->offset - graph->n_frozen, end = i + param->count; i < end; i++) {
                        double x = 1 + (double)(i % 64) * 0x1p-13, share = fmod(x, 0x1p-7) * 0x1p7;
                        if (mfl_param_is_statistics(param)) {
                                assert_true(v[i] == (float)x);
                                continue;
                        }
                        assert_true(v[i] == upper_half(v[i]) && fabs((double)v[i] - x) < 0x1p-7);
                        assert_true(
                                fabs(mean[i] - x) <= 5 * 0x1p-7 * sqrt(share * (1 - share) / rounds) + 1e-12);
                }
        }
        for (uint64_t i = 0; i < n; i++)
                again[i] = v[i] = 1 + (float)(i % 64) * 0x1p-13f;
        mfl_bf16_round(graph, 3, 4, 5, v);
        mfl_bf16_round(graph, 3, 4, 5, again);
        assert_memory_equal(again, v, n * sizeof *v);
        mfl_bf16_round(graph, 3, 5, 5, again); /* what is rounded stays */
        assert_memory_equal(again, v, n * sizeof *v);
        free(mean);
        free(again);
        free(v);
        mfl_graph_free(graph);
}

/* ---- top-k ---- */

static void sparse_floats_take_a_bit_each_and_themselves(void **state)
{
        static float v[10 * MFL_PACK_BLOCK + 3];
        struct mfl_rng rng = mfl_rng_new(8, MFL_RNG_TEST, 0, 0);
        const size_t n = MFL_ARRAY_SIZE(v);
        size_t n_set = 0;
        for (size_t i = 0; i < n; i++) {
                uint32_t bits = mfl_rng_below(&rng, 20) ? 0 : mfl_rng_u32(&rng) | 1;
                memcpy(&v[i], &bits, sizeof bits);
                n_set += bits != 0;
        }
        size_t packed = there_and_back(true, v, sizeof v);
        assert_true(packed && packed <= 11 * 2 + 10 * 32 + 1 + n_set * 4);
        /* A bit beyond the last element is none that a packer sets. */
        uint8_t memory[3 * 4], bytes[] = {253, 0, 0x08};
        memcpy(memory + sizeof memory - sizeof bytes, bytes, sizeof bytes);
        assert_int_equal(mfl_unpack(true, memory, sizeof memory, sizeof bytes, NULL), MFL_INVALID);
}

static int by_size(const void *a, const void *b)
{
        float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
        return (x < y) - (x > y);
}

/* Beside a sort: which elements are sent, of equal ones the first, whatever the ranges in which the vector is split. */
static void top_k_sends_the_largest_and_keeps_the_rest(void **state)
{
        static float u[999], sent[999], rest[999], order[999];
        const uint64_t edge[] = {100, 120};
        const struct mfl_fixed_parts statistics = {edge, 2};
        struct mfl_rng rng = mfl_rng_new(9, MFL_RNG_TEST, 0, 0);
        const double shares[] = {1e-9, 0.01, 0.05, 0.5, 0.999, 1};
        for (int round = 0; round < 60; round++) {
                double share = shares[round % 6];
                bool coarse = round % 2; /* many ties */
                size_t n = MFL_ARRAY_SIZE(u), n_order = 0, k = (size_t)ceil(share * (double)(n - 20)),
                       n_sent = 0;
                for (size_t i = 0; i < n; i++) {
                        u[i] = coarse ? (float)((int)mfl_rng_below(&rng, 9) - 4)
                                      : (float)ldexp((double)mfl_rng_u32(&rng) - 0x1p31,
                                                (int)mfl_rng_below(&rng, 60) - 60);
                        if (i < 100 || i >= 120)
                                order[n_order++] = u[i];
                }
                qsort(order, n_order, sizeof *order, by_size);
                struct mfl_top_k cut;
                memcpy(sent, u, sizeof u);
                mfl_top_k_find(&statistics, share, 1e30f, n, u, &cut);
                for (size_t first = 0, step = 1 + (size_t)round * 7; first < n; first += step)
                        mfl_top_k_split(&cut, first, MFL_MIN(step, n - first), sent + first, rest + first);
                for (size_t i = 0; i < n; i++) {
                        bool is_statistics = i >= 100 && i < 120, is_sent = rest[i] == 0 && sent[i] == u[i];
                        assert_true(sent[i] + rest[i] == u[i] && (sent[i] == 0 || rest[i] == 0));
                        if (is_statistics)
                                assert_true(sent[i] == u[i]);
                        else if (fabsf(u[i]) > fabsf(order[k - 1]))
                                assert_true(is_sent);
                        else if (fabsf(u[i]) < fabsf(order[k - 1]))
                                assert_true(rest[i] == u[i]);
                        if (!is_statistics && u[i] != 0)
                                n_sent += is_sent;
                        for (size_t before = 0;
                                coarse && !is_statistics && u[i] != 0 && is_sent && before < i; before++)
                                if ((before < 100 || before >= 120) && fabsf(u[before]) == fabsf(u[i]))
                                        assert_true(rest[before] == 0);
                }
                assert_true(n_sent <= k && (order[k - 1] == 0 || n_sent == k));
        }
}

/* What is sent keeps to the limit, and what is beyond it is kept; what was kept is added, but not to running statistics. */
static void top_k_keeps_what_is_beyond_the_limit(void **state)
{
        const uint64_t edge[] = {2, 3};
        const struct mfl_fixed_parts statistics = {edge, 2};
        float u[] = {3, -1, 100, 0.5f}, rest[] = {2, -0.25f, 7, 0.125f};
        struct mfl_top_k cut;
        mfl_top_k_feed(&statistics, 0, 4, rest, u);
        const float fed[] = {5, -1.25f, 100, 0.625f};
        assert_memory_equal(u, fed, sizeof u);
        mfl_top_k_find(&statistics, 0.6, 4, 4, u, &cut); /* two of three */
        mfl_top_k_split(&cut, 0, 4, u, rest);
        const float sent[] = {4, -1.25f, 100, 0}, kept[] = {1, 0, 0, 0.625f};
        for (int i = 0; i < 4; i++)
                assert_true(u[i] == sent[i] && rest[i] == kept[i]);
}

/* ---- steps of params ---- */

/* Over many rounds the params stay where plain ones would be, within a step, and whoever adds the steps has the same bits. */
static void steps_lose_nothing_over_time(void **state)
{
        struct mfl_graph *graph = make_graph();
        size_t n = graph->n_moving;
        struct mfl_rng rng = mfl_rng_new(10, MFL_RNG_TEST, 0, 0);
        float *before = mfl_calloc(n, 4), *v = mfl_calloc(n, 4), *rest = mfl_calloc(n, 4),
              *step = mfl_calloc(n, 4);
        double *plain = mfl_calloc(n, 8), *scratch = mfl_calloc(n, 8);
        double *largest = mfl_calloc(mfl_grid_tensors(graph), 8);
        for (int round = 0; round < 50; round++) {
                for (size_t i = 0; i < n; i++) {
                        double change = ((double)mfl_rng_u32(&rng) - 0x1p31) * 0x1p-40;
                        v[i] = (float)(before[i] + change);
                        plain[i] += (double)v[i] - before[i];
                }
                const struct mfl_grid_down down = {.before = before, .v = v, .rest = rest, .step = step};
                memset(largest, 0, mfl_grid_tensors(graph) * sizeof *largest);
                for (size_t first = 0; first < n; first += 37) {
                        size_t count = MFL_MIN(n - first, (size_t)37);
                        const struct mfl_grid_down part = {
                                before + first, v + first, rest + first, step + first};
                        mfl_grid_down_measure(graph, first, count, &part, scratch, largest);
                }
                mfl_grid_down_round(graph, 8, largest, 0, n, &down);
                for (size_t i = 0; i < n; i++) {
                        bool statistics = i >= graph->statistics.edge[0] && i < graph->statistics.edge[1];
                        assert_true(fabs((double)v[i] + rest[i] - plain[i]) < 1e-6);
                        assert_true(statistics || fabsf(rest[i]) <= 0x1p-14f);
                        assert_true(!(step[i] == 0 && signbit(step[i])));
                }
                mfl_grid_down_add(n, before, step);
                assert_memory_equal(step, v, n * sizeof *v);
                memcpy(before, v, n * sizeof *v);
        }
        free(before), free(v), free(rest), free(step), free(plain), free(scratch), free(largest);
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(sparse_floats_take_a_bit_each_and_themselves),
                cmocka_unit_test(top_k_sends_the_largest_and_keeps_the_rest),
                cmocka_unit_test(top_k_keeps_what_is_beyond_the_limit),
                cmocka_unit_test(steps_lose_nothing_over_time),
                cmocka_unit_test(integers_of_every_width_come_back),
                cmocka_unit_test(floats_come_back_with_their_bits),
                cmocka_unit_test(what_would_overwrite_itself_is_not_packed),
                cmocka_unit_test(no_bytes_lead_outside),
                cmocka_unit_test(the_step_follows_from_the_largest),
                cmocka_unit_test(rounding_is_unbiased_and_within_a_step),
                cmocka_unit_test(what_is_beyond_is_counted),
                cmocka_unit_test(halves_take_two_bytes),
                cmocka_unit_test(bfloat16_is_the_nearest),
                cmocka_unit_test(what_rounding_leaves_is_not_lost),
                cmocka_unit_test(updates_are_rounded_without_bias),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
