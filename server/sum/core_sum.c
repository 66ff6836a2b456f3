/* SPDX-License-Identifier: Apache-2.0 */
/* Members and stages of one secure sum. */
#include "server/sum/core_sum.h"

#include "server/work/core_task.h"
#include "server/work/core_update.h"

/* How long the participants have to answer, but for the upload, which has the rest of the round's deadline, and at least a quarter of it and
 * so long: the sum may begin at the deadline. */
#define STEP_MS 30000
#define UPLOAD_MS ((uint64_t)5000)

struct core_update *mfl_core_sum_held(const struct core_task *task)
{
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state == UPDATE_HELD)
                        return task->updates[i];
        return NULL;
}

/* ---- life ---- */

int mfl_core_sum_begin(const struct core_job *job, struct core_task *const *tasks, uint32_t n,
        struct core_sum *sum, struct mfl_error *err)
{
        struct mfl_secure_msg keys = {0};
        uint32_t k, t;
        sum->due_ms = CORE_NEVER;
        int r = mfl_secure_degree(&job->spec->secure, n, &k, &t, err); /* no message has keys of more */
        if (r)
                return r;
        sum->v = mfl_calloc(n, sizeof *sum->v);
        r = sum->v ? 0 : mfl_fail_memory(err, n * sizeof *sum->v, "a secure sum");
        for (uint32_t i = 0; i < n && !r; i++) {
                struct core_update *update = mfl_core_sum_held(tasks[i]);
                sum->v[i] = (struct core_sum_member){.task = tasks[i]->number,
                        .conn = tasks[i]->daemon->conn,
                        .item = tasks[i]->index[update->announce.item_first]};
                update->bucket = sum->bucket;
                if (mfl_secure_msg_add(&keys, i, update->keys, update->n_keys))
                        r = mfl_fail_memory(err, update->n_keys, "keys");
        }
        if (!r)
                r = mfl_leader_new(&job->spec->secure, &keys, &sum->leader, err);
        if (!r)
                sum->n = n;
        mfl_secure_msg_deinit(&keys);
        return r;
}

void mfl_core_sum_deinit(struct core_sum *sum)
{
        mfl_leader_free(sum->leader);
        free(sum->v);
        free(sum->clients);
        *sum = (struct core_sum){0};
}

/* ---- members ---- */

static const struct core_sum_member *member(const struct core_sum *sum, uint32_t i)
{
        return &sum->v[mfl_leader_caller(sum->leader, i)];
}

uint32_t mfl_core_sum_member(const struct core_sum *sum, uint64_t task)
{
        for (uint32_t i = 0; i < sum->n; i++)
                if (member(sum, i)->task == task)
                        return i;
        return sum->n;
}

uint32_t mfl_core_sum_conn(const struct core_sum *sum, uint32_t i)
{
        return member(sum, i)->conn;
}

struct core_update *mfl_core_sum_update(
        const struct mfl_core *core, const struct core_sum *sum, uint32_t i, struct core_task **ret_task)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, member(sum, i)->task);
        *ret_task = task;
        for (uint32_t u = 0; task && u < task->n_items; u++)
                if (task->updates[u])
                        return task->updates[u];
        return NULL;
}

void mfl_core_sum_drop(struct mfl_core *core, struct core_sum *sum, uint32_t i, const char *reason)
{
        struct core_task *task;
        const struct core_update *update = mfl_core_sum_update(core, sum, i, &task);
        mfl_leader_lose(sum->leader, i);
        if (!task || !task->daemon || (update && update->state >= UPDATE_ADDING))
                return;
        mfl_core_task_cancel(core, task, reason);
        mfl_core_task_take(core, task, ITEM_MISSING);
}

void mfl_core_sum_watch(struct mfl_core *core, struct core_sum *sum)
{
        for (uint32_t i = 0; i < sum->n; i++) {
                struct core_task *task;
                const struct core_update *update = mfl_core_sum_update(core, sum, i, &task);
                bool here = task && task->daemon && task->daemon->conn == member(sum, i)->conn;
                if (mfl_leader_masked(sum->leader, i) && update && update->state == UPDATE_COUNTED)
                        mfl_leader_added(sum->leader, i);
                if (mfl_leader_takes(sum->leader, i) && (!here || !update || update->state == UPDATE_REFUSED))
                        mfl_core_sum_drop(core, sum, i, "it has left the secure sum");
        }
}

/* Whether the worker adds a member's update just now: who is in the sum is known when it has. */
static bool is_adding(const struct mfl_core *core, const struct core_sum *sum)
{
        for (uint32_t i = 0; i < sum->n; i++) {
                struct core_task *task;
                const struct core_update *update = mfl_core_sum_update(core, sum, i, &task);
                if (update && update->state == UPDATE_ADDING)
                        return true;
        }
        return false;
}

/* ---- stages ---- */

uint64_t mfl_core_sum_due(const struct core_job *job, const struct core_sum *sum)
{
        bool uploads = sum->leader && mfl_leader_stage(sum->leader) == MFL_LEADER_UPLOAD;
        return uploads ? MFL_MAX(sum->due_ms, job->deadline_ms) : sum->due_ms;
}

bool mfl_core_sum_over(const struct mfl_core *core, const struct core_job *job, const struct core_sum *sum)
{
        if (mfl_leader_stage(sum->leader) == MFL_LEADER_UPLOAD && is_adding(core, sum))
                return false;
        return mfl_leader_ready(sum->leader) || core->now_ms >= mfl_core_sum_due(job, sum);
}

void mfl_core_sum_send(struct mfl_core *core, const struct core_job *job, struct core_sum *sum)
{
        bool uploads = mfl_leader_stage(sum->leader) == MFL_LEADER_UPLOAD;
        uint64_t least = MFL_MAX(UPLOAD_MS, job->spec->limits.deadline_ms / 4);
        sum->due_ms = core->now_ms + (uploads ? least : STEP_MS);
        for (uint32_t i = 0; i < sum->n; i++) {
                struct mfl_secure_msg msg;
                struct core_task *task;
                mfl_core_sum_update(core, sum, i, &task);
                if (!mfl_leader_takes(sum->leader, i) || !task || !task->daemon || !task->daemon->conn)
                        continue;
                if (mfl_leader_message(sum->leader, i, &msg)) {
                        core->error = -ENOMEM;
                        return;
                }
                msg.task = task->number;
                mfl_core_send(core, task->daemon, MFL_MSG_SECURE)->secure = msg;
        }
        mfl_core_wake(core, mfl_core_sum_due(job, sum));
}

void mfl_core_sum_fail(struct mfl_core *core, struct core_job *job, struct core_sum *sum, const char *why)
{
        sum->state = CORE_SUM_FAILED;
        sum->due_ms = CORE_NEVER;
        mfl_strcpy(sum->why, sizeof sum->why, why);
        if (!sum->is_bucket)
                return;
        mfl_core_trace(core, job, "round %u: bucket %u of %u clients has no row: %.160s", job->round,
                sum->bucket + 1, sum->n, why);
        for (uint32_t i = 0; i < sum->n; i++)
                if (mfl_leader_takes(sum->leader, i))
                        mfl_core_sum_drop(core, sum, i, "its bucket's secure sum has failed");
}

void mfl_core_sum_advance(struct mfl_core *core, struct core_job *job, struct core_sum *sum)
{
        static const char *const done[] = {[MFL_LEADER_UPLOAD] = "shares are exchanged",
                [MFL_LEADER_SIGN] = "masked updates are added",
                [MFL_LEADER_OPEN] = "the survivors are signed",
                [MFL_LEADER_WHOLE] = "shares are opened"};
        char why[MFL_REASON_BYTES] = "";
        mfl_leader_advance(sum->leader, why, sizeof why);
        enum mfl_leader_stage stage = mfl_leader_stage(sum->leader);
        sum->due_ms = CORE_NEVER;
        if (stage == MFL_LEADER_FAILED) {
                mfl_core_sum_fail(core, job, sum, why);
                return;
        }
        if (sum->is_bucket)
                mfl_core_trace(core, job, "round %u: secure sum of bucket %u: %s", job->round,
                        sum->bucket + 1, done[stage]);
        else
                mfl_core_trace(core, job, "round %u: secure sum: %s", job->round, done[stage]);
        /* What is still on its way at SIGN would be added to the sum that is being opened. */
        for (uint32_t i = 0; i < sum->n && stage <= MFL_LEADER_SIGN; i++)
                if (!mfl_leader_takes(sum->leader, i))
                        mfl_core_sum_drop(core, sum, i, "the secure sum goes on without it");
        if (stage != MFL_LEADER_SIGN && stage != MFL_LEADER_WHOLE)
                mfl_core_sum_send(core, job, sum);
}

/* ---- buckets ---- */

static int compare_clients(const void *a, const void *b)
{
        const uint64_t *x = a, *y = b;
        return (*x > *y) - (*x < *y);
}

int mfl_core_sum_clients(const struct core_job *job, struct core_sum *sum)
{
        sum->clients = mfl_calloc(sum->n, sizeof *sum->clients);
        if (!sum->clients)
                return -ENOMEM;
        for (uint32_t i = 0; i < sum->n; i++)
                if (mfl_leader_survives(sum->leader, i))
                        sum->clients[sum->n_clients++] = job->items[member(sum, i)->item].item;
        qsort(sum->clients, sum->n_clients, sizeof *sum->clients, compare_clients);
        return 0;
}

uint32_t mfl_core_sum_counted(const struct core_job *job, const struct core_sum *sum)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < sum->n && sum->state != CORE_SUM_FAILED; i++)
                n += job->items[sum->v[i].item].state == ITEM_COUNTED;
        return n;
}

void mfl_core_sum_uncount(struct core_job *job, const struct core_sum *sum)
{
        for (uint32_t i = 0; i < sum->n; i++)
                if (job->items[sum->v[i].item].state == ITEM_COUNTED)
                        mfl_core_item_set(job, sum->v[i].item, ITEM_MISSING, NULL);
}
