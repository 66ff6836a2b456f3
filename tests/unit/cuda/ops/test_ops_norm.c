/* SPDX-License-Identifier: Apache-2.0 */
/* Batch and group normalisation on the emulated device against plain loops in double.
 *
 * Tolerances: a value enters a float sum or moment through fewer than 64 roundings (ops_columns.h). So means
 * and variances are right to 64 * 2^-24 = 4e-6 relative, and what is computed from them, values of order 1,
 * to a few times that; then comes the rounding of the tensor's type. For data around an offset, means, and so
 * differences from them, are less exact by that offset. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <math.h>
#include <stdio.h>

#define OFFSET 3 /* of the first vector within a group's params: any alignment */
#define EPS 1e-5f
#define MOMENTUM 0.1f

struct norm_case {
        int batch, h, w, c, norm_groups;
        float offset;
};

struct run {
        struct mfl_cuda_tensor x;
        struct mfl_cuda_norm a;
        struct ops_steps steps;
        int64_t n, stride;
        int segments; /* whose moments are computed: channels of groups, or norm groups of samples */
        float offset;
        float *in, *residual, *params, *dy, *dx, *dresidual; /* the device's inputs */
        struct ops_buffer b_in, b_residual, b_out, b_params, b_mean, b_inverse, b_dy, b_dx, b_dresidual,
                b_grads;
        struct ops_buffer b_workspace;
        /* The expected results. */
        double *mean, *var, *count;
        float *y; /* the device's results */
};

struct place {
        int g, r, c, segment;
        int64_t vector; /* of weight[c] */
        bool counts;
};

static struct place place_of(const struct run *t, int64_t i)
{
        int pixels = t->x.h * t->x.w;
        struct place at;
        at.c = (int)(i / pixels % t->x.c);
        at.r = (int)(i / pixels / t->x.c % t->x.batch);
        at.g = (int)(i / pixels / t->x.c / t->x.batch);
        at.counts = (uint32_t)at.r < t->steps.count[at.g];
        at.vector = at.g * t->stride + OFFSET + at.c;
        at.segment = at.g * t->x.c + at.c;
        if (t->a.norm_groups)
                at.segment =
                        (at.g * t->x.batch + at.r) * t->a.norm_groups + at.c / (t->x.c / t->a.norm_groups);
        return at;
}

/* Means and biased variances of the segments, over rows that count. */
static void want_moments(struct run *t)
{
        for (int pass = 0; pass < 2; pass++) {
                for (int64_t i = 0; i < t->n; i++) {
                        struct place at = place_of(t, i);
                        double d = (double)t->in[i] - t->mean[at.segment];
                        if (!at.counts)
                                continue;
                        if (pass == 0) {
                                t->mean[at.segment] += (double)t->in[i];
                                t->count[at.segment] += 1;
                        } else {
                                t->var[at.segment] += d * d;
                        }
                }
                for (int s = 0; s < t->segments; s++)
                        if (t->count[s] > 0)
                                *(pass == 0 ? &t->mean[s] : &t->var[s]) /= t->count[s];
        }
}

static void expect_near(double got, double want, double tolerance, const char *what, int64_t i)
{
        if (!(fabs(got - want) <= tolerance))
                fail_msg("%s: element %lld is %.9g, expected %.9g within %.3g", what, (long long)i, got, want,
                        tolerance);
}

static struct run new_run(const struct norm_case *c, int groups, enum mfl_cuda_type type, int turn)
{
        struct run t = {.x = {groups, c->batch, c->h, c->w, c->c, type}, .offset = c->offset};
        t.n = ops_count(&t.x);
        t.stride = 4 * c->c + OFFSET + 1;
        t.steps = ops_steps_new(groups, c->batch, ops_counts(groups, c->batch), 1);
        t.segments = groups * (c->norm_groups ? c->batch * c->norm_groups : c->c);
        t.in = ops_uniform(t.n, type, 1);
        for (int64_t i = 0; i < t.n; i++)
                t.in[i] = ops_round(t.in[i] + c->offset, type);
        t.residual = ops_uniform(t.n, type, 2);
        t.dy = ops_uniform(t.n, type, 3);
        ops_clear_rows(&t.x, t.steps.count, t.dy);
        t.dx = ops_uniform(t.n, type, 4);
        t.dresidual = ops_uniform(t.n, type, 5);
        t.params = ops_uniform(t.stride * groups, MFL_CUDA_F32, 6);
        for (int64_t i = 0; i < t.stride * groups; i++) /* variances are positive */
                t.params[i] = i % t.stride >= OFFSET + 3 * c->c ? 1.5f + t.params[i] : t.params[i];
        t.mean = calloc((size_t)t.segments, sizeof(double));
        t.var = calloc((size_t)t.segments, sizeof(double));
        t.count = calloc((size_t)t.segments, sizeof(double));
        t.y = ops_zeros(t.n);
        t.a.norm_groups = c->norm_groups;
        size_t params_bytes = (size_t)(t.stride * groups) * sizeof(float);
        t.b_in = ops_tensor_from(&t.x, t.in);
        t.b_residual = ops_tensor_from(&t.x, t.residual);
        t.b_out = ops_tensor(&t.x);
        t.b_params = ops_new_from(t.params, params_bytes);
        t.b_mean = ops_new((size_t)t.segments * sizeof(float));
        t.b_inverse = ops_new((size_t)t.segments * sizeof(float));
        t.b_dy = ops_tensor_from(&t.x, t.dy);
        t.b_dx = ops_tensor_from(&t.x, t.dx);
        t.b_dresidual = ops_tensor_from(&t.x, t.dresidual);
        t.b_grads = ops_new(params_bytes);
        t.b_workspace = ops_new(mfl_cuda_norm_workspace(&t.x, c->norm_groups));
        float *params = (float *)t.b_params.at + OFFSET, *grads = (float *)t.b_grads.at + OFFSET;
        bool residual = turn % 2;
        t.a = (struct mfl_cuda_norm){.x = t.x,
                .norm_groups = c->norm_groups,
                .eps = EPS,
                .momentum = MOMENTUM,
                .training = true,
                .in = t.b_in.at,
                .residual = residual ? t.b_residual.at : NULL,
                .out = t.b_out.at,
                .weight = params,
                .bias = params + c->c,
                .running_mean = params + 2 * c->c,
                .running_var = params + 3 * c->c,
                .stride = (uint64_t)t.stride,
                .mean = (float *)t.b_mean.at,
                .inverse = (float *)t.b_inverse.at,
                .dout = t.b_dy.at,
                .din = t.b_dx.at,
                .dresidual = residual ? t.b_dresidual.at : NULL,
                .add = turn % 3 == 0,
                .add_residual = turn % 5 == 0,
                .dweight = grads,
                .dbias = grads + c->c,
                .act = turn % 4 < 2 ? MFL_CUDA_ACT_RELU : (enum mfl_cuda_act)(turn % 4),
                .workspace = t.b_workspace.at,
                .steps = t.steps.on_device};
        return t;
}

static void free_run(struct run *t)
{
        struct ops_buffer *buffers[] = {&t->b_in, &t->b_residual, &t->b_out, &t->b_params, &t->b_mean,
                &t->b_inverse, &t->b_dy, &t->b_dx, &t->b_dresidual, &t->b_grads, &t->b_workspace};
        void *arrays[] = {
                t->in, t->residual, t->params, t->dy, t->dx, t->dresidual, t->mean, t->var, t->count, t->y};
        void *used = malloc(t->b_workspace.bytes + 1);
        ops_get(&t->b_workspace, used); /* its guards */
        free(used);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(buffers); i++)
                ops_free(buffers[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(arrays); i++)
                free(arrays[i]);
        ops_steps_free(&t->steps);
}

static double tolerance_of(const struct run *t)
{
        return 1e-5 + (double)t->offset * 2e-6;
}

/* y of all rows that count; rows beyond are only finite; groups that do not count are untouched. */
static void check_forward(struct run *t)
{
        size_t each = (size_t)(t->n / t->x.groups) * (size_t)mfl_cuda_type_bytes(t->x.type);
        ops_tensor_get(&t->b_out, &t->x, t->y);
        for (int64_t i = 0; i < t->n; i++) {
                struct place at = place_of(t, i);
                if (t->steps.count[at.g] > 0)
                        assert_true(isfinite(t->y[i]));
                if (!at.counts)
                        continue;
                double mean = t->mean[at.segment], var = t->var[at.segment];
                if (!t->a.training && !t->a.norm_groups) {
                        mean = (double)t->params[at.vector + 2 * t->x.c];
                        var = (double)t->params[at.vector + 3 * t->x.c];
                }
                double z =
                        ((double)t->in[i] - mean) / sqrt(var + (double)EPS) * (double)t->params[at.vector] +
                        (double)t->params[at.vector + t->x.c];
                z += t->a.residual ? (double)t->residual[i] : 0.0;
                double want = (double)mfl_act(t->a.act, (float)z);
                expect_near((double)t->y[i], want,
                        tolerance_of(t) + 1.01 * (double)ops_rounding(t->x.type) * fabs(want), "y", i);
        }
        for (int g = 0; g < t->x.groups; g++)
                if (t->steps.count[g] == 0)
                        ops_assert_untouched(&t->b_out, (size_t)g * each, each);
}

/* The running statistics, and that nothing else of the params changed. */
static void check_params(struct run *t)
{
        float *got = malloc(t->b_params.bytes);
        ops_get(&t->b_params, got);
        for (int64_t i = 0; i < t->stride * t->x.groups; i++) {
                int g = (int)(i / t->stride), c = (int)(i % t->stride) - OFFSET - 2 * t->x.c;
                bool running = c >= 0 && c < 2 * t->x.c && !t->a.norm_groups && t->a.training;
                if (!running || t->steps.count[g] == 0) {
                        assert_true(got[i] == t->params[i]);
                        continue;
                }
                int s = g * t->x.c + c % t->x.c;
                double n = t->count[s], value = t->mean[s];
                if (c >= t->x.c)
                        value = n > 1 ? t->var[s] * n / (n - 1) : t->var[s];
                double want = (1 - (double)MOMENTUM) * (double)t->params[i] + (double)MOMENTUM * value;
                expect_near((double)got[i], want, tolerance_of(t), "running", i);
        }
        free(got);
}

static double dz_of(const struct run *t, int64_t i)
{
        return (double)mfl_act_grad(t->a.act, t->y[i], t->dy[i]);
}

static double xhat_of(const struct run *t, int64_t i, const struct place *at)
{
        return ((double)t->in[i] - t->mean[at->segment]) / sqrt(t->var[at->segment] + (double)EPS);
}

static void check_gradients_of_params(struct run *t)
{
        int c = t->x.c;
        float *got = malloc(t->b_grads.bytes);
        double *want = calloc((size_t)(t->stride * t->x.groups), sizeof(double));
        double *size = calloc((size_t)(t->stride * t->x.groups), sizeof(double));
        ops_get(&t->b_grads, got);
        for (int64_t i = 0; i < t->n; i++) {
                struct place at = place_of(t, i);
                if (!at.counts)
                        continue;
                double dz = dz_of(t, i), xhat = xhat_of(t, i, &at);
                want[at.vector] += dz * xhat;
                want[at.vector + c] += dz;
                size[at.vector] += fabs(dz) * (1 + fabs(xhat));
                size[at.vector + c] += fabs(dz);
        }
        for (int64_t i = 0; i < t->stride * t->x.groups; i++) {
                int k = (int)(i % t->stride) - OFFSET;
                bool written = k >= 0 && k < 2 * c && t->steps.count[i / t->stride] > 0;
                if (written)
                        expect_near((double)got[i], want[i], tolerance_of(t) * size[i] + 1e-30, "dparams", i);
                else
                        assert_memory_equal(&got[i], "\xff\xff\xff\xff", 4);
        }
        free(got);
        free(want);
        free(size);
}

static void check_gradients(struct run *t)
{
        float *dx = ops_zeros(t->n), *dresidual = ops_zeros(t->n);
        double *sum = calloc((size_t)t->segments, sizeof(double));
        double *sum_xhat = calloc((size_t)t->segments, sizeof(double));
        ops_tensor_get(&t->b_dx, &t->x, dx);
        ops_tensor_get(&t->b_dresidual, &t->x, dresidual);
        for (int64_t i = 0; i < t->n; i++) {
                struct place at = place_of(t, i);
                double weighted = at.counts ? (double)t->params[at.vector] * dz_of(t, i) : 0.0;
                sum[at.segment] += weighted;
                sum_xhat[at.segment] += at.counts ? weighted * xhat_of(t, i, &at) : 0.0;
        }
        for (int64_t i = 0; i < t->n; i++) {
                struct place at = place_of(t, i);
                double d = 0, residual = 0, inverse = 1;
                if (at.counts) {
                        int s = at.segment;
                        inverse = 1 / sqrt(t->var[s] + (double)EPS);
                        residual = dz_of(t, i);
                        d = inverse * ((double)t->params[at.vector] * residual - sum[s] / t->count[s] -
                                              xhat_of(t, i, &at) * sum_xhat[s] / t->count[s]);
                }
                bool group = t->steps.count[at.g] > 0;
                d = group ? d + (t->a.add ? (double)t->dx[i] : 0.0) : (double)t->dx[i];
                double rounding = 1.01 * (double)ops_rounding(t->x.type);
                expect_near((double)dx[i], d,
                        at.counts ? 4 * tolerance_of(t) * (1 + inverse) + rounding * fabs(d) : 0.0, "dx", i);
                double before = (double)t->dresidual[i];
                residual = !group || !t->a.dresidual ? before : residual + (t->a.add_residual ? before : 0.0);
                expect_near((double)dresidual[i], residual,
                        at.counts && t->a.dresidual ? (1e-7 + rounding) * fabs(residual) + 1e-7 : 0.0,
                        "dresidual", i);
        }
        free(dx);
        free(dresidual);
        free(sum);
        free(sum_xhat);
}

static void try_training(const struct norm_case *c, int groups, enum mfl_cuda_type type, int turn)
{
        struct run t = new_run(c, groups, type, turn);
        want_moments(&t);
        OPS_OK(mfl_cuda_norm_forward(&t.a, NULL));
        check_forward(&t);
        check_params(&t);
        /* The groups that forward skipped still hold poison in y, which must not be read. */
        OPS_OK(mfl_cuda_norm_backward(&t.a, NULL));
        check_gradients(&t);
        check_gradients_of_params(&t);
        free_run(&t);
}

static void try_inference(const struct norm_case *c, int groups, enum mfl_cuda_type type, int turn)
{
        struct run t = new_run(c, groups, type, turn);
        t.a.training = false;
        want_moments(&t);
        OPS_OK(mfl_cuda_norm_forward(&t.a, NULL));
        check_forward(&t);
        check_params(&t);
        free_run(&t);
}

static void each_run(const struct norm_case *cases, size_t n,
        void (*body)(const struct norm_case *c, int groups, enum mfl_cuda_type type, int turn))
{
        int turn = 0;
        for (size_t i = 0; i < n; i++)
                for (int g = 0; g < 3; g++)
                        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++)
                                body(&cases[i], ops_groups[g], (enum mfl_cuda_type)type, turn++);
}

static const struct norm_case batch_cases[] = {
        {4, 5, 5, 16, 0, 0},   /* one launch, packs */
        {5, 3, 7, 7, 0, 0},    /* single channels */
        {6, 1, 1, 24, 0, 0},   /* vectors */
        {1, 1, 1, 3, 0, 0},    /* one value: variance 0 */
        {9, 24, 24, 8, 0, 0},  /* one unit */
        {3, 20, 21, 10, 0, 0}, /* chunks, single channels in two-byte types */
};

OPS_TEST(batch_norm_trains)
{
        each_run(batch_cases, MFL_ARRAY_SIZE(batch_cases), try_training);
}

OPS_TEST(batch_norm_infers)
{
        each_run(batch_cases, MFL_ARRAY_SIZE(batch_cases), try_inference);
}

OPS_TEST(batch_norm_of_large_batches_goes_by_chunks)
{
        static const struct norm_case large = {12, 24, 24, 16, 0, 0}, odd = {9, 31, 17, 260, 0, 0};
        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++) {
                try_training(&large, 2, (enum mfl_cuda_type)type, type);
                try_inference(&large, 1, (enum mfl_cuda_type)type, type);
        }
        try_training(&odd, 1, MFL_CUDA_BF16, 3);
}

OPS_TEST(group_norm_trains)
{
        static const struct norm_case cases[] = {
                {3, 4, 4, 32, 2, 0},   /* a unit lies in one norm group */
                {2, 5, 3, 32, 16, 0},  /* several norm groups in a unit */
                {4, 3, 3, 6, 3, 0},    /* single channels */
                {2, 2, 2, 24, 24, 0},  /* each channel alone */
                {3, 1, 1, 60, 5, 0},   /* vectors: a tile of several norm groups */
                {2, 7, 7, 128, 1, 0},  /* one norm group */
                {2, 1, 1, 4000, 2, 0}, /* more units than threads */
        };
        each_run(cases, MFL_ARRAY_SIZE(cases), try_training);
}

/* E[x^2] - E[x]^2 in float would be off by a fifth. */
OPS_TEST(moments_do_not_cancel)
{
        static const struct norm_case cases[] = {
                {8, 6, 6, 8, 0, 1000}, {8, 24, 24, 8, 0, 1000}, {3, 9, 9, 16, 2, 1000}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                try_training(&cases[i], 2, MFL_CUDA_F32, (int)i);
}

/* A group's bits depend neither on G nor on its place. */
static void groups_do_not_matter(void **state)
{
        static const struct norm_case c = {12, 24, 24, 16, 0, 0};
        float *dx[2], *grads[2];
        for (int i = 0; i < 2; i++) {
                struct run t = new_run(&c, i == 0 ? 2 : 5, MFL_CUDA_F32, 1);
                OPS_OK(mfl_cuda_norm_forward(&t.a, NULL));
                OPS_OK(mfl_cuda_norm_backward(&t.a, NULL));
                dx[i] = ops_zeros(t.n);
                grads[i] = malloc(t.b_grads.bytes);
                ops_tensor_get(&t.b_dx, &t.x, dx[i]);
                ops_get(&t.b_grads, grads[i]);
                free_run(&t);
        }
        assert_memory_equal(dx[0], dx[1], sizeof(float) * 12 * 24 * 24 * 16);
        assert_memory_equal(grads[0] + OFFSET, grads[1] + OFFSET, sizeof(float) * 32);
        for (int i = 0; i < 2; i++) {
                free(dx[i]);
                free(grads[i]);
        }
}

static void misaligned_packs_are_refused(void **state)
{
        struct mfl_cuda_norm a = {.x = {1, 2, 2, 2, 8, MFL_CUDA_F32}, .in = (void *)8};
        assert_int_equal(mfl_cuda_norm_forward(&a, NULL), cudaErrorMisalignedAddress);
        a.in = NULL;
        a.norm_groups = 3;
        assert_int_equal(mfl_cuda_norm_forward(&a, NULL), cudaErrorInvalidValue);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(batch_norm_trains),
                cmocka_unit_test(batch_norm_infers),
                cmocka_unit_test(batch_norm_of_large_batches_goes_by_chunks),
                cmocka_unit_test(group_norm_trains),
                cmocka_unit_test(moments_do_not_cancel),
                cmocka_unit_test(groups_do_not_matter),
                cmocka_unit_test(misaligned_packs_are_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
