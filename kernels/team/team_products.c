/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

/* Fewer elements are not worth an operation more. */
#define LEAST ((uint64_t)1 << 18)

struct team_products {
        struct mfl_grad_deferred *deferred; /* of each tensor, in the grain that was asked for last */
        uint64_t *at;                       /* of each tensor: where its operands lie among a grain's */
        uint64_t each;                      /* floats of a grain */
        float *operands;                    /* n_grains * each */
        uint64_t edge[MFL_MESH_RANKS_MAX + 1];
};

bool mfl_team_defers(
        const struct mfl_team_options *options, uint32_t n_grains, uint64_t elements, uint64_t operands)
{
        if (!operands || !elements || options->floats || options->resident ||
                options->products == MFL_TEAM_PRODUCTS_NONE)
                return false;
        return options->products == MFL_TEAM_PRODUCTS_ALL ||
               (elements >= LEAST && 2 * operands * n_grains * options->grain <= elements);
}

static int find_operands(struct mfl_team *team, struct team_products *products, struct mfl_error *err)
{
        size_t n = (size_t)team->layout.n_tensors + 1;
        products->deferred = mfl_calloc(n, sizeof *products->deferred);
        products->at = mfl_calloc(n, sizeof *products->at);
        if (!products->deferred || !products->at)
                return mfl_fail_memory(err, n * sizeof *products->deferred, "a team's products");
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                int t = bucket->deferred;
                if (t < 0)
                        continue;
                products->deferred[t] =
                        (struct mfl_grad_deferred){.first = bucket->first, .end = bucket->first + bucket->n};
                products->at[t] = products->each;
                products->each += team->layout.tensors[t].operands * team->options.grain;
        }
        return 0;
}

int mfl_team_products_new(struct mfl_team *team, struct mfl_error *err)
{
        struct team_products *products = mfl_calloc(1, sizeof *products);
        if (!products)
                return mfl_fail_memory(err, sizeof *products, "a team's products");
        int rc = find_operands(team, products, err);
        size_t bytes = (size_t)(products->each * team->n_grains) * sizeof *products->operands;
        if (!rc && bytes) {
                products->operands = mfl_alloc_aligned(bytes);
                rc = products->operands ? 0 : mfl_fail_memory(err, bytes, "a team's operands");
        }
        if (rc || !bytes) {
                mfl_team_products_free(products);
                return rc;
        }
        team->products = products;
        return 0;
}

void mfl_team_products_free(struct team_products *products)
{
        if (!products)
                return;
        free(products->deferred);
        free(products->at);
        free(products->operands);
        free(products);
}

const struct mfl_grad_deferred *mfl_team_defer(const struct mfl_team *team, uint32_t k)
{
        struct team_products *products = team->products;
        for (int t = 0; products && t < team->layout.n_tensors; t++)
                if (products->deferred[t].end)
                        products->deferred[t].operands =
                                products->operands + k * products->each + products->at[t];
        return products ? products->deferred : NULL;
}

struct mfl_mesh_op mfl_team_products_op(struct mfl_team *team, uint32_t n_grains)
{
        struct team_products *products = team->products;
        uint32_t ranks = team->mesh->n_ranks;
        for (uint32_t r = 0; r <= ranks; r++)
                products->edge[r] = mfl_mesh_slice(n_grains, 1, ranks, r) * products->each;
        return (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                .type = MFL_MESH_F32,
                .in = products->operands + products->edge[team->mesh->rank],
                .out = products->operands,
                .n = n_grains * products->each,
                .edge = products->edge};
}

float *mfl_team_totals(const struct mfl_team *team, uint32_t k)
{
        uint64_t at = team->late ? team->own[k] : team->buckets.bucket[k].first;
        if (!team->late && team->zero)
                at += team->buckets.bucket[k].edge[team->mesh->rank];
        return (float *)(void *)(team->sum + at * team->size);
}

void mfl_team_products_take(const struct mfl_team *team, uint32_t n_grains)
{
        const struct team_products *products = team->products;
        uint32_t rank = team->mesh->rank;
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                if (bucket->deferred < 0)
                        continue;
                const struct mfl_grad_products how = {.tensor = bucket->deferred,
                        .first = bucket->first + bucket->edge[rank],
                        .n = bucket->edge[rank + 1] - bucket->edge[rank],
                        .operands = products->operands + products->at[bucket->deferred],
                        .stride = products->each,
                        .n_grains = n_grains,
                        .rounding = {team->bits, team->largest},
                        .total = mfl_team_totals(team, k) + (team->zero ? 0 : bucket->edge[rank])};
                team->ops->products(team->net, &how);
        }
}
