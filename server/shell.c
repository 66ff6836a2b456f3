/* SPDX-License-Identifier: Apache-2.0 */
/* The loop around the core: feeds it events in order and carries out its actions in order.
 *
 *   - open: state directory, workers, unfinished jobs, then the listener;
 *   - run: until SIGTERM, SIGINT, the end of stdin where asked, or something fatal (memory, database);
 *   - close: Bye to all, workers finish what they run, state directory closed.
 */
#include <netdb.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/time.h>

#include "common/log.h"
#include "common/systemd.h"
#include "server/pages.h"
#include "server/server.h"

#define WORKER_QUEUE_MAX 65536
#define FLUSH_EVERY_MS 200

uint64_t mfl_unix_ms(void)
{
        struct timeval tv;
        gettimeofday(&tv, NULL);
        return (uint64_t)tv.tv_sec * 1000u + (uint64_t)tv.tv_usec / 1000u;
}

uint64_t mfl_server_now(struct mfl_server *server)
{
        return uv_now(&server->loop);
}

void mfl_server_fatal(struct mfl_server *server, int code, const struct mfl_error *err)
{
        if (server->fatal)
                return;
        server->fatal = code;
        server->fatal_error = *err;
        uv_stop(&server->loop);
}

/* ---- events and actions ---- */

struct mfl_event_node {
        struct mfl_core_event event;
        struct mfl_event_node *next;
};

static void queue_event(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_error err;
        mfl_assert(event->kind != MFL_EV_MESSAGE && event->kind != MFL_EV_DAEMON_UP &&
                   event->kind != MFL_EV_REFUSED);
        struct mfl_event_node *node = mfl_malloc(sizeof *node);
        if (!node) {
                mfl_server_fatal(server, mfl_fail_memory(&err, sizeof *node, "an event"), &err);
                return;
        }
        *node = (struct mfl_event_node){.event = *event};
        if (server->event_last)
                server->event_last->next = node;
        else
                server->event_first = node;
        server->event_last = node;
}

static void send_msg(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_session *session = mfl_session_find(server, action->conn);
        struct mfl_error err;
        const char *text = NULL;
        if (!session)
                return;
        if (action->msg.kind == MFL_MSG_JOB_SPEC) {
                struct mfl_server_job *job = mfl_server_job_find(server, action->msg.job);
                if (!job)
                        return;
                text = job->text;
        }
        const struct mfl_msg *msg = &action->msg;
        struct mfl_msg welcome;
        if (msg->kind == MFL_MSG_WELCOME) { /* versions are the shell's business */
                welcome = *msg;
                welcome.welcome.protocol = session->protocol;
                msg = &welcome;
        }
        size_t before = session->stream.unread_bytes;
        int r = mfl_stream_send_msg(&session->stream, msg, text, &err);
        if (r < 0)
                mfl_server_fatal(server, r, &err);
        mfl_session_queued(session, before);
}

static void trace(struct mfl_server *server, const struct mfl_core_action *action)
{
        uint64_t seq;
        mfl_log_job(action->job[0] ? MFL_LOG_DEBUG : MFL_LOG_INFO, action->job, "%s%s%s", action->job,
                action->job[0] ? ": " : "", action->reason);
        mfl_store_log(server->store, action->job, action->reason, &seq);
        mfl_watch_log(server, action->job, seq, mfl_unix_ms(), action->reason);
}

static void act_on_job(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_server_job *job = mfl_server_job_find(server, action->job);
        if (!job)
                return;
        job->dirty = true;
        switch (action->kind) {
        case MFL_ACT_JOB_PREPARE:
                mfl_server_job_prepare(job, action);
                break;
        case MFL_ACT_JOB_DATA:
                mfl_server_job_set_data(job, action);
                break;
        case MFL_ACT_JOB_STATE:
                mfl_server_job_set_state(job, action);
                break;
        case MFL_ACT_JOB_RELEASE:
                mfl_server_job_release(job);
                break;
        case MFL_ACT_ROUND_OPEN:
                mfl_server_job_round_open(job, action->round);
                break;
        case MFL_ACT_SLOT_OPEN:
                mfl_server_job_slot_open(job, action);
                break;
        case MFL_ACT_GRANT:
                mfl_server_job_grant(job, action);
                break;
        case MFL_ACT_SLOT_ADD:
                mfl_server_job_slot_add(job, action);
                break;
        case MFL_ACT_SLOT_FREE:
                mfl_server_job_slot_free(job, action->slot.slot);
                break;
        case MFL_ACT_APPLY:
                mfl_server_job_apply(job, action);
                break;
        case MFL_ACT_CHECKPOINT:
                mfl_server_job_checkpoint(job, action);
                break;
        case MFL_ACT_COMMIT:
                mfl_server_job_commit(job, action);
                break;
        case MFL_ACT_COST:
                mfl_server_job_cost(job, action);
                break;
        default:
                mfl_assert(!"an action without a job's part");
        }
}

static void carry_out(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_session *session;
        switch (action->kind) {
        case MFL_ACT_SEND:
                send_msg(server, action);
                break;
        case MFL_ACT_CLOSE:
                session = mfl_session_find(server, action->conn);
                if (session)
                        mfl_stream_close(&session->stream, action->reason, action->retry);
                break;
        case MFL_ACT_TRACE:
                trace(server, action);
                break;
        default:
                act_on_job(server, action);
        }
        mfl_observe_action(server, action);
}

/* An event that waited its turn may be about a slot that was meanwhile given to another upload. */
static bool is_stale(struct mfl_server *server, const struct mfl_core_event *event)
{
        if (event->kind != MFL_EV_UPLOAD_COMPLETE)
                return false;
        struct mfl_server_job *job = mfl_server_job_find(server, event->job);
        return !job || !job->runtime || !mfl_slot_complete(job->runtime, event->slot);
}

static void step(struct mfl_server *server, struct mfl_core_event *event)
{
        if (is_stale(server, event))
                return;
        event->now_ms = mfl_server_now(server);
        mfl_observe_event(server, event);
        int r = mfl_core_step(server->core, event, &server->actions);
        if (r < 0) {
                struct mfl_error err;
                mfl_fail(&err, r, "out of memory in the core");
                mfl_server_fatal(server, r, &err);
                return;
        }
        for (uint32_t i = 0; i < server->actions.n && !server->fatal; i++)
                carry_out(server, &server->actions.v[i]);
        mfl_core_actions_clear(&server->actions);
}

static void on_tick(uv_timer_t *timer);

static void arm_tick(struct mfl_server *server)
{
        uint64_t due = mfl_core_next_ms(server->core);
        uint64_t now = mfl_server_now(server);
        if (due == server->tick_due_ms)
                return;
        server->tick_due_ms = due;
        if (due == UINT64_MAX)
                uv_timer_stop(&server->tick);
        else
                uv_timer_start(&server->tick, on_tick, due > now ? due - now : 0, 0);
}

void mfl_server_feed(struct mfl_server *server, struct mfl_core_event *event)
{
        if (server->fatal || server->stopping)
                return;
        if (server->stepping) {
                queue_event(server, event);
                return;
        }
        server->stepping = true;
        step(server, event);
        while (server->event_first && !server->fatal) {
                struct mfl_event_node *node = server->event_first;
                server->event_first = node->next;
                if (!server->event_first)
                        server->event_last = NULL;
                step(server, &node->event);
                free(node);
        }
        server->stepping = false;
        if (!server->fatal)
                arm_tick(server);
}

static void on_tick(uv_timer_t *timer)
{
        struct mfl_server *server = timer->data;
        struct mfl_core_event event = {.kind = MFL_EV_TICK};
        server->tick_due_ms = 0;
        mfl_server_feed(server, &event);
}

struct flush_op {
        struct mfl_work work;
        struct mfl_server *server;
        int status;
        struct mfl_error err;
};

static void run_flush(struct mfl_work *work)
{
        struct flush_op *op = MFL_CONTAINER_OF(work, struct flush_op, work);
        op->status = mfl_store_flush(op->server->store, &op->err);
}

static void done_flush(struct mfl_work *work)
{
        struct flush_op *op = MFL_CONTAINER_OF(work, struct flush_op, work);
        if (op->status < 0)
                mfl_server_fatal(op->server, op->status, &op->err);
        else if (!work->cancelled)
                mfl_observe_disk(op->server, MFL_DISK_LOG, !op->status, op->err.text);
        free(op);
}

/* Log lines reach the database about once a second even when no round is committed. */
static void flush_store(struct mfl_server *server)
{
        struct flush_op *op = mfl_calloc(1, sizeof *op);
        if (!op)
                return;
        op->server = server;
        op->work.run = run_flush;
        op->work.done = done_flush;
        if (mfl_worker_submit(&server->disk, &op->work))
                free(op);
}

static void on_flush(uv_timer_t *timer)
{
        static uint32_t count;
        struct mfl_server *server = timer->data;
        mfl_observe_beat(server, FLUSH_EVERY_MS);
        mfl_pages_beat(server);
        mfl_watch_flush(server);
        mfl_operator_check_drains(server);
        mfl_session_reap(server);
        mfl_session_tell_chunks(server);
        for (struct mfl_server_job *job = server->jobs; job; job = job->next)
                mfl_server_job_retry_grants(job);
        if (++count % 5)
                return;
        flush_store(server);
        for (struct mfl_server_job *job = server->jobs; job; job = job->next)
                mfl_server_job_retry_state(job);
}

/* ---- open ---- */

int mfl_server_may_listen(
        struct mfl_server *server, const struct sockaddr *address, const char *text, struct mfl_error *err)
{
        if (server->tls || mfl_address_is_loopback(address))
                return 0;
        if (!server->config.insecure_listen)
                return mfl_fail(err, MFL_INVALID,
                        "listen: %s is not a loopback address, and no TLS is configured: whoever reaches the "
                        "port could submit jobs and read models; set tls_cert, tls_key and tls_ca, or listen "
                        "on 127.0.0.1 and tunnel, or say --insecure-listen on a network that you trust",
                        text);
        mfl_log(MFL_LOG_WARN, "listening on %s WITHOUT encryption or authentication, as ordered", text);
        return 0;
}

static int open_listener(struct mfl_server *server, struct mfl_error *err)
{
        uint32_t n_given;
        char host[256], port[32];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
        const char *listen = server->config.listen;
        int r = mfl_service_listen(server, &n_given, err);
        if (r || n_given)
                return r;
        r = mfl_address_parse(listen, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        r = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_INVALID, "listen: %s: %s", listen, gai_strerror(r));
        r = mfl_server_may_listen(server, info->ai_addr, listen, err);
        if (r) {
                freeaddrinfo(info);
                return r;
        }
        uv_tcp_t *listener = &server->listeners[server->n_listeners++];
        uv_tcp_init(&server->loop, listener);
        listener->data = server;
        r = uv_tcp_bind(listener, info->ai_addr, 0);
        freeaddrinfo(info);
        if (!r)
                r = uv_listen((uv_stream_t *)listener, MFL_LISTEN_BACKLOG, mfl_session_on_connection);
        if (r)
                return mfl_fail(err, -1, "listen on %s: %s", listen, uv_strerror(r));
        struct sockaddr_storage addr;
        int len = sizeof addr;
        uv_tcp_getsockname(listener, (struct sockaddr *)&addr, &len);
        int bound = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                                     : ((struct sockaddr_in *)&addr)->sin_port);
        snprintf(server->address, sizeof server->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
                bound);
        return 0;
}

static int open_jobs(struct mfl_server *server, struct mfl_error *err)
{
        struct mfl_store_jobs rows;
        int r = mfl_store_drained(server->store, &server->drained, err);
        if (!r)
                r = mfl_store_rules(server->store, &server->rules, err);
        if (r)
                return r;
        r = mfl_store_job_list(server->store, false, &rows, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < rows.n && !r; i++) {
                struct mfl_store_job row;
                struct mfl_server_job *job;
                r = mfl_store_job_get(server->store, rows.v[i].id, &row, err);
                if (r)
                        break;
                r = mfl_server_job_new(server, &row, &job, err);
                mfl_store_job_deinit(&row);
                if (r == MFL_INVALID) { /* of a release whose job files had other rules: no reason not to
                                           start */
                        mfl_log(MFL_LOG_ERROR,
                                "%s is left out, and kept as it is: this release can't read its job file: %s",
                                rows.v[i].id, err->text);
                        r = 0;
                        continue;
                }
                if (!r && (job->state == MFL_JOB_WAITING || job->state == MFL_JOB_RUNNING)) {
                        r = mfl_server_job_start(job, err);
                        if (!r)
                                mfl_log_job(MFL_LOG_INFO, job->id, "%s (%s) goes on after round %u of %u",
                                        job->id, job->spec->name, job->committed, job->spec->rounds);
                }
        }
        mfl_store_jobs_deinit(&rows);
        return r;
}

static void on_signal(uv_signal_t *signal, int number)
{
        struct mfl_server *server = signal->data;
        mfl_log(MFL_LOG_INFO, "%s: stopping; unfinished jobs go on at the next start",
                number == SIGTERM ? "SIGTERM" : "SIGINT");
        uv_stop(&server->loop);
}

static void on_stdin_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
        static char ignored[256];
        *buf = uv_buf_init(ignored, sizeof ignored);
}

static void on_stdin(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct mfl_server *server = stream->data;
        if (n < 0)
                uv_stop(&server->loop);
}

static int open_loop(struct mfl_server *server, struct mfl_error *err)
{
        int r = uv_loop_init(&server->loop);
        if (r)
                return mfl_fail(err, -1, "libuv: %s", uv_strerror(r));
        uv_timer_init(&server->loop, &server->tick);
        uv_timer_init(&server->loop, &server->flush);
        uv_signal_init(&server->loop, &server->sigterm);
        uv_signal_init(&server->loop, &server->sigint);
        mfl_service_open(server);
        server->tick.data = server->flush.data = server->sigterm.data = server->sigint.data = server;
        uv_signal_start(&server->sigterm, on_signal, SIGTERM);
        uv_signal_start(&server->sigint, on_signal, SIGINT);
        uv_timer_start(&server->flush, on_flush, FLUSH_EVERY_MS, FLUSH_EVERY_MS);
        if (server->config.exit_with_stdin) {
                uv_pipe_init(&server->loop, &server->stdin_pipe, 0);
                server->stdin_pipe.data = server;
                r = uv_pipe_open(&server->stdin_pipe, 0);
                if (!r)
                        r = uv_read_start((uv_stream_t *)&server->stdin_pipe, on_stdin_alloc, on_stdin);
                if (r)
                        return mfl_fail(err, MFL_INVALID,
                                "--exit-with-stdin: standard input must be a pipe: %s", uv_strerror(r));
        }
        r = mfl_worker_start(&server->compute, &server->loop, "mfl-sums", WORKER_QUEUE_MAX, err);
        if (!r)
                r = mfl_worker_start(&server->disk, &server->loop, "mfl-disk", WORKER_QUEUE_MAX, err);
        return r;
}

int mfl_server_open(
        const struct mfl_server_config *config, struct mfl_server **ret_server, struct mfl_error *err)
{
        struct mfl_server *server = mfl_calloc(1, sizeof *server);
        if (!server)
                return mfl_fail_memory(err, sizeof *server, "the server");
        server->config = *config;
        uint64_t machine_bytes, limit = config->memory_max_bytes;
        int r = mfl_memory_total(&machine_bytes, err);
        if (r)
                return r;
        if (!limit)
                limit = machine_bytes / 10 * 8;
        mfl_budget_init(&server->budget, limit);
        r = mfl_admission_load(server, err);
        if (r) {
                free(server);
                return r;
        }
        if (config->connect_rate) {
                r = mfl_rate_new(config->connect_rate, config->connect_burst, &server->rate, err);
                if (r)
                        return r;
        }
        r = mfl_store_open(config->state_dir, &server->store, err);
        if (r)
                return r; /* the process ends */
        struct mfl_core_options options = {
                .boot = mfl_store_boot(server->store),
                .heartbeat_ms = (uint32_t)config->heartbeat_ms,
                .dead_ms = (uint32_t)config->dead_ms,
                .reconnect_grace_ms = (uint32_t)config->reconnect_grace_ms,
                .upload_stall_ms = (uint32_t)config->upload_stall_ms,
        };
        if (getrandom(&options.server_instance, sizeof options.server_instance, 0) < 0)
                return mfl_fail_errno(err, "getrandom");
        r = mfl_core_new(&options, &server->core, err);
        if (!r)
                r = open_loop(server, err);
        if (!r)
                r = mfl_pages_open(server, err); /* before the jobs, so that it can tell that they load */
        if (!r)
                r = open_jobs(server, err);
        if (!r)
                r = open_listener(server, err);
        if (r)
                return r;
        mfl_log(MFL_LOG_INFO, "listening on %s%s, state in %s, %.1f GiB for jobs", server->address,
                server->tls ? " with TLS" : "", config->state_dir, (double)limit / (1u << 30));
        mfl_pages_ready(server);
        *ret_server = server;
        return 0;
}

const char *mfl_server_address(const struct mfl_server *server)
{
        return server->address;
}

int mfl_server_run(struct mfl_server *server, struct mfl_error *err)
{
        uv_run(&server->loop, UV_RUN_DEFAULT);
        if (server->fatal) {
                *err = server->fatal_error;
                return server->fatal;
        }
        return 0;
}

static void close_handle(uv_handle_t *handle, void *arg)
{
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

void mfl_server_close(struct mfl_server *server)
{
        struct mfl_server_job *job;
        mfl_systemd_notify("STOPPING=1");
        server->stopping = true;
        mfl_pages_close(server);
        for (struct mfl_session *s = server->sessions; s; s = s->next)
                mfl_stream_close(&s->stream, "the server is stopping", true);
        mfl_worker_close(&server->compute, NULL);
        mfl_worker_close(&server->disk, NULL);
        uv_timer_stop(&server->flush);
        for (uint32_t i = 0; i < server->n_listeners; i++)
                close_handle((uv_handle_t *)&server->listeners[i], NULL);
        close_handle((uv_handle_t *)&server->sighup, NULL);
        close_handle((uv_handle_t *)&server->status, NULL);
        close_handle((uv_handle_t *)&server->watchdog, NULL);
        close_handle((uv_handle_t *)&server->tick, NULL);
        close_handle((uv_handle_t *)&server->flush, NULL);
        close_handle((uv_handle_t *)&server->sigterm, NULL);
        close_handle((uv_handle_t *)&server->sigint, NULL);
        close_handle((uv_handle_t *)&server->sighup, NULL);
        if (server->config.exit_with_stdin)
                close_handle((uv_handle_t *)&server->stdin_pipe, NULL);
        uv_run(&server->loop, UV_RUN_DEFAULT); /* until the last stream and worker is closed */
        while ((job = server->jobs)) {
                mfl_runtime_close(job->runtime);
                job->runtime = NULL;
                mfl_server_job_free(job);
        }
        mfl_observe_close(server);
        mfl_core_free(server->core);
        mfl_core_actions_deinit(&server->actions);
        mfl_store_names_deinit(&server->drained);
        mfl_store_rules_deinit(&server->rules);
        mfl_store_close(server->store);
        mfl_tls_context_unref(server->tls);
        mfl_rate_free(server->rate);
        uv_loop_close(&server->loop);
        free(server);
}
