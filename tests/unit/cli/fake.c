/* SPDX-License-Identifier: Apache-2.0 */
/* A server that says what a test tells it to, on a loop of its own, beside the process under test. */
#include "tests/unit/cli/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/version.h"

struct fake_conn {
        struct mfl_stream stream;
        struct fake *fake;
        struct fake_conn *next;
        bool greeted;
};

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *e, size_t bytes, void **ret_dst,
        struct mfl_error *err)
{
        struct fake_conn *c = stream->owner;
        struct fake *f = c->fake;
        if (e->body_case != MFL__ENVELOPE__BODY_INITIAL || e->initial->offset != f->n_received)
                return mfl_fail(err, MFL_INVALID, "a payload out of turn");
        f->received = realloc(f->received, f->n_received * sizeof(float) + bytes);
        assert_non_null(f->received);
        *ret_dst = f->received + f->n_received;
        f->n_received += bytes / sizeof(float);
        return 0;
}

static void greet(struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__Welcome w = MFL__WELCOME__INIT;
        assert_int_equal(e->body_case, MFL__ENVELOPE__BODY_HELLO);
        assert_int_equal(e->hello->role, MFL__ROLE__ROLE_OPERATOR);
        if (c->fake->bye_at_hello) {
                mfl_stream_close(&c->stream, "upgrade the client", false);
                return;
        }
        w.protocol = MFL_PROTOCOL_MAX;
        w.software = "fake";
        w.heartbeat_ms = c->fake->dead_ms / 3;
        w.dead_ms = c->fake->dead_ms;
        c->greeted = true;
        c->stream.envelope_max = MFL_ENVELOPE_MAX;
        c->stream.payload_max = MFL_PAYLOAD_MAX;
        fake_send(c, e, MFL__ENVELOPE__BODY_WELCOME, &w);
}

static int on_frame(
        struct mfl_stream *stream, const Mfl__Envelope *e, void *payload, size_t bytes, struct mfl_error *err)
{
        struct fake_conn *c = stream->owner;
        if (!c->greeted) {
                greet(c, e);
                return 0;
        }
        c->fake->pings += e->body_case == MFL__ENVELOPE__BODY_PING;
        if (e->body_case == MFL__ENVELOPE__BODY_BYE || e->body_case == MFL__ENVELOPE__BODY_PING ||
                e->body_case == MFL__ENVELOPE__BODY_PONG)
                return 0;
        if (e->body_case == MFL__ENVELOPE__BODY_INQUIRE) { /* what `submit` asks first */
                fake_fail(c, e, MFL__FAILURE_CODE__FAILURE_NOT_FOUND, "no daemon has this data set");
                return 0;
        }
        c->fake->requests++;
        c->fake->on_request(c->fake, c, e);
        return 0;
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct fake_conn *c = stream->owner;
        struct fake_conn **at = &c->fake->conns;
        while (*at != c)
                at = &(*at)->next;
        *at = c->next;
        free(c);
}

static const struct mfl_stream_ops ops = {
        .on_payload = on_payload, .on_frame = on_frame, .on_closed = on_closed};

static void on_connection(uv_stream_t *listener, int status)
{
        struct fake *f = listener->data;
        struct fake_conn *c = calloc(1, sizeof *c);
        assert_non_null(c);
        assert_int_equal(status, 0);
        c->fake = f;
        c->next = f->conns;
        f->conns = c;
        f->connections++;
        assert_int_equal(mfl_stream_init(&c->stream, &f->loop, &ops, c, NULL), 0);
        c->stream.envelope_max = MFL_ENVELOPE_MAX_EARLY;
        mfl_stream_accept(&c->stream, listener);
}

void fake_open(struct fake *f)
{
        struct sockaddr_in any;
        int n = sizeof any;
        memset(f, 0, sizeof *f);
        f->dead_ms = 5000;
        assert_int_equal(uv_loop_init(&f->loop), 0);
        assert_int_equal(uv_tcp_init(&f->loop, &f->listener), 0);
        f->listener.data = f;
        assert_int_equal(uv_ip4_addr("127.0.0.1", 0, &any), 0);
        assert_int_equal(uv_tcp_bind(&f->listener, (struct sockaddr *)&any, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&f->listener, 16, on_connection), 0);
        assert_int_equal(uv_tcp_getsockname(&f->listener, (struct sockaddr *)&any, &n), 0);
        snprintf(f->address, sizeof f->address, "127.0.0.1:%d", ntohs(any.sin_port));
}

void fake_stop_listening(struct fake *f)
{
        if (!uv_is_closing((uv_handle_t *)&f->listener))
                uv_close((uv_handle_t *)&f->listener, NULL);
}

void fake_close(struct fake *f)
{
        fake_stop_listening(f);
        for (struct fake_conn *c = f->conns; c; c = c->next)
                mfl_stream_close(&c->stream, NULL, false);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&f->loop), 0);
        free(f->received);
}

void fake_send_payload(struct fake_conn *c, const Mfl__Envelope *request, Mfl__Envelope__BodyCase body,
        void *message, const void *payload, size_t bytes)
{
        struct mfl_error err = {""};
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        e.request = request->request;
        e.body_case = body;
        e.hello = message; /* one member of the union: all are pointers */
        int r = mfl_stream_send(&c->stream, &e, payload, bytes, NULL, NULL, NULL, &err);
        if (r)
                fail_msg("fake server: %s", err.text);
}

void fake_send(struct fake_conn *c, const Mfl__Envelope *request, Mfl__Envelope__BodyCase body, void *message)
{
        fake_send_payload(c, request, body, message, NULL, 0);
}

void fake_fail(struct fake_conn *c, const Mfl__Envelope *request, Mfl__FailureCode code, const char *text)
{
        Mfl__Failure f = MFL__FAILURE__INIT;
        f.code = code;
        f.text = (char *)(uintptr_t)text;
        fake_send(c, request, MFL__ENVELOPE__BODY_FAILURE, &f);
}

void fake_cut(struct fake_conn *c)
{
        mfl_stream_close(&c->stream, NULL, false);
}

/* ---- the process ---- */

struct reader {
        uv_pipe_t pipe;
        char *buf;
        size_t size, have;
        int *open;
};

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *buf)
{
        struct reader *r = h->data;
        assert_true(r->have + 1 < r->size);
        *buf = uv_buf_init(r->buf + r->have, (unsigned)(r->size - 1 - r->have));
}

static void on_handle_closed(uv_handle_t *h)
{
        struct reader *r = h->data;
        --*r->open;
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
        struct reader *r = s->data;
        if (n > 0)
                r->have += (size_t)n;
        r->buf[r->have] = '\0';
        if (n < 0)
                uv_close((uv_handle_t *)s, on_handle_closed);
}

struct child {
        uv_process_t process;
        struct reader out, err;
        int open;
        int status;
};

static void on_process_closed(uv_handle_t *h)
{
        struct child *c = h->data;
        c->open--;
}

static void on_exit_of_child(uv_process_t *p, int64_t status, int signal_number)
{
        struct child *c = p->data;
        c->status = signal_number ? -signal_number : (int)status;
        uv_close((uv_handle_t *)p, on_process_closed);
}

static void init_reader(struct reader *r, uv_loop_t *loop, char *buf, size_t size, int *open)
{
        *r = (struct reader){.buf = buf, .size = size, .open = open};
        buf[0] = '\0';
        uv_pipe_init(loop, &r->pipe, 0);
        r->pipe.data = r;
}

const struct fake_result *fake_run(struct fake *f, const char *words, ...)
{
        static struct fake_result result;
        char text[8192], *argv[64] = {getenv("MFL_PROGRAM")}, *save;
        int argc = 1;
        va_list args;
        va_start(args, words);
        vsnprintf(text, sizeof text, words, args);
        va_end(args);
        assert_non_null(argv[0]);
        for (char *w = strtok_r(text, " ", &save); w && argc < 63; w = strtok_r(NULL, " ", &save))
                argv[argc++] = w;
        setenv("MFL_SERVER", f->address, 1);
        struct child c = {.open = 3};
        init_reader(&c.out, &f->loop, result.out, sizeof result.out, &c.open);
        init_reader(&c.err, &f->loop, result.err, sizeof result.err, &c.open);
        uv_stdio_container_t stdio[3] = {{.flags = UV_IGNORE},
                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&c.out.pipe},
                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&c.err.pipe}};
        uv_process_options_t options = {
                .file = argv[0], .args = argv, .exit_cb = on_exit_of_child, .stdio = stdio, .stdio_count = 3};
        c.process.data = &c;
        assert_int_equal(uv_spawn(&f->loop, &c.process, &options), 0);
        uv_read_start((uv_stream_t *)&c.out.pipe, on_alloc, on_read);
        uv_read_start((uv_stream_t *)&c.err.pipe, on_alloc, on_read);
        while (c.open)
                uv_run(&f->loop, UV_RUN_ONCE);
        result.status = c.status;
        return &result;
}

json_t *fake_json(const struct fake_result *result)
{
        json_error_t error;
        size_t n = strlen(result->out);
        if (!n || result->out[n - 1] != '\n')
                fail_msg("no line of output; stderr: %s", result->err);
        const char *at = result->out + n - 1;
        while (at > result->out && at[-1] != '\n')
                at--;
        json_t *json = json_loads(at, 0, &error);
        if (!json)
                fail_msg("not JSON: %s: %s", at, error.text);
        return json;
}

void fake_assert_json(const struct fake_result *result, const char *expected)
{
        json_error_t error;
        json_t *is = fake_json(result), *should = json_loads(expected, 0, &error);
        if (!should)
                fail_msg("the test's own JSON: %s at %d", error.text, error.position);
        if (!json_equal(is, should)) {
                char *text = json_dumps(is, JSON_COMPACT);
                fail_msg("JSON is %s, expected %s", text, expected);
        }
        json_decref(is);
        json_decref(should);
}

/* ---- files ---- */

static char folder[64];

static void remove_folder(void)
{
        char command[128];
        snprintf(command, sizeof command, "rm -rf '%s'", folder);
        if (system(command))
                fprintf(stderr, "could not remove %s\n", folder);
}

const char *fake_path(const char *name)
{
        static char path[16][256];
        static int i;
        if (!folder[0]) {
                strcpy(folder, "/tmp/mfl-test-cli-XXXXXX");
                assert_non_null(mkdtemp(folder));
                atexit(remove_folder);
        }
        i = (i + 1) % 16; /* enough for one test */
        snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
        return path[i];
}

void fake_write_file(const char *path, const char *text)
{
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        assert_int_equal(fclose(f), 0);
}

bool fake_exists(const char *path)
{
        return !access(path, F_OK);
}

Mfl__JobInfo fake_job(const char *job, const char *name, Mfl__JobState state)
{
        Mfl__JobInfo i = MFL__JOB_INFO__INIT;
        i.job = (char *)(uintptr_t)job;
        i.name = (char *)(uintptr_t)name;
        i.state = state;
        i.rounds = 3;
        return i;
}

Mfl__RoundInfo fake_round(uint32_t round, double accuracy)
{
        static uint8_t digest[32] = {0xab, 0xcd};
        Mfl__RoundInfo r = MFL__ROUND_INFO__INIT;
        r.round = round;
        r.evaluated = accuracy >= 0;
        r.accuracy = accuracy >= 0 ? accuracy : 0;
        r.loss = accuracy >= 0 ? 1 - accuracy : 0;
        r.clients = 4;
        r.digest = (ProtobufCBinaryData){.len = 32, .data = digest};
        return r;
}
