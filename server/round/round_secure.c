/* SPDX-License-Identifier: Apache-2.0 */
/* Participants, stages, and the end of a round's secure sum. */
#include "server/round/round_secure.h"

#include "server/round/round_cohort.h"
#include "server/round/round_job.h"
#include "server/secure/leader.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"
#include "server/work/core_update.h"

/* How long the participants have to answer, but for the upload, which has the rest of the round's deadline. */
#define STEP_MS 30000

struct member {
        uint64_t task;
        uint32_t conn;
};

struct core_secure {
        struct mfl_leader *leader; /* NULL: it never began */
        uint32_t n;
        struct member *v;
        uint64_t due_ms; /* CORE_NEVER: no stage is due */
        bool waits;      /* for the worker's answer */
        enum round_secure end;
        char why[MFL_REASON_BYTES];
        uint64_t figures[MFL_SECURE_FIGURES];
};

static struct core_update *held_of(const struct core_task *task)
{
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state == UPDATE_HELD)
                        return task->updates[i];
        return NULL;
}

/* Whose update takes part for it: its own, or that of its node's leader; NULL: the node's sum is not ordered yet. */
static const struct core_task *speaker(const struct core_task *task)
{
        const struct core_group *group = task->group;
        if (!group)
                return task;
        return group->state == GROUP_COMBINE ? group->members[group->leader].task : NULL;
}

static bool is_ready(const struct core_task *task)
{
        const struct core_task *by = speaker(task);
        const struct core_update *update = by ? held_of(by) : NULL;
        return update && update->keys && by->daemon && by->daemon->conn;
}

static bool is_participant(const struct core_task *task)
{
        return speaker(task) == task && is_ready(task);
}

static bool is_open(const struct core_secure *secure)
{
        return secure && !secure->end;
}

static void end(struct core_secure *secure, enum round_secure how, const char *why)
{
        secure->end = how;
        secure->due_ms = CORE_NEVER;
        mfl_strcpy(secure->why, sizeof secure->why, why);
}

/* ---- members ---- */

/* The update of member i, in whatever state; NULL: it was dropped. */
static struct core_update *update_of(const struct mfl_core *core, const struct core_secure *secure,
        uint32_t i, struct core_task **ret_task)
{
        struct core_task *task =
                mfl_core_map_get(&core->tasks, secure->v[mfl_leader_caller(secure->leader, i)].task);
        *ret_task = task;
        for (uint32_t u = 0; task && u < task->n_items; u++)
                if (task->updates[u])
                        return task->updates[u];
        return NULL;
}

/* Its clients are missing; what is in the sum stays there. */
static void drop_member(struct mfl_core *core, struct core_secure *secure, uint32_t i, const char *reason)
{
        struct core_task *task;
        const struct core_update *update = update_of(core, secure, i, &task);
        mfl_leader_lose(secure->leader, i);
        if (!task || !task->daemon || (update && update->state >= UPDATE_ADDING))
                return;
        mfl_core_task_cancel(core, task, reason);
        mfl_core_task_take(core, task, ITEM_MISSING);
}

static void watch_members(struct mfl_core *core, struct core_job *job)
{
        struct core_secure *secure = job->secure;
        for (uint32_t i = 0; i < secure->n; i++) {
                struct core_task *task;
                const struct core_update *update = update_of(core, secure, i, &task);
                uint32_t conn = secure->v[mfl_leader_caller(secure->leader, i)].conn;
                bool here = task && task->daemon && task->daemon->conn == conn;
                if (mfl_leader_masked(secure->leader, i) && update && update->state == UPDATE_COUNTED)
                        mfl_leader_added(secure->leader, i);
                if (mfl_leader_takes(secure->leader, i) &&
                        (!here || !update || update->state == UPDATE_REFUSED))
                        drop_member(core, secure, i, "it has left the secure sum");
        }
}

static void send_stage(struct mfl_core *core, struct core_job *job)
{
        struct core_secure *secure = job->secure;
        bool uploads = mfl_leader_stage(secure->leader) == MFL_LEADER_UPLOAD;
        secure->due_ms = uploads ? CORE_NEVER : core->now_ms + STEP_MS;
        for (uint32_t i = 0; i < secure->n; i++) {
                struct mfl_secure_msg msg;
                struct core_task *task;
                update_of(core, secure, i, &task);
                if (!mfl_leader_takes(secure->leader, i) || !task || !task->daemon || !task->daemon->conn)
                        continue;
                if (mfl_leader_message(secure->leader, i, &msg)) {
                        core->error = -ENOMEM;
                        return;
                }
                msg.task = task->number;
                mfl_core_send(core, task->daemon, MFL_MSG_SECURE)->secure = msg;
        }
        if (secure->due_ms != CORE_NEVER)
                mfl_core_wake(core, secure->due_ms);
}

/* ---- the beginning ---- */

/* Nobody has something left to do that could come in time. */
static bool is_gathered(const struct core_job *job)
{
        uint32_t n = 0;
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                if (is_ready(task))
                        n += task->n_held;
        return n && n == job->count[ITEM_ASSIGNED];
}

/* Who is late is out, and so are clients that nobody has. */
static void drop_rest(struct mfl_core *core, struct core_job *job)
{
        for (struct core_task *task = job->tasks; task; task = task->job_next)
                if (!is_ready(task) && task->daemon && mfl_core_task_live(task)) {
                        mfl_core_task_cancel(core, task, "the secure sum begins without it");
                        mfl_core_task_take(core, task, ITEM_MISSING);
                }
        for (uint32_t i = 0; i < job->n_items; i++)
                if (job->items[i].state == ITEM_OPEN)
                        mfl_core_item_set(job, i, ITEM_MISSING, NULL);
}

static int list_members(struct core_job *job, struct core_secure *secure, struct mfl_secure_msg *ret_keys)
{
        uint32_t n = 0;
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                n += is_participant(task);
        secure->v = mfl_calloc(MFL_MAX(n, 1u), sizeof *secure->v);
        if (!secure->v)
                return -ENOMEM;
        for (const struct core_task *task = job->tasks; task && n <= MFL_SECURE_MEMBERS_MAX;
                task = task->job_next) {
                const struct core_update *update = held_of(task);
                if (!is_participant(task))
                        continue;
                secure->v[secure->n] = (struct member){task->number, task->daemon->conn};
                if (mfl_secure_msg_add(ret_keys, secure->n++, update->keys, update->n_keys))
                        return -ENOMEM;
        }
        return 0;
}

static void begin(struct mfl_core *core, struct core_job *job)
{
        struct mfl_secure_msg keys = {0};
        struct mfl_error err = {{0}};
        struct core_secure *secure = job->secure = mfl_calloc(1, sizeof *secure);
        if (!secure) {
                core->error = -ENOMEM;
                return;
        }
        secure->due_ms = CORE_NEVER;
        drop_rest(core, job);
        int r = list_members(job, secure, &keys);
        if (!r)
                r = mfl_leader_new(&job->spec->secure, &keys, &secure->leader, &err);
        mfl_secure_msg_deinit(&keys);
        if (r < 0) {
                core->error = -ENOMEM;
        } else if (r) {
                end(secure, ROUND_SECURE_RETRY, err.text);
        } else {
                mfl_core_trace(
                        core, job, "round %u: the secure sum of %u daemons begins", job->round, secure->n);
                send_stage(core, job);
        }
}

/* ---- stages ---- */

static void order(struct mfl_core *core, struct core_job *job, enum mfl_core_action_kind kind)
{
        job->secure->waits = true;
        job->n_pending++;
        struct mfl_core_action *action = mfl_core_act(core, kind, job);
        action->round = job->round;
        action->leader = job->secure->leader;
}

/* Opening the sum of too few clients would help nobody, and forbid another try. */
static bool below_quorum(struct core_job *job)
{
        uint32_t counted = job->count[ITEM_COUNTED], need = mfl_round_quorum(job);
        if (mfl_leader_stage(job->secure->leader) != MFL_LEADER_UPLOAD || counted >= need)
                return false;
        char why[MFL_REASON_BYTES];
        mfl_snprintf(why, sizeof why, "only %u of its clients are in the secure sum", counted);
        end(job->secure, ROUND_SECURE_RETRY, why);
        return true;
}

static void advance(struct mfl_core *core, struct core_job *job)
{
        static const char *const done[] = {[MFL_LEADER_UPLOAD] = "shares are exchanged",
                [MFL_LEADER_SIGN] = "masked updates are added",
                [MFL_LEADER_OPEN] = "the survivors are signed",
                [MFL_LEADER_WHOLE] = "shares are opened"};
        struct core_secure *secure = job->secure;
        char why[MFL_REASON_BYTES] = "";
        if (below_quorum(job))
                return;
        bool opened = mfl_leader_opens(secure->leader);
        mfl_leader_advance(secure->leader, why, sizeof why);
        enum mfl_leader_stage stage = mfl_leader_stage(secure->leader);
        secure->due_ms = CORE_NEVER;
        if (stage == MFL_LEADER_FAILED) {
                end(secure, opened ? ROUND_SECURE_SKIP : ROUND_SECURE_RETRY, why);
                return;
        }
        mfl_core_trace(core, job, "round %u: secure sum: %s", job->round, done[stage]);
        for (uint32_t i = 0; i < secure->n && stage == MFL_LEADER_UPLOAD; i++)
                if (!mfl_leader_takes(secure->leader, i))
                        drop_member(core, secure, i, "the secure sum goes on without it");
        if (stage == MFL_LEADER_SIGN)
                order(core, job, MFL_ACT_SECURE_NOTE);
        else if (stage == MFL_LEADER_WHOLE)
                order(core, job, MFL_ACT_UNMASK);
        else
                send_stage(core, job);
}

const char *mfl_round_secure_progress(struct mfl_core *core, struct core_job *job, const char *over)
{
        if (!job->n_items)
                return over;
        if (!job->secure && !over && !is_gathered(job))
                return NULL;
        bool late = over && job->deadline_ms != CORE_NEVER && core->now_ms >= job->deadline_ms;
        bool any = job->secure || is_gathered(job) || late;
        for (const struct core_task *task = job->tasks; task && !any; task = task->job_next)
                any = is_ready(task);
        if (!any) /* nothing to add */
                return over;
        if (!job->secure)
                begin(core, job);
        while (!core->error && is_open(job->secure) && !job->secure->waits) {
                watch_members(core, job);
                if (!mfl_leader_ready(job->secure->leader) && !late && core->now_ms < job->secure->due_ms)
                        return NULL;
                late = false;
                advance(core, job);
        }
        return core->error || is_open(job->secure) ? NULL : job->secure->why;
}

void mfl_round_secure_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        if (!is_open(job->secure) || job->phase != PHASE_TRAIN)
                return;
        if (core->now_ms >= job->secure->due_ms)
                mfl_core_dirty(core, job);
        else
                *next_ms = MFL_MIN(*next_ms, job->secure->due_ms);
}

/* ---- messages ---- */

static int add_who(const struct core_daemon *daemon, uint64_t who[MFL_SECURE_WHO_WORDS])
{
        uint64_t own[MFL_SECURE_WHO_WORDS];
        struct mfl_error err;
        if (!daemon || mfl_secure_who(daemon->info.name, own, &err))
                return MFL_INVALID;
        for (uint32_t i = 0; i < MFL_SECURE_WHO_WORDS; i++)
                who[i] += own[i];
        return 0;
}

/* Keys of a node's sum may be on their way when the group ends: they are not those of the update alone, whose keys follow. */
static bool are_due(const struct core_task *task, const struct mfl_secure_msg *msg)
{
        const struct core_group *group = task->group;
        uint64_t who[MFL_SECURE_WHO_WORDS] = {0};
        struct mfl_secure_keys keys;
        struct mfl_error err;
        if (!task->was_grouped)
                return true;
        int r = mfl_secure_keys_read(msg->bytes + msg->parts[0].at, msg->parts[0].n, &keys, &err);
        if (!r && !group)
                r = add_who(task->daemon, who);
        for (uint32_t i = 0; !r && group && i < group->n_members; i++)
                if (group->members[i].task)
                        r = add_who(group->members[i].task->daemon, who);
        return !r && !memcmp(keys.who, who, sizeof who);
}

static void keep_keys(struct mfl_core *core, struct core_task *task, const struct mfl_secure_msg *msg)
{
        struct core_update *update = held_of(task);
        if (!update || msg->n_parts != 1 || !are_due(task, msg))
                return;
        uint8_t *keys = mfl_malloc(msg->n_bytes);
        if (!keys) {
                core->error = -ENOMEM;
                return;
        }
        memcpy(keys, msg->bytes, msg->n_bytes);
        free(update->keys);
        update->keys = keys;
        update->n_keys = msg->n_bytes;
        if (update->group)
                mfl_core_group_combined(update->group);
}

/* Its number in the sum; n: it has none. */
static uint32_t member_of(const struct core_secure *secure, uint64_t task)
{
        for (uint32_t i = 0; i < secure->n; i++)
                if (secure->v[mfl_leader_caller(secure->leader, i)].task == task)
                        return i;
        return secure->n;
}

void mfl_round_secure_message(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_secure_msg *msg)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, msg->task), *own;
        if (!task || task->daemon != daemon || task->job->phase != PHASE_TRAIN ||
                !task->job->spec->secure.bits)
                return;
        struct core_job *job = task->job;
        struct core_secure *secure = job->secure;
        mfl_core_dirty(core, job);
        if (!secure) {
                if (msg->step == MFL_SECURE_KEYS)
                        keep_keys(core, task, msg);
                return;
        }
        if (!is_open(secure) || secure->waits)
                return;
        struct mfl_error err;
        uint32_t i = member_of(secure, msg->task);
        if (i == secure->n || daemon->conn != secure->v[mfl_leader_caller(secure->leader, i)].conn)
                return;
        bool masked = mfl_leader_masked(secure->leader, i);
        int r = mfl_leader_take(secure->leader, i, msg, &err);
        if (r < 0)
                core->error = -ENOMEM;
        else if (r)
                mfl_round_secure_left(core, task, err.text);
        else if (!masked && mfl_leader_masked(secure->leader, i) &&
                 update_of(core, secure, i, &own)->state == UPDATE_HELD)
                mfl_core_update_enqueue(core, held_of(own));
}

bool mfl_round_secure_left(struct mfl_core *core, struct core_task *task, const char *reason)
{
        struct core_job *job = task->job;
        struct core_secure *secure = job->secure;
        uint32_t i = secure && secure->leader ? member_of(secure, task->number) : 0;
        if (!secure || i == secure->n)
                return false;
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "daemon %s: %.170s",
                task->daemon ? task->daemon->info.name : "", reason);
        mfl_core_trace(core, job, "round %u: daemon %s leaves the secure sum: %.160s", job->round,
                task->daemon ? task->daemon->info.name : "", reason);
        if (is_open(secure) && !secure->waits)
                drop_member(core, secure, i, "it has left the secure sum");
        mfl_core_dirty(core, job);
        return true;
}

void mfl_round_secure_event(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        struct core_secure *secure = job->secure;
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        mfl_assert(job->phase == PHASE_TRAIN && secure && secure->waits);
        secure->waits = false;
        if (event->kind == MFL_EV_SECURE_NOTED) {
                if (event->ok)
                        send_stage(core, job);
                else
                        end(secure, ROUND_SECURE_RETRY, event->reason);
                return;
        }
        memcpy(secure->figures, event->figures, sizeof secure->figures);
        end(secure, event->ok ? ROUND_SECURE_WHOLE : ROUND_SECURE_SKIP,
                event->ok ? "the masks are off" : event->reason);
}

/* ---- the end ---- */

static void take_figures(struct core_job *job, const uint64_t figures[MFL_SECURE_FIGURES])
{
        job->weight_claimed = job->weight_counted = figures[MFL_FIGURE_WEIGHT];
        job->record.samples = figures[MFL_FIGURE_SAMPLES];
        job->train_loss = (int64_t)figures[MFL_FIGURE_LOSS];
        job->train_correct = figures[MFL_FIGURE_CORRECT];
        job->record.clamped = figures[MFL_FIGURE_CLAMPED];
        for (int i = 0; i < MFL_METHOD_SCALARS_MAX; i++)
                job->scalars[i] = (int64_t)figures[MFL_FIGURE_SCALAR + i];
}

enum round_secure mfl_round_secure_end(struct mfl_core *core, struct core_job *job)
{
        struct core_secure *secure = job->secure;
        if (!job->spec->secure.bits)
                return ROUND_SECURE_NONE;
        bool died = job->skip_round == job->round;
        enum round_secure how = died ? ROUND_SECURE_SKIP : secure ? secure->end : ROUND_SECURE_RETRY;
        if (!how) /* closed from outside: what was told of clients proved false */
                how = secure->leader && mfl_leader_opens(secure->leader) ? ROUND_SECURE_SKIP
                                                                         : ROUND_SECURE_RETRY;
        const char *why = died     ? "its secure sum was being opened when the server died"
                          : secure ? secure->why
                                   : "";
        if (how == ROUND_SECURE_WHOLE) {
                take_figures(job, secure->figures);
                job->n_skipped = 0;
        } else if (*why) { /* and what a daemon has said */
                char said[MFL_REASON_BYTES];
                mfl_strcpy(said, sizeof said, job->last_failure);
                mfl_snprintf(job->last_failure, sizeof job->last_failure, "%.100s%s%.150s", why,
                        *said ? "; " : "", said);
        }
        if (how == ROUND_SECURE_SKIP) {
                job->n_skipped++;
                mfl_core_trace(core, job,
                        "round %u is skipped, and its params stay: %.180s; its updates are never summed "
                        "again",
                        job->round, why);
        }
        mfl_round_secure_free(job);
        return how;
}

void mfl_round_secure_free(struct core_job *job)
{
        struct core_secure *secure = job->secure;
        if (!secure)
                return;
        mfl_leader_free(secure->leader);
        free(secure->v);
        free(secure);
        job->secure = NULL;
}
