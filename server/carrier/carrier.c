/* SPDX-License-Identifier: Apache-2.0 */
/* A relay's connection, from its Hello to its end. */
#include "server/carrier/carrier.h"

#include "common/base/log.h"
#include "proto/carry.h"
#include "server/session/admission.h"
#include "server/state/core_map.h"

#define BELOW_MS 60000u /* a relay that waits tries again sooner */

/* What a relay's session has. */
struct carrier_peer {
        uint64_t instance;
        struct core_map carried; /* sessions by number */
};

static struct mfl_carriers *carriers_of(const struct mfl_session *session)
{
        return session->all->role[MFL__ROLE__ROLE_RELAY].owner;
}

static bool is_relay(const struct mfl_session *session)
{
        return session->role == MFL__ROLE__ROLE_RELAY && session->peer;
}

/* ---- circles ---- */

static void note_below(struct mfl_carriers *carriers, uint64_t instance)
{
        uint64_t now_ms = mfl_loop_now(carriers->loop);
        uint32_t i = 0;
        while (i < carriers->n_below && carriers->below[i].instance != instance)
                i++;
        if (i == MFL_BELOW_MAX)
                return;
        carriers->n_below += i == carriers->n_below;
        carriers->below[i].instance = instance;
        carriers->below[i].seen_ms = now_ms;
}

uint32_t mfl_carriers_below(struct mfl_carriers *carriers, uint64_t ret_instances[MFL_BELOW_MAX])
{
        uint64_t now_ms = mfl_loop_now(carriers->loop);
        uint32_t n = 0;
        for (uint32_t i = 0; i < carriers->n_below; i++)
                if (now_ms - carriers->below[i].seen_ms < BELOW_MS)
                        carriers->below[n++] = carriers->below[i];
        carriers->n_below = n;
        for (uint32_t i = 0; i < n; i++)
                ret_instances[i] = carriers->below[i].instance;
        return n;
}

/* Why the relay may never come; false: it may. */
static bool find_circle(
        const struct mfl_carriers *carriers, const Mfl__Hello *hello, char text[MFL_REASON_BYTES])
{
        if (hello->instance == carriers->instance) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "relay %s can't be below itself: its upstream is its own address", hello->name);
                return true;
        }
        for (size_t i = 0; i < hello->n_below; i++) {
                if (hello->below[i] != carriers->instance)
                        continue;
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "relay %s can't be below relay %s, which is below it: their upstreams make a circle; "
                        "one of them must name the server",
                        hello->name, carriers->name);
                return true;
        }
        return false;
}

/* ---- the greeting ---- */

static void refuse_for_good(struct mfl_session *session, const char *text)
{
        mfl_log(MFL_LOG_ERROR, "%s: %s", session->address, text);
        mfl_session_move(session, MFL_SESSION_REFUSED);
        mfl_stream_close(&session->stream, text, false);
}

/* A process that comes back replaces its own connection, which may not know yet that it is dead. */
static bool is_name_taken(struct mfl_session *session, const Mfl__Hello *hello)
{
        for (struct mfl_session *s = session->all->first; s; s = s->next) {
                if (!is_relay(s) || s->stream.closing || strcmp(s->relay, hello->name) != 0)
                        continue;
                if (((struct carrier_peer *)s->peer)->instance != hello->instance)
                        return true;
                mfl_stream_close(&s->stream, "the relay connected again", true);
        }
        return false;
}

static bool on_admit(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        struct mfl_carriers *carriers = carriers_of(session);
        const Mfl__Hello *hello = envelope->hello;
        char text[MFL_REASON_BYTES];
        const char *why = NULL;
        if (find_circle(carriers, hello, text)) {
                refuse_for_good(session, text);
                return false;
        }
        if (carriers->ops->ready && !carriers->ops->ready(carriers->user, &why)) {
                note_below(carriers, hello->instance);
                for (size_t i = 0; i < hello->n_below; i++)
                        note_below(carriers, hello->below[i]);
                mfl_session_refuse(session, why);
                return false;
        }
        if (!is_name_taken(session, hello))
                return true;
        mfl_snprintf(text, sizeof text,
                "another relay named %s is connected: relays have different names (name in server.yaml)",
                hello->name);
        mfl_admission_warn(session->all, "%s: refused: %s", session->address, text);
        mfl_session_refuse(session, text);
        return false;
}

static int on_greeted(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_carriers *carriers = carriers_of(session);
        const Mfl__Hello *hello = envelope->hello;
        struct carrier_peer *peer = mfl_calloc(1, sizeof *peer);
        if (!peer)
                return mfl_fail_memory(err, sizeof *peer, "a relay's connection");
        peer->instance = hello->instance;
        session->peer = peer;
        mfl_strcpy(session->relay, sizeof session->relay, hello->name);
        Mfl__Welcome body = MFL__WELCOME__INIT;
        Mfl__Envelope answer = MFL__ENVELOPE__INIT;
        body.protocol = session->protocol;
        body.software = (char *)"mfl-server " MFL_VERSION;
        body.heartbeat_ms = carriers->heartbeat_ms;
        body.dead_ms = carriers->dead_ms;
        body.server_instance = carriers->instance;
        answer.body_case = MFL__ENVELOPE__BODY_WELCOME;
        answer.welcome = &body;
        session->stream.envelope_max = MFL_ENVELOPE_MAX + MFL_VIA_BYTES;
        session->stream.queue_max = SIZE_MAX / 2; /* each transfer on it keeps a few frames queued, no more */
        mfl_session_welcomed(session);
        mfl_session_send(session, &answer);
        mfl_log(MFL_LOG_INFO, "%s: relay %s is up", session->address, hello->name);
        return 0;
}

/* ---- frames ---- */

static struct mfl_session *find_carried(const struct mfl_session *session, uint32_t via)
{
        return mfl_core_map_get(&((struct carrier_peer *)session->peer)->carried, via);
}

static int begin_carried(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_session *carried = mfl_session_carried(session, envelope->via);
        if (!carried)
                return 0;
        if (mfl_core_map_put(&((struct carrier_peer *)session->peer)->carried, envelope->via, carried))
                return mfl_fail_memory(err, sizeof *carried, "a daemon below a relay");
        if (session->all->n > session->all->config->connections_max)
                mfl_stream_close(&carried->stream,
                        "the server has reached its limit of connections (connections_max)", true);
        mfl_carry_frame(&carried->stream, envelope, NULL, 0);
        return 0;
}

static int on_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        if (!envelope->via)
                return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
        struct mfl_session *carried = find_carried(session, envelope->via);
        *ret_dst = carried ? mfl_carry_payload(&carried->stream, envelope, payload_bytes) : NULL;
        return 0;
}

static int take_own(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_carriers *carriers = carriers_of(session);
        Mfl__Envelope answer = MFL__ENVELOPE__INIT;
        Mfl__Pong pong = MFL__PONG__INIT;
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_PING:
                pong.cookie = envelope->ping->cookie;
                answer.body_case = MFL__ENVELOPE__BODY_PONG;
                answer.pong = &pong;
                mfl_session_send(session, &answer);
                return 0;
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        case MFL__ENVELOPE__BODY_PARAMS_GET:
                if (envelope->params_get->of_client)
                        return mfl_fail(err, MFL_INVALID, "a relay has no clients of its own");
                carriers->ops->params(carriers->user, session, envelope->params_get);
                return 0;
        default:
                return mfl_fail(err, MFL_INVALID, "a relay may not send this message for itself");
        }
}

static int on_frame(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        if (!envelope->via)
                return take_own(session, envelope, err);
        struct mfl_session *carried = find_carried(session, envelope->via);
        if (carried)
                mfl_carry_frame(&carried->stream, envelope, NULL, payload_bytes);
        else if (envelope->body_case == MFL__ENVELOPE__BODY_HELLO)
                return begin_carried(session, envelope, err);
        return 0; /* what crossed a Bye */
}

static void on_dropped(struct mfl_session *session, struct mfl_session *carried)
{
        mfl_core_map_remove(&((struct carrier_peer *)session->peer)->carried, carried->stream.via);
}

static void on_closed(struct mfl_session *session, const char *reason)
{
        struct mfl_carriers *carriers = carriers_of(session);
        struct carrier_peer *peer = session->peer;
        mfl_log(MFL_LOG_WARN, "%s: relay %s is lost: %s", session->address, session->relay, reason);
        carriers->ops->closed(carriers->user, session);
        for (uint32_t i = 0; i < peer->carried.capacity; i++) {
                struct mfl_session *carried = peer->carried.values[i];
                if (!carried)
                        continue;
                mfl_stream_close(&carried->stream, NULL, false);
                carried->carrier = NULL;
        }
        mfl_core_map_deinit(&peer->carried);
        free(peer);
        session->peer = NULL;
}

static const struct mfl_session_ops ops = {
        .admit = on_admit,
        .greeted = on_greeted,
        .payload = on_payload,
        .frame = on_frame,
        .dropped = on_dropped,
        .closed = on_closed,
};

void mfl_carriers_open(struct mfl_carriers *carriers)
{
        mfl_assert(carriers->ops->params && carriers->ops->closed);
        mfl_sessions_register(carriers->sessions, MFL__ROLE__ROLE_RELAY, &ops, carriers);
}

void mfl_carriers_beat(struct mfl_carriers *carriers)
{
        uint64_t now_ms = mfl_loop_now(carriers->loop);
        char text[MFL_REASON_BYTES];
        for (struct mfl_session *s = carriers->sessions->first; s; s = s->next) {
                if (!is_relay(s) || s->stream.closing)
                        continue;
                if (!s->stream.paused && now_ms - s->stream.heard_ms > carriers->dead_ms) {
                        mfl_snprintf(text, sizeof text, "nothing heard for %u ms", carriers->dead_ms);
                        mfl_stream_close(&s->stream, text, true);
                } else if (now_ms - s->stream.sent_ms >= carriers->heartbeat_ms) {
                        Mfl__Ping ping = MFL__PING__INIT;
                        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
                        ping.cookie = now_ms;
                        envelope.body_case = MFL__ENVELOPE__BODY_PING;
                        envelope.ping = &ping;
                        mfl_session_send(s, &envelope);
                }
        }
}
