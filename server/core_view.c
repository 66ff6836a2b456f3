/* SPDX-License-Identifier: Apache-2.0 */
/* What lists and watchers see of the core, the fixed-point limits of a job, and the check of every invariant.
 */
#include "server/core_internal.h"

int mfl_core_fixed(const struct mfl_job *spec, uint32_t train_samples, uint32_t population,
        struct mfl_fixed *ret_fixed, struct mfl_error *err)
{
        bool local = spec->data.partition == MFL_PARTITION_LOCAL;
        uint64_t weight_max = 1;
        if (spec->aggregation.weighting == MFL_WEIGHT_UNIFORM)
                weight_max = local ? (uint64_t)1 << 20 : MFL_MAX(mfl_job_cohort_size(spec, population), 1u);
        else if (local)
                weight_max = (uint64_t)1 << 36;
        else
                while (weight_max < train_samples)
                        weight_max *= 2;
        return mfl_fixed_choose(spec->aggregation.delta_max, weight_max, ret_fixed, err);
}

static const char *phase_name(enum core_phase phase)
{
        switch (phase) {
        case PHASE_TRAIN:
        case PHASE_CLOSING:
                return "train";
        case PHASE_APPLY:
                return "apply";
        case PHASE_EVAL:
                return "evaluate";
        case PHASE_STORE:
        case PHASE_TRAINED:
                return "commit";
        default:
                return "wait";
        }
}

/* A phase under way whose daemons are all gone is no state of its own, but whoever looks wants to know. */
static void tell_lost(const struct mfl_core *core, const struct core_job *job, struct mfl_core_job_view *view)
{
        bool works = job->phase == PHASE_TRAIN || job->phase == PHASE_EVAL;
        if (!works || job->n_leased_up || *view->reason)
                return;
        bool outdated = false;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                if (mfl_core_daemon_usable(daemon, job)) {
                        mfl_strcpy(view->reason, sizeof view->reason, "waits for its turn");
                        return;
                }
                outdated = outdated || (daemon->conn && mfl_core_daemon_outdated(daemon, job));
        }
        mfl_snprintf(view->reason, sizeof view->reason, "no daemon with data set %s%s is connected",
                job->spec->data.name, outdated ? " that knows frozen params (protocol 2)" : "");
}

int mfl_core_job_view(const struct mfl_core *core, const char *id, struct mfl_core_job_view *ret_view)
{
        const struct core_job *job = mfl_core_job(core, id);
        if (!job)
                return MFL_NOT_FOUND;
        struct mfl_core_job_view view = {.state = job->state,
                .phase = phase_name(job->phase),
                .committed = job->committed,
                .in_round = job->phase >= PHASE_TRAIN && job->phase != PHASE_OVER ? job->round : 0,
                .attempt = job->attempt,
                .clients_done = job->count[ITEM_COUNTED] + job->count[ITEM_REJECTED],
                .clients_total = job->n_items,
                .daemons = job->n_leased,
                .samples_done = job->record.samples + job->progress_samples};
        if (view.samples_done && view.in_round)
                view.train_loss = mfl_fixed_loss_to_double(job->train_loss + job->progress_loss) /
                                  (double)view.samples_done;
        mfl_strcpy(view.reason, sizeof view.reason, job->reason);
        tell_lost(core, job, &view);
        *ret_view = view;
        return 0;
}

uint32_t mfl_core_daemon_count(const struct mfl_core *core)
{
        return core->n_daemons;
}

static const char *task_state(const struct core_daemon *daemon)
{
        const char *state = "idle";
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next) {
                if (!mfl_core_task_live(task))
                        continue;
                if (task->kind == MFL_TASK_EVAL)
                        return "evaluating";
                for (uint32_t i = 0; i < task->n_items; i++) {
                        uint32_t u = task->cover[i];
                        if (!u)
                                return "training";
                }
                state = "uploading";
        }
        return state;
}

void mfl_core_daemon_view(const struct mfl_core *core, uint32_t i, struct mfl_core_daemon_view *ret_view)
{
        mfl_assert(i < core->n_daemons);
        const struct core_daemon *daemon = core->daemons[i];
        struct mfl_core_daemon_view view = {.info = &daemon->info,
                .conn = daemon->conn,
                .state = task_state(daemon),
                .items_done = daemon->items_done,
                .items_total = daemon->items_total,
                .samples_per_second = daemon->samples_per_second,
                .clients_per_second = daemon->clients_per_second,
                .connected_ms = daemon->connected_ms};
        if (!daemon->conn)
                view.state = "lost";
        else if (!mfl_core_daemon_takes_work(daemon))
                view.state = strcmp(view.state, "idle") ? "draining" : "drained";
        if (daemon->job) {
                mfl_strcpy(view.job, sizeof view.job, daemon->job->id);
                view.round = daemon->job->round;
        }
        mfl_strcpy(view.note, sizeof view.note, daemon->note);
        mfl_core_node_label(daemon, view.node);
        mfl_core_node_view(core, daemon, &view);
        *ret_view = view;
}

/* ---- invariants ---- */

static const struct core_update *update_of_leader(const struct core_group *group)
{
        if (group->state == GROUP_GATHER)
                return NULL;
        const struct core_task *task = group->members[group->leader].task;
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i])
                        return task->updates[i];
        return NULL;
}

static void check_task(const struct core_task *task, uint64_t *weight, uint32_t *n_adding)
{
        const struct core_job *job = task->job;
        uint32_t n_held = 0, n_covered = 0;
        for (uint32_t i = 0; i < task->n_items; i++) {
                const struct core_item *item = &job->items[task->index[i]];
                mfl_assert(task->index[i] < job->n_items);
                n_covered += task->cover[i] != 0;
                n_held += item->task == task;
                mfl_assert(!task->cover[i] || task->updates[task->cover[i] - 1]);
                const struct core_update *update = task->updates[i];
                if (!update)
                        continue;
                mfl_assert(update->task == task && update->announce.update == i);
                bool of_slot = !update->group || update == update_of_leader(update->group);
                mfl_assert(!update->group || update->group == task->group);
                mfl_assert(update->group || update->state != UPDATE_GROUPED);
                if (of_slot && (update->state == UPDATE_FILLING || update->state == UPDATE_ADDING))
                        mfl_assert(update->slot < job->n_slots && job->slots[update->slot] == update);
                if (update->state != UPDATE_REFUSED)
                        *weight += update->announce.weight;
                *n_adding += of_slot && update->state == UPDATE_ADDING;
                mfl_assert(update->state == UPDATE_ADDING || task->daemon || update->state >= UPDATE_COUNTED);
        }
        mfl_assert(n_held == task->n_held && n_covered == task->n_covered);
}

static void check_job(const struct mfl_core *core, const struct core_job *job)
{
        uint32_t count[ITEM_STATES_] = {0}, n_adding = 0, n_up = 0;
        uint64_t weight = 0;
        for (uint32_t i = 0; i < job->n_items; i++) {
                const struct core_item *item = &job->items[i];
                mfl_assert(!i || job->items[i - 1].item < item->item);
                mfl_assert((item->state == ITEM_ASSIGNED) == (item->task != NULL));
                mfl_assert(!item->task || item->task->job == job);
                count[item->state]++;
        }
        mfl_assert(memcmp(count, job->count, sizeof count) == 0);
        for (const struct core_task *task = job->tasks; task; task = task->job_next) {
                mfl_assert(mfl_core_map_get(&core->tasks, task->number) == task && task->job == job);
                check_task(task, &weight, &n_adding);
        }
        mfl_assert(n_adding == job->n_adding && n_adding <= job->n_pending);
        if (job->phase == PHASE_TRAIN || job->phase == PHASE_CLOSING) {
                mfl_assert(weight == job->weight_claimed && weight <= job->fixed.weight_max);
                mfl_assert(job->weight_counted <= job->weight_claimed);
        }
        for (const struct core_update *u = job->queue_head; u; u = u->queue_next)
                mfl_assert(u->state == UPDATE_QUEUED && u->task->daemon && u->task->daemon->conn);
        for (uint32_t i = 0; i < job->n_leased; i++) {
                mfl_assert(job->leased[i]->job == job && job->leased[i]->lease == i);
                n_up += job->leased[i]->conn != 0;
        }
        mfl_assert(n_up == job->n_leased_up);
        const struct core_store *store = &job->store;
        bool ahead = store->round && job->round == store->round + 1;
        mfl_assert(job->round == job->committed + 1 + ahead || job->committed == job->spec->rounds);
        mfl_assert(!store->round || store->round == job->committed + 1);
        mfl_assert(!ahead || (store->complete && job->phase != PHASE_APPLY && job->phase != PHASE_STORE));
        mfl_assert(job->phase != PHASE_TRAINED || ahead);
        bool works = job->phase == PHASE_TRAIN || job->phase == PHASE_EVAL || job->phase == PHASE_CLOSING;
        mfl_assert(works || job->phase == PHASE_OVER || (!job->tasks && !job->n_leased));
        mfl_core_group_check(core, job);
        for (uint32_t s = 0; job->slots && s < job->n_slots; s++)
                mfl_assert(!job->slots[s] || (job->slots[s]->slot == s && job->slots[s]->task->job == job));
}

void mfl_core_check(const struct mfl_core *core)
{
        uint32_t n_up = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                mfl_assert(daemon->position == i && mfl_core_map_get(&core->by_key, daemon->key) == daemon);
                mfl_assert(!daemon->conn || mfl_core_map_get(&core->by_conn, daemon->conn) == daemon);
                for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                        mfl_assert(task->daemon == daemon);
                n_up += daemon->conn != 0;
        }
        mfl_assert(n_up == core->by_conn.n && core->by_key.n == core->n_daemons);
        mfl_core_node_check(core);
        for (const struct core_job *job = core->jobs; job; job = job->next)
                check_job(core, job);
}
