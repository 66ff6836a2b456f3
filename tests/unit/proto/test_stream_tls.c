/* SPDX-License-Identifier: Apache-2.0 */
/* Streams with TLS over a real loopback: what holds without TLS holds with it, and strangers are told apart.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/proto/certs.h"
#include "tests/unit/proto/world.h"

static struct certs certs;

static struct mfl_tls_context *context(const char *file, bool server)
{
        struct certs_files f;
        struct mfl_tls_context *c;
        assert_int_equal(mfl_tls_context_new(certs_files(&certs, 0, file, NULL, &f), server, &c, NULL), 0);
        return c;
}

static int tls_setup(void **state)
{
        int r = world_setup(state);
        struct world *w = *state;
        w->tls_server = context("server", true);
        w->tls_client = context("d1", false);
        return r;
}

static int make_certs(void **state)
{
        certs_init(&certs);
        certs_issue(&certs,
                &(struct certs_spec){.file = "server", .cn = "server", .san = "IP:127.0.0.1", .to_days = 9});
        certs_issue(&certs, &(struct certs_spec){.file = "d1", .cn = "d1", .ou = {"daemon"}, .to_days = 9});
        certs_issue(&certs, &(struct certs_spec){.file = "foreign", .ca = 1, .cn = "d1", .to_days = 9});
        return 0;
}

static int remove_certs(void **state)
{
        certs_deinit(&certs);
        return 0;
}

/* As connect_both, but it may fail. */
static void connect_both_or_not(struct world *w)
{
        assert_int_equal(mfl_stream_init(&w->client.stream, &w->loop, &world_ops, &w->client, NULL), 0);
        if (w->tls_client)
                assert_int_equal(mfl_stream_tls(&w->client.stream, w->tls_client, NULL), 0);
        assert_int_equal(mfl_stream_connect(&w->client.stream, w->address, NULL), 0);
        run_until(w, &w->client.connected, 1);
}

static void both_know_each_other_and_a_bye_ends_both_sides(void **state)
{
        struct world *w = *state;
        connect_both(w);
        assert_string_equal(mfl_stream_identity(&w->server.stream)->name, "d1");
        assert_string_equal(mfl_stream_identity(&w->client.stream)->name, "server");
        ping(&w->client, 42);
        run_until(w, &w->server.frames, 1);
        assert_int_equal(w->server.cookie, 42);
        close_end(&w->server, "going home");
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_string_equal(w->client.reason, "the peer says: going home");
        assert_string_equal(w->server.reason, "going home");
}

/* Around the sizes of records, slices and buffers; many small ones between them. */
static void frames_of_all_sizes_arrive_whole_and_in_order(void **state)
{
        static const size_t sizes[] = {8, 16384 - 64, 16384, 16384 + 8, 65536 - 8, 65536, 65536 + 8,
                131072 - 512, 131072 - 64, 131072, 262144, 262144 + 512, 1 << 20, 4 << 20};
        struct world *w = *state;
        mfl_tls_context_rekey(w->tls_client, 37); /* here and there a new key begins */
        size_t total = 0, at = 0;
        int chunks = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sizes); i++)
                total += sizes[i];
        uint8_t *src = malloc(total);
        w->server.dst = calloc(1, total);
        w->server.dst_bytes = total;
        for (size_t i = 0; i < total / 4; i++)
                ((uint32_t *)(void *)src)[i] = (uint32_t)i * 2654435761u;
        connect_both(w);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sizes); at += sizes[i++], chunks++) {
                assert_int_equal(send_chunk(&w->client, at, src + at, sizes[i], NULL), 0);
                for (int k = 0; k < 5; k++)
                        ping(&w->client, i * 5 + k);
        }
        run_until(w, &w->server.frames, 6 * chunks);
        run_until(w, &w->client.sent_ok, chunks);
        assert_memory_equal(src, w->server.dst, total);
        assert_int_equal(w->server.cookie, 5 * MFL_ARRAY_SIZE(sizes) - 1);
        assert_true(w->server.stream.bytes_in == w->client.stream.bytes_out);
        assert_int_equal(w->client.stream.queued_bytes, 0);
        close_end(&w->client, NULL);
        run_until(w, &w->server.closed, 1);
        assert_string_equal(w->server.reason, "the peer closed the connection");
        run_until(w, &w->client.closed, 1);
        free(src);
}

/* The end of its handshake and its first frames may arrive in one read, and be more than a handshake may be.
 */
static void a_client_may_send_at_once(void **state)
{
        struct world *w = *state;
        static uint8_t data[1 << 20];
        w->server.dst = calloc(1, sizeof data);
        w->server.dst_bytes = sizeof data;
        connect_both_or_not(w);
        assert_int_equal(send_chunk(&w->client, 0, data, sizeof data, NULL), 0);
        usleep(20000); /* the server has not looked yet */
        run_until(w, &w->server.frames, 1);
        close_end(&w->client, NULL);
        run_until(w, &w->server.closed, 1);
        run_until(w, &w->client.closed, 1);
}

/* Nobody reads: what was given is answered when the stream closes, and the Bye does not hold it up. */
static void a_slow_reader_costs_what_is_queued_and_no_more(void **state)
{
        struct world *w = *state;
        static uint8_t data[4 << 20];
        int sends = 0;
        connect_both(w);
        uv_read_stop((uv_stream_t *)&w->client.stream.tcp);
        w->server.stream.queue_max = 40 << 20;
        while (!send_chunk(&w->server, 0, data, sizeof data, NULL))
                assert_true(++sends < 16);
        run_until(w, &w->server.closed, 1);
        assert_non_null(strstr(w->server.reason, "the limit is"));
        assert_int_equal(w->server.sent_failed + w->server.sent_ok, sends);
        assert_true(w->server.sent_failed > 5);
        close_end(&w->client, NULL);
        run_until(w, &w->client.closed, 1);
}

static void a_bye_behind_much_is_flushed_or_given_up(void **state)
{
        struct world *w = *state;
        static uint8_t data[4 << 20];
        w->server.dst = calloc(1, sizeof data);
        w->server.dst_bytes = sizeof data;
        connect_both(w);
        for (int i = 0; i < 4; i++)
                assert_int_equal(send_chunk(&w->client, 0, data, sizeof data, NULL), 0);
        close_end(&w->client, "done");
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_int_equal(w->client.sent_failed + w->client.sent_ok, 4);
        if (w->client.sent_failed == 0) /* a machine that is slow gives up after 200 ms */
                assert_string_equal(w->server.bye, "done");
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

/* Pulls the connection from under it, at any point of a transfer. */
static void a_cut_anywhere_ends_it_once(void **state)
{
        static uint8_t data[1 << 20];
        for (int turns = 0; turns < 24; turns++) {
                void *own;
                tls_setup(&own);
                struct world *w = own;
                assert_int_equal(
                        mfl_stream_init(&w->client.stream, &w->loop, &world_ops, &w->client, NULL), 0);
                assert_int_equal(mfl_stream_tls(&w->client.stream, w->tls_client, NULL), 0);
                assert_int_equal(mfl_stream_connect(&w->client.stream, w->address, NULL), 0);
                for (int i = 0; i < turns; i++) {
                        uv_run(&w->loop, UV_RUN_NOWAIT);
                        usleep(300);
                        if (w->client.connected && !w->client.closed)
                                send_chunk(&w->client, 0, data, sizeof data, NULL);
                }
                close_end(&w->client, NULL);
                run_until(w, &w->client.closed, 1);
                assert_int_equal(w->client.connected, 1);
                world_teardown(&own); /* runs until nothing is left */
        }
}

static void failing_allocations_end_streams_in_good_order(void **state)
{
        struct world *w = *state;
        static uint8_t data[100000];
        for (long n = 0; n < 40; n++) {
                memset(&w->client, 0, sizeof w->client);
                memset(&w->server, 0, sizeof w->server);
                connect_both(w);
                mfl_alloc_fail_at(n);
                for (int i = 0; i < 4 && !w->client.closed; i++)
                        send_chunk(&w->client, 0, data, sizeof data, NULL);
                for (int i = 0; i < 50 && !w->client.closed; i++)
                        uv_run(&w->loop, UV_RUN_NOWAIT);
                mfl_alloc_fail_at(-1);
                if (!w->client.closed)
                        close_end(&w->client, NULL);
                run_until(w, &w->client.closed, 1);
                run_until(w, &w->server.closed, 1);
        }
}

static void a_refused_certificate_is_told_on_both_sides(void **state)
{
        struct world *w = *state;
        mfl_tls_context_unref(w->tls_client);
        w->tls_client = context("foreign", false);
        connect_both_or_not(w);
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_non_null(strstr(w->server.reason, "unable to get local issuer"));
        assert_non_null(strstr(w->client.reason, "does not know the CA"));
        assert_int_equal(w->server.frames, 0);
}

static void a_plain_client_is_told_by_a_server_with_tls(void **state)
{
        struct world *w = *state;
        mfl_tls_context_unref(w->tls_client);
        w->tls_client = NULL;
        connect_both_or_not(w);
        ping(&w->client, 1);
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_non_null(strstr(w->server.reason, "the client speaks plain TCP"));
        assert_non_null(strstr(w->client.bye, "requires TLS"));
        assert_int_equal(w->server.frames, 0);
}

static void a_plain_server_is_told_by_a_client_with_tls(void **state)
{
        struct world *w = *state;
        mfl_tls_context_unref(w->tls_server);
        w->tls_server = NULL;
        connect_both_or_not(w);
        run_until(w, &w->client.closed, 1);
        run_until(w, &w->server.closed, 1);
        assert_int_equal(w->client.connected, 1);
        assert_true(w->client.connect_status < 0);
        assert_non_null(strstr(w->client.reason, "the server speaks plain TCP"));
        assert_non_null(strstr(w->server.reason, "this looks like TLS"));
}

static void garbage_before_the_handshake_ends_it(void **state)
{
        struct world *w = *state;
        static const char *const bytes[] = {
                "GET / HTTP/1.1\r\n\r\n", "\x17\x03\x03\x00\x05hello", "\x16\x03\x01\x40\x00\x01"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bytes); i++) {
                struct sockaddr_in addr;
                memset(&w->server, 0, sizeof w->server);
                int fd = socket(AF_INET, SOCK_STREAM, 0);
                uv_ip4_addr("127.0.0.1", w->port, &addr);
                assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
                assert_true(write(fd, bytes[i], i == 2 ? 6 : strlen(bytes[i])) > 0);
                for (int k = 0; k < 40 && !w->server.closed; k++) {
                        uv_run(&w->loop, UV_RUN_NOWAIT);
                        usleep(200);
                }
                close(fd);
                run_until(w, &w->server.closed, 1);
                assert_non_null(strstr(w->server.reason, "TLS"));
                assert_int_equal(w->server.frames, 0);
        }
}

#define TLS_TEST(name) cmocka_unit_test_setup_teardown(name, tls_setup, world_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TLS_TEST(both_know_each_other_and_a_bye_ends_both_sides),
                TLS_TEST(frames_of_all_sizes_arrive_whole_and_in_order),
                TLS_TEST(a_client_may_send_at_once),
                TLS_TEST(a_slow_reader_costs_what_is_queued_and_no_more),
                TLS_TEST(a_bye_behind_much_is_flushed_or_given_up),
                TLS_TEST(the_owner_may_close_in_a_callback),
                cmocka_unit_test(a_cut_anywhere_ends_it_once),
                TLS_TEST(failing_allocations_end_streams_in_good_order),
                TLS_TEST(a_refused_certificate_is_told_on_both_sides),
                TLS_TEST(a_plain_client_is_told_by_a_server_with_tls),
                TLS_TEST(a_plain_server_is_told_by_a_client_with_tls),
                TLS_TEST(garbage_before_the_handshake_ends_it),
        };
        return cmocka_run_group_tests_name("stream_tls", tests, make_certs, remove_certs);
}
