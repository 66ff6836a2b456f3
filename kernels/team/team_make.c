/* SPDX-License-Identifier: Apache-2.0 */
/* How a team comes and goes, and where its vectors lie: in the host's memory, or with `resident` on the device. */
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

uint64_t mfl_team_blocks(uint64_t n)
{
        return (n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK;
}

uint32_t mfl_team_owners(const struct mfl_team *team)
{
        return team->zero ? team->mesh->n_ranks : 1;
}

/* ---- vectors ---- */

static int allocate_vector(const struct mfl_team *team, uint64_t bytes, const char *what, void **ret_memory,
        struct mfl_error *err)
{
        if (team->device)
                return team->device->alloc(team->net, bytes, ret_memory, err);
        *ret_memory = mfl_alloc_aligned((size_t)bytes + 1);
        return *ret_memory ? 0 : mfl_fail_memory(err, bytes, what);
}

static void release(const struct mfl_team *team, void *memory)
{
        if (team->device)
                team->device->free(team->net, memory);
        else
                free(memory);
}

int mfl_team_clear(const struct mfl_team *team, void *memory, uint64_t bytes, struct mfl_error *err)
{
        if (team->device)
                return team->device->clear(team->net, memory, bytes, err);
        memset(memory, 0, (size_t)bytes);
        return 0;
}

int mfl_team_copy(const struct mfl_team *team, enum mfl_grad_copy way, float *to, const float *from,
        uint64_t n, struct mfl_error *err)
{
        if (team->device)
                return team->device->copy(team->net, way, to, from, n * sizeof(float), err);
        memcpy(to, from, (size_t)n * sizeof(float));
        return 0;
}

int mfl_team_settle(const struct mfl_team *team, struct mfl_error *err)
{
        return team->device ? team->device->settle(team->net, err) : 0;
}

/* ---- its life ---- */

/* Elements are 0 in the places between tensors, for ever. */
static int allocate_floats(
        struct mfl_team *team, uint64_t n, bool wanted, float **ret_floats, struct mfl_error *err)
{
        void *memory = NULL;
        if (!wanted)
                return 0;
        int rc = allocate_vector(team, n * sizeof(float), "a team's optimizer", &memory, err);
        *ret_floats = memory;
        return rc;
}

static int allocate(struct mfl_team *team, struct mfl_error *err)
{
        enum mfl_moments moments = team->options.moments;
        size_t bytes = (size_t)(mfl_team_sums(team) * team->size),
               tensors = (size_t)team->layout.n_tensors + 1;
        void *sum = NULL;
        int rc = allocate_vector(team, bytes, "a team's gradient", &sum, err);
        team->sum = sum;
        if (!rc)
                rc = mfl_team_clear(team, sum, bytes, err);
        if (rc)
                return rc;
        team->exponent = mfl_calloc(tensors, sizeof *team->exponent);
        team->bits = mfl_calloc(tensors, sizeof *team->bits);
        team->largest = mfl_calloc(tensors, sizeof *team->largest);
        team->statistics =
                mfl_calloc((size_t)team->n_grains * team->layout.n_statistics + 1, sizeof *team->statistics);
        team->squares = mfl_calloc((size_t)team->n_blocks + 1, sizeof *team->squares);
        if (!team->exponent || !team->bits || !team->largest || !team->statistics || !team->squares)
                return mfl_fail_memory(err, bytes, "a team's gradient");
        rc = allocate_floats(team, team->layout.n, team->late && team->zero < 2, &team->grads, err);
        if (team->grads)
                memset(team->grads, 0, (size_t)team->layout.n * sizeof(float));
        if (!rc)
                rc = allocate_floats(team, team->n_own,
                        moments == MFL_MOMENTS_ANY || moments == MFL_MOMENTS_FIRST, &team->momentum, err);
        if (!rc)
                rc = allocate_floats(team, team->n_own,
                        moments == MFL_MOMENTS_ANY || moments == MFL_MOMENTS_SECOND, &team->second, err);
        if (!rc)
                rc = allocate_floats(team, mfl_team_largest_bucket(&team->buckets), team->options.follows,
                        &team->aside, err);
        return rc ? rc : allocate_floats(team, team->n_own, team->options.start, &team->start, err);
}

/* Which elements are the rank's. */
static int share_out(struct mfl_team *team, struct mfl_error *err)
{
        uint64_t first, *squares = team->edge[EDGES_SQUARES];
        team->own = mfl_calloc((size_t)team->buckets.n + 1, sizeof *team->own);
        if (!team->own)
                return mfl_fail_memory(err, team->buckets.n * sizeof *team->own, "a team's buckets");
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                uint64_t n = mfl_team_own(team, k, mfl_team_owner(team), &first);
                team->own[k] = team->n_own;
                team->n_own += n;
        }
        for (uint32_t r = 0; r < mfl_team_owners(team); r++) {
                squares[r + 1] = squares[r];
                for (uint32_t k = 0; k < team->buckets.n; k++)
                        squares[r + 1] += mfl_team_blocks(mfl_team_own(team, k, r, &first));
        }
        return 0;
}

static int start(struct mfl_team *team, struct mfl_error *err)
{
        int rc =
                mfl_team_buckets_new(&team->layout, &team->options, team->mesh->n_ranks, &team->buckets, err);
        if (!rc)
                rc = mfl_team_products_new(team, err);
        if (!rc)
                rc = share_out(team, err);
        if (!rc)
                rc = allocate(team, err);
        if (!rc)
                rc = mfl_team_snapshots_new(team, err);
        const struct team_traffic_options traffic = {.mesh = team->bulk,
                .buckets = &team->buckets,
                .layout = &team->layout,
                .type = team->options.floats || team->late ? MFL_MESH_F32 : MFL_MESH_I64,
                .sum = team->sum,
                .own = team->late ? team->own : NULL,
                .grads = team->grads,
                .ops = team->ops,
                .net = team->net,
                .rounding = {team->bits, team->largest},
                .all = !team->zero,
                .behind = team->behind};
        return rc ? rc : mfl_team_traffic_new(&traffic, &team->traffic, err);
}

int mfl_team_new(const struct mfl_backend_ops *ops, struct mfl_net *net, const struct mfl_loss *loss,
        struct mfl_mesh *mesh, const struct mfl_team_options *options, struct mfl_team **ret_team,
        struct mfl_error *err)
{
        if (!ops->grad)
                return mfl_fail(err, MFL_INVALID,
                        "the %s backend trains a client on one worker: leave out `parallel`, or use the cpu "
                        "backend",
                        ops->name);
        mfl_assert(options->grain && options->step_rows && mesh->n_ranks <= MFL_MESH_RANKS_MAX &&
                   options->zero <= (options->floats ? 1 : MFL_TEAM_ZERO_MAX) &&
                   !(options->together && options->floats) && !(options->snapshot && options->floats));
        mfl_assert(!options->resident ||
                   (ops->grad->device && options->zero < 2 && !options->floats && !options->snapshot &&
                           !options->shared && !options->together && (options->bulk || mesh->n_ranks == 1)));
        struct mfl_team *team = mfl_calloc(1, sizeof *team);
        if (!team)
                return mfl_fail_memory(err, sizeof *team, "a team");
        *team = (struct mfl_team){.ops = ops->grad,
                .device = options->resident ? ops->grad->device : NULL,
                .net = net,
                .mesh = mesh,
                .bulk = options->bulk ? options->bulk : mesh,
                .behind = options->overlap && mesh->n_ranks > 1 && !options->resident,
                .options = *options,
                .loss = *loss};
        if (options->bulk)
                options->bulk->beside = mesh;
        team->ops->layout(net, &team->layout);
        mfl_assert(!(team->layout.scaled && options->floats));
        team->n_grains = mfl_team_grains(options, options->step_rows);
        team->n_blocks = mfl_team_blocks(team->layout.n);
        team->zero = mfl_team_stage(options, mesh->n_ranks);
        team->late = !options->floats && !options->resident &&
                     mfl_parallel_rounds_late(team->n_grains, mesh->n_ranks, team->zero);
        team->size = options->floats ? sizeof(float) : sizeof(int64_t);
        int rc = start(team, err);
        if (rc) {
                mfl_team_free(team);
                return rc;
        }
        mfl_team_begin(team);
        *ret_team = team;
        return 0;
}

void mfl_team_free(struct mfl_team *team)
{
        if (!team)
                return;
        mfl_team_traffic_free(team->traffic);
        mfl_team_snapshots_free(team->snapshots);
        mfl_team_products_free(team->products);
        mfl_team_buckets_deinit(&team->buckets);
        free(team->own);
        release(team, team->sum);
        release(team, team->grads);
        release(team, team->momentum);
        release(team, team->second);
        release(team, team->start);
        release(team, team->aside);
        free(team->exponent);
        free(team->bits);
        free(team->largest);
        free(team->statistics);
        free(team->squares);
        free(team);
}
