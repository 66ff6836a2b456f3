/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests out of bytes: whole, in pieces of every size, pipelined, and wrong. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http/http.h"
#include "serve/http/parse.h"
#include "serve/http/reply.h"

static uint64_t budget = 1 << 20;
static const struct mfl_http_limits limits = {
        .head_bytes_max = 4096, .body_bytes_max = 10000, .budget = &budget};

/* Feeds the text in pieces of `step` bytes; the number of requests, and their paths and bodies as one text; a bad one ends it
 * with its status. */
static void feed(const char *text, size_t n, size_t step, char *seen, size_t bytes)
{
        struct mfl_http_parser *p = malloc(sizeof *p);
        const char *at = text, *end = text + n;
        size_t k = 0;
        mfl_http_set_head_max(limits.head_bytes_max);
        mfl_http_parser_init(p, &limits);
        seen[0] = '\0';
        while (at < end) {
                size_t piece = MFL_MIN(step, (size_t)(end - at)), used = 0;
                /* Exactly as large, so that a sanitizer sees the first byte beyond. */
                char *own = malloc(piece);
                memcpy(own, at, piece);
                const int r = mfl_http_parse(p, own, piece, &used);
                if (r == MFL_HTTP_BAD) {
                        k += (size_t)mfl_snprintf(seen + k, bytes - k, "[%d]", p->status);
                        free(own);
                        break;
                }
                assert_true(used <= piece && (r == MFL_HTTP_REQUEST || used == piece));
                if (r == MFL_HTTP_REQUEST) {
                        k += (size_t)mfl_snprintf(seen + k, bytes - k, "%d %s%s%.*s;", p->request.method,
                                p->request.path, p->request.keep_alive ? " " : " close ",
                                (int)MFL_MIN(p->request.body_bytes, 40u), p->request.body);
                        mfl_http_parser_next(p);
                }
                free(own);
                at += used;
        }
        mfl_http_parser_deinit(p);
        free(p);
        assert_int_equal(budget, 1 << 20);
}

static void is(const char *text, const char *expected)
{
        char seen[2000];
        for (size_t step = 1; step <= strlen(text); step = step < 70 ? step + 1 : step * 2) {
                feed(text, strlen(text), step, seen, sizeof seen);
                assert_string_equal(seen, expected);
        }
        feed(text, strlen(text), strlen(text), seen, sizeof seen);
        assert_string_equal(seen, expected);
}

#define HOST "Host: x\r\n"

static void requests(void **state)
{
        is("GET /v2 HTTP/1.1\r\n" HOST "\r\n", "0 /v2 ;");
        is("HEAD /v2?x=1 HTTP/1.1\r\n" HOST "\r\n", "1 /v2 ;");
        is("GET /a%2Fb%20 HTTP/1.1\r\n" HOST "\r\n", "[400]");
        is("GET /a%2Fb%7e HTTP/1.1\r\n" HOST "\r\n", "0 /a/b~ ;");
        is("GET http://host/v2/models HTTP/1.1\r\n" HOST "\r\n", "0 /v2/models ;");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", "2 /x hello;");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", "2 /x ;");
        is("GET /x HTTP/1.0\r\n\r\n", "0 /x close ;");
        is("GET /x HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "0 /x close ;");
        is("GET /x HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET /y HTTP/1.1\r\n" HOST
           "\r\n",
                "0 /x ;0 /y ;");
}

static void pipelined(void **state)
{
        is("POST /a HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\n" HOST
           "\r\n\r\nPOST /c HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nde",
                "2 /a abc;0 /b ;2 /c de;");
}

static void chunked(void **state)
{
        is("POST /x HTTP/1.1\r\n" HOST
           "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: z\r\n\r\nGET /y "
           "HTTP/1.1\r\n" HOST "\r\n",
                "2 /x abcdefg;0 /y ;");
        is("POST /x HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\nabc", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc", "[400]");
}

/* A front server and we could see different requests in these. */
static void ambiguous_lengths(void **state)
{
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: -3\r\n\r\nabc", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999\r\n\r\nabc", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\nabc", "[501]");
}

static void refused(void **state)
{
        is("nonsense\r\n\r\n", "[400]");
        is("GET / HTTP/1.1\r\n\r\n", "[400]");
        is("GET / HTTP/2.0\r\n" HOST "\r\n", "[505]");
        is("CONNECT a:1 HTTP/1.1\r\n" HOST "\r\n", "[405]");
        is("GET /%zz HTTP/1.1\r\n" HOST "\r\n", "[400]");
        is("GET /% HTTP/1.1\r\n" HOST "\r\n", "[400]");
        is("GET /%00 HTTP/1.1\r\n" HOST "\r\n", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Content-Length: 10001\r\n\r\n", "[413]");
        is("POST /x HTTP/1.1\r\n" HOST "Expect: tea\r\n\r\n", "[417]");
        is("POST /x HTTP/1.1\r\n" HOST "Inference-Header-Content-Length: x\r\n\r\n", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST
           "Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2\r\n\r\n",
                "[400]");
        is("GET /x HTTP/1.1\r\n" HOST HOST "\r\n", "[400]");
        is("POST /x HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", "[501]");
        is("POST /x HTTP/1.1\r\n" HOST "Mfl-Key: a\r\nMfl-Key: b\r\n\r\n", "[400]");
}

static void too_large(void **state)
{
        static char text[20000], seen[200];
        int n = mfl_snprintf(text, sizeof text, "GET / HTTP/1.1\r\n" HOST "X: ");
        memset(text + n, 'a', 6000);
        strcpy(text + n + 6000, "\r\n\r\n");
        feed(text, strlen(text), 1000, seen, sizeof seen);
        assert_string_equal(seen, "[431]");
        n = mfl_snprintf(text, sizeof text, "GET /");
        memset(text + n, 'a', 2000);
        strcpy(text + n + 2000, " HTTP/1.1\r\n" HOST "\r\n");
        feed(text, strlen(text), 100, seen, sizeof seen);
        assert_string_equal(seen, "[414]");
        /* Chunks of which each is small. */
        n = mfl_snprintf(text, sizeof text, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
        for (int i = 0; i < 101; i++) {
                n += mfl_snprintf(text + n, sizeof text - (size_t)n, "64\r\n");
                memset(text + n, 'b', 100);
                n += 100;
                n += mfl_snprintf(text + n, sizeof text - (size_t)n, "\r\n");
        }
        feed(text, (size_t)n, 64, seen, sizeof seen);
        assert_string_equal(seen, "[413]");
}

static void headers(void **state)
{
        static const char text[] = "POST /x HTTP/1.1\r\nhost: x\r\nAUTHORIZATION: Bearer  "
                                   "\t\r\nAuthorization: bearer secret-key \r\nMfl-Key: k 1\r\n"
                                   "Content-Encoding: gzip\r\ninference-header-content-length: 17\r\nExpect: "
                                   "100-continue\r\nContent-Length: 1\r\n\r\nz";
        struct mfl_http_parser *p = malloc(sizeof *p);
        size_t used;
        mfl_http_parser_init(p, &limits);
        assert_int_equal(mfl_http_parse(p, text, sizeof text - 2, &used), 0);
        assert_true(p->continues);
        assert_int_equal(mfl_http_parse(p, "z", 1, &used), MFL_HTTP_REQUEST);
        assert_string_equal(p->request.bearer, "secret-key");
        assert_string_equal(p->request.key, "k 1");
        assert_true(p->request.encoded && p->request.has_json_bytes && p->request.json_bytes == 17);
        mfl_http_parser_next(p);
        assert_string_equal(p->request.bearer, "");
        mfl_http_parser_deinit(p);
        static const char old[] = "POST /x HTTP/1.0\r\nConnection: keep-alive\r\nExpect: "
                                  "100-continue\r\nContent-Length: 1\r\n\r\nz";
        mfl_http_parser_init(p, &limits);
        assert_int_equal(mfl_http_parse(p, old, sizeof old - 2, &used), 0);
        assert_false(p->continues);
        assert_int_equal(mfl_http_parse(p, "z", 1, &used), MFL_HTTP_REQUEST);
        assert_true(p->request.old && p->request.keep_alive);
        mfl_http_parser_deinit(p);
        free(p);
}

/* Bodies that arrive in pieces count against what connections share; one that lies in the caller's bytes does not. */
static void memory_is_shared(void **state)
{
        static const char head[] = "POST / HTTP/1.1\r\n" HOST "Content-Length: 9000\r\n\r\n";
        static char body[9000];
        struct mfl_http_parser *p = malloc(sizeof *p);
        size_t used;
        budget = 4096;
        memset(body, 'x', sizeof body);
        mfl_http_parser_init(p, &limits);
        assert_int_equal(mfl_http_parse(p, head, sizeof head - 1, &used), 0);
        assert_int_equal(budget, 4096); /* nothing for a claim alone */
        assert_int_equal(mfl_http_parse(p, body, 4000, &used), 0);
        assert_int_equal(budget, 0);
        assert_int_equal(mfl_http_parse(p, body, 1000, &used), MFL_HTTP_BAD);
        assert_int_equal(p->status, 503);
        mfl_http_parser_deinit(p);
        assert_int_equal(budget, 4096);
        mfl_http_parser_init(p, &limits);
        assert_int_equal(mfl_http_parse(p, head, sizeof head - 1, &used), 0);
        assert_int_equal(mfl_http_parse(p, body, sizeof body, &used), MFL_HTTP_REQUEST);
        assert_ptr_equal(p->request.body, body);
        mfl_http_parser_deinit(p);
        free(p);
        budget = 1 << 20;
}

static void on_any_request(void *user, struct mfl_http_exchange *x, const struct mfl_http_request *request)
{
        mfl_http_answer(user, x, 200, NULL, NULL);
}

/* A connection for which there is no memory is taken later, and the ones after it, too. */
static void no_memory_for_a_connection(void **state)
{
        static const char ask[] = "GET / HTTP/1.1\r\n" HOST "\r\n";
        static struct mfl_http http;
        uv_loop_t loop;
        struct mfl_error err;
        char address[64], answer[400];
        const struct mfl_http_config config = {.limits = limits,
                .connections_max = 10,
                .pipeline_max = 4,
                .idle_ms = 60000,
                .request_ms = 60000,
                .on_request = on_any_request,
                .user = &http};
        uv_loop_init(&loop);
        assert_int_equal(mfl_http_open(&http, &loop, &config, &err), 0);
        assert_int_equal(mfl_http_listen(&http, "127.0.0.1:0", true, address, sizeof address, &err), 0);
        const struct sockaddr_in to = {.sin_family = AF_INET,
                .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1)),
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd[2];
        for (int i = 0; i < 2; i++) {
                fd[i] = socket(AF_INET, SOCK_STREAM, 0);
                assert_int_equal(connect(fd[i], (const struct sockaddr *)&to, sizeof to), 0);
                assert_int_equal(send(fd[i], ask, sizeof ask - 1, 0), sizeof ask - 1);
        }
        mfl_alloc_fail_at(0);
        while (!http.waits)
                uv_run(&loop, UV_RUN_ONCE);
        assert_true(mfl_alloc_failed());
        mfl_alloc_fail_at(-1);
        while (http.counts.requests < 2) {
                uv_run(&loop, UV_RUN_ONCE);
                mfl_http_flush(&http);
        }
        for (int i = 0; i < 2; i++) {
                assert_true(recv(fd[i], answer, sizeof answer, 0) > 15);
                assert_memory_equal(answer, "HTTP/1.1 200 OK", 15);
                close(fd[i]);
        }
        mfl_http_close(&http);
        uv_run(&loop, UV_RUN_DEFAULT);
        mfl_http_deinit(&http);
        assert_int_equal(uv_loop_close(&loop), 0);
}

static void answers(void **state)
{
        struct mfl_reply reply = {0};
        char date[MFL_REPLY_DATE_BYTES];
        mfl_reply_date(784111777, date);
        assert_string_equal(date, "Sun, 06 Nov 1994 08:49:37 GMT"); /* RFC 9110, section 5.6.7 */
        mfl_reply_string(&reply, "a\"b\\\n\xff\xc3\xa9");
        mfl_reply_finish(&reply, &(struct mfl_reply_head){.status = 429,
                                         .type = "t/x",
                                         .more = "Retry-After: 1\r\n",
                                         .close = true,
                                         .date = date});
        mfl_reply_bytes(&reply, "", 1);
        assert_string_equal(reply.v + reply.begin,
                "HTTP/1.1 429 Too Many Requests\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: "
                "t/x\r\nRetry-After: 1\r\n"
                "Content-Length: 12\r\nConnection: close\r\n\r\n\"a\\\"b\\\\??\xc3\xa9\"");
        mfl_reply_deinit(&reply);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(requests),
                cmocka_unit_test(pipelined),
                cmocka_unit_test(chunked),
                cmocka_unit_test(ambiguous_lengths),
                cmocka_unit_test(refused),
                cmocka_unit_test(too_large),
                cmocka_unit_test(headers),
                cmocka_unit_test(memory_is_shared),
                cmocka_unit_test(no_memory_for_a_connection),
                cmocka_unit_test(answers),
        };
        return cmocka_run_group_tests_name("serve_http", tests, NULL, NULL);
}
