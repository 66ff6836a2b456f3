/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors of the emulated cuDNN: a table lists the attributes; finalization checks the rest.
 *
 * Refusals were compared with those of the real library, which checks descriptors without a device.
 */
#include "tests/emu/cudnn_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"

struct spec {
        cudnnBackendDescriptorType_t of;
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
        int min, max;
        bool required;
};
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

/* ---- descriptors ---- */

static _Thread_local char last_error[256];

cudnnStatus_t mfl_emu_dnn_refuse(cudnnStatus_t status, const char *why)
{
        snprintf(last_error, sizeof last_error, "%s", why);
        return status;
}

struct mfl_emu_descriptor *mfl_emu_dnn_get(cudnnBackendDescriptor_t d)
{
        struct mfl_emu_descriptor *r = d;
        return r && r->magic == MAGIC ? r : NULL;
}

const struct mfl_emu_value *mfl_emu_dnn_find(
        const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name)
{
        for (int i = 0; i < d->n_values; i++) {
                if (d->values[i].name == name)
                        return &d->values[i];
        }
        return NULL;
}

int64_t mfl_emu_dnn_number(const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name, int i)
{
        int64_t v;
        memcpy(&v, mfl_emu_dnn_find(d, name)->bytes + (size_t)i * 8, sizeof v);
        return v;
}

int mfl_emu_dnn_choice(const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name)
{
        int v;
        memcpy(&v, mfl_emu_dnn_find(d, name)->bytes, sizeof v);
        return v;
}

struct mfl_emu_descriptor *mfl_emu_dnn_child(
        const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name, int i)
{
        struct mfl_emu_descriptor *v = NULL;
        if (mfl_emu_dnn_find(d, name))
                memcpy(&v, mfl_emu_dnn_find(d, name)->bytes + (size_t)i * sizeof v, sizeof v);
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
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_SUPPORTED, "this kind of descriptor is not emulated");
        struct mfl_emu_descriptor *d = calloc(1, sizeof *d);
        if (!d)
                return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        d->magic = MAGIC;
        d->type = type;
        *ret = d;
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
        if (!mfl_emu_dnn_get(d))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "destroyed twice, or never created");
        mfl_emu_dnn_get(d)->magic = 0;
        free(d);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
        cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
        struct mfl_emu_descriptor *d = mfl_emu_dnn_get(descriptor);
        const struct spec *spec = NULL;
        if (mfl_emu_fails("cudnnBackendSetAttribute"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d || !values)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor or no values");
        if (d->final)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "attribute set after finalization");
        for (size_t i = 0; i < N_SPECS; i++) {
                if (specs[i].of == d->type && specs[i].name == name)
                        spec = &specs[i];
        }
        if (!spec)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "no such attribute of this descriptor");
        if (spec->type != type)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong type of an attribute");
        if (count < spec->min || count > spec->max)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "wrong count of an attribute");
        for (int64_t i = 0; type == DESC && i < count; i++) {
                struct mfl_emu_descriptor *v = mfl_emu_dnn_get(((void *const *)values)[i]);
                if (!v || !v->final)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an attribute is not finalized");
        }
        struct mfl_emu_value *to = NULL;
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

static cudnnStatus_t finish_tensor(struct mfl_emu_descriptor *d)
{
        struct mfl_emu_tensor *t = &d->tensor;
        const struct mfl_emu_value *is_virtual = mfl_emu_dnn_find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
        t->uid = mfl_emu_dnn_number(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
        t->type = (cudnnDataType_t)mfl_emu_dnn_choice(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
        t->alignment = mfl_emu_dnn_number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
        t->is_virtual = is_virtual && is_virtual->bytes[0];
        for (int i = 0; i < 4; i++) {
                t->dims[i] = mfl_emu_dnn_number(d, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
                t->strides[i] = mfl_emu_dnn_number(d, CUDNN_ATTR_TENSOR_STRIDES, i);
                if (t->dims[i] < 1 || t->strides[i] < 1)
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "a dimension or stride below 1");
        }
        if (t->type != CUDNN_DATA_FLOAT && t->type != CUDNN_DATA_HALF && t->type != CUDNN_DATA_BFLOAT16)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a type that is not emulated");
        if (t->alignment < mfl_emu_dnn_type_bytes(t->type) || (t->alignment & (t->alignment - 1)))
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_BAD_PARAM, "alignment is no power of two, or below an element's");
        if (t->dims[1] > 1 && t->strides[1] != 1)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "only NHWC is emulated");
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_convolution(struct mfl_emu_descriptor *d)
{
        if (mfl_emu_dnn_choice(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT ||
                mfl_emu_dnn_choice(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION ||
                mfl_emu_dnn_number(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0) != 2)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_SUPPORTED, "only 2-d cross-correlations in float are emulated");
        for (int i = 0; i < 2; i++) {
                if (mfl_emu_dnn_number(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i) !=
                        mfl_emu_dnn_number(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i))
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "paddings differ");
                if (mfl_emu_dnn_number(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i) < 1 ||
                        mfl_emu_dnn_number(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, i) < 1)
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "a stride or dilation below 1");
        }
        return CUDNN_STATUS_SUCCESS;
}

/* The attributes that are x, w, y and the others of an operation: they follow the order of the table above.
 */
static cudnnStatus_t finish_operation(struct mfl_emu_descriptor *d)
{
        const struct spec *spec = specs;
        while (spec->of != d->type)
                spec++;
        struct mfl_emu_dnn_call *call = &d->call;
        const struct mfl_emu_descriptor *v = mfl_emu_dnn_child(d, spec[3].name, 0);
        float alpha, beta;
        memcpy(&alpha, mfl_emu_dnn_find(d, spec[4].name)->bytes, sizeof alpha);
        memcpy(&beta, mfl_emu_dnn_find(d, spec[5].name)->bytes, sizeof beta);
        if (mfl_emu_dnn_child(d, spec[0].name, 0)->type != TENSOR ||
                mfl_emu_dnn_child(d, spec[1].name, 0)->type != TENSOR ||
                mfl_emu_dnn_child(d, spec[2].name, 0)->type != TENSOR || v->type != CONVOLUTION)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operand of the wrong kind");
        if (alpha != 1.0f || beta != 0.0f)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_NOT_SUPPORTED, "alpha 1 and beta 0 are emulated");
        call->operation = d->type;
        call->x = mfl_emu_dnn_child(d, spec[0].name, 0)->tensor;
        call->w = mfl_emu_dnn_child(d, spec[1].name, 0)->tensor;
        call->y = mfl_emu_dnn_child(d, spec[2].name, 0)->tensor;
        const int64_t *x = call->x.dims, *w = call->w.dims, *y = call->y.dims;
        if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] || w[0] % (x[1] / w[1]))
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "rows, channels or groups don't agree");
        for (int i = 0; i < 2; i++) {
                call->stride[i] = mfl_emu_dnn_number(v, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
                call->dilation[i] = mfl_emu_dnn_number(v, CUDNN_ATTR_CONVOLUTION_DILATIONS, i);
                call->pad[i] = mfl_emu_dnn_number(v, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
                int64_t room = x[2 + i] + 2 * call->pad[i] - (w[2 + i] - 1) * call->dilation[i] - 1;
                if (room < 0 || y[2 + i] != room / call->stride[i] + 1)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "y has the wrong size");
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_pointwise(struct mfl_emu_descriptor *d)
{
        const struct mfl_emu_descriptor *mode = mfl_emu_dnn_child(
                                                d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0),
                                        *x = mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0),
                                        *y = mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0),
                                        *b = mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
        if (mode->type != MODE || x->type != TENSOR || y->type != TENSOR || (b && b->type != TENSOR))
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operand of the wrong kind");
        int what = mfl_emu_dnn_choice(mode, CUDNN_ATTR_POINTWISE_MODE);
        if (what != CUDNN_POINTWISE_ADD && what != CUDNN_POINTWISE_RELU_FWD)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_NOT_SUPPORTED, "only additions and ReLU are emulated");
        if ((what == CUDNN_POINTWISE_ADD) != (b != NULL))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "one operand too many or too few");
        if (memcmp(x->tensor.dims, y->tensor.dims, sizeof x->tensor.dims))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "x and y differ");
        for (int i = 0; b && i < 4; i++) {
                if (b->tensor.dims[i] != (i == 1 ? x->tensor.dims[1] : 1))
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "b is no bias of channels");
        }
        return CUDNN_STATUS_SUCCESS;
}

/* A chain: a convolution, then perhaps an addition, then perhaps a ReLU. */
static cudnnStatus_t finish_graph(struct mfl_emu_descriptor *d)
{
        int n = (int)mfl_emu_dnn_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS)->count;
        const struct mfl_emu_descriptor *first = mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, 0);
        if (!mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 0))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == handle");
        if (first->type != FORWARD && first->type != DATA && first->type != FILTER)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the first is no convolution");
        if (n > 1 && first->type != FORWARD)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "something behind a backward pass");
        d->call = first->call;
        for (int i = 1; i < n; i++) {
                const struct mfl_emu_descriptor *o = mfl_emu_dnn_child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
                if (o->type != POINTWISE)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "not a pointwise operation");
                const struct mfl_emu_tensor *from =
                        &mfl_emu_dnn_child(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0)->tensor;
                if (from->uid != d->call.y.uid || !from->is_virtual)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no chain of virtual tensors");
                const struct mfl_emu_descriptor *b =
                        mfl_emu_dnn_child(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
                if (b && (d->call.has_bias || d->call.relu))
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no bias, then ReLU");
                if (b) {
                        d->call.bias = b->tensor;
                        d->call.has_bias = true;
                } else {
                        d->call.relu = true;
                }
                d->call.y = mfl_emu_dnn_child(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0)->tensor;
        }
        const struct mfl_emu_tensor *t[4] = {&d->call.x, &d->call.w, &d->call.y, &d->call.bias};
        for (int i = 0; i < (d->call.has_bias ? 4 : 3); i++) {
                if (t[i]->is_virtual)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM, "a virtual tensor is read or left over");
                for (int j = 0; j < i; j++) {
                        if (t[i]->uid == t[j]->uid)
                                return mfl_emu_dnn_refuse(
                                        CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "one id, two tensors");
                }
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_plan(struct mfl_emu_descriptor *d)
{
        const struct mfl_emu_descriptor *config =
                mfl_emu_dnn_child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
        if (config->type != CONFIG || !mfl_emu_dnn_child(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 0))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "no engine configuration, or no handle");
        if (!mfl_emu_dnn_engine_accepts(config->engine))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_NOT_SUPPORTED, "this engine refuses every plan");
        d->call = config->call;
        d->engine = config->engine;
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish(struct mfl_emu_descriptor *d)
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
                if (mfl_emu_dnn_child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)->type != GRAPH)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no operation graph");
                d->call = mfl_emu_dnn_child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)->call;
                return CUDNN_STATUS_SUCCESS;
        case PLAN:
                return finish_plan(d);
        case PACK:
                if (mfl_emu_dnn_find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count !=
                        mfl_emu_dnn_find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM, "ids and pointers differ in number");
                return CUDNN_STATUS_SUCCESS;
        default:
                return CUDNN_STATUS_SUCCESS;
        }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
        struct mfl_emu_descriptor *d = mfl_emu_dnn_get(descriptor);
        if (mfl_emu_fails("cudnnBackendFinalize"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
        for (size_t i = 0; i < N_SPECS; i++) {
                if (specs[i].of == d->type && specs[i].required && !mfl_emu_dnn_find(d, specs[i].name))
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "a required attribute is missing");
        }
        cudnnStatus_t s = finish(d);
        d->final = !s;
        return s;
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
        snprintf(message, max_size, "%s", last_error);
        *last_error = 0;
}
