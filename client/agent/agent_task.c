/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's tasks: when they seek params, when they compute, and their results until the server has
 * answered. */
#include "client/agent/agent_internal.h"

static struct agent_task *find_state(const struct mfl_agent *agent, enum agent_task_state state)
{
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                if (task->state == state)
                        return task;
        return NULL;
}

static bool computing(const struct mfl_agent *agent)
{
        return find_state(agent, TASK_COMPUTE) || find_state(agent, TASK_ABORT);
}

static void abort_task(struct mfl_agent *agent, struct agent_task *task)
{
        if (task->state == TASK_COMPUTE) {
                mfl_agent_task_move(task, TASK_ABORT);
                mfl_agent_act(agent, MFL_AGENT_ACT_ABORT)->task_number = task->task.task;
        } else if (task->state != TASK_ABORT)
                mfl_agent_drop_task(agent, task);
}

/* The server is told of evaluations as soon as they are done; they are kept only to be resent. */
bool mfl_agent_busy(const struct mfl_agent *agent)
{
        for (const struct agent_task *task = agent->tasks; task; task = task->next)
                if (task->state < TASK_ABORT ||
                        (task->state == TASK_RESULT && task->task.kind == MFL_TASK_TRAIN))
                        return true;
        return false;
}

bool mfl_agent_fetches(const struct mfl_agent *agent)
{
        return agent->state == AGENT_ONLINE && find_state(agent, TASK_PARAMS);
}

void mfl_agent_abort_all(struct mfl_agent *agent)
{
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                abort_task(agent, task);
        }
}

/* Forgets what is kept for the job: its text, its params, and what the trainer has of it. */
static void forget_job(struct mfl_agent *agent, const char *job)
{
        uint32_t i = 0;
        while (i < agent->n_jobs && strcmp(agent->jobs[i], job) != 0)
                i++;
        mfl_agent_params_forget(agent, job);
        if (i == agent->n_jobs)
                return;
        memmove(agent->jobs[i], agent->jobs[i + 1], (--agent->n_jobs - i) * sizeof agent->jobs[0]);
        agent->n_named -= i < agent->n_named;
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_JOB_FORGET);
        mfl_strcpy(action->job, sizeof action->job, job);
}

void mfl_agent_job_changed(struct mfl_agent *agent, const char *job)
{
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                if (strcmp(task->task.job, job))
                        continue;
                mfl_agent_trace(
                        agent, "task %u is of another job that was called %s", (uint32_t)task->wire, job);
                abort_task(agent, task);
        }
        forget_job(agent, job);
}

void mfl_agent_job_denied(struct mfl_agent *agent, const char *job)
{
        mfl_agent_trace(agent, "this site takes no part in job %s any more", job);
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                if (strcmp(task->task.job, job) == 0)
                        abort_task(agent, task);
        }
}

/* The server has no more work for the job, so its memory is freed now and not when another job needs it. A
 * task that still runs is aborted by its own Cancel. */
void mfl_agent_job_over(struct mfl_agent *agent, const char *job)
{
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                if (strcmp(task->task.job, job) == 0 && task->state < TASK_COMPUTE)
                        mfl_agent_drop_task(agent, task);
        }
        mfl_agent_trace(agent, "job %s is over: what was kept for it goes", job);
        forget_job(agent, job);
}

/* ---- what the server is told ---- */

static void announce(struct mfl_agent *agent, struct agent_task *task, struct agent_update *update)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE, .announce = update->announce};
        msg.announce.task = task->wire;
        msg.announce.group = mfl_agent_group_ready(task) ? task->task.group.group : 0;
        update->state = UPDATE_HELD;
        struct mfl_msg *to = mfl_agent_send(agent, MFL_MSG_NONE);
        MFL_CONTAINER_OF(to, struct mfl_agent_action, msg)->task_number = task->task.task;
        if (mfl_msg_copy(&msg, to))
                agent->error = -ENOMEM;
}

static void send_eval(struct mfl_agent *agent, const struct agent_task *task)
{
        struct mfl_msg msg = {.kind = MFL_MSG_EVAL_RESULT,
                .eval = {task->wire, task->n_eval, task->eval, task->n_tally, task->tally}};
        if (mfl_msg_copy(&msg, mfl_agent_send(agent, MFL_MSG_NONE)))
                agent->error = -ENOMEM;
}

static void report_result(struct mfl_agent *agent, struct agent_task *task)
{
        if (agent->state != AGENT_ONLINE)
                return;
        if (task->task.kind == MFL_TASK_EVAL)
                send_eval(agent, task);
        if (mfl_agent_group_ready(task))
                mfl_agent_group_publish(agent, task);
        for (uint32_t i = 0; i < task->n_updates; i++)
                if (task->updates[i].state != UPDATE_DONE)
                        announce(agent, task, &task->updates[i]);
}

/* May drop the task. */
static void report_failure(struct mfl_agent *agent, struct agent_task *task)
{
        if (agent->state != AGENT_ONLINE)
                return;
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_TASK_FAILED);
        msg->failed.task = task->wire;
        msg->failed.permanent = task->permanent;
        msg->failed.broken = task->broken;
        msg->failed.accused = task->accused;
        msg->failed.loss = task->loss;
        mfl_strcpy(msg->failed.reason, sizeof msg->failed.reason, task->reason);
        mfl_agent_drop_task(agent, task);
}

static void fail_task(struct mfl_agent *agent, struct agent_task *task, bool permanent, const char *reason)
{
        mfl_agent_task_move(task, TASK_FAILED);
        task->permanent = permanent;
        mfl_strcpy(task->reason, sizeof task->reason, reason);
        mfl_agent_trace(agent, "task %u failed: %.180s", (uint32_t)task->wire, reason);
        report_failure(agent, task);
}

/* After Welcome the agent tells the server what is here: results (Announce), failures, and tasks at work. The
 * server takes back what it no longer wants. */
void mfl_agent_welcomed(struct mfl_agent *agent)
{
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                if (task->state != TASK_ABORT && task->state != TASK_FAILED)
                        mfl_agent_recall_repeat(agent, task);
                if (task->state == TASK_RESULT && task->task.kind == MFL_TASK_TRAIN)
                        report_result(agent, task);
                else if (task->state == TASK_FAILED)
                        report_failure(agent, task);
                else if (task->state < TASK_ABORT)
                        mfl_agent_send(agent, MFL_MSG_PROGRESS)->progress.task = task->wire;
        }
        mfl_agent_groups_welcomed(agent);
}

void mfl_agent_lost(struct mfl_agent *agent)
{
        mfl_agent_groups_lost(agent);
        mfl_agent_params_lost(agent);
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                for (uint32_t i = 0; i < task->n_updates; i++)
                        if (task->updates[i].state != UPDATE_DONE)
                                task->updates[i].state = UPDATE_HELD;
}

/* ---- tasks from the server ---- */

static bool same_team(const struct agent_task *task, const struct mfl_task_team *b)
{
        const struct mfl_task_team *a = &task->task.team;
        if (task->state == TASK_RESULT)
                return true; /* it is trained, whoever helped */
        return a->member == b->member && a->n_members == b->n_members &&
               memcmp(a->members, b->members, a->n_members * sizeof *a->members) == 0 &&
               memcmp(a->widths, b->widths, a->n_members * sizeof *a->widths) == 0;
}

/* True also for the same task as it was before some of its items went back. */
static bool same_work(const struct agent_task *task, const struct mfl_task *b)
{
        const struct mfl_task *a = &task->task;
        bool longer = task->wire == b->task && b->n_items > a->n_items && b->n_items <= task->n_given;
        return strcmp(a->job, b->job) == 0 && a->round == b->round && a->kind == b->kind &&
               same_team(task, &b->team) && (a->n_items == b->n_items || longer) &&
               a->single_updates == b->single_updates && a->stands == b->stands &&
               a->n_params == b->n_params && a->n_frozen == b->n_frozen && a->fingerprint == b->fingerprint &&
               a->fixed.scale_bits == b->fixed.scale_bits && a->fixed.delta_max == b->fixed.delta_max &&
               a->staleness == b->staleness && a->n_method == b->n_method &&
               memcmp(a->method, b->method, sizeof a->method) == 0 &&
               memcmp(a->params_digest, b->params_digest, MFL_DIGEST_BYTES) == 0 &&
               memcmp(a->items, b->items, a->n_items * sizeof *a->items) == 0;
}

/* Drops work that a task of a later round, or of another start of the server, makes pointless. */
static void drop_outdated(struct mfl_agent *agent, const struct mfl_task *t)
{
        for (struct agent_task *task = agent->tasks, *next; task; task = next) {
                next = task->next;
                bool earlier = strcmp(task->task.job, t->job) == 0 && task->task.round < t->round &&
                               !task->task.stands;
                bool orphan = task->wire >> 32 != t->task >> 32 && task->state != TASK_RESULT;
                if (earlier || orphan)
                        abort_task(agent, task);
        }
}

static bool knows_job(const struct mfl_agent *agent, const char *job)
{
        for (uint32_t i = 0; i < agent->n_jobs; i++)
                if (strcmp(agent->jobs[i], job) == 0)
                        return true;
        return false;
}

static void add_task(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct mfl_msg copy;
        struct agent_task *task = mfl_calloc(1, sizeof *task), **at = &agent->tasks;
        if (!task || mfl_msg_copy(msg, &copy)) {
                free(task);
                agent->error = -ENOMEM;
                return;
        }
        task->task = copy.task;
        task->wire = copy.task.task;
        task->n_given = copy.task.n_items;
        task->task.group = (struct mfl_group){0};
        while (*at)
                at = &(*at)->next;
        *at = task;
        mfl_agent_trace(agent, "task %u: %s round %u of %s, %u items", (uint32_t)task->wire,
                task->task.kind == MFL_TASK_EVAL     ? "evaluate"
                : task->task.kind == MFL_TASK_ASSIST ? "help to train"
                                                     : "train",
                task->task.round, task->task.job, task->task.n_items);
        if (!knows_job(agent, task->task.job))
                fail_task(agent, task, false, "a task without its job file");
        else
                mfl_agent_group_take(agent, task, &msg->task);
}

/* The server did not know yet that this daemon leaves. */
static void give_back(struct mfl_agent *agent, const struct mfl_task *t)
{
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_TASK_FAILED);
        msg->failed.task = t->task;
        mfl_strcpy(msg->failed.reason, sizeof msg->failed.reason, "the daemon is leaving");
        mfl_agent_trace(agent, "task %u comes too late: this daemon is leaving", (uint32_t)t->task);
}

/* The same members have another number, since the server has started anew. Those that have not begun meet under it; whoever waits
 * for them under the old one would wait in vain. */
static void renumber_team(struct mfl_agent *agent, struct agent_task *task, const struct mfl_msg *msg)
{
        struct mfl_task_team *team = &task->task.team;
        struct mfl_msg copy;
        if (team->team == msg->task.team.team || task->state == TASK_RESULT)
                return;
        if (task->state == TASK_COMPUTE) {
                mfl_agent_act(agent, MFL_AGENT_ACT_REGROUP)->task_number = task->task.task;
                return;
        }
        if (mfl_msg_copy(msg, &copy)) {
                agent->error = -ENOMEM;
                return;
        }
        const struct mfl_task_team old = *team;
        *team = copy.task.team;
        copy.task.team = old;
        mfl_msg_deinit(&copy);
}

static void on_task(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        const struct mfl_task *t = &msg->task;
        struct agent_task *same = NULL;
        mfl_strcpy(agent->turn, sizeof agent->turn, t->job);
        if (mfl_agent_find_number(agent, t->task) && !mfl_agent_find_wire(agent, t->task))
                return; /* cancelled here already, or renumbered */
        for (struct agent_task *task = agent->tasks; task && !same; task = task->next)
                if (task->state != TASK_ABORT && task->state != TASK_FAILED && same_work(task, t))
                        same = task;
        if (same) { /* the same work under another number: what is held or running answers it */
                if (same->wire != t->task)
                        mfl_agent_trace(agent, "task %u is what task %u was", (uint32_t)t->task,
                                (uint32_t)same->wire);
                bool known = same->wire == t->task;
                /* A new number starts a new count: the server wants again what an earlier start of it had
                 * accepted. */
                for (uint32_t i = 0; i < same->n_updates && !known; i++)
                        same->updates[i].state = UPDATE_HELD;
                same->wire = t->task;
                same->n_given = known ? same->n_given : same->task.n_items;
                agent->boot = (uint32_t)(t->task >> 32);
                drop_outdated(agent, t);
                renumber_team(agent, same, msg);
                bool told = !mfl_agent_group_take(agent, same, t) && known && t->kind == MFL_TASK_TRAIN;
                if (same->state == TASK_RESULT && !told)
                        report_result(agent, same);
                return;
        }
        struct agent_task *number = mfl_agent_find_wire(agent, t->task);
        if (number && number->state != TASK_FAILED)
                return; /* a number is never used twice: ignore it */
        agent->boot = (uint32_t)(t->task >> 32);
        drop_outdated(agent, t);
        if (agent->leaving)
                give_back(agent, t);
        else
                add_task(agent, msg);
}

static void on_cancel(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *task = mfl_agent_find_wire(agent, msg->cancel.task);
        if (!task)
                return;
        mfl_agent_trace(agent, "task %u is taken back: %.180s", (uint32_t)task->wire, msg->cancel.reason);
        abort_task(agent, task);
}

static bool in_use(const struct mfl_agent *agent, const char *job)
{
        for (const struct agent_task *task = agent->tasks; task; task = task->next)
                if (strcmp(task->task.job, job) == 0)
                        return true;
        return false;
}

/* JobOver does not reach a daemon that is away. A server names each job anew to a new connection before its first task,
 * so what it has not named for a while may go. */
void mfl_agent_forget_unnamed(struct mfl_agent *agent)
{
        if (agent->now_ms - agent->welcome_ms < AGENT_UNNAMED_MS)
                return;
        for (uint32_t i = agent->n_jobs; i-- > agent->n_named;) {
                char job[MFL_JOB_ID_BYTES];
                mfl_strcpy(job, sizeof job, agent->jobs[i]);
                if (!in_use(agent, job))
                        forget_job(agent, job);
        }
}

/* Moves the job to the front. If the list is full, the job that was named longest ago is forgotten. */
static void on_job_spec(struct mfl_agent *agent, const char *job)
{
        uint32_t i = 0;
        while (i < agent->n_jobs && strcmp(agent->jobs[i], job) != 0)
                i++;
        if (i == AGENT_JOBS_MAX) {
                for (i = AGENT_JOBS_MAX - 1; i > 0 && in_use(agent, agent->jobs[i]);)
                        i--;
                mfl_agent_params_forget(agent, agent->jobs[i]);
                struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_JOB_FORGET);
                mfl_strcpy(action->job, sizeof action->job, agent->jobs[i]);
        } else if (i == agent->n_jobs)
                agent->n_jobs++;
        agent->n_named += i >= agent->n_named;
        memmove(agent->jobs[1], agent->jobs[0], i * sizeof agent->jobs[0]);
        mfl_strcpy(agent->jobs[0], sizeof agent->jobs[0], job);
}

void mfl_agent_task_message(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        switch (msg->kind) {
        case MFL_MSG_JOB_SPEC:
                on_job_spec(agent, msg->job);
                break;
        case MFL_MSG_TASK:
                on_task(agent, msg);
                break;
        case MFL_MSG_CANCEL:
                on_cancel(agent, msg);
                break;
        case MFL_MSG_RECALL:
                mfl_agent_recall(agent, msg);
                break;
        case MFL_MSG_PARAMS_GONE:
                mfl_agent_params_gone(agent, msg);
                break;
        case MFL_MSG_GRANT:
                mfl_agent_granted(agent, msg);
                break;
        case MFL_MSG_ACCEPTED:
        case MFL_MSG_REFUSED:
                mfl_agent_answered(agent, msg);
                break;
        default:
                if (!mfl_agent_group_message(agent, msg))
                        mfl_agent_trace(
                                agent, "message %u is not for a daemon; left unread", (unsigned)msg->kind);
        }
}

/* ---- computing ---- */

static int keep_updates(struct agent_task *task, const struct mfl_agent_event *event)
{
        task->updates = mfl_calloc(event->n_updates, sizeof *task->updates);
        if (!task->updates)
                return -ENOMEM;
        for (uint32_t i = 0; i < event->n_updates; i++) {
                struct mfl_msg from = {.kind = MFL_MSG_ANNOUNCE, .announce = event->updates[i]}, copy;
                if (mfl_msg_copy(&from, &copy))
                        return -ENOMEM;
                struct mfl_announce *a = &task->updates[i].announce;
                *a = copy.announce;
                task->n_updates = i + 1;
                a->update = i;
                a->round = task->task.round;
                mfl_strcpy(a->job, sizeof a->job, task->task.job);
        }
        return 0;
}

static int keep_eval(struct agent_task *task, const struct mfl_agent_event *event)
{
        task->eval = mfl_calloc(event->n_eval, sizeof *task->eval);
        if (!task->eval)
                return -ENOMEM;
        if (event->n_eval)
                memcpy(task->eval, event->eval, event->n_eval * sizeof *task->eval);
        task->n_eval = event->n_eval;
        if (!event->n_tally)
                return 0;
        task->tally = mfl_calloc(event->n_tally, sizeof *task->tally);
        if (!task->tally)
                return -ENOMEM;
        memcpy(task->tally, event->tally, event->n_tally * sizeof *task->tally);
        task->n_tally = event->n_tally;
        return 0;
}

static void drop_old_evals(struct mfl_agent *agent)
{
        uint32_t n = 0;
        struct agent_task *oldest = NULL;
        for (struct agent_task *task = agent->tasks; task; task = task->next) {
                if (task->state != TASK_RESULT || task->task.kind != MFL_TASK_EVAL)
                        continue;
                oldest = oldest ? oldest : task;
                n++;
        }
        if (n > AGENT_EVALS_MAX)
                mfl_agent_drop_task(agent, oldest);
}

void mfl_agent_computed(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        struct agent_task *task = mfl_agent_find_number(agent, event->task);
        mfl_assert(task && (task->state == TASK_COMPUTE || task->state == TASK_ABORT));
        bool aborted = task->state == TASK_ABORT;
        if (!event->ok) {
                if (aborted) {
                        mfl_agent_task_move(task, TASK_FAILED);
                        mfl_agent_drop_task(agent, task);
                        return;
                }
                task->broken = event->broken;
                task->accused = event->accused;
                task->loss = event->loss;
                fail_task(agent, task, event->permanent, event->reason);
                return;
        }
        if (task->task.kind == MFL_TASK_ASSIST) { /* there is no result that would have to be freed */
                mfl_agent_task_move(task, TASK_FAILED);
                mfl_agent_drop_task(agent, task);
                return;
        }
        mfl_agent_task_move(task, TASK_RESULT);
        if (aborted) {
                mfl_agent_drop_task(agent, task);
                return;
        }
        bool train = task->task.kind == MFL_TASK_TRAIN;
        mfl_assert(train ? event->n_updates > 0 : event->n_updates == 0);
        if (train ? keep_updates(task, event) : keep_eval(task, event)) {
                agent->error = -ENOMEM;
                return;
        }
        if (train)
                mfl_agent_group_laid(agent, task, event->grouped);
        report_result(agent, task);
        drop_old_evals(agent);
}

static bool makes_way(const struct mfl_agent *agent, const struct agent_task *task)
{
        return task->state == TASK_RESULT && task->task.stands && strcmp(task->task.job, agent->turn) != 0;
}

/* Makes room for one more result. A result of an earlier start of the server, which nobody has asked for, is
 * dropped. So is one that makes way: it is held for another job than the one whose turn it is, and trained again then. */
static bool make_room(struct mfl_agent *agent, const struct agent_task *ready)
{
        uint32_t n = 0;
        struct agent_task *orphan = NULL, *stands = NULL;
        for (struct agent_task *task = agent->tasks; task; task = task->next) {
                if (task->state != TASK_RESULT || task->task.kind != MFL_TASK_TRAIN)
                        continue;
                n++;
                if (!orphan && task->wire >> 32 != agent->boot)
                        orphan = task;
                if (makes_way(agent, task) && strcmp(ready->task.job, agent->turn) == 0)
                        stands = task;
        }
        if (n < agent->options.results_max)
                return true;
        orphan = orphan ? orphan : stands;
        if (orphan)
                mfl_agent_drop_task(agent, orphan);
        return orphan && n == agent->options.results_max;
}

static void start(struct mfl_agent *agent, struct agent_task *task)
{
        mfl_agent_task_move(task, TASK_COMPUTE);
        task->laid = task->task.group.collective;
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_COMPUTE);
        action->task = &task->task;
        mfl_agent_params_name(agent, task, action);
}

static void seek_params(struct mfl_agent *agent, struct agent_task *task)
{
        struct agent_failure failure;
        enum agent_arrival arrival = mfl_agent_params_seek(agent, task, &failure);
        if (arrival == ARRIVAL_FAILED)
                fail_task(agent, task, failure.permanent, failure.reason);
        else if (arrival == ARRIVAL_DONE)
                mfl_agent_task_move(task, TASK_READY);
}

/* Work that stands may go on for several rounds, and so may its results: the evaluation of one goes before, and it begins only when its
 * result will have room. The job whose turn it is goes first, and what is held for others makes way: their turn may come after it. */
static struct agent_task *find_queued(const struct mfl_agent *agent)
{
        uint32_t n_results = 0, n_way = 0;
        struct agent_task *turn = NULL, *other = NULL;
        for (struct agent_task *task = agent->tasks; task; task = task->next) {
                if (task->state == TASK_QUEUED && !task->task.stands)
                        return task;
                struct agent_task **first = strcmp(task->task.job, agent->turn) == 0 ? &turn : &other;
                *first = !*first && task->state == TASK_QUEUED ? task : *first;
                n_results += task->task.kind == MFL_TASK_TRAIN &&
                             (task->state == TASK_COMPUTE ||
                                     (task->state == TASK_RESULT && task->wire >> 32 == agent->boot));
                n_way += makes_way(agent, task) && task->wire >> 32 == agent->boot;
        }
        if (turn && n_results - n_way < agent->options.results_max)
                return turn;
        return n_results < agent->options.results_max ? other : NULL;
}

/* One task at a time uses the device: the first in the list that is not done. One task at a time seeks its
 * params, and another one may compute meanwhile. Others don't wait for one whose turn has passed. */
void mfl_agent_schedule(struct mfl_agent *agent)
{
        struct agent_task *seeks = find_state(agent, TASK_PARAMS);
        if (seeks)
                seek_params(agent, seeks);
        if (computing(agent) || find_state(agent, TASK_PARAMS))
                return;
        struct agent_task *ready = find_state(agent, TASK_READY), *queued = ready ? NULL : find_queued(agent);
        if (ready && (ready->task.kind != MFL_TASK_TRAIN || make_room(agent, ready)))
                start(agent, ready);
        else if (queued || (ready && ready->task.stands && strcmp(ready->task.job, agent->turn) != 0)) {
                queued ? mfl_agent_params_open(agent, queued) : mfl_agent_drop_task(agent, ready);
                mfl_agent_schedule(agent);
        }
}

uint64_t mfl_agent_tasks_due_ms(const struct mfl_agent *agent)
{
        const struct agent_task *seeks = find_state(agent, TASK_PARAMS);
        return seeks ? mfl_agent_params_due_ms(agent, seeks) : AGENT_NEVER;
}
