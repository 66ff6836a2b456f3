/* SPDX-License-Identifier: Apache-2.0 */
/* Announces: whether an update is well formed, valid, wanted, and its daemon's own. */
#include "server/work/core_announce.h"

#include "server/state/core_lease.h"
#include "server/work/core_claims.h"
#include "server/work/core_group.h"
#include "server/work/core_measure.h"
#include "server/work/core_presence.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"
#include "server/work/core_update.h"
#include "server/work/core_upload.h"

/* Answers an announce for an unknown task: of an earlier round, boot or server. */
static void answer_unknown(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *a)
{
        struct core_job *job = mfl_core_job(core, a->job);
        if (mfl_core_stands(core, a->task)) /* it is asked for again, with a new number, or taken back */
                return;
        enum mfl_refused code = MFL_REFUSED_UNKNOWN;
        const char *reason = "no such task";
        if (job && job->phase != PHASE_OVER) {
                /* The server has restarted and has not dealt this round yet. The daemon keeps the result,
                 * and announces it again if it gets the same clients. */
                bool undealt = job->phase <= PHASE_TRAIN_WAIT && a->round == job->round;
                if (undealt && a->task >> 32 < core->options.boot) {
                        daemon->resumes = true;
                        mfl_core_measure_held(core, daemon, job, a);
                        return;
                }
                if (a->round < job->round || job->phase > PHASE_TRAIN) {
                        code = MFL_REFUSED_LATE;
                        reason = "the round is over";
                }
        }
        mfl_core_send_refused(core, daemon, a->task, a->update, code, reason);
}

/* What is wrong with the announce, such that a correct daemon never sends it; NULL: nothing. */
static const char *find_fault(const struct core_task *task, const struct mfl_announce *a)
{
        const struct core_job *job = task->job;
        if (task->kind != MFL_TASK_TRAIN || a->round != mfl_core_item_round(job, task->index[0]) ||
                strcmp(a->job, job->id) != 0)
                return "it is not for that task";
        if (!a->item_count || a->item_first >= task->n_items ||
                a->item_count > task->n_items - a->item_first || a->update >= task->n_items)
                return "its items are not in the task";
        if (a->n_rejected > a->item_count)
                return "it rejects more clients than it has";
        for (uint32_t i = 0, at = a->item_first; i < a->n_rejected; i++, at++) {
                while (at < a->item_first + a->item_count &&
                        job->items[task->index[at]].item != a->rejected[i].item)
                        at++;
                if (at == a->item_first + a->item_count)
                        return "its rejected clients are not its own, or not in order";
        }
        if (task->group && a->group == task->group->number && a->n_rejected < a->item_count &&
                a->encoding != MFL_ENCODING_I64)
                return "an update for a group must be int64";
        return NULL;
}

/* What makes a well-formed update invalid; NULL: nothing. */
static const char *find_invalid(const struct core_job *job, const struct mfl_announce *a)
{
        uint32_t n_clients = a->item_count - a->n_rejected;
        uint64_t n = job->n_params - job->n_frozen;
        uint64_t bytes = a->encoding == MFL_ENCODING_F32 ? 4 * mfl_method_update_floats(job->spec, n) : 8 * n;
        if (a->masked != (job->spec->secure.bits > 0))
                return a->masked ? "masked, in a job without secure_sum" : "this job wants masked updates";
        if (a->n_scalars != (a->masked ? 0 : (uint32_t)mfl_method_get(job->spec)->n_scalars))
                return "wrong number of scalars";
        if (a->n_losses != (job->memory ? a->item_count : 0))
                return "wrong number of losses";
        if (!n_clients)
                return a->bytes || a->weight
                               ? "an update without accepted clients must have no bytes and no weight"
                               : NULL;
        if (a->encoding == MFL_ENCODING_F32 && n_clients != 1)
                return "only a single client's update may be float32";
        if (a->encoding == MFL_ENCODING_F32 && mfl_method_get(job->spec)->weighs)
                return "this job wants int64, with the clients' own weights";
        if (a->bytes != bytes)
                return "wrong size";
        if (mfl_job_needs_single_updates(job->spec) && a->item_count != 1)
                return "this job wants one update per client";
        if (mfl_job_needs_single_updates(job->spec) && a->encoding != MFL_ENCODING_F32)
                return "this job wants float32";
        if (a->state.there != (job->spec->client_state == MFL_CLIENT_STATE_DAEMON))
                return a->state.there ? "it keeps a state that this job does not have"
                                      : "it says nothing of its client's state";
        if (a->masked)
                return a->weight                         ? "a masked update with its weight"
                       : a->encoding == MFL_ENCODING_I64 ? NULL
                                                         : "this job wants int64";
        if (!a->weight || a->weight / n_clients >= MFL_WEIGHT_MAX)
                return "impossible weight";
        /* In real time more come than are granted a slot, where the sums' limit is checked. */
        if (!mfl_job_is_live(job->spec) && a->weight > job->fixed.weight_max - job->weight_claimed)
                return "the round's weights exceed their limit";
        return NULL;
}

static struct core_update *new_update(struct core_task *task, const struct mfl_announce *a)
{
        struct core_update *update = mfl_calloc(1, sizeof *update);
        if (!update)
                return NULL;
        update->task = task;
        update->announce = *a;
        update->announce.rejected = mfl_calloc(a->n_rejected, sizeof *a->rejected);
        update->announce.losses = mfl_calloc(a->n_losses, sizeof *a->losses);
        if (!update->announce.rejected || !update->announce.losses) {
                mfl_core_update_free(update);
                return NULL;
        }
        if (a->n_losses)
                memcpy(update->announce.losses, a->losses, a->n_losses * sizeof *a->losses);
        if (a->n_rejected)
                memcpy(update->announce.rejected, a->rejected, a->n_rejected * sizeof *a->rejected);
        return update;
}

static void announce_again(struct mfl_core *core, struct core_daemon *daemon, struct core_update *update,
        const struct mfl_announce *a)
{
        const struct mfl_announce *was = &update->announce;
        if (a->item_first != was->item_first || a->item_count != was->item_count || a->bytes != was->bytes ||
                a->weight != was->weight || a->encoding != was->encoding ||
                a->n_rejected != was->n_rejected || a->n_scalars != was->n_scalars ||
                memcmp(a->scalars, was->scalars, sizeof a->scalars) != 0 || a->n_losses != was->n_losses ||
                a->clamped != was->clamped || a->state.there != was->state.there ||
                memcmp(a->state.digest, was->state.digest, sizeof a->state.digest) != 0 ||
                (a->n_losses && memcmp(a->losses, was->losses, a->n_losses * sizeof *a->losses) != 0)) {
                mfl_core_daemon_close(core, daemon, true, "it announced an update again with other numbers");
                return;
        }
        if (update->group && update->state < UPDATE_ADDING && !a->group)
                mfl_core_group_alone(core, update->task, "it asked to upload alone");
        else if (update->state == UPDATE_COUNTED)
                mfl_core_send_accepted(core, daemon, a->task, a->update);
        else if (update->state == UPDATE_REFUSED)
                mfl_core_send_refused(core, daemon, a->task, a->update, MFL_REFUSED_INVALID, update->reason);
        else if (update->state == UPDATE_FILLING)
                mfl_core_update_grant(core, update);
        else if (update->state == UPDATE_ADDING &&
                 !update->task->daemon) /* nobody will be told when it is added */
                mfl_core_send_refused(core, daemon, a->task, a->update, MFL_REFUSED_LATE,
                        "its task was taken back, but it is being added");
}

/* If the task was taken away, its clients are open, or belong to other tasks. Open ones may still count
 * here. Each update claims only its own clients. */
static bool adopt_items(struct mfl_core *core, struct core_task *task, const struct mfl_announce *a,
        enum mfl_refused *ret_code)
{
        struct core_job *job = task->job;
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++) {
                const struct core_item *item = &job->items[task->index[i]];
                if (item->state == ITEM_COUNTED || item->state == ITEM_REJECTED) {
                        *ret_code = MFL_REFUSED_DUPLICATE;
                        return false;
                }
                if (item->state == ITEM_ASSIGNED && item->task != task) {
                        *ret_code = MFL_REFUSED_UNKNOWN;
                        return false;
                }
        }
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++) {
                task->n_held += job->items[task->index[i]].task != task;
                mfl_core_item_set(job, task->index[i], ITEM_ASSIGNED, task);
        }
        mfl_core_dirty(core, job);
        return true;
}

static bool covered(const struct core_task *task, const struct mfl_announce *a)
{
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++)
                if (task->cover[i])
                        return true;
        return false;
}

/* Whether a new update of the daemon's own task is wanted; if so, its items are assigned to the task. */
static bool admit(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task,
        const struct mfl_announce *a)
{
        struct core_job *job = task->job;
        enum mfl_refused code = MFL_REFUSED_UNKNOWN;
        if (job->phase != PHASE_TRAIN || job->secure) {
                mfl_core_send_refused(
                        core, daemon, a->task, a->update, MFL_REFUSED_LATE, "the round is over");
                return false;
        }
        const struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (relation && mfl_core_cut_differs(relation, job)) {
                mfl_core_send_refused(core, daemon, a->task, a->update, MFL_REFUSED_UNKNOWN,
                        "others report other samples for its clients");
                return false;
        }
        if (covered(task, a)) {
                mfl_core_daemon_close(core, daemon, true, "it announced two updates for one client");
                return false;
        }
        /* It was on its way: a grant would find nothing there. On a later connection, the Cancel was lost with the one before. */
        if (task->cancelled == daemon->conn) {
                mfl_core_send_refused(
                        core, daemon, a->task, a->update, MFL_REFUSED_UNKNOWN, "its task was taken back");
                return false;
        }
        if (adopt_items(core, task, a, &code))
                return true;
        mfl_core_send_refused(core, daemon, a->task, a->update, code,
                code == MFL_REFUSED_DUPLICATE ? "its clients are counted already"
                                              : "its clients were given to others");
        return false;
}

/* Where the new update goes: to its group, into the queue, or straight to its end. */
static void place(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        struct core_job *job = task->job;
        const struct mfl_announce *a = &update->announce;
        const char *invalid = find_invalid(job, a);
        job->weight_claimed += a->weight;
        if (!invalid && mfl_core_group_takes(task, a)) {
                mfl_core_group_ready(core, update);
                return;
        }
        mfl_core_group_lose(core, task, "its update is not for the group");
        if (a->masked &&
                a->group) /* it waits for its group, and tells its own keys only when it is told so */
                mfl_core_group_alone(core, task, "its group was added without it");
        if (invalid)
                mfl_core_update_refuse(core, update, invalid);
        else if (a->n_rejected == a->item_count)
                mfl_core_update_count(core, update);
        else if (a->masked)
                mfl_core_update_hold(update);
        else
                mfl_core_update_enqueue(core, update);
        mfl_core_dirty(core, job);
}

/* The update contradicts what others tell of its clients' samples, and what this daemon tells has not come: on a new connection, it
 * announces what it holds first. Nobody knows who lies. Its clients are dealt again, after it has told; once, so that no daemon can make
 * a round wait by telling nothing. */
static bool excuse(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task)
{
        struct core_job *job = task->job;
        struct core_relation *relation = job->cut ? mfl_core_relation(core, daemon, job) : NULL;
        if (!relation || relation->unjudged || task->sent_changes >= daemon->came ||
                mfl_core_cut_has_told(job, relation))
                return false;
        relation->unjudged = true;
        mfl_core_task_spec(core, daemon, job); /* it tells then */
        mfl_core_task_cancel(core, task, "others report other samples for its clients");
        mfl_core_task_take(core, task, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
        return true;
}

static void take_update(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task,
        const struct mfl_announce *a)
{
        char text[MFL_REASON_BYTES];
        const char *lie = a->masked ? NULL : mfl_core_claim_update(task, daemon, a, text);
        if (lie && excuse(core, daemon, task))
                return;
        if (lie) {
                mfl_core_daemon_lied(core, daemon, task->job, "%s", lie);
                return;
        }
        struct core_update *update = new_update(task, a);
        if (!update) {
                core->error = -ENOMEM;
                return;
        }
        task->updates[a->update] = update;
        for (uint32_t i = 0; i < a->item_count; i++)
                task->cover[a->item_first + i] = a->update + 1;
        task->n_covered += a->item_count;
        if (a->has_team && task->job->spec->parallel.grain)
                mfl_core_team_took(core, task, &a->team);
        if (task->n_covered == task->n_items) {
                mfl_core_measure_task(core, task);
                mfl_core_team_done(core, task);
        }
        place(core, update);
}

void mfl_core_announced(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *a)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, a->task);
        if (!task) {
                answer_unknown(core, daemon, a);
                return;
        }
        const char *fault = find_fault(task, a);
        if (fault) {
                mfl_core_daemon_close(core, daemon, true, "wrong announce: %s", fault);
                return;
        }
        if (!mfl_core_task_is_of(task, daemon)) {
                mfl_core_send_refused(core, daemon, a->task, a->update, MFL_REFUSED_UNKNOWN,
                        "the task belongs to another daemon");
                return;
        }
        if (task->updates[a->update]) {
                announce_again(core, daemon, task->updates[a->update], a);
                return;
        }
        if (!admit(core, daemon, task, a))
                return;
        if (!task->daemon)
                mfl_core_task_attach(task, daemon);
        if (!mfl_core_claims_known(
                    task->job)) /* what it told may be lost; after the job's file it tells again */
                mfl_core_task_spec(core, daemon, task->job);
        take_update(core, daemon, task, a);
}
