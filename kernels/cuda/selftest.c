/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that conformance cannot make from outside. Every variant of the own convolution kernels gives the
 * bits of the first, for any number of clients; the tensor cores' sums are near the float ones; the plans
 * that a network would use agree with the own kernels.
 *
 * Tensors are random, for three clients at once. Each check is one report. Memory comes from the device and
 * is freed before the next problem.
 */
#include "kernels/cuda/selftest.h"

#include <math.h>
#include <stdio.h>

#include "kernels/cuda/conv/conv_plan.h"

#define GROUPS 3

/* An emulated device runs only the first N_SMALL. */
#define N_SMALL 3
static const struct mfl_cuda_conv problems[] = {
        {.n = 2,
                .h = 9,
                .w = 7,
                .c = 5,
                .oh = 4,
                .ow = 5,
                .k = 11,
                .r = 3,
                .s = 2,
                .pad = {1, 0},
                .stride = {2, 1},
                .dilation = {2, 2}},
        {.n = 2, .h = 6, .w = 6, .c = 8, .oh = 6, .ow = 6, .k = 16, .r = 3, .s = 3, .pad = {1, 1}},
        {.n = 3, .h = 1, .w = 1, .c = 40, .oh = 1, .ow = 1, .k = 24, .r = 1, .s = 1},
        /* The layers of the presets, with a few rows. */
        {.n = 3, .h = 28, .w = 28, .c = 1, .oh = 28, .ow = 28, .k = 6, .r = 5, .s = 5, .pad = {2, 2}},
        {.n = 3, .h = 14, .w = 14, .c = 6, .oh = 10, .ow = 10, .k = 16, .r = 5, .s = 5},
        {.n = 2, .h = 14, .w = 14, .c = 32, .oh = 14, .ow = 14, .k = 64, .r = 5, .s = 5, .pad = {2, 2}},
        {.n = 2, .h = 32, .w = 32, .c = 3, .oh = 30, .ow = 30, .k = 32, .r = 3, .s = 3},
        {.n = 2,
                .h = 16,
                .w = 16,
                .c = 64,
                .oh = 8,
                .ow = 8,
                .k = 128,
                .r = 3,
                .s = 3,
                .pad = {1, 1},
                .stride = {2, 2}},
        {.n = 2, .h = 16, .w = 16, .c = 64, .oh = 8, .ow = 8, .k = 128, .r = 1, .s = 1, .stride = {2, 2}},
        {.n = 10, .h = 1, .w = 1, .c = 400, .oh = 1, .ow = 1, .k = 120, .r = 1, .s = 1},
        {.n = 10, .h = 1, .w = 1, .c = 3136, .oh = 1, .ow = 1, .k = 512, .r = 1, .s = 1},
        {.n = 32, .h = 1, .w = 1, .c = 84, .oh = 1, .ow = 1, .k = 10, .r = 1, .s = 1},
        /* Large enough for the rule to name a library. */
        {.n = 64, .h = 16, .w = 16, .c = 128, .oh = 16, .ow = 16, .k = 128, .r = 3, .s = 3, .pad = {1, 1}},
};
static const char *const pass_names[] = {"forward", "backward data", "backward weights"};
static const char *const precision_names[] = {"fp32", "tf32", "bf16", "fp16"};

/* Device tensors of one problem, and the host's copies of results. */
struct bench {
        struct mfl_cuda_context *context;
        struct mfl_cuda_conv conv;
        enum mfl_cuda_type type;
        uint64_t w_stride, b_stride; /* from client to client: multiples of 64 elements, as in a network */
        uint64_t n_x, n_y, n_w;      /* elements, all groups */
        void *x, *y, *w, *out;       /* out: of the current pass */
        float *bias;
        void *workspace;
        uint64_t workspace_bytes;
        void *first, *again; /* host */
        void (*report)(void *user, bool ok, const char *text);
        void *user;
};

static int fill(struct bench *b, void *to, uint64_t n, enum mfl_cuda_type type, uint64_t which, float scale,
        struct mfl_error *err)
{
        uint64_t bytes = n * (uint64_t)mfl_cuda_type_bytes(type);
        MFL_CLEANUP_FREE void *host = mfl_malloc(bytes);
        if (!host)
                return mfl_fail_memory(err, bytes, "a self-test");
        struct mfl_rng rng = mfl_rng_new(31, MFL_RNG_TEST, which, 0);
        for (uint64_t i = 0; i < n; i++)
                mfl_store(host, (int64_t)i, (mfl_u32_to_unit(mfl_rng_u32(&rng)) * 2 - 1) * scale, type);
        int rc = mfl_cuda_check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, b->context->stream),
                "self-test: copy", err);
        /* The host's copy is freed when this returns. */
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(b->context->stream), "self-test: copy", err);
}

static void bench_deinit(struct bench *b)
{
        void *const memory[] = {b->x, b->y, b->w, b->out, b->bias, b->workspace};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(memory); i++)
                cudaFree(memory[i]);
        free(b->first);
        free(b->again);
}

static uint64_t round_up(uint64_t n)
{
        return (n + 63) / 64 * 64;
}

static int bench_init(struct bench *b, struct mfl_error *err)
{
        const struct mfl_cuda_conv *c = &b->conv;
        uint64_t groups = (uint64_t)c->groups, n = (uint64_t)c->n;
        b->type = mfl_cuda_type_of(c->precision);
        b->n_x = groups * n * (uint64_t)c->h * (uint64_t)c->w * (uint64_t)c->c;
        b->n_y = groups * n * (uint64_t)c->oh * (uint64_t)c->ow * (uint64_t)c->k;
        b->w_stride = round_up((uint64_t)c->k * (uint64_t)c->r * (uint64_t)c->s * (uint64_t)c->c);
        b->b_stride = round_up((uint64_t)c->k);
        b->n_w = groups * b->w_stride;
        uint64_t size = (uint64_t)mfl_cuda_type_bytes(b->type),
                 most = MFL_MAX(b->n_x, MFL_MAX(b->n_y, b->n_w));
        b->workspace_bytes = 256;
        for (int p = 0; p < MFL_CUDA_PASS_COUNT_; p++) {
                enum mfl_cuda_pass pass = (enum mfl_cuda_pass)p;
                for (int v = 0; v < mfl_cuda_conv_variants(c, pass); v++)
                        b->workspace_bytes = MFL_MAX(b->workspace_bytes, mfl_cuda_conv_workspace(c, pass, v));
                struct mfl_cuda_conv_use use = {
                        .pass = pass, .bias = pass != MFL_CUDA_BACKWARD_DATA, .fast = true};
                b->workspace_bytes = MFL_MAX(b->workspace_bytes, mfl_cuda_conv_plan_workspace_max(c, &use));
        }
        const struct {
                void **at;
                uint64_t bytes;
        } memory[] = {{&b->x, b->n_x * size}, {&b->y, b->n_y * size}, {&b->w, b->n_w * size},
                {&b->out, most * 4}, {(void **)&b->bias, groups * b->b_stride * 4},
                {&b->workspace, b->workspace_bytes}};
        int rc = 0;
        for (size_t i = 0; !rc && i < MFL_ARRAY_SIZE(memory); i++)
                rc = mfl_cuda_alloc(memory[i].bytes, "a self-test", memory[i].at, err);
        b->first = mfl_malloc(most * 4);
        b->again = mfl_malloc(most * 4);
        if (!rc && (!b->first || !b->again))
                rc = mfl_fail_memory(err, most * 8, "a self-test");
        if (!rc)
                rc = mfl_cuda_check(cudaMemsetAsync(b->out, 0xee, most * 4, b->context->stream),
                        "self-test: memset", err);
        if (!rc)
                rc = fill(b, b->x, b->n_x, b->type, 1, 1, err);
        if (!rc)
                rc = fill(b, b->y, b->n_y, b->type, 2, 1, err);
        if (!rc)
                rc = fill(b, b->w, b->n_w, b->type, 3, 0.5f, err);
        return rc ? rc : fill(b, b->bias, groups * b->b_stride, MFL_CUDA_F32, 4, 1, err);
}

static uint64_t out_count(const struct bench *b, enum mfl_cuda_pass pass)
{
        return pass == MFL_CUDA_FORWARD ? b->n_y : pass == MFL_CUDA_BACKWARD_DATA ? b->n_x : b->n_w;
}

static enum mfl_cuda_type out_type(const struct bench *b, enum mfl_cuda_pass pass)
{
        return pass == MFL_CUDA_BACKWARD_WEIGHTS ? MFL_CUDA_F32 : b->type;
}

static struct mfl_cuda_conv_args args_of(struct bench *b, enum mfl_cuda_pass pass)
{
        const struct mfl_cuda_conv *c = &b->conv;
        struct mfl_cuda_conv_args args = {.x = b->x,
                .dy = b->y,
                .w = b->w,
                .w_stride = b->w_stride,
                .p_stride = pass == MFL_CUDA_FORWARD ? b->b_stride : b->w_stride,
                .steps = {.batch = (uint32_t)c->n},
                .workspace = b->workspace};
        if (pass == MFL_CUDA_FORWARD) {
                args.y = b->out;
                args.bias = b->bias;
                args.act = MFL_CUDA_ACT_RELU;
        } else if (pass == MFL_CUDA_BACKWARD_DATA) {
                args.dx = b->out;
        } else {
                args.dw = b->out;
        }
        return args;
}

/* Leaves garbage behind, which shows what the next run does not write. */
static int fetch(struct bench *b, enum mfl_cuda_pass pass, void *to, struct mfl_error *err)
{
        uint64_t bytes = out_count(b, pass) * (uint64_t)mfl_cuda_type_bytes(out_type(b, pass));
        cudaStream_t stream = b->context->stream;
        int rc = mfl_cuda_check(
                cudaMemcpyAsync(to, b->out, bytes, cudaMemcpyDeviceToHost, stream), "self-test: copy", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemsetAsync(b->out, 0xee, bytes, stream), "self-test: memset", err);
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(stream), "self-test: kernel", err);
}

static int run_variant(struct bench *b, enum mfl_cuda_pass pass, int variant, void *to, struct mfl_error *err)
{
        struct mfl_cuda_conv_args args = args_of(b, pass);
        int rc = mfl_cuda_check(mfl_cuda_conv_own(&b->conv, pass, variant, &args, b->context->stream),
                mfl_cuda_conv_variant_name(&b->conv, pass, variant), err);
        return rc ? rc : fetch(b, pass, to, err);
}

static void report(struct bench *b, enum mfl_cuda_pass pass, bool ok, const char *what)
{
        const struct mfl_cuda_conv *c = &b->conv;
        char text[400];
        snprintf(text, sizeof text, "%s %dx%dx%d -> %d, %dx%d, rows %d, %s: %s",
                precision_names[c->precision], c->c, c->h, c->w, c->k, c->r, c->s, c->n, pass_names[pass],
                what);
        b->report(b->user, ok, text);
}

static int check_variants(struct bench *b, enum mfl_cuda_pass pass, struct mfl_error *err)
{
        uint64_t bytes = out_count(b, pass) * (uint64_t)mfl_cuda_type_bytes(out_type(b, pass));
        int n = mfl_cuda_conv_variants(&b->conv, pass), rc = run_variant(b, pass, 0, b->first, err);
        char text[160];
        for (int v = 0; !rc && v < n; v++) {
                rc = run_variant(b, pass, v, b->again, err);
                bool same = !rc && !memcmp(b->first, b->again, bytes);
                snprintf(text, sizeof text, "%s gives the bits of %s",
                        mfl_cuda_conv_variant_name(&b->conv, pass, v),
                        v ? mfl_cuda_conv_variant_name(&b->conv, pass, 0) : "itself run again");
                if (!rc)
                        report(b, pass, same, text);
        }
        return rc;
}

/* One client alone must give the bits of the last of three. */
static int check_groups(struct bench *b, enum mfl_cuda_pass pass, struct mfl_error *err)
{
        uint64_t groups = (uint64_t)b->conv.groups, each = out_count(b, pass) / groups;
        uint64_t bytes = each * (uint64_t)mfl_cuda_type_bytes(out_type(b, pass));
        uint64_t size = (uint64_t)mfl_cuda_type_bytes(b->type);
        int rc = run_variant(b, pass, 0, b->first, err);
        struct bench one = *b;
        one.conv.groups = 1;
        one.n_x /= groups, one.n_y /= groups, one.n_w /= groups;
        one.x = (char *)b->x + (groups - 1) * one.n_x * size;
        one.y = (char *)b->y + (groups - 1) * one.n_y * size;
        one.w = (char *)b->w + (groups - 1) * one.n_w * size;
        one.bias = b->bias + (groups - 1) * b->b_stride;
        if (!rc)
                rc = run_variant(&one, pass, 0, b->again, err);
        if (!rc)
                report(b, pass, !memcmp((char *)b->first + (groups - 1) * bytes, b->again, bytes),
                        "the third of three clients gives the bits of one alone");
        return rc;
}

/* Largest difference over the largest value. */
static double distance(const struct bench *b, enum mfl_cuda_pass pass, enum mfl_cuda_type other)
{
        double most = 0, scale = 1e-30;
        uint64_t w_count =
                (uint64_t)b->conv.k * (uint64_t)b->conv.r * (uint64_t)b->conv.s * (uint64_t)b->conv.c;
        for (uint64_t i = 0; i < out_count(b, pass); i++) {
                if (pass == MFL_CUDA_BACKWARD_WEIGHTS && i % b->w_stride >= w_count)
                        continue; /* belongs to no group */
                double want = mfl_load(b->first, (int64_t)i, out_type(b, pass));
                double got = mfl_load(b->again, (int64_t)i, other), d = fabs(want - got);
                if (!isfinite(d))
                        return INFINITY;
                most = fmax(most, d);
                scale = fmax(scale, fabs(want));
        }
        return most / scale;
}

/* The plan of a network against variant 0. Both sum the same rounded products, in different orders: a few
 * ulps of the largest term per doubling of the length. 16-bit results are rounded once more. */
static int check_plan(struct bench *b, enum mfl_cuda_pass pass, bool fast, struct mfl_error *err)
{
        static const double epsilon[] = {0x1p-23, 0x1p-10, 0x1p-8, 0x1p-11};
        struct mfl_cuda_conv_use use = {.pass = pass,
                .bias = pass == MFL_CUDA_FORWARD,
                .act = pass == MFL_CUDA_FORWARD ? MFL_CUDA_ACT_RELU : MFL_CUDA_ACT_NONE,
                .fast = fast};
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_cuda_conv_args args = args_of(b, pass);
        int rc = mfl_cuda_conv_plan_new(b->context, &b->conv, &use, &plan, err);
        if (!rc && mfl_cuda_conv_plan_workspace(plan) > b->workspace_bytes) {
                report(b, pass, false, "a plan needs more workspace than workspace_max says");
                mfl_cuda_conv_plan_free(plan);
                return 0;
        }
        if (!rc)
                rc = mfl_cuda_conv_plan_run(plan, &args, err);
        if (!rc)
                rc = fetch(b, pass, b->again, err);
        if (!rc)
                rc = run_variant(b, pass, 0, b->first, err);
        if (!rc) {
                char text[200];
                double far = distance(b, pass, out_type(b, pass)), bound = 32 * epsilon[b->conv.precision];
                snprintf(text, sizeof text, "plan%s (%s) is near the own kernel: %.1e (bound %.1e)",
                        fast ? ", fast" : "", mfl_cuda_conv_plan_name(plan), far, bound);
                report(b, pass, far <= bound, text);
        }
        mfl_cuda_conv_plan_free(plan);
        return rc;
}

static int check_problem(struct bench *b, struct mfl_error *err)
{
        int rc = bench_init(b, err);
        for (int p = 0; !rc && p < MFL_CUDA_PASS_COUNT_; p++) {
                enum mfl_cuda_pass pass = (enum mfl_cuda_pass)p;
                rc = check_variants(b, pass, err);
                if (!rc)
                        rc = check_groups(b, pass, err);
                if (!rc)
                        rc = check_plan(b, pass, false, err);
                if (!rc)
                        rc = check_plan(b, pass, true, err);
        }
        bench_deinit(b);
        return rc;
}

bool mfl_cuda_selftest_name(bool small, int part, char name[MFL_SELFTEST_NAME])
{
        int n = small ? N_SMALL : (int)MFL_ARRAY_SIZE(problems);
        if (part < 0 || part >= n * MFL_PRECISION_COUNT_)
                return false;
        const struct mfl_cuda_conv *c = &problems[part / MFL_PRECISION_COUNT_];
        snprintf(name, MFL_SELFTEST_NAME, "conv %dx%dx%d -> %d, %dx%d, %s", c->c, c->h, c->w, c->k, c->r,
                c->s, precision_names[part % MFL_PRECISION_COUNT_]);
        return true;
}

int mfl_cuda_selftest(struct mfl_cuda_context *context, int part,
        void (*report_)(void *user, bool ok, const char *text), void *user, struct mfl_error *err)
{
        struct bench b = {.context = context,
                .conv = problems[part / MFL_PRECISION_COUNT_],
                .report = report_,
                .user = user};
        b.conv.groups = GROUPS;
        b.conv.precision = (enum mfl_precision)(part % MFL_PRECISION_COUNT_);
        for (int a = 0; a < 2; a++) {
                b.conv.stride[a] = MFL_MAX(1, b.conv.stride[a]);
                b.conv.dilation[a] = MFL_MAX(1, b.conv.dilation[a]);
        }
        return check_problem(&b, err);
}
