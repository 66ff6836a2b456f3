/* SPDX-License-Identifier: Apache-2.0 */
/* Teams of several daemons: their ranks meet, and hear what the leader says. */
#include "client/train/trainer_team.h"

#include "kernels/check.h"
#include "kernels/mesh/mesh_shm.h"

/* Members fetch params first. The server takes the task back long before, if one of them fails or is lost. */
#define MEET_MS 600000u
/* Until a step's time is known: the first ones also make what the backend keeps. */
#define FIRST_MS 120000u
#define LATE_MS_MIN 10000u
#define LATE_STEPS 8u
#define STEP_FILLED (UINT32_MAX - 3) /* of an operation that belongs to no step */

struct order {
        struct trainer_run *run;
        struct trainer_slot *slot;
};

static const struct mfl_task_team *team_of(const struct trainer_run *run)
{
        return &run->request->task->team;
}

/* Ranks of the members before this one; or of all. */
static uint32_t ranks_before(const struct mfl_task_team *team, uint32_t member)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < member; i++)
                n += team->widths[i];
        return n;
}

static uint32_t member_of(const struct mfl_task_team *team, uint32_t rank)
{
        uint32_t member = 0;
        while (member + 1 < team->n_members && rank >= ranks_before(team, member + 1))
                member++;
        return member;
}

int mfl_trainer_team_result(struct trainer_run *run, struct trainer_team *team, struct mfl_error *err)
{
        const struct trainer_rank *broken = NULL;
        for (uint32_t i = 0; i < team->n; i++) {
                const struct trainer_rank *rank = &team->ranks[i];
                if (rank->code && rank->code != MFL_MESH_BROKEN)
                        return mfl_fail(err, rank->code, "%s", rank->err.text);
                broken = rank->code && !broken ? rank : broken;
        }
        if (!broken)
                return 0;
        struct mfl_train_control *control = run->request->control;
        if (atomic_load(&control->cancel))
                return mfl_fail(err, MFL_CANCELLED, "cancelled");
        if (!team->apart)
                return mfl_fail(err, -EIO, "%s", broken->err.text);
        uint32_t accused = broken->mesh ? broken->mesh->accused : broken->accused;
        atomic_store(&control->loss, broken->mesh ? broken->mesh->loss : broken->loss);
        atomic_store(&control->accused, accused ? 1 + member_of(team_of(run), accused - 1) : 0);
        return mfl_fail(err, MFL_TEAM_BROKEN, "%s", broken->err.text);
}

/* In shared memory where all are of one node, else over the network. */
static int open_mesh(struct trainer_run *run, uint32_t i, struct trainer_rank *rank, struct mfl_error *err)
{
        const struct mfl_task_team *team = team_of(run);
        const struct mfl_share *share = run->trainer->share;
        const char *address[MFL_MESH_RANKS_MAX];
        uint32_t first = ranks_before(team, team->member), n_ranks = ranks_before(team, team->n_members);
        if (!team->peers) {
                const struct mfl_mesh_shm_options meeting = {.dir = share ? mfl_share_dir(share) : NULL,
                        .team = team->team,
                        .rank = first + i,
                        .n_ranks = n_ranks,
                        .deadline_ms = MEET_MS,
                        .cancel = &run->request->control->regroup,
                        .accused = &rank->accused,
                        .loss = &rank->loss};
                return mfl_mesh_shm_open(&meeting, &rank->mesh, err);
        }
        if (!run->trainer->peers)
                return mfl_fail(err, MFL_TEAM_BROKEN, "this daemon has no peer_listen");
        struct mfl_mesh_tcp_options meeting = {.port = run->trainer->peers,
                .team = team->team,
                .rank = first + i,
                .n_ranks = n_ranks,
                .local_first = first,
                .n_local = team->widths[team->member],
                .address = address,
                .deadline_ms = MEET_MS,
                .cancel = &run->request->control->regroup,
                .accused = &rank->accused,
                .loss = &rank->loss};
        for (uint32_t r = 0; r < n_ranks; r++)
                address[r] = team->peers[member_of(team, r)];
        memcpy(meeting.key, team->key, sizeof(meeting.key));
        return mfl_mesh_tcp_open(&meeting, &rank->mesh, err);
}

/* All ranks work in one stage: the largest that any of them needs. */
static int agree(struct trainer_run *run, struct trainer_rank *rank, uint32_t *zero, struct mfl_error *err)
{
        int64_t stage = *zero;
        const struct mfl_mesh_op op = {.kind = MFL_MESH_ALL_REDUCE,
                .type = MFL_MESH_I64,
                .reduction = MFL_MESH_MAX,
                .step = UINT32_MAX,
                .sequence = UINT32_MAX,
                .in = &stage,
                .out = &stage,
                .n = 1};
        int r = mfl_mesh_run(rank->mesh, &op, FIRST_MS, &run->request->control->cancel, err);
        if (!r)
                *zero = (uint32_t)stage;
        return r;
}

/* The rank's params for this meeting; in stage 3 those of all ranks of the host are one memory. */
static int lend_params(struct trainer_run *run, const struct mfl_net_options *net, struct trainer_rank *rank,
        struct mfl_team_options *how, struct mfl_error *err)
{
        const struct mfl_grad_ops *grad = run->trainer->ops->grad;
        const struct mfl_share *share = run->trainer->share;
        struct mfl_mesh_memory_options memory = {.mesh = rank->mesh,
                .dir = share ? mfl_share_dir(share) : NULL,
                .place = share ? mfl_share_place(share) : 0,
                .deadline_ms = FIRST_MS,
                .cancel = &run->request->control->cancel};
        uint32_t first = rank->mesh->rank;
        if (!net->lent)
                return 0;
        memory.bytes = MFL_MAX(1u, grad->elements(run->job->graph, net)) * sizeof(float);
        int r = how->zero < 3 ? mfl_mesh_memory_new(memory.bytes, &rank->memory, err)
                              : mfl_mesh_memory_open(&memory, &rank->memory, err);
        if (r)
                return r;
        how->shared = mfl_mesh_memory_ranks(rank->memory, &first) == rank->mesh->n_ranks;
        how->together = mfl_mesh_memory_most(rank->memory) > 1 && !how->shared;
        rank->fills = how->zero < 3 || first == rank->mesh->rank;
        how->follows = how->together && !rank->fills;
        grad->lend(rank->net, mfl_mesh_memory_data(rank->memory));
        return 0;
}

int mfl_trainer_team_take(
        struct trainer_run *run, struct trainer_slot *slot, float **ret_params, struct mfl_error *err)
{
        struct trainer_result *owned = MFL_CONTAINER_OF(run->result, struct trainer_result, base);
        struct trainer_rank *first = &slot->team->ranks[0];
        mfl_assert(first->memory && !owned->lent);
        slot->team->taken = true;
        int r = run->trainer->ops->grad->flatten(first->net, err);
        if (r)
                return r;
        owned->lent = first->memory;
        first->memory = NULL;
        run->result->data[0] = *ret_params = mfl_mesh_memory_data(owned->lent);
        return 0;
}

/* Ranks of one team are started by one order, so they open their meshes at the same time. */
static void meet_rank(void *arg, uint32_t i)
{
        const struct order *order = arg;
        struct trainer_run *run = order->run;
        const struct trainer_job *job = run->job;
        const struct mfl_backend_ops *ops = run->trainer->ops;
        struct trainer_rank *rank = &order->slot->team->ranks[i];
        struct mfl_team_options how =
                mfl_trainer_team_options(job, &order->slot->team->options, order->slot->team->zero);
        how.deadline_ms = FIRST_MS;
        how.snapshot = team_of(run)->n_members > 1 ? how.snapshot : 0;
        if (how.snapshot)
                mfl_parallel_keepers(team_of(run)->widths, team_of(run)->n_members, how.keeper);
        const struct mfl_loss loss = mfl_loss_of_job(job->spec);
        rank->accused = 0;
        rank->loss = MFL_MESH_GONE;
        rank->code = open_mesh(run, i, rank, &rank->err);
        if (!rank->code)
                rank->code = agree(run, rank, &how.zero, &rank->err);
        if (!rank->code)
                rank->code = lend_params(run, &order->slot->team->options, rank, &how, &rank->err);
        if (rank->code == MFL_INVALID) /* here is no place to meet, but the daemon may do the job alone */
                rank->code = MFL_TEAM_BROKEN;
        if (!rank->code)
                rank->code =
                        mfl_trainer_device_team(run, &order->slot->team->options, &how, rank, &rank->err);
        if (!rank->code && !rank->team)
                rank->code = mfl_team_new(ops, rank->net, &loss, rank->mesh, &how, &rank->team, &rank->err);
        if (rank->code && rank->mesh)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
}

int mfl_trainer_meet(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        struct order order = {run, slot};
        team->n_words = 0;
        team->slowest_ns = 0;
        team->taken = false;
        mfl_trainer_pool_run(&team->pool, team->n, meet_rank, &order);
        return mfl_trainer_team_result(run, team, err);
}

/* The deadline belongs to steps; who waits for a word waits until the leader has one, is gone, or the task is taken back. */
static void hear_rank(void *arg, uint32_t i)
{
        const struct order *order = arg;
        struct trainer_run *run = order->run;
        struct trainer_team *team = order->slot->team;
        struct trainer_rank *rank = &team->ranks[i];
        const struct mfl_backend_ops *ops = run->trainer->ops;
        const struct mfl_mesh_op op = {.kind = MFL_MESH_BROADCAST,
                .type = MFL_MESH_I64,
                .step = UINT32_MAX,
                .sequence = team->n_words,
                .in = rank->word,
                .out = rank->word,
                .n = MFL_ARRAY_SIZE(rank->word)};
        const struct mfl_mesh_op filled = {
                .kind = MFL_MESH_BARRIER, .step = STEP_FILLED, .sequence = team->n_words};
        uint64_t late_ms = LATE_STEPS * team->slowest_ns / 1000000;
        if (team->slowest_ns)
                mfl_team_set_deadline(
                        rank->team, (uint32_t)MFL_MIN(MFL_MAX(late_ms, LATE_MS_MIN), (uint64_t)UINT32_MAX));
        rank->code = mfl_mesh_run(rank->mesh, &op, UINT32_MAX, &run->request->control->cancel, &rank->err);
        if (rank->code || rank->word[0] != WORD_ITEM)
                return;
        rank->code = ops->params_set(
                rank->net, 0, run->request->frozen, rank->fills ? run->request->params : NULL, &rank->err);
        if (!rank->code) /* nobody reads params before those who fill them have */
                rank->code = mfl_mesh_run(
                        rank->mesh, &filled, FIRST_MS, &run->request->control->cancel, &rank->err);
        mfl_team_begin(rank->team);
        if (rank->code)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
}

int mfl_trainer_meet_word(struct trainer_run *run, struct trainer_slot *slot, enum trainer_word *word,
        uint32_t *number, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        struct order order = {run, slot};
        if (!team_of(run)->member)
                for (uint32_t i = 0; i < team->n; i++) {
                        team->ranks[i].word[0] = *word;
                        team->ranks[i].word[1] = *number;
                }
        mfl_trainer_pool_run(&team->pool, team->n, hear_rank, &order);
        team->n_words++;
        int r = mfl_trainer_team_result(run, team, err);
        if (r)
                return r;
        *word = (enum trainer_word)team->ranks[0].word[0];
        *number = (uint32_t)team->ranks[0].word[1];
        return 0;
}

void mfl_trainer_part(struct mfl_trainer *trainer, struct trainer_slot *slot, const char *reason)
{
        struct trainer_team *team = slot->team;
        if (!team || !team->apart)
                return;
        for (uint32_t i = 0; i < team->n; i++) {
                struct trainer_rank *rank = &team->ranks[i];
                if (reason && rank->mesh)
                        rank->mesh->ops->abort(rank->mesh, reason);
                mfl_team_free(rank->team);
                mfl_trainer_device_leave(trainer, rank, !reason);
                mfl_mesh_close(rank->mesh);
                if (rank->memory)
                        trainer->ops->grad->lend(rank->net, NULL);
                mfl_mesh_memory_close(rank->memory);
                rank->team = NULL;
                rank->mesh = NULL;
                rank->memory = NULL;
        }
}
