/* SPDX-License-Identifier: Apache-2.0 */
/* A slot whose client is trained by a team: threads of this process, one network for each, params of the first. Each rank
 * has a thread of its own beside the slot's, which waits. */
#include "client/train/trainer_internal.h"

#include "kernels/mesh/mesh.h"
#include "kernels/team/team.h"

#define DEADLINE_MS UINT32_MAX /* ranks are threads: they are late only when the machine is */

struct trainer_rank {
        struct mfl_mesh *mesh;
        struct mfl_net *net; /* rank 0: the slot's */
        struct mfl_team *team;
        struct mfl_group_steps steps;
        struct mfl_error err;
        int code;
};

struct trainer_team {
        uint32_t n;
        bool broken;
        struct trainer_pool pool;
        struct trainer_rank *ranks;
};

/* One call, for the ranks' threads. */
struct order {
        struct trainer_run *run;
        struct trainer_slot *slot;
        uint32_t n_steps;
        const struct mfl_optimizer *opt;
};

uint32_t mfl_trainer_team_width(
        const struct mfl_trainer *trainer, const struct trainer_job *job, uint32_t clients)
{
        const struct mfl_job *spec = job->spec;
        uint32_t most = spec->parallel.members ? spec->parallel.members : MFL_MEMBERS_MAX;
        uint32_t side_by_side = MFL_MAX(1u, MFL_MIN(clients, job->n_slots));
        return spec->parallel.grain ? MFL_MAX(1u, MFL_MIN(job->n_slots / side_by_side, most)) : 0;
}

uint32_t mfl_trainer_team_size(const struct trainer_team *team)
{
        return !team ? 1 : team->broken ? 0 : team->n;
}

uint64_t mfl_trainer_team_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n)
{
        struct mfl_net_options sibling = *options;
        struct mfl_team_options team = {.grain = (uint32_t)options->batch,
                .step_rows = trainer_step_rows(job->spec),
                .overlap = job->spec->parallel.overlap,
                .bucket_bytes = job->spec->parallel.bucket};
        sibling.sibling = (struct mfl_net *)job->slots; /* only whether there is one counts */
        return (n - 1) * trainer->ops->net_bytes(job->graph, &sibling) +
               n * mfl_team_bytes(trainer->ops, job->graph, options, &team);
}

static int fill_team(struct mfl_trainer *trainer, const struct trainer_job *job, struct mfl_net *first,
        const struct mfl_net_options *options, struct trainer_team *team, struct mfl_error *err)
{
        struct mfl_mesh *meshes[MFL_MESH_RANKS_MAX];
        struct mfl_team_options how = {.grain = (uint32_t)options->batch,
                .step_rows = trainer_step_rows(job->spec),
                .shared = true,
                .overlap = job->spec->parallel.overlap,
                .bucket_bytes = job->spec->parallel.bucket,
                .deadline_ms = DEADLINE_MS};
        int r = mfl_mesh_threads_new(team->n, meshes, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < team->n; i++)
                team->ranks[i].mesh = meshes[i];
        for (uint32_t i = 0; !r && i < team->n; i++) {
                struct mfl_net_options own = *options;
                own.sibling = i ? first : NULL;
                team->ranks[i].net = first;
                r = i ? trainer->ops->net_new(trainer->device, job->graph, &own, &team->ranks[i].net, err)
                      : 0;
                if (r)
                        team->ranks[i].net = NULL;
                if (!r)
                        r = mfl_team_new(trainer->ops, team->ranks[i].net, &options->loss,
                                team->ranks[i].mesh, &how, &team->ranks[i].team, err);
        }
        return r ? r : mfl_trainer_pool_init(&team->pool, team->n, err);
}

int mfl_trainer_team_new(struct mfl_trainer *trainer, const struct trainer_job *job, struct mfl_net *first,
        const struct mfl_net_options *options, uint32_t n, struct trainer_team **ret_team,
        struct mfl_error *err)
{
        struct trainer_team *team = mfl_calloc(1, sizeof(*team));
        struct trainer_rank *ranks = mfl_calloc(n, sizeof(*ranks));
        if (!team || !ranks) {
                free(team);
                free(ranks);
                return mfl_fail_memory(err, n * sizeof(*ranks), "a team");
        }
        *team = (struct trainer_team){.n = n, .ranks = ranks};
        int r = fill_team(trainer, job, first, options, team, err);
        if (r) {
                mfl_trainer_team_free(trainer, team);
                return r;
        }
        *ret_team = team;
        return 0;
}

void mfl_trainer_team_free(struct mfl_trainer *trainer, struct trainer_team *team)
{
        if (!team)
                return;
        mfl_trainer_pool_deinit(&team->pool);
        for (uint32_t i = team->n; i-- > 0;) {
                mfl_team_free(team->ranks[i].team);
                if (i && team->ranks[i].net)
                        trainer->ops->net_free(team->ranks[i].net);
                mfl_mesh_close(team->ranks[i].mesh);
        }
        free(team->ranks);
        free(team);
}

void mfl_trainer_team_begin(struct trainer_team *team)
{
        for (uint32_t i = 0; i < team->n; i++)
                mfl_team_begin(team->ranks[i].team);
}

static void step_rank(void *arg, uint32_t i)
{
        const struct order *order = arg;
        struct trainer_rank *rank = &order->slot->team->ranks[i];
        const struct trainer_data *data = order->run->job->data;
        rank->steps = order->slot->groups[0];
        rank->code = mfl_team_step(rank->team, data->dataset, &data->dataset->train, data->train,
                &rank->steps, order->n_steps, order->opt, NULL, &rank->err);
        if (rank->code)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
}

int mfl_trainer_team_step(struct trainer_run *run, struct trainer_slot *slot, uint32_t n_steps,
        const struct mfl_optimizer *opt, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        struct order order = {run, slot, n_steps, opt};
        mfl_trainer_pool_run(&team->pool, team->n, step_rank, &order);
        for (uint32_t i = 0; i < team->n; i++)
                team->broken = team->broken || team->ranks[i].code;
        for (uint32_t i = 0; i < team->n; i++) {
                struct trainer_rank *rank = &team->ranks[i];
                /* The others' errors only say that this one failed. */
                if (rank->code && rank->code != MFL_MESH_BROKEN)
                        return mfl_fail(err, rank->code, "%s", rank->err.text);
        }
        if (team->ranks[0].code)
                return mfl_fail(err, -EIO, "%s", team->ranks[0].err.text);
        slot->groups[0] = team->ranks[0].steps;
        return 0;
}
