/* SPDX-License-Identifier: Apache-2.0 */
/* Two streams over a real loopback listener and loop. */
#include "tests/unit/proto/world.h"

#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

static int take_payload(
        struct mfl_stream *s, const Mfl__Envelope *e, size_t n, void **ret_dst, struct mfl_error *err)
{
        struct end *end = s->owner;
        end->payloads++;
        if (end->payload_answer)
                return mfl_fail(err, end->payload_answer, "no payload wanted");
        if (!end->dst)
                return 0;
        assert_true(e->body_case == MFL__ENVELOPE__BODY_CHUNK && e->chunk->offset + n <= end->dst_bytes);
        *ret_dst = end->dst + e->chunk->offset;
        return 0;
}

static int take_frame(
        struct mfl_stream *s, const Mfl__Envelope *e, void *payload, size_t n, struct mfl_error *err)
{
        struct end *end = s->owner;
        assert_int_equal(end->closed, 0);
        end->frames++;
        end->last = (int)e->body_case;
        end->got += n;
        if (e->body_case == MFL__ENVELOPE__BODY_PING)
                end->cookie = e->ping->cookie;
        if (e->body_case == MFL__ENVELOPE__BODY_BYE)
                snprintf(end->bye, sizeof end->bye, "%s", e->bye->reason);
        if (end->close_on_frame)
                mfl_stream_close(s, NULL, false);
        return end->frame_answer ? mfl_fail(err, end->frame_answer, "frame not wanted") : 0;
}

static void note_closed(struct mfl_stream *s, const char *reason)
{
        struct end *end = s->owner;
        assert_false(end->in_api);
        assert_int_equal(s->queued_bytes, 0);
        end->closed++;
        snprintf(end->reason, sizeof end->reason, "%s", reason);
        /* No memory of the stream may be touched afterwards: sanitizers see it, and garbage breaks it. */
        memset(s, 0xee, sizeof *s);
}

static void note_connected(struct mfl_stream *s, int status, const char *text)
{
        struct end *end = s->owner;
        assert_false(end->in_api);
        assert_int_equal(end->closed, 0);
        end->connected++;
        end->connect_status = status;
        snprintf(end->text, sizeof end->text, "%s", text);
}

const struct mfl_stream_ops world_ops = {take_payload, take_frame, note_closed, note_connected};

static void note_sent(struct mfl_stream *s, int status, void *arg)
{
        struct end *end = arg;
        assert_false(end->in_api);
        assert_int_equal(end->closed, 0);
        if (status)
                end->sent_failed++;
        else
                end->sent_ok++;
}

static void on_connection(uv_stream_t *listener, int status)
{
        struct world *w = listener->data;
        assert_int_equal(status, 0);
        assert_int_equal(mfl_stream_init(&w->server.stream, &w->loop, &world_ops, &w->server, NULL), 0);
        w->server.stream.payload_max = MFL_PAYLOAD_MAX;
        if (w->tls_server)
                assert_int_equal(mfl_stream_tls(&w->server.stream, w->tls_server, NULL), 0);
        mfl_stream_accept(&w->server.stream, listener);
}

int world_setup(void **state)
{
        struct world *w = calloc(1, sizeof *w);
        struct sockaddr_in addr;
        int n = sizeof addr;
        uv_loop_init(&w->loop);
        uv_tcp_init(&w->loop, &w->listener);
        w->listener.data = w;
        uv_ip4_addr("127.0.0.1", 0, &addr);
        assert_int_equal(uv_tcp_bind(&w->listener, (struct sockaddr *)&addr, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&w->listener, 8, on_connection), 0);
        uv_tcp_getsockname(&w->listener, (struct sockaddr *)&addr, &n);
        w->port = ntohs(addr.sin_port);
        snprintf(w->address, sizeof w->address, "127.0.0.1:%d", w->port);
        *state = w;
        return 0;
}

int world_teardown(void **state)
{
        struct world *w = *state;
        if (!uv_is_closing((uv_handle_t *)&w->listener))
                uv_close((uv_handle_t *)&w->listener, NULL);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&w->loop), 0);
        mfl_tls_context_unref(w->tls_server);
        mfl_tls_context_unref(w->tls_client);
        free(w->server.dst);
        free(w);
        return 0;
}

/* Runs the loop until *what is at least want; fails after 20 seconds, which only a busy machine may come
 * near. */
void run_until(struct world *w, const int *what, int want)
{
        uint64_t end = mfl_now_ms() + 20000;
        while (*what < want && mfl_now_ms() < end) {
                uv_run(&w->loop, UV_RUN_NOWAIT);
                if (*what < want)
                        usleep(200);
        }
        assert_true(*what >= want);
}

void connect_both(struct world *w)
{
        assert_int_equal(mfl_stream_init(&w->client.stream, &w->loop, &world_ops, &w->client, NULL), 0);
        w->client.stream.payload_max = MFL_PAYLOAD_MAX;
        if (w->tls_client)
                assert_int_equal(mfl_stream_tls(&w->client.stream, w->tls_client, NULL), 0);
        assert_int_equal(mfl_stream_connect(&w->client.stream, w->address, NULL), 0);
        assert_int_equal(w->client.connected, 0);
        run_until(w, &w->client.connected, 1);
        assert_int_equal(w->client.connect_status, 0);
        while (!w->server.stream.connected)
                uv_run(&w->loop, UV_RUN_ONCE);
}

void close_end(struct end *end, const char *bye)
{
        end->in_api = true;
        mfl_stream_close(&end->stream, bye, true);
        mfl_stream_close(&end->stream, bye, true);
        end->in_api = false;
}

void ping(struct end *end, uint64_t cookie)
{
        struct mfl_msg m = {.kind = MFL_MSG_PING, .cookie = cookie};
        end->in_api = true;
        assert_int_equal(mfl_stream_send_msg(&end->stream, &m, NULL, NULL), 0);
        end->in_api = false;
}

int send_chunk(struct end *end, uint64_t offset, const void *data, size_t n, const uint32_t *crc)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Chunk c = MFL__CHUNK__INIT;
        c.task = 7;
        c.offset = offset;
        e.body_case = MFL__ENVELOPE__BODY_CHUNK;
        e.chunk = &c;
        end->in_api = true;
        int r = mfl_stream_send(&end->stream, &e, data, n, crc, note_sent, end, NULL);
        end->in_api = false;
        return r;
}
