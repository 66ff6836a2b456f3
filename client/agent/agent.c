/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's entry point: the connection, liveness, back-off, and the order of a step. */
#include "client/agent/agent_internal.h"

#include "common/base/rng.h"

int mfl_agent_new(
        const struct mfl_agent_options *options, struct mfl_agent **ret_agent, struct mfl_error *err)
{
        if (!options->results_max)
                return mfl_fail(err, MFL_INVALID, "results_max must be at least 1");
        struct mfl_agent *agent = mfl_calloc(1, sizeof *agent);
        struct mfl_data_info *data_sets = mfl_calloc(options->info.n_data_sets, sizeof *data_sets);
        if (!agent || !data_sets) {
                free(agent);
                free(data_sets);
                return mfl_fail_memory(err, sizeof *agent, "the agent");
        }
        agent->options = *options;
        if (options->info.n_data_sets)
                memcpy(data_sets, options->info.data_sets, options->info.n_data_sets * sizeof *data_sets);
        agent->options.info.data_sets = data_sets;
        agent->retry_ms = AGENT_NEVER;
        *ret_agent = agent;
        return 0;
}

void mfl_agent_free(struct mfl_agent *agent)
{
        if (!agent)
                return;
        mfl_agent_tasks_free(agent);
        mfl_agent_params_free(agent);
        free(agent->options.info.data_sets);
        free(agent);
}

bool mfl_agent_online(const struct mfl_agent *agent)
{
        return agent->state == AGENT_ONLINE;
}

/* ---- the connection ---- */

static void connect_now(struct mfl_agent *agent)
{
        agent->state = AGENT_CONNECTING;
        agent->since_ms = agent->now_ms;
        mfl_agent_act(agent, MFL_AGENT_ACT_CONNECT);
}

/* The back-off doubles, and its upper half is random, so daemons that lost the same server do not return in
 * step. */
static void go_offline(struct mfl_agent *agent, const char *why)
{
        uint64_t limit = AGENT_BACKOFF_MIN_MS, most = agent->options.backoff_max_ms;
        most = most ? most : AGENT_BACKOFF_MAX_MS;
        for (uint32_t i = 0; i < agent->n_failures && limit < most; i++)
                limit *= 2;
        limit = MFL_MIN(limit, most);
        struct mfl_rng rng = mfl_rng_new(agent->options.seed, MFL_RNG_JITTER, agent->jitter++, 0);
        uint64_t wait = limit / 2 + mfl_rng_below(&rng, (uint32_t)(limit / 2) + 1);
        agent->n_failures++;
        agent->state = AGENT_OFFLINE;
        agent->retry_ms = agent->now_ms + MFL_MAX(wait, (uint64_t)AGENT_BACKOFF_MIN_MS);
        mfl_agent_trace(agent, "offline: %.180s; next try in %llu ms", why,
                (unsigned long long)(agent->retry_ms - agent->now_ms));
        mfl_agent_lost(agent);
}

static void close_connection(struct mfl_agent *agent, const char *why)
{
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_CLOSE);
        mfl_strcpy(action->reason, sizeof action->reason, why);
        go_offline(agent, why);
}

static void end(struct mfl_agent *agent, bool ok, const char *why)
{
        mfl_agent_abort_all(agent);
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_EXIT);
        action->ok = ok;
        mfl_strcpy(action->reason, sizeof action->reason, why);
        agent->state = AGENT_ENDED;
}

static void greet(struct mfl_agent *agent)
{
        if (agent->state != AGENT_CONNECTING)
                return;
        agent->state = AGENT_GREETING;
        agent->heard_ms = agent->now_ms;
        struct mfl_msg hello = {.kind = MFL_MSG_HELLO, .hello = agent->options.info};
        hello.hello.leaving = agent->leaving;
        if (mfl_msg_copy(&hello, mfl_agent_send(agent, MFL_MSG_NONE)))
                agent->error = -ENOMEM;
}

/* Sent before anything else, so that the server plans with it. After a Welcome, for a server that did not see it in Hello. */
static void tell_leaving(struct mfl_agent *agent)
{
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_LEAVING);
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, "it was asked to stop");
}

static void on_welcome(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        if (agent->state != AGENT_GREETING || !msg->welcome.heartbeat_ms ||
                msg->welcome.dead_ms <= msg->welcome.heartbeat_ms) {
                close_connection(agent, "a Welcome that makes no sense");
                return;
        }
        agent->state = AGENT_ONLINE;
        agent->heartbeat_ms = msg->welcome.heartbeat_ms;
        agent->dead_ms = msg->welcome.dead_ms;
        agent->n_failures = 0;
        agent->n_named = 0;
        agent->welcome_ms = agent->now_ms;
        mfl_agent_trace(agent, "online");
        if (agent->leaving)
                tell_leaving(agent);
        mfl_agent_welcomed(agent);
}

static void on_bye(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        char why[MFL_REASON_BYTES];
        mfl_snprintf(why, sizeof why, "the server says: %.200s", msg->bye.reason);
        if (!msg->bye.retry || agent->options.exit_on_bye) {
                struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_CLOSE);
                mfl_strcpy(action->reason, sizeof action->reason, why);
                end(agent, agent->options.exit_on_bye, why);
        } else
                close_connection(agent, why);
}

static void on_message(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        if (agent->state != AGENT_ONLINE && agent->state != AGENT_GREETING)
                return; /* left over from a connection that is closed */
        agent->heard_ms = agent->now_ms;
        if (msg->kind == MFL_MSG_BYE)
                on_bye(agent, msg);
        else if (msg->kind == MFL_MSG_WELCOME)
                on_welcome(agent, msg);
        else if (agent->state == AGENT_GREETING)
                close_connection(agent, "a message before Welcome");
        else if (msg->kind == MFL_MSG_PING)
                mfl_agent_send(agent, MFL_MSG_PONG)->cookie = msg->cookie;
        else if (msg->kind != MFL_MSG_PONG)
                mfl_agent_task_message(agent, msg);
}

static void stop(struct mfl_agent *agent)
{
        if (agent->state == AGENT_ONLINE) {
                struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_BYE);
                msg->bye.retry = false; /* its clients go to other daemons at once */
                mfl_strcpy(msg->bye.reason, sizeof msg->bye.reason, "the daemon stops");
        }
        if (agent->state != AGENT_OFFLINE)
                mfl_strcpy(mfl_agent_act(agent, MFL_AGENT_ACT_CLOSE)->reason, MFL_REASON_BYTES,
                        "the daemon stops");
        end(agent, true, "stopped");
}

static void leave(struct mfl_agent *agent, uint64_t within_ms)
{
        if (agent->leaving)
                return;
        agent->leaving = true;
        agent->leave_ms = agent->now_ms + within_ms;
        mfl_agent_trace(agent, "takes no more work, and ends when it is done, or in %llu ms",
                (unsigned long long)within_ms);
        if (agent->state == AGENT_ONLINE)
                tell_leaving(agent);
}

static void leave_when_done(struct mfl_agent *agent)
{
        if (agent->leaving && agent->state != AGENT_ENDED &&
                (agent->now_ms >= agent->leave_ms || !mfl_agent_busy(agent)))
                stop(agent);
}

/* ---- time ---- */

static uint64_t connection_due_ms(const struct mfl_agent *agent)
{
        switch (agent->state) {
        case AGENT_OFFLINE:
                return agent->retry_ms;
        case AGENT_CONNECTING:
        case AGENT_GREETING:
                return agent->since_ms + AGENT_CONNECT_MS;
        case AGENT_ONLINE:
                return MFL_MIN(agent->sent_ms + agent->heartbeat_ms, agent->heard_ms + agent->dead_ms);
        default:
                return AGENT_NEVER;
        }
}

uint64_t mfl_agent_next_ms(const struct mfl_agent *agent)
{
        uint64_t due_ms = connection_due_ms(agent);
        if (agent->state != AGENT_ENDED)
                due_ms = MFL_MIN(due_ms, mfl_agent_tasks_due_ms(agent));
        return agent->leaving && agent->state != AGENT_ENDED ? MFL_MIN(due_ms, agent->leave_ms) : due_ms;
}

static void run_timers(struct mfl_agent *agent)
{
        if (agent->now_ms < connection_due_ms(agent))
                return;
        if (agent->state == AGENT_OFFLINE)
                connect_now(agent);
        else if (agent->state != AGENT_ONLINE)
                close_connection(agent, "no Welcome in time");
        else if (agent->now_ms - agent->heard_ms >= agent->dead_ms)
                close_connection(agent, "nothing heard from the server");
        else {
                mfl_agent_forget_unnamed(agent);
                mfl_agent_send(agent, MFL_MSG_PING)->cookie = agent->now_ms;
        }
}

/* A daemon that was suspended has heard nothing, which says nothing about the server. */
static void forgive_own_sleep(struct mfl_agent *agent, uint64_t now_ms)
{
        if (agent->state == AGENT_ONLINE && now_ms - agent->now_ms >= agent->dead_ms / 2 &&
                connection_due_ms(agent) < now_ms)
                agent->heard_ms = now_ms;
}

static void take_event(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        switch (event->kind) {
        case MFL_AGENT_EV_START:
                if (agent->retry_ms == AGENT_NEVER)
                        agent->retry_ms = agent->now_ms;
                break;
        case MFL_AGENT_EV_TICK:
                break;
        case MFL_AGENT_EV_CONNECTED:
                greet(agent);
                break;
        case MFL_AGENT_EV_CLOSED:
                if (agent->state != AGENT_OFFLINE)
                        go_offline(agent, event->reason[0] ? event->reason : "the connection is gone");
                break;
        case MFL_AGENT_EV_HEARD:
                agent->heard_ms = agent->now_ms;
                if (event->part)
                        mfl_agent_params_heard(agent, event->part);
                break;
        case MFL_AGENT_EV_MESSAGE:
                on_message(agent, event->msg);
                break;
        case MFL_AGENT_EV_JOB_CHANGED:
                mfl_agent_job_changed(agent, event->job);
                break;
        case MFL_AGENT_EV_JOB_DENIED:
                mfl_agent_job_denied(agent, event->job);
                break;
        case MFL_AGENT_EV_JOB_OVER:
                mfl_agent_job_over(agent, event->job);
                break;
        case MFL_AGENT_EV_PARAMS_ARRIVED:
                agent->heard_ms = agent->now_ms;
                mfl_agent_params_event(agent, event);
                break;
        case MFL_AGENT_EV_PARAMS_ROOM:
        case MFL_AGENT_EV_PARAMS_LOOKED:
        case MFL_AGENT_EV_PARAMS_HASHED:
                mfl_agent_params_event(agent, event);
                break;
        case MFL_AGENT_EV_COMPUTED:
                mfl_agent_computed(agent, event);
                break;
        case MFL_AGENT_EV_RECALLED:
                mfl_agent_recalled(agent, event);
                break;
        case MFL_AGENT_EV_SENT:
                mfl_agent_sent(agent, event->task, event->update);
                break;
        case MFL_AGENT_EV_COMBINED:
                mfl_agent_combined(agent, event);
                break;
        case MFL_AGENT_EV_COMMUNICATOR:
                mfl_agent_communicator(agent, event);
                break;
        case MFL_AGENT_EV_STOP:
                stop(agent);
                break;
        case MFL_AGENT_EV_LEAVE:
                leave(agent, event->within_ms);
                break;
        }
}

int mfl_agent_step(
        struct mfl_agent *agent, const struct mfl_agent_event *event, struct mfl_agent_actions *actions)
{
        mfl_assert(event->now_ms >= agent->now_ms);
        if (agent->error)
                return agent->error;
        agent->out = actions;
        forgive_own_sleep(agent, event->now_ms);
        agent->now_ms = event->now_ms;
        if (agent->state != AGENT_ENDED)
                take_event(agent, event);
        leave_when_done(agent);
        run_timers(agent);
        if (agent->state != AGENT_ENDED && !agent->error)
                mfl_agent_schedule(agent);
        mfl_agent_actions_end(agent);
        return agent->error;
}

/* What the tasks must be like between two steps. */
static void check_tasks(const struct mfl_agent *agent)
{
        uint32_t n_device = 0, n_params = 0, n_results = 0;
        for (const struct agent_task *task = agent->tasks; task; task = task->next) {
                mfl_agent_group_check(agent, task);
                n_device += task->state == TASK_COMPUTE || task->state == TASK_ABORT;
                n_params += task->state == TASK_PARAMS || task->state == TASK_READY;
                n_results += task->state == TASK_RESULT && task->task.kind == MFL_TASK_TRAIN;
                mfl_assert(task->task.n_items > 0 || task->state == TASK_FAILED);
                mfl_assert(task->task.n_items <= task->n_given);
                mfl_assert(task->state == TASK_RESULT || (!task->n_updates && !task->n_eval));
                for (const struct agent_task *other = task->next; other; other = other->next)
                        mfl_assert(other->task.task != task->task.task &&
                                   (other->wire != task->wire || other->state == TASK_ABORT));
        }
        mfl_assert(n_device <= 1 && n_params <= 1);
        mfl_assert(n_results <= agent->options.results_max);
        mfl_agent_params_check(agent);
}

void mfl_agent_check(const struct mfl_agent *agent)
{
        mfl_assert(agent->state <= AGENT_ENDED && agent->n_jobs <= AGENT_JOBS_MAX);
        mfl_assert(agent->state != AGENT_ONLINE || agent->dead_ms > agent->heartbeat_ms);
        check_tasks(agent);
}
