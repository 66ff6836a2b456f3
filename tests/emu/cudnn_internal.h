/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the emulated cuDNN share: a convolution as plain numbers, descriptors. */
#ifndef MFL_TESTS_EMU_CUDNN_INTERNAL_H
#define MFL_TESTS_EMU_CUDNN_INTERNAL_H

#include <cudnn.h>
#include <stdbool.h>
#include <stdint.h>

struct mfl_emu_tensor {
        int64_t uid, dims[4], strides[4], alignment; /* n, c, h, w */
        cudnnDataType_t type;
        bool is_virtual;
        char *data; /* at execution */
};
int mfl_emu_dnn_type_bytes(cudnnDataType_t type);
/* Bytes from the first to the end of the last element. */
uint64_t mfl_emu_dnn_tensor_bytes(const struct mfl_emu_tensor *tensor);

/* How an engine treats the operands of its products. */
enum mfl_emu_operands {
        MFL_EMU_EXACT,
        MFL_EMU_TF32,
        MFL_EMU_BF16,
};
/* All that one execution needs; a copy travels with the work. */
struct mfl_emu_dnn_call {
        cudnnBackendDescriptorType_t operation;
        struct mfl_emu_tensor x, w, y, bias; /* y: also of the last pointwise operation */
        bool has_bias, relu;
        int64_t stride[2], pad[2], dilation[2];
        enum mfl_emu_operands operands;
        bool jitter; /* the order of sums differs from run to run */
        bool wrong;  /* the last pixel is off */
        char *workspace;
        int64_t workspace_bytes;
};
void mfl_emu_dnn_run(void *call);

/* ---- descriptors (cudnn_backend.c) ---- */

#define MAGIC 0x6d666c646e6eu
#define VALUES_MAX 512

struct mfl_emu_value {
        cudnnBackendAttributeName_t name;
        int64_t count;
        unsigned char bytes[VALUES_MAX];
};
struct mfl_emu_descriptor {
        uint64_t magic;
        cudnnBackendDescriptorType_t type;
        bool final;
        int n_values;
        struct mfl_emu_value values[10];
        /* The results of finalization. */
        struct mfl_emu_tensor tensor;
        struct mfl_emu_dnn_call call; /* for an operation graph, and for what is made from it */
        int engine;                   /* place in the table */
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

cudnnStatus_t mfl_emu_dnn_refuse(cudnnStatus_t status, const char *why);
/* NULL: not a descriptor. */
struct mfl_emu_descriptor *mfl_emu_dnn_get(cudnnBackendDescriptor_t d);
const struct mfl_emu_value *mfl_emu_dnn_find(
        const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name);
int64_t mfl_emu_dnn_number(const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name, int i);
int mfl_emu_dnn_choice(const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name);
/* NULL: not set. */
struct mfl_emu_descriptor *mfl_emu_dnn_child(
        const struct mfl_emu_descriptor *d, cudnnBackendAttributeName_t name, int i);
/* Whether the engine at this place of the table makes plans (cudnn.c). */
bool mfl_emu_dnn_engine_accepts(int engine);

#endif
