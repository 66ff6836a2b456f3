/* SPDX-License-Identifier: Apache-2.0 */
/* Ways of doing a pass of a convolution: making one, its workspace, running it. */
#include "kernels/cuda/conv/conv_plan_internal.h"

#include <stdio.h>

#include "kernels/cuda/conv/conv_plan_kernels.h"
#include "kernels/cuda/ops/ops.h"

#define UNKNOWN_NS 1e17

struct mfl_conv_sizes mfl_conv_sizes(const struct mfl_cuda_conv *v, enum mfl_cuda_pass pass)
{
        uint64_t window = (uint64_t)v->r * (uint64_t)v->s, n = (uint64_t)v->n;
        uint64_t pixels = (uint64_t)v->oh * (uint64_t)v->ow;
        uint64_t reduction = pass == MFL_CUDA_FORWARD         ? window * (uint64_t)v->c
                             : pass == MFL_CUDA_BACKWARD_DATA ? window * (uint64_t)v->k
                                                              : n * pixels;
        return (struct mfl_conv_sizes){
                .x = n * (uint64_t)v->h * (uint64_t)v->w * (uint64_t)v->c,
                .y = n * pixels * (uint64_t)v->k,
                .w = window * (uint64_t)v->c * (uint64_t)v->k,
                .reduction = (int64_t)reduction,
                .type_bytes = mfl_cuda_type_bytes(mfl_cuda_type_of(v->precision)),
        };
}

bool mfl_conv_way_is_looped(enum mfl_conv_way way)
{
        return way == MFL_CONV_DNN || way == MFL_CONV_BLAS_LOOP;
}

/* Outputs that are fewer than padding, stride and filter give: libraries know no such convolution. */
static bool is_cut(const struct mfl_cuda_conv *v)
{
        const int in[2] = {v->h, v->w}, taps[2] = {v->r, v->s}, out[2] = {v->oh, v->ow};
        bool cut = false;
        for (int i = 0; i < 2; i++)
                cut |= (in[i] + 2 * v->pad[i] - v->dilation[i] * (taps[i] - 1) - 1) / v->stride[i] + 1 !=
                       out[i];
        return cut;
}

bool mfl_conv_way_can(const struct mfl_cuda_conv *conv, enum mfl_conv_way way)
{
        struct mfl_conv_sizes sizes = mfl_conv_sizes(conv, MFL_CUDA_FORWARD);
        uint64_t bytes = (uint64_t)sizes.type_bytes;
        if (way == MFL_CONV_OWN)
                return true;
        if ((sizes.x | sizes.y) * bytes % 16 != 0 || is_cut(conv))
                return false;
        return way == MFL_CONV_DNN || way == MFL_CONV_GROUPED || mfl_blas_can(conv);
}

/* ---- making ---- */

static int open_dnn(struct mfl_cuda_conv_plan *plan, bool fused, struct mfl_error *err)
{
        struct mfl_cuda_context *context = plan->context;
        const struct mfl_cuda_conv_use *use = &plan->use;
        struct mfl_dnn_want want = {.pass = use->pass,
                .grouped = plan->way == MFL_CONV_GROUPED,
                .bias = fused && use->bias,
                .relu = fused && use->act == MFL_CUDA_ACT_RELU,
                .deterministic = !use->fast,
                .rank = plan->index};
        int r = context->dnn ? 0 : mfl_dnn_open(&context->dnn, err);
        return r ? r : mfl_dnn_plan_new(context->dnn, &plan->conv, &want, &plan->dnn, err);
}

static int open_blas(struct mfl_cuda_conv_plan *plan, bool fused, struct mfl_error *err)
{
        struct mfl_cuda_context *context = plan->context;
        const struct mfl_cuda_conv_use *use = &plan->use;
        struct mfl_cuda_conv conv = plan->conv;
        struct mfl_blas_want want = {.pass = use->pass,
                .bias = fused && use->bias,
                .relu = fused && use->act == MFL_CUDA_ACT_RELU,
                .rank = plan->index};
        if (plan->way == MFL_CONV_BLAS_LOOP)
                conv.groups = 1;
        int r = context->blas ? 0 : mfl_blas_open(&context->blas, err);
        return r ? r : mfl_blas_plan_new(context->blas, &conv, &want, &plan->blas, err);
}

static int open_library(struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        const struct mfl_cuda_conv_use *use = &plan->use;
        int (*open)(struct mfl_cuda_conv_plan *, bool, struct mfl_error *) =
                plan->way == MFL_CONV_DNN || plan->way == MFL_CONV_GROUPED ? open_dnn : open_blas;
        int r = MFL_NOT_FOUND;
        /* Libraries fuse only ReLU; a kernel afterwards does what they cannot fuse. */
        plan->fused = use->pass == MFL_CUDA_FORWARD &&
                      (use->act == MFL_CUDA_ACT_RELU || (use->act == MFL_CUDA_ACT_NONE && use->bias));
        if (plan->fused)
                r = open(plan, true, err);
        if (r == MFL_NOT_FOUND) {
                plan->fused = false;
                r = open(plan, false, err);
        }
        return r;
}

int mfl_conv_way_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, enum mfl_conv_way way, int index,
        struct mfl_cuda_conv_plan **ret_plan, struct mfl_error *err)
{
        if (!mfl_conv_way_can(conv, way))
                return mfl_fail(err, MFL_NOT_FOUND, "not a problem for this library");
        struct mfl_cuda_conv_plan *plan = mfl_calloc(1, sizeof(*plan));
        if (!plan)
                return mfl_fail_memory(err, sizeof(*plan), "a plan of a convolution");
        *plan = (struct mfl_cuda_conv_plan){
                .context = context, .conv = *conv, .use = *use, .way = way, .index = index, .ns = UNKNOWN_NS};
        int r = way == MFL_CONV_OWN ? 0 : open_library(plan, err);
        if (r) {
                mfl_cuda_conv_plan_free(plan);
                return r;
        }
        mfl_conv_way_lay_out(plan, 1);
        *ret_plan = plan;
        return 0;
}

/* ---- the workspace ---- */

static uint64_t round_up(uint64_t bytes)
{
        return (bytes + 255) / 256 * 256;
}

static struct mfl_cuda_tensor tensor_y(const struct mfl_cuda_conv_plan *plan)
{
        const struct mfl_cuda_conv *v = &plan->conv;
        return (struct mfl_cuda_tensor){v->groups, v->n, v->oh, v->ow, v->k, mfl_cuda_type_of(v->precision)};
}

static struct mfl_cuda_tensor tensor_x(const struct mfl_cuda_conv_plan *plan)
{
        const struct mfl_cuda_conv *v = &plan->conv;
        return (struct mfl_cuda_tensor){v->groups, v->n, v->h, v->w, v->c, mfl_cuda_type_of(v->precision)};
}

/* dw is not float, and is converted after the library's call. */
static bool dw_is_low(const struct mfl_cuda_conv_plan *plan)
{
        return plan->dnn && plan->use.pass == MFL_CUDA_BACKWARD_WEIGHTS && !mfl_dnn_plan_dw_float(plan->dnn);
}

static int dw_bytes(const struct mfl_cuda_conv_plan *plan)
{
        return dw_is_low(plan) ? mfl_conv_sizes(&plan->conv, plan->use.pass).type_bytes : 4;
}

/* From a client's dw in the workspace to the next's: cuDNN's own stride where it makes all of them at once,
 * else a multiple of 16 bytes for any type. */
static uint64_t dw_stride(const struct mfl_cuda_conv_plan *plan)
{
        uint64_t w = mfl_conv_sizes(&plan->conv, plan->use.pass).w;
        return plan->way == MFL_CONV_GROUPED ? w : (w + 7) / 8 * 8;
}

/* Elements of one client's operands as the library sees them: forward x, w, y; backward data dy, w, dx;
 * backward weights dy, x, dw. */
static void operand_sizes(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, uint64_t *ret_first,
        uint64_t *ret_second, uint64_t *ret_result)
{
        struct mfl_conv_sizes sizes = mfl_conv_sizes(conv, pass);
        *ret_first = pass == MFL_CUDA_FORWARD ? sizes.x : sizes.y;
        *ret_second = pass == MFL_CUDA_BACKWARD_WEIGHTS ? sizes.x : sizes.w;
        *ret_result = pass == MFL_CUDA_FORWARD ? sizes.y : pass == MFL_CUDA_BACKWARD_DATA ? sizes.x : sizes.w;
}

static void write_name(struct mfl_cuda_conv_plan *plan)
{
        switch (plan->way) {
        case MFL_CONV_OWN:
                snprintf(plan->name, sizeof plan->name, "own %s",
                        mfl_cuda_conv_variant_name(&plan->conv, plan->use.pass, plan->index));
                break;
        case MFL_CONV_GROUPED:
                snprintf(plan->name, sizeof plan->name, "cuDNN engine %d, grouped",
                        mfl_dnn_plan_engine(plan->dnn));
                break;
        case MFL_CONV_BATCHED:
                snprintf(plan->name, sizeof plan->name, "cuBLASLt algorithm %d, batched",
                        mfl_blas_plan_algorithm(plan->blas));
                break;
        default:
                snprintf(plan->name, sizeof plan->name, "%s %d, %d branch%s",
                        plan->dnn ? "cuDNN engine" : "cuBLASLt algorithm",
                        plan->dnn ? mfl_dnn_plan_engine(plan->dnn) : mfl_blas_plan_algorithm(plan->blas),
                        plan->branches, plan->branches == 1 ? "" : "es");
        }
}

void mfl_conv_way_lay_out(struct mfl_cuda_conv_plan *plan, int branches)
{
        uint64_t groups = (uint64_t)plan->conv.groups, first, second, result, at;
        struct mfl_conv_sizes sizes = mfl_conv_sizes(&plan->conv, plan->use.pass);
        uint64_t bytes = (uint64_t)sizes.type_bytes;
        bool weights = plan->use.pass == MFL_CUDA_BACKWARD_WEIGHTS, grouped = plan->way == MFL_CONV_GROUPED;
        plan->branches = branches;
        write_name(plan);
        if (plan->way == MFL_CONV_OWN) {
                plan->workspace = mfl_cuda_conv_workspace(&plan->conv, plan->use.pass, plan->index);
                return;
        }
        operand_sizes(&plan->conv, plan->use.pass, &first, &second, &result);
        plan->library_bytes =
                round_up(plan->dnn ? mfl_dnn_plan_workspace(plan->dnn) : mfl_blas_plan_workspace(plan->blas));
        at = plan->library_bytes * (uint64_t)branches;
        plan->first = at;
        at += grouped ? round_up(groups * first * bytes) : 0;
        plan->second = at;
        at += grouped ? round_up(groups * second * bytes) : 0;
        plan->bias = at;
        at += grouped ? round_up(groups * (uint64_t)plan->conv.k * 4) : 0;
        plan->added = at;
        at += plan->use.add ? round_up(groups * result * bytes) : 0;
        plan->result = at;
        if (weights && (grouped || dw_is_low(plan)))
                at += round_up(groups * dw_stride(plan) * (uint64_t)dw_bytes(plan));
        else if (grouped)
                at += round_up(groups * result * bytes);
        if (weights && plan->use.bias) { /* the sums of dy come after the library, in the same memory */
                struct mfl_cuda_tensor y = tensor_y(plan);
                at = MFL_MAX(at, mfl_cuda_bias_workspace(&y));
        }
        plan->workspace = at;
}

uint64_t mfl_conv_way_parts_max(const struct mfl_cuda_conv *conv, const struct mfl_cuda_conv_use *use)
{
        uint64_t groups = (uint64_t)conv->groups, first, second, result;
        uint64_t bytes = (uint64_t)mfl_conv_sizes(conv, use->pass).type_bytes;
        bool weights = use->pass == MFL_CUDA_BACKWARD_WEIGHTS;
        operand_sizes(conv, use->pass, &first, &second, &result);
        uint64_t parts = use->add ? round_up(groups * result * bytes) : 0;
        if (use->fast || weights)
                parts += round_up(weights ? groups * (result + 7) * 4 : groups * result * bytes);
        if (use->fast)
                parts += round_up(groups * first * bytes) + round_up(groups * second * bytes) +
                         round_up(groups * (uint64_t)conv->k * 4);
        struct mfl_cuda_tensor y = {
                conv->groups, conv->n, conv->oh, conv->ow, conv->k, mfl_cuda_type_of(conv->precision)};
        return weights && use->bias ? MFL_MAX(parts, mfl_cuda_bias_workspace(&y)) : parts;
}

/* ---- running ---- */

/* One operand: client g's begins at at + g * group * bytes. */
struct operand {
        char *at;
        uint64_t group;
        int bytes;
};

struct call {
        struct mfl_cuda_conv_plan *plan;
        const struct mfl_cuda_conv_args *args;
        struct operand first, second, result;
        struct mfl_conv_sizes sizes;
        char *workspace;
};

static char *at_client(const struct operand *o, int g)
{
        return o->at + (uint64_t)g * o->group * (uint64_t)o->bytes;
}

static struct call start_call(struct mfl_cuda_conv_plan *plan, const struct mfl_cuda_conv_args *args)
{
        struct call call = {.plan = plan, .args = args, .workspace = args->workspace};
        enum mfl_cuda_pass pass = plan->use.pass;
        call.sizes = mfl_conv_sizes(&plan->conv, pass);
        int bytes = call.sizes.type_bytes;
        struct operand x = {(char *)(uintptr_t)args->x, call.sizes.x, bytes},
                       dx = {args->dx, call.sizes.x, bytes}, y = {args->y, call.sizes.y, bytes},
                       dy = {(char *)(uintptr_t)args->dy, call.sizes.y, bytes},
                       w = {(char *)(uintptr_t)args->w, args->w_stride, bytes},
                       dw = {(char *)args->dw, args->p_stride, 4};
        call.first = pass == MFL_CUDA_FORWARD ? x : dy;
        call.second = pass == MFL_CUDA_BACKWARD_WEIGHTS ? x : w;
        call.result = pass == MFL_CUDA_FORWARD ? y : pass == MFL_CUDA_BACKWARD_DATA ? dx : dw;
        if (pass == MFL_CUDA_BACKWARD_DATA && plan->use.add)
                call.result.at = call.workspace + plan->added;
        if (dw_is_low(plan))
                call.result =
                        (struct operand){call.workspace + plan->result, dw_stride(plan), dw_bytes(plan)};
        return call;
}

/* Client g uses branch g % branches, so that each branch has its own workspace and its own order. */
static int run_looped(const struct call *call, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = call->plan;
        struct mfl_cuda_context *context = plan->context;
        const struct mfl_cuda_conv_args *args = call->args;
        int r = plan->branches > 1 ? mfl_cuda_context_fork(context, plan->branches, err) : 0;
        for (int g = 0; g < plan->conv.groups && !r; g++) {
                int b = g % plan->branches;
                cudaStream_t stream = b ? context->branches[b] : context->stream;
                char *workspace = call->workspace + (uint64_t)b * plan->library_bytes;
                const float *bias =
                        plan->fused && plan->use.bias ? args->bias + (uint64_t)g * args->p_stride : NULL;
                if (plan->dnn)
                        r = mfl_dnn_plan_run(plan->dnn, at_client(&call->first, g),
                                at_client(&call->second, g), bias, at_client(&call->result, g), workspace,
                                stream, err);
                else
                        r = mfl_blas_plan_run(plan->blas, at_client(&call->first, g),
                                at_client(&call->second, g), bias, at_client(&call->result, g), call->sizes.w,
                                (uint64_t)plan->conv.k, workspace, stream, err);
        }
        if (plan->branches > 1) {
                int j = mfl_cuda_context_join(context, plan->branches, r ? NULL : err);
                r = r ? r : j;
        }
        return r;
}

static int run_batched(const struct call *call, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = call->plan;
        const struct mfl_cuda_conv_args *args = call->args;
        bool weights = plan->use.pass == MFL_CUDA_BACKWARD_WEIGHTS;
        return mfl_blas_plan_run(plan->blas, call->first.at, call->second.at,
                plan->fused && plan->use.bias ? args->bias : NULL, call->result.at,
                weights ? args->p_stride : args->w_stride, args->p_stride, call->workspace,
                plan->context->stream, err);
}

/* Puts the clients' rows side by side (join), or separates them. */
static struct mfl_cuda_copy_rows regroup(
        const struct mfl_cuda_conv *v, uint64_t elements, int channels, bool join)
{
        int64_t rows = (int64_t)elements / channels, wide = (int64_t)v->groups * channels;
        enum mfl_cuda_type type = mfl_cuda_type_of(v->precision);
        return (struct mfl_cuda_copy_rows){.from_type = type,
                .to_type = type,
                .groups = v->groups,
                .rows = rows,
                .columns = channels,
                .from_group = join ? (int64_t)elements : channels,
                .from_row = join ? channels : wide,
                .to_group = join ? channels : (int64_t)elements,
                .to_row = join ? wide : channels};
}

/* Copies client after client, with or without gaps. */
static struct mfl_cuda_copy_rows pack(int groups, uint64_t elements, uint64_t from_group, uint64_t to_group,
        enum mfl_cuda_type from, enum mfl_cuda_type to)
{
        return (struct mfl_cuda_copy_rows){.from_type = from,
                .to_type = to,
                .groups = groups,
                .rows = 1,
                .columns = (int64_t)elements,
                .from_group = (int64_t)from_group,
                .to_group = (int64_t)to_group};
}

static int copy(const struct call *call, struct mfl_cuda_copy_rows rows, const void *from, void *to,
        const char *what, struct mfl_error *err)
{
        rows.from = from;
        rows.to = to;
        return mfl_cuda_check(mfl_cuda_copy_rows(&rows, call->plan->context->stream), what, err);
}

static int run_grouped(const struct call *call, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = call->plan;
        const struct mfl_cuda_conv *v = &plan->conv;
        enum mfl_cuda_pass pass = plan->use.pass;
        enum mfl_cuda_type type = mfl_cuda_type_of(v->precision);
        char *first = call->workspace + plan->first, *second = call->workspace + plan->second,
             *bias = call->workspace + plan->bias, *result = call->workspace + plan->result;
        bool fused_bias = plan->fused && plan->use.bias, weights = pass == MFL_CUDA_BACKWARD_WEIGHTS;
        int r = copy(call, regroup(v, call->first.group, pass == MFL_CUDA_FORWARD ? v->c : v->k, true),
                call->first.at, first, "joining the clients' tensors", err);
        if (!r)
                r = copy(call,
                        weights ? regroup(v, call->sizes.x, v->c, true)
                                : pack(v->groups, call->sizes.w, call->second.group, call->sizes.w, type,
                                          type),
                        call->second.at, second, "joining the clients' weights", err);
        if (!r && fused_bias)
                r = copy(call,
                        pack(v->groups, (uint64_t)v->k, call->args->p_stride, (uint64_t)v->k, MFL_CUDA_F32,
                                MFL_CUDA_F32),
                        call->args->bias, bias, "joining the clients' biases", err);
        if (!r)
                r = mfl_dnn_plan_run(plan->dnn, first, second, fused_bias ? (const float *)bias : NULL,
                        result, call->workspace, plan->context->stream, err);
        if (r || weights) /* weights are separated where they are converted */
                return r;
        return copy(call, regroup(v, call->result.group, pass == MFL_CUDA_FORWARD ? v->k : v->c, false),
                result, call->result.at, "taking the clients' results apart", err);
}

/* dw lies packed in the workspace, in the library's type. */
static int unpack_weights(const struct call *call, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = call->plan;
        enum mfl_cuda_type type = dw_is_low(plan) ? mfl_cuda_type_of(plan->conv.precision) : MFL_CUDA_F32;
        return copy(call,
                pack(plan->conv.groups, call->sizes.w, dw_stride(plan), call->args->p_stride, type,
                        MFL_CUDA_F32),
                call->workspace + plan->result, call->args->dw, "unpacking weight gradients", err);
}

/* Does what the library did not do. */
static int finish(const struct call *call, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = call->plan;
        const struct mfl_cuda_conv_use *use = &plan->use;
        const struct mfl_cuda_conv_args *args = call->args;
        cudaStream_t stream = plan->context->stream;
        struct mfl_cuda_bias a = {.stride = args->p_stride, .act = use->act, .steps = args->steps};
        int r = 0;
        switch (use->pass) {
        case MFL_CUDA_FORWARD:
                if (plan->fused || (!use->bias && use->act == MFL_CUDA_ACT_NONE))
                        return 0;
                a.x = tensor_y(plan);
                a.values = args->y;
                a.bias = use->bias ? args->bias : NULL;
                return mfl_cuda_check(mfl_cuda_bias_act(&a, stream), "bias and activation", err);
        case MFL_CUDA_BACKWARD_DATA:
                if (!use->add && use->act == MFL_CUDA_ACT_NONE)
                        return 0;
                a.x = tensor_x(plan);
                a.values = args->dx;
                a.old = use->add ? call->result.at : NULL;
                a.act_y = args->act_y;
                return mfl_cuda_check(mfl_cuda_bias_act_grad(&a, stream), "gradient of activation", err);
        default:
                if (plan->way == MFL_CONV_GROUPED || dw_is_low(plan))
                        r = unpack_weights(call, err);
                if (r || !use->bias)
                        return r;
                a.x = tensor_y(plan);
                a.values = (void *)(uintptr_t)args->dy;
                a.db = args->db;
                a.workspace = args->workspace;
                return mfl_cuda_check(mfl_cuda_bias_grad(&a, stream), "gradient of bias", err);
        }
}

int mfl_cuda_conv_plan_run(
        struct mfl_cuda_conv_plan *plan, const struct mfl_cuda_conv_args *args, struct mfl_error *err)
{
        int r;
        mfl_assert(args->workspace || !plan->workspace);
        if (plan->way == MFL_CONV_OWN)
                return mfl_cuda_check(mfl_cuda_conv_own(&plan->conv, plan->use.pass, plan->index, args,
                                              plan->context->stream),
                        plan->name, err);
        struct call call = start_call(plan, args);
        if (mfl_conv_way_is_looped(plan->way))
                r = run_looped(&call, err);
        else if (plan->way == MFL_CONV_BATCHED)
                r = run_batched(&call, err);
        else
                r = run_grouped(&call, err);
        return r ? r : finish(&call, err);
}

void mfl_cuda_conv_plan_free(struct mfl_cuda_conv_plan *plan)
{
        if (!plan)
                return;
        mfl_dnn_plan_free(plan->dnn);
        mfl_blas_plan_free(plan->blas);
        free(plan);
}
