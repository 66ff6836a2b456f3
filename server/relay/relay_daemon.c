/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons below a relay: a session with the daemon, and a stream on the connection above, under the session's number.
 *
 * Happy path: Hello -> the same Hello above, with the relay's path -> frames go through the core, or straight on. A payload that is
 * passed on up is held until it is sent; who sends faster than the line above takes it is not read for a while.
 * Failures: either end closes: the other one follows, unless the daemon's update is in a sum (relay_core.h).
 */
#include "common/base/log.h"
#include "proto/carry.h"
#include "proto/version.h"
#include "server/relay/relay_shell.h"
#include "server/transfer/params_down.h"

static struct mfl_relay *relay_of(const struct mfl_session *session)
{
        return session->all->role[MFL__ROLE__ROLE_DAEMON].owner;
}

static void free_if_done(struct relay_daemon *daemon)
{
        if (daemon->session || daemon->up_open)
                return;
        mfl_core_map_remove(&daemon->relay->by_conn, daemon->conn);
        *daemon->prev_next = daemon->next;
        if (daemon->next)
                daemon->next->prev_next = daemon->prev_next;
        free(daemon->from_below);
        free(daemon->from_above);
        free(daemon);
}

/* ---- passing on ---- */

/* When more than this waits to go up, nothing is read from whoever sends more. The daemons' Pongs wait behind it, so it is what the line
 * above should carry within a part of dead_after. */
#define UP_HIGH ((size_t)2 << 20)
#define UP_LOW ((size_t)1 << 20)

static void hold(struct relay_daemon *daemon)
{
        if (daemon->session && daemon->relay->up.stream.queued_bytes > UP_HIGH)
                mfl_carry_pause(&daemon->session->stream, true);
}

void relay_daemons_resume(struct mfl_relay *relay)
{
        if (relay->up.state == UP_WELCOME && relay->up.stream.queued_bytes > UP_LOW)
                return;
        for (struct mfl_session *s = relay->sessions->first; s; s = s->next)
                if (s->stream.paused)
                        mfl_carry_pause(&s->stream, false);
}

/* It goes up: the stream is the carrier. */
static void on_passed_up(struct mfl_stream *stream, int status, void *arg)
{
        free(arg);
        relay_daemons_resume(stream->owner);
}

static void on_passed(struct mfl_stream *stream, int status, void *arg)
{
        free(arg);
}

/* Takes the payload over. */
static void pass_payload(struct mfl_stream *to, Mfl__Envelope *envelope, uint8_t *payload, size_t bytes,
        mfl_stream_sent_cb sent)
{
        uint32_t via = envelope->via;
        envelope->via = 0;
        if (!payload || mfl_stream_send(to, envelope, payload, bytes, NULL, sent, payload, NULL))
                free(payload);
        envelope->via = via;
}

/* Envelopes are const for those who look at them; only what is passed on is changed, and put back. */
static Mfl__Envelope *open_envelope(const Mfl__Envelope *envelope)
{
        return (Mfl__Envelope *)(uintptr_t)envelope;
}

static void pass_message(struct relay_daemon *daemon, Mfl__Envelope *envelope, bool up)
{
        uint32_t via = envelope->via;
        envelope->via = 0;
        if (up && daemon->up_open) {
                if (mfl_stream_send(&daemon->up, envelope, NULL, 0, NULL, NULL, NULL, NULL) == -ENOMEM)
                        mfl_loop_no_memory(daemon->relay->loop, 0, "a message");
        } else if (!up && daemon->session) {
                mfl_session_send(daemon->session, envelope);
        }
        envelope->via = via;
}

static void pass_task(
        struct relay_daemon *daemon, Mfl__Envelope *envelope, const struct mfl_relay_action *action)
{
        Mfl__Group group = MFL__GROUP__INIT, *was = envelope->task->group;
        if (action->change == MFL_RELAY_NEW_GROUP && was) {
                group = *was;
                group.rank = action->members.rank;
                group.n_members = action->members.n_members;
                group.members = (uint64_t *)(uintptr_t)action->members.members;
        }
        const protobuf_c_boolean was_sum = envelope->task->sum;
        envelope->task->group = action->change == MFL_RELAY_NEW_GROUP ? &group : NULL;
        envelope->task->sum |= action->change == MFL_RELAY_FOR_SUM;
        pass_message(daemon, envelope, false);
        envelope->task->group = was;
        envelope->task->sum = was_sum;
}

void relay_daemon_pass(struct relay_daemon *daemon, const struct mfl_relay_action *action)
{
        Mfl__Envelope *envelope = open_envelope(daemon->relay->passing);
        if (!envelope)
                return;
        if (action->change != MFL_RELAY_AS_IS && envelope->body_case == MFL__ENVELOPE__BODY_TASK)
                pass_task(daemon, envelope, action);
        else
                pass_message(daemon, envelope, action->up);
}

void relay_daemon_send(struct relay_daemon *daemon, const struct mfl_msg *msg, bool up)
{
        if (up && daemon->up_open) {
                if (mfl_stream_send_msg(&daemon->up, msg, NULL, NULL) == -ENOMEM)
                        mfl_loop_no_memory(daemon->relay->loop, 0, "a message");
        } else if (!up && daemon->session) {
                mfl_session_send_msg(daemon->session, msg, NULL);
        }
}

static int step_message(
        struct relay_daemon *daemon, const Mfl__Envelope *envelope, bool up, struct mfl_error *err)
{
        struct mfl_relay *relay = daemon->relay;
        struct mfl_msg msg;
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r == MFL_NOT_FOUND) { /* of no interest here */
                pass_message(daemon, open_envelope(envelope), up);
                return 0;
        }
        if (r)
                return r;
        struct mfl_relay_event event = {.kind = up ? MFL_RELAY_EV_FROM_BELOW : MFL_RELAY_EV_FROM_ABOVE,
                .peer = daemon->conn,
                .msg = &msg};
        relay->passing = envelope;
        relay_step(relay, &event);
        relay->passing = NULL;
        mfl_msg_deinit(&msg);
        return 0;
}

/* ---- from above ---- */

static struct relay_daemon *daemon_of(const struct mfl_stream *stream)
{
        return stream->owner;
}

static int up_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct relay_daemon *daemon = daemon_of(stream);
        if (envelope->body_case != MFL__ENVELOPE__BODY_PARAMS)
                return mfl_fail(err, MFL_INVALID, "a payload that daemons do not accept");
        free(daemon->from_above);
        daemon->from_above = mfl_malloc(payload_bytes);
        if (!daemon->from_above)
                mfl_loop_no_memory(daemon->relay->loop, payload_bytes, "a payload");
        *ret_dst = daemon->from_above;
        return 0;
}

static void take_welcome(struct relay_daemon *daemon, const Mfl__Envelope *envelope)
{
        uint32_t inline_max = envelope->welcome->inline_max;
        if (!daemon->session || daemon->session->state != MFL_SESSION_GREETED)
                return;
        mfl_session_welcomed(daemon->session);
        envelope->welcome->inline_max = 0; /* an update is added here, from a slot */
        pass_message(daemon, open_envelope(envelope), false);
        envelope->welcome->inline_max = inline_max;
}

static int up_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct relay_daemon *daemon = daemon_of(stream);
        struct mfl_relay_event over = {.kind = MFL_RELAY_EV_JOB_OVER};
        uint8_t *bytes = daemon->from_above;
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_BYE:
                if (daemon->session)
                        mfl_stream_close(
                                &daemon->session->stream, envelope->bye->reason, envelope->bye->retry);
                return 0;
        case MFL__ENVELOPE__BODY_WELCOME:
                take_welcome(daemon, envelope);
                return 0;
        case MFL__ENVELOPE__BODY_PARAMS:
                daemon->from_above = NULL;
                if (daemon->session)
                        pass_payload(&daemon->session->stream, open_envelope(envelope), bytes, payload_bytes,
                                on_passed);
                else
                        free(bytes);
                return 0;
        case MFL__ENVELOPE__BODY_JOB_OVER:
                mfl_strcpy(over.job, sizeof over.job, envelope->job_over->job);
                relay_step(daemon->relay, &over);
                relay_params_forget(daemon->relay, over.job);
                pass_message(daemon, open_envelope(envelope), false);
                return 0;
        default:
                return step_message(daemon, envelope, false, err);
        }
}

static void up_closed(struct mfl_stream *stream, const char *reason)
{
        struct relay_daemon *daemon = daemon_of(stream);
        struct mfl_relay_event event = {.kind = MFL_RELAY_EV_ENDED, .peer = daemon->conn};
        daemon->up_open = false;
        relay_step(daemon->relay, &event);
        if (daemon->session)
                mfl_stream_close(&daemon->session->stream, "the relay has lost its server", true);
        free_if_done(daemon);
}

static const struct mfl_stream_ops up_ops = {
        .on_payload = up_payload,
        .on_frame = up_frame,
        .on_closed = up_closed,
};

void relay_daemon_part(struct relay_daemon *daemon)
{
        if (daemon->up_open)
                mfl_stream_close(&daemon->up, "the daemon's connection to its relay has ended", true);
}

void relay_daemons_drop(struct mfl_relay *relay, const char *reason)
{
        for (struct relay_daemon *daemon = relay->daemons; daemon; daemon = daemon->next) {
                if (daemon->up_open)
                        mfl_stream_close(&daemon->up, NULL, true);
                if (daemon->session)
                        mfl_stream_close(&daemon->session->stream, reason, true);
        }
}

/* ---- from below ---- */

static bool on_admit(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        if (relay_is_up(relay_of(session)))
                return true;
        mfl_session_refuse(session, "the relay is not connected to its server yet");
        return false;
}

/* The same Hello, with what the relay knows. */
static void send_hello(struct relay_daemon *daemon, const Mfl__Envelope *envelope)
{
        Mfl__Hello *hello = envelope->hello, was = *hello;
        const struct mfl_tls_identity *id = mfl_stream_identity(&daemon->session->stream);
        char path[MFL_RELAY_BYTES] = "";
        if (!daemon->session->carrier) {
                hello->certificate_cn = (char *)(uintptr_t)(id ? id->name : "");
                hello->certificate_sha256 = (char *)(uintptr_t)(id ? id->fingerprint : "");
        }
        if (daemon->session->carrier)
                mfl_snprintf(path, sizeof path, "%s%s%.190s", daemon->session->relay, *was.relay ? "/" : "",
                        was.relay);
        hello->relay = path;
        hello->inline_max = 0; /* params come once for all daemons */
        hello->protocol_max = MFL_MIN(was.protocol_max, (uint32_t)MFL_PROTOCOL_MAX);
        pass_message(daemon, open_envelope(envelope), true);
        *hello = was;
}

static int on_greeted(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_relay *relay = relay_of(session);
        struct relay_daemon *daemon = mfl_calloc(1, sizeof *daemon);
        if (!daemon || mfl_core_map_put(&relay->by_conn, session->conn, daemon)) {
                free(daemon);
                return mfl_fail_memory(err, sizeof *daemon, "a daemon's connection");
        }
        daemon->relay = relay;
        daemon->conn = session->conn;
        daemon->session = session;
        daemon->next = relay->daemons;
        daemon->prev_next = &relay->daemons;
        if (daemon->next)
                daemon->next->prev_next = &daemon->next;
        relay->daemons = daemon;
        session->peer = daemon;
        int r = mfl_carry_init(
                &daemon->up, &relay->loop->uv, &relay->up.stream, session->conn, &up_ops, daemon, err);
        if (r)
                return r;
        daemon->up_open = true;
        struct mfl_relay_event event = {.kind = MFL_RELAY_EV_UP,
                .peer = daemon->conn,
                .instance = envelope->hello->instance,
                .lane = session->carrier ? session->carrier->conn : 0};
        relay_step(relay, &event);
        send_hello(daemon, envelope);
        return 0;
}

static int on_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct relay_daemon *daemon = session->peer;
        int status;
        if (envelope->body_case != MFL__ENVELOPE__BODY_CHUNK)
                return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
        if (relay_slot_begin(daemon, envelope->chunk, payload_bytes, ret_dst, &status, err))
                return status;
        free(daemon->from_below);
        daemon->from_below = mfl_malloc(payload_bytes);
        if (!daemon->from_below)
                mfl_loop_no_memory(daemon->relay->loop, payload_bytes, "a payload");
        *ret_dst = daemon->from_below;
        return 0;
}

static int end_chunk(struct relay_daemon *daemon, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        uint8_t *bytes = daemon->from_below;
        int status;
        if (relay_slot_end(daemon, true, &status, err))
                return status;
        daemon->from_below = NULL;
        if (daemon->up_open)
                pass_payload(&daemon->up, open_envelope(envelope), bytes, payload_bytes, on_passed_up);
        else
                free(bytes);
        return 0;
}

static int on_frame(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        struct relay_daemon *daemon = session->peer;
        hold(daemon);
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_CHUNK:
                return end_chunk(daemon, envelope, payload_bytes, err);
        case MFL__ENVELOPE__BODY_PARAMS_GET:
                if (!envelope->params_get->of_client) {
                        relay_params_ask(daemon->relay, session, envelope->params_get);
                        return 0;
                }
                pass_message(daemon, open_envelope(envelope), true);
                return 0;
        case MFL__ENVELOPE__BODY_HELLO:
                return mfl_fail(err, MFL_INVALID, "a second Hello");
        default:
                return step_message(daemon, envelope, true, err);
        }
}

static void on_closed(struct mfl_session *session, const char *reason)
{
        struct relay_daemon *daemon = session->peer;
        struct mfl_relay_event event = {.kind = MFL_RELAY_EV_DOWN, .peer = daemon->conn};
        struct mfl_error err;
        int status;
        relay_params_leave(daemon->relay, session);
        mfl_transfer_stop(session);
        relay_slot_end(daemon, false, &status, &err);
        session->peer = NULL;
        daemon->session = NULL;
        if (daemon->up_open)
                relay_step(daemon->relay, &event);
        free_if_done(daemon);
}

static const struct mfl_session_ops ops = {
        .admit = on_admit,
        .greeted = on_greeted,
        .payload = on_payload,
        .frame = on_frame,
        .closed = on_closed,
};

void relay_daemons_open(struct mfl_relay *relay)
{
        mfl_sessions_register(relay->sessions, MFL__ROLE__ROLE_DAEMON, &ops, relay);
}
