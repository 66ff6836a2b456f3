/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a job or a registered model: happy path and failures are in the header. A connection is always closed from one place (lose), and the next
 * attempt begins in one (on_closed). */
#include "serve/follow/follow.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"
#include "proto/pull/pulled.h"
#include "proto/version.h"
#include "serve/follow/origin.h"

#define PAUSE_FIRST_MS 1000u
#define PAUSE_MAX_MS 15000u
#define PULSE_MS 500u
#define GREET_MS 10000u
#define TELL_MS 2000u

struct mfl_followed {
        struct mfl_follow *follow;
        struct mfl_work work;
        Mfl__Envelope *begin;
        float *params;
        char job[MFL_JOB_ID_BYTES];
        int result;
        struct mfl_error err;
};

static void want(struct mfl_follow *f);

static const char *followed(const struct mfl_follow *f)
{
        return *f->config.job ? f->config.job : f->config.model;
}

/* Tells why once, and not again for each attempt. */
static void say(struct mfl_follow *f, const char *text)
{
        if (!strncmp(f->said, text, sizeof f->said - 1))
                return;
        mfl_strcpy(f->said, sizeof f->said, text);
        mfl_log(MFL_LOG_WARN, "%s: %s of %s: %s; %s", f->config.name, followed(f), f->config.server, text,
                access(f->config.path, F_OK) ? "nothing is served until it comes" : "what is served stays");
}

static void drop_pull(struct mfl_follow *f)
{
        if (f->begin)
                mfl_wire_free(f->begin);
        free(f->params);
        f->begin = NULL;
        f->params = NULL;
        f->n_params = f->have = 0;
        f->pulling = false;
}

static void lose(struct mfl_follow *f, const char *why)
{
        if (why)
                say(f, why);
        mfl_stream_close(&f->stream, why, true);
}

static int send_to(struct mfl_follow *f, Mfl__Envelope *envelope)
{
        struct mfl_error err = {{0}};
        const int r = mfl_stream_send(&f->stream, envelope, NULL, 0, NULL, NULL, NULL, &err);
        if (r && r != MFL_BUSY)
                lose(f, err.text);
        return r;
}

/* ---- writing ---- */

static void write_file(struct mfl_work *work)
{
        struct mfl_followed *w = MFL_CONTAINER_OF(work, struct mfl_followed, work);
        const Mfl__PullBegin *begin = w->begin->pull_begin;
        const char *path = w->follow->config.path;
        struct mfl_graph *graph;
        struct mfl_job *job;
        char digest[65], folder[1400];
        mfl_strcpy(folder, sizeof folder, path);
        w->result = mfl_fs_mkdirs(dirname(folder), 0700, &w->err);
        if (!w->result)
                w->result = mfl_pulled_graph(begin, &job, &graph, &w->err);
        if (w->result)
                return;
        w->result = mfl_pulled_digest(w->params, begin, digest, &w->err);
        if (!w->result)
                w->result = mfl_origin_forget_digest(path, &w->err);
        if (!w->result)
                w->result = mfl_pulled_write(begin, job, graph, w->params, w->job, digest, path, &w->err);
        if (!w->result)
                w->result = mfl_origin_note(path, w->follow->config.server, &w->err);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void on_written(struct mfl_work *work)
{
        struct mfl_followed *w = MFL_CONTAINER_OF(work, struct mfl_followed, work);
        struct mfl_follow *f = w->follow;
        const uint32_t round = w->begin->pull_begin->round->round;
        const bool fine = !work->cancelled && !w->result;
        if (fine) {
                f->round = round;
                f->inherited = false;
                mfl_strcpy(f->job, sizeof f->job, w->job);
                /* What the watch has told meanwhile is this round, or an older one. */
                if (*f->config.job && !f->config.best && f->newest <= round)
                        f->wanted = false;
        } else if (!work->cancelled)
                say(f, w->err.text);
        f->n_written += fine;
        f->n_failed += !fine;
        f->writing = NULL;
        mfl_wire_free(w->begin);
        free(w->params);
        free(w);
        if (f->closing)
                return;
        if (!fine && f->open) {
                /* The round may be the job's last: a new connection, later, asks for it again. */
                f->pause_ms = PAUSE_MAX_MS;
                lose(f, NULL);
                return;
        }
        if (fine) {
                mfl_log(MFL_LOG_INFO, "%s: round %u of %s has come", f->config.name, round, f->job);
                f->config.on_new(f->config.user);
        }
        if (f->wanted)
                want(f);
}

static void begin_writing(struct mfl_follow *f)
{
        struct mfl_followed *w = mfl_calloc(1, sizeof *w);
        if (!w) {
                lose(f, "out of memory");
                return;
        }
        *w = (struct mfl_followed){.follow = f,
                .begin = f->begin,
                .params = f->params,
                .work = {.run = write_file, .done = on_written}};
        mfl_strcpy(w->job, sizeof w->job, f->asked);
        f->begin = NULL;
        f->params = NULL;
        drop_pull(f);
        f->writing = w;
        if (!mfl_worker_submit(f->worker, &w->work))
                return;
        w->work.cancelled = true;
        on_written(&w->work);
}

/* ---- asking ---- */

/* A pull, unless one is under way: then another one follows it. */
static void want(struct mfl_follow *f)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Pull pull = MFL__PULL__INIT;
        f->wanted = true;
        if (!f->welcomed || f->pulling || f->writing || (!*f->config.job && !*f->target))
                return;
        mfl_strcpy(f->asked, sizeof f->asked, *f->config.job ? f->config.job : f->target);
        pull.job = f->asked;
        pull.round = !*f->config.job ? (int64_t)f->target_round : f->config.best ? -2 : -1;
        e.body_case = MFL__ENVELOPE__BODY_PULL;
        e.pull = &pull;
        e.request = ++f->request;
        f->wanted = false;
        f->pulling = true;
        send_to(f, &e);
}

static void watch(struct mfl_follow *f)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Watch message = MFL__WATCH__INIT;
        Mfl__WatchModel model = MFL__WATCH_MODEL__INIT;
        if (*f->config.job) {
                message.job = (char *)(uintptr_t)f->config.job;
                message.rounds_from = f->round;
                e.body_case = MFL__ENVELOPE__BODY_WATCH;
                e.watch = &message;
        } else {
                model.model = (char *)(uintptr_t)f->config.model;
                e.body_case = MFL__ENVELOPE__BODY_WATCH_MODEL;
                e.watch_model = &model;
        }
        e.request = f->watch = ++f->request;
        send_to(f, &e);
}

static void greet(struct mfl_follow *f)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Hello hello = MFL__HELLO__INIT;
        hello.protocol_min = MFL_PROTOCOL_MIN;
        hello.protocol_max = MFL_PROTOCOL_MAX;
        hello.role = MFL__ROLE__ROLE_OPERATOR;
        hello.software = "mfl-serve " MFL_VERSION;
        e.body_case = MFL__ENVELOPE__BODY_HELLO;
        e.hello = &hello;
        send_to(f, &e);
}

static void answer_ping(struct mfl_follow *f, uint64_t cookie)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Pong pong = MFL__PONG__INIT;
        pong.cookie = cookie;
        e.body_case = MFL__ENVELOPE__BODY_PONG;
        e.pong = &pong;
        send_to(f, &e);
}

static void tell_served(struct mfl_follow *f)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Serving serving = MFL__SERVING__INIT;
        f->told_ms = uv_now(f->loop);
        serving.name = (char *)(uintptr_t)f->config.name;
        serving.follows = (char *)(uintptr_t)followed(f);
        f->config.describe(f->config.user, &serving);
        e.body_case = MFL__ENVELOPE__BODY_SERVING;
        e.serving = &serving;
        send_to(f, &e);
}

/* ---- answers ---- */

static int take_welcome(struct mfl_follow *f, const Mfl__Envelope *e, struct mfl_error *err)
{
        const struct mfl_protocol_range own = {MFL_PROTOCOL_MIN, MFL_PROTOCOL_MAX};
        if (e->body_case != MFL__ENVELOPE__BODY_WELCOME)
                return mfl_fail(err, MFL_INVALID, "the server did not answer Hello with Welcome");
        const int r = mfl_protocol_check_chosen(
                own, e->welcome->protocol, "mfl-serve " MFL_VERSION, e->welcome->software, err);
        if (r)
                return r;
        f->tells = f->config.describe && e->welcome->protocol >= MFL_PROTOCOL_INQUIRIES;
        if (!*f->config.job && e->welcome->protocol < MFL_PROTOCOL_INQUIRIES)
                return mfl_fail(err, MFL_INVALID, "%s has no registry of models: upgrade the server",
                        e->welcome->software);
        f->heartbeat_ms = e->welcome->heartbeat_ms;
        f->dead_ms = e->welcome->dead_ms;
        f->stream.envelope_max = MFL_ENVELOPE_MAX;
        f->stream.payload_max = MFL_PAYLOAD_MAX;
        f->welcomed = f->connected = true;
        watch(f);
        want(f);
        return 0;
}

/* The frame is valid only during the callback: the envelope is packed and unpacked again. */
static int take_begin(struct mfl_follow *f, const Mfl__Envelope *e, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *bytes = NULL;
        size_t n;
        int r = mfl_wire_pack(e, &bytes, &n, err);
        if (!r)
                r = mfl_wire_unpack(bytes, n, &f->begin, err);
        if (r)
                return r;
        f->n_params = e->pull_begin->n_params;
        f->params = mfl_alloc_aligned(f->n_params * sizeof(float));
        return f->params ? 0
                         : mfl_fail(err, MFL_INVALID, "not enough memory for %" PRIu64 " parameters",
                                   f->n_params);
}

/* The present server has nothing of what another one has sent. */
static void deny(struct mfl_follow *f)
{
        if (!f->inherited)
                return;
        f->inherited = false;
        f->config.on_denied(f->config.user);
}

static void take_failure(struct mfl_follow *f, const Mfl__Envelope *e)
{
        const bool of_watch = e->request == f->watch;
        if (!of_watch && e->request != f->request)
                return;
        if (e->failure->code == MFL__FAILURE_CODE__FAILURE_NOT_FOUND) {
                const bool nothing = of_watch || (*f->config.job && !f->newest);
                if (nothing)
                        deny(f);
                /* Before a job's first round there is nothing to pull, and the watch tells of it; retention drops a round only
                 * after the next one, which the watch may have told already. */
                if (!of_watch && *f->config.job && (nothing || f->wanted)) {
                        drop_pull(f);
                        if (f->wanted)
                                want(f);
                        return;
                }
                if (!nothing)
                        f->pause_ms = PAUSE_MAX_MS; /* a new connection, later, asks again */
        }
        lose(f, e->failure->text);
}

static int take_params(struct mfl_follow *f, const Mfl__Envelope *e, bool stored, size_t payload_bytes)
{
        if (e->request != f->request || !stored)
                return 0;
        f->have += payload_bytes / sizeof(float);
        if (f->have == f->n_params)
                begin_writing(f);
        return 0;
}

/* The server answers as it should: the next failure is news. */
static void note_good(struct mfl_follow *f)
{
        mfl_servers_reached(&f->servers);
        f->said[0] = '\0';
        f->pause_ms = PAUSE_FIRST_MS;
}

/* Rounds of the past come before the answer to the first pull: the server reads both in turn. */
static void take_event(struct mfl_follow *f, uint64_t request, const Mfl__Event *event)
{
        note_good(f);
        if (request != f->watch || event->what_case != MFL__EVENT__WHAT_ROUND)
                return;
        f->newest = MFL_MAX(f->newest, event->round->round);
        if (event->round->round > f->round)
                want(f);
}

/* The version that the registered model is. */
static void take_version(struct mfl_follow *f, const Mfl__Envelope *e)
{
        if (e->request != f->watch || *f->config.job || e->registry->n_versions != 1)
                return;
        const Mfl__ModelVersion *v = e->registry->versions[0];
        note_good(f);
        mfl_strcpy(f->target, sizeof f->target, v->job);
        f->target_round = v->round;
        if (strcmp(f->job, v->job) != 0 || f->round != v->round || f->pulling || f->writing)
                want(f);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *e, void *payload, size_t payload_bytes,
        struct mfl_error *err)
{
        struct mfl_follow *f = stream->owner;
        char text[600];
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_BYE:
                mfl_strcpy(f->leader, sizeof f->leader, e->bye->leader);
                snprintf(text, sizeof text, "the server said: %s", e->bye->reason);
                say(f, text);
                return 0;
        case MFL__ENVELOPE__BODY_PING:
                answer_ping(f, e->ping->cookie);
                return 0;
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        case MFL__ENVELOPE__BODY_FAILURE:
                take_failure(f, e);
                return 0;
        case MFL__ENVELOPE__BODY_EVENT:
                take_event(f, e->request, e->event);
                return 0;
        case MFL__ENVELOPE__BODY_REGISTRY:
                take_version(f, e);
                return 0;
        case MFL__ENVELOPE__BODY_PULL_BEGIN:
                return f->pulling && e->request == f->request && !f->begin ? take_begin(f, e, err) : 0;
        case MFL__ENVELOPE__BODY_PARAMS:
                return take_params(f, e, payload, payload_bytes);
        default:
                return f->welcomed ? 0 : take_welcome(f, e, err);
        }
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *e, size_t payload_bytes, void **ret_dst,
        struct mfl_error *err)
{
        struct mfl_follow *f = stream->owner;
        const Mfl__Params *p = e->params;
        *ret_dst = NULL;
        if (!f->params || e->request != f->request || e->body_case != MFL__ENVELOPE__BODY_PARAMS)
                return 0;
        if (p->offset != f->have || p->total != f->n_params ||
                payload_bytes / sizeof(float) > f->n_params - f->have)
                return mfl_fail(err, MFL_INVALID,
                        "the server sent the params out of order, or more than it announced");
        *ret_dst = f->params + f->have;
        return 0;
}

/* ---- connecting ---- */

static void connect_now(struct mfl_follow *f);

static void on_again(uv_timer_t *timer)
{
        connect_now(timer->data);
}

static void on_pulse(uv_timer_t *timer)
{
        struct mfl_follow *f = timer->data;
        const uint64_t now = uv_now(f->loop);
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Ping ping = MFL__PING__INIT;
        if (now - f->stream.heard_ms > (f->welcomed ? f->dead_ms : GREET_MS)) {
                lose(f, "the server is silent");
                return;
        }
        if (f->welcomed && f->tells && now - f->told_ms >= TELL_MS) {
                tell_served(f); /* which is a sign of life, too */
                return;
        }
        if (!f->welcomed || now - f->stream.sent_ms < f->heartbeat_ms)
                return;
        e.body_case = MFL__ENVELOPE__BODY_PING;
        e.ping = &ping;
        send_to(f, &e);
}

/* The other servers of a list are asked at once. */
static void try_later(struct mfl_follow *f)
{
        const bool again = f->servers.n && mfl_servers_next(&f->servers, f->leader);
        f->leader[0] = '\0';
        uv_timer_start(&f->timer, on_again, again ? 0 : f->pause_ms, 0);
        if (again)
                return;
        f->pause_ms = MFL_MIN(f->pause_ms * 2, PAUSE_MAX_MS);
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_follow *f = stream->owner;
        f->open = f->welcomed = f->connected = false;
        f->newest = 0;
        drop_pull(f);
        uv_timer_stop(&f->timer);
        if (f->closing)
                return;
        if (!f->said[0])
                say(f, reason);
        try_later(f);
}

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_follow *f = stream->owner;
        if (status) {
                if (!f->closing)
                        say(f, text);
                return;
        }
        uv_timer_start(&f->timer, on_pulse, PULSE_MS, PULSE_MS);
        greet(f);
}

static const struct mfl_stream_ops ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

/* Certificates are read again for each attempt. */
static int add_tls(struct mfl_follow *f, struct mfl_error *err)
{
        struct mfl_tls_context *context;
        if (!f->config.tls.ca || !*f->config.tls.ca)
                return 0;
        int r = mfl_tls_context_new(&f->config.tls, false, &context, err);
        if (r)
                return r;
        r = mfl_stream_tls(&f->stream, context, err);
        mfl_tls_context_unref(context);
        return r;
}

static void connect_now(struct mfl_follow *f)
{
        struct mfl_error err = {{0}};
        int r = f->servers.n ? 0 : mfl_servers_init(&f->servers, f->config.server, &err);
        if (!r)
                r = mfl_stream_init(&f->stream, f->loop, &ops, f, &err);
        if (r) {
                say(f, err.text);
                try_later(f);
                return;
        }
        f->open = true;
        r = add_tls(f, &err);
        if (!r)
                r = mfl_stream_connect(&f->stream, mfl_servers_current(&f->servers), &err);
        if (r)
                lose(f, err.text);
}

static void look_at_origin(struct mfl_follow *f)
{
        char from[MFL_SERVERS_BYTES];
        f->inherited = mfl_origin_differs(f->config.path, f->config.server, from, sizeof from);
        if (f->inherited)
                mfl_log(MFL_LOG_WARN,
                        "%s: the last round of %s came from %s; it is served until %s has answered",
                        f->config.name, followed(f), *from ? from : "a server that is not noted",
                        f->config.server);
}

void mfl_follow_start(struct mfl_follow *follow, uv_loop_t *loop, struct mfl_worker *worker,
        const struct mfl_follow_config *config)
{
        *follow = (struct mfl_follow){
                .config = *config, .loop = loop, .worker = worker, .pause_ms = PAUSE_FIRST_MS};
        uv_timer_init(loop, &follow->timer);
        follow->timer.data = follow;
        look_at_origin(follow);
        connect_now(follow);
}

static void on_timer_closed(uv_handle_t *handle)
{
}

void mfl_follow_close(struct mfl_follow *follow)
{
        if (!follow->loop || follow->closing)
                return;
        follow->closing = true;
        uv_close((uv_handle_t *)&follow->timer, on_timer_closed);
        if (follow->open)
                mfl_stream_close(&follow->stream, NULL, false);
}
