/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of a relay to the server above it.
 *
 * Happy path: connect -> Hello -> Welcome -> frames: those with a number go to that daemon's stream, the others are the relay's own.
 * Failures: no address, refused, lost, silent for dead_ms: one log line, and again after 0.2 s, doubling, up to 5 s. A Bye without
 * retry, such as for a wrong certificate or a circle of relays, stops the program.
 */
#include "common/base/log.h"
#include "proto/carry.h"
#include "proto/version.h"
#include "server/relay/relay_shell.h"

#define RETRY_MIN_MS 200u
#define RETRY_MAX_MS 5000u

static void connect_up(struct mfl_relay *relay);

static struct mfl_relay *relay_of(const struct mfl_stream *stream)
{
        return stream->owner;
}

/* ---- frames ---- */

static void send_hello(struct mfl_relay *relay)
{
        uint64_t below[MFL_BELOW_MAX];
        Mfl__Hello hello = MFL__HELLO__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        hello.protocol_min = MFL_PROTOCOL_RELAYS;
        hello.protocol_max = MFL_PROTOCOL_MAX;
        hello.role = MFL__ROLE__ROLE_RELAY;
        hello.software = (char *)"mfl-server " MFL_VERSION;
        hello.name = relay->name;
        hello.instance = relay->instance;
        hello.n_below = mfl_carriers_below(&relay->carriers, below);
        hello.below = below;
        envelope.body_case = MFL__ENVELOPE__BODY_HELLO;
        envelope.hello = &hello;
        mfl_stream_send(&relay->up.stream, &envelope, NULL, 0, NULL, NULL, NULL, NULL);
}

static void send_ping(struct mfl_relay *relay, bool pong, uint64_t cookie)
{
        Mfl__Ping ping = MFL__PING__INIT;
        Mfl__Pong answer = MFL__PONG__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        ping.cookie = answer.cookie = cookie;
        envelope.body_case = pong ? MFL__ENVELOPE__BODY_PONG : MFL__ENVELOPE__BODY_PING;
        if (pong)
                envelope.pong = &answer;
        else
                envelope.ping = &ping;
        mfl_stream_send(&relay->up.stream, &envelope, NULL, 0, NULL, NULL, NULL, NULL);
}

static int take_welcome(struct mfl_relay *relay, const Mfl__Welcome *welcome, struct mfl_error *err)
{
        const struct mfl_protocol_range own = {MFL_PROTOCOL_RELAYS, MFL_PROTOCOL_MAX};
        struct relay_up *up = &relay->up;
        if (up->state != UP_GREETED)
                return mfl_fail(err, MFL_INVALID, "a second Welcome");
        int r = mfl_protocol_check_chosen(
                own, welcome->protocol, "mfl-server " MFL_VERSION, welcome->software, err);
        if (r)
                return r;
        up->state = UP_WELCOME;
        up->n_failures = 0;
        up->last_reason[0] = '\0';
        mfl_servers_reached(&up->servers);
        up->heartbeat_ms = welcome->heartbeat_ms;
        up->dead_ms = welcome->dead_ms;
        up->stream.envelope_max = MFL_ENVELOPE_MAX + MFL_VIA_BYTES;
        up->stream.payload_max = MFL_PAYLOAD_MAX;
        up->stream.queue_max = SIZE_MAX / 2; /* what waits is what the server has granted */
        mfl_log(MFL_LOG_INFO, "relay %s is connected to %s", relay->name, mfl_servers_current(&up->servers));
        return 0;
}

static int take_own(
        struct mfl_relay *relay, const Mfl__Envelope *envelope, size_t payload_bytes, struct mfl_error *err)
{
        struct relay_up *up = &relay->up;
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_WELCOME:
                return take_welcome(relay, envelope->welcome, err);
        case MFL__ENVELOPE__BODY_BYE:
                mfl_strcpy(up->bye, sizeof up->bye, envelope->bye->reason);
                mfl_strcpy(up->leader, sizeof up->leader, envelope->bye->leader);
                up->final = !envelope->bye->retry;
                return 0;
        case MFL__ENVELOPE__BODY_PING:
                send_ping(relay, true, envelope->ping->cookie);
                return 0;
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        case MFL__ENVELOPE__BODY_PARAMS:
                relay_params_frame(relay, envelope->params, payload_bytes);
                return 0;
        case MFL__ENVELOPE__BODY_PARAMS_GONE:
                relay_params_gone(relay, envelope->params_gone);
                return 0;
        default:
                return mfl_fail(err, MFL_INVALID, "a message that is not for relays");
        }
}

static struct relay_daemon *target(const struct mfl_relay *relay, const Mfl__Envelope *envelope)
{
        struct relay_daemon *daemon = relay_daemon_find(relay, envelope->via);
        return daemon && daemon->up_open ? daemon : NULL;
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_relay *relay = relay_of(stream);
        if (!envelope->via) {
                int r = envelope->body_case == MFL__ENVELOPE__BODY_PARAMS
                                ? relay_params_payload(relay, envelope->params, payload_bytes, ret_dst)
                                : MFL_INVALID;
                return r ? mfl_fail(err, r, "params that the relay has not asked for") : 0;
        }
        struct relay_daemon *daemon = target(relay, envelope);
        *ret_dst = daemon ? mfl_carry_payload(&daemon->up, envelope, payload_bytes) : NULL;
        return 0;
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_relay *relay = relay_of(stream);
        int r = mfl_servers_hear(&relay->up.servers, envelope->term, err);
        if (r)
                return r;
        if (!envelope->via)
                return take_own(relay, envelope, payload_bytes, err);
        struct relay_daemon *daemon = target(relay, envelope);
        if (daemon)
                mfl_carry_frame(&daemon->up, envelope, payload, payload_bytes);
        return 0; /* what crossed a Bye */
}

/* ---- the connection ---- */

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_relay *relay = relay_of(stream);
        if (status || relay->up.state != UP_CONNECTING)
                return;
        relay->up.state = UP_GREETED;
        send_hello(relay);
}

static void tell(struct mfl_relay *relay, const char *reason)
{
        struct relay_up *up = &relay->up;
        if (!strcmp(reason, up->last_reason))
                return;
        mfl_strcpy(up->last_reason, sizeof up->last_reason, reason);
        mfl_log(up->final ? MFL_LOG_ERROR : MFL_LOG_WARN, "upstream %s: %s%s", relay->config->upstream,
                reason, up->final ? "" : "; trying again");
}

static void on_retry(uv_timer_t *timer)
{
        connect_up(timer->data);
}

static void retry_later(struct mfl_relay *relay)
{
        struct relay_up *up = &relay->up;
        const bool other = mfl_servers_next(&up->servers, up->leader); /* of a list: asked at once */
        uint64_t ms = other ? 0 : RETRY_MIN_MS << MFL_MIN(up->n_failures, 5u);
        up->leader[0] = '\0';
        up->n_failures += !other;
        uv_timer_start(&up->retry, on_retry, MFL_MIN(ms, (uint64_t)RETRY_MAX_MS), 0);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_relay *relay = relay_of(stream);
        struct relay_up *up = &relay->up;
        up->state = UP_NONE;
        if (relay->ended)
                return;
        tell(relay, *up->bye ? up->bye : reason);
        relay_daemons_drop(relay, "the relay has lost its server");
        relay->top->reset(relay);
        relay_params_reset(relay, false);
        if (up->final)
                mfl_loop_stop(relay->loop);
        else
                retry_later(relay);
}

static const struct mfl_stream_ops ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

/* The files are read again for each connection, so renewed certificates count. */
static int begin_tls(struct mfl_relay *relay, struct mfl_error *err)
{
        const struct mfl_server_config *c = relay->config;
        const struct mfl_tls_files files = {
                .ca = c->tls_ca, .cert = c->tls_cert, .key = c->tls_key, .crl = c->tls_crl};
        struct mfl_tls_context *context;
        if (!mfl_server_config_tls(c))
                return 0;
        int r = mfl_tls_context_new(&files, false, &context, err);
        if (r)
                return r;
        r = mfl_stream_tls(&relay->up.stream, context, err);
        mfl_tls_context_unref(context);
        return r;
}

static void connect_up(struct mfl_relay *relay)
{
        struct relay_up *up = &relay->up;
        struct mfl_error err;
        mfl_assert(up->state == UP_NONE && !relay->ended);
        up->bye[0] = '\0';
        up->final = false;
        int r = mfl_stream_init(&up->stream, &relay->loop->uv, &ops, relay, &err);
        if (r) {
                mfl_loop_fatal(relay->loop, r, &err);
                return;
        }
        up->state = UP_CONNECTING;
        r = begin_tls(relay, &err);
        if (!r)
                r = mfl_stream_connect(&up->stream, mfl_servers_current(&up->servers), &err);
        if (r < 0)
                mfl_loop_fatal(relay->loop, r, &err);
        if (!r)
                return;
        mfl_strcpy(up->bye, sizeof up->bye, err.text);
        mfl_stream_close(&up->stream, NULL, false);
}

void relay_up_beat(struct mfl_relay *relay)
{
        struct relay_up *up = &relay->up;
        uint64_t now_ms = mfl_loop_now(relay->loop);
        if (up->state != UP_WELCOME)
                return;
        if (now_ms - up->stream.heard_ms > up->dead_ms)
                mfl_stream_close(&up->stream, "nothing heard for too long", true);
        else if (now_ms - up->stream.sent_ms >= up->heartbeat_ms)
                send_ping(relay, false, now_ms);
}

int relay_up_open(struct mfl_relay *relay, struct mfl_error *err)
{
        char host[256], port[32];
        struct mfl_servers *servers = &relay->up.servers;
        int r = mfl_servers_init(servers, relay->config->upstream, err);
        for (uint32_t i = 0; i < servers->n && !r; i++) {
                r = mfl_address_parse(servers->at[i], host, sizeof host, port, sizeof port, err);
                if (!r && !*host)
                        r = mfl_fail(err, MFL_INVALID, "upstream: %s has no host", servers->at[i]);
        }
        if (r)
                return r;
        uv_timer_init(&relay->loop->uv, &relay->up.retry);
        relay->up.retry.data = relay;
        connect_up(relay);
        return 0;
}

void relay_up_close(struct mfl_relay *relay)
{
        uv_close((uv_handle_t *)&relay->up.retry, NULL);
        if (relay->up.state != UP_NONE)
                mfl_stream_close(&relay->up.stream, "the relay is stopping", true);
}
