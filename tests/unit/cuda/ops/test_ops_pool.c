/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on the emulated device against the plain loops of kernels/reference; all exact: largest elements are
 * copied, gradients are added in the reference's order, and means are of whole numbers. */
#include "tests/unit/cuda/ops/ops_test.h"

#include "kernels/reference/ops.h"

struct pool_case {
        int batch, c, h, w;
        int k[2], s[2], p[2], d[2];
};

static struct mfl_window window_of(const struct pool_case *t)
{
        struct mfl_window v = {.c = t->c, .h = t->h, .w = t->w, .o = t->c};
        int64_t size[2] = {t->h, t->w}, out[2];
        for (int i = 0; i < 2; i++) {
                v.k[i] = t->k[i];
                v.s[i] = t->s[i];
                v.p[i] = t->p[i];
                v.d[i] = t->d[i];
                out[i] = (size[i] + 2 * t->p[i] - (int64_t)t->d[i] * (t->k[i] - 1) - 1) / t->s[i] + 1;
        }
        v.oh = out[0];
        v.ow = out[1];
        return v;
}

/* Everything about one run. `groups` groups with their counts; act and add are of backward. */
struct run {
        struct pool_case shape;
        bool max, global, add;
        enum mfl_cuda_act act;
        struct mfl_cuda_tensor x, y;
        struct mfl_window window;
        struct ops_steps steps;
};

static void want_forward(const struct run *t, const float *x, float *y)
{
        int64_t rows = t->x.groups * t->x.batch;
        if (t->max)
                mfl_ref_maxpool_forward(&t->window, rows, x, y);
        else
                mfl_ref_avgpool_forward(&t->window, rows, x, y);
        for (int64_t i = 0; i < ops_count(&t->y); i++)
                y[i] = ops_round(y[i], t->y.type);
}

static void want_backward(const struct run *t, const float *x, const float *dy, float *dx)
{
        int64_t rows = t->x.groups * t->x.batch;
        if (t->max)
                mfl_ref_maxpool_backward(&t->window, rows, x, dy, t->add, dx);
        else
                mfl_ref_avgpool_backward(&t->window, rows, dy, t->add, dx);
        for (int64_t i = 0; i < ops_count(&t->x); i++)
                dx[i] = ops_round(mfl_act_grad(t->act, x[i], dx[i]), t->x.type);
}

/* Groups that count are as expected in all rows; the others are unchanged. */
static void compare(const struct run *t, const struct mfl_cuda_tensor *x, const struct ops_buffer *b,
        const float *want, bool was_poison, const char *what)
{
        int64_t n = ops_count(x), each = n / x->groups;
        size_t bytes = (size_t)each * (size_t)mfl_cuda_type_bytes(x->type);
        float *got = ops_zeros(n);
        ops_tensor_get(b, x, got);
        for (int g = 0; g < x->groups; g++) {
                if (t->steps.count[g] > 0)
                        ops_assert_equal(got + g * each, want + g * each, each, what);
                else if (was_poison)
                        ops_assert_untouched(b, (size_t)g * bytes, bytes);
        }
        free(got);
}

static void run_pool(struct run *t)
{
        int64_t n = ops_count(&t->x), n_out = ops_count(&t->y);
        float *x = ops_whole(n, 9, 1), *y = ops_zeros(n_out), *dy = ops_uniform(n_out, t->y.type, 2);
        float *dx = t->add ? ops_uniform(n, t->x.type, 3) : ops_zeros(n);
        ops_clear_rows(&t->x, t->steps.count, x);
        ops_clear_rows(&t->y, t->steps.count, dy);
        bool wide = t->window.k[0] * t->window.k[1] > 255;
        struct ops_buffer in = ops_tensor_from(&t->x, x), out = ops_tensor(&t->y);
        struct ops_buffer dout = ops_tensor_from(&t->y, dy);
        struct ops_buffer din = t->add ? ops_tensor_from(&t->x, dx) : ops_tensor(&t->x);
        struct ops_buffer argmax = ops_new((size_t)n_out * (wide ? 4 : 1));
        struct mfl_cuda_pool a = {.x = t->x,
                .window = t->window,
                .max = t->max,
                .in = in.at,
                .out = out.at,
                .din = din.at,
                .dout = dout.at,
                .act = t->act,
                .add = t->add,
                .steps = t->steps.on_device};
        if (t->max) {
                a.argmax = wide ? NULL : argmax.at;
                a.argmax_wide = wide ? (uint32_t *)argmax.at : NULL;
        }
        OPS_OK(t->global ? mfl_cuda_global_pool_forward(&a, NULL) : mfl_cuda_pool_forward(&a, NULL));
        want_forward(t, x, y);
        compare(t, &t->y, &out, y, true, "y");
        OPS_OK(t->global ? mfl_cuda_global_pool_backward(&a, NULL) : mfl_cuda_pool_backward(&a, NULL));
        want_backward(t, x, dy, dx);
        compare(t, &t->x, &din, dx, !t->add, "dx");
        ops_free(&in);
        ops_free(&out);
        ops_free(&dout);
        ops_free(&din);
        ops_free(&argmax);
        free(x);
        free(y);
        free(dy);
        free(dx);
}

static void run_case(const struct pool_case *shape, bool max, bool global)
{
        int i = 0;
        for (int g = 0; g < 3; g++) {
                for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++, i++) {
                        struct run t = {.shape = *shape, .max = max, .global = global, .add = i % 2 == 0};
                        t.act = i % 4 < 2 ? MFL_CUDA_ACT_NONE : MFL_CUDA_ACT_RELU;
                        t.window = window_of(shape);
                        t.x = (struct mfl_cuda_tensor){ops_groups[g], shape->batch, shape->h, shape->w,
                                shape->c, (enum mfl_cuda_type)type};
                        t.y = t.x;
                        t.y.h = (int)t.window.oh;
                        t.y.w = (int)t.window.ow;
                        t.steps = ops_steps_new(
                                ops_groups[g], shape->batch, ops_counts(ops_groups[g], shape->batch), 1);
                        run_pool(&t);
                        ops_steps_free(&t.steps);
                }
        }
}

OPS_TEST(pools_are_the_plain_loops)
{
        static const struct pool_case cases[] = {
                {3, 6, 24, 24, {2, 2}, {2, 2}, {0, 0}, {1, 1}},   /* LeNet's */
                {2, 8, 7, 9, {3, 3}, {2, 2}, {1, 1}, {1, 1}},     /* windows that overlap, padding */
                {2, 16, 5, 5, {2, 3}, {1, 2}, {1, 1}, {2, 1}},    /* dilated, not square */
                {2, 3, 4, 4, {1, 1}, {3, 3}, {0, 0}, {1, 1}},     /* pixels that no window holds */
                {1, 4, 20, 20, {17, 17}, {3, 3}, {8, 8}, {1, 1}}, /* a wide argmax */
                {1, 5, 2, 2, {2, 2}, {1, 1}, {2, 2}, {1, 1}},     /* windows of padding only */
                {2, 1, 13, 1, {3, 1}, {2, 1}, {0, 0}, {1, 1}},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                run_case(&cases[i], true, false);
                run_case(&cases[i], false, false);
        }
}

OPS_TEST(global_pools_are_means_of_channels)
{
        static const struct pool_case cases[] = {
                {3, 64, 4, 4, {4, 4}, {1, 1}, {0, 0}, {1, 1}},
                {2, 7, 3, 5, {3, 5}, {1, 1}, {0, 0}, {1, 1}},
                {1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                run_case(&cases[i], false, true);
}

static void sizes_beyond_the_kernels_are_refused(void **state)
{
        struct mfl_cuda_pool a = {.x = {1, 1 << 16, 1 << 8, 1 << 7, 1, MFL_CUDA_F32}, .max = true};
        a.window = window_of(&(struct pool_case){1, 1, 256, 128, {2, 2}, {2, 2}, {0, 0}, {1, 1}});
        assert_int_equal(mfl_cuda_pool_forward(&a, NULL), cudaErrorInvalidValue);
        a.x = (struct mfl_cuda_tensor){65536, 1, 256, 128, 1, MFL_CUDA_F32};
        assert_int_equal(mfl_cuda_pool_forward(&a, NULL), cudaErrorInvalidValue);
        a.x = (struct mfl_cuda_tensor){1, 1, 256, 128, 1, MFL_CUDA_F32}; /* no argmax */
        assert_int_equal(mfl_cuda_pool_backward(&a, NULL), cudaErrorInvalidValue);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(pools_are_the_plain_loops),
                cmocka_unit_test(global_pools_are_means_of_channels),
                cmocka_unit_test(sizes_beyond_the_kernels_are_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
