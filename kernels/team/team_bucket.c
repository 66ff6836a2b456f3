/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

/* The block's end at or after an element: what lies before it in a block waits for the tensor before. */
static uint64_t block_up(uint64_t at)
{
        return (at + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK * MFL_GRAD_BLOCK;
}

uint64_t mfl_team_bucket_edge(const struct team_bucket *bucket, uint32_t n_ranks, uint32_t rank)
{
        uint64_t n_blocks = (bucket->n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK;
        return MFL_MIN(mfl_mesh_slice(n_blocks, 1, n_ranks, rank) * MFL_GRAD_BLOCK, bucket->n);
}

static void fill(const struct mfl_grad_layout *layout, uint64_t first, uint64_t end, uint32_t n_ranks,
        struct team_bucket *bucket)
{
        *bucket = (struct team_bucket){.first = first, .n = end - first};
        for (uint32_t r = 0; r <= n_ranks; r++)
                bucket->edge[r] = mfl_team_bucket_edge(bucket, n_ranks, r);
        for (int t = 0; t < layout->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &layout->tensors[t];
                bucket->n_tensors += tensor->at < end && tensor->at + tensor->count > first;
        }
}

int mfl_team_buckets_new(const struct mfl_grad_layout *layout, uint64_t bytes, uint32_t n_ranks,
        struct team_buckets *ret_buckets, struct mfl_error *err)
{
        size_t most = (size_t)layout->n_tensors + 1;
        uint64_t size = (bytes ? bytes : MFL_TEAM_BUCKET) / sizeof(int64_t), end = layout->n;
        *ret_buckets = (struct team_buckets){.bucket = mfl_calloc(most, sizeof *ret_buckets->bucket)};
        if (!ret_buckets->bucket)
                return mfl_fail_memory(err, most * sizeof *ret_buckets->bucket, "a team's buckets");
        for (int t = layout->n_tensors; end && t-- > 0;) {
                uint64_t first = t ? block_up(layout->tensors[t].at) : 0;
                uint64_t least = ret_buckets->n ? size : size / 4;
                if (first >= end || (t && end - first < least))
                        continue;
                fill(layout, first, end, n_ranks, &ret_buckets->bucket[ret_buckets->n++]);
                end = first;
        }
        if (end) /* no tensors at all */
                fill(layout, 0, end, n_ranks, &ret_buckets->bucket[ret_buckets->n++]);
        return 0;
}

void mfl_team_buckets_deinit(struct team_buckets *buckets)
{
        free(buckets->bucket);
        *buckets = (struct team_buckets){0};
}

uint64_t mfl_team_largest_bucket(const struct team_buckets *buckets)
{
        uint64_t most = 1;
        for (uint32_t k = 0; k < buckets->n; k++)
                most = MFL_MAX(most, buckets->bucket[k].n);
        return most;
}

/* A rank's elements of a bucket: in stage 0 each has all. */
uint64_t mfl_team_own(const struct mfl_team *team, uint32_t k, uint32_t rank, uint64_t *ret_first)
{
        const struct team_bucket *bucket = &team->buckets.bucket[k];
        uint64_t from = team->zero ? bucket->edge[rank] : 0,
                 to = team->zero ? bucket->edge[rank + 1] : bucket->n;
        *ret_first = bucket->first + from;
        return to - from;
}

uint32_t mfl_team_owner(const struct mfl_team *team)
{
        return team->zero ? team->mesh->rank : 0;
}

bool mfl_team_fills(const struct mfl_team *team)
{
        return !team->options.follows && (!team->options.shared || team->mesh->rank == 0);
}
