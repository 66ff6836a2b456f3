/* SPDX-License-Identifier: Apache-2.0 */
/* A group's life: daemons of one node whose updates are added before one of them uploads the sum. See core.h,
 * "Nodes".
 *
 *   GATHER --every member is ready, or the rest is late--> COMBINE --the sum is here--> ADDING --ADDED-->
 * counted |                                                       |                            |
 *     +-- fewer than two, or nccl and one is out ----> ended: each by itself <-------------+ refused
 *
 * Member r's update waits as GROUPED. From COMBINE on the leader's one stands in the queue, and then in a
 * slot, for all of them. A task leaves its group for good.
 */
#include "server/core_internal.h"

/* What a group adds of a task is all of it in one update. */
static struct core_update *update_of(const struct core_group *group, uint32_t rank)
{
        const struct core_task *task = group->members[rank].task;
        struct core_update *update = task && task->cover[0] ? task->updates[task->cover[0] - 1] : NULL;
        return update && update->group == group ? update : NULL;
}

static uint32_t rank_of(const struct core_task *task)
{
        uint32_t rank = 0;
        while (task->group->members[rank].task != task)
                rank++;
        return rank;
}

static bool is_connected(const struct core_task *task)
{
        return task->daemon && task->daemon->conn;
}

static uint32_t count_members(const struct core_group *group, uint32_t *ret_ready)
{
        uint32_t n = 0;
        *ret_ready = 0;
        for (uint32_t r = 0; r < group->n_members; r++) {
                n += group->members[r].task != NULL;
                *ret_ready += update_of(group, r) != NULL;
        }
        return n;
}

uint64_t mfl_core_group_weight(const struct core_group *group)
{
        uint64_t weight = 0;
        if (MFL_SIM_BUG(24))
                return update_of(group, group->leader)->announce.weight;
        for (uint32_t r = 0; r < group->n_members; r++) {
                const struct core_update *update = update_of(group, r);
                weight += update ? update->announce.weight : 0;
        }
        return weight;
}

void mfl_core_group_describe(const struct core_task *task, struct mfl_group *ret_group)
{
        const struct core_group *group = task->group;
        *ret_group = (struct mfl_group){.group = group->number,
                .collective = group->collective,
                .rank = rank_of(task),
                .n_members = group->n_members,
                .workers = group->workers,
                .communicator = group->communicator};
        for (uint32_t r = 0; r < group->n_members; r++)
                ret_group->members[r] = group->members[r].instance;
}

/* ---- leaving and ending ---- */

static void send_alone(struct mfl_core *core, struct core_task *task, const char *reason)
{
        task->params_from = 0;
        if (!is_connected(task))
                return;
        struct mfl_msg *msg = mfl_core_send(core, task->daemon, MFL_MSG_ALONE);
        msg->cancel.task = task->number;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}

static void free_group(struct core_group *group)
{
        struct core_group **at = &group->job->groups;
        while (*at != group)
                at = &(*at)->next;
        *at = group->next;
        free(group);
}

/* Its task is by itself from here on. stays: so its update, if it has one, waits for a slot. */
static void release(
        struct mfl_core *core, struct core_group *group, uint32_t rank, bool stays, const char *reason)
{
        struct core_update *update = update_of(group, rank);
        struct core_task *task = group->members[rank].task;
        stays = stays && is_connected(task);
        group->members[rank].task = NULL;
        task->group = NULL;
        if (update)
                update->group = NULL;
        if (stays)
                send_alone(core, task, reason);
        if (update && stays && MFL_SIM_BUG(21))
                update->state = UPDATE_FILLING;
        else if (update && stays)
                mfl_core_update_enqueue(core, update);
        else if (update)
                mfl_core_update_drop(core, update);
}

/* Every member by itself. quiet: nobody is told, and nothing waits, because nothing is wanted any more. */
static void end_group(struct mfl_core *core, struct core_group *group, const struct core_task *lost,
        bool quiet, const char *reason)
{
        struct core_job *job = group->job;
        bool refused = group->state == GROUP_ADDING;
        struct core_task *taken[MFL_GROUP_MAX];
        uint32_t n_taken = 0;
        mfl_core_trace(
                core, job, "round %u: group %u ends: %.180s", job->round, (uint32_t)group->number, reason);
        if (group->state == GROUP_COMBINE)
                mfl_core_update_unslot(core, update_of(group, group->leader));
        for (uint32_t r = 0; refused && r < group->n_members; r++)
                if (group->members[r].task)
                        update_of(group, r)->state = UPDATE_GROUPED;
        for (uint32_t r = 0; r < group->n_members; r++) {
                struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                release(core, group, r, !quiet && task != lost, reason);
                if (!quiet && task != lost && !task->daemon)
                        taken[n_taken++] = task;
        }
        if (group->communicator && !refused &&
                (group->state == GROUP_COMBINE || !mfl_core_comm_is_passed(core, group->communicator)))
                mfl_core_comm_lost(core, group->communicator, false, reason);
        free_group(group);
        for (uint32_t i = 0; i < n_taken; i++) /* the sum would have had its clients; now others do them */
                mfl_core_task_take(core, taken[i], ITEM_OPEN);
        mfl_core_dirty(core, job);
}

void mfl_core_groups_end(struct mfl_core *core, struct core_job *job, const char *reason)
{
        for (struct core_group *group = job->groups, *next; group; group = next) {
                next = group->next;
                if (group->state != GROUP_ADDING)
                        end_group(core, group, NULL, true, reason);
        }
}

void mfl_core_groups_free(struct core_job *job)
{
        while (job->groups)
                free_group(job->groups);
}

/* ---- gathering ---- */

/* Of a round that ends before, half: a sum that hangs until the round is over is nobody's fault, and the next
 * attempt would hang in the same way. */
static uint32_t combine_ms(const struct mfl_core *core, const struct core_job *job)
{
        uint64_t ms = CORE_COMBINE_MS + (job->n_params - job->n_frozen) * 8 * 1000 / CORE_COMBINE_BYTES_PER_S;
        if (job->deadline_ms != CORE_NEVER)
                ms = MFL_MIN(ms, job->deadline_ms > core->now_ms ? (job->deadline_ms - core->now_ms) / 2 : 0);
        return (uint32_t)MFL_MIN(MFL_MAX(ms, (uint64_t)1), (uint64_t)3600000);
}

static void send_combine(struct mfl_core *core, const struct core_group *group, uint32_t rank, uint64_t ranks)
{
        struct mfl_msg *msg = mfl_core_send(core, group->members[rank].task->daemon, MFL_MSG_COMBINE);
        msg->combine.group = group->number;
        msg->combine.ranks = ranks;
        msg->combine.leader = group->leader;
        msg->combine.deadline_ms = combine_ms(core, group->job);
}

/* Who is not ready uploads by itself when it is; it need not be told. */
static void combine(struct mfl_core *core, struct core_group *group)
{
        const struct core_job *job = group->job;
        uint64_t ranks = 0;
        uint32_t n = 0;
        for (uint32_t r = group->n_members; r-- > 0;) {
                struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                if (update_of(group, r)) {
                        ranks |= (uint64_t)1 << r;
                        group->leader = r;
                        n++;
                } else {
                        task->group = NULL;
                        group->members[r].task = NULL;
                }
        }
        mfl_assert(n >= 2);
        if (MFL_SIM_BUG(23))
                ranks = ((uint64_t)2 << (group->n_members - 1)) - 1;
        group->state = GROUP_COMBINE;
        group->limit_ms = CORE_NEVER;
        mfl_core_trace(core, job, "round %u: group %u adds %u updates, daemon %s uploads the sum", job->round,
                (uint32_t)group->number, n, group->members[group->leader].task->daemon->info.name);
        for (uint32_t r = 0; r < group->n_members; r++)
                if (group->members[r].task &&
                        (r == group->leader || group->collective == MFL_COLLECTIVE_NCCL))
                        send_combine(core, group, r, ranks);
        mfl_core_update_enqueue(core, update_of(group, group->leader));
}

/* A deadline to combine should not pass while the leader makes an id. */
static bool has_communicator(const struct mfl_core *core, const struct core_group *group)
{
        return group->collective != MFL_COLLECTIVE_NCCL || mfl_core_comm_is_passed(core, group->communicator);
}

static void settle(struct mfl_core *core, struct core_group *group, const char *reason)
{
        uint32_t n_ready, n = count_members(group, &n_ready);
        if (n < 2)
                end_group(core, group, NULL, false, reason);
        else if (n_ready == n && has_communicator(core, group))
                combine(core, group);
        else if (!n_ready)
                group->limit_ms = CORE_NEVER;
}

/* NCCL's communicator has all of its members or none; and a sum that somebody is adding has theirs. */
static void leave(struct mfl_core *core, struct core_task *task, bool stays, const char *reason)
{
        struct core_group *group = task->group;
        const struct core_job *job = task->job;
        if (!group || group->state == GROUP_ADDING)
                return;
        if (group->state == GROUP_COMBINE && MFL_SIM_BUG(20))
                return;
        if (group->state == GROUP_COMBINE || group->collective == MFL_COLLECTIVE_NCCL) {
                end_group(core, group, stays ? NULL : task, false, reason);
                return;
        }
        mfl_core_trace(core, job, "round %u: task %u leaves group %u: %.160s", job->round,
                (uint32_t)task->number, (uint32_t)group->number, reason);
        release(core, group, rank_of(task), stays, reason);
        settle(core, group, reason);
}

void mfl_core_group_lose(struct mfl_core *core, struct core_task *task, const char *reason)
{
        leave(core, task, false, reason);
}

void mfl_core_group_alone(struct mfl_core *core, struct core_task *task, const char *reason)
{
        if (task->group)
                leave(core, task, true, reason);
        else
                send_alone(core, task, reason);
}

void mfl_core_group_fetcher_lost(struct mfl_core *core, struct core_daemon *daemon)
{
        char reason[MFL_REASON_BYTES];
        mfl_snprintf(
                reason, sizeof reason, "daemon %s, which fetched the params, is lost", daemon->info.name);
        for (struct core_daemon *d = daemon->node ? daemon->node->first : NULL; d; d = d->node_next) {
                if (d == daemon || !d->conn)
                        continue;
                for (struct core_task *task = d->tasks; task; task = task->daemon_next)
                        if (task->params_from && task->params_from == daemon->info.instance &&
                                !task->n_covered && mfl_core_task_live(task))
                                mfl_core_group_alone(core, task, reason);
        }
}

bool mfl_core_group_takes(const struct core_task *task, const struct mfl_announce *a)
{
        const struct core_group *group = task->group;
        return group && a->group == group->number && group->state == GROUP_GATHER &&
               a->item_count == task->n_items && a->n_rejected < a->item_count;
}

/* As long again as the first one took, since equal times are what was dealt; but not past half of what is
 * left of the round, so that there is time to upload. */
static void start_patience(struct mfl_core *core, struct core_group *group, const struct core_task *task)
{
        const struct core_job *job = group->job;
        uint64_t ms = MFL_MAX(core->now_ms - task->sent_ms, (uint64_t)CORE_PATIENCE_MS);
        if (job->deadline_ms != CORE_NEVER)
                ms = MFL_MIN(ms, job->deadline_ms > core->now_ms ? (job->deadline_ms - core->now_ms) / 2 : 0);
        group->limit_ms = core->now_ms + ms;
        mfl_core_wake(core, group->limit_ms);
}

void mfl_core_group_ready(struct mfl_core *core, struct core_update *update)
{
        struct core_group *group = update->task->group;
        update->state = UPDATE_GROUPED;
        update->group = group;
        if (group->limit_ms == CORE_NEVER)
                start_patience(core, group, update->task);
        settle(core, group, "");
}

/* Its leader may live and yet never send the sum: its collective, or its thread, hangs. */
static void give_up(struct mfl_core *core, struct core_group *group)
{
        static const char reason[] = "the sum takes too long";
        if (MFL_SIM_BUG(22)) {
                group->limit_ms = CORE_NEVER;
                return;
        }
        mfl_core_comm_lost(core, group->communicator, true, reason);
        end_group(core, group, NULL, false, reason);
}

static void lose_patience(struct mfl_core *core, struct core_group *group)
{
        static const char late[] = "the others of the node take longer";
        static const char no_id[] = "the communicator takes too long";
        uint32_t n_ready, n = count_members(group, &n_ready);
        if (n_ready == n) {
                mfl_core_comm_lost(core, group->communicator, true, no_id);
                end_group(core, group, NULL, false, no_id);
        } else if (group->collective == MFL_COLLECTIVE_NCCL) {
                end_group(core, group, NULL, false, late);
        } else if (n_ready > 1) {
                combine(core, group);
        } else {
                uint32_t r = 0;
                while (!update_of(group, r))
                        r++;
                leave(core, group->members[r].task, true, late);
        }
}

void mfl_core_group_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        for (struct core_group *group = job->groups, *next; group; group = next) {
                next = group->next;
                if (core->now_ms < group->limit_ms)
                        *next_ms = MFL_MIN(*next_ms, group->limit_ms);
                else if (group->state == GROUP_GATHER)
                        lose_patience(core, group);
                else
                        give_up(core, group);
        }
}

/* ---- the sum ---- */

uint64_t mfl_core_group_granted(struct mfl_core *core, struct core_group *group)
{
        const struct core_job *job = group->job;
        uint64_t combined_ms = core->now_ms + combine_ms(core, job);
        group->limit_ms = combined_ms + (job->n_params - job->n_frozen) * 8 * 1000 / CORE_UPLOAD_BYTES_PER_S;
        mfl_core_wake(core, group->limit_ms);
        return combined_ms;
}

void mfl_core_group_stalled(struct mfl_core *core, struct core_group *group)
{
        end_group(core, group, NULL, false, "its leader sends nothing");
}

void mfl_core_group_adding(struct core_group *group)
{
        group->limit_ms = CORE_NEVER;
        group->state = GROUP_ADDING;
        for (uint32_t r = 0; r < group->n_members; r++)
                if (group->members[r].task)
                        update_of(group, r)->state = UPDATE_ADDING;
}

void mfl_core_group_added(struct mfl_core *core, struct core_group *group, bool ok, const char *reason)
{
        const struct core_job *job = group->job;
        struct core_update *counted[MFL_GROUP_MAX];
        uint32_t n = 0;
        if (!ok) {
                end_group(core, group, NULL, job->phase != PHASE_TRAIN, reason);
                return;
        }
        mfl_core_comm_proven(core, group->communicator);
        for (uint32_t r = 0; r < group->n_members; r++) {
                struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                counted[n++] = update_of(group, r);
                counted[n - 1]->group = NULL;
                task->group = NULL;
                group->members[r].task = NULL;
        }
        free_group(group);
        for (uint32_t i = 0; i < n; i++)
                mfl_core_update_count(core, counted[i]);
}

void mfl_core_group_unopened(struct mfl_core *core, struct core_group *group, const char *reason)
{
        end_group(core, group, NULL, false, reason);
}

/* ---- messages ---- */

static struct core_task *member_by(const struct core_daemon *daemon, uint64_t group, uint64_t communicator)
{
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->group && task->group->state != GROUP_ADDING &&
                        (group ? task->group->number == group : task->group->communicator == communicator))
                        return task;
        return NULL;
}

void mfl_core_group_failed(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_task *task = msg->cancel.task ? member_by(daemon, msg->cancel.task, 0) : NULL;
        char reason[MFL_REASON_BYTES];
        if (!task)
                return; /* it ended in the meantime */
        mfl_snprintf(reason, sizeof reason, "daemon %s: %.160s", daemon->info.name, msg->cancel.reason);
        mfl_core_comm_lost(core, task->group->communicator, true, reason);
        leave(core, task, true, reason);
}

void mfl_core_group_communicator(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        uint64_t number = msg->communicator.communicator;
        struct core_task *task = number ? member_by(daemon, 0, number) : NULL;
        struct core_group *group = task ? task->group : NULL;
        char reason[MFL_REASON_BYTES];
        if (!group) {
                if (!msg->communicator.made)
                        mfl_core_comm_broken(core, number, daemon->info.instance);
                return;
        }
        if (!msg->communicator.made) {
                mfl_snprintf(reason, sizeof reason, "daemon %s: %.160s", daemon->info.name,
                        msg->communicator.reason);
                mfl_core_comm_lost(core, number, true, reason);
                leave(core, task, true, reason);
                return;
        }
        if (group->members[0].task != task || mfl_core_comm_is_passed(core, number))
                return;
        for (uint32_t r = 1; r < group->n_members; r++)
                mfl_core_send(core, group->members[r].task->daemon, MFL_MSG_COMMUNICATOR_ID)->communicator =
                        msg->communicator;
        mfl_core_comm_passed(core, number);
        settle(core, group, "");
}
