/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrent part of LSTM, GRU and RNN over G clients at once. Conventions and errors are those of ops.h;
 * equations are those of torch.nn.
 *
 * What does not depend on the previous position is computed for all positions at once, by the kernels of
 * dense layers (conv.h): the products with the input, its gradient, and the gradients of both weights. This
 * file has the rest: h(t-1) W_hh' with the gates after it, and the gates' gradients with dgates(t+1) W_hh
 * before them.
 *
 * Two forms with equal bits:
 *
 *     step    One launch for each position. A block computes 8 units of 16 rows, with all of their gates, by
 *             8 warps that divide the reduction; gates and cell are its epilogue.
 *     whole   One launch for all positions, where the packed weights fit into the shared memory that every
 *             device from sm_80 on has (99 KiB): up to 64 units in float, 96 in 16 bits. A block computes 16
 *             rows, a warp 8 units; the previous output goes from warp to warp in shared memory.
 *
 * mfl_cuda_recurrent_is_whole chooses: a rule of hidden and precision, though the bits do not require one.
 *
 * Operands. Each pass begins by packing the weights once, in the order in which lanes read them: [tile of 8
 * units][gate][64 bytes of the reduction][lane][16 bytes], with zeros beyond the edges, rounded to tf32 where
 * products are; for backward transposed. So a warp's load is 512 adjacent bytes, and addresses need no check
 * at the edges. The reduction of an mma may be permuted if both operands are: a lane's 16 bytes are what it
 * gives to two m16n8k8 or m16n8k16 steps, for weights and for a row of h alike. The other operand (h, or the
 * gates' gradients) is kept beside the tensors, with rows padded to 64 bytes, in two copies that positions
 * use in turn.
 *
 * The bits. The reduction is cut into chunks of 64 bytes (16 floats or 32 halves), the chunks into at most 8
 * slices of equal length. A slice starts at +0. fp32: fmaf in the order of k. Others: two tensor-core steps
 * for each chunk, in order. Slices are added in order, beginning with the first. None of this depends on G,
 * on the batch, on the form or on the launch. ASSUMED of tensor cores: what conv_mma.h assumes.
 *
 * Tensors of gates have the type of the network's tensors, like every other activation; cells are float.
 *
 * The possible gain: COMPUTED, NOT MEASURED. A step of char-lstm (80 positions of 8 features, 2 layers of 256
 * units), batch 10, on an H200 with its published 67 TFLOP/s in fp32, 989 in bf16 by wgmma and half of that
 * in tf32, 4.8 TB/s, 50 MB of L2; ASSUMED are 5.5 TB/s of L2, and 1.3 us from one node of a graph to the
 * next.
 *
 *     arithmetic   3.8 GFLOP per client: 57 us in fp32, 15 us in tf32 at half of its peak, 8 us in bf16.
 *     W_hh         1 MiB in float, 0.5 MiB in 16 bits, is read at 80 positions of 2 layers, forward and
 *                  backward: 336 or 168 MB per client. 61 or 31 us from L2, which holds what one layer and
 *                  direction of 47 or 95 clients read over and over; 70 or 35 us from memory.
 *     order        320 launches that wait for each other: 0.42 ms, however many clients.
 *
 * So launches limit one client, both limit 8 (0.49 ms of L2 in float), and W_hh limits 64: 4.5 ms in float,
 * 2.0 ms in 16 bits, which is 70 or 31 us per client.
 *
 * Why one block does not process a client's whole sequence where weights do not fit: it would read W_hh
 * through one multiprocessor. 1 MiB at 64 bytes per clock takes 9 us per position, while 32 blocks take less
 * than 1 us and a launch costs 1.3. From 132 clients on, the bytes are the same either way, 29 us per
 * position, and launches are 5% of it. Where weights fit, they are read once, and a position takes only some
 * 1000 clocks of products, barriers and gates: about 0.6 us instead of 2 to 3.
 *
 * What would be faster still, from sm_90 on: a cluster of 8 blocks that keeps W_hh in their shared memory
 * (128 KiB each in float) for the whole sequence, with a barrier of the cluster at each position. One client
 * would save its launches; 64 would read W_hh once instead of 80 times, 16 clusters at once on 132
 * multiprocessors, in about half of the time. Not built: there was no device to test it on.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_RECURRENT_H
#define MFL_KERNELS_CUDA_OPS_OPS_RECURRENT_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mfl_cuda_recurrent {
        int groups, batch, positions, hidden;
        enum mfl_cell kind;
        bool last_cell; /* LSTM: as struct mfl_layer says */
        bool whole;
        enum mfl_precision precision;
        const void *weight; /* of group 0, [gates * hidden][hidden], in the type of the tensors */
        const float *bias;  /* of group 0, of W_hh; NULL: none */
        uint64_t stride;    /* elements from a group's to the next's */
        /* [G][batch][T][gates * hidden]. forward: in, the products with the input and their bias; out, the
         * gates: i, f, g, o or r, z, n, or unchanged. backward: they become the gradients of the gates' inputs. */
        void *gates;
        /* GRU: shaped like gates. forward: the last third is n's hidden share, W_hh's rows with their bias.
         * backward: becomes the gradients of the products with W_hh. */
        void *hidden_gates;
        float *cell; /* LSTM: [G][batch][T][hidden] */
        void *out;   /* [G][batch][T][hidden] */
        const void *dout;
        void *workspace; /* mfl_cuda_recurrent_workspace bytes, aligned to 256 */
        struct mfl_cuda_steps steps;
};
/* Gates, then hidden_gates or cell, for `places` rows and positions of all groups: bytes of the first, and of
 * both. */
static inline uint64_t mfl_cuda_recurrent_gates(
        uint64_t places, int hidden, enum mfl_cell kind, enum mfl_cuda_type type)
{
        uint64_t bytes = places * (uint64_t)hidden * (uint64_t)mfl_cell_gates(kind) *
                         (uint64_t)mfl_cuda_type_bytes(type);
        return (bytes + 255) / 256 * 256;
}
static inline uint64_t mfl_cuda_recurrent_kept(
        uint64_t places, int hidden, enum mfl_cell kind, enum mfl_cuda_type type)
{
        uint64_t gates = mfl_cuda_recurrent_gates(places, hidden, kind, type);
        if (kind == MFL_CELL_LSTM)
                return gates + places * (uint64_t)hidden * sizeof(float);
        return kind == MFL_CELL_GRU ? 2 * gates : gates;
}
bool mfl_cuda_recurrent_is_whole(int hidden, enum mfl_cell kind, enum mfl_precision precision, bool backward);
/* For both directions. */
uint64_t mfl_cuda_recurrent_workspace(
        int groups, int batch, int hidden, enum mfl_cell kind, enum mfl_precision precision);
/* a->whole asks for that form; cudaErrorInvalidValue where mfl_cuda_recurrent_is_whole says no. */
cudaError_t mfl_cuda_recurrent_forward(const struct mfl_cuda_recurrent *a, cudaStream_t stream);
cudaError_t mfl_cuda_recurrent_backward(const struct mfl_cuda_recurrent *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
