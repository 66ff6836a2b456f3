/* SPDX-License-Identifier: Apache-2.0 */
/* A slot's team: its networks, its threads, its steps. Each rank has a thread of its own beside the slot's, which waits. */
#include "client/train/trainer_team.h"

#include "client/train/trainer_poison.h"

#define LEARN_TASKS 16u
#define DEADLINE_MS UINT32_MAX /* ranks are threads: they are late only when the machine is */

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
        if (job->apart)
                return job->apart;
        uint32_t most = spec->parallel.members ? spec->parallel.members : MFL_MEMBERS_MAX;
        uint32_t side_by_side = MFL_MAX(1u, MFL_MIN(clients, job->n_slots));
        uint32_t width = MFL_MAX(1u, MFL_MIN(job->n_slots / side_by_side, most));
        if (!spec->parallel.grain)
                return 0;
        return job->took.ranks ? mfl_parallel_width(&job->took, width) : width;
}

void mfl_trainer_team_learn(struct trainer_job *job)
{
        const struct trainer_team *team = job->slots[0].team;
        if (job->took.ranks && ++job->took_tasks == LEARN_TASKS) {
                job->took.ranks = 0; /* the next team is as wide as can be, and is measured again */
                return;
        }
        if (job->spec->parallel.members || !team || team->apart || team->broken || team->n < 2 ||
                team->n < job->took.ranks)
                return;
        const struct mfl_team_times *times = mfl_team_times(team->ranks[0].team);
        if (!times->compute)
                return;
        job->took = (struct mfl_parallel_took){.ranks = team->n,
                .grains = mfl_job_grains(job->spec),
                .compute = times->compute,
                .exchange = times->exchange,
                .apply = times->apply};
        job->took_tasks = 0;
}

uint32_t mfl_trainer_team_size(const struct trainer_team *team)
{
        return team ? team->n : 1;
}

bool mfl_trainer_team_fits(const struct trainer_team *team, const struct trainer_job *job, uint32_t width)
{
        return !team || (!team->broken && team->n == width && team->apart_ranks == job->apart_ranks &&
                                team->apart_widest == job->apart_widest &&
                                team->bytes >= mfl_trainer_update_bytes(job));
}

static int make_nets(struct mfl_trainer *trainer, const struct trainer_job *job, struct mfl_net *first,
        const struct mfl_net_options *options, struct trainer_team *team, struct mfl_error *err)
{
        struct mfl_net_options own = *options;
        own.sibling = team->apart ? NULL : first;
        team->ranks[0].net = first;
        for (uint32_t i = 1; i < team->n; i++) {
                int r = trainer->ops->net_new(trainer->device, job->graph, &own, &team->ranks[i].net, err);
                if (r) {
                        team->ranks[i].net = NULL;
                        return r;
                }
        }
        return 0;
}

/* Threads of one process meet once. */
static int join_threads(struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, struct trainer_team *team, struct mfl_error *err)
{
        struct mfl_mesh *meshes[MFL_MESH_RANKS_MAX];
        struct mfl_team_options how = mfl_trainer_team_options(job, options, team->zero);
        how.deadline_ms = DEADLINE_MS;
        int r = mfl_mesh_threads_new(team->n, meshes, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < team->n; i++)
                team->ranks[i].mesh = meshes[i];
        if (team->n == 1)
                mfl_trainer_device_alone(trainer, job, options, &how, &team->ranks[0]);
        for (uint32_t i = team->ranks[0].team != NULL; !r && i < team->n; i++)
                r = mfl_team_new(trainer->ops, team->ranks[i].net, &options->loss, team->ranks[i].mesh, &how,
                        &team->ranks[i].team, err);
        return r;
}

int mfl_trainer_team_new(struct mfl_trainer *trainer, const struct trainer_job *job, struct mfl_net *first,
        const struct mfl_net_options *options, uint32_t n, uint32_t zero, uint64_t bytes,
        struct trainer_team **ret_team, struct mfl_error *err)
{
        struct trainer_team *team = mfl_calloc(1, sizeof(*team));
        struct trainer_rank *ranks = mfl_calloc(n, sizeof(*ranks));
        if (!team || !ranks) {
                free(team);
                free(ranks);
                return mfl_fail_memory(err, n * sizeof(*ranks), "a team");
        }
        *team = (struct trainer_team){.n = n,
                .apart = job->apart > 0,
                .apart_ranks = job->apart_ranks,
                .apart_widest = job->apart_widest,
                .zero = zero,
                .bytes = bytes,
                .options = *options,
                .ranks = ranks};
        int r = make_nets(trainer, job, first, options, team, err);
        if (!r && !team->apart)
                r = join_threads(trainer, job, options, team, err);
        if (!r)
                r = mfl_trainer_pool_init(&team->pool, n, err);
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
                if (!team->apart && team->ranks[i].net)
                        mfl_trainer_device_leave(trainer, &team->ranks[i], false);
                if (i && team->ranks[i].net)
                        trainer->ops->net_free(team->ranks[i].net);
                mfl_mesh_close(team->ranks[i].mesh);
        }
        free(team->ranks);
        free(team);
}

int mfl_trainer_team_begin(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t item, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        enum trainer_word word = WORD_ITEM;
        if (team->apart)
                return run->request->task->team.member ? 0
                                                       : mfl_trainer_meet_word(run, slot, &word, &item, err);
        for (uint32_t i = 0; i < team->n; i++)
                mfl_team_begin(team->ranks[i].team);
        return 0;
}

static void step_rank(void *arg, uint32_t i)
{
        const struct order *order = arg;
        struct trainer_rank *rank = &order->slot->team->ranks[i];
        const struct trainer_data *data = order->run->job->data;
        const atomic_bool *cancel = order->slot->team->apart ? &order->run->request->control->cancel : NULL;
        rank->steps = order->slot->groups[0];
        mfl_team_set_note(rank->team, order->run->items[order->slot->lanes[0].item].square_sum);
        rank->code = mfl_team_step(rank->team, data->dataset, mfl_trainer_train_split(order->run),
                mfl_trainer_train_data(order->run), &rank->steps, order->n_steps, order->opt, cancel,
                &rank->err);
        if (rank->code)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
}

int mfl_trainer_team_step(struct trainer_run *run, struct trainer_slot *slot, uint32_t n_steps,
        const struct mfl_optimizer *opt, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        struct order order = {run, slot, n_steps, opt};
        enum trainer_word word = WORD_STEPS;
        if (team->apart && !run->request->task->team.member) {
                int r = mfl_trainer_meet_word(run, slot, &word, &n_steps, err);
                if (r)
                        return r;
        }
        uint64_t start_ns = mfl_now_ns();
        mfl_trainer_pool_run(&team->pool, team->n, step_rank, &order);
        team->slowest_ns = MFL_MAX(team->slowest_ns, (mfl_now_ns() - start_ns) / n_steps);
        int r = mfl_trainer_team_result(run, team, err);
        team->broken = r && !team->apart;
        if (!r)
                slot->groups[0] = team->ranks[0].steps;
        return r;
}
