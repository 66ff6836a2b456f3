/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuDNN: the graph API's descriptors for convolutions with bias and ReLU.
 *
 * A table says which attributes a descriptor has, of which type, how many, and which are required; what the
 * reference of cudnn_graph demands beyond that is checked at finalization and execution. Refusals were
 * compared with the real library's, which builds graphs and plans without a device. Engines are invented:
 * some are not what was asked for, so that filters have something to filter.
 *
 * MFL_EMU_CUDNN_WRONG=1: the last pixel of every result is wrong. =bf16: engines round operands to bf16 and
 * don't say so.
 */
#include "tests/emu/cudnn_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"

struct cudnnContext {
        cudaStream_t stream;
};

#define MAGIC 0x6d666c646e6eu
#define VALUES_MAX 512

struct value {
        cudnnBackendAttributeName_t name;
        int64_t count;
        unsigned char bytes[VALUES_MAX];
};
struct descriptor {
        uint64_t magic;
        cudnnBackendDescriptorType_t type;
        bool final;
        int n_values;
        struct value values[10];
        /* What finalization worked out. */
        struct mfl_emu_tensor tensor;
        struct mfl_emu_dnn_call call; /* of an operation graph, and of what was made from it */
        int engine;                   /* place in the table */
};

struct spec {
        cudnnBackendDescriptorType_t of;
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
        int min, max;
        bool required;
};
#define TENSOR CUDNN_BACKEND_TENSOR_DESCRIPTOR
#define CONVOLUTION CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
#define FORWARD CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
#define DATA CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
#define FILTER CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR
#define MODE CUDNN_BACKEND_POINTWISE_DESCRIPTOR
#define POINTWISE CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR
#define GRAPH CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
#define HEURISTICS CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
#define CONFIG CUDNN_BACKEND_ENGINECFG_DESCRIPTOR
#define ENGINE CUDNN_BACKEND_ENGINE_DESCRIPTOR
#define PLAN CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
#define PACK CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
#define DESC CUDNN_TYPE_BACKEND_DESCRIPTOR
static const struct spec specs[] = {
        {TENSOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, true},
        {TENSOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
        {TENSOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, true},
        {TENSOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4, true},
        {TENSOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4, true},
        {TENSOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, false},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 2, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 2, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 2, true},
        {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 2, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, DESC, 1, 1, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, DESC, 1, 1, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, DESC, 1, 1, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, DESC, 1, 1, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, DESC, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, DESC, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, DESC, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, DESC, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, DESC, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, DESC, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, DESC, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, DESC, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, 1, 1, true},
        {MODE, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, true},
        {MODE, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
        {POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, DESC, 1, 1, true},
        {POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, DESC, 1, 1, true},
        {POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, DESC, 1, 1, true},
        {POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, DESC, 1, 1, false},
        {GRAPH, CUDNN_ATTR_OPERATIONGRAPH_OPS, DESC, 1, 3, true},
        {GRAPH, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true},
        {HEURISTICS, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, DESC, 1, 1, true},
        {HEURISTICS, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, true},
        {PLAN, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true},
        {PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, DESC, 1, 1, true},
        {PACK, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 8, true},
        {PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, 8, true},
        {PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, false},
};
#define N_SPECS (sizeof specs / sizeof specs[0])

/* ---- engines, in the order in which heuristics name them ---- */

static const struct engine {
        int index;
        bool fallback; /* named by CUDNN_HEUR_MODE_FALLBACK, else by mode A */
        bool floats, halves, fuses;
        enum mfl_emu_operands operands;
        int n_notes;
        cudnnBackendNumericalNote_t notes[2];
        int64_t workspace;
        bool jitter, refuses;
} engines[] = {
        {1, false, true, false, true, MFL_EMU_BF16, 2,
                {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, 0, false,
                false},
        {2, false, true, true, false, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true,
                false},
        {3, false, true, true, true, MFL_EMU_EXACT, 0, {0}, (int64_t)1 << 30, false, false},
        {4, false, true, true, true, MFL_EMU_EXACT, 0, {0}, 0, false, true},
        {5, false, true, true, true, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_WINOGRAD}, 64, false, false},
        {6, false, true, false, true, MFL_EMU_TF32, 1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 512, false, false},
        {7, false, false, true, true, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 512, false,
                false},
        {8, false, true, false, true, MFL_EMU_EXACT, 0, {0}, 4096, false, false},
        {9, true, true, true, false, MFL_EMU_EXACT, 0, {0}, 0, false, false},
};
#define N_ENGINES ((int)(sizeof engines / sizeof engines[0]))

static bool engine_can(const struct engine *e, const struct mfl_emu_dnn_call *call)
{
        bool floats = call->x.type == CUDNN_DATA_FLOAT;
        if (!(floats ? e->floats : e->halves))
                return false;
        /* As the real library: no ReLU alone, a bias of the result's type, dw of the operands'. */
        if (call->relu && !call->has_bias)
                return false;
        if (call->has_bias && (!e->fuses || call->bias.type != call->y.type))
                return false;
        return call->w.type == call->x.type;
}

static int list_engines(const struct descriptor *heuristics, int list[N_ENGINES]);

/* ---- descriptors ---- */

static _Thread_local char last_error[256];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
        snprintf(last_error, sizeof last_error, "%s", why);
        return status;
}

static struct descriptor *get(cudnnBackendDescriptor_t d)
{
        struct descriptor *r = d;
        return r && r->magic == MAGIC ? r : NULL;
}

static const struct value *find(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
        for (int i = 0; i < d->n_values; i++) {
                if (d->values[i].name == name)
                        return &d->values[i];
        }
        return NULL;
}

static int64_t number(const struct descriptor *d, cudnnBackendAttributeName_t name, int i)
{
        int64_t v;
        memcpy(&v, find(d, name)->bytes + (size_t)i * 8, sizeof v);
        return v;
}

static int choice(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
        int v;
        memcpy(&v, find(d, name)->bytes, sizeof v);
        return v;
}

static struct descriptor *child(const struct descriptor *d, cudnnBackendAttributeName_t name, int i)
{
        struct descriptor *v = NULL;
        if (find(d, name))
                memcpy(&v, find(d, name)->bytes + (size_t)i * sizeof v, sizeof v);
        return v;
}

static size_t type_bytes(cudnnBackendAttributeType_t type)
{
        switch (type) {
        case CUDNN_TYPE_BOOLEAN:
                return sizeof(bool);
        case CUDNN_TYPE_FLOAT:
                return sizeof(float);
        case CUDNN_TYPE_INT64:
        case CUDNN_TYPE_HANDLE:
        case CUDNN_TYPE_VOID_PTR:
        case CUDNN_TYPE_BACKEND_DESCRIPTOR:
                return 8;
        default:
                return sizeof(int); /* enumerations */
        }
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *ret)
{
        bool known = type == CONFIG || type == ENGINE;
        if (mfl_emu_fails("cudnnBackendCreateDescriptor"))
                return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        for (size_t i = 0; i < N_SPECS; i++)
                known |= specs[i].of == type;
        if (!ret || !known)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this kind of descriptor is not emulated");
        struct descriptor *d = calloc(1, sizeof *d);
        if (!d)
                return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        d->magic = MAGIC;
        d->type = type;
        *ret = d;
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
        if (!get(d))
                return refuse(CUDNN_STATUS_BAD_PARAM, "destroyed twice, or never created");
        get(d)->magic = 0;
        free(d);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
        cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
        struct descriptor *d = get(descriptor);
        const struct spec *spec = NULL;
        if (mfl_emu_fails("cudnnBackendSetAttribute"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d || !values)
                return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor or no values");
        if (d->final)
                return refuse(CUDNN_STATUS_BAD_PARAM, "attribute set after finalization");
        for (size_t i = 0; i < N_SPECS; i++) {
                if (specs[i].of == d->type && specs[i].name == name)
                        spec = &specs[i];
        }
        if (!spec)
                return refuse(CUDNN_STATUS_BAD_PARAM, "no such attribute of this descriptor");
        if (spec->type != type)
                return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong type of an attribute");
        if (count < spec->min || count > spec->max)
                return refuse(CUDNN_STATUS_BAD_PARAM, "wrong count of an attribute");
        for (int64_t i = 0; type == DESC && i < count; i++) {
                struct descriptor *v = get(((void *const *)values)[i]);
                if (!v || !v->final)
                        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an attribute is not finalized");
        }
        struct value *to = NULL;
        for (int i = 0; i < d->n_values; i++)
                to = d->values[i].name == name ? &d->values[i] : to;
        if (!to)
                to = &d->values[d->n_values++];
        to->name = name;
        to->count = count;
        memcpy(to->bytes, values, (size_t)count * type_bytes(type));
        return CUDNN_STATUS_SUCCESS;
}

/* ---- finalization ---- */

static cudnnStatus_t finish_tensor(struct descriptor *d)
{
        struct mfl_emu_tensor *t = &d->tensor;
        const struct value *is_virtual = find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
        t->uid = number(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
        t->type = (cudnnDataType_t)choice(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
        t->alignment = number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
        t->is_virtual = is_virtual && is_virtual->bytes[0];
        for (int i = 0; i < 4; i++) {
                t->dims[i] = number(d, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
                t->strides[i] = number(d, CUDNN_ATTR_TENSOR_STRIDES, i);
                if (t->dims[i] < 1 || t->strides[i] < 1)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "a dimension or stride below 1");
        }
        if (t->type != CUDNN_DATA_FLOAT && t->type != CUDNN_DATA_HALF && t->type != CUDNN_DATA_BFLOAT16)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a type that is not emulated");
        if (t->alignment < mfl_emu_dnn_type_bytes(t->type) || (t->alignment & (t->alignment - 1)))
                return refuse(CUDNN_STATUS_BAD_PARAM, "alignment is no power of two, or below an element's");
        if (t->dims[1] > 1 && t->strides[1] != 1)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "only NHWC is emulated");
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_convolution(struct descriptor *d)
{
        if (choice(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT ||
                choice(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION ||
                number(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0) != 2)
                return refuse(
                        CUDNN_STATUS_NOT_SUPPORTED, "only 2-d cross-correlations in float are emulated");
        for (int i = 0; i < 2; i++) {
                if (number(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i) !=
                        number(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i))
                        return refuse(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "paddings differ");
                if (number(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i) < 1 ||
                        number(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, i) < 1)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "a stride or dilation below 1");
        }
        return CUDNN_STATUS_SUCCESS;
}

/* Which attributes are x, w, y and the others of an operation: they follow the order of the table above. */
static cudnnStatus_t finish_operation(struct descriptor *d)
{
        const struct spec *spec = specs;
        while (spec->of != d->type)
                spec++;
        struct mfl_emu_dnn_call *call = &d->call;
        const struct descriptor *v = child(d, spec[3].name, 0);
        float alpha, beta;
        memcpy(&alpha, find(d, spec[4].name)->bytes, sizeof alpha);
        memcpy(&beta, find(d, spec[5].name)->bytes, sizeof beta);
        if (child(d, spec[0].name, 0)->type != TENSOR || child(d, spec[1].name, 0)->type != TENSOR ||
                child(d, spec[2].name, 0)->type != TENSOR || v->type != CONVOLUTION)
                return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operand of the wrong kind");
        if (alpha != 1.0f || beta != 0.0f)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED, "alpha 1 and beta 0 are emulated");
        call->operation = d->type;
        call->x = child(d, spec[0].name, 0)->tensor;
        call->w = child(d, spec[1].name, 0)->tensor;
        call->y = child(d, spec[2].name, 0)->tensor;
        const int64_t *x = call->x.dims, *w = call->w.dims, *y = call->y.dims;
        if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] || w[0] % (x[1] / w[1]))
                return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "rows, channels or groups don't agree");
        for (int i = 0; i < 2; i++) {
                call->stride[i] = number(v, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
                call->dilation[i] = number(v, CUDNN_ATTR_CONVOLUTION_DILATIONS, i);
                call->pad[i] = number(v, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
                int64_t room = x[2 + i] + 2 * call->pad[i] - (w[2 + i] - 1) * call->dilation[i] - 1;
                if (room < 0 || y[2 + i] != room / call->stride[i] + 1)
                        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "y has the wrong size");
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_pointwise(struct descriptor *d)
{
        const struct descriptor *mode = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0),
                                *x = child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0),
                                *y = child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0),
                                *b = child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
        if (mode->type != MODE || x->type != TENSOR || y->type != TENSOR || (b && b->type != TENSOR))
                return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operand of the wrong kind");
        int what = choice(mode, CUDNN_ATTR_POINTWISE_MODE);
        if (what != CUDNN_POINTWISE_ADD && what != CUDNN_POINTWISE_RELU_FWD)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only additions and ReLU are emulated");
        if ((what == CUDNN_POINTWISE_ADD) != (b != NULL))
                return refuse(CUDNN_STATUS_BAD_PARAM, "one operand too many or too few");
        if (memcmp(x->tensor.dims, y->tensor.dims, sizeof x->tensor.dims))
                return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "x and y differ");
        for (int i = 0; b && i < 4; i++) {
                if (b->tensor.dims[i] != (i == 1 ? x->tensor.dims[1] : 1))
                        return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "b is no bias of channels");
        }
        return CUDNN_STATUS_SUCCESS;
}

/* A chain: a convolution, then perhaps an addition, then perhaps a ReLU. */
static cudnnStatus_t finish_graph(struct descriptor *d)
{
        int n = (int)find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS)->count;
        const struct descriptor *first = child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, 0);
        if (!child(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 0))
                return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == handle");
        if (first->type != FORWARD && first->type != DATA && first->type != FILTER)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the first is no convolution");
        if (n > 1 && first->type != FORWARD)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "something behind a backward pass");
        d->call = first->call;
        for (int i = 1; i < n; i++) {
                const struct descriptor *o = child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
                if (o->type != POINTWISE)
                        return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "not a pointwise operation");
                const struct mfl_emu_tensor *from =
                        &child(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0)->tensor;
                if (from->uid != d->call.y.uid || !from->is_virtual)
                        return refuse(
                                CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no chain of virtual tensors");
                const struct descriptor *b = child(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
                if (b && (d->call.has_bias || d->call.relu))
                        return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no bias, then ReLU");
                if (b) {
                        d->call.bias = b->tensor;
                        d->call.has_bias = true;
                } else {
                        d->call.relu = true;
                }
                d->call.y = child(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0)->tensor;
        }
        const struct mfl_emu_tensor *t[4] = {&d->call.x, &d->call.w, &d->call.y, &d->call.bias};
        for (int i = 0; i < (d->call.has_bias ? 4 : 3); i++) {
                if (t[i]->is_virtual)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "a virtual tensor is read or left over");
                for (int j = 0; j < i; j++) {
                        if (t[i]->uid == t[j]->uid)
                                return refuse(
                                        CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "one id, two tensors");
                }
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_plan(struct descriptor *d)
{
        const struct descriptor *config = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
        if (config->type != CONFIG || !child(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 0))
                return refuse(CUDNN_STATUS_BAD_PARAM, "no engine configuration, or no handle");
        if (engines[config->engine].refuses)
                return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this engine refuses every plan");
        d->call = config->call;
        d->engine = config->engine;
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish(struct descriptor *d)
{
        switch (d->type) {
        case TENSOR:
                return finish_tensor(d);
        case CONVOLUTION:
                return finish_convolution(d);
        case FORWARD:
        case DATA:
        case FILTER:
                return finish_operation(d);
        case POINTWISE:
                return finish_pointwise(d);
        case GRAPH:
                return finish_graph(d);
        case HEURISTICS:
                if (child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)->type != GRAPH)
                        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no operation graph");
                d->call = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)->call;
                return CUDNN_STATUS_SUCCESS;
        case PLAN:
                return finish_plan(d);
        case PACK:
                if (find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count !=
                        find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "ids and pointers differ in number");
                return CUDNN_STATUS_SUCCESS;
        default:
                return CUDNN_STATUS_SUCCESS;
        }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
        struct descriptor *d = get(descriptor);
        if (mfl_emu_fails("cudnnBackendFinalize"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d)
                return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
        for (size_t i = 0; i < N_SPECS; i++) {
                if (specs[i].of == d->type && specs[i].required && !find(d, specs[i].name))
                        return refuse(CUDNN_STATUS_BAD_PARAM, "a required attribute is missing");
        }
        cudnnStatus_t s = finish(d);
        d->final = !s;
        return s;
}

/* ---- reading ---- */

static int list_engines(const struct descriptor *d, int list[N_ENGINES])
{
        bool fallback = choice(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
        int n = 0;
        for (int i = 0; i < N_ENGINES; i++) {
                if (engines[i].fallback == fallback && engine_can(&engines[i], &d->call))
                        list[n++] = i;
        }
        return n;
}

static cudnnStatus_t get_results(
        const struct descriptor *d, int64_t room, int64_t *ret_count, cudnnBackendDescriptor_t *configs)
{
        int list[N_ENGINES], n = list_engines(d, list);
        *ret_count = configs ? (n < room ? n : room) : n;
        for (int64_t i = 0; configs && i < *ret_count; i++) {
                struct descriptor *config = get(configs[i]);
                if (!config || config->type != CONFIG || config->final)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "results want fresh engine configurations");
                config->call = d->call;
                config->engine = list[i];
                config->final = true;
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_number(int64_t v, int64_t room, int64_t *ret_count, void *values)
{
        *ret_count = 1;
        if (values && room >= 1)
                memcpy(values, &v, sizeof v);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
        cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, int64_t *ret_count,
        void *values)
{
        struct descriptor *d = get(descriptor);
        if (mfl_emu_fails("cudnnBackendGetAttribute"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d || !d->final || !ret_count)
                return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "read before finalization");
        const struct engine *engine = &engines[d->engine];
        if (d->type == HEURISTICS && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == DESC)
                return get_results(d, room, ret_count, values);
        if (d->type == CONFIG && name == CUDNN_ATTR_ENGINECFG_ENGINE && type == DESC && room == 1) {
                struct descriptor *to = get(((void **)values)[0]);
                if (!to || to->type != ENGINE || to->final)
                        return refuse(CUDNN_STATUS_BAD_PARAM, "wants a fresh engine descriptor");
                to->engine = d->engine;
                to->final = true;
                *ret_count = 1;
                return CUDNN_STATUS_SUCCESS;
        }
        if (d->type == ENGINE && name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX && type == CUDNN_TYPE_INT64)
                return get_number(engine->index, room, ret_count, values);
        if (d->type == ENGINE && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
                type == CUDNN_TYPE_NUMERICAL_NOTE) {
                *ret_count = engine->n_notes;
                if (values)
                        memcpy(values, engine->notes,
                                (size_t)(engine->n_notes < room ? engine->n_notes : room) *
                                        sizeof engine->notes[0]);
                return CUDNN_STATUS_SUCCESS;
        }
        if (d->type == PLAN && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64)
                return get_number(engine->workspace, room, ret_count, values);
        return refuse(CUDNN_STATUS_BAD_PARAM, "no such attribute to read");
}

/* ---- execution ---- */

static cudnnStatus_t bind(const struct descriptor *pack, struct mfl_emu_tensor *t)
{
        int n = (int)find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count;
        for (int i = 0; i < n; i++) {
                if (number(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) == t->uid)
                        t->data = (char *)(uintptr_t)number(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
        }
        if (!t->data)
                return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor without a pointer");
        if ((uintptr_t)t->data % (uintptr_t)t->alignment)
                return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a misaligned pointer");
        if (!mfl_emu_is_device(t->data, mfl_emu_dnn_tensor_bytes(t)))
                return refuse(CUDNN_STATUS_EXECUTION_FAILED, "a tensor outside of device memory");
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(
        cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack)
{
        const struct descriptor *d = get(plan), *pack = get(variant_pack);
        const char *wrong = getenv("MFL_EMU_CUDNN_WRONG");
        if (mfl_emu_fails("cudnnBackendExecute"))
                return CUDNN_STATUS_EXECUTION_FAILED;
        if (!handle || !d || !pack || d->type != PLAN || pack->type != PACK || !d->final || !pack->final)
                return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an unfinished plan or pack");
        const struct engine *engine = &engines[d->engine];
        struct mfl_emu_dnn_call call = d->call;
        struct mfl_emu_tensor *t[4] = {&call.x, &call.w, &call.y, &call.bias};
        for (int i = 0; i < (call.has_bias ? 4 : 3); i++) {
                cudnnStatus_t s = bind(pack, t[i]);
                if (s)
                        return s;
        }
        call.operands = wrong && !strcmp(wrong, "bf16") ? MFL_EMU_BF16 : engine->operands;
        call.wrong = wrong && !strcmp(wrong, "1");
        call.jitter = engine->jitter;
        call.workspace_bytes = engine->workspace;
        if (engine->workspace) {
                call.workspace = (char *)child(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 0);
                if (!mfl_emu_is_device(call.workspace, (size_t)engine->workspace))
                        return refuse(CUDNN_STATUS_BAD_PARAM, "no workspace, or too small a one");
        }
        return mfl_emu_enqueue(handle->stream, "cudnnBackendExecute", mfl_emu_dnn_run, &call, sizeof call)
                       ? CUDNN_STATUS_EXECUTION_FAILED_CUDART
                       : CUDNN_STATUS_SUCCESS;
}

/* ---- handles ---- */

size_t cudnnGetVersion(void)
{
        return CUDNN_VERSION;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *ret_handle)
{
        int n = 0;
        if (mfl_emu_fails("cudnnCreate") || cudaGetDeviceCount(&n) || n == 0)
                return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudaGetDeviceCount(&count) != cudaSuccess");
        *ret_handle = calloc(1, sizeof **ret_handle);
        return *ret_handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
        free(handle);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
        if (!handle)
                return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        handle->stream = stream;
        return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
        switch (status) {
        case CUDNN_STATUS_SUCCESS:
                return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_NOT_INITIALIZED:
                return "CUDNN_STATUS_NOT_INITIALIZED";
        default:
                return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                       : CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED
                               ? "CUDNN_STATUS_NOT_SUPPORTED"
                       : CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_INTERNAL_ERROR
                               ? "CUDNN_STATUS_INTERNAL_ERROR"
                               : "CUDNN_STATUS_EXECUTION_FAILED";
        }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
        snprintf(message, max_size, "%s", last_error);
        *last_error = 0;
}
