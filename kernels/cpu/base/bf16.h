/* SPDX-License-Identifier: Apache-2.0 */
/* precision: bf16 on the CPU backend: what is rounded, and on which processors.
 *
 * Two kinds of operations round both operands to bfloat16, to nearest even, just before they run:
 * - Convolutions, transposed ones too. Forward: input and weights; gradient of the input: output's gradient
 *   and weights; gradient of the weights: input and output's gradient.
 * - Matrix products: dense layers of sequences, with LoRA or with frozen weights, matmul, attention's two
 *   products, the gates of LSTM and GRU, and all their gradients.
 * Products are summed in float and results stay float. Nothing else is rounded: tensors between layers,
 * biases, gradients, statistics of norms, softmax, activations, losses, params, momentum and updates are
 * float. So are dense layers of vectors that train their weights: reading the weights takes most of their
 * time, and the step needs them as float.
 *
 * On processors with amx_bf16, matrix products and most convolutions are our own, on its tiles (bf16/tile.h);
 * with avx512_bf16, such processors are slower than in float. On other processors with avx512_bf16,
 * convolutions are oneDNN's own in bfloat16, and matrix products are our own loops (bf16/gemm_bf16.h). Where
 * the library is fast only in float, it gets rounded float operands: the same arithmetic. Subnormal operands
 * may count as 0, as the processors' instructions treat them. On tiles, what is not finite may spread to
 * neighbouring positions of its own sample.
 *
 * Without both, or where oneDNN is held below avx512_bf16, networks are refused. $MFL_CPU_BF16 is for tests of
 * this arithmetic on other processors: "rounded" takes float convolutions of rounded operands, and loops that
 * need no such instruction; "tiles" takes what runs on tiles, with loops in their place;
 * "library" does without tiles. */
#ifndef MFL_KERNELS_CPU_BASE_BF16_H
#define MFL_KERNELS_CPU_BASE_BF16_H

#include <stdint.h>
#include <string.h>

struct mfl_error;
struct mfl_device;

enum mfl_cpu_bf16 {
        MFL_CPU_BF16_NONE,    /* refused */
        MFL_CPU_BF16_LIBRARY, /* oneDNN's types, own loops with the processor's instructions */
        MFL_CPU_BF16_TILES, /* own products and convolutions on AMX's tiles; the library gets rounded floats */
        MFL_CPU_BF16_AS_TILES, /* the same, and the tiles are loops */
        MFL_CPU_BF16_ROUNDED   /* float operations of rounded operands */
};

/* Keeps oneDNN from AMX on virtual machines that report AMX without a tile palette, where its AMX
 * convolutions die of SIGILL. Call it before any other function of oneDNN. */
void mfl_cpu_bf16_avoid_broken_amx(void);
/* What this processor and the environment allow. */
enum mfl_cpu_bf16 mfl_cpu_bf16_choose(void);
/* The instructions in use, for people; "" for MFL_CPU_BF16_NONE. */
const char *mfl_cpu_bf16_name(enum mfl_cpu_bf16 bf16);
/* The reason why bf16 is refused: MFL_INVALID. */
int mfl_cpu_bf16_refuse(struct mfl_error *err);

/* The bfloat16 number nearest to f, ties to even, as a float's bits: its upper half, and a lower half of 0. A
 * NaN stays a NaN. */
static inline uint32_t mfl_bf16_bits(float f)
{
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
        return ((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : rounded) & 0xffff0000u;
}

#endif
