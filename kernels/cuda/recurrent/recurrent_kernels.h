/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one precision. recurrent_f32.cu, recurrent_tf32.cu, recurrent_bf16.cu and recurrent_f16.cu
 * each include this once, after they define RECURRENT_PRECISION and RECURRENT_GET (the function that returns
 * them). */
#include "kernels/cuda/recurrent/recurrent_body.h"

#define RECURRENT_WARPS                                                                                      \
        (RECURRENT_PRECISION == MFL_PRECISION_FP32 || RECURRENT_PRECISION == MFL_PRECISION_TF32              \
                        ? MFL_RECURRENT_WARPS_FLOAT                                                          \
                        : MFL_RECURRENT_WARPS_HALF)
#define RECURRENT_STEP(name, kind, backward)                                                                 \
        MFL_KERNEL_BOUNDS(name##_step, struct mfl_recurrent_args, MFL_RECURRENT_SLICES * 32, 2)              \
        {                                                                                                    \
                const struct mfl_recurrent_shape s = {RECURRENT_PRECISION, kind, backward, false};           \
                MFL_SHARED(float, stage,                                                                     \
                        MFL_RECURRENT_SLICES *MFL_RECURRENT_ITEMS *((backward) ? 1 : MFL_RECURRENT_PANELS)); \
                recurrent_step(&a, s, stage);                                                                \
        }
#define RECURRENT_WHOLE(name, kind, backward)                                                                \
        MFL_KERNEL_BOUNDS(name##_whole, struct mfl_recurrent_args, RECURRENT_WARPS * 32, 1)                  \
        {                                                                                                    \
                const struct mfl_recurrent_shape s = {RECURRENT_PRECISION, kind, backward, true};            \
                MFL_SHARED_DYNAMIC(shared);                                                                  \
                recurrent_whole(&a, s, shared);                                                              \
        }
#define RECURRENT_FORMS(name, kind, backward)                                                                \
        RECURRENT_STEP(name, kind, backward)                                                                 \
        RECURRENT_WHOLE(name, kind, backward)

RECURRENT_FORMS(lstm_forward, MFL_CELL_LSTM, false)
RECURRENT_FORMS(lstm_backward, MFL_CELL_LSTM, true)
RECURRENT_FORMS(gru_forward, MFL_CELL_GRU, false)
RECURRENT_FORMS(gru_backward, MFL_CELL_GRU, true)
RECURRENT_FORMS(rnn_forward, MFL_CELL_TANH, false)
RECURRENT_FORMS(rnn_backward, MFL_CELL_TANH, true)

MFL_HOST const void *RECURRENT_GET(enum mfl_cell kind, bool backward, bool whole)
{
        const void *const kernels[3][2][2] = {
                {{(const void *)(lstm_forward_step), (const void *)(lstm_forward_whole)},
                        {(const void *)(lstm_backward_step), (const void *)(lstm_backward_whole)}},
                {{(const void *)(gru_forward_step), (const void *)(gru_forward_whole)},
                        {(const void *)(gru_backward_step), (const void *)(gru_backward_whole)}},
                {{(const void *)(rnn_forward_step), (const void *)(rnn_forward_whole)},
                        {(const void *)(rnn_backward_step), (const void *)(rnn_backward_whole)}}};
        return kernels[kind == MFL_CELL_RELU ? MFL_CELL_TANH : kind][backward][whole];
}
