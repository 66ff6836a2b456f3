/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of daemons. */
#include "server/core/core_message.h"

#include "server/core/core_say.h"
#include "server/round/round_eval.h"
#include "server/round/round_move.h"
#include "server/round/round_secure.h"
#include "server/work/core_announce.h"
#include "server/work/core_claims.h"
#include "server/work/core_group.h"
#include "server/work/core_presence.h"
#include "server/work/core_rival.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"

#define FAILS_MAX 3 /* in a row; then the daemon rests until the phase ends */

static struct core_task *own_task(struct mfl_core *core, const struct core_daemon *daemon, uint64_t number)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, number);
        return task && task->daemon == daemon ? task : NULL;
}

static void on_failed(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = own_task(core, daemon, msg->failed.task);
        if (msg->failed.site != MFL_SITE_NOTHING) {
                mfl_core_site_said(core, daemon, msg);
                return;
        }
        if (task && mfl_round_secure_left(core, task, msg->failed.reason))
                return;
        if (!task || !mfl_core_task_live(task))
                return;
        struct core_job *job = task->job;
        if (task->team && msg->failed.broken) {
                mfl_core_team_broken(core, task, msg);
                return;
        }
        if (daemon->leaving && !msg->failed.permanent) { /* the task crossed Leaving on its way */
                mfl_core_task_take(core, task, ITEM_OPEN);
                mfl_core_daemon_idle(core, daemon);
                return;
        }
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation)
                return;
        relation->fails++;
        uint32_t team = task->team ? task->team->n_members : 1;
        if (msg->failed.permanent && task->kind != MFL_TASK_EVAL &&
                team < mfl_core_daemon_team_most(daemon, job)) {
                /* Perhaps it lacks memory, of which a member of a larger team needs less. */
                relation->team_least = team + 1;
                job->needs_teams = true;
        } else if (msg->failed.permanent)
                relation->barred = true;
        else if (relation->fails >= FAILS_MAX) {
                relation->rest_stamp = job->stamp;
                relation->fails = 0;
        }
        mfl_snprintf(daemon->note, sizeof daemon->note, "%s: %.180s", job->id, msg->failed.reason);
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "daemon %s: %.170s", daemon->info.name,
                msg->failed.reason);
        mfl_core_trace(core, job, "round %u: daemon %s failed%s: %.120s", job->round, daemon->info.name,
                msg->failed.permanent ? " for good" : "", msg->failed.reason);
        mfl_core_task_take(core, task, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
}

static void on_progress(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = own_task(core, daemon, msg->progress.task);
        if (!task) {
                /* Nobody wants the task: cancel it to free the device. A task of an earlier boot may still
                 * be wanted: the agent compares it with the tasks that it gets next. */
                if (mfl_core_stands(core, msg->progress.task))
                        return;
                if (msg->progress.task >> 32 != core->options.boot) {
                        daemon->resumes = true;
                        return;
                }
                struct core_task *dropped = mfl_core_map_get(&core->tasks, msg->progress.task);
                if (dropped && mfl_core_task_is_of(dropped, daemon)) /* its Announce may have crossed this */
                        dropped->cancelled = daemon->conn;
                struct mfl_msg *cancel = mfl_core_send(core, daemon, MFL_MSG_CANCEL);
                cancel->cancel.task = msg->progress.task;
                mfl_strcpy(
                        cancel->cancel.reason, sizeof cancel->cancel.reason, "the task is no longer wanted");
                return;
        }
        if (!mfl_core_task_live(task) || task->n_held < task->n_items ||
                msg->progress.items_done > task->n_items || msg->progress.items_done < task->progress_items)
                return;
        char text[MFL_REASON_BYTES];
        const char *lie = mfl_core_claim_progress(
                task, daemon, msg->progress.samples_done, msg->progress.loss_sum, text);
        if (lie) {
                mfl_core_daemon_lied(core, daemon, task->job, "%s", lie);
                return;
        }
        daemon->items_done += msg->progress.items_done - task->progress_items;
        task->progress_items = msg->progress.items_done;
        task->progress_ms = core->now_ms;
        task->job->progress_samples += msg->progress.samples_done - task->progress_samples;
        task->job->progress_loss += (core_sum)msg->progress.loss_sum - task->progress_loss;
        task->progress_samples = msg->progress.samples_done;
        task->progress_loss = msg->progress.loss_sum;
}

static void on_eval_result(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = own_task(core, daemon, msg->eval.task);
        if (task && task->kind != MFL_TASK_EVAL)
                mfl_core_daemon_close(core, daemon, true, "it sent an evaluation result for a training task");
        else if (task && mfl_core_task_live(task))
                mfl_round_eval_result(core, daemon, task, msg);
}

void mfl_core_message(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task;
        switch (msg->kind) {
        case MFL_MSG_PING:
                mfl_core_send(core, daemon, MFL_MSG_PONG)->cookie = msg->cookie;
                break;
        case MFL_MSG_PONG:
                mfl_core_rival_pong(core, daemon, msg->cookie);
                break;
        case MFL_MSG_PARAMS_GET: /* the shell answers it */
                break;
        case MFL_MSG_BYE:
                if (msg->bye.retry)
                        mfl_core_daemon_close(core, daemon, true, "it said goodbye: %.180s", msg->bye.reason);
                else
                        mfl_core_daemon_left(core, daemon, msg->bye.reason);
                break;
        case MFL_MSG_ANNOUNCE:
                mfl_core_announced(core, daemon, &msg->announce);
                break;
        case MFL_MSG_EVAL_RESULT:
                on_eval_result(core, daemon, msg);
                break;
        case MFL_MSG_TASK_FAILED:
                on_failed(core, daemon, msg);
                break;
        case MFL_MSG_PROGRESS:
                on_progress(core, daemon, msg);
                break;
        case MFL_MSG_RETURNED:
                task = own_task(core, daemon, msg->recall.task);
                if (task)
                        mfl_round_returned(core, daemon, task, msg->recall.n_items);
                break;
        case MFL_MSG_COMBINE_FAILED:
                mfl_core_group_failed(core, daemon, msg);
                break;
        case MFL_MSG_COMMUNICATOR_ID:
                mfl_core_group_communicator(core, daemon, msg);
                break;
        case MFL_MSG_SECURE:
                mfl_round_secure_message(core, daemon, &msg->secure);
                break;
        case MFL_MSG_LEAVING:
                mfl_core_daemon_leaving(core, daemon, msg->cancel.reason);
                break;
        default:
                mfl_core_daemon_close(
                        core, daemon, true, "message %u is not for a server", (unsigned)msg->kind);
        }
}
