/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: giving work to daemons, and taking it back. */
#include "server/work/core_task.h"

#include "server/work/core_group.h"
#include "server/work/core_member.h"
#include "server/work/core_reclaim.h"
#include "server/work/core_team.h"
#include "server/work/core_update.h"

void mfl_core_task_give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon,
        const uint32_t *index, uint32_t n)
{
        mfl_assert(n > 0 && n <= MFL_ITEMS_MAX && daemon->job == job);
        struct core_task *task = mfl_core_task_new(core, daemon, n);
        if (!task) {
                core->error = -ENOMEM;
                return;
        }
        task->job = job;
        task->kind = job->phase == PHASE_TRAIN ? MFL_TASK_TRAIN : MFL_TASK_EVAL;
        task->n_held = n;
        task->unmeasured = daemon->resumes;
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

/* The daemon keeps more specs per connection than this ring has. */
void mfl_core_task_spec(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        uint32_t n = MFL_MIN(daemon->n_specs, CORE_SPECS_MAX);
        for (uint32_t i = 0; i < n; i++)
                if (daemon->specs[i] == job->serial)
                        return;
        daemon->specs[daemon->n_specs++ % CORE_SPECS_MAX] = job->serial;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_JOB_SPEC);
        mfl_strcpy(msg->job, sizeof msg->job, job->id);
}

/* Reports the bytes that the params would cost if every daemon fetched them itself. A process keeps its
 * newest params. */
static void tell_cost(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job, const uint8_t *digest)
{
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation)
                return;
        if (relation->told && memcmp(relation->told_digest, digest, MFL_DIGEST_BYTES) == 0)
                return;
        uint64_t n = job->n_params - (relation->told ? job->n_frozen : 0); /* it fetches frozen params once */
        relation->told = true;
        memcpy(relation->told_digest, digest, MFL_DIGEST_BYTES);
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_COST, job);
        mfl_core_node_label(daemon, action->cost.node);
        mfl_strcpy(action->cost.daemon, sizeof action->cost.daemon, daemon->info.name);
        action->cost.down = 4 * n;
}

_Static_assert(MFL_STALENESS_MAX <= MFL_TASK_STALENESS_MAX, "every staleness can be told");

static void send_task(struct mfl_core *core, const struct core_task *task, bool grouped)
{
        const struct core_job *job = task->job;
        mfl_core_task_spec(core, task->daemon, job);
        const struct core_task *trained = task->member ? mfl_core_team_lead(task) : task;
        uint64_t *items = mfl_calloc(trained->n_items, sizeof *items);
        if (!items) {
                core->error = -ENOMEM;
                return;
        }
        for (uint32_t i = 0; i < trained->n_items; i++)
                items[i] = job->items[trained->index[i]].item;
        struct mfl_task *t = &mfl_core_send(core, task->daemon, MFL_MSG_TASK)->task;
        *t = (struct mfl_task){.task = task->number,
                .round = mfl_core_item_round(job, trained->index[0]),
                .kind = task->kind,
                .stands = task->kind == MFL_TASK_TRAIN && mfl_job_is_live(job->spec),
                .n_items = trained->n_items,
                .items = items,
                .n_params = job->n_params,
                .n_frozen = job->n_frozen,
                .fixed = job->fixed,
                .arithmetic = job->spec->arithmetic,
                .single_updates = mfl_job_needs_single_updates(job->spec),
                .fingerprint = mfl_core_daemon_data(task->daemon, job)->fingerprint,
                .params_from = task->params_from};
        mfl_strcpy(t->job, sizeof t->job, job->id);
        const uint8_t *digest = mfl_core_item_params(job, trained->index[0]);
        memcpy(t->params_digest, digest, MFL_DIGEST_BYTES);
        t->staleness = t->stands ? 0 : mfl_core_item_staleness(job, trained->index[0]);
        memcpy(t->frozen_digest, job->frozen_digest, MFL_DIGEST_BYTES);
        if (grouped && task->group)
                mfl_core_group_describe(task, &t->group);
        if (task->team)
                if (mfl_core_team_describe(task, &t->team))
                        core->error = -ENOMEM;
        t->participants = task->kind == MFL_TASK_EVAL ? 0 : job->n_items;
        t->n_method = (uint32_t)mfl_method_get(job->spec)->n_state;
        memcpy(t->method, job->method, t->n_method * sizeof *t->method);
        tell_cost(core, task->daemon, job, digest);
}

/* If a job mixes arithmetics, its model depends on which daemon trained which client. That deserves a line
 * in the log, not a refusal. */
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
                        "MIXED ARITHMETIC: daemon %s trains with %s, other daemons of this job with %s",
                        info->name, *info->numerics ? info->numerics : "unknown arithmetic",
                        *job->numerics ? job->numerics : "unknown arithmetic");
                mfl_core_trace(core, job,
                        "so the model depends on which daemon trained which client, and another run may "
                        "differ in the last bits");
        }
}

void mfl_core_task_send(struct mfl_core *core, struct core_task *task)
{
        compare_numerics(core, task);
        uint32_t n = task->n_items;
        if (task->kind != MFL_TASK_ASSIST)
                mfl_core_trace(core, task->job, "round %u: daemon %s %s %u %s", task->job->round,
                        task->daemon->info.name, task->kind == MFL_TASK_TRAIN ? "trains" : "evaluates", n,
                        task->kind == MFL_TASK_TRAIN ? (n == 1 ? "client" : "clients")
                                                     : (n == 1 ? "shard" : "shards"));
        send_task(core, task, true);
}

void mfl_core_task_send_again(struct mfl_core *core, struct core_task *task)
{
        /* One whose params others may read lays them, also if it has not got them yet. */
        task->params_from = task->shares_params ? task->owner_instance : 0;
        send_task(core, task, false);
}

void mfl_core_task_offline(struct mfl_core *core, struct core_task *task)
{
        task->unmeasured = true;
        if (task->recall == RECALL_ASKED)
                mfl_core_task_recall_move(task, RECALL_NONE);
        mfl_core_group_lose(core, task, "its connection is lost");
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state == UPDATE_QUEUED)
                        mfl_core_update_drop(core, task->updates[i]);
}

/* ---- messages ---- */

void mfl_core_task_take(struct mfl_core *core, struct core_task *task, enum item_state to)
{
        mfl_core_team_lose(core, task, "a member's task is taken back");
        mfl_core_group_lose(core, task, "its task is taken back");
        mfl_core_task_reclaim(core, task, to);
}
