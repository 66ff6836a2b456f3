/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer, the loss scale, changes of order and exact sums on the emulated device; all exact. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <float.h>

#include "common/base/fixed.h"

static uint16_t low_of(float v, enum mfl_cuda_type type)
{
        return type == MFL_CUDA_BF16 ? mfl_float_to_bf16(v) : mfl_float_to_f16(v);
}

/* ---- optimizer ---- */

struct vectors {
        int groups;
        int64_t n, stride, size; /* size: floats of all groups */
        struct ops_steps steps;
        float *params, *grads, *momentum, *first;
        struct ops_buffer b_params, b_grads, b_momentum, b_first, b_low, b_scale;
        struct mfl_cuda_sgd_args a;
};

/* `shift` floats before the vectors: for addresses that are not aligned. */
static struct vectors new_vectors(int groups, int64_t n, int64_t stride, int shift)
{
        static const uint32_t count[5] = {3, 0, 1, 3, 3};
        struct vectors v = {.groups = groups, .n = n, .stride = stride, .size = stride * groups};
        size_t bytes = (size_t)v.size * sizeof(float);
        v.steps = ops_steps_new(groups, 3, count, 1);
        v.params = ops_uniform(v.size, MFL_CUDA_F32, 1);
        v.grads = ops_uniform(v.size, MFL_CUDA_F32, 2);
        v.momentum = ops_uniform(v.size, MFL_CUDA_F32, 3);
        v.first = ops_uniform(v.size, MFL_CUDA_F32, 4);
        v.b_params = ops_new_from(v.params, bytes);
        v.b_grads = ops_new_from(v.grads, bytes);
        v.b_momentum = ops_new_from(v.momentum, bytes);
        v.b_first = ops_new_from(v.first, bytes);
        v.b_low = ops_new(bytes / 2);
        v.a = (struct mfl_cuda_sgd_args){.groups = groups,
                .n = (uint64_t)(n - shift),
                .stride = (uint64_t)stride,
                .params = (float *)v.b_params.at + shift,
                .momentum = (float *)v.b_momentum.at + shift,
                .first = (float *)v.b_first.at + shift,
                .first_stride = (uint64_t)stride,
                .grads = (float *)v.b_grads.at + shift,
                .low = (uint16_t *)(void *)v.b_low.at + shift,
                .low_type = MFL_CUDA_BF16,
                .steps = v.steps.on_device};
        return v;
}

static void free_vectors(struct vectors *v)
{
        struct ops_buffer *buffers[] = {&v->b_params, &v->b_grads, &v->b_momentum, &v->b_first, &v->b_low};
        float *arrays[] = {v->params, v->grads, v->momentum, v->first};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(buffers); i++)
                ops_free(buffers[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(arrays); i++)
                free(arrays[i]);
        ops_steps_free(&v->steps);
}

/* Elements [shift, n) of groups that count and have no overflow. */
static void check_step(const struct vectors *v, const struct mfl_cuda_scale *scale, int shift)
{
        float *params = ops_zeros(v->size), *momentum = ops_zeros(v->size);
        uint16_t *low = malloc((size_t)v->size * 2);
        ops_get(&v->b_params, params);
        ops_get(&v->b_momentum, momentum);
        ops_get(&v->b_low, low);
        for (int64_t i = 0; i < v->size; i++) {
                int g = (int)(i / v->stride);
                bool trained = i % v->stride >= shift && i % v->stride < v->n && v->steps.count[g] > 0 &&
                               !(scale && scale[g].overflow);
                float p = v->params[i], m = v->momentum[i], grad = v->grads[i];
                uint16_t want_low = 0xffff;
                if (trained) {
                        grad = scale ? grad / scale[g].scale : grad;
                        int64_t first = (int64_t)v->a.first_stride * g + i % v->stride;
                        mfl_sgd_update(&v->a.opt, v->a.opt.lr, &p, &m, &v->first[first], grad);
                        if (v->a.low)
                                want_low = low_of(p, v->a.low_type);
                }
                assert_true(params[i] == p);
                assert_true(momentum[i] == m);
                assert_int_equal(low[i], want_low);
        }
        free(params);
        free(momentum);
        free(low);
}

static const struct mfl_optimizer optimizers[] = {
        {0.1f, 0, 0, 0, false},
        {0.1f, 0.9f, 0, 0, false},
        {0.05f, 0.9f, 5e-4f, 0, true},
        {0.1f, 0, 1e-3f, 0.01f, false},
};

OPS_TEST(steps_have_the_cpu_s_bits)
{
        static const int64_t sizes[][2] = {{4096, 4096}, {1003, 1024}, {1003, 1003}, {1, 4}, {4, 8}};
        for (size_t s = 0; s < MFL_ARRAY_SIZE(sizes); s++)
                for (size_t o = 0; o < MFL_ARRAY_SIZE(optimizers); o++)
                        for (int g = 0; g < 3; g++) {
                                int shift = o % 2 == 0 || sizes[s][0] < 4 ? 0 : 1;
                                struct vectors v =
                                        new_vectors(ops_groups[g], sizes[s][0], sizes[s][1], shift);
                                v.a.opt = optimizers[o];
                                v.a.low = o == 3 ? NULL : v.a.low;
                                v.a.low_type = o % 2 ? MFL_CUDA_F16 : MFL_CUDA_BF16;
                                v.a.momentum = v.a.opt.momentum != 0.0f ? v.a.momentum : NULL;
                                v.a.first_stride = s % 2 ? v.a.stride : 0;
                                v.a.first = v.a.opt.prox_mu != 0.0f ? v.a.first : NULL;
                                OPS_OK(mfl_cuda_sgd(&v.a, NULL));
                                check_step(&v, NULL, shift);
                                free_vectors(&v);
                        }
}

static void put_scale(struct vectors *v, const struct mfl_cuda_scale *scale)
{
        v->b_scale = ops_new_from(scale, (size_t)v->groups * sizeof *scale);
        v->a.scale = (struct mfl_cuda_scale *)(void *)v->b_scale.at;
}

/* Group 0 is good, 1 does not count, 2 has an infinity, 3 a NaN at the very end, 4 one beyond n. */
OPS_TEST(overflows_leave_a_step_out)
{
        struct vectors v = new_vectors(5, 1003, 1024, 0);
        struct mfl_cuda_scale scale[5], next[5];
        for (int g = 0; g < 5; g++)
                scale[g] = (struct mfl_cuda_scale){65536.0f, (uint32_t)(7 + g), 0};
        scale[4].good_steps = 1999;
        v.grads[1 * 1024 + 5] = INFINITY;
        v.grads[2 * 1024 + 17] = -INFINITY;
        v.grads[3 * 1024 + 1002] = NAN;
        v.grads[4 * 1024 + 1003] = INFINITY;
        v.grads[4 * 1024 + 2] = FLT_MAX;
        ops_put(&v.b_grads, v.grads);
        put_scale(&v, scale);
        v.a.opt = optimizers[1];
        OPS_OK(mfl_cuda_check_grads(&v.a, NULL));
        ops_get(&v.b_scale, next);
        static const uint32_t overflow[5] = {0, 0, 1, 1, 0};
        for (int g = 0; g < 5; g++)
                assert_int_equal(next[g].overflow, overflow[g]);
        OPS_OK(mfl_cuda_sgd(&v.a, NULL));
        check_step(&v, next, 0);
        OPS_OK(mfl_cuda_scale_next(&v.a, NULL));
        ops_get(&v.b_scale, next);
        static const struct mfl_cuda_scale want[5] = {
                {65536, 8, 0}, {65536, 8, 0}, {32768, 0, 0}, {32768, 0, 0}, {131072, 0, 0}};
        for (int g = 0; g < 5; g++) {
                assert_true(next[g].scale == want[g].scale);
                assert_int_equal(next[g].good_steps, want[g].good_steps);
                assert_int_equal(next[g].overflow, 0);
        }
        ops_free(&v.b_scale);
        free_vectors(&v);
}

OPS_TEST(scales_have_limits)
{
        struct vectors v = new_vectors(5, 4, 4, 0);
        struct mfl_cuda_scale scale[5] = {
                {0x1p24f, 1999, 0}, {1, 1999, 0}, {0x1p-24f, 3, 1}, {0x1p-23f, 3, 1}, {0x1p23f, 1999, 0}};
        static const float want[5] = {0x1p24f, 1, 0x1p-24f, 0x1p-24f, 0x1p24f};
        put_scale(&v, scale);
        OPS_OK(mfl_cuda_scale_next(&v.a, NULL));
        ops_get(&v.b_scale, scale);
        for (int g = 0; g < 5; g++)
                assert_true(scale[g].scale == want[g]);
        ops_free(&v.b_scale);
        free_vectors(&v);
}

/* ---- orders ---- */

OPS_TEST(orders_there_and_back)
{
        enum { N = 1003 };
        uint32_t place[N];
        int64_t sums[N], got_sums[N];
        struct mfl_rng rng = mfl_rng_new(8, MFL_RNG_TEST, 0, 0);
        for (uint32_t i = 0; i < N; i++) {
                place[i] = i;
                sums[i] = -(int64_t)i * ((int64_t)1 << 40);
        }
        mfl_rng_shuffle(&rng, place, N);
        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++) {
                float *from = ops_uniform(N, MFL_CUDA_F32, 1), *to = ops_zeros(N), *back = ops_zeros(N);
                uint16_t low[N], want;
                struct ops_buffer b_place = ops_new_from(place, sizeof place);
                struct ops_buffer b_from = ops_new_from(from, sizeof(float) * N),
                                  b_to = ops_new(sizeof(float) * N);
                struct ops_buffer b_back = ops_new(sizeof(float) * N), b_low = ops_new(sizeof low);
                struct mfl_cuda_reorder a = {N, (uint32_t *)b_place.at, (float *)b_from.at, (float *)b_to.at,
                        true, type == MFL_CUDA_F32 ? NULL : b_low.at, (enum mfl_cuda_type)type};
                OPS_OK(mfl_cuda_reorder(&a, NULL));
                struct mfl_cuda_reorder b = {
                        N, (uint32_t *)b_place.at, (float *)b_to.at, (float *)b_back.at, false, NULL, 0};
                OPS_OK(mfl_cuda_reorder(&b, NULL));
                ops_get(&b_to, to);
                ops_get(&b_back, back);
                ops_get(&b_low, low);
                ops_assert_equal(back, from, N, "back");
                for (int i = 0; i < N; i++) {
                        assert_true(to[place[i]] == from[i]);
                        want = 0xffff;
                        if (type != MFL_CUDA_F32)
                                want = low_of(from[i], (enum mfl_cuda_type)type);
                        assert_int_equal(low[place[i]], want);
                }
                struct ops_buffer *all[] = {&b_place, &b_from, &b_to, &b_back, &b_low};
                for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                        ops_free(all[i]);
                free(from);
                free(to);
                free(back);
        }
        struct ops_buffer b_place = ops_new_from(place, sizeof place);
        struct ops_buffer b_from = ops_new_from(sums, sizeof sums), b_to = ops_new(sizeof sums);
        OPS_OK(mfl_cuda_reorder_i64(
                N, (uint32_t *)b_place.at, (int64_t *)b_from.at, (int64_t *)b_to.at, NULL));
        ops_get(&b_to, got_sums);
        for (int i = 0; i < N; i++)
                assert_true(got_sums[i] == sums[place[i]]);
        ops_free(&b_place);
        ops_free(&b_from);
        ops_free(&b_to);
}

/* ---- exact sums ---- */

/* Deltas of every size within the limit, including ties of the rounding. */
static void fill_deltas(float *params, float *first, int64_t n, float delta_max)
{
        struct mfl_rng rng = mfl_rng_new(6, MFL_RNG_TEST, 3, 0);
        for (int64_t i = 0; i < n; i++) {
                float d = ldexpf(2 * mfl_u32_to_unit(mfl_rng_u32(&rng)) - 1, -(int)mfl_rng_below(&rng, 60));
                first[i] = i % 3 ? 0.0f : ldexpf(mfl_u32_to_unit(mfl_rng_u32(&rng)), -3);
                params[i] = first[i] + d * delta_max * 0.5f;
        }
}

static void try_sum(int groups, int64_t n, int64_t stride, const uint64_t *weight, bool aligned, bool alike)
{
        int64_t size = groups * stride;
        float *params = ops_zeros(size), *first = ops_zeros(size);
        int64_t *want = malloc((size_t)stride * 8), *got = malloc((size_t)stride * 8);
        uint64_t n_bad[5], want_bad[5] = {0};
        struct mfl_fixed fixed;
        assert_int_equal(mfl_fixed_choose(4.0f, 5u << 29, &fixed, NULL), 0);
        if (alike)
                assert_int_equal(mfl_fixed_choose_statistics(64.0f, &fixed, NULL), 0);
        const uint64_t first_edge = (uint64_t)(n / 8 * 4 + (aligned ? 0 : 1)),
                       edges[] = {first_edge, (uint64_t)n};
        const struct mfl_fixed_parts parts = {edges, 2};
        fill_deltas(params, first, size, fixed.delta_max);
        if (groups == 5) {
                params[3 * stride + 1] = INFINITY;
                first[3 * stride + n - 1] = NAN;
                params[3 * stride + n / 2] = first[3 * stride + n / 2] + 9.0f;
                params[0 * stride + 2] = first[0 * stride + 2] = 0.0f;
                params[0 * stride + 2] = 4.0f; /* the limit itself is fine */
        }
        for (int64_t i = 0; alike && i < size; i++) { /* all groups start as the first one does */
                params[i] += first[i % stride] - first[i];
                first[i] = first[i % stride];
        }
        for (int64_t i = 0; i < stride; i++)
                want[i] = i * 1000003 - ((int64_t)1 << 50);
        struct ops_buffer b_params = ops_new_from(params, (size_t)size * 4);
        struct ops_buffer b_first = ops_new_from(first, (size_t)size * 4);
        struct ops_buffer b_weight = ops_new_from(weight, (size_t)groups * 8),
                          b_bad = ops_new((size_t)groups * 8);
        struct ops_buffer b_sum = ops_new_from(want, (size_t)stride * 8);
        int skip = aligned ? 0 : 1;
        struct mfl_cuda_sum a = {.groups = groups,
                .n = (uint64_t)(n - skip),
                .stride = (uint64_t)stride,
                .first_stride = alike ? 0 : (uint64_t)stride,
                .params = (float *)b_params.at + skip,
                .first = (float *)b_first.at + skip,
                .weight = (uint64_t *)b_weight.at,
                .n_bad = (uint64_t *)b_bad.at,
                .fixed = fixed,
                .n_trained = edges[0] - (uint64_t)skip,
                .sum = (int64_t *)b_sum.at + skip};
        OPS_OK(mfl_cuda_sum_count(&a, NULL));
        OPS_OK(mfl_cuda_sum_add(&a, NULL));
        for (int g = 0; g < groups; g++) {
                if (weight[g] == 0)
                        continue;
                const float *p = params + g * stride, *f = first + g * stride;
                for (int64_t i = skip; i < n; i++)
                        want_bad[g] += !(fabsf(p[i] - f[i]) <=
                                         (alike && i >= (int64_t)edges[0] ? 64.0f : fixed.delta_max));
                assert_int_equal(mfl_fixed_parts_add_delta(&fixed, &parts, (uint64_t)skip, weight[g],
                                         p + skip, f + skip, (size_t)(n - skip), want + skip, NULL) == 0,
                        want_bad[g] == 0);
        }
        ops_get(&b_bad, n_bad);
        ops_get(&b_sum, got);
        for (int g = 0; g < groups; g++)
                assert_int_equal(n_bad[g], want_bad[g]);
        if (groups == 5 && weight[3] > 0)
                assert_true(n_bad[3] >= 1);
        for (int64_t i = 0; i < stride; i++)
                assert_true(got[i] == want[i]);
        struct ops_buffer *all[] = {&b_params, &b_first, &b_weight, &b_bad, &b_sum};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                ops_free(all[i]);
        free(params);
        free(first);
        free(want);
        free(got);
}

OPS_TEST(sums_have_the_cpu_s_bits)
{
        static const uint64_t weight[5] = {MFL_WEIGHT_MAX, 0, 1, 12345, 600};
        static const uint64_t none[5] = {0};
        for (int g = 0; g < 3; g++) {
                try_sum(ops_groups[g], 4096, 4096, weight, true, false);
                try_sum(ops_groups[g], 4096, 4096, weight, true, true);
                try_sum(ops_groups[g], 5003, 5008, weight, true, false);
                try_sum(ops_groups[g], 1003, 1003, weight, true, false);
                try_sum(ops_groups[g], 1003, 1024, weight, false, true);
                try_sum(ops_groups[g], 17, 20, none, true, false);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(steps_have_the_cpu_s_bits),
                cmocka_unit_test(overflows_leave_a_step_out),
                cmocka_unit_test(scales_have_limits),
                cmocka_unit_test(orders_there_and_back),
                cmocka_unit_test(sums_have_the_cpu_s_bits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
