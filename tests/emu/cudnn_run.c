/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the emulated cuDNN: direct convolutions in plain loops. */
#include "tests/emu/cudnn_internal.h"

#include "kernels/cuda/base/kernel.h"

int mfl_emu_dnn_type_bytes(cudnnDataType_t type)
{
        return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

uint64_t mfl_emu_dnn_tensor_bytes(const struct mfl_emu_tensor *t)
{
        int64_t last = 0;
        for (int i = 0; i < 4; i++)
                last += (t->dims[i] - 1) * t->strides[i];
        return (uint64_t)(last + 1) * (uint64_t)mfl_emu_dnn_type_bytes(t->type);
}

static enum mfl_cuda_type own_type(cudnnDataType_t type)
{
        return type == CUDNN_DATA_FLOAT  ? MFL_CUDA_F32
               : type == CUDNN_DATA_HALF ? MFL_CUDA_F16
                                         : MFL_CUDA_BF16;
}

static int64_t place(const struct mfl_emu_tensor *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
        return n * t->strides[0] + c * t->strides[1] + h * t->strides[2] + w * t->strides[3];
}

static float operand(const struct mfl_emu_dnn_call *call, const struct mfl_emu_tensor *t, int64_t at)
{
        float v = mfl_load(t->data, at, own_type(t->type));
        switch (call->operands) {
        case MFL_EMU_TF32:
                return mfl_bits_to_float(mfl_to_tf32(v));
        case MFL_EMU_BF16:
                return mfl_bf16_to_float(mfl_float_to_bf16(v));
        default:
                return v;
        }
}

static void store(const struct mfl_emu_dnn_call *call, const struct mfl_emu_tensor *t, int64_t n, int64_t c,
        int64_t h, int64_t w, float v)
{
        static unsigned serial;
        if (call->jitter) /* as another order of the sum would do */
                v *= 1.0f + 0x1p-22f * (float)(++serial % 3);
        if (call->wrong && n == t->dims[0] - 1 && h == t->dims[2] - 1 && w == t->dims[3] - 1)
                v += 0.5f;
        mfl_store(t->data, place(t, n, c, h, w), v, own_type(t->type));
}

/* The input row of an output's; false: in the padding. */
static bool source(
        const struct mfl_emu_dnn_call *call, int d, int64_t o, int64_t r, int64_t limit, int64_t *ret)
{
        *ret = o * call->stride[d] - call->pad[d] + r * call->dilation[d];
        return *ret >= 0 && *ret < limit;
}

static float forward_at(const struct mfl_emu_dnn_call *call, int64_t n, int64_t k, int64_t p, int64_t q)
{
        const struct mfl_emu_tensor *x = &call->x, *w = &call->w;
        int64_t per_group = w->dims[0] / (x->dims[1] / w->dims[1]), first = k / per_group * w->dims[1], h, v;
        float sum = 0.0f;
        for (int64_t r = 0; r < w->dims[2]; r++) {
                for (int64_t s = 0; s < w->dims[3]; s++) {
                        if (!source(call, 0, p, r, x->dims[2], &h) || !source(call, 1, q, s, x->dims[3], &v))
                                continue;
                        for (int64_t c = 0; c < w->dims[1]; c++)
                                sum += operand(call, x, place(x, n, first + c, h, v)) *
                                       operand(call, w, place(w, k, c, r, s));
                }
        }
        return sum;
}

static float data_at(const struct mfl_emu_dnn_call *call, int64_t n, int64_t channel, int64_t h, int64_t v)
{
        const struct mfl_emu_tensor *x = &call->x, *w = &call->w, *y = &call->y;
        int64_t per_group = w->dims[0] / (x->dims[1] / w->dims[1]), group = channel / w->dims[1];
        int64_t c = channel % w->dims[1];
        float sum = 0.0f;
        for (int64_t r = 0; r < w->dims[2]; r++) {
                for (int64_t s = 0; s < w->dims[3]; s++) {
                        int64_t p = h + call->pad[0] - r * call->dilation[0];
                        int64_t q = v + call->pad[1] - s * call->dilation[1];
                        if (p < 0 || q < 0 || p % call->stride[0] || q % call->stride[1])
                                continue;
                        p /= call->stride[0];
                        q /= call->stride[1];
                        if (p >= y->dims[2] || q >= y->dims[3])
                                continue;
                        for (int64_t k = group * per_group; k < (group + 1) * per_group; k++)
                                sum += operand(call, y, place(y, n, k, p, q)) *
                                       operand(call, w, place(w, k, c, r, s));
                }
        }
        return sum;
}

static float filter_at(const struct mfl_emu_dnn_call *call, int64_t k, int64_t c, int64_t r, int64_t s)
{
        const struct mfl_emu_tensor *x = &call->x, *w = &call->w, *y = &call->y;
        int64_t per_group = w->dims[0] / (x->dims[1] / w->dims[1]), channel = k / per_group * w->dims[1] + c,
                h, v;
        float sum = 0.0f;
        for (int64_t n = 0; n < y->dims[0]; n++) {
                for (int64_t p = 0; p < y->dims[2]; p++) {
                        if (!source(call, 0, p, r, x->dims[2], &h))
                                continue;
                        for (int64_t q = 0; q < y->dims[3]; q++) {
                                if (source(call, 1, q, s, x->dims[3], &v))
                                        sum += operand(call, y, place(y, n, k, p, q)) *
                                               operand(call, x, place(x, n, channel, h, v));
                        }
                }
        }
        return sum;
}

void mfl_emu_dnn_run(void *data)
{
        const struct mfl_emu_dnn_call *call = data;
        bool forward = call->operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
        bool filter = call->operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
        const struct mfl_emu_tensor *t = forward ? &call->y : filter ? &call->w : &call->x;
        if (call->workspace_bytes) /* shows when another call uses it at the same time */
                memset(call->workspace, 0x5a, (size_t)call->workspace_bytes);
        for (int64_t n = 0; n < t->dims[0]; n++) {
                for (int64_t h = 0; h < t->dims[2]; h++) {
                        for (int64_t w = 0; w < t->dims[3]; w++) {
                                for (int64_t c = 0; c < t->dims[1]; c++) {
                                        float v = forward  ? forward_at(call, n, c, h, w)
                                                  : filter ? filter_at(call, n, c, h, w)
                                                           : data_at(call, n, c, h, w);
                                        if (call->has_bias)
                                                v += mfl_load(call->bias.data, place(&call->bias, 0, c, 0, 0),
                                                        own_type(call->bias.type));
                                        if (call->relu)
                                                v = v > 0.0f ? v : 0.0f;
                                        store(call, t, n, c, h, w, v);
                                }
                        }
                }
        }
        for (int64_t i = 0; i < call->workspace_bytes; i++)
                mfl_assert(call->workspace[i] == 0x5a);
}
