/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's shell: the connection, the timer, and the agent's actions, carried out in order. */
#include "client/link/link.h"

#include "client/link/link_inside.h"
#include "client/link/link_inquiry.h"
#include "client/link/link_internal.h"
#include "client/link/link_secure.h"
#include "common/base/log.h"
#include "proto/version.h"

#define PROGRESS_MS 500u
#define CLUSTER_BACKOFF_MS 1000u /* another server takes over within seconds */

static const struct mfl_stream_ops stream_ops;
static void on_timer(uv_timer_t *timer);

static void free_link(struct mfl_link *link)
{
        mfl_assert(link->life == LINK_CLOSING && !link->inquiries && !link->works && !link->combines &&
                   !link->uploads);
        mfl_link_results_free_all(link);
        mfl_link_params_free_all(link);
        mfl_link_wants_free(link);
        mfl_link_job_forget(link, NULL);
        mfl_agent_free(link->agent);
        free(link->inside);
        mfl_agent_actions_deinit(&link->actions);
        void (*closed)(void *user) = link->closed;
        void *user = link->options.user;
        free(link->deferred);
        mfl_link_book_close(link);
        free(link);
        if (closed)
                closed(user);
}

static void stop_work(struct mfl_link *link)
{
        mfl_link_work_abort_all(link);
        mfl_link_combine_stop_all(link);
        mfl_link_upload_purge(link);
}

/* Tells the owner from the timer, because the caller that found the failure may still use the link. */
static void end(struct mfl_link *link, int status, const char *reason)
{
        if (link->life != LINK_RUNS)
                return;
        link->life = LINK_EXITED;
        link->exit_status = status;
        mfl_strcpy(link->exit_reason, sizeof(link->exit_reason), reason);
        stop_work(link);
        uv_timer_start(&link->timer, on_timer, 0, 0);
}

/* ---- actions ---- */

/* Params that came inside their Task are handled like a frame of Params, so they are hashed like any others. False: the
 * server has to be asked for them. */
static bool take_inside(struct mfl_link *link, const struct mfl_msg *get)
{
        struct link_inside *inside = link->inside;
        void *dst = NULL;
        if (link->receiving || !mfl_link_inside_answers(inside, get))
                return false;
        Mfl__Params params = MFL__PARAMS__INIT;
        params.job = inside->job;
        params.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = inside->digest};
        params.total = inside->bytes / sizeof(float);
        if (!mfl_link_params_payload(link, &params, inside->bytes, &dst, NULL) && dst) {
                memcpy(dst, inside->data, inside->bytes);
                mfl_link_params_frame(link, inside->bytes, NULL);
        }
        free(inside);
        link->inside = NULL;
        return dst != NULL;
}

static void send_msg(struct mfl_link *link, struct mfl_agent_action *action)
{
        const struct mfl_msg *msg = mfl_link_mark_hello(link, &action->msg);
        struct mfl_wire_extra extra = {.job_text = NULL};
        if (!link->stream_state || (msg->kind == MFL_MSG_PARAMS_GET && take_inside(link, msg)))
                return;
        if (msg->kind == MFL_MSG_ANNOUNCE)
                extra = mfl_link_upload_inside(link, action);
        /* Bye is the last message of a connection; closing the stream flushes it. */
        if (msg->kind == MFL_MSG_BYE) {
                mfl_stream_close(&link->stream, msg->bye.reason, msg->bye.retry);
                return;
        }
        struct mfl_error err;
        int r = mfl_stream_send_msg(&link->stream, msg, &extra, &err);
        if (r < 0)
                mfl_link_fatal(link, &err);
        else if (!r && msg->kind == MFL_MSG_ANNOUNCE)
                mfl_link_secure_announced(link, action);
}

/* The agent's reason says more than the stream's. */
static void close_stream(struct mfl_link *link, const char *reason)
{
        if (!link->stream_state)
                return;
        mfl_strcpy(link->close_reason, sizeof(link->close_reason), reason);
        mfl_stream_close(&link->stream, NULL, false);
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
        /* The last connection still flushes a Bye: the new one begins when that is done. */
        if (link->stream_state) {
                link->stream_state = LINK_STREAM_REOPEN;
                mfl_stream_close(&link->stream, NULL, false);
                return;
        }
        memset(&link->stream, 0, sizeof(link->stream));
        link->close_reason[0] = 0;
        int r = mfl_stream_init(&link->stream, link->loop, &stream_ops, link, &err);
        if (r) {
                mfl_link_fatal(link, &err);
                return;
        }
        link->stream_state = LINK_STREAM_OPEN;
        link->pending++;
        r = begin_tls(link, &err);
        if (r < 0)
                mfl_link_fatal(link, &err);
        if (!r)
                r = mfl_stream_connect(&link->stream, mfl_link_server(link), &err);
        if (r) {
                mfl_strcpy(link->close_reason, sizeof(link->close_reason), err.text);
                mfl_stream_close(&link->stream, NULL, false);
        }
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
                send_msg(link, action);
                break;
        case MFL_AGENT_ACT_PARAMS_LOOK:
                mfl_link_params_look(link, action);
                break;
        case MFL_AGENT_ACT_PARAMS_ROOM:
                mfl_link_params_room(link, action);
                break;
        case MFL_AGENT_ACT_PARAMS_HASH:
                mfl_link_params_hash(link, action);
                break;
        case MFL_AGENT_ACT_PARAMS_SHARE:
                mfl_link_params_share(link, action);
                break;
        case MFL_AGENT_ACT_PARAMS_FREE:
                mfl_link_params_free(link, action->part);
                break;
        case MFL_AGENT_ACT_COMPUTE:
                mfl_link_work_start(link, action);
                break;
        case MFL_AGENT_ACT_ABORT:
        case MFL_AGENT_ACT_REGROUP:
                mfl_link_work_end(link, action->task_number, action->kind == MFL_AGENT_ACT_REGROUP);
                break;
        case MFL_AGENT_ACT_RECALL:
                mfl_link_work_recall(link, action->task_number, action->n_items);
                break;
        case MFL_AGENT_ACT_UPLOAD:
                mfl_link_upload_add(link, action);
                break;
        case MFL_AGENT_ACT_RESULT_FREE:
                mfl_link_secure_freed(link, action->task_number);
                mfl_link_upload_purge(link);
                mfl_link_result_free(link, action->task_number);
                break;
        case MFL_AGENT_ACT_PUBLISH:
                mfl_link_publish(link, action);
                break;
        case MFL_AGENT_ACT_COMBINE:
                mfl_link_combine_start(link, action);
                mfl_link_upload_purge(link);
                break;
        case MFL_AGENT_ACT_COMBINE_STOP:
                mfl_link_combine_stop(link, action->task_number, false);
                mfl_link_upload_purge(link);
                break;
        case MFL_AGENT_ACT_COMMUNICATOR:
                mfl_link_communicator_open(link, action);
                break;
        case MFL_AGENT_ACT_JOB_FORGET:
                mfl_link_job_forget(link, action->job);
                link->options.ops->forget(link->options.compute, action->job);
                break;
        case MFL_AGENT_ACT_TRACE:
                mfl_link_trace(link, "%s", action->reason);
                break;
        case MFL_AGENT_ACT_EXIT:
                end(link, action->ok ? 0 : 1, action->reason);
                break;
        }
}

/* ---- events ---- */

static void step(struct mfl_link *link, struct mfl_agent_event *event)
{
        event->now_ms = mfl_now_ms();
        int r = mfl_agent_step(link->agent, event, &link->actions);
        if (r) {
                struct mfl_error err;
                mfl_fail(&err, r, "agent: %s", strerror(-r));
                mfl_link_fatal(link, &err);
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
        /* The loop's clock has not moved since the loop woke, and a timer counts from there. */
        uv_update_time(link->loop);
        uv_timer_start(&link->timer, on_timer, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

static void tell_online(struct mfl_link *link)
{
        bool online = mfl_agent_online(link->agent);
        if (online == link->online)
                return;
        link->online = online;
        if (online) {
                mfl_servers_reached(&link->servers);
                link->last_reason[0] = 0;
                mfl_link_wants_pump(link);
        }
        if (link->options.on_online)
                link->options.on_online(link, online);
}

static bool combine_runs(const struct mfl_link *link)
{
        for (const struct link_combine *combine = link->combines; combine; combine = combine->next)
                if (combine->state == LINK_COMBINE_RUNS)
                        return true;
        return false;
}

/* Tells the activity whether a transfer is under way. */
static void tell_transfer(struct mfl_link *link)
{
        bool transfer = mfl_agent_fetches(link->agent) || link->wants.asked || link->uploads ||
                        link->chunks_in_flight || combine_runs(link);
        if (transfer == link->transfer || !link->options.activity)
                return;
        link->transfer = transfer;
        mfl_activity_transfer(link->options.activity, transfer, mfl_now_ns());
}

static void stepped(struct mfl_link *link)
{
        tell_transfer(link);
        tell_online(link);
        arm_timer(link);
}

static void summed(struct mfl_link *link)
{
        mfl_link_secure_summed(link);
        mfl_link_upload_pump(link);
        tell_transfer(link);
}

static const struct link_top top = {
        .step = step,
        .stepped = stepped,
        .moved = tell_transfer,
        .summed = summed,
        .end = end,
        .free = free_link,
};

static void on_timer(uv_timer_t *timer)
{
        struct mfl_link *link = timer->data;
        if (link->life == LINK_EXITED) {
                link->life = LINK_TOLD;
                link->options.on_exit(link, link->exit_status, link->exit_reason);
                return;
        }
        if (link->life != LINK_RUNS)
                return;
        if (link->works && mfl_now_ms() >= link->progress_ms)
                mfl_link_work_progress(link);
        /* A large frame on a slow line is a sign of life before it is whole. */
        if (link->stream_state && link->stream.heard_ms > link->heard_ms) {
                link->heard_ms = link->stream.heard_ms;
                struct mfl_agent_event heard = {.kind = MFL_AGENT_EV_HEARD};
                heard.part = link->receiving ? link->receiving->number : 0;
                mfl_link_post(link, &heard);
        }
        struct mfl_agent_event tick = {.kind = MFL_AGENT_EV_TICK};
        mfl_link_post(link, &tick);
}

/* ---- the connection ---- */

static void post_closed(struct mfl_link *link, const char *reason)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_CLOSED};
        mfl_strcpy(event.reason, sizeof(event.reason), reason);
        mfl_link_post(link, &event);
}

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_link *link = stream->owner;
        if (status) {
                mfl_strcpy(link->close_reason, sizeof(link->close_reason), text ? text : "cannot connect");
                mfl_stream_close(stream, NULL, false);
                return;
        }
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_CONNECTED};
        link->greeting = true;
        mfl_link_post(link, &event);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_link *link = stream->owner;
        bool again = link->stream_state == LINK_STREAM_REOPEN;
        const char *server = mfl_link_server(link);
        mfl_assert(link->stream_state);
        link->stream_state = LINK_STREAM_NONE;
        mfl_link_params_cut(link);
        mfl_link_upload_cut(link);
        mfl_link_secure_cut(link);
        mfl_link_wants_cut(link);
        mfl_link_work_cut(link);
        mfl_link_inquiry_cut(link);
        if (*link->close_reason)
                reason = link->close_reason;
        /* A server that can't be reached, and one that does not lead, are passed over. */
        if (!again && link->servers.n > 1 && link->life == LINK_RUNS && !link->online)
                again = mfl_servers_next(&link->servers, link->leader) && !link->greeting;
        link->leader[0] = 0;
        link->greeting = false;
        /* While the server is away, log one line, not one per attempt. */
        if (link->life == LINK_RUNS && !again && strcmp(reason, link->last_reason)) {
                mfl_strcpy(link->last_reason, sizeof(link->last_reason), reason);
                if (strncmp(reason, "connect to ", strlen("connect to ")) ==
                        0) /* it names the server itself */
                        mfl_log(MFL_LOG_WARN, "%s; trying again", reason);
                else
                        mfl_log(MFL_LOG_WARN, "connection to %s: %s; trying again", server, reason);
        }
        if (again && link->life == LINK_RUNS)
                connect_server(link);
        else
                post_closed(link, reason);
        mfl_link_pending_done(link);
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_link *link = stream->owner;
        int r = mfl_servers_hear(&link->servers, envelope->term, err);
        if (r || envelope->body_case != MFL__ENVELOPE__BODY_PARAMS)
                return r ? r : mfl_fail(err, MFL_INVALID, "a payload that daemons do not accept");
        return envelope->params->of_client
                       ? mfl_link_wants_payload(link, envelope->params, payload_bytes, ret_dst, err)
                       : mfl_link_params_payload(link, envelope->params, payload_bytes, ret_dst, err);
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
                link->inline_max = envelope->welcome->inline_max;
        }
        if (msg.kind == MFL_MSG_SECURE) {
                struct mfl_agent_event heard = {.kind = MFL_AGENT_EV_HEARD};
                mfl_link_secure_message(link, &msg.secure);
                mfl_msg_deinit(&msg);
                mfl_link_post(link, &heard);
                return 0;
        }
        if (msg.kind == MFL_MSG_TASK &&
                (!mfl_link_gate_lets(link, &msg.task) || !mfl_link_secure_lets(link, &msg.task))) {
                mfl_msg_deinit(&msg);
                return 0;
        }
        if (msg.kind == MFL_MSG_TASK)
                mfl_link_secure_apart(link, &msg.task);
        if (msg.kind == MFL_MSG_TASK)
                mfl_link_inside_keep(&link->inside, envelope->task);
        if (msg.kind == MFL_MSG_JOB_SPEC)
                r = mfl_link_job_set(link, envelope->job_spec);
        if (r < 0) {
                mfl_msg_deinit(&msg);
                return mfl_fail_memory(err, strlen(envelope->job_spec->text), "a job file");
        }
        bool alone = msg.kind == MFL_MSG_ALONE;
        uint64_t task = alone ? msg.cancel.task : 0;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_MESSAGE, .msg = &msg};
        mfl_link_post(link, &event);
        mfl_msg_deinit(&msg);
        if (alone)
                mfl_link_secure_alone(link, task);
        return 0;
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_link *link = stream->owner;
        int r = mfl_servers_hear(&link->servers, envelope->term, err);
        if (r)
                return r;
        if (envelope->body_case == MFL__ENVELOPE__BODY_BYE)
                mfl_link_note_leader(link, envelope->bye->leader);
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS) {
                if (!envelope->params->of_client)
                        return mfl_link_params_frame(link, payload_bytes, err);
                mfl_link_wants_frame(link, payload_bytes);
                return 0;
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS_GONE && envelope->params_gone->of_client) {
                mfl_link_wants_gone(link, envelope->params_gone);
                return 0;
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_JOB_OVER) {
                struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_OVER};
                mfl_strcpy(event.job, sizeof(event.job), envelope->job_over->job);
                mfl_link_post(link, &event);
                return 0;
        }
        if (mfl_link_inquiry_frame(link, envelope))
                return 0;
        r = take_message(link, envelope, err);
        if (r < 0)
                mfl_link_fatal(link, err);
        return r > 0 ? r : 0;
}

static const struct mfl_stream_ops stream_ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

/* ---- sums that grow ---- */

static void on_advanced(void *user)
{
        struct mfl_link *link = user;
        if (link->life == LINK_RUNS)
                mfl_link_upload_pump(link);
}

static void on_broken(void *user, const struct mfl_error *err)
{
        mfl_link_fatal(user, err);
}

/* ---- life ---- */

static int fill_link(struct mfl_link *link, const struct mfl_link_options *options, struct mfl_error *err)
{
        int r = mfl_servers_init(&link->servers, options->server, err);
        if (r)
                return r;
        link->options = *options;
        link->options.chunk_bytes = options->chunk_bytes ? options->chunk_bytes : 1024 * 1024;
        link->options.chunks_max = options->chunks_max ? options->chunks_max : 4;
        mfl_assert(link->options.chunk_bytes % 8 == 0 && link->options.chunk_bytes <= MFL_PAYLOAD_MAX);
        r = mfl_link_book_open(link, err);
        if (r)
                return r;
        struct mfl_agent_options agent = options->agent;
        agent.backoff_max_ms = link->servers.n > 1 ? CLUSTER_BACKOFF_MS : 0;
        return mfl_agent_new(&agent, &link->agent, err);
}

int mfl_link_open(uv_loop_t *loop, const struct mfl_link_options *options, struct mfl_link **ret_link,
        struct mfl_error *err)
{
        struct mfl_link *link = mfl_calloc(1, sizeof(*link));
        if (!link)
                return mfl_fail_memory(err, sizeof(*link), "a connection");
        link->loop = loop;
        link->top = &top;
        int r = fill_link(link, options, err);
        if (r) {
                mfl_link_book_close(link);
                free(link);
                return r;
        }
        r = mfl_link_wants_open(link, err);
        if (r) {
                mfl_agent_free(link->agent);
                mfl_link_book_close(link);
                free(link);
                return r;
        }
        uv_timer_init(loop, &link->timer);
        link->timer.data = link;
        link->pending = 2; /* the timer, and what threads want */
        *ret_link = link;
        mfl_link_gate_open(link);
        const struct mfl_compute_listener listener = {
                mfl_link_communicator_noted, on_advanced, on_broken, link};
        if (options->ops->listen)
                options->ops->listen(options->compute, &listener);
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_START};
        mfl_link_post(link, &event);
        return 0;
}

void mfl_link_stop(struct mfl_link *link)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_STOP};
        mfl_link_post(link, &event);
}

void mfl_link_leave(struct mfl_link *link, uint64_t within_ms)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_LEAVE, .within_ms = within_ms};
        mfl_link_post(link, &event);
}

static void on_timer_closed(uv_handle_t *handle)
{
        mfl_link_pending_done(handle->data);
}

void mfl_link_close(struct mfl_link *link, void (*closed)(void *user))
{
        if (link->life == LINK_CLOSING)
                return;
        link->life = LINK_CLOSING;
        link->closed = closed;
        stop_work(link);
        mfl_link_inquiry_stop(link);
        mfl_link_gate_close(link);
        if (link->options.ops->listen)
                link->options.ops->listen(link->options.compute, NULL);
        mfl_link_secure_cut(link);
        if (link->stream_state)
                mfl_stream_close(&link->stream, NULL, false);
        mfl_link_wants_close(link);
        uv_close((uv_handle_t *)&link->timer, on_timer_closed);
}
