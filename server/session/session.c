/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: accepted, greeted, handed to their role's operations, and closed. */
#include "server/session/session.h"

#include <stdio.h>

#include "common/base/log.h"
#include "proto/carry.h"
#include "proto/version.h"
#include "server/session/admission.h"
#include "server/session/rate.h"

/* ---- the list ---- */

static struct mfl_session **bucket_of(struct mfl_sessions *sessions, uint32_t conn)
{
        return &sessions->buckets[conn % MFL_SESSION_BUCKETS];
}

struct mfl_session *mfl_session_find(const struct mfl_sessions *sessions, uint32_t conn)
{
        struct mfl_session *s = sessions->buckets[conn % MFL_SESSION_BUCKETS];
        while (s && s->conn != conn)
                s = s->hash_next;
        return s;
}

static void link_session(struct mfl_session *session)
{
        struct mfl_sessions *all = session->all;
        session->next = all->first;
        session->prev_next = &all->first;
        if (session->next)
                session->next->prev_next = &session->next;
        all->first = session;
        struct mfl_session **bucket = bucket_of(all, session->conn);
        mfl_assert(!mfl_session_find(all, session->conn));
        session->hash_next = *bucket;
        *bucket = session;
        all->n++;
}

static void unlink_session(struct mfl_session *session)
{
        *session->prev_next = session->next;
        if (session->next)
                session->next->prev_next = session->prev_next;
        struct mfl_session **at = bucket_of(session->all, session->conn);
        while (*at != session)
                at = &(*at)->hash_next;
        *at = session->hash_next;
        mfl_assert(session->all->n > 0);
        session->all->n--;
}

static const struct mfl_session_ops *ops_of(const struct mfl_session *session)
{
        mfl_assert(session->role != MFL__ROLE__ROLE_UNSPECIFIED);
        return session->all->role[session->role].ops;
}

bool mfl_session_is_daemon(const struct mfl_session *session)
{
        return session->role == MFL__ROLE__ROLE_DAEMON;
}

void mfl_session_welcomed(struct mfl_session *session)
{
        mfl_session_move(session, MFL_SESSION_WELCOME);
}

void mfl_session_refuse(struct mfl_session *session, const char *reason)
{
        mfl_session_move(session, MFL_SESSION_REFUSED);
        mfl_stream_close(&session->stream, reason, true);
}

/* ---- work ---- */

bool mfl_session_submit(struct mfl_session *session, struct mfl_work *work)
{
        struct mfl_worker *disk = &session->all->loop->disk;
        mfl_assert(session->n_work <= MFL_SESSION_WORK_MAX && work->run && work->done);
        if (session->n_work == MFL_SESSION_WORK_MAX || disk->n_pending >= disk->queue_max / 2 ||
                mfl_worker_submit(disk, work))
                return false;
        session->n_work++;
        return true;
}

void mfl_session_worked(struct mfl_sessions *sessions, uint32_t conn)
{
        struct mfl_session *session = mfl_session_find(sessions, conn);
        if (!session)
                return;
        mfl_assert(session->n_work > 0);
        session->n_work--;
}

/* ---- sending ---- */

uint64_t mfl_session_unread(const struct mfl_sessions *sessions, struct mfl_session **ret_most)
{
        uint64_t sum = 0, most = 0;
        *ret_most = NULL;
        for (struct mfl_session *s = sessions->first; s; s = s->next) {
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

/* What a carried session sends waits at its relay's stream. */
static size_t unread_of(const struct mfl_session *session)
{
        return session->carrier ? session->carrier->stream.unread_bytes : session->stream.unread_bytes;
}

/* Its queue held `before` unread bytes and has grown. When all connections together have more than
 * unread_max, the one with the most is closed. What goes out is not seen here, so the bound only rises; the
 * true sum is taken when the bound is over the limit. */
static void note_queued(struct mfl_session *session, size_t before)
{
        struct mfl_sessions *all = session->all;
        struct mfl_session *most;
        size_t now = unread_of(session);
        all->unread_most += now > before ? now - before : 0;
        if (all->unread_most <= all->config->unread_max_bytes)
                return;
        all->unread_most = mfl_session_unread(all, &most);
        if (all->unread_most <= all->config->unread_max_bytes || !most)
                return;
        mfl_admission_warn(all,
                "%s: closed: it does not read; %.1f MiB wait for it, %.1f MiB for all connections "
                "(unread_max)",
                most->address, (double)most->stream.unread_bytes / (1 << 20),
                (double)all->unread_most / (1 << 20));
        all->unread_most -= most->stream.unread_bytes;
        all->counts.unread++;
        mfl_stream_close(&most->stream, NULL, false);
}

void mfl_session_send(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        struct mfl_error err;
        size_t before = unread_of(session);
        mfl_assert(envelope->body_case != MFL__ENVELOPE__BODY__NOT_SET);
        if (session->sink) {
                if (!session->stream.closing)
                        session->sink(session->sink_user, envelope);
                return;
        }
        int r = mfl_stream_send(&session->stream, envelope, NULL, 0, NULL, NULL, NULL, &err);
        note_queued(session, before);
        if (r < 0)
                mfl_loop_fatal(session->all->loop, r, &err);
        if (r != MFL_INVALID)
                return;
        /* Our own message breaks a rule of the protocol, most likely by its size. The asker must not wait
         * for ever. */
        mfl_log(MFL_LOG_WARN, "%s: an answer was not sent: %s", session->address, err.text);
        if (envelope->request && envelope->body_case != MFL__ENVELOPE__BODY_FAILURE)
                mfl_session_fail(session, envelope->request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "the server could not send its answer: %s", err.text);
}

void mfl_session_send_msg(
        struct mfl_session *session, const struct mfl_msg *msg, const struct mfl_wire_extra *extra)
{
        struct mfl_error err;
        size_t before = unread_of(session);
        int r = mfl_stream_send_msg(&session->stream, msg, extra, &err);
        if (r < 0)
                mfl_loop_fatal(session->all->loop, r, &err);
        note_queued(session, before);
}

void mfl_session_fail(
        struct mfl_session *session, uint64_t request, Mfl__FailureCode code, const char *fmt, ...)
{
        char text[600];
        Mfl__Failure failure = MFL__FAILURE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        failure.code = code;
        failure.text = text;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_FAILURE;
        envelope.failure = &failure;
        mfl_session_send(session, &envelope);
}

/* ---- the greeting ---- */

static int choose_version(struct mfl_session *session, const Mfl__Hello *hello, struct mfl_error *err)
{
        const struct mfl_protocol_range own = {MFL_PROTOCOL_MIN, MFL_PROTOCOL_MAX},
                                        peer = {hello->protocol_min, hello->protocol_max};
        return mfl_protocol_choose(own, peer, hello->software, &session->protocol, err);
}

/* A daemon goes on trying: one of the two may be upgraded any minute. */
static void send_away(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        const Mfl__Hello *hello = envelope->hello;
        const struct mfl_session_ops *ops = session->all->role[hello->role].ops;
        mfl_stream_close(&session->stream, err->text, hello->role != MFL__ROLE__ROLE_OPERATOR);
        if (ops->denied && !mfl_admission_check(session, hello, err))
                ops->denied(session, envelope, NULL);
}

static int greet(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        const Mfl__Hello *hello = envelope->hello;
        mfl_assert(!session->peer);
        if (envelope->body_case != MFL__ENVELOPE__BODY_HELLO)
                return mfl_fail(err, MFL_INVALID, "Hello must come first");
        const struct mfl_session_ops *ops = session->all->role[hello->role].ops;
        if (!ops)
                return mfl_fail(err, MFL_INVALID,
                        hello->role == MFL__ROLE__ROLE_SERVER
                                ? "this server has no cluster.servers: it takes no files from other servers"
                                : "this is a relay: it takes daemons and other relays; ask the server above "
                                  "it");
        if (choose_version(session, hello, err)) {
                send_away(session, envelope, err);
                return 0;
        }
        int r = mfl_admission_check(session, hello, err);
        if (r) {
                if (ops->denied)
                        ops->denied(session, envelope, err->text);
                return r;
        }
        if (ops->admit && !ops->admit(session, envelope))
                return 0;
        mfl_admission_end(session);
        mfl_session_move(session, MFL_SESSION_GREETED);
        session->role = hello->role;
        session->connected_unix_ms = mfl_unix_ms();
        session->stream.envelope_max = MFL_ENVELOPE_MAX;
        session->stream.payload_max = MFL_PAYLOAD_MAX;
        return ops->greeted(session, envelope, err);
}

/* ---- the stream ---- */

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_session *session = stream->owner;
        if (!session->peer)
                return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
        return ops_of(session)->payload(session, envelope, payload_bytes, ret_dst, err);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_session *session = stream->owner;
        if (mfl_loop_is_stopping(session->all->loop))
                return 0;
        if (envelope->body_case == MFL__ENVELOPE__BODY_BYE && envelope->via == stream->via) {
                mfl_log(session->role == MFL__ROLE__ROLE_OPERATOR ? MFL_LOG_DEBUG : MFL_LOG_INFO,
                        "%s: bye: %s", session->address, envelope->bye->reason); /* each command ends so */
                /* The core closes a daemon's connection: whether it waits for the daemon depends on this. */
                if (!mfl_session_is_daemon(session)) {
                        mfl_stream_close(stream, NULL, false);
                        return 0;
                }
        }
        if (!session->peer)
                return greet(session, envelope, err);
        return ops_of(session)->frame(session, envelope, payload_bytes, err);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_session *session = stream->owner;
        struct mfl_sessions *all = session->all;
        mfl_admission_end(session);
        unlink_session(session);
        if (session->carrier)
                ops_of(session->carrier)->dropped(session->carrier, session);
        if (session->peer)
                ops_of(session)->closed(session, reason);
        mfl_assert(!session->peer && !session->handshake);
        if (session->state == MFL_SESSION_STRANGER) {
                mfl_admission_warn(all, "%s: closed before it had greeted: %s", session->address, reason);
                all->counts.ungreeted++;
        }
        mfl_assert(!session->transfer && !session->correction);
        all->counts.bytes_in += stream->bytes_in;
        all->counts.bytes_out += stream->bytes_out;
        all->admission.n_parted++;
        free(session);
}

static const struct mfl_stream_ops session_ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
};

/* carrier NULL: it will have a socket. */
static struct mfl_session *session_new(
        struct mfl_sessions *sessions, struct mfl_session *carrier, uint32_t via)
{
        struct mfl_error err;
        struct mfl_session *session = mfl_calloc(1, sizeof *session);
        if (!session) {
                mfl_loop_no_memory(sessions->loop, sizeof *session, "a connection");
                return NULL;
        }
        session->all = sessions;
        session->conn = ++sessions->conn_last;
        session->opened_ms = mfl_loop_now(sessions->loop);
        uv_loop_t *uv = &sessions->loop->uv;
        int r = carrier ? mfl_carry_init(
                                  &session->stream, uv, &carrier->stream, via, &session_ops, session, &err)
                        : mfl_stream_init(&session->stream, uv, &session_ops, session, &err);
        if (r) {
                free(session);
                mfl_loop_fatal(sessions->loop, r, &err);
                return NULL;
        }
        session->stream.envelope_max = MFL_ENVELOPE_MAX_EARLY;
        session->stream.payload_max = 0;
        session->stream.term = sessions->term;
        link_session(session);
        return session;
}

struct mfl_session *mfl_session_carried(struct mfl_session *carrier, uint32_t via)
{
        struct mfl_session *session = session_new(carrier->all, carrier, via);
        if (!session)
                return NULL;
        session->carrier = carrier;
        mfl_strcpy(session->relay, sizeof session->relay, carrier->relay);
        mfl_snprintf(session->address, sizeof session->address, "relay %s", carrier->relay);
        return session;
}

struct mfl_session *mfl_session_inner(struct mfl_sessions *sessions, const char *who, uint32_t roles,
        const char *address, void (*sink)(void *user, const Mfl__Envelope *envelope), void *sink_user)
{
        struct mfl_error err;
        struct mfl_session *session = session_new(sessions, NULL, 0);
        if (!session)
                return NULL;
        mfl_strcpy(session->who, sizeof session->who, who);
        mfl_strcpy(session->address, sizeof session->address, address);
        session->roles = roles;
        session->sink = sink;
        session->sink_user = sink_user;
        session->protocol = MFL_PROTOCOL_MAX;
        session->connected_unix_ms = mfl_unix_ms();
        mfl_session_move(session, MFL_SESSION_GREETED);
        session->role = MFL__ROLE__ROLE_OPERATOR;
        int r = ops_of(session)->greeted(session, NULL, &err);
        if (!r)
                return session;
        mfl_loop_fatal(sessions->loop, r, &err);
        mfl_stream_close(&session->stream, NULL, false);
        return NULL;
}

int mfl_session_inner_ask(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *bytes = NULL;
        size_t n;
        mfl_assert(session->sink && session->peer);
        int r = mfl_wire_pack(envelope, &bytes, &n, err); /* which checks it, as a peer's would be */
        return r ? r : ops_of(session)->frame(session, envelope, 0, err);
}

void mfl_session_on_connection(uv_stream_t *listener, int status)
{
        struct mfl_sessions *all = listener->data;
        struct mfl_error err;
        if (status < 0) {
                mfl_log(MFL_LOG_WARN, "accept: %s", uv_strerror(status));
                return;
        }
        struct mfl_session *session = session_new(all, NULL, 0);
        if (!session)
                return;
        all->counts.accepted++;
        int r = mfl_admission_prepare(session, &err);
        if (r) { /* never on without TLS */
                mfl_loop_fatal(all->loop, r, &err);
                mfl_stream_close(&session->stream, NULL, false);
                return;
        }
        mfl_stream_accept(&session->stream, listener);
        mfl_stream_peer(&session->stream, session->address, sizeof session->address);
        if (!mfl_admission_begin(session) || all->n <= all->config->connections_max)
                return;
        all->counts.over_limit++;
        mfl_admission_warn(all, "%s: refused: connections_max (%u) is reached", session->address,
                all->config->connections_max);
        mfl_stream_close(
                &session->stream, "the server has reached its limit of connections (connections_max)", true);
}

/* ---- all of them ---- */

int mfl_sessions_open(struct mfl_sessions *sessions, struct mfl_loop *loop,
        const struct mfl_server_config *config, struct mfl_error *err)
{
        sessions->loop = loop;
        sessions->config = config;
        int r = mfl_admission_load(sessions, err);
        if (!r && config->connect_rate)
                r = mfl_rate_new(config->connect_rate, config->connect_burst, &sessions->admission.rate, err);
        return r;
}

void mfl_sessions_register(
        struct mfl_sessions *sessions, Mfl__Role role, const struct mfl_session_ops *ops, void *owner)
{
        mfl_assert(role > 0 && (size_t)role < MFL_ARRAY_SIZE(sessions->role) && !sessions->role[role].ops);
        mfl_assert(ops->greeted && ops->payload && ops->frame && ops->closed);
        sessions->role[role].ops = ops;
        sessions->role[role].owner = owner;
}

void mfl_sessions_end(struct mfl_sessions *sessions, const char *reason)
{
        for (struct mfl_session *s = sessions->first; s; s = s->next)
                mfl_stream_close(&s->stream, reason, true);
}

void mfl_sessions_close(struct mfl_sessions *sessions)
{
        mfl_assert(!sessions->first && !sessions->n);
        mfl_admission_close(sessions);
}

void mfl_sessions_beat(struct mfl_sessions *sessions)
{
        uint64_t now = mfl_loop_now(sessions->loop), limit_ms = sessions->config->greet_ms;
        char text[64];
        snprintf(text, sizeof text, "no Hello within %.3g s", (double)limit_ms / 1000);
        mfl_admission_tick(sessions);
        for (struct mfl_session *s = sessions->first; s; s = s->next)
                if (s->role == MFL__ROLE__ROLE_UNSPECIFIED && now - s->opened_ms > limit_ms)
                        mfl_stream_close(&s->stream, text, true);
}
