/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles (Dao et al. 2022, "FlashAttention", algorithms 1 and 4; Dao 2023, "FlashAttention-2",
 * sections 3.1 and 3.2): the T x T weights are never in memory. Conventions, errors and the meaning of `add`
 * are those of ops.h; the operator is enum mfl_op's.
 *
 * Forward: a warp owns 16 queries, keeps their outputs in registers, and goes through tiles of keys and
 * values in shared memory with an online softmax (Milakov and Gimelshein 2018). Backward computes the weights
 * again, twice: the queries' pass owns queries and goes through keys, the keys' pass owns keys and goes
 * through queries. So no element is added to from two sides, and no sum needs an atomic. Both begin with ds =
 * p (keep dp - mean), mean = sum of dy y over the query's head (Dao et al. 2022, equation 4; with dropout
 * too). A causal mask leaves out tiles, and fragments of 16 in those at its edge.
 *
 * What forward keeps of a query for backward is not its log-sum-exp but, as on the CPU, base, its largest
 * score q k, and inverse, 1 / sum of exp2((q k - base) log2(e) / sqrt(size)). A log-sum-exp of scores of 10^4
 * has lost the digits in which weights differ; a difference of scores has not. The third kept value is the
 * mean, from the queries' pass. A row always sees a key (under a causal mask its own), so no sum is 0.
 *
 * The bit contract, for every G and every launch. Products of scores: fp32 by fmaf from +0 in the order of
 * the head's columns; tf32, bf16, fp16 by mma.sync steps of 8 or 16 in that order, zeros up to a multiple of
 * 16 (conv_mma.h says what is assumed of them). Weights times values, and gradients of scores times keys or
 * queries, likewise in the order of positions, as one sum from +0 that forward scales down wherever a tile
 * (32 keys; 64 for 16-bit types) raises the base. Weights are rounded to the precision as operands of those
 * products, after dropout and before normalisation. Sums of weights, and means: lane l of 4 takes columns 2
 * l, 2 l + 1 of every 8 (means: every fourth from l on), then a butterfly. Tiles, and therefore bits, depend
 * only on precision and head size; the number of warps in a block changes nothing. tf32 operands are rounded
 * as mma.h says.
 *
 * A fixed rule chooses the method: heads of up to MFL_FLASH_SIZE_MAX columns use these kernels, larger ones
 * products and T x T weights in float (run_attention.c). Short sequences are no exception: T <= 64 is one
 * tile of keys or two, whose block reads x once and writes y once. The other method moves the T x T floats at
 * least 4 times forward (scores and weights, out and in) and 7 times backward, which from T = 32 on with
 * heads of 32 is more than x itself, in 3 and 5 launches instead of 1 and 2. Tiles only waste rows up to a
 * multiple of 16: T = 65 computes 80 x 80, 1.5 times the operations, where bytes are the limit (below).
 *
 * Why no cuBLASLt: its batch has one stride and ours has two (rows of the batch, heads side by side); its
 * choice of an algorithm may change with the number of clients, and bits with it; and the T x T would have to
 * be in memory between its products. cuDNN's attention takes only 16-bit types.
 *
 * Roofline, COMPUTED from published peaks, NOT MEASURED, one layer and one client, a multiply-add as 2. An
 * H200 has 4.8 TB/s, 67 TFLOP/s in float and, by mma.sync at half of the published 989, 495 in bf16. Forward
 * moves 4 T D elements of a row (reads 3, writes 1), backward 8 (x, y and dy in, dx out; what its second pass
 * reads again is in L2):
 *
 *                                        MFLOP  MiB bf16  FLOP/byte  us of bytes  us of products  (fp32)
 *   char-gpt T 80, 4 x 32,   forward      19.7      0.78         24         0.17            0.04     0.29
 *   batch 10, causal         backward     68.8      1.56         42         0.34            0.14     1.03
 *   vit-tiny T 65, 3 x 64,   forward      49.2      0.95         49         0.21            0.10     0.73
 *   batch 10                 backward      172      1.90         86         0.42            0.35     2.57
 *
 * (fp32 moves twice the bytes.) Operations are those of the computed fragments: 15 of 25 for T 80 under the
 * mask, (80 / 65)^2 for T 65; backward's seven products are 3.5 times forward's two. So in 16 bits the bytes
 * are the limit. In fp32, bytes and products are close for char-gpt, and products are the limit for vit-tiny.
 * The T x T floats of the other method are 1.0 and 0.5 MB, each time. One client alone is far from all this:
 * 40 or 30 blocks of 5 warps for 132 multiprocessors; G clients have G times as many. Inside a
 * multiprocessor: a warp's 16 x 64 tile (bf16, heads of 64) reads 10 KiB of fragments for each 131 kFLOP: 13
 * FLOP per byte, at 128 bytes per clock 1.6 kFLOP of the 4 that tensor cores could do. If long sequences
 * come, warps of 32 rows are the first thing to try. fp32: 10 reads of 16 bytes for 64 fmaf of scores, 4.5
 * for 32 of outputs, so fmaf is the limit.
 *
 * The code of ptxas 13.0: no spills for sm_80, sm_90, sm_100 and sm_120, 16 bytes of stack for dropout.
 * Registers for sm_90, heads of 32, 64 and 128: forward 122, 139, 173 (fp32), 117, 134, 168 (tf32), 125, 140,
 * 175 (bf16); queries 168, 194, 230; 158, 183, 215; 135, 151, 186; keys 151, 208, 253; 148, 186, 230; 144,
 * 178, 227; fp16 as bf16.
 */
#ifndef MFL_KERNELS_CUDA_ATTENTION_ATTENTION_H
#define MFL_KERNELS_CUDA_ATTENTION_ATTENTION_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
        MFL_FLASH_SIZE_MAX = 128,
        MFL_FLASH_KEPT = 3, /* floats kept per query of each head */
};

struct mfl_cuda_flash {
        int groups, batch, heads, positions, size; /* size: of a head, at most MFL_FLASH_SIZE_MAX */
        enum mfl_precision precision;
        bool causal, training;
        float rate; /* training: of dropout */
        uint32_t layer;
        const void *in; /* [G][batch][T][3][heads][size]: queries, keys, values */
        void *out;      /* [G][batch][T][heads][size]; backward reads it */
        float *kept;    /* [G][batch][heads][MFL_FLASH_KEPT][T]; forward: NULL where no backward follows */
        const void *dout;
        void *din;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_flash_forward(const struct mfl_cuda_flash *a, cudaStream_t stream);
cudaError_t mfl_cuda_flash_backward(const struct mfl_cuda_flash *a, cudaStream_t stream);

/* ---- inside ---- */

enum mfl_flash_pass {
        MFL_FLASH_FORWARD,
        MFL_FLASH_QUERIES, /* backward: gradients of queries, and every query's mean */
        MFL_FLASH_KEYS,    /* backward: gradients of keys and values */
};

struct mfl_flash_args {
        struct mfl_cuda_flash op;
        int blocks;            /* of one head */
        int depth;             /* of a head, rounded up to a multiple of 16 */
        int copy;              /* bytes of one copy from global memory: 16, 4 or 2 */
        bool pairs;            /* two neighbours are written at once */
        float scale, exponent; /* 1 / sqrt(size), and times log2(e) */
};

struct mfl_flash_kernel {
        const void *function;
        int warps_max;
        int shared_of_block, shared_of_warp; /* bytes: of both once, and for each warp */
};

/* The kernel of a pass for heads of a size; false: too large. */
bool mfl_cuda_flash_kernel_fp32(enum mfl_flash_pass pass, int size, struct mfl_flash_kernel *ret_kernel);
bool mfl_cuda_flash_kernel_tf32(enum mfl_flash_pass pass, int size, struct mfl_flash_kernel *ret_kernel);
bool mfl_cuda_flash_kernel_bf16(enum mfl_flash_pass pass, int size, struct mfl_flash_kernel *ret_kernel);
bool mfl_cuda_flash_kernel_f16(enum mfl_flash_pass pass, int size, struct mfl_flash_kernel *ret_kernel);

#ifdef __cplusplus
}
#endif
#endif
