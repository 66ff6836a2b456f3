/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the emulated cuDNN share: a convolution as plain numbers. */
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

#endif
