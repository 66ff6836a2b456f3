/* SPDX-License-Identifier: Apache-2.0 */
/* Streams over a real loopback listener and loop: two real streams, or a stream and a raw socket. */
#include "tests/unit/proto/world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "proto/carry.h"
#include "proto/stream_internal.h"

static void frames_arrive_and_a_bye_ends_both_sides(void **state)
{
        struct world *w = *state;
        connect_both(w);
        ping(&w->client, 42);
        run_until(w, &w->server.frames, 1);
        assert_int_equal(w->server.cookie, 42);
        close_end(&w->server, "going home");
        assert_int_equal(w->server.closed, 0);
        struct mfl_msg m = {.kind = MFL_MSG_PING};
        assert_int_equal(mfl_stream_send_msg(&w->server.stream, &m, NULL, NULL), MFL_BUSY);
        uv_timer_stop(&w->server.stream.flush); /* the answer ends the wait, not the timer of 200 ms */
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_string_equal(w->client.bye, "going home");
        assert_string_equal(w->client.reason, "the peer says: going home");
        assert_string_equal(w->server.reason, "going home");
}

static void big_payloads_land_at_their_destination(void **state)
{
        struct world *w = *state;
        const size_t total = 64u << 20, step = 1u << 20;
        uint8_t *src = malloc(total);
        w->server.dst = calloc(1, total);
        w->server.dst_bytes = total;
        for (size_t i = 0; i < total / 4; i++)
                ((uint32_t *)(void *)src)[i] = (uint32_t)i * 2654435761u;
        connect_both(w);
        for (size_t at = 0; at < total; at += step)
                assert_int_equal(send_chunk(&w->client, at, src + at, step, NULL), 0);
        run_until(w, &w->server.frames, (int)(total / step));
        run_until(w, &w->client.sent_ok, (int)(total / step));
        assert_memory_equal(src, w->server.dst, total);
        assert_true(w->server.stream.bytes_in == w->client.stream.bytes_out);
        close_end(&w->client, NULL);
        run_until(w, &w->server.closed, 1);
        assert_string_equal(w->server.reason, "the peer closed the connection");
        run_until(w, &w->client.closed, 1);
        assert_string_equal(w->client.reason, "closed");
        free(src);
}

/* A message is in the socket when send returns, while that has room; those behind wait, and one of them may
 * be there in part. */
static void messages_go_out_at_once_and_wait_behind_a_full_socket(void **state)
{
        struct world *w = *state;
        int n = 0;
        connect_both(w);
        ping(&w->client, (uint64_t)++n);
        assert_int_equal(w->client.stream.queued_bytes, 0);
        assert_true(w->client.stream.bytes_out > 0);
        while (!w->client.stream.queued_bytes && n < 10000000) /* nobody reads while the loop stands still */
                ping(&w->client, (uint64_t)++n);
        assert_true(w->client.stream.queued_bytes > 0);
        for (int i = 0; i < 1000; i++)
                ping(&w->client, (uint64_t)++n);
        run_until(w, &w->server.frames, n);
        assert_int_equal(w->server.cookie, n);
        assert_true(w->server.stream.bytes_in == w->client.stream.bytes_out);
        assert_int_equal(w->client.stream.queued_bytes, 0);
        close_end(&w->client, NULL);
        run_until(w, &w->server.closed, 1);
        run_until(w, &w->client.closed, 1);
}

/* What a peer sends to one that is paused fills the kernels and then waits at the peer; nothing of it is lost, and it may be
 * closed meanwhile. */
static void a_paused_stream_reads_later(void **state)
{
        struct world *w = *state;
        static const uint8_t data[1 << 20];
        connect_both(w);
        mfl_carry_pause(&w->server.stream, true);
        for (int i = 0; i < 32; i++) {
                assert_int_equal(send_chunk(&w->client, 0, data, sizeof data, NULL), 0);
                uv_run(&w->loop, UV_RUN_NOWAIT);
        }
        assert_int_equal(w->server.frames, 0);
        assert_true(w->client.stream.queued_bytes > 0);
        mfl_carry_pause(&w->server.stream, false);
        run_until(w, &w->server.frames, 32);
        mfl_carry_pause(&w->server.stream, true);
        close_end(&w->client, "going home");
        for (int i = 0; i < 5; i++)
                uv_run(&w->loop, UV_RUN_NOWAIT);
        assert_int_equal(w->server.closed, 0);
        mfl_stream_close(&w->server.stream, NULL, false);
        run_until(w, &w->server.closed, 1);
        run_until(w, &w->client.closed, 1);
}

static void refused_payloads_are_dropped_or_end_the_stream(void **state)
{
        struct world *w = *state;
        static const uint8_t data[200000];
        connect_both(w);
        assert_int_equal(send_chunk(&w->client, 0, data, sizeof data, NULL), 0);
        run_until(w, &w->server.frames, 1); /* no destination: read, checked and dropped */
        assert_int_equal(w->server.got, sizeof data);
        w->server.payload_answer = MFL_INVALID;
        assert_int_equal(send_chunk(&w->client, 0, data, sizeof data, NULL), 0);
        run_until(w, &w->server.closed, 1);
        run_until(w, &w->client.closed, 1);
        assert_string_equal(w->server.reason, "no payload wanted");
        assert_string_equal(w->client.bye, "no payload wanted");
        assert_int_equal(w->server.frames, 1);
}

/* A raw socket as the client: sends those bytes, in steps, and then runs until the server side is closed. */
static int raw_connect(struct world *w)
{
        struct sockaddr_in addr;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        uv_ip4_addr("127.0.0.1", w->port, &addr);
        assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
        while (!w->server.stream.connected)
                uv_run(&w->loop, UV_RUN_ONCE);
        return fd;
}

static void raw_expect(struct world *w, const void *bytes, size_t n, const char *part_of_reason)
{
        uint8_t back[1024];
        int fd = raw_connect(w);
        assert_int_equal(write(fd, bytes, n), n);
        while (!w->server.closed && !w->server.stream.closing) /* Meson's time-out ends it otherwise */
                uv_run(&w->loop, UV_RUN_ONCE);
        for (int i = 0; i < 5; i++)
                uv_run(&w->loop, UV_RUN_NOWAIT);
        /* The Bye is there before the connection ends, without a reset. */
        ssize_t got = recv(fd, back, sizeof back, MSG_DONTWAIT);
        assert_true(got > MFL_FRAME_HEADER_BYTES);
        assert_memory_equal(back, "MFL1", 4);
        close(fd);
        run_until(w, &w->server.closed, 1);
        if (!strstr(w->server.reason, part_of_reason))
                fail_msg("\"%s\" lacks \"%s\"", w->server.reason, part_of_reason);
        assert_int_equal(w->server.frames, 0);
}

/* A frame with a Chunk (payload) or a Ping (none), in memory. */
static size_t make_frame(uint8_t *buf, uint32_t payload_bytes)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Chunk c = MFL__CHUNK__INIT;
        Mfl__Ping p = MFL__PING__INIT;
        uint8_t *bytes;
        size_t n;
        p.cookie = 99;
        e.body_case = payload_bytes ? MFL__ENVELOPE__BODY_CHUNK : MFL__ENVELOPE__BODY_PING;
        if (payload_bytes)
                e.chunk = &c;
        else
                e.ping = &p;
        assert_int_equal(mfl_wire_pack(&e, &bytes, &n, NULL), 0);
        memcpy(buf + MFL_FRAME_HEADER_BYTES, bytes, n);
        uint8_t *payload = buf + MFL_FRAME_HEADER_BYTES + n;
        for (uint32_t i = 0; i < payload_bytes; i++)
                payload[i] = (uint8_t)(i * 7);
        struct mfl_frame f = {1, (uint32_t)n, payload_bytes, mfl_crc32c(0, bytes, n),
                mfl_crc32c(0, payload, payload_bytes)};
        mfl_frame_encode(&f, buf);
        free(bytes);
        return MFL_FRAME_HEADER_BYTES + n + payload_bytes;
}

static void single_bytes_make_frames(void **state)
{
        struct world *w = *state;
        uint8_t buf[2048];
        w->server.dst = calloc(1, 1000);
        w->server.dst_bytes = 1000;
        int fd = raw_connect(w), one = 1;
        setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
        size_t n = make_frame(buf, 0);
        n += make_frame(buf + n, 1000);
        for (size_t i = 0; i < n; i++) {
                uint64_t before = w->server.stream.bytes_in;
                assert_int_equal(write(fd, buf + i, 1), 1);
                while (w->server.stream.bytes_in == before)
                        uv_run(&w->loop, UV_RUN_NOWAIT);
        }
        assert_int_equal(w->server.frames, 2);
        assert_int_equal(w->server.cookie, 99);
        assert_memory_equal(w->server.dst, buf + n - 1000, 1000);
        close(fd);
        run_until(w, &w->server.closed, 1);
        assert_string_equal(w->server.reason, "the peer closed the connection");
}

static void http_is_named(void **state)
{
        static const char get[] = "GET / HTTP/1.0\r\n\r\n"; /* shorter than a header */
        raw_expect(*state, get, sizeof get - 1, "HTTP");
}

static void tls_is_named(void **state)
{
        raw_expect(*state, "\x16\x03\x01\x00\x05", 5, "TLS");
}

static void a_newer_version_is_named(void **state)
{
        uint8_t buf[64];
        size_t n = make_frame(buf, 0);
        buf[4] = 9;
        raw_expect(*state, buf, n, "frame: version 9; this program (mfl " MFL_VERSION ") reads 1");
}

static void an_oversized_frame_ends_it(void **state)
{
        uint8_t buf[64];
        size_t n = make_frame(buf, 0);
        buf[10] = 0x20; /* 2 MiB */
        raw_expect(*state, buf, n, "expected 1 to 65546");
}

static void a_wrong_envelope_checksum_ends_it(void **state)
{
        uint8_t buf[64];
        size_t n = make_frame(buf, 0);
        buf[n - 1] ^= 1;
        raw_expect(*state, buf, n, "checksum of the envelope");
}

static void a_wrong_payload_checksum_ends_it(void **state)
{
        uint8_t buf[2048];
        size_t n = make_frame(buf, 1000);
        buf[n - 1] ^= 1;
        raw_expect(*state, buf, n, "checksum of the payload");
}

static void a_payload_without_a_right_ends_it(void **state)
{
        uint8_t buf[2048];
        size_t n = make_frame(buf, 0);
        struct mfl_frame f = {1, (uint32_t)n - 24, 8, mfl_crc32c(0, buf + 24, n - 24), 1};
        mfl_frame_encode(&f, buf);
        raw_expect(*state, buf, n, "with a message that takes none");
}

static void a_peer_may_vanish_in_a_payload(void **state)
{
        struct world *w = *state;
        uint8_t buf[2048];
        size_t n = make_frame(buf, 1000);
        w->server.dst = calloc(1, 1000);
        w->server.dst_bytes = 1000;
        int fd = raw_connect(w);
        assert_int_equal(write(fd, buf, n - 500), n - 500);
        run_until(w, &w->server.payloads, 1);
        close(fd);
        run_until(w, &w->server.closed, 1);
        assert_non_null(strstr(w->server.reason, "in the middle of a frame's payload"));
        assert_int_equal(w->server.frames, 0);
}

/* In the middle of a payload that came fast the socket tells of half a MiB at a time, but of what is there
 * when no more comes, and never waits for more than is left. */
static void a_peer_may_slow_down_in_a_payload(void **state)
{
        enum { PAYLOAD = 1 << 20, FIRST = 70000, MORE = 1000 };
        struct world *w = *state;
        struct mfl_stream *s = &w->server.stream;
        static uint8_t buf[PAYLOAD + 100];
        size_t n = make_frame(buf, PAYLOAD), out = FIRST;
        w->server.dst = calloc(1, PAYLOAD);
        w->server.dst_bytes = PAYLOAD;
        int fd = raw_connect(w), bytes = 0;
        uv_os_fd_t socket;
        socklen_t size = sizeof bytes;
        assert_int_equal(uv_fileno((uv_handle_t *)&s->tcp, &socket), 0);
        assert_int_equal(write(fd, buf, FIRST), FIRST);
        while (s->bytes_in < FIRST)
                uv_run(&w->loop, UV_RUN_ONCE);
        mfl_stream_mark(s, FIRST, true, 100000);
        assert_int_equal(s->mark, 100000);
        mfl_stream_mark(s, FIRST, true, n - FIRST);
        assert_int_equal(s->mark, 512 * 1024);
        assert_int_equal(getsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &bytes, &size), 0);
        assert_true(bytes > MORE);
        assert_int_equal(write(fd, buf + out, MORE), MORE);
        out += MORE;
        while (s->bytes_in < out) /* Meson's time-out ends it otherwise */
                uv_run(&w->loop, UV_RUN_ONCE);
        assert_int_equal(s->mark, 1);
        while (out < n) {
                ssize_t more = send(fd, buf + out, n - out, MSG_DONTWAIT);
                out += more > 0 ? (size_t)more : 0;
                uv_run(&w->loop, UV_RUN_NOWAIT);
        }
        run_until(w, &w->server.frames, 1);
        assert_true(s->mark <= 1);
        assert_memory_equal(w->server.dst, buf + n - PAYLOAD, PAYLOAD);
        close(fd);
        run_until(w, &w->server.closed, 1);
}

static void pending_sends_are_answered_when_closed(void **state)
{
        struct world *w = *state;
        static uint8_t data[4 << 20];
        int fd = raw_connect(w); /* reads nothing */
        for (int i = 0; i < 16; i++)
                assert_int_equal(send_chunk(&w->server, 0, data, sizeof data, NULL), 0);
        close_end(&w->server, "enough");
        run_until(w, &w->server.closed, 1);
        assert_int_equal(w->server.sent_failed + w->server.sent_ok, 16);
        assert_true(w->server.sent_failed > 0);
        close(fd);
}

static void a_full_write_queue_ends_it(void **state)
{
        struct world *w = *state;
        static uint8_t data[4 << 20];
        int fd = raw_connect(w), sends = 0;
        w->server.stream.queue_max = 10 << 20;
        while (!send_chunk(&w->server, 0, data, sizeof data, NULL))
                assert_true(++sends < 16);
        run_until(w, &w->server.closed, 1);
        assert_non_null(strstr(w->server.reason, "the limit is 10485760"));
        assert_int_equal(w->server.sent_failed + w->server.sent_ok, sends);
        close(fd);
}

static void a_refused_connection_is_told_once(void **state)
{
        struct world *w = *state;
        uv_close((uv_handle_t *)&w->listener, NULL);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        assert_int_equal(mfl_stream_init(&w->client.stream, &w->loop, &world_ops, &w->client, NULL), 0);
        snprintf(w->address, sizeof w->address, "localhost:%d", w->port); /* may be several addresses */
        assert_int_equal(mfl_stream_connect(&w->client.stream, w->address, NULL), 0);
        run_until(w, &w->client.closed, 1);
        assert_int_equal(w->client.connected, 1);
        assert_int_equal(w->client.connect_status, UV_ECONNREFUSED);
        assert_non_null(strstr(w->client.reason, "connection refused"));
}

static void closing_while_it_connects_is_told_once(void **state)
{
        struct world *w = *state;
        for (int turns = 0; turns < 3; turns++) {
                memset(&w->client, 0, sizeof w->client);
                assert_int_equal(
                        mfl_stream_init(&w->client.stream, &w->loop, &world_ops, &w->client, NULL), 0);
                assert_int_equal(mfl_stream_connect(&w->client.stream, "192.0.2.1:9", NULL), 0);
                for (int i = 0; i < turns * 20; i++) {
                        uv_run(&w->loop, UV_RUN_NOWAIT);
                        usleep(100);
                }
                if (w->client.connected) /* a machine without a route says so at once */
                        assert_true(w->client.connect_status < 0);
                if (!w->client.closed)
                        close_end(&w->client, "never mind");
                run_until(w, &w->client.closed, 1);
                assert_int_equal(w->client.connected, 1);
        }
}

static void the_owner_may_close_in_a_callback(void **state)
{
        struct world *w = *state;
        connect_both(w);
        w->server.close_on_frame = true;
        ping(&w->client, 1);
        ping(&w->client, 2);
        run_until(w, &w->server.closed, 1);
        run_until(w, &w->client.closed, 1);
        assert_int_equal(w->server.frames, 1);
}

static void addresses_are_parsed(void **state)
{
        static const struct {
                const char *text, *host, *port;
        } rows[] = {{"a.b:1", "a.b", "1"}, {"[::1]:80", "::1", "80"}, {":0", "", "0"},
                {"host", "host", "7433"}, {"[::1]", "::1", "7433"}, {"::1", NULL, NULL}, {"a:", NULL, NULL},
                {"a:65536", NULL, NULL}, {"a:x", NULL, NULL}, {"", NULL, NULL}, {"[::1", NULL, NULL},
                {"a:-1", NULL, NULL}, {"http://a:1", NULL, NULL}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                char host[64], port[8];
                struct mfl_error err;
                int r = mfl_address_parse(rows[i].text, host, sizeof host, port, sizeof port, &err);
                assert_int_equal(r, rows[i].host ? 0 : MFL_INVALID);
                if (r) {
                        assert_true(!strstr(rows[i].text, "://") == !strstr(err.text, "not a URL"));
                        continue;
                }
                assert_string_equal(host, rows[i].host);
                assert_string_equal(port, rows[i].port);
        }
        struct sockaddr_in a;
        uv_ip4_addr("127.9.9.9", 1, &a);
        assert_true(mfl_address_is_loopback((struct sockaddr *)&a));
        uv_ip4_addr("128.0.0.1", 1, &a);
        assert_false(mfl_address_is_loopback((struct sockaddr *)&a));
        assert_true(sizeof(struct mfl_stream) < 2048);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(
                        frames_arrive_and_a_bye_ends_both_sides, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        big_payloads_land_at_their_destination, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        messages_go_out_at_once_and_wait_behind_a_full_socket, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(a_paused_stream_reads_later, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        refused_payloads_are_dropped_or_end_the_stream, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(single_bytes_make_frames, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(http_is_named, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(tls_is_named, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(a_newer_version_is_named, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(an_oversized_frame_ends_it, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        a_wrong_envelope_checksum_ends_it, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        a_wrong_payload_checksum_ends_it, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        a_payload_without_a_right_ends_it, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(a_peer_may_vanish_in_a_payload, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        a_peer_may_slow_down_in_a_payload, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        pending_sends_are_answered_when_closed, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(a_full_write_queue_ends_it, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        a_refused_connection_is_told_once, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        closing_while_it_connects_is_told_once, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(
                        the_owner_may_close_in_a_callback, world_setup, world_teardown),
                cmocka_unit_test_setup_teardown(addresses_are_parsed, world_setup, world_teardown),
        };
        return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
