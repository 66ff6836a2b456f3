/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN's graph API: descriptors from tables, engines from its heuristics, filtered by
 * precision and determinism.
 *
 * Attribute types and counts follow the reference of the cudnn_graph library, "Descriptor Types". cuDNN 9.19
 * itself accepted these graphs and made plans of them without a device, from a description of one
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, sm_89 and sm_90), for all passes and precisions. Its answers there
 * show:
 *
 *   - TF32 engines on float tensors carry only the note TENSOR_CORE, so fp32 excludes that note
 *   - fp32 engines for NHWC often want a workspace of the tensors' size: they change the layout
 *   - a bias is fused if it has the type of y, so in fp32 and tf32; a ReLU without a bias is not
 *   - backward filter of 16-bit tensors gives dw in 16 bits only
 *
 * No kernel of these plans has run on a device yet. Unknown are their numbers (verification checks them,
 * conv_plan.h), their speed, and whether each can be captured.
 */
#include "kernels/cuda/base/dnn.h"

#include <cudnn.h>
#include <stdio.h>

#define DESCRIPTORS_MAX 24
#define CONFIGS_MAX 64
#define ALIGNMENT 16 /* of every tensor, in bytes: what 16-byte loads need */

struct mfl_dnn {
        cudnnHandle_t handle;
};

enum uid {
        UID_X = 1, /* x, or dx of backward data */
        UID_W,     /* w, or dw of backward weights */
        UID_Y,     /* y, or dy of both backward passes */
        UID_BIAS,
        UID_CONV, /* virtual: the convolution before the bias */
        UID_SUM,  /* virtual: before ReLU */
};

struct mfl_dnn_plan {
        struct mfl_dnn *dnn;
        struct mfl_dnn_want want;
        /* Everything that the execution plan was made from: it may refer to it. */
        cudnnBackendDescriptor_t descriptors[DESCRIPTORS_MAX];
        int n_descriptors;
        cudnnBackendDescriptor_t execution;
        uint64_t workspace;
        int engine, skip; /* skip: usable engines still to pass over */
        bool dw_float;
};

struct attribute {
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
        int64_t count;
        const void *values;
};

/* ---- descriptors ---- */

static int fail(struct mfl_error *err, int code, cudnnStatus_t status, const char *what)
{
        char last[256] = "";
        cudnnGetLastErrorString(last, sizeof last);
        return mfl_fail(err, code, "cuDNN: %s: %s (%d)%s%s", what, cudnnGetErrorString(status), (int)status,
                *last ? ": " : "", last);
}

static int create(cudnnBackendDescriptorType_t type, const char *what, cudnnBackendDescriptor_t *ret,
        struct mfl_error *err)
{
        cudnnStatus_t s = cudnnBackendCreateDescriptor(type, ret);
        return s ? fail(err, MFL_NOT_FOUND, s, what) : 0;
}

/* Sets the attributes and finalizes. What cuDNN refuses is MFL_NOT_FOUND: there is no such plan. */
static int finish(cudnnBackendDescriptor_t d, const struct attribute *attributes, size_t n, const char *what,
        struct mfl_error *err)
{
        cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
        for (size_t i = 0; i < n && !s; i++) {
                const struct attribute *a = &attributes[i];
                s = cudnnBackendSetAttribute(d, a->name, a->type, a->count, a->values);
        }
        if (!s)
                s = cudnnBackendFinalize(d);
        return s ? fail(err, MFL_NOT_FOUND, s, what) : 0;
}

/* A finished descriptor that lives as long as the plan. */
static int add(struct mfl_dnn_plan *plan, cudnnBackendDescriptorType_t type,
        const struct attribute *attributes, size_t n, const char *what, cudnnBackendDescriptor_t *ret,
        struct mfl_error *err)
{
        cudnnBackendDescriptor_t d;
        mfl_assert(plan->n_descriptors < DESCRIPTORS_MAX);
        int r = create(type, what, &d, err);
        if (r)
                return r;
        plan->descriptors[plan->n_descriptors++] = d;
        r = finish(d, attributes, n, what, err);
        if (!r)
                *ret = d;
        return r;
}

/* ---- the operation graph ---- */

struct graph {
        struct mfl_dnn_plan *plan;
        const struct mfl_cuda_conv *conv;
        cudnnDataType_t type, dw_type;
        cudnnBackendDescriptor_t tensors[UID_SUM + 1], convolution;
        cudnnBackendDescriptor_t operations[3];
        int n_operations;
};

static cudnnDataType_t dnn_type(enum mfl_precision precision)
{
        switch (mfl_cuda_type_of(precision)) {
        case MFL_CUDA_BF16:
                return CUDNN_DATA_BFLOAT16;
        case MFL_CUDA_F16:
                return CUDNN_DATA_HALF;
        default:
                return CUDNN_DATA_FLOAT;
        }
}

/* Dimensions are given as n, c, h, w in every layout; the strides say that c is innermost. */
static int add_tensor(
        struct graph *g, enum uid uid, cudnnDataType_t type, const int64_t dims[4], struct mfl_error *err)
{
        int64_t strides[4] = {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
        int64_t id = uid, alignment = ALIGNMENT;
        bool is_virtual = uid >= UID_CONV;
        const struct attribute attributes[] = {
                {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
                {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
                {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
                {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims},
                {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
                {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual},
        };
        return add(g->plan, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes, MFL_ARRAY_SIZE(attributes),
                "tensor descriptor", &g->tensors[uid], err);
}

static int add_tensors(struct graph *g, struct mfl_error *err)
{
        const struct mfl_cuda_conv *v = g->conv;
        const struct mfl_dnn_want *want = &g->plan->want;
        int64_t groups = want->grouped ? v->groups : 1; /* cuDNN: channels of x / channels of w */
        const int64_t x[4] = {v->n, groups * v->c, v->h, v->w}, w[4] = {groups * v->k, v->c, v->r, v->s},
                      y[4] = {v->n, groups * v->k, v->oh, v->ow}, bias[4] = {1, groups * v->k, 1, 1};
        int r = add_tensor(g, UID_X, g->type, x, err);
        if (!r)
                r = add_tensor(
                        g, UID_W, want->pass == MFL_CUDA_BACKWARD_WEIGHTS ? g->dw_type : g->type, w, err);
        if (!r)
                r = add_tensor(g, UID_Y, g->type, y, err);
        if (!r && want->bias)
                r = add_tensor(g, UID_BIAS, CUDNN_DATA_FLOAT, bias, err);
        if (!r && (want->bias || want->relu))
                r = add_tensor(g, UID_CONV, CUDNN_DATA_FLOAT, y, err);
        if (!r && want->bias && want->relu)
                r = add_tensor(g, UID_SUM, CUDNN_DATA_FLOAT, y, err);
        return r;
}

static int add_convolution_descriptor(struct graph *g, struct mfl_error *err)
{
        const struct mfl_cuda_conv *v = g->conv;
        cudnnDataType_t compute = CUDNN_DATA_FLOAT;
        cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
        int64_t n_dims = 2, dilation[2] = {v->dilation[0], v->dilation[1]},
                stride[2] = {v->stride[0], v->stride[1]}, pad[2] = {v->pad[0], v->pad[1]};
        const struct attribute attributes[] = {
                {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute},
                {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
                {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n_dims},
                {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation},
                {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride},
                {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad},
                {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad},
        };
        return add(g->plan, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes, MFL_ARRAY_SIZE(attributes),
                "convolution descriptor", &g->convolution, err);
}

/* The attributes that name the parts of the three convolution operations. */
static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} operations[MFL_CUDA_PASS_COUNT_] = {
        [MFL_CUDA_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        [MFL_CUDA_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        [MFL_CUDA_BACKWARD_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static int add_convolution(struct graph *g, struct mfl_error *err)
{
        enum mfl_cuda_pass pass = g->plan->want.pass;
        enum uid y = g->tensors[UID_CONV] ? UID_CONV : UID_Y;
        float alpha = 1.0f, beta = 0.0f;
        const struct attribute attributes[] = {
                {operations[pass].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[UID_X]},
                {operations[pass].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[UID_W]},
                {operations[pass].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[y]},
                {operations[pass].convolution, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->convolution},
                {operations[pass].alpha, CUDNN_TYPE_FLOAT, 1, &alpha},
                {operations[pass].beta, CUDNN_TYPE_FLOAT, 1, &beta},
        };
        return add(g->plan, operations[pass].type, attributes, MFL_ARRAY_SIZE(attributes),
                "convolution operation", &g->operations[g->n_operations++], err);
}

/* Adds the operation from `from` (+ the bias) to `to`. */
static int add_pointwise(struct graph *g, cudnnPointwiseMode_t mode, enum uid from, enum uid to, bool bias,
        struct mfl_error *err)
{
        cudnnDataType_t compute = CUDNN_DATA_FLOAT;
        cudnnBackendDescriptor_t pointwise;
        const struct attribute parts[] = {
                {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
                {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute},
        };
        int r = add(g->plan, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, parts, MFL_ARRAY_SIZE(parts),
                "pointwise descriptor", &pointwise, err);
        if (r)
                return r;
        const struct attribute attributes[] = {
                {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &pointwise},
                {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[from]},
                {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[to]},
                {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                        &g->tensors[UID_BIAS]},
        };
        return add(g->plan, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, attributes, bias ? 4 : 3,
                "pointwise operation", &g->operations[g->n_operations++], err);
}

static int make_graph(struct mfl_dnn_plan *plan, const struct mfl_cuda_conv *conv,
        cudnnBackendDescriptor_t *ret_graph, struct mfl_error *err)
{
        struct graph g = {.plan = plan, .conv = conv, .type = dnn_type(conv->precision)};
        const struct mfl_dnn_want *want = &plan->want;
        g.dw_type = plan->dw_float ? CUDNN_DATA_FLOAT : g.type;
        int r = add_tensors(&g, err);
        if (!r)
                r = add_convolution_descriptor(&g, err);
        if (!r)
                r = add_convolution(&g, err);
        if (!r && want->bias)
                r = add_pointwise(&g, CUDNN_POINTWISE_ADD, UID_CONV, want->relu ? UID_SUM : UID_Y, true, err);
        if (!r && want->relu)
                r = add_pointwise(
                        &g, CUDNN_POINTWISE_RELU_FWD, want->bias ? UID_SUM : UID_CONV, UID_Y, false, err);
        if (r)
                return r;
        const struct attribute attributes[] = {
                {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.n_operations, g.operations},
                {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &plan->dnn->handle},
        };
        return add(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes, MFL_ARRAY_SIZE(attributes),
                "operation graph", ret_graph, err);
}

/* ---- engines ---- */

/* Whether an engine with this note computes what the precision says. Winograd and Fourier transforms multiply
 * other numbers than the operands and have larger errors; fp32 means products of floats, which tensor cores
 * do not compute. */
static bool note_fits(cudnnBackendNumericalNote_t note, enum mfl_precision precision, bool deterministic)
{
        switch (note) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
                return !deterministic;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
                return precision != MFL_PRECISION_FP32;
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: /* TF32 on float data has only TENSOR_CORE */
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        case CUDNN_NUMERICAL_NOTE_FFT:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
                return false;
        default:
                return true;
        }
}

/* The engine of a configuration: its number, and whether its notes fit. */
static cudnnStatus_t read_engine(cudnnBackendDescriptor_t config, enum mfl_precision precision,
        bool deterministic, int *ret_engine, bool *ret_fits)
{
        cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
        cudnnBackendDescriptor_t engine;
        int64_t n = 0, n_notes = 0, index = -1;
        cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
        if (s)
                return s;
        s = cudnnBackendGetAttribute(
                config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
        if (!s)
                s = cudnnBackendGetAttribute(
                        engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index);
        if (!s)
                s = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                        CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n_notes, notes);
        cudnnBackendDestroyDescriptor(engine);
        *ret_engine = (int)index;
        *ret_fits = !s;
        for (int64_t i = 0; i < n_notes && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT && !s; i++)
                *ret_fits &= note_fits(notes[i], precision, deterministic);
        return s;
}

/* 0: the plan is ready. MFL_NOT_FOUND: this configuration gives no plan. */
static int try_config(struct mfl_dnn_plan *plan, enum mfl_precision precision,
        cudnnBackendDescriptor_t config, struct mfl_error *err)
{
        int64_t n = 0, workspace = 0;
        bool fits;
        cudnnBackendDescriptor_t execution;
        cudnnStatus_t s = read_engine(config, precision, plan->want.deterministic, &plan->engine, &fits);
        if (s)
                return fail(err, MFL_NOT_FOUND, s, "numerical notes of an engine");
        if (!fits)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "cuDNN: engine %d: its numerical notes don't fit the precision or determinism",
                        plan->engine);
        int r = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan", &execution, err);
        if (r)
                return r;
        const struct attribute attributes[] = {
                {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &plan->dnn->handle},
                {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
        };
        r = finish(execution, attributes, MFL_ARRAY_SIZE(attributes), "execution plan", err);
        if (!r) {
                s = cudnnBackendGetAttribute(execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                        CUDNN_TYPE_INT64, 1, &n, &workspace);
                if (s || workspace < 0)
                        r = fail(err, MFL_NOT_FOUND, s, "workspace of an execution plan");
                else if ((uint64_t)workspace > MFL_DNN_WORKSPACE_MAX)
                        r = mfl_fail(err, MFL_NOT_FOUND, "cuDNN: engine %d needs %lld bytes of workspace",
                                plan->engine, (long long)workspace);
                else if (plan->skip-- > 0)
                        r = mfl_fail(err, MFL_NOT_FOUND, "cuDNN: fewer than %d usable engines",
                                plan->want.rank + 1);
        }
        if (r) {
                cudnnBackendDestroyDescriptor(execution);
                return r;
        }
        plan->execution = execution;
        plan->workspace = (uint64_t)workspace;
        return 0;
}

/* The first configuration of the list that gives a plan; the others are destroyed. */
static int try_configs(struct mfl_dnn_plan *plan, enum mfl_precision precision,
        cudnnBackendDescriptor_t *configs, int64_t n, struct mfl_error *err)
{
        int r = mfl_fail(err, MFL_NOT_FOUND, "cuDNN: its heuristics name no engine");
        for (int64_t i = 0; i < n && r == MFL_NOT_FOUND; i++) {
                r = try_config(plan, precision, configs[i], err);
                if (!r) {
                        mfl_assert(plan->n_descriptors < DESCRIPTORS_MAX);
                        plan->descriptors[plan->n_descriptors++] = configs[i];
                        configs[i] = NULL;
                }
        }
        return r;
}

static int search(struct mfl_dnn_plan *plan, enum mfl_precision precision, cudnnBackendDescriptor_t graph,
        cudnnBackendHeurMode_t mode, struct mfl_error *err)
{
        cudnnBackendDescriptor_t heuristics, configs[CONFIGS_MAX];
        int64_t n = 0, n_made = 0;
        const struct attribute attributes[] = {
                {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
                {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        };
        int r = add(plan, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, attributes, MFL_ARRAY_SIZE(attributes),
                "heuristics", &heuristics, err);
        if (r)
                return r;
        cudnnStatus_t s = cudnnBackendGetAttribute(
                heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL);
        n = s ? 0 : MFL_MIN(n, CONFIGS_MAX);
        for (; n_made < n && !s; n_made += !s)
                s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[n_made]);
        if (!s && n > 0)
                s = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, n_made, &n, configs);
        r = s ? fail(err, MFL_NOT_FOUND, s, "results of the heuristics")
              : try_configs(plan, precision, configs, MFL_MIN(n, n_made), err);
        for (int64_t i = 0; i < n_made; i++) {
                if (configs[i])
                        cudnnBackendDestroyDescriptor(configs[i]);
        }
        return r;
}

/* ---- the public functions ---- */

int mfl_dnn_open(struct mfl_dnn **ret_dnn, struct mfl_error *err)
{
        size_t version = cudnnGetVersion();
        if (version / 10000 != CUDNN_MAJOR)
                return mfl_fail(err, -ENOTSUP, "cuDNN: this program needs version %d, the library is %s",
                        CUDNN_MAJOR, mfl_dnn_version());
        struct mfl_dnn *dnn = mfl_calloc(1, sizeof(*dnn));
        if (!dnn)
                return mfl_fail_memory(err, sizeof(*dnn), "a cuDNN handle");
        cudnnStatus_t s = cudnnCreate(&dnn->handle);
        if (s) {
                free(dnn);
                return fail(err, -EIO, s, "cudnnCreate");
        }
        *ret_dnn = dnn;
        return 0;
}

void mfl_dnn_close(struct mfl_dnn *dnn)
{
        if (!dnn)
                return;
        cudnnDestroy(dnn->handle);
        free(dnn);
}

const char *mfl_dnn_version(void)
{
        static _Thread_local char text[32];
        size_t v = cudnnGetVersion();
        snprintf(text, sizeof text, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
        return text;
}

/* One attempt with the given type of dw. */
static int make_plan(struct mfl_dnn *dnn, const struct mfl_cuda_conv *conv, const struct mfl_dnn_want *want,
        bool dw_float, int *skip, struct mfl_dnn_plan **ret_plan, struct mfl_error *err)
{
        cudnnBackendDescriptor_t graph = NULL;
        struct mfl_dnn_plan *plan = mfl_calloc(1, sizeof(*plan));
        if (!plan)
                return mfl_fail_memory(err, sizeof(*plan), "a cuDNN plan");
        *plan = (struct mfl_dnn_plan){.dnn = dnn, .want = *want, .skip = *skip, .dw_float = dw_float};
        int r = make_graph(plan, conv, &graph, err);
        if (!r)
                r = search(plan, conv->precision, graph, CUDNN_HEUR_MODE_A, err);
        if (r == MFL_NOT_FOUND && graph)
                r = search(plan, conv->precision, graph, CUDNN_HEUR_MODE_FALLBACK, err);
        *skip = MFL_MAX(plan->skip, 0);
        if (r) {
                mfl_dnn_plan_free(plan);
                return r;
        }
        *ret_plan = plan;
        return 0;
}

int mfl_dnn_plan_new(struct mfl_dnn *dnn, const struct mfl_cuda_conv *conv, const struct mfl_dnn_want *want,
        struct mfl_dnn_plan **ret_plan, struct mfl_error *err)
{
        bool low = mfl_cuda_type_of(conv->precision) != MFL_CUDA_F32;
        int skip = want->rank;
        mfl_assert(want->pass == MFL_CUDA_FORWARD || (!want->bias && !want->relu));
        int r = make_plan(dnn, conv, want, want->pass == MFL_CUDA_BACKWARD_WEIGHTS, &skip, ret_plan, err);
        if (r == MFL_NOT_FOUND && low && want->pass == MFL_CUDA_BACKWARD_WEIGHTS)
                r = make_plan(dnn, conv, want, false, &skip, ret_plan, err);
        return r;
}

void mfl_dnn_plan_free(struct mfl_dnn_plan *plan)
{
        if (!plan)
                return;
        if (plan->execution)
                cudnnBackendDestroyDescriptor(plan->execution);
        while (plan->n_descriptors > 0)
                cudnnBackendDestroyDescriptor(plan->descriptors[--plan->n_descriptors]);
        free(plan);
}

uint64_t mfl_dnn_plan_workspace(const struct mfl_dnn_plan *plan)
{
        return plan->workspace;
}

int mfl_dnn_plan_engine(const struct mfl_dnn_plan *plan)
{
        return plan->engine;
}

bool mfl_dnn_plan_dw_float(const struct mfl_dnn_plan *plan)
{
        return plan->dw_float;
}

int mfl_dnn_plan_run(struct mfl_dnn_plan *plan, const void *x_or_dy, const void *w_or_x, const float *bias,
        void *out, void *workspace, cudaStream_t stream, struct mfl_error *err)
{
        enum mfl_cuda_pass pass = plan->want.pass;
        cudnnBackendDescriptor_t pack = NULL;
        /* forward: x, w, y; backward data: dy, w, dx; backward weights: dy, x, dw */
        int64_t ids[4] = {pass == MFL_CUDA_FORWARD ? UID_X : UID_Y,
                pass == MFL_CUDA_BACKWARD_WEIGHTS ? UID_X : UID_W,
                pass == MFL_CUDA_FORWARD         ? UID_Y
                : pass == MFL_CUDA_BACKWARD_DATA ? UID_X
                                                 : UID_W,
                UID_BIAS};
        void *pointers[4] = {
                (void *)(uintptr_t)x_or_dy, (void *)(uintptr_t)w_or_x, out, (void *)(uintptr_t)bias};
        int n = plan->want.bias ? 4 : 3;
        for (int i = 0; i < n; i++)
                mfl_assert(pointers[i] && (uintptr_t)pointers[i] % ALIGNMENT == 0);
        const struct attribute attributes[] = {
                {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids},
                {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers},
                {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace},
        };
        cudnnStatus_t s = cudnnSetStream(plan->dnn->handle, stream);
        if (s)
                return fail(err, -EIO, s, "cudnnSetStream");
        s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
        if (s)
                return fail(err, -EIO, s, "variant pack");
        int r = finish(pack, attributes, MFL_ARRAY_SIZE(attributes), "variant pack", err) ? -EIO : 0;
        if (!r) {
                s = cudnnBackendExecute(plan->dnn->handle, plan->execution, pack);
                if (s)
                        r = fail(err, -EIO, s, "cudnnBackendExecute");
        }
        cudnnBackendDestroyDescriptor(pack);
        return r;
}
