/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port against a loop of the test's own: what is asked of the loop and how often, health when the
 * loop is stuck, refusals, many who wait for one page, a close in the middle of requests. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/web/http.h"

struct bed {
        uv_loop_t loop;
        struct mfl_http *http;
        int n_rendered;
        bool mute; /* render does not answer */
        char path[MFL_HTTP_PATH_BYTES];
};

static const struct mfl_asset assets[] = {{"/a.css", "text/css", (const unsigned char *)"abc", 3}};

static bool knows(const char *path)
{
        return !strcmp(path, "/page") || !strcmp(path, "/none");
}

static void answer(struct bed *bed, const char *path)
{
        char *body = strcmp(path, "/none") ? mfl_strdup("hello") : NULL;
        mfl_http_answer(bed->http, path, 200, "text/plain", body, body ? 5 : 0);
}

static void render(void *user, const char *path)
{
        struct bed *bed = user;
        bed->n_rendered++;
        mfl_strcpy(bed->path, sizeof bed->path, path);
        if (!bed->mute)
                answer(bed, path);
}

static void bed_open(struct bed *bed, uint32_t stale_ms)
{
        struct mfl_error err;
        struct mfl_http_options options = {.address = "127.0.0.1:0",
                .loop = &bed->loop,
                .assets = assets,
                .n_assets = 1,
                .knows = knows,
                .render = render,
                .user = bed,
                .stale_ms = stale_ms,
                .fresh_ms = 600000};
        memset(bed, 0, sizeof *bed);
        uv_loop_init(&bed->loop);
        if (mfl_http_open(&options, &bed->http, &err))
                fail_msg("%s", err.text);
}

static void bed_close(struct bed *bed)
{
        mfl_http_close(bed->http);
        uv_run(&bed->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&bed->loop), 0);
}

static int connect_to(struct bed *bed)
{
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        addr.sin_port = htons((uint16_t)atoi(strchr(mfl_http_address(bed->http), ':') + 1));
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct timeval limit = {.tv_sec = 20};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
        return fd;
}

static int ask(struct bed *bed, const char *request)
{
        int fd = connect_to(bed);
        assert_int_equal(write(fd, request, strlen(request)), (ssize_t)strlen(request));
        return fd;
}

/* Reads to the end; turns the loop meanwhile, unless it is to be stuck. */
static int read_answer(struct bed *bed, int fd, char buf[4096], bool turn)
{
        size_t n = 0;
        for (int i = 0; i < 20000; i++) {
                ssize_t got = recv(fd, buf + n, 4095 - n, turn ? MSG_DONTWAIT : 0);
                if (got == 0 || (got < 0 && errno != EAGAIN))
                        break;
                if (got > 0)
                        n += (size_t)got;
                else if (turn) {
                        uv_run(&bed->loop, UV_RUN_NOWAIT);
                        usleep(1000);
                } else
                        break;
        }
        buf[n] = '\0';
        close(fd);
        return n > 12 ? atoi(buf + 9) : 0;
}

static int get(struct bed *bed, const char *request, char buf[4096], bool turn)
{
        return read_answer(bed, ask(bed, request), buf, turn);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"

static void one_render_serves_all(void **state)
{
        struct bed bed;
        char buf[4096];
        int fds[20];
        bed_open(&bed, 0);
        for (int i = 0; i < 20; i++)
                fds[i] = ask(&bed, GET("/page"));
        for (int i = 0; i < 20; i++) {
                assert_int_equal(read_answer(&bed, fds[i], buf, true), 200);
                assert_non_null(strstr(buf, "\r\n\r\nhello"));
        }
        assert_int_equal(bed.n_rendered, 1);
        assert_string_equal(bed.path, "/page");
        /* From the cache: the loop does not turn. */
        assert_int_equal(get(&bed, GET("/page"), buf, false), 200);
        char etag[64], again[256];
        assert_int_equal(sscanf(strstr(buf, "ETag: "), "ETag: %63s", etag), 1);
        snprintf(again, sizeof again, "GET /page HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: %s\r\n\r\n",
                etag);
        assert_int_equal(get(&bed, again, buf, false), 304);
        assert_int_equal(get(&bed, "HEAD /page HTTP/1.1\r\nHost: localhost\r\n\r\n", buf, false), 200);
        assert_non_null(strstr(buf, "Content-Length: 5\r\n"));
        assert_string_equal(strstr(buf, "\r\n\r\n"), "\r\n\r\n");
        assert_int_equal(bed.n_rendered, 1);
        uint64_t counts[MFL_HTTP_STATUSES];
        mfl_http_counts(bed.http, counts);
        assert_int_equal(counts[0], 22);
        assert_int_equal(counts[1], 1);
        bed_close(&bed);
}

static void refusals_need_no_loop(void **state)
{
        static const struct {
                int status;
                const char *request;
        } cases[] = {
                {404, GET("/other")},
                {404, GET("/a.css/")},
                {404, GET("/0123456789012345678901234567890123456789012345678901234567890123456789")},
                {405, "POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"},
                {405, "DELETE /page HTTP/1.1\r\nHost: localhost\r\n\r\n"},
                {400, "GET /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"},
                {403, "GET /page HTTP/1.1\r\nHost: evil.example:7434\r\n\r\n"},
                {403, "GET /healthz HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n"},
                {200, "GET /a.css HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"},
                {200, "GET /a.css HTTP/1.1\r\nHost: [::1]:1\r\n\r\n"},
                {200, "GET /a.css HTTP/1.0\r\n\r\n"},
        };
        struct bed bed;
        char buf[4096];
        bed_open(&bed, 0);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                assert_int_equal(get(&bed, cases[i].request, buf, false), cases[i].status);
        assert_int_equal(bed.n_rendered, 0);
        assert_int_equal(get(&bed, GET("/none"), buf, true), 503); /* the loop could not make it */
        bed_close(&bed);
}

static void health_is_told(void **state)
{
        struct bed bed;
        char buf[4096];
        bed_open(&bed, 0);
        assert_int_equal(get(&bed, GET("/healthz"), buf, false), 200);
        assert_int_equal(get(&bed, GET("/readyz"), buf, false), 503);
        assert_non_null(strstr(buf, "starting"));
        mfl_http_beat(bed.http, NULL, NULL);
        assert_int_equal(get(&bed, GET("/readyz"), buf, false), 200);
        mfl_http_beat(bed.http, "the disk is full", "as many as may be");
        assert_int_equal(get(&bed, GET("/healthz"), buf, false), 503);
        assert_non_null(strstr(buf, "the disk is full\n"));
        assert_int_equal(get(&bed, GET("/readyz"), buf, false), 503);
        assert_non_null(strstr(buf, "as many as may be\n"));
        bed_close(&bed);
}

/* A loop that hangs: health says so, and pages are refused instead of waiting for ever. */
static void a_stuck_loop_is_told(void **state)
{
        struct bed bed;
        char buf[4096];
        bed_open(&bed, 1);
        mfl_http_beat(bed.http, NULL, NULL);
        usleep(5000);
        assert_int_equal(get(&bed, GET("/healthz"), buf, false), 503);
        assert_non_null(strstr(buf, "loop"));
        assert_int_equal(get(&bed, GET("/readyz"), buf, false), 503);
        assert_int_equal(get(&bed, GET("/page"), buf, false), 503);
        assert_int_equal(bed.n_rendered, 0);
        bed_close(&bed);
}

/* A late answer serves those who came meanwhile, and asks once. */
static void answers_may_be_late(void **state)
{
        struct bed bed;
        char buf[4096];
        bed_open(&bed, 0);
        bed.mute = true;
        int first = ask(&bed, GET("/page"));
        while (!bed.n_rendered)
                uv_run(&bed.loop, UV_RUN_ONCE);
        int second = ask(&bed, GET("/page"));
        for (int i = 0; i < 100; i++) {
                uv_run(&bed.loop, UV_RUN_NOWAIT);
                usleep(1000);
        }
        assert_int_equal(bed.n_rendered, 1);
        answer(&bed, "/page");
        assert_int_equal(read_answer(&bed, first, buf, true), 200);
        assert_int_equal(read_answer(&bed, second, buf, true), 200);
        bed_close(&bed);
}

static void close_ends_those_who_wait(void **state)
{
        struct bed bed;
        char buf[4096];
        int fds[8], idle;
        bed_open(&bed, 0);
        bed.mute = true;
        idle = connect_to(&bed);
        for (int i = 0; i < 8; i++)
                fds[i] = ask(&bed, GET("/page"));
        while (!bed.n_rendered)
                uv_run(&bed.loop, UV_RUN_ONCE);
        bed_close(&bed);
        for (int i = 0; i < 8; i++) {
                int status = read_answer(&bed, fds[i], buf, false);
                assert_true(status == 503 || status == 0); /* told, or cut off */
        }
        assert_int_equal(read_answer(&bed, idle, buf, false), 0);
}

static void only_loopback_unless_told(void **state)
{
        struct mfl_error err;
        struct mfl_http *http = NULL;
        uv_loop_t loop;
        struct mfl_http_options options = {
                .address = "0.0.0.0:0", .loop = &loop, .knows = knows, .render = render};
        uv_loop_init(&loop);
        assert_int_equal(mfl_http_open(&options, &http, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "--insecure-http"));
        options.address = "127.0.0.1:x";
        assert_int_equal(mfl_http_open(&options, &http, &err), MFL_INVALID);
        assert_null(http);
        assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_render_serves_all),
                cmocka_unit_test(refusals_need_no_loop),
                cmocka_unit_test(health_is_told),
                cmocka_unit_test(a_stuck_loop_is_told),
                cmocka_unit_test(answers_may_be_late),
                cmocka_unit_test(close_ends_those_who_wait),
                cmocka_unit_test(only_loopback_unless_told),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
