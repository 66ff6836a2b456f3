/* SPDX-License-Identifier: Apache-2.0 */
/* Moving clients to idle daemons. */
#include "server/round/round_move.h"

#include "proto/version.h"
#include "server/round/round_left.h"
#include "server/round/round_share.h"
#include "server/round/round_speed.h"
#include "server/work/core_presence.h"

#include <math.h>

#define GAIN_MIN_MS 200      /* the phase must end sooner by this */
#define ANSWER_MS 2000       /* the time that a daemon has to answer */
#define BYTES_PER_MS 12500.0 /* 100 Mbit/s: uploads until one is measured */
#define LOAD_MAX (1u << 24)

/* First the daemons that may give clients, then those that may get some. shares[i].n is the number of
 * movable clients that v[i] should have. */
struct move {
        struct core_daemon **v;
        struct mfl_share *shares;
        uint32_t *may; /* clients that v[i] may give */
        uint32_t n, n_givers, n_items;
        double now_ms, then_ms; /* until the phase ends */
};

bool mfl_round_moves(const struct core_job *job)
{
        return job->phase == PHASE_TRAIN && !job->spec->secure.bits &&
               job->spec->data.partition != MFL_PARTITION_LOCAL &&
               job->spec->selection.assign != MFL_ASSIGN_MODULO && !job->count[ITEM_OPEN] &&
               job->count[ITEM_ASSIGNED];
}

static bool is_asked(const struct mfl_core *core, const struct core_task *task)
{
        return task->recall == RECALL_ASKED && core->now_ms - task->recall_ms < ANSWER_MS;
}

bool mfl_round_moving(const struct mfl_core *core, const struct core_job *job)
{
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                if (is_asked(core, task))
                        return true;
        return false;
}

/* The number of clients of the task that may not have begun. `begun` is an estimate of those that have. */
static uint32_t may_give(const struct core_task *task, uint32_t begun)
{
        bool asks = task->kind == MFL_TASK_TRAIN && mfl_core_task_live(task) && !task->n_covered &&
                    task->recall == RECALL_NONE && task->n_held == task->n_items;
        begun = MFL_MAX(begun, 1u);
        return asks && task->n_items > begun ? task->n_items - begun : 0;
}

static uint32_t begun_of(const struct mfl_core *core, const struct core_task *task)
{
        bool first = true; /* the oldest task that its daemon works on */
        for (const struct core_task *older = task->daemon_next; older; older = older->daemon_next)
                first &= !mfl_core_task_live(older) || older->n_covered == older->n_items;
        return first ? mfl_round_done(core, task) + MFL_MAX(task->daemon->info.workers, 1u) : 0;
}

static uint32_t may_give_all(const struct mfl_core *core, const struct core_daemon *daemon)
{
        uint32_t n = 0;
        if (!daemon->conn || daemon->info.protocol < MFL_PROTOCOL_RECALL)
                return 0;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                n += may_give(task, begun_of(core, task));
        return n;
}

static bool may_get(const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        uint32_t n_live = 0;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next) {
                n_live += mfl_core_task_live(task);
                if (task->member) /* it works for its team's leader, whose time nobody knows here */
                        return false;
        }
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        if (relation && relation->fails)
                return false;
        return mfl_core_daemon_usable(daemon, job) && !mfl_round_load(core, daemon) && n_live <= 1;
}

static int init_move(struct move *move, const struct core_job *job, uint32_t n_idle)
{
        uint32_t n = job->n_leased + n_idle;
        move->v = mfl_malloc(n * sizeof(struct core_daemon *));
        move->shares = mfl_calloc(n, sizeof *move->shares);
        move->may = mfl_calloc(n, sizeof *move->may);
        return move->v && move->shares && move->may ? 0 : -ENOMEM;
}

static void deinit_move(struct move *move)
{
        free(move->v);
        free(move->shares);
        free(move->may);
}

static void list(struct move *move, const struct mfl_core *core, const struct core_job *job,
        struct core_daemon *const *idle, uint32_t n_idle)
{
        uint32_t limit = job->spec->selection.daemons_max, room = UINT32_MAX;
        for (uint32_t i = 0; i < job->n_leased; i++) {
                uint32_t may = may_give_all(core, job->leased[i]);
                move->now_ms = MFL_MAX(move->now_ms, (double)mfl_round_left_of(core, job->leased[i], job));
                if (!may)
                        continue;
                move->may[move->n] = may;
                move->v[move->n++] = job->leased[i];
                move->n_items += may;
        }
        move->n_givers = move->n;
        for (uint32_t i = 0; move->n_givers && i < job->n_leased; i++)
                if (may_get(core, job->leased[i], job))
                        move->v[move->n++] = job->leased[i];
        if (limit)
                room = limit > job->n_leased_up ? limit - job->n_leased_up : 0;
        for (uint32_t i = 0; move->n_givers && i < n_idle && room; i++)
                if (may_get(core, idle[i], job)) {
                        move->v[move->n++] = idle[i];
                        room--;
                }
}

/* The extra time on a daemon that is new to the round: for the params, and for its own update. */
static double extra_ms(const struct core_job *job, const struct core_daemon *daemon)
{
        double bytes = 0, rate = daemon->upload_rate > 0 ? daemon->upload_rate : BYTES_PER_MS;
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        bool told = relation && relation->told &&
                    memcmp(relation->told_digest, job->digest, MFL_DIGEST_BYTES) == 0;
        if (!told)
                bytes += (double)job->n_params * sizeof(float);
        if (!mfl_job_needs_single_updates(job->spec))
                bytes += (double)(job->n_params - job->n_frozen) * sizeof(int64_t);
        return bytes / rate;
}

/* Sets costs and loads. False: no daemon's speed is known. */
static bool weigh(struct move *move, struct mfl_core *core, const struct core_job *job)
{
        bool known = false;
        for (uint32_t i = 0; i < move->n; i++)
                known |= mfl_round_cost(core, move->v[i], job) > 0;
        if (!known)
                return false;
        if (mfl_round_costs(core, job, move->v, move->n, false, move->shares)) {
                core->error = -ENOMEM;
                return false;
        }
        for (uint32_t i = 0; i < move->n; i++) {
                struct mfl_share *share = &move->shares[i];
                double cost = mfl_round_cost(core, move->v[i], job);
                share->cost = MFL_MAX(share->cost, cost);
                double load = i < move->n_givers ? (double)(mfl_round_load(core, move->v[i]) - move->may[i])
                                                 : ceil(extra_ms(job, move->v[i]) / share->cost);
                share->load = load < LOAD_MAX ? (uint32_t)load : LOAD_MAX;
        }
        return true;
}

/* Compares the end of the phase with and without the move. Daemons outside the move are not affected. */
static bool pays(struct move *move, const struct mfl_core *core, const struct core_job *job)
{
        for (uint32_t i = 0; i < move->n; i++) {
                const struct mfl_share *share = &move->shares[i];
                uint32_t n = i < move->n_givers ? MFL_MIN(share->n, move->may[i]) : share->n;
                if (n || i < move->n_givers)
                        move->then_ms = MFL_MAX(move->then_ms, (share->load + n) * share->cost);
        }
        for (uint32_t i = 0; i < job->n_leased; i++)
                if (!may_give_all(core, job->leased[i]))
                        move->then_ms =
                                MFL_MAX(move->then_ms, (double)mfl_round_left_of(core, job->leased[i], job));
        double gain = move->now_ms - move->then_ms;
        return gain >= GAIN_MIN_MS && gain >= move->now_ms / 20;
}

static void recall(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task, uint32_t n)
{
        mfl_core_task_recall_move(task, RECALL_ASKED);
        task->recall_ms = core->now_ms;
        task->recall_keep = task->n_items - n;
        mfl_core_trace(core, task->job, "round %u: daemon %s is asked for %u of its %u clients",
                task->job->round, daemon->info.name, n, task->n_items);
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_RECALL);
        msg->recall.task = task->number;
        msg->recall.n_items = task->recall_keep;
}

/* The newest task gives clients first. */
static void ask(struct mfl_core *core, struct core_daemon *daemon, uint32_t n)
{
        for (struct core_task *task = daemon->tasks; task && n; task = task->daemon_next) {
                uint32_t may = MFL_MIN(may_give(task, begun_of(core, task)), n);
                if (may)
                        recall(core, daemon, task, may);
                n -= may;
        }
}

static void carry_out(struct move *move, struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = move->n_givers; i < move->n; i++)
                if (move->shares[i].n && move->v[i]->job != job)
                        mfl_core_lease(core, move->v[i], job);
        for (uint32_t i = 0; i < move->n_givers; i++)
                if (move->shares[i].n < move->may[i])
                        ask(core, move->v[i], move->may[i] - move->shares[i].n);
}

void mfl_round_move(struct mfl_core *core, struct core_job *job, struct core_daemon *const *idle, uint32_t n)
{
        struct move move = {0};
        if (mfl_round_moving(core, job))
                return;
        if (init_move(&move, job, n))
                core->error = -ENOMEM;
        else
                list(&move, core, job, idle, n);
        if (move.n > move.n_givers && move.n_givers && weigh(&move, core, job)) {
                mfl_round_share(move.shares, move.n, move.n_items);
                if (pays(&move, core, job))
                        carry_out(&move, core, job);
        }
        deinit_move(&move);
}

/* Whether the items from `kept` on are such that a correct daemon may return them. */
static bool is_theirs(const struct core_task *task, uint32_t kept)
{
        for (uint32_t i = kept; i < task->n_items; i++)
                if (task->cover[i] || task->updates[i])
                        return false;
        return kept > 0 && task->kind == MFL_TASK_TRAIN;
}

void mfl_round_returned(
        struct mfl_core *core, struct core_daemon *daemon, struct core_task *task, uint32_t kept)
{
        struct core_job *job = task->job;
        uint32_t n = 0;
        if (job->phase != PHASE_TRAIN)
                return; /* the round no longer deals anything */
        if (task->recall == RECALL_ASKED)
                mfl_core_task_recall_move(task, kept > task->recall_keep ? RECALL_SPENT : RECALL_NONE);
        if (kept >= task->n_items)
                return;
        if (!is_theirs(task, kept)) {
                mfl_core_daemon_close(core, daemon, true, "it returned clients that it may not return");
                return;
        }
        for (uint32_t i = kept; i < task->n_items; i++)
                if (job->items[task->index[i]].task == task) {
                        mfl_core_item_set(job, task->index[i], ITEM_OPEN, NULL);
                        n++;
                }
        mfl_core_trace(core, job, "round %u: daemon %s returns %u of its %u clients", job->round,
                daemon->info.name, n, task->n_items);
        task->n_held -= n;
        task->n_items = kept;
        daemon->items_total -= MFL_MIN(daemon->items_total, n);
        task->progress_items = MFL_MIN(task->progress_items, kept);
        job->moving = true;
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}
