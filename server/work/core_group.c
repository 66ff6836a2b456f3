/* SPDX-License-Identifier: Apache-2.0 */
/* A group's life: gathering, combining, ending. */
#include "server/work/core_group.h"

#include "server/work/core_reclaim.h"
#include "server/work/core_update.h"

/* Once a member is ready, the others have at least this long. */
#define PATIENCE_MS 2000
/* The time limit to combine: this, and a second for this many bytes of the sum. That is a hundredth of the
 * speed of memory, so only a collective that hangs is too late. */
#define COMBINE_MS 10000
#define COMBINE_BYTES_PER_S (64u << 20)
/* A sum that comes more slowly is given up: its leader hangs, or the members are faster alone. */
#define UPLOAD_BYTES_PER_S (1u << 20)

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
                *ret_ready += mfl_core_member_update(group, r) != NULL;
        }
        return n;
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

static void wait_alone(struct mfl_core *core, struct core_update *update)
{
        if (update->announce.masked)
                mfl_core_update_hold(update);
        else
                mfl_core_update_enqueue(core, update);
}

/* Takes the member out of its group. stays: it is told, and its update, if it is ready, waits for a slot. */
static void release(
        struct mfl_core *core, struct core_group *group, uint32_t rank, bool stays, const char *reason)
{
        struct core_update *update = mfl_core_member_update(group, rank);
        struct core_task *task = group->members[rank].task;
        stays = stays && is_connected(task);
        group->members[rank].task = NULL;
        task->group = NULL;
        if (update)
                update->group = NULL;
        if (stays)
                send_alone(core, task, reason);
        if (update && stays)
                wait_alone(core, update);
        else if (update)
                mfl_core_update_drop(core, update);
}

static const char *first_member(
        const struct mfl_core *core, const struct core_group *group, char owner[CORE_OWNER_BYTES])
{
        uint32_t r = 0;
        while (r < group->n_members && !group->members[r].task)
                r++;
        mfl_assert(r < group->n_members);
        return mfl_core_task_owner(core, group->members[r].task, owner);
}

/* Takes every member out. quiet: members are not told, and their updates are dropped, because nothing is
 * wanted any longer. */
static void end_group(struct mfl_core *core, struct core_group *group, const struct core_task *lost,
        bool quiet, const char *reason)
{
        struct core_job *job = group->job;
        bool refused = group->state == GROUP_ADDING;
        struct core_task *taken[MFL_GROUP_MAX];
        uint32_t n_taken = 0;
        char owner[CORE_OWNER_BYTES];
        mfl_core_trace(core, job, "round %u: the group with %s ends: %.180s", job->round,
                first_member(core, group, owner), reason);
        if (group->state == GROUP_COMBINE)
                mfl_core_update_unslot(core, mfl_core_member_update(group, group->leader));
        for (uint32_t r = 0; refused && r < group->n_members; r++)
                if (group->members[r].task)
                        mfl_core_update_move(mfl_core_member_update(group, r), UPDATE_GROUPED);
        for (uint32_t r = 0; r < group->n_members; r++) {
                struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                release(core, group, r, !quiet && task != lost && !job->secure, reason);
                if (!quiet && task != lost && (!task->daemon || job->secure))
                        taken[n_taken++] = task;
        }
        if (group->communicator && !refused &&
                (group->state == GROUP_COMBINE || !mfl_core_comm_is_passed(core, group->communicator)))
                mfl_core_comm_lost(core, group->communicator, false, reason);
        mfl_core_group_free(group);
        for (uint32_t i = 0; i < n_taken; i++) {
                if (job->secure) /* whose participants are settled */
                        mfl_core_task_cancel(core, taken[i], reason);
                /* their clients were in the sum; now other daemons train them */
                mfl_core_task_reclaim(core, taken[i], job->secure ? ITEM_MISSING : ITEM_OPEN);
        }
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

/* ---- gathering ---- */

/* At most half of the time left to the deadline: if a sum hung until the round is over, nobody would be to
 * blame, and the next attempt would hang too. */
static uint32_t combine_ms(const struct mfl_core *core, const struct core_job *job)
{
        uint64_t ms = COMBINE_MS + (job->n_params - job->n_frozen) * 8 * 1000 / COMBINE_BYTES_PER_S;
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

/* Members that are not ready upload alone later; they need not be told. */
static void combine(struct mfl_core *core, struct core_group *group)
{
        const struct core_job *job = group->job;
        uint64_t ranks = 0;
        uint32_t n = 0;
        for (uint32_t r = group->n_members; r-- > 0;) {
                struct core_task *task = group->members[r].task;
                if (!task)
                        continue;
                if (mfl_core_member_update(group, r)) {
                        ranks |= (uint64_t)1 << r;
                        group->leader = r;
                        n++;
                } else {
                        task->group = NULL;
                        group->members[r].task = NULL;
                }
        }
        mfl_assert(n >= 2);
        mfl_core_group_move(group, GROUP_COMBINE);
        group->limit_ms = CORE_NEVER;
        mfl_core_trace(core, job, "round %u: %u daemons add their updates; daemon %s leads", job->round, n,
                group->members[group->leader].task->daemon->info.name);
        for (uint32_t r = 0; r < group->n_members; r++)
                if (group->members[r].task &&
                        (r == group->leader || group->collective == MFL_COLLECTIVE_NCCL))
                        send_combine(core, group, r, ranks);
        struct core_update *update = mfl_core_member_update(group, group->leader);
        if (!update->announce.masked) {
                mfl_core_update_enqueue(core, update);
                return;
        }
        mfl_core_update_hold(update); /* its keys show that the sum is there */
        group->limit_ms = core->now_ms + combine_ms(core, job);
        mfl_core_wake(core, group->limit_ms);
}

void mfl_core_group_combined(struct core_group *group)
{
        if (group->state == GROUP_COMBINE)
                group->limit_ms = CORE_NEVER;
}

/* The time limit to combine must not run while the leader makes an id. */
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

/* A communicator needs all of its members, and a sum that is being combined includes all of them: the
 * group ends. */
static void leave(struct mfl_core *core, struct core_task *task, bool stays, const char *reason)
{
        struct core_group *group = task->group;
        const struct core_job *job = task->job;
        char owner[CORE_OWNER_BYTES];
        if (!group || group->state == GROUP_ADDING)
                return;
        if (group->state == GROUP_COMBINE || group->collective == MFL_COLLECTIVE_NCCL) {
                end_group(core, group, stays ? NULL : task, false, reason);
                return;
        }
        mfl_core_trace(core, job, "round %u: %s leaves its group: %.160s", job->round,
                mfl_core_task_owner(core, task, owner), reason);
        release(core, group, mfl_core_member_rank(task), stays, reason);
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

/* As long as the first member took, since pieces are dealt for equal times. At most half of the time left
 * to the deadline, so that there is time to upload. */
static void start_patience(struct mfl_core *core, struct core_group *group, const struct core_task *task)
{
        const struct core_job *job = group->job;
        uint64_t ms = MFL_MAX(core->now_ms - task->sent_ms, (uint64_t)PATIENCE_MS);
        if (job->deadline_ms != CORE_NEVER)
                ms = MFL_MIN(ms, job->deadline_ms > core->now_ms ? (job->deadline_ms - core->now_ms) / 2 : 0);
        group->limit_ms = core->now_ms + ms;
        mfl_core_wake(core, group->limit_ms);
}

void mfl_core_group_ready(struct mfl_core *core, struct core_update *update)
{
        struct core_group *group = update->task->group;
        mfl_core_update_move(update, UPDATE_GROUPED);
        update->group = group;
        if (group->limit_ms == CORE_NEVER)
                start_patience(core, group, update->task);
        settle(core, group, "");
}

/* A leader may be alive and yet never send the sum, because its collective or its thread hangs. */
static void give_up(struct mfl_core *core, struct core_group *group)
{
        static const char reason[] = "the sum takes too long";
        mfl_core_comm_lost(core, group->communicator, true, reason);
        end_group(core, group, NULL, false, reason);
}

static void lose_patience(struct mfl_core *core, struct core_group *group)
{
        static const char late[] = "the other daemons of the node take longer";
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
                while (!mfl_core_member_update(group, r))
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
        group->limit_ms = combined_ms + (job->n_params - job->n_frozen) * 8 * 1000 / UPLOAD_BYTES_PER_S;
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
        mfl_core_group_move(group, GROUP_ADDING);
        for (uint32_t r = 0; r < group->n_members; r++)
                if (group->members[r].task)
                        mfl_core_update_move(mfl_core_member_update(group, r), UPDATE_ADDING);
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
                counted[n++] = mfl_core_member_update(group, r);
                counted[n - 1]->group = NULL;
                task->group = NULL;
                group->members[r].task = NULL;
        }
        mfl_core_group_free(group);
        for (uint32_t i = 0; i < n; i++)
                mfl_core_update_count(core, counted[i]);
}

void mfl_core_group_ungranted(struct core_group *group)
{
        mfl_assert(group->state == GROUP_COMBINE);
        group->limit_ms = CORE_NEVER;
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
                return; /* the group ended in the meantime */
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
