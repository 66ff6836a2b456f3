/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: giving work to daemons, taking it back, and the daemons' messages. */
#include "server/core_internal.h"
#include "server/round.h"
#include "server/round_speed.h"

void mfl_core_item_set(struct core_job *job, uint32_t i, enum item_state state, struct core_task *task)
{
        struct core_item *item = &job->items[i];
        mfl_assert((state == ITEM_ASSIGNED) == (task != NULL));
        job->count[item->state]--;
        job->count[state]++;
        item->state = state;
        item->task = task;
}

bool mfl_core_task_live(const struct core_task *task)
{
        return task->daemon && task->n_held > 0;
}

static struct core_task *new_task(struct mfl_core *core, uint32_t n)
{
        struct core_task *task = mfl_calloc(1, sizeof *task);
        if (!task)
                return NULL;
        task->index = mfl_calloc(n, sizeof *task->index);
        task->cover = mfl_calloc(n, sizeof *task->cover);
        task->updates = mfl_calloc(n, sizeof(struct core_update *));
        task->number = mfl_core_number(core);
        task->n_items = n;
        if (!task->index || !task->cover || !task->updates ||
                mfl_core_map_put(&core->tasks, task->number, task)) {
                mfl_core_task_free(core, task);
                return NULL;
        }
        return task;
}

void mfl_core_task_attach(struct core_task *task, struct core_daemon *daemon)
{
        mfl_assert(!task->daemon);
        task->daemon = daemon;
        task->daemon_next = daemon->tasks;
        if (daemon->tasks)
                daemon->tasks->daemon_prev = task;
        daemon->tasks = task;
}

static void unlink_from_daemon(struct core_task *task)
{
        if (!task->daemon)
                return;
        if (task->daemon_prev)
                task->daemon_prev->daemon_next = task->daemon_next;
        else
                task->daemon->tasks = task->daemon_next;
        if (task->daemon_next)
                task->daemon_next->daemon_prev = task->daemon_prev;
        task->daemon_prev = task->daemon_next = NULL;
        task->daemon = NULL;
}

void mfl_core_task_free(struct mfl_core *core, struct core_task *task)
{
        unlink_from_daemon(task);
        mfl_core_map_remove(&core->tasks, task->number);
        if (task->updates)
                for (uint32_t i = 0; i < task->n_items; i++)
                        mfl_core_update_free(task->updates[i]);
        free(task->updates);
        free(task->index);
        free(task->cover);
        free(task);
}

void mfl_core_task_give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon,
        const uint32_t *index, uint32_t n)
{
        mfl_assert(n > 0 && n <= MFL_ITEMS_MAX && daemon->job == job);
        struct core_task *task = new_task(core, n);
        if (!task) {
                core->error = -ENOMEM;
                return;
        }
        task->job = job;
        task->kind = job->phase == PHASE_TRAIN ? MFL_TASK_TRAIN : MFL_TASK_EVAL;
        task->owner_key = daemon->key;
        task->owner_instance = daemon->info.instance;
        mfl_core_task_attach(task, daemon);
        task->n_held = n;
        task->sent_ms = core->now_ms;
        if (daemon->resumes)
                mfl_round_unmeasure(task);
        daemon->resumes = false;
        task->job_next = job->tasks;
        job->tasks = task;
        memcpy(task->index, index, n * sizeof *index);
        for (uint32_t i = 0; i < n; i++) {
                mfl_assert(job->items[index[i]].state == ITEM_OPEN);
                mfl_core_item_set(job, index[i], ITEM_ASSIGNED, task);
        }
        daemon->items_total += n;
}

/* The daemon forgets its connection's oldest specs, so the ring here is the shorter one. */
static void send_spec(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        uint32_t n = MFL_MIN(daemon->n_specs, CORE_SPECS_MAX);
        for (uint32_t i = 0; i < n; i++)
                if (daemon->specs[i] == job->serial)
                        return;
        daemon->specs[daemon->n_specs++ % CORE_SPECS_MAX] = job->serial;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_JOB_SPEC);
        mfl_strcpy(msg->job, sizeof msg->job, job->id);
}

/* What the params would cost if every daemon fetched its own: the process keeps the newest ones. */
static void tell_cost(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation)
                return;
        if (relation->told && memcmp(relation->told_digest, job->digest, MFL_DIGEST_BYTES) == 0)
                return;
        uint64_t n = job->n_params - (relation->told ? job->n_frozen : 0); /* frozen ones it fetches once */
        relation->told = true;
        memcpy(relation->told_digest, job->digest, MFL_DIGEST_BYTES);
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_COST, job);
        mfl_core_node_label(daemon, action->cost.node);
        mfl_strcpy(action->cost.daemon, sizeof action->cost.daemon, daemon->info.name);
        action->cost.down = 4 * n;
}

static void send_task(struct mfl_core *core, const struct core_task *task, bool grouped)
{
        const struct core_job *job = task->job;
        send_spec(core, task->daemon, job);
        uint64_t *items = mfl_calloc(task->n_items, sizeof *items);
        if (!items) {
                core->error = -ENOMEM;
                return;
        }
        for (uint32_t i = 0; i < task->n_items; i++)
                items[i] = job->items[task->index[i]].item;
        struct mfl_task *t = &mfl_core_send(core, task->daemon, MFL_MSG_TASK)->task;
        *t = (struct mfl_task){.task = task->number,
                .round = job->round,
                .kind = task->kind,
                .n_items = task->n_items,
                .items = items,
                .n_params = job->n_params,
                .n_frozen = job->n_frozen,
                .fixed = job->fixed,
                .single_updates = mfl_job_needs_single_updates(job->spec),
                .fingerprint = mfl_core_daemon_data(task->daemon, job)->fingerprint,
                .params_from = task->params_from};
        mfl_strcpy(t->job, sizeof t->job, job->id);
        memcpy(t->params_digest, job->digest, MFL_DIGEST_BYTES);
        memcpy(t->frozen_digest, job->frozen_digest, MFL_DIGEST_BYTES);
        if (grouped && task->group)
                mfl_core_group_describe(task, &t->group);
        tell_cost(core, task->daemon, job);
}

/* The model of a job that mixes them depends on who trained what. That is worth a line, not a refusal. */
static void compare_numerics(struct mfl_core *core, const struct core_task *task)
{
        struct core_job *job = task->job;
        const struct mfl_daemon_info *info = &task->daemon->info;
        if (task->kind != MFL_TASK_TRAIN || job->numerics_mixed)
                return;
        if (!job->has_numerics) {
                job->has_numerics = true;
                mfl_strcpy(job->numerics, sizeof job->numerics, info->numerics);
        } else if (strcmp(job->numerics, info->numerics) != 0) {
                job->numerics_mixed = true;
                mfl_core_trace(core, job,
                        "MIXED ARITHMETIC: daemon %s trains with %s, others of this job with %s", info->name,
                        *info->numerics ? info->numerics : "what it does not tell",
                        *job->numerics ? job->numerics : "what they do not tell");
                mfl_core_trace(core, job,
                        "so the model depends on who trained what, and another run may differ in the last "
                        "bits");
        }
}

void mfl_core_task_send(struct mfl_core *core, struct core_task *task)
{
        compare_numerics(core, task);
        uint32_t n = task->n_items;
        mfl_core_trace(core, task->job, "round %u: daemon %s %s %u %s (task %u)", task->job->round,
                task->daemon->info.name, task->kind == MFL_TASK_TRAIN ? "trains" : "evaluates", n,
                task->kind == MFL_TASK_TRAIN ? (n == 1 ? "client" : "clients")
                                             : (n == 1 ? "shard" : "shards"),
                (uint32_t)task->number);
        send_task(core, task, true);
}

void mfl_core_task_send_again(struct mfl_core *core, struct core_task *task)
{
        task->params_from = 0;
        send_task(core, task, false);
}

void mfl_core_task_cancel(struct mfl_core *core, struct core_task *task, const char *reason)
{
        if (!task->daemon || !task->daemon->conn || !task->n_held)
                return;
        struct mfl_msg *msg = mfl_core_send(core, task->daemon, MFL_MSG_CANCEL);
        msg->cancel.task = task->number;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}

void mfl_core_task_offline(struct mfl_core *core, struct core_task *task)
{
        mfl_round_unmeasure(task);
        mfl_core_group_lose(core, task, "its connection is lost");
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state == UPDATE_QUEUED)
                        mfl_core_update_drop(core, task->updates[i]);
}

void mfl_core_task_take(struct mfl_core *core, struct core_task *task, enum item_state to)
{
        struct core_job *job = task->job;
        uint32_t n = 0;
        mfl_core_group_lose(core, task, "its task is taken back");
        if (task->daemon && task->daemon->job == job)
                task->daemon->items_total -= MFL_MIN(task->daemon->items_total, task->n_held);
        unlink_from_daemon(task);
        mfl_round_unmeasure(task);
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                        mfl_core_update_drop(core, task->updates[i]);
        for (uint32_t i = 0; i < task->n_items; i++) {
                struct core_item *item = &job->items[task->index[i]];
                if (item->task != task || task->cover[i] ||
                        MFL_SIM_BUG(2)) /* counted, refused, or on its way into the sum */
                        continue;
                mfl_core_item_set(job, task->index[i], to, NULL);
                n++;
        }
        mfl_assert(task->n_held >= n);
        task->n_held -= n;
        job->progress_samples -= task->progress_samples;
        job->progress_loss -= task->progress_loss;
        task->progress_samples = 0;
        task->progress_loss = 0;
        if (n && to == ITEM_OPEN)
                mfl_core_trace(core, job, "round %u: task %u is taken back; %u of its items go to others",
                        job->round, (uint32_t)task->number, n);
        else if (n)
                mfl_core_trace(core, job, "round %u: task %u is lost; %u clients are missing", job->round,
                        (uint32_t)task->number, n);
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}

/* ---- messages ---- */

static struct core_task *own_task(struct mfl_core *core, const struct core_daemon *daemon, uint64_t number)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, number);
        return task && task->daemon == daemon ? task : NULL;
}

static void on_failed(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = own_task(core, daemon, msg->failed.task);
        if (!task || !mfl_core_task_live(task))
                return;
        struct core_job *job = task->job;
        if (daemon->leaving && !msg->failed.permanent) { /* it crossed Leaving on its way */
                mfl_core_task_take(core, task, ITEM_OPEN);
                mfl_core_daemon_idle(core, daemon);
                return;
        }
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation)
                return;
        relation->fails++;
        if (msg->failed.permanent)
                relation->barred = true;
        else if (relation->fails >= CORE_FAILS_MAX) {
                relation->rest_stamp = job->stamp;
                relation->fails = 0;
        }
        mfl_snprintf(daemon->note, sizeof daemon->note, "%s: %.180s", job->id, msg->failed.reason);
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "daemon %s: %.170s", daemon->info.name,
                msg->failed.reason);
        mfl_core_trace(core, job, "round %u: daemon %s failed at task %u%s: %.120s", job->round,
                daemon->info.name, (uint32_t)task->number, msg->failed.permanent ? " for good" : "",
                msg->failed.reason);
        mfl_core_task_take(core, task, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
}

static void on_progress(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = own_task(core, daemon, msg->progress.task);
        if (!task) {
                /* It works on what nobody wants: free the device. What an earlier boot gave out may yet be
                 * wanted again; the agent matches that with the tasks it gets next. */
                if (msg->progress.task >> 32 != core->options.boot) {
                        daemon->resumes = true;
                        return;
                }
                struct mfl_msg *cancel = mfl_core_send(core, daemon, MFL_MSG_CANCEL);
                cancel->cancel.task = msg->progress.task;
                mfl_strcpy(cancel->cancel.reason, sizeof cancel->cancel.reason,
                        "the task is not wanted any more");
                return;
        }
        if (!mfl_core_task_live(task) || task->n_held < task->n_items ||
                msg->progress.items_done > task->n_items || msg->progress.items_done < task->progress_items ||
                msg->progress.samples_done > UINT32_MAX)
                return;
        daemon->items_done += msg->progress.items_done - task->progress_items;
        task->progress_items = msg->progress.items_done;
        task->job->progress_samples += msg->progress.samples_done - task->progress_samples;
        task->job->progress_loss +=
                (int64_t)((uint64_t)msg->progress.loss_sum - (uint64_t)task->progress_loss);
        task->progress_samples = msg->progress.samples_done;
        task->progress_loss = msg->progress.loss_sum;
}

void mfl_core_message(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task;
        switch (msg->kind) {
        case MFL_MSG_PING:
                mfl_core_send(core, daemon, MFL_MSG_PONG)->cookie = msg->cookie;
                break;
        case MFL_MSG_PONG:
        case MFL_MSG_PARAMS_GET: /* the shell answers that itself */
                break;
        case MFL_MSG_BYE:
                if (msg->bye.retry)
                        mfl_core_daemon_close(core, daemon, true, "it said bye: %.180s", msg->bye.reason);
                else
                        mfl_core_daemon_left(core, daemon, msg->bye.reason);
                break;
        case MFL_MSG_ANNOUNCE:
                mfl_core_announced(core, daemon, &msg->announce);
                break;
        case MFL_MSG_EVAL_RESULT:
                task = own_task(core, daemon, msg->eval.task);
                if (task && task->kind != MFL_TASK_EVAL)
                        mfl_core_daemon_close(core, daemon, true, "evaluation result for a training task");
                else if (task && mfl_core_task_live(task))
                        mfl_round_eval_result(core, daemon, task, msg->eval.items, msg->eval.n_items);
                break;
        case MFL_MSG_TASK_FAILED:
                on_failed(core, daemon, msg);
                break;
        case MFL_MSG_PROGRESS:
                on_progress(core, daemon, msg);
                break;
        case MFL_MSG_COMBINE_FAILED:
                mfl_core_group_failed(core, daemon, msg);
                break;
        case MFL_MSG_COMMUNICATOR_ID:
                mfl_core_group_communicator(core, daemon, msg);
                break;
        case MFL_MSG_LEAVING:
                mfl_core_daemon_leaving(core, daemon, msg->cancel.reason);
                break;
        default:
                mfl_core_daemon_close(
                        core, daemon, true, "message %u is not for a server", (unsigned)msg->kind);
        }
}
