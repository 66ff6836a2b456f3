/* SPDX-License-Identifier: Apache-2.0 */
/* precision: bf16 on the CPU backend: what is rounded, and on which processors.
 *
 * Both operands of every convolution, transposed ones too (forward: input and weights; gradient of the input:
 * output's gradient and weights; gradient of the weights: input and output's gradient), and of every matrix
 * product (dense layers of sequences, with LoRA or frozen weights, matmul, attention's two products, the
 * gates of LSTM and GRU, and all their gradients) are rounded to bfloat16, to nearest even, just before that
 * operation. Their products are summed in float and the results stay float. Nothing else is rounded: tensors
 * between layers, biases, gradients, statistics of norms, softmax, activations, losses, params, momentum and
 * updates are float, and so are dense layers of vectors that train their weights: their time is that of
 * reading the weights, which the step needs as float.
 *
 * Convolutions are oneDNN's own in bfloat16. Where the library has a fast one in float only, it gets rounded
 * operands in float: the same arithmetic. Matrix products are our own loops (loops_gemm_bf16.h). Subnormal
 * operands may be taken for 0: so do the processors' instructions.
 *
 * A processor has to have avx512_bf16 (those with amx_bf16 have it too), and oneDNN must not be held below
 * it; else networks are refused. $MFL_CPU_BF16 is for tests of this arithmetic on other processors: "rounded"
 * takes float convolutions of rounded operands, and loops that need no such instruction. */
#ifndef MFL_KERNELS_CPU_BF16_H
#define MFL_KERNELS_CPU_BF16_H

#include <stdint.h>
#include <string.h>

struct mfl_error;
struct mfl_device;

enum mfl_cpu_bf16 {
        MFL_CPU_BF16_NONE,    /* refused */
        MFL_CPU_BF16_LIBRARY, /* oneDNN's types, own loops with the processor's instructions */
        MFL_CPU_BF16_ROUNDED  /* float operations of rounded operands */
};

/* What this processor and the environment allow. */
enum mfl_cpu_bf16 mfl_cpu_bf16_choose(void);
/* Which instructions: a word for people, "" for MFL_CPU_BF16_NONE. */
const char *mfl_cpu_bf16_name(enum mfl_cpu_bf16 bf16);
/* Why there are none: MFL_INVALID. */
int mfl_cpu_bf16_refuse(struct mfl_error *err);

/* The float nearest to f, ties to even, of those that bfloat16 has: its upper half as bits, the lower half 0.
 * A NaN stays one. */
static inline uint32_t mfl_bf16_bits(float f)
{
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
        return ((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : rounded) & 0xffff0000u;
}

#endif
