/* SPDX-License-Identifier: Apache-2.0 */
/* Forming groups when work is dealt, and the check of all invariants of groups. */
#include "server/work/core_group.h"

#include "proto/version.h"

/* Marks the daemons of this deal, and counts their tasks in it. */
static void mark(struct mfl_core *core, struct core_task *const *tasks, uint32_t n)
{
        core->deal++;
        for (uint32_t i = 0; i < n; i++) {
                struct core_daemon *daemon = tasks[i]->daemon;
                if (daemon->deal != core->deal)
                        daemon->n_dealt = 0;
                daemon->deal = core->deal;
                daemon->n_dealt++;
        }
}

static bool is_candidate(const struct mfl_core *core, const struct core_daemon *daemon)
{
        return daemon->conn && daemon->deal == core->deal && daemon->n_dealt == 1 &&
               daemon->tasks->kind == MFL_TASK_TRAIN;
}

/* The updates of daemons below a relay are added there. */
static bool is_direct(const struct mfl_core *core, const struct core_daemon *daemon)
{
        return is_candidate(core, daemon) && !daemon->info.relay[0];
}

/* A confused or hostile daemon may claim another daemon's instance, by which members tell each other
 * apart. */
static bool has_instance(const struct core_group *group, uint64_t instance)
{
        for (uint32_t r = 0; r < group->n_members; r++)
                if (group->members[r].instance == instance)
                        return true;
        return false;
}

/* The daemon's task of this deal is its newest one. */
static void add_member(struct core_group *group, struct core_daemon *daemon)
{
        struct core_member *member = &group->members[group->n_members++];
        member->instance = daemon->info.instance;
        member->task = daemon->tasks;
        member->task->group = group;
        member->task->was_grouped = true;
        group->workers += MFL_MAX(daemon->info.workers, 1u);
}

/* A daemon has one communicator at a time, and an unfinished group needs its own. */
static bool is_in_another(const struct core_daemon *daemon, const struct core_group *group)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->group && task->group != group && task->group->communicator)
                        return true;
        return false;
}

static void choose_collective(
        struct mfl_core *core, struct core_group *group, const struct core_node *node, bool nccl)
{
        uint64_t instances[MFL_GROUP_MAX];
        group->collective = MFL_COLLECTIVE_SHM;
        nccl = nccl && !group->job->spec->secure.bits && /* figures stand behind sums on the host */
               mfl_method_adds_on_device(group->job->spec);
        for (uint32_t r = 0; r < group->n_members; r++) {
                nccl = nccl && !is_in_another(group->members[r].task->daemon, group);
                instances[r] = group->members[r].instance;
        }
        group->communicator = nccl ? mfl_core_comm_number(core, node, instances, group->n_members) : 0;
        if (group->communicator)
                group->collective = MFL_COLLECTIVE_NCCL;
}

/* Only one member is left: the others had its instance. */
static void dissolve(struct core_job *job, struct core_group *group)
{
        group->members[0].task->group = NULL;
        group->members[0].task->was_grouped = false;
        job->groups = group->next;
        free(group);
}

/* NULL: memory is out. */
static struct core_group *new_group(struct mfl_core *core, struct core_job *job, uint32_t n)
{
        struct core_group *group = mfl_calloc(1, sizeof *group + n * sizeof *group->members);
        if (!group) {
                core->error = -ENOMEM;
                return NULL;
        }
        group->number = mfl_core_number(core);
        group->job = job;
        group->state = GROUP_GATHER;
        group->limit_ms = CORE_NEVER;
        group->next = job->groups;
        job->groups = group;
        return group;
}

/* Forms a group of the next n candidates from *at on. */
static void form_group(struct mfl_core *core, struct core_job *job, const struct core_node *node, uint32_t n,
        bool nccl, struct core_daemon **at)
{
        struct core_group *group = new_group(core, job, n);
        char label[MFL_NODE_BYTES];
        if (!group)
                return;
        for (; n > 0; *at = (*at)->node_next) {
                if (!is_direct(core, *at))
                        continue;
                if (!has_instance(group, (*at)->info.instance))
                        add_member(group, *at);
                n--;
        }
        if (group->n_members < 2) {
                dissolve(job, group);
                return;
        }
        choose_collective(core, group, node, nccl);
        mfl_core_node_label(group->members[0].task->daemon, label);
        mfl_core_trace(core, job, "round %u: %u daemons of node %s form a group by %s; daemon %s comes first",
                job->round, group->n_members, label,
                group->collective == MFL_COLLECTIVE_NCCL ? "nccl" : "shm",
                group->members[0].task->daemon->info.name);
}

/* Forms as few groups as possible, of about equal size. */
static void form_groups(struct mfl_core *core, struct core_job *job, const struct core_node *node)
{
        uint32_t n = 0;
        for (const struct core_daemon *d = node->first; d; d = d->node_next)
                n += is_direct(core, d);
        if (n < 2)
                return;
        uint32_t n_groups = (n + MFL_GROUP_MAX - 1) / MFL_GROUP_MAX;
        bool nccl = mfl_core_node_nccl(node, core->deal);
        struct core_daemon *at = node->first;
        for (uint32_t i = 0; i < n_groups && !core->error; i++)
                form_group(core, job, node, (n + i) / n_groups, nccl, &at);
}

/* ---- relays ---- */

/* Whether both are below the same relay of this server. */
static bool shares_relay(const struct core_daemon *a, const struct core_daemon *b)
{
        size_t n = strcspn(a->info.relay, "/");
        return n && n == strcspn(b->info.relay, "/") && !memcmp(a->info.relay, b->info.relay, n);
}

/* A daemon of an earlier release does not make sums; its update goes up as it comes. */
static bool fits_relay(
        const struct mfl_core *core, const struct core_task *first, const struct core_task *task)
{
        return !task->group && is_candidate(core, task->daemon) &&
               task->daemon->info.protocol >= MFL_PROTOCOL_RELAYS &&
               shares_relay(first->daemon, task->daemon);
}

/* A group of the first task and of those behind it that are below the same relay. */
static void form_relay(
        struct mfl_core *core, struct core_job *job, struct core_task *const *tasks, uint32_t n_tasks)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_tasks && n < MFL_GROUP_MAX; i++)
                n += fits_relay(core, tasks[0], tasks[i]);
        struct core_group *group = n < 2 ? NULL : new_group(core, job, n);
        if (!group)
                return;
        for (uint32_t i = 0; i < n_tasks && n > 0; i++) {
                if (!fits_relay(core, tasks[0], tasks[i]))
                        continue;
                if (!has_instance(group, tasks[i]->daemon->info.instance))
                        add_member(group, tasks[i]->daemon);
                n--;
        }
        if (group->n_members < 2) {
                dissolve(job, group);
                return;
        }
        group->collective = MFL_COLLECTIVE_RELAY;
        const struct core_daemon *daemon = group->members[0].task->daemon;
        mfl_core_trace(core, job, "round %u: %u daemons below relay %.*s form a group; daemon %s comes first",
                job->round, group->n_members, (int)strcspn(daemon->info.relay, "/"), daemon->info.relay,
                daemon->info.name);
}

static void form_relays(
        struct mfl_core *core, struct core_job *job, struct core_task *const *tasks, uint32_t n)
{
        for (uint32_t i = 0; i < n && !core->error; i++)
                if (tasks[i]->daemon->info.relay[0] && fits_relay(core, tasks[i], tasks[i]))
                        form_relay(core, job, tasks + i, n - i);
}

/* It has been told, or will be now, to lay the params where others of its node can read them. One that was not may have read them
 * from a third one's memory, where the others don't look. */
static bool shares_params(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        if (!daemon->conn || daemon->job != job)
                return false;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->job == job && (daemon->deal == core->deal || task->shares_params))
                        return true;
        return false;
}

/* Also one that is alone now is told, for those to whom its clients may go. */
static void choose_fetcher(const struct mfl_core *core, struct core_task *task)
{
        const struct core_daemon *d = task->daemon->node->first;
        while (d && !shares_params(core, d, task->job))
                d = d->node_next;
        task->params_from = d ? d->info.instance : 0;
        task->shares_params = d == task->daemon;
}

/* Of a secure sum, if each node is one. */
static uint32_t count_participants(
        const struct mfl_core *core, struct core_task *const *tasks, uint32_t n_tasks)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_tasks; i++) {
                bool first = true;
                for (uint32_t j = 0; j < i && first; j++)
                        first = tasks[j]->daemon->node != tasks[i]->daemon->node ||
                                !is_direct(core, tasks[i]->daemon) || !is_direct(core, tasks[j]->daemon);
                n += first;
        }
        return n;
}

void mfl_core_groups_form(struct mfl_core *core, struct core_job *job, struct core_task **tasks, uint32_t n)
{
        /* Of a node's daemons each may be in another bucket. */
        bool adds = job->phase == PHASE_TRAIN && !mfl_job_needs_single_updates(job->spec) &&
                    !mfl_job_sums_buckets(job->spec);
        if (job->base) /* a daemon has a task for each version, and a group takes one task of each */
                return;
        mark(core, tasks, n);
        bool masks = adds && job->spec->secure.bits;
        adds = adds && (!masks || count_participants(core, tasks, n) >= MFL_SECURE_LEAST);
        for (uint32_t i = 0; i < n && !core->error; i++) {
                struct core_node *node = tasks[i]->daemon->node;
                if (node->n < 2)
                        continue;
                choose_fetcher(core, tasks[i]);
                if (adds && node->deal != core->deal)
                        form_groups(core, job, node);
                node->deal = core->deal;
        }
        if (adds && !masks) /* a relay must not see updates, either */
                form_relays(core, job, tasks, n);
}

/* ---- invariants ---- */

static void check_member(const struct core_group *group, const struct core_task *task)
{
        const struct core_update *update = NULL;
        mfl_assert(task->group == group && task->job == group->job && task->kind == MFL_TASK_TRAIN);
        mfl_assert(group->state == GROUP_ADDING || (task->daemon && task->daemon->conn));
        mfl_assert(group->state == GROUP_ADDING || mfl_core_task_live(task));
        for (uint32_t i = 0; i < task->n_items; i++) {
                if (!task->updates[i])
                        continue;
                mfl_assert(!update &&
                           task->updates[i]->group == group); /* one update for the whole task, or none yet */
                update = task->updates[i];
        }
        if (group->state == GROUP_GATHER) {
                mfl_assert(!update || update->state == UPDATE_GROUPED);
                return;
        }
        bool leads = task == group->members[group->leader].task;
        mfl_assert(update && update->announce.item_count == task->n_items);
        if (group->state == GROUP_ADDING)
                mfl_assert(update->state == UPDATE_ADDING);
        else if (leads)
                mfl_assert(update->state == UPDATE_QUEUED || update->state == UPDATE_FILLING ||
                           (update->state == UPDATE_HELD && update->announce.masked));
        else
                mfl_assert(update->state == UPDATE_GROUPED);
}

static uint32_t check_group(const struct mfl_core *core, const struct core_group *group)
{
        uint32_t n = 0, n_ready = 0;
        mfl_assert(group->n_members >= 2 && group->n_members <= MFL_GROUP_MAX);
        mfl_assert((group->collective == MFL_COLLECTIVE_NCCL) == (group->communicator != 0));
        for (uint32_t r = 0; r < group->n_members; r++) {
                const struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                check_member(group, task);
                n++;
                n_ready += task->n_covered > 0;
        }
        mfl_assert(n >= 2 && (n == group->n_members || group->collective != MFL_COLLECTIVE_NCCL));
        bool lacks_id = group->communicator != 0 && !mfl_core_comm_is_passed(core, group->communicator);
        if (group->state == GROUP_GATHER)
                mfl_assert((n_ready < n || lacks_id) && (group->limit_ms == CORE_NEVER) == (n_ready == 0));
        else
                mfl_assert(group->members[group->leader].task != NULL);
        return n;
}

void mfl_core_group_check(const struct mfl_core *core, const struct core_job *job)
{
        uint32_t n = 0, n_tasks = 0;
        for (const struct core_group *group = job->groups; group; group = group->next) {
                mfl_assert(group->job == job);
                mfl_assert(job->phase == PHASE_TRAIN || group->state == GROUP_ADDING);
                n += check_group(core, group);
        }
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                n_tasks += task->group != NULL;
        mfl_assert(n == n_tasks); /* each of these tasks is a member of its group */
}
