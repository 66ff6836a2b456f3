/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings: rows of a table by token.
 *
 * Backward needs the places of each token in their order. Every place searches the others for the next place
 * of its own token, and checks whether it is the first. That takes as many comparisons as places squared,
 * which is little compared with the products of a model that has so many. Then the first place of each token
 * follows the links and adds.
 */
#include "kernels/cuda/ops/ops_common.h"
#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/cuda/ops/ops_shape.h"

#define TILE MFL_OPS_THREADS
#define FIRST 0x80000000u /* of a link: no place before has this token */

MFL_DEVICE int places_of(const struct mfl_cuda_embedding *a)
{
        return (int)mfl_cuda_rows(&a->steps, blockIdx.y) * a->positions;
}

MFL_DEVICE int token_at(const struct mfl_cuda_embedding *a, int64_t place)
{
        return mfl_token(mfl_load(a->tokens, place, a->token_type), a->vocabulary);
}

MFL_DEVICE void embedding_forward(const struct mfl_cuda_embedding *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = (int64_t)a->batch * a->positions;
        if (i >= n * a->width || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t place = (int64_t)blockIdx.y * n + i / a->width;
        int64_t from =
                (int64_t)(blockIdx.y * a->stride) + (int64_t)token_at(a, place) * a->width + i % a->width;
        float v[MFL_PACK_MAX];
        mfl_pack_load(v, a->weight, from, type, width);
        mfl_pack_store(a->out, (int64_t)blockIdx.y * n * a->width + i, v, type, width);
}
MFL_OPS_KERNELS(embedding_forward, struct mfl_cuda_embedding, embedding_forward)

/* A link is the next place of the same token, or the number of places. */
MFL_KERNEL(embedding_links, struct mfl_cuda_embedding)
{
        MFL_SHARED(int, tile, TILE);
        int n = places_of(&a), i = (int)(blockIdx.x * TILE + threadIdx.x);
        int64_t base = (int64_t)blockIdx.y * a.batch * a.positions;
        if (n == 0)
                return;
        int own = i < n ? token_at(&a, base + i) : -1;
        uint32_t next = (uint32_t)n, first = FIRST;
        for (int from = 0; from < n; from += TILE) {
                int here = n - from < TILE ? n - from : TILE;
                if ((int)threadIdx.x < here)
                        tile[threadIdx.x] = token_at(&a, base + from + (int)threadIdx.x);
                MFL_SYNC();
                for (int k = 0; k < here; k++) {
                        bool same = tile[k] == own;
                        if (same && from + k < i)
                                first = 0;
                        if (same && from + k > i && next == (uint32_t)n)
                                next = (uint32_t)(from + k);
                }
                MFL_SYNC();
        }
        if (i < n)
                a.links[base + i] = next | first;
}

/* A block takes a place and, where it is its token's first, all places of the token. */
MFL_DEVICE void embedding_sums(const struct mfl_cuda_embedding *a, enum mfl_cuda_type type)
{
        uint32_t n = (uint32_t)places_of(a), i = blockIdx.x;
        int64_t base = (int64_t)blockIdx.y * a->batch * a->positions;
        if (i >= n || !(a->links[base + i] & FIRST))
                return;
        int token = token_at(a, base + i);
        if (token == a->padding) /* its row is 0 already */
                return;
        float *to = a->dweight + blockIdx.y * a->stride + (int64_t)token * a->width;
        for (int k = (int)threadIdx.x; k < a->width; k += (int)blockDim.x) {
                float sum = 0.0f;
                for (uint32_t at = i; at < n; at = a->links[base + at] & ~FIRST)
                        sum += mfl_load(a->dout, (base + at) * a->width + k, type);
                to[k] = sum;
        }
}
MFL_KERNEL(embedding_sums_f32, struct mfl_cuda_embedding)
{
        embedding_sums(&a, MFL_CUDA_F32);
}
MFL_KERNEL(embedding_sums_bf16, struct mfl_cuda_embedding)
{
        embedding_sums(&a, MFL_CUDA_BF16);
}
MFL_KERNEL(embedding_sums_f16, struct mfl_cuda_embedding)
{
        embedding_sums(&a, MFL_CUDA_F16);
}

MFL_KERNEL(padding_mask, struct mfl_cuda_mask)
{
        int64_t n = (int64_t)a.batch * a.positions, i = MFL_GLOBAL_INDEX, at = (int64_t)blockIdx.y * n + i;
        if (i >= n || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        float v = mfl_masked_at(mfl_load(a.tokens, at, a.token_type), a.padding);
        mfl_store(a.out, at, a.type == MFL_CUDA_F16 && v < -65504.0f ? -65504.0f : v, a.type);
}

MFL_HOST cudaError_t mfl_cuda_mask(const struct mfl_cuda_mask *a, cudaStream_t stream)
{
        int64_t n = (int64_t)a->batch * a->positions;
        if (a->groups < 1 || a->groups > 65535 || n < 1 || n >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(padding_mask), n, a->groups, stream, a);
}

static bool embedding_fits(const struct mfl_cuda_embedding *a)
{
        return a->groups >= 1 && a->groups <= 65535 && a->width >= 1 && a->vocabulary >= 1 &&
               (int64_t)a->batch * a->positions * a->width < (int64_t)1 << 31;
}

MFL_HOST cudaError_t mfl_cuda_embedding_forward(const struct mfl_cuda_embedding *a, cudaStream_t stream)
{
        int pack = mfl_pack_width(a->type);
        if (!embedding_fits(a))
                return cudaErrorInvalidValue;
        bool wide = a->width % pack == 0 && a->stride % (uint64_t)pack == 0 &&
                    ((uintptr_t)a->weight | (uintptr_t)a->out) % 16 == 0;
        return mfl_ops_launch_flat(embedding_forward_pick(a->type, wide),
                (int64_t)a->batch * a->positions * a->width / (wide ? pack : 1), a->groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_embedding_backward(const struct mfl_cuda_embedding *a, cudaStream_t stream)
{
        const void *sums[3] = {(const void *)(embedding_sums_f32), (const void *)(embedding_sums_bf16),
                (const void *)(embedding_sums_f16)};
        uint32_t places = (uint32_t)(a->batch * a->positions), threads = a->width > 64 ? 256 : 64;
        struct mfl_cuda_clear clear = {a->groups, (uint64_t)a->vocabulary * (uint64_t)a->width, a->stride,
                (uint32_t *)(void *)a->dweight, a->steps};
        if (!embedding_fits(a))
                return cudaErrorInvalidValue;
        cudaError_t r = mfl_cuda_clear(&clear, stream);
        if (r == cudaSuccess)
                r = mfl_launch((const void *)(embedding_links), (uint32_t)mfl_blocks(places, TILE),
                        (uint32_t)a->groups, 1, TILE, 0, stream, a);
        return r == cudaSuccess
                       ? mfl_launch(sums[a->type], places, (uint32_t)a->groups, 1, threads, 0, stream, a)
                       : r;
}
