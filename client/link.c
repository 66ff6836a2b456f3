/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's shell: the connection, the timer, and carrying out the agent's actions in order. */
#include "client/link.h"

#include "client/link_internal.h"
#include "common/log.h"
#include "proto/version.h"

#define PROGRESS_MS 500u

static const struct mfl_stream_ops stream_ops;
static void on_timer(uv_timer_t *timer);

void link_pending_done(struct mfl_link *link)
{
        mfl_assert(link->pending > 0);
        if (--link->pending > 0)
                return;
        mfl_assert(link->closing);
        link_results_free_all(link);
        link_job_forget(link, NULL);
        mfl_agent_free(link->agent);
        mfl_agent_actions_deinit(&link->actions);
        void (*closed)(void *user) = link->closed;
        void *user = link->options.user;
        free(link->deferred);
        free(link->server);
        free(link);
        if (closed)
                closed(user);
}

static void end(struct mfl_link *link, int status, const char *reason)
{
        if (link->exited)
                return;
        link->exited = true;
        link->exit_status = status;
        mfl_strcpy(link->exit_reason, sizeof(link->exit_reason), reason);
        link_work_abort_all(link);
        link_combine_stop_all(link);
        /* The owner is told from the timer: whoever found the failure may still need the link. */
        if (!link->closing)
                uv_timer_start(&link->timer, on_timer, 0, 0);
}

void link_fatal(struct mfl_link *link, const struct mfl_error *err)
{
        end(link, 1, err->text);
}

/* ---- actions ---- */

static void send_msg(struct mfl_link *link, const struct mfl_msg *msg)
{
        if (!link->stream_open)
                return;
        /* Bye is the last message of a connection, and it needs the flush that a close gives it. */
        if (msg->kind == MFL_MSG_BYE) {
                mfl_stream_close(&link->stream, msg->bye.reason, msg->bye.retry);
                return;
        }
        struct mfl_error err;
        if (mfl_stream_send_msg(&link->stream, msg, NULL, &err) < 0)
                link_fatal(link, &err);
}

/* The agent's reason says more than the stream's. */
static void close_stream(struct mfl_link *link, const char *reason)
{
        if (!link->stream_open)
                return;
        mfl_strcpy(link->close_reason, sizeof(link->close_reason), reason);
        mfl_stream_close(&link->stream, NULL, false);
}

static void post_closed(struct mfl_link *link, const char *reason)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_CLOSED};
        mfl_strcpy(event.reason, sizeof(event.reason), reason);
        link_post(link, &event);
}

static int begin_tls(struct mfl_link *link, struct mfl_error *err)
{
        struct mfl_tls_context *context;
        if (!link->options.tls.ca)
                return 0;
        int r = mfl_tls_context_new(&link->options.tls, false, &context, err);
        if (r)
                return r;
        r = mfl_stream_tls(&link->stream, context, err);
        mfl_tls_context_unref(context);
        return r;
}

static void connect_server(struct mfl_link *link)
{
        struct mfl_error err;
        /* The last connection still flushes a Bye: the new one waits for its end. */
        link->connect_next = link->stream_open;
        if (link->stream_open) {
                mfl_stream_close(&link->stream, NULL, false);
                return;
        }
        memset(&link->stream, 0, sizeof(link->stream));
        link->close_reason[0] = 0;
        int r = mfl_stream_init(&link->stream, link->loop, &stream_ops, link, &err);
        if (r) {
                link_fatal(link, &err);
                return;
        }
        link->stream_open = true;
        link->pending++;
        r = begin_tls(link, &err);
        if (r < 0)
                link_fatal(link, &err);
        if (!r)
                r = mfl_stream_connect(&link->stream, link->server, &err);
        if (r) {
                mfl_strcpy(link->close_reason, sizeof(link->close_reason), err.text);
                mfl_stream_close(&link->stream, NULL, false);
        }
}

static void trace(struct mfl_link *link, const char *line)
{
        if (link->options.on_trace)
                link->options.on_trace(link, line);
}

void link_trace(struct mfl_link *link, const char *fmt, ...)
{
        char line[1024];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(line, sizeof(line), fmt, ap);
        va_end(ap);
        trace(link, line);
}

static void carry_out(struct mfl_link *link, struct mfl_agent_action *action)
{
        switch (action->kind) {
        case MFL_AGENT_ACT_CONNECT:
                connect_server(link);
                break;
        case MFL_AGENT_ACT_CLOSE:
                close_stream(link, action->reason);
                break;
        case MFL_AGENT_ACT_SEND:
                send_msg(link, &action->msg);
                break;
        case MFL_AGENT_ACT_PARAMS_OPEN:
                link_params_open(link, action->task);
                break;
        case MFL_AGENT_ACT_COMPUTE:
                link_work_start(link, action->task);
                break;
        case MFL_AGENT_ACT_ABORT:
                link_work_abort(link, action->task_number);
                break;
        case MFL_AGENT_ACT_UPLOAD:
                link_upload_add(link, action);
                break;
        case MFL_AGENT_ACT_RESULT_FREE:
                link_result_free(link, action->task_number);
                break;
        case MFL_AGENT_ACT_PUBLISH:
                link_publish(link, action);
                break;
        case MFL_AGENT_ACT_COMBINE:
                link_combine_start(link, action);
                break;
        case MFL_AGENT_ACT_COMBINE_STOP:
                link_combine_stop(link, action->task_number, false);
                break;
        case MFL_AGENT_ACT_COMMUNICATOR:
                link_communicator_open(link, action);
                break;
        case MFL_AGENT_ACT_JOB_FORGET:
                link_job_forget(link, action->job);
                link->options.ops->forget(link->options.compute, action->job);
                break;
        case MFL_AGENT_ACT_TRACE:
                trace(link, action->reason);
                break;
        case MFL_AGENT_ACT_EXIT:
                end(link, action->ok ? 0 : 1, action->reason);
                break;
        }
}

/* ---- events ---- */

static void defer(struct mfl_link *link, const struct mfl_agent_event *event)
{
        if (link->n_deferred == link->deferred_max) {
                uint32_t n = link->deferred_max ? 2 * link->deferred_max : 8;
                struct mfl_agent_event *v = mfl_realloc(link->deferred, n * sizeof(*v));
                if (!v) {
                        struct mfl_error err;
                        mfl_fail_memory(&err, n * sizeof(*v), "events");
                        link_fatal(link, &err);
                        return;
                }
                link->deferred = v;
                link->deferred_max = n;
        }
        link->deferred[link->n_deferred++] = *event;
}

static void step(struct mfl_link *link, struct mfl_agent_event *event)
{
        event->now_ms = mfl_now_ms();
        int r = mfl_agent_step(link->agent, event, &link->actions);
        if (r) {
                struct mfl_error err;
                mfl_fail(&err, r, "agent: %s", strerror(-r));
                link_fatal(link, &err);
        }
        for (uint32_t i = 0; i < link->actions.n; i++)
                carry_out(link, &link->actions.v[i]);
        mfl_agent_actions_clear(&link->actions);
}

static void arm_timer(struct mfl_link *link)
{
        uint64_t now_ms = mfl_now_ms(), due_ms = mfl_agent_next_ms(link->agent);
        if (link->works) {
                if (link->progress_ms < now_ms)
                        link->progress_ms = now_ms + PROGRESS_MS;
                due_ms = MFL_MIN(due_ms, link->progress_ms);
        }
        if (due_ms == UINT64_MAX) {
                uv_timer_stop(&link->timer);
                return;
        }
        /* The loop's clock stood still since it woke; a timer counts from there. */
        uv_update_time(link->loop);
        uv_timer_start(&link->timer, on_timer, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

static void tell_online(struct mfl_link *link)
{
        bool online = mfl_agent_online(link->agent);
        if (online == link->online)
                return;
        link->online = online;
        if (online)
                link->last_reason[0] = 0;
        if (link->options.on_online)
                link->options.on_online(link, online);
}

static bool combine_runs(const struct mfl_link *link)
{
        for (const struct link_combine *combine = link->combines; combine; combine = combine->next)
                if (combine->running)
                        return true;
        return false;
}

void link_tell_transfer(struct mfl_link *link)
{
        bool transfer = mfl_agent_fetches(link->agent) || link->uploads || link->chunks_in_flight ||
                        combine_runs(link);
        if (transfer == link->transfer || !link->options.activity)
                return;
        link->transfer = transfer;
        mfl_activity_transfer(link->options.activity, transfer, mfl_now_ns());
}

void link_post(struct mfl_link *link, const struct mfl_agent_event *event)
{
        if (link->exited || link->closing)
                return;
        if (link->stepping) {
                mfl_assert(!event->msg && !event->updates && !event->eval);
                defer(link, event);
                return;
        }
        link->stepping = true;
        struct mfl_agent_event now = *event;
        step(link, &now);
        for (uint32_t i = 0; i < link->n_deferred && !link->exited; i++) {
                now = link->deferred[i];
                step(link, &now);
        }
        link->n_deferred = 0;
        link->stepping = false;
        if (link->exited)
                return;
        link_tell_transfer(link);
        tell_online(link);
        arm_timer(link);
}

static void on_timer(uv_timer_t *timer)
{
        struct mfl_link *link = timer->data;
        if (link->closing)
                return;
        if (link->exited) {
                if (!link->told) {
                        link->told = true;
                        link->options.on_exit(link, link->exit_status, link->exit_reason);
                }
                return;
        }
        if (link->works && mfl_now_ms() >= link->progress_ms)
                link_work_progress(link);
        /* A large frame on a slow line is a sign of life before it is whole. */
        if (link->stream_open && link->stream.heard_ms > link->heard_ms) {
                link->heard_ms = link->stream.heard_ms;
                struct mfl_agent_event heard = {.kind = MFL_AGENT_EV_HEARD};
                link_post(link, &heard);
        }
        struct mfl_agent_event tick = {.kind = MFL_AGENT_EV_TICK};
        link_post(link, &tick);
}

static void on_poll(uv_timer_t *timer)
{
        struct mfl_link *link = timer->data;
        if (link->closing || link->exited)
                return;
        uint32_t ms = link_params_poll(link);
        if (link_upload_pump(link))
                ms = ms ? MFL_MIN(ms, LINK_POLL_MS) : LINK_POLL_MS;
        if (ms)
                link_poll(link, ms);
}

void link_poll(struct mfl_link *link, uint32_t ms)
{
        if (link->closing)
                return;
        uv_update_time(link->loop);
        if (!uv_is_active((uv_handle_t *)&link->poll) || uv_timer_get_due_in(&link->poll) > ms)
                uv_timer_start(&link->poll, on_poll, ms, 0);
}

/* ---- the connection ---- */

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_link *link = stream->owner;
        if (status) {
                mfl_strcpy(link->close_reason, sizeof(link->close_reason), text ? text : "cannot connect");
                mfl_stream_close(stream, NULL, false);
                return;
        }
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_CONNECTED};
        link_post(link, &event);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_link *link = stream->owner;
        link->stream_open = false;
        link_params_cut(link);
        link_upload_cut(link);
        link_work_cut(link);
        if (*link->close_reason)
                reason = link->close_reason;
        /* One line, not one per attempt, while the server is away. */
        if (!link->closing && !link->exited && strcmp(reason, link->last_reason)) {
                mfl_strcpy(link->last_reason, sizeof(link->last_reason), reason);
                mfl_log(MFL_LOG_WARN, "connection to %s: %s; trying again", link->server, reason);
        }
        if (link->connect_next && !link->closing && !link->exited)
                connect_server(link);
        else
                post_closed(link, reason);
        link_pending_done(link);
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_link *link = stream->owner;
        if (envelope->body_case != MFL__ENVELOPE__BODY_PARAMS)
                return mfl_fail(err, MFL_INVALID, "a payload that no daemon takes");
        return link_params_payload(link, envelope->params, payload_bytes, ret_dst, err);
}

static int take_message(struct mfl_link *link, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_msg msg = {0};
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "a message that is not for daemons");
        if (r)
                return r;
        const struct mfl_protocol_range own = {MFL_PROTOCOL_MIN, MFL_PROTOCOL_MAX};
        if (msg.kind == MFL_MSG_WELCOME) {
                r = mfl_protocol_check_chosen(
                        own, msg.welcome.protocol, "mfl-client " MFL_VERSION, msg.welcome.software, err);
                if (r) {
                        mfl_msg_deinit(&msg);
                        return r;
                }
                link->stream.envelope_max = MFL_ENVELOPE_MAX;
                link->stream.payload_max = MFL_PAYLOAD_MAX;
        }
        if (msg.kind == MFL_MSG_JOB_SPEC)
                r = link_job_set(link, envelope->job_spec->job, envelope->job_spec->text);
        if (r < 0) {
                mfl_msg_deinit(&msg);
                return mfl_fail_memory(err, strlen(envelope->job_spec->text), "a job file");
        }
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_MESSAGE, .msg = &msg};
        link_post(link, &event);
        mfl_msg_deinit(&msg);
        return 0;
}

/* The card is to be free at once, not when another job needs it. Decides nothing, so the core has no part in
 * it: a task that runs still is aborted by its own Cancel, and the trainer forgets after it, in order. */
static void job_over(struct mfl_link *link, const char *job)
{
        link_trace(link, "job %.23s is over: what was kept for it goes", job);
        link_job_forget(link, job);
        link->options.ops->forget(link->options.compute, job);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_link *link = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS) {
                link_params_frame(link, payload_bytes);
        } else if (envelope->body_case == MFL__ENVELOPE__BODY_JOB_OVER) {
                job_over(link, envelope->job_over->job);
        } else {
                int r = take_message(link, envelope, err);
                if (r < 0)
                        link_fatal(link, err);
                return r > 0 ? r : 0;
        }
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_HEARD};
        link_post(link, &event);
        return 0;
}

static const struct mfl_stream_ops stream_ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

/* ---- life ---- */

static int fill_link(struct mfl_link *link, const struct mfl_link_options *options, struct mfl_error *err)
{
        char host[256], port[16];
        int r = mfl_address_parse(options->server, host, sizeof(host), port, sizeof(port), err);
        if (r)
                return r;
        link->options = *options;
        link->options.chunk_bytes = options->chunk_bytes ? options->chunk_bytes : 1024 * 1024;
        link->options.chunks_max = options->chunks_max ? options->chunks_max : 4;
        mfl_assert(link->options.chunk_bytes % 8 == 0 && link->options.chunk_bytes <= MFL_PAYLOAD_MAX);
        link->server = mfl_strdup(options->server);
        if (!link->server)
                return mfl_fail_memory(err, strlen(options->server), "an address");
        return mfl_agent_new(&options->agent, &link->agent, err);
}

int mfl_link_open(uv_loop_t *loop, const struct mfl_link_options *options, struct mfl_link **ret_link,
        struct mfl_error *err)
{
        struct mfl_link *link = mfl_calloc(1, sizeof(*link));
        if (!link)
                return mfl_fail_memory(err, sizeof(*link), "a connection");
        link->loop = loop;
        int r = fill_link(link, options, err);
        if (r) {
                free(link->server);
                free(link);
                return r;
        }
        uv_timer_init(loop, &link->timer);
        uv_timer_init(loop, &link->poll);
        link->timer.data = link->poll.data = link;
        link->pending = 2;
        *ret_link = link;
        if (options->ops->listen)
                options->ops->listen(options->compute, link_communicator_noted, link);
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_START};
        link_post(link, &event);
        return 0;
}

void mfl_link_stop(struct mfl_link *link)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_STOP};
        link_post(link, &event);
}

void mfl_link_leave(struct mfl_link *link, uint64_t within_ms)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_LEAVE, .within_ms = within_ms};
        link_post(link, &event);
}

/* As Progress: for people who watch, so the core has no part in it. */
void mfl_link_telemetry(struct mfl_link *link, const struct mfl_telemetry *telemetry)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TELEMETRY, .telemetry = *telemetry};
        struct mfl_error err;
        if (!link->online || !link->stream_open || link->exited || link->closing)
                return;
        if (mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0)
                link_fatal(link, &err);
}

static void on_timer_closed(uv_handle_t *handle)
{
        link_pending_done(handle->data);
}

void mfl_link_close(struct mfl_link *link, void (*closed)(void *user))
{
        if (link->closing)
                return;
        link->closing = true;
        link->closed = closed;
        link_work_abort_all(link);
        link_combine_stop_all(link);
        if (link->options.ops->listen)
                link->options.ops->listen(link->options.compute, NULL, NULL);
        if (link->stream_open)
                mfl_stream_close(&link->stream, NULL, false);
        uv_close((uv_handle_t *)&link->timer, on_timer_closed);
        uv_close((uv_handle_t *)&link->poll, on_timer_closed);
}

void *mfl_link_user(const struct mfl_link *link)
{
        return link->options.user;
}

bool mfl_link_online(const struct mfl_link *link)
{
        return link->online;
}
