/* SPDX-License-Identifier: Apache-2.0 */
/* What a client's training had come to when its team was lost, and how the next team goes on from there. */
#include "client/train/trainer_team.h"

#include "common/base/log.h"

struct trainer_kept {
        uint64_t client;
        uint32_t round;
        uint8_t params_digest[MFL_DIGEST_BYTES]; /* that it began with */
        uint64_t bytes;
        struct mfl_team_state *state;
};

struct order {
        struct trainer_run *run;
        struct trainer_slot *slot;
        const struct mfl_team_state *state; /* this process's, or NULL */
        uint32_t step;
        struct mfl_score score;
        int64_t squares;
};

void mfl_trainer_kept_drop(struct mfl_trainer *trainer, struct trainer_job *job)
{
        struct trainer_kept *kept = job->kept;
        if (!kept)
                return;
        mfl_team_state_free(kept->state);
        mfl_trainer_memory_release(&trainer->memory, kept->bytes);
        free(kept);
        job->kept = NULL;
}

void mfl_trainer_kept_yield(struct mfl_trainer *trainer, struct trainer_job *job)
{
        if (job->kept)
                mfl_log_job(MFL_LOG_INFO, job->id,
                        "%s: client %llu will begin anew: its %u steps of a lost team take memory that the "
                        "next "
                        "networks need",
                        job->id, (unsigned long long)job->kept->client,
                        mfl_team_state_step(job->kept->state));
        mfl_trainer_kept_drop(trainer, job);
}

/* The rank that has come farthest; they differ by one step at most. */
static const struct mfl_team *farthest(const struct trainer_team *team)
{
        const struct mfl_team *best = NULL;
        uint32_t most = 0;
        for (uint32_t i = 0; i < team->n; i++) {
                struct mfl_score score;
                uint32_t done = team->ranks[i].team ? mfl_team_done(team->ranks[i].team, &score) : 0;
                if (done > most) {
                        best = team->ranks[i].team;
                        most = done;
                }
        }
        return best;
}

/* Whether what is kept is of the task's client and its training. */
static bool is_of(const struct trainer_kept *kept, const struct mfl_task *task, uint64_t client)
{
        return kept && kept->client == client && kept->round == task->round &&
               !memcmp(kept->params_digest, task->params_digest, sizeof(kept->params_digest));
}

static int reserve(
        struct trainer_run *run, const struct trainer_lane *lane, uint64_t bytes, struct mfl_error *err)
{
        struct trainer_memory *memory = &run->trainer->memory;
        const struct mfl_task *task = run->request->task;
        int r = mfl_trainer_memory_reserve(memory, bytes, "a lost team's client", err);
        struct trainer_kept *kept = r ? NULL : run->job->kept;
        if (!r && !kept)
                kept = mfl_calloc(1, sizeof(*kept));
        if (!r && !kept) {
                mfl_trainer_memory_release(memory, bytes);
                r = mfl_fail_memory(err, sizeof(*kept), "a lost team's client");
        }
        if (r)
                return r;
        kept->client = lane->local.client;
        kept->round = task->round;
        memcpy(kept->params_digest, task->params_digest, sizeof(kept->params_digest));
        kept->bytes += bytes;
        run->job->kept = kept;
        return 0;
}

static int keep_whole(struct trainer_run *run, const struct trainer_lane *lane, const struct mfl_team *from,
        struct mfl_error *err)
{
        mfl_trainer_kept_drop(run->trainer, run->job);
        int r = reserve(run, lane, mfl_team_state_bytes(from), err);
        if (!r)
                r = mfl_team_state_new(from, run->items[lane->item].square_sum, &run->job->kept->state, err);
        if (r)
                mfl_trainer_kept_drop(run->trainer, run->job);
        return r;
}

/* What was not taken since it is kept already. */
static void give_back(struct trainer_run *run, const struct trainer_team *team)
{
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < team->n; i++)
                bytes += mfl_team_snapshots_bytes(team->ranks[i].team);
        run->job->kept->bytes -= bytes;
        mfl_trainer_memory_release(&run->trainer->memory, bytes);
}

/* What this process's ranks have of snapshots. A team that broke in its first one may leave no whole one, and then what it was to
 * go on from is still needed. */
static int keep_shards(struct trainer_run *run, const struct trainer_lane *lane,
        const struct trainer_team *team, struct mfl_error *err)
{
        uint64_t bytes = 0;
        bool whole = false;
        for (uint32_t i = 0; i < team->n; i++) {
                bytes += mfl_team_snapshots_bytes(team->ranks[i].team);
                whole |= mfl_team_snapshots_whole(team->ranks[i].team);
        }
        if (whole || !is_of(run->job->kept, run->request->task, lane->local.client))
                mfl_trainer_kept_drop(run->trainer, run->job);
        /* What it was to go on from is of use also if there is no room for more. */
        bool older = run->job->kept != NULL;
        int r = bytes ? reserve(run, lane, bytes, err) : 0;
        bool reserved = bytes && !r;
        for (uint32_t i = 0; reserved && !r && i < team->n; i++)
                r = mfl_team_snapshots_take(team->ranks[i].team, &run->job->kept->state, err);
        if (r && !older)
                mfl_trainer_kept_drop(run->trainer, run->job);
        else if (reserved)
                give_back(run, team);
        return older ? 0 : r;
}

static bool has_shards(const struct trainer_team *team)
{
        bool any = false;
        for (uint32_t i = 0; i < team->n; i++)
                any |= mfl_team_snapshots_bytes(team->ranks[i].team) > 0;
        return any;
}

void mfl_trainer_keep(struct trainer_run *run, struct trainer_slot *slot)
{
        const struct trainer_lane *lane = &slot->lanes[0];
        const struct trainer_team *team = slot->team;
        struct mfl_error err;
        if (!team || !team->apart || team->taken || !lane->active)
                return;
        const struct mfl_team *from = farthest(team);
        if (!from && !has_shards(team))
                return;
        if (from ? keep_whole(run, lane, from, &err) : keep_shards(run, lane, team, &err))
                mfl_log_job(MFL_LOG_INFO, run->job->id, "%s: client %llu will begin anew: %s", run->job->id,
                        (unsigned long long)lane->local.client, err.text);
        else
                mfl_log_job(MFL_LOG_INFO, run->job->id,
                        "%s: %u steps of client %llu are kept for its next team", run->job->id,
                        mfl_team_state_step(run->job->kept->state), (unsigned long long)lane->local.client);
}

static const struct mfl_team_state *find(const struct trainer_run *run, uint64_t client)
{
        const struct trainer_kept *kept = run->job->kept;
        return is_of(kept, run->request->task, client) ? kept->state : NULL;
}

static void resume_rank(void *arg, uint32_t i)
{
        struct order *order = arg, own = *order;
        struct trainer_team *team = order->slot->team;
        struct trainer_rank *rank = &team->ranks[i];
        rank->code = mfl_team_resume(rank->team, i ? NULL : order->state,
                team->apart ? &order->run->request->control->cancel : NULL, &own.step, &own.score,
                &own.squares, &rank->err);
        if (rank->code)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
        else if (!i)
                *order = own;
}

int mfl_trainer_resume(struct trainer_run *run, struct trainer_slot *slot, uint64_t client,
        uint32_t *ret_step, struct mfl_score *ret_score, int64_t *ret_squares, struct mfl_error *err)
{
        struct trainer_team *team = slot->team;
        struct order order = {.run = run, .slot = slot, .state = find(run, client)};
        *ret_step = 0;
        if (!team->apart && !order.state)
                return 0;
        mfl_trainer_pool_run(&team->pool, team->n, resume_rank, &order);
        int r = mfl_trainer_team_result(run, team, err);
        team->broken = r && !team->apart;
        if (r)
                return r;
        mfl_trainer_kept_drop(run->trainer, run->job);
        *ret_step = order.step;
        *ret_score = order.score;
        *ret_squares = order.squares;
        run->times.kept += order.step;
        if (order.step)
                mfl_log_job(MFL_LOG_INFO, run->job->id, "%s: client %llu goes on with step %u", run->job->id,
                        (unsigned long long)client, order.step + 1);
        return 0;
}
