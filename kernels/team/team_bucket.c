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

static void add(const struct mfl_grad_layout *layout, uint64_t first, uint64_t end, int deferred,
        uint32_t n_ranks, struct team_buckets *buckets)
{
        struct team_bucket *bucket = &buckets->bucket[buckets->n++];
        *bucket = (struct team_bucket){.first = first, .n = end - first, .deferred = deferred};
        for (uint32_t r = 0; r <= n_ranks; r++)
                bucket->edge[r] = mfl_team_bucket_edge(bucket, n_ranks, r);
        for (int t = 0; t < layout->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &layout->tensors[t];
                bucket->n_tensors += tensor->at < end && tensor->at + tensor->count > first;
        }
}

/* The whole blocks of a tensor that are deferred. */
static bool find_deferred(const struct mfl_grad_tensor *tensor, const struct mfl_team_options *options,
        uint64_t *ret_first, uint64_t *ret_end)
{
        uint64_t first = block_up(tensor->at),
                 end = (tensor->at + tensor->count) / MFL_GRAD_BLOCK * MFL_GRAD_BLOCK;
        *ret_first = first;
        *ret_end = end;
        return end > first && mfl_team_defers(options, mfl_team_grains(options, options->step_rows),
                                      end - first, tensor->operands);
}

int mfl_team_buckets_new(const struct mfl_grad_layout *layout, const struct mfl_team_options *options,
        uint32_t n_ranks, struct team_buckets *ret_buckets, struct mfl_error *err)
{
        size_t most = 2 * (size_t)layout->n_tensors + 1;
        uint64_t bytes = options->bucket_bytes ? options->bucket_bytes : MFL_TEAM_BUCKET,
                 size = bytes / sizeof(int64_t), end = layout->n, first, last;
        struct team_buckets buckets = {.bucket = mfl_calloc(most, sizeof *buckets.bucket)};
        if (!buckets.bucket)
                return mfl_fail_memory(err, most * sizeof *buckets.bucket, "a team's buckets");
        for (int t = layout->n_tensors; end && t-- > 0;) {
                if (find_deferred(&layout->tensors[t], options, &first, &last)) {
                        if (last < end)
                                add(layout, last, end, -1, n_ranks, &buckets);
                        add(layout, first, last, t, n_ranks, &buckets);
                        end = first;
                        continue;
                }
                first = t ? block_up(layout->tensors[t].at) : 0;
                if (first >= end || (t && end - first < (buckets.n ? size : size / 4)))
                        continue;
                add(layout, first, end, -1, n_ranks, &buckets);
                end = first;
        }
        if (end) /* what lies before a deferred tensor, or no tensors at all */
                add(layout, 0, end, -1, n_ranks, &buckets);
        *ret_buckets = buckets;
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
