/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of ways to do a convolution: is a library's result right, and how long does a way take.
 *
 * Operands are uniform in [-1, 1), the weights (backward weights: dy) times a power of two near 3 / sqrt(L),
 * where L is the length of the reduction, so that results are of order 1 whatever the shape. The trial
 * compares the root of the mean square of b - a with that of a (at least 1/2), where a is variant 0 of the
 * own kernels. This statistical measure is steady to a few percent, and so distinguishes the precisions.
 * Where the bounds come from, with u the unit of rounding:
 *
 *     float sums   a random walk of rounding errors: u sqrt(L), u = 2^-24, times 4
 *     tf32         operands rounded to 11 bits err by about 2^-11.7 of the result, truncated ones by twice
 *                  that; operands rounded to bf16 would err by 2^-8.7. Between them: 2^-10
 *     bf16, fp16   operands are exact, results are rounded, once more for what is not fused: 2^-8, 2^-11;
 *                  results in float: only sums, which tensor cores may truncate: 2^-11
 *
 * fp32 is also bounded by 2^-13, which products of tf32 operands exceed by a factor of two. No single element
 * may be off by more than 16 times the bound.
 *
 * Timing ranks ways by launches of a graph over buffers that rotate: timing.h.
 */
#include "kernels/cuda/conv/conv_plan_internal.h"

#include <math.h>
#include <stdio.h>

#include "kernels/cuda/conv/conv_plan_kernels.h"
#include "kernels/cuda/base/timing.h"

#define SLOW_NS 2e7 /* a way whose first run takes this long is not run again */
#define MEMORY_PARTS 12
#define ROTATE_BYTES_MAX ((uint64_t)512 << 20)

struct mfl_conv_trial {
        struct mfl_cuda_context *context;
        struct mfl_cuda_conv conv;
        struct mfl_cuda_conv_use use;
        void *memory[MEMORY_PARTS];
        uint64_t part_bytes[MEMORY_PARTS];
        int n_memory;
        /* Copies of all parts, for timing with other buffers than the last run's: set k is at (k - 1) *
         * set_bytes. NULL until they are needed. */
        char *copies;
        uint64_t set_bytes;
        int n_sets;
        struct mfl_cuda_conv_args args;
        void *output; /* one of the args: what the pass writes */
        uint64_t output_elements, output_bytes;
        enum mfl_cuda_type output_type;
        cudaEvent_t begin, end;
};

static int allocate(struct mfl_conv_trial *trial, uint64_t bytes, void **ret_memory, struct mfl_error *err)
{
        mfl_assert(trial->n_memory < MEMORY_PARTS);
        int r = mfl_cuda_alloc(MFL_MAX(bytes, 16), "the trial of a convolution", ret_memory, err);
        if (!r) {
                trial->part_bytes[trial->n_memory] = bytes;
                trial->memory[trial->n_memory++] = *ret_memory;
        }
        return r == MFL_INVALID ? MFL_BUSY : r;
}

/* n random numbers of a type. */
static int make(struct mfl_conv_trial *trial, uint64_t n, enum mfl_cuda_type type, float scale,
        void **ret_memory, struct mfl_error *err)
{
        struct mfl_cuda_fill fill = {
                .type = type, .n = (int64_t)n, .seed = (uint32_t)trial->n_memory, .scale = scale};
        int r = allocate(trial, n * (uint64_t)mfl_cuda_type_bytes(type), &fill.to, err);
        if (!r)
                r = mfl_cuda_check(mfl_cuda_fill(&fill, trial->context->stream), "random numbers", err);
        if (!r)
                *ret_memory = fill.to;
        return r;
}

/* Laid out like the network's params: every client's part begins at a multiple of 32 bytes. */
static uint64_t params_stride(const struct mfl_cuda_conv *conv)
{
        return (mfl_conv_sizes(conv, MFL_CUDA_FORWARD).w + (uint64_t)conv->k + 7) / 8 * 8;
}

static float operand_scale(int64_t reduction)
{
        return exp2f(-floorf(log2f(sqrtf((float)reduction) / 3.0f) + 0.5f));
}

static int make_inputs(struct mfl_conv_trial *trial, struct mfl_error *err)
{
        const struct mfl_cuda_conv *v = &trial->conv;
        const struct mfl_cuda_conv_use *use = &trial->use;
        struct mfl_cuda_conv_args *args = &trial->args;
        struct mfl_conv_sizes sizes = mfl_conv_sizes(v, use->pass);
        enum mfl_cuda_type type = mfl_cuda_type_of(v->precision);
        uint64_t groups = (uint64_t)v->groups, stride = params_stride(v);
        float scale = operand_scale(sizes.reduction);
        bool forward = use->pass == MFL_CUDA_FORWARD, weights = use->pass == MFL_CUDA_BACKWARD_WEIGHTS;
        void *x = NULL, *dy = NULL, *w = NULL, *bias = NULL, *act_y = NULL;
        int r = 0;
        if (forward || weights)
                r = make(trial, groups * sizes.x, type, 1.0f, &x, err);
        if (!r && !forward)
                r = make(trial, groups * sizes.y, type, weights ? scale : 1.0f, &dy, err);
        if (!r && !weights)
                r = make(trial, groups * stride, type, scale, &w, err);
        if (!r && forward && use->bias)
                r = make(trial, groups * stride, MFL_CUDA_F32, 1.0f, &bias, err);
        if (!r && use->pass == MFL_CUDA_BACKWARD_DATA && use->act != MFL_CUDA_ACT_NONE)
                r = make(trial, groups * sizes.x, type, 1.0f, &act_y, err);
        args->x = x;
        args->dy = dy;
        args->w = w;
        args->bias = bias;
        args->act_y = act_y;
        args->act = use->act;
        args->add = use->add;
        args->w_stride = args->p_stride = stride;
        args->steps.batch = (uint32_t)v->n;
        return r;
}

/* Another buffer for what the pass writes, and for db. */
static int make_output(struct mfl_conv_trial *trial, struct mfl_error *err)
{
        const struct mfl_cuda_conv *v = &trial->conv;
        const struct mfl_cuda_conv_use *use = &trial->use;
        struct mfl_conv_sizes sizes = mfl_conv_sizes(v, use->pass);
        uint64_t groups = (uint64_t)v->groups, stride = params_stride(v);
        bool weights = use->pass == MFL_CUDA_BACKWARD_WEIGHTS;
        void *db = NULL;
        trial->output_type = weights ? MFL_CUDA_F32 : mfl_cuda_type_of(v->precision);
        trial->output_elements = groups * (weights                                ? stride
                                                  : use->pass == MFL_CUDA_FORWARD ? sizes.y
                                                                                  : sizes.x);
        trial->output_bytes = trial->output_elements * (uint64_t)mfl_cuda_type_bytes(trial->output_type);
        int r = allocate(trial, trial->output_bytes, &trial->output, err);
        if (!r && weights && use->bias)
                r = allocate(trial, groups * stride * sizeof(float), &db, err);
        trial->args.db = db;
        if (use->pass == MFL_CUDA_FORWARD)
                trial->args.y = trial->output;
        else if (use->pass == MFL_CUDA_BACKWARD_DATA)
                trial->args.dx = trial->output;
        else
                trial->args.dw = trial->output;
        return r;
}

/* What an earlier run wrote, or nothing, must not look like a result: outputs are NaN. A tensor that is added
 * to is random; between clients' weight gradients are zeros. */
static int prepare_output(struct mfl_conv_trial *trial, struct mfl_error *err)
{
        cudaStream_t stream = trial->context->stream;
        if (trial->use.add) {
                struct mfl_cuda_fill fill = {
                        trial->output, trial->output_type, (int64_t)trial->output_elements, 77, 1.0f};
                return mfl_cuda_check(mfl_cuda_fill(&fill, stream), "random numbers", err);
        }
        if (trial->use.pass != MFL_CUDA_BACKWARD_WEIGHTS)
                return mfl_cuda_check(cudaMemsetAsync(trial->output, 0xff, trial->output_bytes, stream),
                        "clearing a trial's output", err);
        int r = mfl_cuda_check(
                cudaMemsetAsync(trial->output, 0, trial->output_bytes, stream), "clearing dw", err);
        uint64_t stride = params_stride(&trial->conv) * 4;
        uint64_t bytes = mfl_conv_sizes(&trial->conv, MFL_CUDA_FORWARD).w * 4;
        for (int g = 0; g < trial->conv.groups && !r; g++)
                r = mfl_cuda_check(
                        cudaMemsetAsync((char *)trial->output + (uint64_t)g * stride, 0xff, bytes, stream),
                        "clearing dw", err);
        return r;
}

int mfl_conv_trial_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, struct mfl_conv_trial **ret_trial, struct mfl_error *err)
{
        struct mfl_conv_trial *trial = mfl_calloc(1, sizeof(*trial));
        if (!trial)
                return mfl_fail_memory(err, sizeof(*trial), "the trial of a convolution");
        trial->context = context;
        trial->conv = *conv;
        trial->use = *use;
        int r = make_inputs(trial, err);
        if (!r)
                r = make_output(trial, err);
        if (!r)
                r = mfl_cuda_check(cudaEventCreate(&trial->begin), "cudaEventCreate", err);
        if (!r)
                r = mfl_cuda_check(cudaEventCreate(&trial->end), "cudaEventCreate", err);
        if (r) {
                mfl_conv_trial_free(trial);
                return r;
        }
        *ret_trial = trial;
        return 0;
}

void mfl_conv_trial_free(struct mfl_conv_trial *trial)
{
        if (!trial)
                return;
        cudaStreamSynchronize(trial->context->stream);
        while (trial->n_memory > 0)
                cudaFree(trial->memory[--trial->n_memory]);
        cudaFree(trial->copies);
        if (trial->begin)
                cudaEventDestroy(trial->begin);
        if (trial->end)
                cudaEventDestroy(trial->end);
        free(trial);
}

/* ---- comparing ---- */

static double tolerance(const struct mfl_cuda_conv *v, const struct mfl_cuda_conv_use *use, bool low_weights)
{
        double length = (double)mfl_conv_sizes(v, use->pass).reduction;
        double sums = 4.0 * 0x1p-24 * (1.0 + sqrt(length));
        bool result_float = use->pass == MFL_CUDA_BACKWARD_WEIGHTS && !low_weights;
        switch (v->precision) {
        case MFL_PRECISION_FP32:
                return fmin(sums, 0x1p-13);
        case MFL_PRECISION_TF32:
                return 0x1p-10 + fmin(sums, 0x1p-12);
        case MFL_PRECISION_BF16:
                return result_float ? 0x1p-11 : 0x1p-8;
        default:
                return 0x1p-11 + fmin(sums, 0x1p-12);
        }
}

static int compare(struct mfl_conv_trial *trial, const void *reference, double bound, const char *name,
        struct mfl_error *err)
{
        static const size_t bytes = MFL_CUDA_COMPARE_PARTS * sizeof(struct mfl_cuda_compare_part);
        struct mfl_cuda_compare_part parts[MFL_CUDA_COMPARE_PARTS], sum = {0};
        void *memory = NULL;
        int r = allocate(trial, bytes, &memory, err);
        if (r)
                return r;
        struct mfl_cuda_compare a = {
                reference, trial->output, trial->output_type, (int64_t)trial->output_elements, memory};
        cudaStream_t stream = trial->context->stream;
        r = mfl_cuda_check(mfl_cuda_compare(&a, stream), "comparing convolutions", err);
        if (!r)
                r = mfl_cuda_check(cudaMemcpyAsync(parts, memory, bytes, cudaMemcpyDeviceToHost, stream),
                        "comparing convolutions", err);
        if (!r)
                r = mfl_cuda_check(cudaStreamSynchronize(stream), name, err);
        if (r)
                return r;
        for (int i = 0; i < mfl_cuda_compare_parts(a.n); i++) {
                sum.error2 += parts[i].error2;
                sum.reference2 += parts[i].reference2;
                sum.error_max = fmaxf(sum.error_max, parts[i].error_max);
                sum.n_bad += parts[i].n_bad;
        }
        double n = (double)trial->output_elements, unit = fmax(sqrt(sum.reference2 / n), 0.5);
        double error = sqrt(sum.error2 / n) / unit, error_max = (double)sum.error_max / unit;
        if (sum.n_bad == 0 && error <= bound && error_max <= 16.0 * bound)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "%s differs from this backend's own kernel: by %.3g on the average (allowed: %.3g), %.3g at "
                "most, %u elements not finite",
                name, error, bound, error_max, sum.n_bad);
}

static int run(struct mfl_conv_trial *trial, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        int r = prepare_output(trial, err);
        return r ? r : mfl_cuda_conv_plan_run(plan, &trial->args, err);
}

/* With the buffers of a trial of the plan's problem. */
static int verify(struct mfl_conv_trial *trial, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan own = {
                .context = plan->context, .conv = plan->conv, .use = plan->use, .way = MFL_CONV_OWN};
        bool low = plan->dnn && !mfl_dnn_plan_dw_float(plan->dnn);
        void *reference = NULL;
        mfl_conv_way_lay_out(&own, 1);
        int r = allocate(trial, MFL_MAX(own.workspace, plan->workspace), &trial->args.workspace, err);
        if (!r)
                r = run(trial, &own, err);
        reference = trial->output;
        if (!r)
                r = make_output(trial, err);
        if (!r)
                r = run(trial, plan, err);
        return r ? r : compare(trial, reference, tolerance(&plan->conv, &plan->use, low), plan->name, err);
}

int mfl_conv_trial_verify(struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        struct mfl_conv_trial *trial = NULL;
        int groups = plan->conv.groups, branches = plan->branches;
        /* Where each client has its own call, two clients show everything that more would show. */
        if (mfl_conv_way_is_looped(plan->way)) {
                plan->conv.groups = MFL_MIN(groups, 2);
                mfl_conv_way_lay_out(plan, plan->conv.groups);
        }
        int r = mfl_conv_trial_new(plan->context, &plan->conv, &plan->use, &trial, err);
        if (!r)
                r = verify(trial, plan, err);
        mfl_conv_trial_free(trial);
        plan->conv.groups = groups;
        mfl_conv_way_lay_out(plan, branches);
        return r;
}

/* ---- timing ---- */

static int time_once(
        struct mfl_conv_trial *trial, struct mfl_cuda_conv_plan *plan, double *ret_ns, struct mfl_error *err)
{
        cudaStream_t stream = trial->context->stream;
        float ms = 0.0f;
        int r = mfl_cuda_check(cudaEventRecord(trial->begin, stream), "cudaEventRecord", err);
        if (!r)
                r = mfl_cuda_conv_plan_run(plan, &trial->args, err);
        if (!r)
                r = mfl_cuda_check(cudaEventRecord(trial->end, stream), "cudaEventRecord", err);
        if (!r)
                r = mfl_cuda_check(cudaEventSynchronize(trial->end), plan->name, err);
        if (!r)
                r = mfl_cuda_check(
                        cudaEventElapsedTime(&ms, trial->begin, trial->end), "cudaEventElapsedTime", err);
        if (!r)
                *ret_ns = (double)ms * 1e6;
        return r;
}

static uint64_t round_up(uint64_t bytes)
{
        return (bytes + 255) / 256 * 256;
}

static int copy_parts(struct mfl_conv_trial *trial, struct mfl_error *err)
{
        char *to = trial->copies;
        int r = 0;
        for (int k = 1; k < trial->n_sets; k++)
                for (int i = 0; i < trial->n_memory && !r; i++) {
                        r = mfl_cuda_check(cudaMemcpyAsync(to, trial->memory[i], (size_t)trial->part_bytes[i],
                                                   cudaMemcpyDeviceToDevice, trial->context->stream),
                                "copying a trial's buffers", err);
                        to += round_up(trial->part_bytes[i]);
                }
        return r;
}

/* Enough sets of buffers for twice the L2 cache; without memory for them, one. */
static int make_sets(struct mfl_conv_trial *trial, struct mfl_error *err)
{
        struct mfl_error why;
        void *copies = NULL;
        if (trial->n_sets)
                return 0;
        for (int i = 0; i < trial->n_memory; i++)
                trial->set_bytes += round_up(trial->part_bytes[i]);
        trial->n_sets = mfl_cuda_timing_sets(
                trial->set_bytes, mfl_cuda_l2_bytes(trial->context->device), ROTATE_BYTES_MAX);
        if (trial->n_sets == 1)
                return 0;
        int r = mfl_cuda_alloc(
                (uint64_t)(trial->n_sets - 1) * trial->set_bytes, "buffers that rotate", &copies, &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        if (r)
                trial->n_sets = 1;
        trial->copies = copies;
        return copy_parts(trial, err);
}

/* The address in set k of what lies at p in the first set. */
static void *in_set(const struct mfl_conv_trial *trial, int k, const void *p)
{
        char *at = trial->copies + (uint64_t)(k - 1) * trial->set_bytes;
        for (int i = 0; i < trial->n_memory; i++) {
                if (trial->memory[i] == p)
                        return at;
                at += round_up(trial->part_bytes[i]);
        }
        return NULL;
}

struct mfl_cuda_conv_args mfl_conv_trial_args(const struct mfl_conv_trial *trial, int k)
{
        struct mfl_cuda_conv_args args = trial->args;
        if (k == 0)
                return args;
        args.x = in_set(trial, k, args.x);
        args.dy = in_set(trial, k, args.dy);
        args.w = in_set(trial, k, args.w);
        args.bias = in_set(trial, k, args.bias);
        args.act_y = in_set(trial, k, args.act_y);
        args.y = in_set(trial, k, args.y);
        args.dx = in_set(trial, k, args.dx);
        args.dw = in_set(trial, k, args.dw);
        args.db = in_set(trial, k, args.db);
        return args;
}

struct timed {
        struct mfl_conv_trial *trial;
        struct mfl_cuda_conv_plan *plan;
};

static int launch(void *user, int i, struct mfl_error *err)
{
        struct timed *t = user;
        struct mfl_cuda_conv_args args = mfl_conv_trial_args(t->trial, i % t->trial->n_sets);
        return mfl_cuda_conv_plan_run(t->plan, &args, err);
}

/* A first run warms up caches, loads modules, and gives an approximate time. Then the median of many runs
 * counts, with buffers that rotate (timing.h). */
int mfl_conv_trial_time(struct mfl_conv_trial *trial, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        double ns = 0.0;
        void *workspace = NULL;
        int r = mfl_cuda_alloc(MFL_MAX(plan->workspace, 16), "the workspace of a trial", &workspace, err);
        if (r)
                return r == MFL_INVALID ? MFL_BUSY : r;
        trial->args.workspace = workspace;
        r = prepare_output(trial, err);
        if (!r)
                r = time_once(trial, plan, &ns, err);
        if (!r && ns <= SLOW_NS)
                r = make_sets(trial, err);
        if (!r && ns <= SLOW_NS) {
                struct mfl_cuda_timing timing = mfl_cuda_timing_of(ns, trial->n_sets);
                r = mfl_cuda_time(
                        &timing, trial->context->stream, launch, &(struct timed){trial, plan}, &ns, err);
        }
        cudaStreamSynchronize(trial->context->stream);
        cudaFree(workspace);
        trial->args.workspace = NULL;
        if (!r)
                plan->ns = ns;
        return r;
}
