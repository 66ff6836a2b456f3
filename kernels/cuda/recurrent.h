/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ops_recurrent.h: what its host side (ops_recurrent.cu), its kernels (recurrent_f32.cu,
 * recurrent_tf32.cu, recurrent_bf16.cu, recurrent_f16.cu) and their bodies (recurrent_body.h) share. */
#ifndef MFL_KERNELS_CUDA_RECURRENT_H
#define MFL_KERNELS_CUDA_RECURRENT_H

#include "kernels/cuda/ops_recurrent.h"

enum {
        MFL_RECURRENT_ROWS = 16, /* of a block: the rows of an mma */
        MFL_RECURRENT_UNITS = 8, /* of a tile: its columns */
        MFL_RECURRENT_ITEMS = MFL_RECURRENT_ROWS * MFL_RECURRENT_UNITS,
        MFL_RECURRENT_CHUNK = 64,  /* bytes of the reduction: 16 of each of the 4 lanes of a row */
        MFL_RECURRENT_SLICES = 8,  /* of the reduction at most; the warps of the form of steps */
        MFL_RECURRENT_PANELS = 4,  /* gates at most */
        MFL_RECURRENT_LOAD = 512,  /* bytes of weights of a chunk and panel */
        MFL_RECURRENT_LATENCY = 8, /* groups up to which a launch waits for its loads, not for their bytes */
        /* Of the whole form at most, which are its tiles: by registers, 255 or 168 of a thread. */
        MFL_RECURRENT_WARPS_FLOAT = 8,
        MFL_RECURRENT_WARPS_HALF = 12,
        MFL_RECURRENT_SHARED = 99 << 10,
};

/* What a kernel is specialised for; always a constant. */
struct mfl_recurrent_shape {
        enum mfl_precision precision;
        bool lstm, backward, whole;
};
static inline MFL_HD int mfl_recurrent_gates(bool lstm)
{
        return lstm ? 4 : 3;
}
/* Matrices of a tile: forward a product for each gate, backward one over all gates. */
static inline MFL_HD int mfl_recurrent_panels(bool lstm, bool backward)
{
        return backward ? 1 : mfl_recurrent_gates(lstm);
}

struct mfl_recurrent_args {
        int batch, positions, hidden;
        int position; /* of this launch; whole: unused */
        /* Steps: a block of a group without rows ends at once. Else it works in vain and writes nothing, but
         * no block waits for two loads, one after the other, before it asks for its weights. */
        bool rests_early;
        int tiles, chunks, slice, slices; /* slice: chunks of one */
        int pitch;                        /* bytes from a row of the state to the next */
        void *gates, *hidden_gates, *out;
        const void *dout;
        float *cell;
        float *carry; /* backward: [G][batch][hidden], what goes to the position before beside the product */
        const float *bias;
        uint64_t stride;
        unsigned char *packed,
                *state; /* [G] of packed_group bytes; 2 times [G] of state_group bytes, not whole */
        int64_t packed_group, state_group, state_half;
        struct mfl_cuda_steps steps;
};

#ifdef __cplusplus
extern "C" {
#endif
/* The kernel of one precision. */
const void *mfl_recurrent_kernel_f32(bool lstm, bool backward, bool whole);
const void *mfl_recurrent_kernel_tf32(bool lstm, bool backward, bool whole);
const void *mfl_recurrent_kernel_bf16(bool lstm, bool backward, bool whole);
const void *mfl_recurrent_kernel_f16(bool lstm, bool backward, bool whole);
#ifdef __cplusplus
}
#endif
#endif
