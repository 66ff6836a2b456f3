/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: from accept to close.
 *
 *   - accept, wait for Hello (10 s), answer Welcome or Bye;
 *   - a daemon: its messages become events of the core; chunks land straight in the slot that was granted to
 * it;
 *   - an operator: requests go to operators.c.
 * Fails by: too many connections, no or a wrong Hello, a message out of turn, a chunk nobody asked for,
 * silence (the core or the stream decides), the peer's own close. Each ends the session alone.
 */
#include <stdio.h>

#include "common/log.h"
#include "proto/version.h"
#include "server/partition.h"
#include "server/server.h"

#define TELEMETRY_MS_MAX 60000u /* a sampler that hangs must not show old figures as new ones */

static struct mfl_session **bucket_of(struct mfl_server *server, uint32_t conn)
{
        return &server->buckets[conn % MFL_SESSION_BUCKETS];
}

struct mfl_session *mfl_session_find(struct mfl_server *server, uint32_t conn)
{
        struct mfl_session *s = *bucket_of(server, conn);
        while (s && s->conn != conn)
                s = s->hash_next;
        return s;
}

bool mfl_session_submit(struct mfl_session *session, struct mfl_work *work)
{
        struct mfl_worker *disk = &session->server->disk;
        if (session->n_work == MFL_SESSION_WORK_MAX || disk->n_pending >= disk->queue_max / 2 ||
                mfl_worker_submit(disk, work))
                return false;
        session->n_work++;
        return true;
}

void mfl_session_worked(struct mfl_server *server, uint32_t conn)
{
        struct mfl_session *session = mfl_session_find(server, conn);
        if (session)
                session->n_work--;
}

static void link_session(struct mfl_session *session)
{
        struct mfl_server *server = session->server;
        session->next = server->sessions;
        session->prev_next = &server->sessions;
        if (session->next)
                session->next->prev_next = &session->next;
        server->sessions = session;
        struct mfl_session **bucket = bucket_of(server, session->conn);
        session->hash_next = *bucket;
        *bucket = session;
        server->n_sessions++;
}

static void unlink_session(struct mfl_session *session)
{
        *session->prev_next = session->next;
        if (session->next)
                session->next->prev_next = session->prev_next;
        struct mfl_session **at = bucket_of(session->server, session->conn);
        while (*at != session)
                at = &(*at)->hash_next;
        *at = session->hash_next;
        session->server->n_sessions--;
}

uint64_t mfl_session_unread(struct mfl_server *server, struct mfl_session **ret_most)
{
        uint64_t sum = 0, most = 0;
        *ret_most = NULL;
        for (struct mfl_session *s = server->sessions; s; s = s->next) {
                if (s->stream.closing)
                        continue; /* its queue goes in a moment */
                sum += s->stream.unread_bytes;
                if (s->stream.unread_bytes <= most)
                        continue;
                most = s->stream.unread_bytes;
                *ret_most = s;
        }
        return sum;
}

/* What goes out is not seen here, so the bound only rises; all are looked at when it is over the limit. */
void mfl_session_queued(struct mfl_session *session, size_t before)
{
        struct mfl_server *server = session->server;
        struct mfl_session *most;
        size_t now = session->stream.unread_bytes;
        server->unread_most += now > before ? now - before : 0;
        if (server->unread_most <= server->config.unread_max_bytes)
                return;
        server->unread_most = mfl_session_unread(server, &most);
        if (server->unread_most <= server->config.unread_max_bytes || !most)
                return;
        mfl_admission_warn(server,
                "%s: closed: it does not read; %.1f MiB wait for it, %.1f MiB for all connections "
                "(unread_max)",
                most->peer, (double)most->stream.unread_bytes / (1 << 20),
                (double)server->unread_most / (1 << 20));
        server->unread_most -= most->stream.unread_bytes;
        server->observed.connections_unread++;
        mfl_stream_close(&most->stream, NULL, false);
}

void mfl_session_send(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        struct mfl_error err;
        size_t before = session->stream.unread_bytes;
        int r = mfl_stream_send(&session->stream, envelope, NULL, 0, NULL, NULL, NULL, &err);
        mfl_session_queued(session, before);
        if (r < 0)
                mfl_server_fatal(session->server, r, &err);
        if (r != MFL_INVALID)
                return;
        /* Our own message breaks a rule of the protocol, its size most likely: whoever asked must not wait
         * for ever. */
        mfl_log(MFL_LOG_WARN, "%s: an answer was not sent: %s", session->peer, err.text);
        if (envelope->request && envelope->body_case != MFL__ENVELOPE__BODY_FAILURE)
                mfl_operator_fail(session, envelope->request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "the answer: %s", err.text);
}

/* The slot that was granted for (task, update) to this connection. */
static struct mfl_server_job *find_slot(
        struct mfl_session *session, const Mfl__Chunk *chunk, uint32_t *ret_slot)
{
        for (struct mfl_server_job *job = session->server->jobs; job; job = job->next)
                for (uint32_t i = 0; i < job->n_slots; i++) {
                        const struct mfl_slot_use *use = &job->slots[i];
                        if (use->open && !use->adding && use->conn == session->conn &&
                                use->task == chunk->task && use->update == chunk->update) {
                                *ret_slot = i;
                                return job;
                        }
                }
        return NULL;
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_session *session = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK && session->role == MFL__ROLE__ROLE_DAEMON) {
                uint32_t slot;
                struct mfl_server_job *job = find_slot(session, envelope->chunk, &slot);
                *ret_dst = NULL; /* a slot that was taken back: what is under way is read and dropped */
                if (!job)
                        return 0;
                int r = mfl_slot_write_begin(job->runtime, slot, envelope->chunk->offset, payload_bytes,
                        &session->chunk_write, err);
                if (r)
                        return r == MFL_NOT_FOUND ? 0 : r;
                session->chunk_job = job;
                session->chunk_told = 0;
                job->operations++;
                *ret_dst = session->chunk_write.dst;
                return 0;
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_INITIAL && session->role == MFL__ROLE__ROLE_OPERATOR) {
                return mfl_operator_initial_begin(session, envelope, payload_bytes, ret_dst, err);
        }
        return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
}

static void feed_upload_complete(struct mfl_server_job *job, uint32_t slot)
{
        struct mfl_core_event event = {.kind = MFL_EV_UPLOAD_COMPLETE, .slot = slot};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_server_feed(job->server, &event);
}

static void end_chunk(struct mfl_session *session, bool arrived)
{
        struct mfl_server_job *job = session->chunk_job;
        if (!job)
                return;
        session->chunk_job = NULL;
        if (arrived)
                mfl_server_job_cost_bytes(job, session->conn, session->chunk_write.bytes, 0);
        if (mfl_slot_write_end(job->runtime, &session->chunk_write, arrived))
                feed_upload_complete(job, session->chunk_write.slot);
        mfl_server_job_operation_done(job);
}

/* A chunk of megabytes takes long on a slow line; its end alone would be too late to hear of it. */
static void tell_chunk(struct mfl_session *session)
{
        if (!session || !session->chunk_job || session->stream.in.have == session->chunk_told)
                return;
        session->chunk_told = session->stream.in.have;
        struct mfl_core_event event = {.kind = MFL_EV_CHUNK, .conn = session->conn};
        mfl_server_feed(session->server, &event);
}

void mfl_session_tell_chunks(struct mfl_server *server)
{
        for (struct mfl_server_job *job = server->jobs; job; job = job->next)
                for (uint32_t i = 0; i < job->n_slots; i++)
                        if (job->slots[i].open && !job->slots[i].adding)
                                tell_chunk(mfl_session_find(server, job->slots[i].conn));
}

static int welcome(struct mfl_session *session)
{
        const struct mfl_server_config *config = &session->server->config;
        Mfl__Welcome body = MFL__WELCOME__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.protocol = session->protocol;
        body.software = "mfl-server " MFL_VERSION;
        body.heartbeat_ms = (uint32_t)config->heartbeat_ms;
        body.dead_ms = (uint32_t)config->dead_ms;
        envelope.body_case = MFL__ENVELOPE__BODY_WELCOME;
        envelope.welcome = &body;
        mfl_session_send(session, &envelope);
        return 0;
}

static int greet_daemon(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_msg msg;
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r)
                return r;
        struct mfl_core_event event = {.kind = MFL_EV_DAEMON_UP, .conn = session->conn, .daemon = &msg.hello};
        event.drained = mfl_operator_is_drained(session->server, msg.hello.name);
        mfl_strcpy(session->daemon, sizeof session->daemon, msg.hello.name);
        mfl_server_feed(session->server, &event); /* the core sends Welcome */
        mfl_msg_deinit(&msg);
        return 0;
}

/* So that jobs can tell why they have no daemon. Best effort: a Hello that can't be read says nothing. */
static void tell_refused(struct mfl_session *session, const Mfl__Envelope *envelope, enum mfl_refusal refusal)
{
        struct mfl_msg msg;
        if (mfl_wire_to_msg(envelope, &msg, NULL))
                return;
        struct mfl_core_event event = {.kind = MFL_EV_REFUSED, .daemon = &msg.hello, .refusal = refusal};
        mfl_server_feed(session->server, &event);
        mfl_msg_deinit(&msg);
}

static int greet(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        if (envelope->body_case != MFL__ENVELOPE__BODY_HELLO)
                return mfl_fail(err, MFL_INVALID, "Hello must come first");
        const Mfl__Hello *hello = envelope->hello;
        const struct mfl_protocol_range own = {MFL_PROTOCOL_MIN, MFL_PROTOCOL_MAX},
                                        peer = {hello->protocol_min, hello->protocol_max};
        int r = mfl_protocol_choose(own, peer, hello->software, &session->protocol, err);
        if (r) {
                /* A daemon goes on trying: one of the two may be upgraded any minute. */
                mfl_stream_close(&session->stream, err->text, hello->role == MFL__ROLE__ROLE_DAEMON);
                if (hello->role == MFL__ROLE__ROLE_DAEMON && !mfl_admission_check(session, hello, err))
                        tell_refused(session, envelope, MFL_REFUSAL_VERSION);
                return 0;
        }
        r = mfl_admission_check(session, hello, err);
        if (r) {
                session->server->observed.daemons_refused[MFL_ACCESS_OK] +=
                        hello->role == MFL__ROLE__ROLE_DAEMON;
                mfl_audit_note(session->server, session, "connect", hello->name, "refused", err->text);
                return r;
        }
        if (hello->role == MFL__ROLE__ROLE_DAEMON && !mfl_operator_admit(session, hello)) {
                tell_refused(session, envelope, MFL_REFUSAL_RULE);
                return 0;
        }
        mfl_admission_end(session);
        session->role = hello->role;
        session->connected_unix_ms = mfl_unix_ms();
        session->stream.envelope_max = MFL_ENVELOPE_MAX;
        session->stream.payload_max = MFL_PAYLOAD_MAX;
        if (hello->role == MFL__ROLE__ROLE_DAEMON)
                return greet_daemon(session, envelope, err);
        session->server->n_operators++;
        return welcome(session);
}

/* A daemon asks for params; the core has no part in it. */
static void serve_params(struct mfl_session *session, const Mfl__ParamsGet *get)
{
        struct mfl_server_job *job = mfl_server_job_find(session->server, get->job);
        struct mfl_params *params =
                job && job->runtime ? mfl_runtime_params(job->runtime, get->digest.data) : NULL;
        if (params && get->offset < params->n) {
                mfl_transfer_start(session, job, params, get->offset, 0);
                mfl_params_unref(params);
                return;
        }
        mfl_params_unref(params);
        Mfl__ParamsGone body = MFL__PARAMS_GONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = get->job;
        body.digest = get->digest;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GONE;
        envelope.params_gone = &body;
        mfl_session_send(session, &envelope);
}

const struct mfl_telemetry *mfl_session_telemetry(struct mfl_server *server, uint32_t conn)
{
        const struct mfl_session *session = conn ? mfl_session_find(server, conn) : NULL;
        bool known = session && session->telemetry.known &&
                     uv_now(&server->loop) - session->telemetry_ms <= TELEMETRY_MS_MAX;
        return known ? &session->telemetry : NULL;
}

static int daemon_frame(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK) {
                struct mfl_core_event heard = {.kind = MFL_EV_CHUNK, .conn = session->conn};
                mfl_server_feed(session->server, &heard);
                end_chunk(session, true);
                return 0;
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARTITION) { /* for people who look, as Telemetry */
                struct mfl_core_event heard = {.kind = MFL_EV_HEARD, .conn = session->conn};
                mfl_job_partition_take(session, envelope->partition);
                mfl_server_feed(session->server, &heard);
                return 0;
        }
        struct mfl_msg msg;
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "a daemon may not send this message");
        if (r)
                return r;
        struct mfl_core_event event = {.kind = MFL_EV_MESSAGE, .conn = session->conn, .msg = &msg};
        if (msg.kind == MFL_MSG_PARAMS_GET) {
                event.kind = MFL_EV_HEARD;
                event.msg = NULL;
                serve_params(session, envelope->params_get);
        } else if (msg.kind == MFL_MSG_TELEMETRY) {
                /* For people who look: the core decides nothing by it. */
                event.kind = MFL_EV_HEARD;
                event.msg = NULL;
                session->telemetry = msg.telemetry;
                session->telemetry_ms = uv_now(&session->server->loop);
        }
        mfl_server_feed(session->server, &event);
        mfl_msg_deinit(&msg);
        return 0;
}

static int operator_frame(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        if (envelope->body_case == MFL__ENVELOPE__BODY_PING) {
                Mfl__Pong pong = MFL__PONG__INIT;
                Mfl__Envelope answer = MFL__ENVELOPE__INIT;
                pong.cookie = envelope->ping->cookie;
                answer.body_case = MFL__ENVELOPE__BODY_PONG;
                answer.pong = &pong;
                mfl_session_send(session, &answer);
                return 0;
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_PONG)
                return 0;
        if (envelope->body_case == MFL__ENVELOPE__BODY_INITIAL)
                return mfl_operator_initial_done(session, envelope, payload_bytes, err);
        return mfl_operator_request(session, envelope, err);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_session *session = stream->owner;
        if (session->server->stopping)
                return 0;
        if (envelope->body_case == MFL__ENVELOPE__BODY_BYE) {
                mfl_log(MFL_LOG_INFO, "%s: bye: %s", session->peer, envelope->bye->reason);
                /* The core closes it: whether a daemon is waited for depends on what it said. */
                if (session->role == MFL__ROLE__ROLE_DAEMON)
                        return daemon_frame(session, envelope, err);
                mfl_stream_close(stream, NULL, false);
                return 0;
        }
        switch (session->role) {
        case MFL__ROLE__ROLE_DAEMON:
                return daemon_frame(session, envelope, err);
        case MFL__ROLE__ROLE_OPERATOR:
                return operator_frame(session, envelope, payload_bytes, err);
        default:
                return greet(session, envelope, err);
        }
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_session *session = stream->owner;
        struct mfl_server *server = session->server;
        end_chunk(session, false);
        mfl_admission_end(session);
        mfl_transfer_stop(session);
        mfl_operator_forget(session);
        mfl_watch_forget(session);
        mfl_observe_closed(session);
        unlink_session(session);
        server->n_operators -= session->role == MFL__ROLE__ROLE_OPERATOR;
        if (session->role == MFL__ROLE__ROLE_DAEMON && !server->stopping) {
                struct mfl_core_event event = {.kind = MFL_EV_DAEMON_DOWN, .conn = session->conn};
                mfl_strcpy(event.reason, sizeof event.reason, reason);
                mfl_server_feed(server, &event);
        } else if (session->role == MFL__ROLE__ROLE_UNSPECIFIED && !session->refused) {
                mfl_admission_warn(server, "%s: closed before it had greeted: %s", session->peer, reason);
                server->observed.connections_ungreeted++;
        }
        free(session);
}

static const struct mfl_stream_ops session_ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
};

void mfl_session_on_connection(uv_stream_t *listener, int status)
{
        struct mfl_server *server = listener->data;
        struct mfl_error err;
        if (status < 0) {
                mfl_log(MFL_LOG_WARN, "accept: %s", uv_strerror(status));
                return;
        }
        struct mfl_session *session = mfl_calloc(1, sizeof *session);
        if (!session) {
                mfl_server_fatal(server, mfl_fail_memory(&err, sizeof *session, "a connection"), &err);
                return;
        }
        session->server = server;
        session->conn = ++server->conn_last;
        session->opened_ms = uv_now(&server->loop);
        server->observed.connections_accepted++;
        int r = mfl_stream_init(&session->stream, &server->loop, &session_ops, session, &err);
        if (r) {
                free(session);
                mfl_server_fatal(server, r, &err);
                return;
        }
        session->stream.envelope_max = MFL_ENVELOPE_MAX_EARLY;
        session->stream.payload_max = 0;
        link_session(session);
        r = mfl_admission_prepare(session, &err);
        if (r) { /* never on without TLS */
                mfl_server_fatal(server, r, &err);
                mfl_stream_close(&session->stream, NULL, false);
                return;
        }
        mfl_stream_accept(&session->stream, listener);
        mfl_stream_peer(&session->stream, session->peer, sizeof session->peer);
        if (!mfl_admission_begin(session))
                return;
        if (server->n_sessions > server->config.connections_max) {
                server->observed.connections_refused++;
                mfl_admission_warn(server, "%s: refused: connections_max (%u) is reached", session->peer,
                        server->config.connections_max);
                mfl_stream_close(&session->stream, "the server has as many connections as it may", true);
        }
}

void mfl_session_job_over(struct mfl_server *server, const char *job)
{
        Mfl__JobOver body = MFL__JOB_OVER__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = (char *)(uintptr_t)job;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_OVER;
        envelope.job_over = &body;
        for (struct mfl_session *s = server->sessions; s; s = s->next)
                if (s->role == MFL__ROLE__ROLE_DAEMON)
                        mfl_session_send(s, &envelope);
}

void mfl_session_reap(struct mfl_server *server)
{
        uint64_t now = uv_now(&server->loop);
        char text[64];
        snprintf(text, sizeof text, "no Hello within %.3g s", (double)server->config.greet_ms / 1000);
        mfl_admission_tick(server);
        for (struct mfl_session *s = server->sessions; s; s = s->next)
                if (s->role == MFL__ROLE__ROLE_UNSPECIFIED && now - s->opened_ms > server->config.greet_ms)
                        mfl_stream_close(&s->stream, text, true);
}
