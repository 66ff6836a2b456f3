/* SPDX-License-Identifier: Apache-2.0 */
/* Activations, joins, dropout and biases on the emulated device against plain loops; all exact: the same
 * bodies in the same order, and sums of whole numbers. */
#include "tests/unit/cuda/ops/ops_test.h"

/* Two shapes for packs, others for single elements. */
static const struct mfl_cuda_tensor shapes[] = {
        {0, 4, 6, 6, 16, 0},
        {0, 3, 5, 7, 3, 0},
        {0, 10, 1, 1, 84, 0},
        {0, 2, 3, 3, 24, 0},
        {0, 1, 1, 1, 1, 0},
        {0, 5, 9, 9, 1, 0},
        {0, 37, 1, 1, 6, 0},
};

struct tensors {
        struct mfl_cuda_tensor x;
        struct ops_steps steps;
        int64_t n, each;
        int turn;
};

static void each_shape(void (*body)(const struct tensors *t))
{
        int turn = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(shapes); i++)
                for (int g = 0; g < 3; g++)
                        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++) {
                                struct tensors t = {.x = shapes[i], .turn = turn++};
                                t.x.groups = ops_groups[g];
                                t.x.type = (enum mfl_cuda_type)type;
                                t.n = ops_count(&t.x);
                                t.each = t.n / t.x.groups;
                                t.steps = ops_steps_new(
                                        t.x.groups, t.x.batch, ops_counts(t.x.groups, t.x.batch), 1);
                                body(&t);
                                ops_steps_free(&t.steps);
                        }
}

/* Groups that count are as expected; the others hold what they held. */
static void compare(const struct tensors *t, struct ops_buffer *b, const float *want, const float *before,
        const char *what)
{
        size_t bytes = (size_t)t->each * (size_t)mfl_cuda_type_bytes(t->x.type);
        float *got = ops_zeros(t->n), *rounded = ops_zeros(t->n);
        for (int64_t i = 0; i < t->n; i++)
                rounded[i] = ops_round(want[i], t->x.type);
        ops_tensor_get(b, &t->x, got);
        for (int g = 0; g < t->x.groups; g++) {
                int64_t at = g * t->each;
                if (t->steps.count[g] > 0)
                        ops_assert_equal(got + at, rounded + at, t->each, what);
                else if (before)
                        ops_assert_equal(got + at, before + at, t->each, what);
                else
                        ops_assert_untouched(b, (size_t)g * bytes, bytes);
        }
        ops_free(b);
        free(got);
        free(rounded);
}

static void try_elementwise(const struct tensors *t)
{
        enum mfl_cuda_act act = (enum mfl_cuda_act)(t->turn % 4);
        bool join = t->turn / 4 % 2, add = t->turn % 3 == 0, add2 = t->turn % 5 == 0;
        float *x = ops_uniform(t->n, t->x.type, 1), *x2 = ops_uniform(t->n, t->x.type, 2);
        float *y = ops_zeros(t->n), *dy = ops_uniform(t->n, t->x.type, 3);
        float *dx = ops_uniform(t->n, t->x.type, 4), *dx2 = ops_uniform(t->n, t->x.type, 5);
        float *want = ops_zeros(t->n), *want2 = ops_zeros(t->n);
        for (int64_t i = 0; i < t->n; i++) {
                y[i] = ops_round(mfl_act(act, join ? x[i] + x2[i] : x[i]), t->x.type);
                float dz = mfl_act_grad(act, y[i], dy[i]);
                want[i] = add ? dx[i] + dz : dz;
                want2[i] = add2 ? dx2[i] + dz : dz;
        }
        struct ops_buffer in = ops_tensor_from(&t->x, x), in2 = ops_tensor_from(&t->x, x2);
        struct ops_buffer out = ops_tensor(&t->x), dout = ops_tensor_from(&t->x, dy);
        struct ops_buffer kept = ops_tensor_from(&t->x, y); /* y for the groups that forward skips */
        struct ops_buffer din = ops_tensor_from(&t->x, dx), din2 = ops_tensor_from(&t->x, dx2);
        struct mfl_cuda_elementwise a = {.x = t->x,
                .act = act,
                .in = in.at,
                .in2 = join ? in2.at : NULL,
                .out = out.at,
                .dout = dout.at,
                .din = din.at,
                .din2 = join ? din2.at : NULL,
                .add = add,
                .add2 = add2,
                .steps = t->steps.on_device};
        OPS_OK(mfl_cuda_elementwise_forward(&a, NULL));
        a.out = in.at; /* in place */
        OPS_OK(mfl_cuda_elementwise_forward(&a, NULL));
        compare(t, &out, y, NULL, "y");
        compare(t, &in, y, x, "y in place");
        a.out = kept.at;
        OPS_OK(mfl_cuda_elementwise_backward(&a, NULL));
        compare(t, &din, want, dx, "dx");
        compare(t, &din2, join ? want2 : dx2, dx2, "dx2");
        ops_free(&in2);
        ops_free(&dout);
        ops_free(&kept);
        float *all[] = {x, x2, y, dy, dx, dx2, want, want2};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
}

OPS_TEST(activations_and_joins)
{
        each_shape(try_elementwise);
}

static float factor_of(const struct tensors *t, int64_t i, float rate, uint32_t layer, bool training)
{
        int g = (int)(i / t->each);
        struct mfl_rng_key key =
                mfl_rng_dropout_key(t->steps.dropout[g], t->steps.step_first[g] + OPS_STEP, layer);
        return training ? mfl_dropout_at(key, (uint64_t)(i % t->each), rate) : 1.0f;
}

static void try_dropout(const struct tensors *t)
{
        enum mfl_cuda_act act = (enum mfl_cuda_act)(t->turn % 4);
        bool training = t->turn % 3 != 2, add = t->turn % 2;
        float rate = t->turn % 5 == 0 ? 0.25f : 0.5f;
        float *x = ops_uniform(t->n, t->x.type, 1), *dy = ops_uniform(t->n, t->x.type, 2);
        float *dx = ops_uniform(t->n, t->x.type, 3), *y = ops_zeros(t->n), *want = ops_zeros(t->n);
        for (int64_t i = 0; i < t->n; i++) {
                float f = factor_of(t, i, rate, 6, training), d = dy[i] * f;
                y[i] = x[i] * f;
                want[i] = mfl_act_grad(act, x[i], add ? dx[i] + d : d);
        }
        struct ops_buffer in = ops_tensor_from(&t->x, x), out = ops_tensor(&t->x);
        struct ops_buffer dout = ops_tensor_from(&t->x, dy), din = ops_tensor_from(&t->x, dx);
        struct mfl_cuda_dropout a = {.x = t->x,
                .in = in.at,
                .out = out.at,
                .dout = dout.at,
                .din = din.at,
                .rate = rate,
                .layer = 6,
                .training = training,
                .add = add,
                .act = act,
                .act_y = in.at,
                .steps = t->steps.on_device};
        OPS_OK(mfl_cuda_dropout_forward(&a, NULL));
        compare(t, &out, y, NULL, "y");
        OPS_OK(mfl_cuda_dropout_backward(&a, NULL));
        compare(t, &din, want, dx, "dx");
        a.out = in.at;
        OPS_OK(mfl_cuda_dropout_forward(&a, NULL));
        compare(t, &in, y, x, "y in place");
        ops_free(&dout);
        float *all[] = {x, y, dy, dx, want};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
}

OPS_TEST(dropout_has_the_cpu_s_factors)
{
        each_shape(try_dropout);
}

#define OFFSET 3 /* of the bias within a group's params: any alignment */

static void try_bias_act(const struct tensors *t)
{
        enum mfl_cuda_act act = (enum mfl_cuda_act)(t->turn % 4);
        int64_t stride = t->x.c + 5, pixels = (int64_t)t->x.h * t->x.w, n_params = stride * t->x.groups;
        float *x = ops_uniform(t->n, t->x.type, 1), *old = ops_uniform(t->n, t->x.type, 2);
        float *bias = ops_uniform(n_params, MFL_CUDA_F32, 3), *y = ops_zeros(t->n), *dx = ops_zeros(t->n);
        bool with_old = t->turn % 3 != 0;
        for (int64_t i = 0; i < t->n; i++) {
                int64_t c = i / pixels % t->x.c, g = i / t->each;
                y[i] = ops_round(mfl_act(act, x[i] + bias[g * stride + OFFSET + c]), t->x.type);
                dx[i] = mfl_act_grad(act, y[i], with_old ? old[i] + x[i] : x[i]);
        }
        struct ops_buffer values = ops_tensor_from(&t->x, x), grad = ops_tensor_from(&t->x, x);
        struct ops_buffer params = ops_new_from(bias, (size_t)n_params * sizeof *bias);
        struct ops_buffer before = ops_tensor_from(&t->x, old), kept = ops_tensor_from(&t->x, y);
        struct mfl_cuda_bias a = {.x = t->x,
                .values = values.at,
                .bias = (float *)params.at + OFFSET,
                .stride = (uint64_t)stride,
                .act = act,
                .act_y = kept.at,
                .old = with_old ? before.at : NULL,
                .steps = t->steps.on_device};
        OPS_OK(mfl_cuda_bias_act(&a, NULL));
        compare(t, &values, y, x, "y");
        a.values = grad.at;
        OPS_OK(mfl_cuda_bias_act_grad(&a, NULL));
        compare(t, &grad, dx, x, "dx");
        ops_free(&params);
        ops_free(&before);
        ops_free(&kept);
        float *all[] = {x, old, bias, y, dx};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
}

OPS_TEST(biases_and_activations_in_place)
{
        each_shape(try_bias_act);
}

/* Whole numbers: the sum is exact in any order. */
static void try_bias_grad(struct mfl_cuda_tensor x)
{
        int64_t n = ops_count(&x), each = n / x.groups, pixels = (int64_t)x.h * x.w, stride = x.c + 5;
        size_t params_bytes = (size_t)(stride * x.groups) * sizeof(float);
        struct ops_steps steps = ops_steps_new(x.groups, x.batch, ops_counts(x.groups, x.batch), 1);
        float *dy = ops_whole(n, 8, 1), *want = ops_zeros(stride * x.groups), *got = malloc(params_bytes);
        ops_clear_rows(&x, steps.count, dy);
        for (int64_t i = 0; i < n; i++)
                want[i / each * stride + OFFSET + i / pixels % x.c] += dy[i];
        struct ops_buffer values = ops_tensor_from(&x, dy), db = ops_new(params_bytes);
        struct ops_buffer workspace = ops_new(mfl_cuda_bias_workspace(&x));
        struct mfl_cuda_bias a = {.x = x,
                .values = values.at,
                .db = (float *)db.at + OFFSET,
                .stride = (uint64_t)stride,
                .workspace = workspace.at,
                .steps = steps.on_device};
        OPS_OK(mfl_cuda_bias_grad(&a, NULL));
        ops_get(&db, got);
        void *used = malloc(workspace.bytes + 1);
        ops_get(&workspace, used); /* its guards */
        free(used);
        for (int g = 0; g < x.groups; g++) {
                size_t first = (size_t)(g * stride) * sizeof(float),
                       end = (size_t)(OFFSET + x.c) * sizeof(float);
                ops_assert_untouched(&db, first, OFFSET * sizeof(float));
                ops_assert_untouched(&db, first + end, (size_t)(5 - OFFSET) * sizeof(float));
                if (steps.count[g] > 0)
                        ops_assert_equal(got + g * stride + OFFSET, want + g * stride + OFFSET, x.c, "db");
                else
                        ops_assert_untouched(&db, first, end);
        }
        ops_free(&values);
        ops_free(&db);
        ops_free(&workspace);
        ops_steps_free(&steps);
        free(dy);
        free(want);
        free(got);
}

OPS_TEST(gradients_of_biases)
{
        static const struct mfl_cuda_tensor more[] = {
                {0, 10, 28, 28, 6, 0},  /* chunks, single channels */
                {0, 5, 32, 32, 64, 0},  /* chunks, packs */
                {0, 9, 13, 13, 260, 0}, /* several tiles */
                {0, 7, 1, 1, 1000, 0},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(shapes) + MFL_ARRAY_SIZE(more); i++) {
                struct mfl_cuda_tensor x =
                        i < MFL_ARRAY_SIZE(shapes) ? shapes[i] : more[i - MFL_ARRAY_SIZE(shapes)];
                for (int g = 0; g < 3; g++) {
                        x.groups = ops_groups[g];
                        x.type = (enum mfl_cuda_type)((i + (size_t)g) % 3);
                        try_bias_grad(x);
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(activations_and_joins),
                cmocka_unit_test(dropout_has_the_cpu_s_factors),
                cmocka_unit_test(biases_and_activations_in_place),
                cmocka_unit_test(gradients_of_biases),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
