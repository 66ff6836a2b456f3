/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the server: greeting, requests and answers, liveness.
 *
 * Happy path: connect -> Hello -> Welcome -> request -> answer(s) -> Bye. Failures: a refused or unknown
 * address, a Bye, end of file, silence for longer than Welcome's dead_ms, an answer that breaks the protocol.
 * All of them end in on_closed with a reason, which the waiting function returns.
 */
#include "cli/base/client.h"

#include <inttypes.h>
#include <stdio.h>

#include "proto/servers.h"
#include "proto/version.h"

#define ONE_OF_MANY_MS 3000 /* for each server of a list */
#define BETWEEN_MS 300      /* when none of them leads */

/* Lives until on_closed, which may run after the client object is gone. */
struct mfl_client_link {
        struct mfl_stream stream;
        uv_timer_t timer;
        struct mfl_client *client; /* NULL: closed by the owner */
        uint32_t heartbeat_ms, dead_ms;
        bool connected, welcomed, refused, closed, sent;
        char leader[304]; /* whom a server that does not lead has named */
        int handles;
        char reason[MFL_REASON_BYTES + 64];
        struct answer {
                struct answer *next;
                Mfl__Envelope *envelope;
        } * first, **last;
};

static void drop_answers(struct mfl_client_link *link)
{
        for (struct answer *a; (a = link->first);) {
                link->first = a->next;
                mfl_wire_free(a->envelope);
                free(a);
        }
        link->last = &link->first;
}

static void free_link(struct mfl_client_link *link)
{
        if (--link->handles)
                return;
        drop_answers(link);
        free(link);
}

static void on_timer_closed(uv_handle_t *handle)
{
        free_link(handle->data);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_client_link *link = stream->owner;
        link->closed = true;
        if (!link->reason[0])
                mfl_strcpy(link->reason, sizeof link->reason, reason);
        if (!uv_is_closing((uv_handle_t *)&link->timer))
                uv_close((uv_handle_t *)&link->timer, on_timer_closed);
        free_link(link);
}

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_client_link *link = stream->owner;
        link->connected = !status;
        if (status)
                mfl_strcpy(link->reason, sizeof link->reason, text);
}

/* The frame is valid only during the callback, so the answer is packed and unpacked again. Answers are small.
 */
static int keep_answer(struct mfl_client_link *link, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *bytes = NULL;
        size_t n;
        struct answer *a = mfl_malloc(sizeof *a);
        if (!a)
                return mfl_fail_memory(err, sizeof *a, "an answer");
        int r = mfl_wire_pack(envelope, &bytes, &n, err);
        if (!r)
                r = mfl_wire_unpack(bytes, n, &a->envelope, err);
        if (r) {
                free(a);
                return r;
        }
        a->next = NULL;
        *link->last = a;
        link->last = &a->next;
        return 0;
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_client_link *link = stream->owner;
        struct mfl_client *c = link->client;
        const Mfl__Params *p = envelope->params;
        *ret_dst = NULL;
        if (!c || !c->params || envelope->request != c->request ||
                envelope->body_case != MFL__ENVELOPE__BODY_PARAMS)
                return 0;
        if (p->offset != c->params_have || p->total != c->params_total ||
                payload_bytes / sizeof(float) > c->params_total - c->params_have)
                return mfl_fail(err, MFL_INVALID,
                        "the server sent the params out of order, or more than it announced");
        *ret_dst = c->params + c->params_have;
        return 0;
}

static int answer_ping(struct mfl_stream *stream, uint64_t cookie, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Pong pong = MFL__PONG__INIT;
        pong.cookie = cookie;
        e.body_case = MFL__ENVELOPE__BODY_PONG;
        e.pong = &pong;
        int r = mfl_stream_send(stream, &e, NULL, 0, NULL, NULL, NULL, err);
        return r == MFL_BUSY ? 0 : r;
}

static int take_welcome(struct mfl_client_link *link, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        if (envelope->body_case != MFL__ENVELOPE__BODY_WELCOME)
                return mfl_fail(err, MFL_INVALID, "the server did not answer Hello with Welcome");
        const struct mfl_protocol_range own = {MFL_PROTOCOL_MIN, MFL_PROTOCOL_MAX};
        int r = mfl_protocol_check_chosen(
                own, envelope->welcome->protocol, "mfl " MFL_VERSION, envelope->welcome->software, err);
        if (r) {
                link->refused = true;
                return r;
        }
        if (link->client)
                link->client->protocol = envelope->welcome->protocol;
        link->heartbeat_ms = envelope->welcome->heartbeat_ms;
        link->dead_ms = envelope->welcome->dead_ms;
        link->stream.envelope_max = MFL_ENVELOPE_MAX;
        link->stream.payload_max = MFL_PAYLOAD_MAX;
        link->welcomed = true;
        return 0;
}

static void drop_params(struct mfl_client *c)
{
        free(c->params);
        c->params = NULL;
        c->params_total = c->params_have = 0;
}

static int begin_params(struct mfl_client *c, uint64_t n, struct mfl_error *err)
{
        drop_params(c);
        c->params = mfl_alloc_aligned(n * sizeof(float));
        if (!c->params)
                return mfl_fail(
                        err, MFL_INVALID, "not enough memory for a model of %" PRIu64 " parameters", n);
        c->params_total = n;
        return 0;
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_client_link *link = stream->owner;
        struct mfl_client *c = link->client;
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_BYE:
                snprintf(link->reason, sizeof link->reason, "the server said: %s", envelope->bye->reason);
                link->refused = !link->welcomed && !envelope->bye->retry;
                mfl_strcpy(link->leader, sizeof link->leader, envelope->bye->leader);
                return 0;
        case MFL__ENVELOPE__BODY_PING:
                return answer_ping(stream, envelope->ping->cookie, err);
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        default:
                break;
        }
        if (!link->welcomed)
                return take_welcome(link, envelope, err);
        if (!c || envelope->request != c->request)
                return 0;
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS) {
                if (payload)
                        c->params_have += payload_bytes / sizeof(float);
                return 0;
        }
        int r = 0;
        if (envelope->body_case == MFL__ENVELOPE__BODY_PULL_BEGIN)
                r = begin_params(c, envelope->pull_begin->n_params, err);
        return r ? r : keep_answer(link, envelope, err);
}

static const struct mfl_stream_ops stream_ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

static void on_tick(uv_timer_t *timer)
{
        struct mfl_client_link *link = timer->data;
        uint64_t now = uv_now(timer->loop);
        if (!link->welcomed || link->closed)
                return;
        if (now - link->stream.heard_ms > link->dead_ms) {
                snprintf(link->reason, sizeof link->reason, "no message for %u s", link->dead_ms / 1000);
                mfl_stream_close(&link->stream, link->reason, true);
                return;
        }
        if (now - link->stream.sent_ms < link->heartbeat_ms)
                return;
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Ping ping = MFL__PING__INIT;
        e.body_case = MFL__ENVELOPE__BODY_PING;
        e.ping = &ping;
        mfl_stream_send(&link->stream, &e, NULL, 0, NULL, NULL, NULL, NULL);
}

/* ---- waiting ---- */

static void on_wake(uv_timer_t *timer)
{
        *(bool *)timer->data = true;
}

static void on_wake_closed(uv_handle_t *handle)
{
        free(handle);
}

/* A timer that sets a flag. It is on the heap because it closes after the function that waits has returned.
 */
static int start_alarm(
        uv_loop_t *loop, uint64_t ms, bool *flag, uv_timer_t **ret_timer, struct mfl_error *err)
{
        *ret_timer = NULL;
        if (ms == MFL_CLIENT_FOREVER)
                return 0;
        uv_timer_t *timer = mfl_calloc(1, sizeof *timer);
        if (!timer)
                return mfl_fail_memory(err, sizeof *timer, "a timer");
        uv_update_time(loop);
        uv_timer_init(loop, timer);
        timer->data = flag;
        uv_timer_start(timer, on_wake, ms, 0);
        *ret_timer = timer;
        return 0;
}

static void stop_alarm(uv_timer_t *timer)
{
        if (timer)
                uv_close((uv_handle_t *)timer, on_wake_closed);
}

/* A signal ends one wait: the current one, or the next. */
static bool take_interrupt(struct mfl_cli *cli)
{
        bool is = cli->interrupted > cli->acknowledged;
        cli->acknowledged = cli->interrupted;
        return is;
}

typedef bool wait_done_fn(const struct mfl_client *client);

static int wait_for(struct mfl_client *c, wait_done_fn *done, uint64_t timeout_ms, struct mfl_error *err)
{
        struct mfl_cli *cli = c->cli;
        uv_timer_t *timer;
        bool over = false;
        int r = start_alarm(cli->loop, timeout_ms, &over, &timer, err);
        if (r)
                return r;
        while (!done(c) && !c->link->closed && !over && cli->interrupted == cli->acknowledged)
                uv_run(cli->loop, UV_RUN_ONCE);
        stop_alarm(timer);
        if (done(c))
                return 0;
        if (take_interrupt(cli))
                return mfl_fail(err, MFL_CLI_INTERRUPTED, "interrupted");
        bool tls = strstr(c->link->reason, "TLS: ") != NULL;
        if (c->link->closed && !c->link->connected && !tls)
                return mfl_fail(err, MFL_CLI_LOST,
                        "%s (is mfl-server running there? --server or MFL_SERVER gives another address)",
                        c->link->reason);
        if (c->link->closed)
                return mfl_fail(err, c->link->refused ? MFL_CLI_REFUSED : MFL_CLI_LOST, "server %s: %s%s",
                        cli->server, c->link->reason, tls ? "; see 'mfl help tls'" : "");
        return mfl_fail(err, MFL_CLI_TIMEOUT, "server %s: no answer for %" PRIu64 " s", cli->server,
                timeout_ms / 1000);
}

int mfl_client_sleep(struct mfl_cli *cli, uint64_t ms, struct mfl_error *err)
{
        uv_timer_t *timer;
        bool over = false;
        int r = start_alarm(cli->loop, ms, &over, &timer, err);
        if (r)
                return r;
        while (!over && cli->interrupted == cli->acknowledged)
                uv_run(cli->loop, UV_RUN_ONCE);
        stop_alarm(timer);
        return take_interrupt(cli) ? mfl_fail(err, MFL_CLI_INTERRUPTED, "interrupted") : 0;
}

static bool is_connected(const struct mfl_client *c)
{
        return c->link->connected;
}

static bool is_welcomed(const struct mfl_client *c)
{
        return c->link->welcomed;
}

static bool has_answer(const struct mfl_client *c)
{
        return c->link->first || (c->params && c->params_have == c->params_total);
}

static bool is_sent(const struct mfl_client *c)
{
        return c->link->sent || c->link->first; /* a Failure may arrive before the whole payload is sent */
}

/* ---- opening and closing ---- */

static int new_link(struct mfl_client *c, struct mfl_error *err)
{
        struct mfl_client_link *link = mfl_calloc(1, sizeof *link);
        if (!link)
                return mfl_fail_memory(err, sizeof *link, "a connection");
        link->last = &link->first;
        link->client = c;
        int r = mfl_stream_init(&link->stream, c->cli->loop, &stream_ops, link, err);
        if (r) {
                free(link);
                return r;
        }
        link->handles = 3; /* stream, timer, owner */
        uv_timer_init(c->cli->loop, &link->timer);
        link->timer.data = link;
        uv_timer_start(&link->timer, on_tick, 500, 500);
        c->link = link;
        return 0;
}

static int greet(struct mfl_client *c, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Hello hello = MFL__HELLO__INIT;
        hello.protocol_min = MFL_PROTOCOL_MIN;
        hello.protocol_max = MFL_PROTOCOL_MAX;
        hello.role = MFL__ROLE__ROLE_OPERATOR;
        hello.software = "mfl " MFL_VERSION;
        e.body_case = MFL__ENVELOPE__BODY_HELLO;
        e.hello = &hello;
        int r = mfl_stream_send(&c->link->stream, &e, NULL, 0, NULL, NULL, NULL, err);
        return r == MFL_BUSY ? 0 : r; /* closed in the meantime: the wait returns the reason */
}

static int begin_tls(struct mfl_client *c, struct mfl_error *err)
{
        struct mfl_tls_context *context;
        int r = mfl_cli_tls_find(c->cli, err);
        if (r || !c->cli->tls.ca)
                return r;
        r = mfl_tls_context_new(&c->cli->tls, false, &context, err);
        if (r)
                return r;
        r = mfl_stream_tls(&c->link->stream, context, err);
        mfl_tls_context_unref(context);
        return r;
}

/* *ret_leader: as Bye.leader. */
static int open_one(struct mfl_client *client, struct mfl_cli *cli, const char *address, uint64_t timeout_ms,
        char ret_leader[304], struct mfl_error *err)
{
        ret_leader[0] = 0;
        *client = (struct mfl_client){.cli = cli};
        int r = new_link(client, err);
        if (r)
                return r;
        r = begin_tls(client, err);
        if (!r) {
                r = mfl_stream_connect(&client->link->stream, address, err);
                r = r == MFL_INVALID ? MFL_CLI_USAGE : r;
        }
        if (!r)
                r = wait_for(client, is_connected, timeout_ms, err);
        if (!r)
                r = greet(client, err);
        if (!r)
                r = wait_for(client, is_welcomed, timeout_ms, err);
        if (r && client->link)
                memcpy(ret_leader, client->link->leader, sizeof client->link->leader);
        if (r)
                mfl_client_close(client);
        return r;
}

int mfl_client_open(struct mfl_client *client, struct mfl_cli *cli, const char *address, uint64_t timeout_ms,
        struct mfl_error *err)
{
        struct mfl_servers servers;
        struct mfl_error ignored;
        char leader[304];
        const uint64_t end_ms = mfl_now_ms() + MFL_MIN(timeout_ms, (uint64_t)UINT32_MAX);
        int r = mfl_servers_init(&servers, address, err);
        if (r)
                return MFL_CLI_USAGE;
        if (servers.n == 1)
                return open_one(client, cli, address, timeout_ms, leader, err);
        for (;;) {
                uint64_t now_ms = mfl_now_ms(), left_ms = end_ms > now_ms ? end_ms - now_ms : 1;
                r = open_one(client, cli, mfl_servers_current(&servers),
                        MFL_MIN(left_ms, (uint64_t)ONE_OF_MANY_MS), leader, err);
                if ((r != MFL_CLI_LOST && r != MFL_CLI_TIMEOUT) || mfl_now_ms() >= end_ms)
                        return r;
                if (!mfl_servers_next(&servers, leader) && mfl_client_sleep(cli, BETWEEN_MS, &ignored))
                        return mfl_fail(err, MFL_CLI_INTERRUPTED, "interrupted");
        }
}

void mfl_client_close(struct mfl_client *client)
{
        struct mfl_client_link *link = client->link;
        if (!link)
                return;
        client->link = NULL;
        drop_params(client);
        link->client = NULL;
        if (!link->closed)
                mfl_stream_close(&link->stream, link->connected ? "done" : NULL, false);
        free_link(link);
}

/* ---- requests ---- */

int mfl_client_ask(struct mfl_client *c, Mfl__Envelope *request, struct mfl_error *err)
{
        drop_answers(c->link);
        drop_params(c);
        request->request = ++c->request;
        if (c->link->closed)
                return mfl_fail(err, MFL_CLI_LOST, "server %s: %s", c->cli->server, c->link->reason);
        int r = mfl_stream_send(&c->link->stream, request, NULL, 0, NULL, NULL, NULL, err);
        return r == MFL_BUSY ? MFL_CLI_LOST : r;
}

static int failure_code(const Mfl__Failure *failure, struct mfl_error *err)
{
        switch (failure->code) {
        case MFL__FAILURE_CODE__FAILURE_NOT_FOUND:
                return mfl_fail(err, MFL_NOT_FOUND, "%s", failure->text);
        case MFL__FAILURE_CODE__FAILURE_CONFLICT:
                return mfl_fail(err, MFL_CLI_CONFLICT, "%s", failure->text);
        case MFL__FAILURE_CODE__FAILURE_LIMIT:
                return mfl_fail(err, MFL_CLI_LIMIT, "%s", failure->text);
        default:
                return mfl_fail(err, MFL_INVALID, "%s", failure->text);
        }
}

int mfl_client_next(
        struct mfl_client *c, uint64_t timeout_ms, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        int r = wait_for(c, has_answer, timeout_ms, err);
        if (r)
                return r;
        struct answer *a = c->link->first;
        if (!a)
                return MFL_BUSY;
        Mfl__Envelope *envelope = a->envelope;
        c->link->first = a->next;
        if (!a->next)
                c->link->last = &c->link->first;
        free(a);
        if (envelope->body_case == MFL__ENVELOPE__BODY_FAILURE) {
                r = failure_code(envelope->failure, err);
                mfl_wire_free(envelope);
                return r;
        }
        *ret_answer = envelope;
        return 0;
}

int mfl_client_call(struct mfl_client *c, Mfl__Envelope *request, Mfl__Envelope__BodyCase expected,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        /* There is no time limit for a server that is alive but slow: the heartbeat finds a dead one. */
        Mfl__Envelope *answer = NULL;
        int r = mfl_client_ask(c, request, err);
        if (!r)
                r = mfl_client_next(c, MFL_CLIENT_FOREVER, &answer, err);
        if (r)
                return r;
        if (answer->body_case != expected) {
                r = mfl_fail(err, MFL_CLI_LOST,
                        "server %s: sent an unexpected answer; is it of another release?", c->cli->server);
                mfl_wire_free(answer);
                return r;
        }
        *ret_answer = answer;
        return 0;
}

static void on_payload_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct mfl_client_link *link = stream->owner;
        link->sent = !status;
}

int mfl_client_send_payload(struct mfl_client *c, Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        envelope->request = c->request;
        c->link->sent = false;
        if (c->link->closed)
                return mfl_fail(err, MFL_CLI_LOST, "server %s: %s", c->cli->server, c->link->reason);
        int r = mfl_stream_send(
                &c->link->stream, envelope, payload, payload_bytes, NULL, on_payload_sent, NULL, err);
        if (r)
                return r == MFL_BUSY ? MFL_CLI_LOST : r;
        r = wait_for(c, is_sent, MFL_CLIENT_FOREVER, err);
        if (!c->link->sent) { /* the caller's memory may still be in use by the write */
                mfl_stream_close(&c->link->stream, NULL, false);
                while (!c->link->closed)
                        uv_run(c->cli->loop, UV_RUN_ONCE);
        }
        return r;
}
