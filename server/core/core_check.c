/* SPDX-License-Identifier: Apache-2.0 */
/* The check of every invariant, for tests and the simulator. */
#include "server/core/core.h"
#include "server/state/state.h"
#include "server/work/core_group.h"
#include "server/work/core_team.h"

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
                mfl_assert(update->state != UPDATE_NEW);
                mfl_assert(update->group || update->state != UPDATE_GROUPED);
                if (of_slot && (update->state == UPDATE_FILLING || update->state == UPDATE_ADDING))
                        mfl_assert(update->slot < job->n_slots && job->slots[update->slot].update == update);
                if (update->state != UPDATE_REFUSED)
                        *weight += update->announce.weight;
                *n_adding += of_slot && update->state == UPDATE_ADDING;
                mfl_assert(update->state == UPDATE_ADDING || task->daemon || update->state >= UPDATE_COUNTED);
        }
        mfl_assert(n_held == task->n_held && n_covered == task->n_covered);
}

static void check_slot(const struct core_job *job, uint32_t s)
{
        const struct core_update *update = job->slots[s].update;
        mfl_assert(!update || (update->slot == s && update->task->job == job));
        mfl_assert(!update || update->state == UPDATE_FILLING || update->state == UPDATE_ADDING);
        mfl_assert(!update || job->slots[s].grant);
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
                mfl_assert(weight == job->weight_claimed && job->weight_counted <= weight);
                /* In real time more are announced than count. */
                uint64_t summed = mfl_job_is_live(job->spec) ? job->weight_counted : weight;
                mfl_assert(summed <= job->fixed.weight_max);
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
        mfl_core_team_check(job);
        for (uint32_t s = 0; job->slots && s < job->n_slots; s++)
                check_slot(job, s);
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
        mfl_core_site_check(core);
        mfl_assert(n_up == core->by_conn.n && core->by_key.n == core->n_daemons);
        mfl_core_node_check(core);
        for (const struct core_job *job = core->jobs; job; job = job->next)
                check_job(core, job);
}
