/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of attention between its products: softmax of scores with mask and dropout. */
#include "kernels/cuda/ops/ops_common.h"
#include "kernels/cuda/ops/ops_sequence.h"

#define WARP 32
#define QUERIES (MFL_OPS_THREADS / WARP) /* per block */

struct query {
        int64_t n, at;  /* number of queries of this group that are left; the first weight of this query */
        int seen;       /* how many keys it sees */
        int64_t mask;   /* of the mask's first number */
        uint64_t first; /* number of its first weight in the mask */
        bool drops;
        struct mfl_rng_key key;
};

MFL_DEVICE struct query query_of(const struct mfl_cuda_attention *a)
{
        struct query q;
        int64_t i = (int64_t)blockIdx.x * QUERIES + threadIdx.x / WARP;
        q.n = (int64_t)a->batch * a->heads * a->positions;
        q.seen = a->causal ? (int)(i % a->positions) + 1 : a->positions;
        q.at = ((int64_t)blockIdx.y * q.n + i) * a->positions;
        q.mask = ((int64_t)blockIdx.y * a->batch + i / ((int64_t)a->heads * a->positions)) * a->positions;
        q.first = (uint64_t)(mfl_cuda_part(&a->steps) * q.n + i) * (uint64_t)a->positions;
        q.n -= i; /* queries that are left, this one included */
        q.drops = a->training && a->rate > 0.0f;
        if (q.drops)
                q.key = mfl_rng_dropout_key(
                        a->steps.dropout[blockIdx.y], mfl_cuda_step_number(&a->steps, blockIdx.y), a->layer);
        return q;
}

MFL_DEVICE float keep_at(const struct mfl_cuda_attention *a, const struct query *q, int j)
{
        return q->drops ? mfl_dropout_at(q->key, q->first + (uint64_t)j, a->rate) : 1.0f;
}

MFL_DEVICE float warp_sum(float v)
{
        for (int s = WARP / 2; s > 0; s /= 2)
                v += mfl_shfl_xor(v, s);
        return v;
}

MFL_DEVICE void drop(const struct mfl_cuda_attention *a, const struct query *q, int lane)
{
        for (int j = lane; j < a->positions; j += WARP)
                a->dropped[q->at + j] = a->weights[q->at + j] * keep_at(a, q, j);
}

MFL_KERNEL(attention_weights, struct mfl_cuda_attention)
{
        if (mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct query q = query_of(&a);
        int lane = (int)threadIdx.x % WARP;
        if (q.n <= 0)
                return;
        /* Lanes touch only their own scores: lane 0 overwrites p[0] after shuffles, which order no memory. */
        float *p = a.weights + q.at, max = -INFINITY, sum = 0.0f;
        for (int j = lane; a.mask && j < q.seen; j += WARP)
                p[j] += mfl_load(a.mask, q.mask + j, a.mask_type);
        for (int j = lane; j < q.seen; j += WARP)
                max = p[j] > max ? p[j] : max;
        for (int s = WARP / 2; s > 0; s /= 2) {
                float other = mfl_shfl_xor(max, s);
                max = other > max ? other : max;
        }
        for (int j = lane; j < q.seen; j += WARP) {
                p[j] = expf(p[j] - max);
                sum += p[j];
        }
        float inverse = 1.0f / warp_sum(sum);
        for (int j = lane; j < a.positions; j += WARP)
                p[j] = j < q.seen ? p[j] * inverse : 0.0f;
        if (q.drops) /* every lane its own weights */
                drop(&a, &q, lane);
}

MFL_KERNEL(attention_drop, struct mfl_cuda_attention)
{
        if (mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct query q = query_of(&a);
        if (q.n > 0 && q.drops)
                drop(&a, &q, (int)threadIdx.x % WARP);
}

MFL_KERNEL(attention_scores, struct mfl_cuda_attention)
{
        if (mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct query q = query_of(&a);
        int lane = (int)threadIdx.x % WARP;
        if (q.n <= 0)
                return;
        const float *p = a.weights + q.at;
        float *ds = a.scores + q.at, sum = 0.0f;
        for (int j = lane; j < a.positions; j += WARP) {
                ds[j] *= keep_at(&a, &q, j);
                sum += p[j] * ds[j];
        }
        sum = warp_sum(sum);
        for (int j = lane; j < a.positions; j += WARP)
                ds[j] = p[j] * (ds[j] - sum);
}

static cudaError_t launch_queries(const void *kernel, const struct mfl_cuda_attention *a, cudaStream_t stream)
{
        int64_t blocks = mfl_blocks((int64_t)a->batch * a->heads * a->positions, QUERIES);
        if (a->groups < 1 || a->groups > 65535 || blocks < 1 || blocks >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        return mfl_launch(kernel, (uint32_t)blocks, (uint32_t)a->groups, 1, MFL_OPS_THREADS, 0, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_attention_weights(const struct mfl_cuda_attention *a, cudaStream_t stream)
{
        return launch_queries((const void *)(attention_weights), a, stream);
}

MFL_HOST cudaError_t mfl_cuda_attention_drop(const struct mfl_cuda_attention *a, cudaStream_t stream)
{
        return a->training && a->rate > 0.0f ? launch_queries((const void *)(attention_drop), a, stream)
                                             : cudaSuccess;
}

MFL_HOST cudaError_t mfl_cuda_attention_scores(const struct mfl_cuda_attention *a, cudaStream_t stream)
{
        return launch_queries((const void *)(attention_scores), a, stream);
}
