/* SPDX-License-Identifier: Apache-2.0 */
/* Participants, stages, and the end of a round's secure sum. */
#include "server/round/round_secure.h"

#include "server/round/round_cohort.h"
#include "server/round/round_job.h"
#include "server/sum/core_sum.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"
#include "server/work/core_update.h"

struct core_secure {
        uint32_t n; /* sums: one, or one for each bucket */
        struct core_sum *v;
        bool waits;       /* for the worker's answer */
        bool opens;       /* the opening is written down, or about to be */
        uint32_t unmasks; /* the sum whose masks the worker takes off */
        enum round_secure end;
        char why[MFL_REASON_BYTES];
        uint64_t figures[MFL_SECURE_FIGURES];
};

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
        const struct core_update *update = by ? mfl_core_sum_held(by) : NULL;
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
        mfl_strcpy(secure->why, sizeof secure->why, why);
        for (uint32_t i = 0; i < secure->n; i++)
                secure->v[i].due_ms = CORE_NEVER;
}

/* The sum that the task takes part in, and as which member; NULL: none. */
static struct core_sum *sum_of(const struct core_secure *secure, uint64_t task, uint32_t *ret_member)
{
        for (uint32_t i = 0; secure && i < secure->n; i++) {
                *ret_member = mfl_core_sum_member(&secure->v[i], task);
                if (*ret_member < secure->v[i].n)
                        return &secure->v[i];
        }
        return NULL;
}

static bool goes_on(const struct core_sum *sum)
{
        return sum->state == CORE_SUM_GOES_ON;
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

/* A participant, and the number of its client. */
struct part {
        uint64_t client;
        struct core_task *task;
};

static int compare_parts(const void *a, const void *b)
{
        const struct part *x = a, *y = b;
        return (x->client > y->client) - (x->client < y->client);
}

/* The participants in the order of their clients; of buckets, one bucket after another. */
static int list_parts(struct core_job *job, struct core_task ***ret_v, uint32_t *ret_n)
{
        uint32_t n = 0;
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                n += is_participant(task);
        MFL_CLEANUP_FREE struct part *parts = mfl_calloc(MFL_MAX(n, 1u), sizeof *parts);
        MFL_CLEANUP_FREE uint32_t *order = mfl_calloc(MFL_MAX(n, 1u), sizeof *order);
        struct core_task **v = mfl_calloc(MFL_MAX(n, 1u), sizeof *v);
        if (!parts || !order || !v) {
                free(v);
                return -ENOMEM;
        }
        n = 0;
        for (struct core_task *task = job->tasks; task; task = task->job_next)
                if (is_participant(task)) {
                        uint32_t first = mfl_core_sum_held(task)->announce.item_first;
                        parts[n] = (struct part){job->items[task->index[first]].item, task};
                        order[n] = n;
                        n++;
                }
        qsort(parts, n, sizeof *parts, compare_parts);
        if (mfl_job_sums_buckets(job->spec))
                mfl_robust_draw(job->spec, job->round, order, n);
        for (uint32_t i = 0; i < n; i++)
                v[i] = parts[order[i]].task;
        *ret_v = v;
        *ret_n = n;
        return 0;
}

/* MFL_INVALID, -ENOMEM */
static int begin_sums(struct core_job *job, struct core_task *const *tasks, uint32_t n, struct mfl_error *err)
{
        struct core_secure *secure = job->secure;
        bool buckets = mfl_job_sums_buckets(job->spec);
        uint32_t size = buckets ? job->spec->aggregation.robust.bucket : 1;
        int r = 0;
        if (n < size)
                return mfl_fail(err, MFL_INVALID, "%u daemons, and a bucket has %u", n, size);
        secure->v = mfl_calloc(n / size + 1, sizeof *secure->v);
        if (!secure->v)
                return mfl_fail_memory(err, n * sizeof *secure->v, "secure sums");
        uint32_t at = 0;
        do {
                uint32_t some = buckets ? mfl_robust_bucket_of(job->spec, at, n) : n;
                struct core_sum *sum = &secure->v[secure->n];
                sum->bucket = secure->n++;
                sum->is_bucket = buckets;
                r = mfl_core_sum_begin(job, tasks + at, some, sum, err);
                at += some;
        } while (!r && at < n);
        return r;
}

static void begin(struct mfl_core *core, struct core_job *job)
{
        struct mfl_error err = {{0}};
        MFL_CLEANUP_FREE struct core_task **tasks = NULL;
        uint32_t n = 0;
        struct core_secure *secure = job->secure = mfl_calloc(1, sizeof *secure);
        if (!secure) {
                core->error = -ENOMEM;
                return;
        }
        drop_rest(core, job);
        int r = list_parts(job, &tasks, &n);
        if (!r)
                r = begin_sums(job, tasks, n, &err);
        if (r < 0) {
                core->error = -ENOMEM;
        } else if (r) {
                end(secure, ROUND_SECURE_RETRY, err.text);
        } else {
                if (mfl_job_sums_buckets(job->spec))
                        mfl_core_trace(core, job,
                                "round %u: the secure sums of %u buckets begin, of %u daemons", job->round,
                                secure->n, n);
                else
                        mfl_core_trace(
                                core, job, "round %u: the secure sum of %u daemons begins", job->round, n);
                for (uint32_t i = 0; i < secure->n; i++)
                        mfl_core_sum_send(core, job, &secure->v[i]);
        }
}

/* ---- stages ---- */

static void order(struct mfl_core *core, struct core_job *job, enum mfl_core_action_kind kind,
        const struct core_sum *sum)
{
        job->secure->waits = true;
        job->n_pending++;
        struct mfl_core_action *action = mfl_core_act(core, kind, job);
        action->round = job->round;
        action->secure.leader = sum->leader;
        action->secure.bucket = sum->bucket;
        action->secure.clients = sum->clients;
        action->secure.n_clients = sum->n_clients;
}

/* Clients in sums that have not failed. */
static uint32_t counted(const struct core_job *job)
{
        uint32_t n = 0;
        if (!mfl_job_sums_buckets(job->spec))
                return job->count[ITEM_COUNTED];
        for (uint32_t i = 0; i < job->secure->n; i++)
                n += mfl_core_sum_counted(job, &job->secure->v[i]);
        return n;
}

/* Opening sums of too few clients would help nobody, and forbid another try. */
static bool below_quorum(struct core_job *job, enum round_secure how)
{
        char why[MFL_REASON_BYTES];
        uint32_t n = counted(job), need = mfl_round_quorum(job);
        if (n >= need)
                return false;
        mfl_snprintf(why, sizeof why, "only %u of its clients are in the secure sum%s", n,
                mfl_job_sums_buckets(job->spec) ? "s" : "");
        end(job->secure, how, why);
        return true;
}

/* Each sum whose stage is over goes on. True: one did. */
static bool advance(struct mfl_core *core, struct core_job *job)
{
        struct core_secure *secure = job->secure;
        bool any = false;
        for (uint32_t i = 0; i < secure->n && is_open(secure) && !core->error; i++) {
                struct core_sum *sum = &secure->v[i];
                if (!goes_on(sum))
                        continue;
                mfl_core_sum_watch(core, sum);
                enum mfl_leader_stage stage = mfl_leader_stage(sum->leader);
                if (stage == MFL_LEADER_WHOLE || (stage == MFL_LEADER_SIGN && !secure->opens) ||
                        !mfl_core_sum_over(core, job, sum))
                        continue;
                any = true;
                if (sum->is_bucket || stage != MFL_LEADER_UPLOAD || !below_quorum(job, ROUND_SECURE_RETRY))
                        mfl_core_sum_advance(core, job, sum);
        }
        return any;
}

/* All masks are off that can be taken off. */
static void close_sums(struct core_job *job)
{
        struct core_secure *secure = job->secure;
        const char *why = "";
        uint32_t n = 0;
        for (uint32_t i = 0; i < secure->n; i++) {
                const struct core_sum *sum = &secure->v[i];
                n += sum->state == CORE_SUM_OPENED;
                if (sum->state == CORE_SUM_FAILED)
                        why = sum->why;
                for (int f = 0; f < MFL_SECURE_FIGURES && sum->state == CORE_SUM_OPENED; f++)
                        secure->figures[f] += sum->figures[f];
        }
        if (!n)
                end(secure, ROUND_SECURE_SKIP, why);
        else if (!mfl_job_sums_buckets(job->spec) || !below_quorum(job, ROUND_SECURE_SKIP))
                end(secure, ROUND_SECURE_WHOLE, "the masks are off");
}

/* What all sums wait for together: the note of the opening, and the worker that takes the masks off. True: something was done. */
static bool settle(struct mfl_core *core, struct core_job *job)
{
        struct core_secure *secure = job->secure;
        struct core_sum *first = NULL, *whole = NULL;
        uint32_t n_early = 0, n_late = 0;
        for (uint32_t i = 0; i < secure->n; i++) {
                struct core_sum *sum = &secure->v[i];
                if (!goes_on(sum))
                        continue;
                enum mfl_leader_stage stage = mfl_leader_stage(sum->leader);
                first = first ? first : sum;
                whole = whole || stage != MFL_LEADER_WHOLE ? whole : sum;
                n_early += stage < MFL_LEADER_SIGN;
                n_late += stage != MFL_LEADER_WHOLE;
        }
        if (!secure->opens) {
                if (n_early)
                        return false;
                if (!first)
                        end(secure, ROUND_SECURE_RETRY, secure->v[secure->n - 1].why);
                else if (!first->is_bucket || !below_quorum(job, ROUND_SECURE_RETRY)) {
                        mfl_assert(mfl_leader_opens(first->leader));
                        secure->opens = true;
                        order(core, job, MFL_ACT_SECURE_NOTE, first);
                }
                return true;
        }
        if (n_late)
                return false;
        if (!whole) {
                close_sums(job);
        } else if (whole->is_bucket && mfl_core_sum_clients(job, whole)) {
                core->error = -ENOMEM;
        } else {
                secure->unmasks = whole->bucket;
                order(core, job, MFL_ACT_UNMASK, whole);
        }
        return true;
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
                bool moved = advance(core, job);
                if (is_open(job->secure) && !settle(core, job) && !moved)
                        return NULL;
        }
        return core->error || is_open(job->secure) ? NULL : job->secure->why;
}

void mfl_round_secure_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        if (!is_open(job->secure) || job->phase != PHASE_TRAIN)
                return;
        for (uint32_t i = 0; i < job->secure->n; i++) {
                uint64_t due_ms = mfl_core_sum_due(job, &job->secure->v[i]);
                if (core->now_ms >= due_ms)
                        mfl_core_dirty(core, job);
                else
                        *next_ms = MFL_MIN(*next_ms, due_ms);
        }
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
        struct core_update *update = mfl_core_sum_held(task);
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
        uint32_t i;
        struct core_sum *sum = sum_of(secure, msg->task, &i);
        if (!sum || !goes_on(sum) || daemon->conn != mfl_core_sum_conn(sum, i))
                return;
        bool masked = mfl_leader_masked(sum->leader, i);
        int r = mfl_leader_take(sum->leader, i, msg, &err);
        if (r < 0)
                core->error = -ENOMEM;
        else if (r)
                mfl_round_secure_left(core, task, err.text);
        else if (!masked && mfl_leader_masked(sum->leader, i) &&
                 mfl_core_sum_update(core, sum, i, &own)->state == UPDATE_HELD)
                mfl_core_update_enqueue(core, mfl_core_sum_held(own));
}

bool mfl_round_secure_left(struct mfl_core *core, struct core_task *task, const char *reason)
{
        struct core_job *job = task->job;
        struct core_secure *secure = job->secure;
        uint32_t i;
        struct core_sum *sum = sum_of(secure, task->number, &i);
        if (!sum)
                return false;
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "daemon %s: %.170s",
                task->daemon ? task->daemon->info.name : "", reason);
        mfl_core_trace(core, job, "round %u: daemon %s leaves the secure sum: %.160s", job->round,
                task->daemon ? task->daemon->info.name : "", reason);
        if (is_open(secure) && !secure->waits && goes_on(sum))
                mfl_core_sum_drop(core, sum, i, "it has left the secure sum");
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
                for (uint32_t i = 0; i < secure->n && event->ok; i++)
                        if (goes_on(&secure->v[i]))
                                mfl_core_sum_send(core, job, &secure->v[i]);
                if (!event->ok)
                        end(secure, ROUND_SECURE_RETRY, event->reason);
                return;
        }
        struct core_sum *sum = &secure->v[secure->unmasks];
        memcpy(sum->figures, event->figures, sizeof sum->figures);
        if (event->ok)
                sum->state = CORE_SUM_OPENED;
        else
                mfl_core_sum_fail(core, job, sum, event->reason);
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
                how = secure->opens ? ROUND_SECURE_SKIP : ROUND_SECURE_RETRY;
        const char *why = died     ? "its secure sum was being opened when the server died"
                          : secure ? secure->why
                                   : "";
        if (how == ROUND_SECURE_WHOLE) {
                take_figures(job, secure->figures);
                for (uint32_t i = 0; i < secure->n; i++)
                        if (secure->v[i].is_bucket && secure->v[i].state == CORE_SUM_FAILED)
                                mfl_core_sum_uncount(job, &secure->v[i]);
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
        for (uint32_t i = 0; i < secure->n; i++)
                mfl_core_sum_deinit(&secure->v[i]);
        free(secure->v);
        free(secure);
        job->secure = NULL;
}
