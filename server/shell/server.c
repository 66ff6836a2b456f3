/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the rooms, and opens, runs and closes them:
 *
 *   - open: state directory, workers, unfinished jobs, then the listener;
 *   - run: until SIGTERM, SIGINT, the end of stdin where asked, or something fatal (memory, database);
 *   - close: Bye to all, workers finish what they run, state directory closed.
 */
#include "server/shell/server.h"
#include "server/strategy/plugin.h"

#include <stdio.h>
#include <sys/random.h>

#include "common/base/log.h"
#include "server/daemons/partition_take.h"
#include "server/session/admission.h"
#include "server/move/move.h"
#include "server/shell/listen.h"
#include "server/shell/peers.h"
#include "server/shell/service.h"
#include "server/shell/standby.h"
#include "server/shell/tap.h"
#include "server/transfer/params_down.h"

#define FLUSH_EVERY_MS 200
#define MEASURE_MS 60000 /* for sites' statistics */
#define FLUSHES_PER_SECOND (1000 / FLUSH_EVERY_MS)

/* ---- the core's actions ---- */

static void before_event(void *user, const struct mfl_core_event *event)
{
        mfl_tap_event(user, event);
}

static void trace(struct mfl_server *server, const struct mfl_core_action *action)
{
        uint64_t seq;
        mfl_log_job(action->job[0] ? MFL_LOG_DEBUG : MFL_LOG_INFO, action->job, "%s%s%s", action->job,
                action->job[0] ? ": " : "", action->reason);
        mfl_store_log(server->store, action->job, action->reason, &seq);
        mfl_admin_log(&server->admin, action->job, seq, mfl_unix_ms(), action->reason);
}

static void close_session(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_session *session = mfl_session_find(&server->sessions, action->conn);
        if (session)
                mfl_stream_close(&session->stream, action->reason, action->retry);
}

static void accuse(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_server_job *job = mfl_server_job_find(&server->jobs, action->job);
        mfl_gate_accuse(&server->gate, action);
        if (job)
                mfl_job_partition_distrust(job, action->accused);
}

static void carry_out(void *user, const struct mfl_core_action *action)
{
        struct mfl_server *server = user;
        struct mfl_server_job *job;
        switch (action->kind) {
        case MFL_ACT_SEND:
                mfl_daemons_send(&server->daemons, action->conn, &action->msg);
                break;
        case MFL_ACT_CLOSE:
                close_session(server, action);
                break;
        case MFL_ACT_TRACE:
                trace(server, action);
                break;
        case MFL_ACT_ACCUSE:
                accuse(server, action);
                break;
        default:
                job = mfl_server_job_find(&server->jobs, action->job);
                if (job)
                        mfl_server_job_act(job, action);
        }
        mfl_tap_action(server, action);
}

static const struct mfl_loop_ops loop_ops = {.before = before_event, .carry_out = carry_out};

/* ---- what jobs tell ---- */

static void job_sends(void *user, uint32_t conn, const struct mfl_msg *msg)
{
        struct mfl_server *server = user;
        mfl_daemons_send(&server->daemons, conn, msg);
}

static const void *job_takes_inside(
        void *user, uint32_t conn, uint64_t task, uint32_t update, size_t *ret_bytes)
{
        struct mfl_server *server = user;
        return mfl_daemons_inside(&server->daemons, conn, task, update, ret_bytes);
}

static void job_corrected(void *user, struct mfl_server_job *job, const struct mfl_correction_ask *ask,
        struct mfl_params *correction)
{
        struct mfl_server *server = user;
        mfl_daemons_corrected(&server->daemons, job, ask, correction);
}

static void job_committed(void *user, struct mfl_server_job *job)
{
        struct mfl_server *server = user;
        mfl_admin_round(&server->admin, job);
}

static void job_ended(void *user, struct mfl_server_job *job)
{
        struct mfl_server *server = user;
        mfl_daemons_job_over(&server->daemons, job->id);
}

/* ---- jobs that measure ---- */

struct measuring {
        struct mfl_server *server;
        char job[MFL_JOB_ID_BYTES];
};

static void on_measured(void *user, const Mfl__InquiryReport *report, const struct mfl_stats *stats)
{
        struct measuring *measuring = user;
        struct mfl_server_job *job = mfl_server_job_find(&measuring->server->jobs, measuring->job);
        uint32_t answered = 0, silent = 0;
        char told[MFL_REASON_BYTES] = "";
        for (size_t i = 0; i < report->n_sites; i++) {
                const Mfl__InquirySite *site = report->sites[i];
                answered += site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
                /* A site that could not now may well train: only one that refuses is left out. */
                bool failed = site->status == MFL__INQUIRY_STATUS__INQUIRY_FAILED;
                silent += failed || site->status == MFL__INQUIRY_STATUS__INQUIRY_NOT_ASKED;
                if (*site->reason && !*told)
                        mfl_snprintf(told, sizeof told, "mean and deviation %s site %.60s%s: %.300s",
                                failed ? "wait for" : "leave", site->site, failed ? "" : " out",
                                site->reason);
        }
        if (job)
                mfl_server_job_measured(job, stats, answered, silent, told);
        free(measuring);
}

static bool job_measures(void *user, struct mfl_server_job *job, uint32_t n_sites)
{
        struct mfl_server *server = user;
        const struct mfl_inquiry_question question = {.kind = MFL__INQUIRY_KIND__INQUIRY_STATS,
                .data = job->spec->data.name,
                .at = "",
                .who = job->owner,
                .model = "",
                .job = job->id,
                .within_ms = MEASURE_MS};
        struct mfl_error err;
        if (mfl_inquiry_sites(&server->inquiries, job->spec->data.name) < n_sites)
                return false;
        struct measuring *measuring = mfl_calloc(1, sizeof *measuring);
        if (!measuring)
                return false;
        measuring->server = server;
        mfl_strcpy(measuring->job, sizeof measuring->job, job->id);
        if (!mfl_inquiry_start(&server->inquiries, &question, on_measured, measuring, &err))
                return true;
        free(measuring);
        return false;
}

static const struct mfl_jobs_ops jobs_ops = {
        .measure = job_measures,
        .send = job_sends,
        .inside = job_takes_inside,
        .corrected = job_corrected,
        .committed = job_committed,
        .ended = job_ended,
};

/* ---- a few times a second ---- */

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
        struct mfl_server *server = op->server;
        if (op->status < 0)
                mfl_loop_fatal(&server->loop, op->status, &op->err);
        else if (!work->cancelled)
                mfl_disk_note(&server->observed.disk, MFL_DISK_LOG, !op->status, op->err.text,
                        mfl_loop_now(&server->loop));
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
        if (mfl_worker_submit(&server->loop.disk, &op->work))
                free(op);
}

static void on_flush(uv_timer_t *timer)
{
        struct mfl_server *server = timer->data;
        mfl_observed_beat(&server->observed, uv_hrtime(), FLUSH_EVERY_MS);
        mfl_pages_beat(&server->pages);
        mfl_admin_beat(&server->admin);
        mfl_sessions_beat(&server->sessions);
        mfl_daemons_beat(&server->daemons);
        mfl_inquiries_beat(&server->inquiries);
        for (struct mfl_server_job *job = server->jobs.first; job; job = job->next)
                mfl_server_job_measure_beat(job);
        mfl_carriers_beat(&server->carriers);
        if (++server->n_flushes % FLUSHES_PER_SECOND)
                return;
        flush_store(server);
        for (struct mfl_server_job *job = server->jobs.first; job; job = job->next)
                mfl_server_job_retry_state(job);
        mfl_admin_retain(&server->admin);
}

/* ---- open ---- */

static int open_job(struct mfl_server *server, const char *id, struct mfl_error *err)
{
        struct mfl_store_job row;
        struct mfl_server_job *job;
        int r = mfl_store_job_get(server->store, id, &row, err);
        if (r)
                return r;
        r = mfl_server_job_new(&server->jobs, &row, &job, err);
        if (r == MFL_INVALID) { /* of a release whose job files had other rules: no reason not to start */
                struct mfl_error why = *err;
                mfl_log(MFL_LOG_ERROR, "%s is kept as it is: this release can't read its job file: %s", id,
                        why.text);
                r = mfl_server_job_new_unread(&server->jobs, &row, why.text, &job, err);
        }
        mfl_store_job_deinit(&row);
        if (r || mfl_server_job_has_ended(job))
                return r;
        r = mfl_server_job_start(job, err);
        if (!r)
                mfl_log_job(MFL_LOG_INFO, job->id, "%s (%s) goes on after round %u of %u", job->id,
                        job->spec->name, job->committed, job->spec->rounds);
        return r;
}

static int open_jobs(struct mfl_server *server, struct mfl_error *err)
{
        struct mfl_store_jobs rows;
        int r = mfl_store_move_settle(server->store, err);
        if (!r)
                r = mfl_store_job_list(server->store, false, &rows, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < rows.n && !r; i++)
                r = open_job(server, rows.v[i].id, err);
        mfl_store_jobs_deinit(&rows);
        if (!r)
                r = mfl_store_move_last(server->store, server->jobs.moved_to, err);
        return r ? r : mfl_admin_open_registry(&server->admin, err);
}

static void on_signal(uv_signal_t *signal, int number)
{
        struct mfl_server *server = signal->data;
        mfl_log(MFL_LOG_INFO, "%s: stopping; unfinished jobs go on at the next start",
                number == SIGTERM ? "SIGTERM" : "SIGINT");
        mfl_loop_stop(&server->loop);
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
                mfl_loop_stop(&server->loop);
}

static int open_stdin(struct mfl_server *server, struct mfl_error *err)
{
        uv_pipe_init(&server->loop.uv, &server->stdin_pipe, 0);
        server->stdin_pipe.data = server;
        int r = uv_pipe_open(&server->stdin_pipe, 0);
        if (!r)
                r = uv_read_start((uv_stream_t *)&server->stdin_pipe, on_stdin_alloc, on_stdin);
        return r ? mfl_fail(err, MFL_INVALID, "--exit-with-stdin: standard input must be a pipe: %s",
                           uv_strerror(r))
                 : 0;
}

/* ---- relays below ---- */

static void relay_asks(void *user, struct mfl_session *session, const Mfl__ParamsGet *get)
{
        mfl_daemons_params(session, get);
}

static void relay_gone(void *user, struct mfl_session *session)
{
        mfl_transfer_stop(session);
}

static const struct mfl_carriers_ops carriers_ops = {.params = relay_asks, .closed = relay_gone};

/* core NULL: of a relay. */
static int open_loop(struct mfl_server *server, struct mfl_core *core, struct mfl_error *err)
{
        const struct mfl_server_config *config = &server->config;
        int r = mfl_loop_open(&server->loop, core, &loop_ops, server, err);
        if (r)
                return r;
        uv_loop_t *uv = &server->loop.uv;
        uv_timer_init(uv, &server->flush);
        uv_signal_init(uv, &server->sigterm);
        uv_signal_init(uv, &server->sigint);
        mfl_service_open(server);
        server->flush.data = server->sigterm.data = server->sigint.data = server;
        uv_signal_start(&server->sigterm, on_signal, SIGTERM);
        uv_signal_start(&server->sigint, on_signal, SIGINT);
        mfl_standby_watch(server);
        if (core)
                uv_timer_start(&server->flush, on_flush, FLUSH_EVERY_MS, FLUSH_EVERY_MS);
        return config->exit_with_stdin ? open_stdin(server, err) : 0;
}

static int open_core(struct mfl_server *server, struct mfl_error *err)
{
        const struct mfl_server_config *config = &server->config;
        struct mfl_core *core;
        struct mfl_core_options options = {
                .boot = mfl_store_boot(server->store),
                .heartbeat_ms = (uint32_t)config->heartbeat_ms,
                .dead_ms = (uint32_t)config->dead_ms,
                .reconnect_grace_ms = (uint32_t)config->reconnect_grace_ms,
                .upload_stall_ms = (uint32_t)config->upload_stall_ms,
        };
        if (getrandom(&options.server_instance, sizeof options.server_instance, 0) < 0 ||
                getrandom(options.secret, sizeof options.secret, 0) != sizeof options.secret)
                return mfl_fail_errno(err, "getrandom");
        int r = mfl_core_new(&options, &core, err);
        if (r)
                return r;
        server->carriers.instance = options.server_instance;
        return open_loop(server, core, err);
}

/* Who sees what: each room gets what is below it. */
static void connect_rooms(struct mfl_server *server)
{
        struct mfl_loop *loop = &server->loop;
        server->jobs = (struct mfl_jobs){.loop = loop,
                .store = server->store,
                .budget = &server->budget,
                .disk = &server->observed.disk,
                .slots = server->config.slots,
                .allow_simulation = server->config.allow_simulation,
                .plugins = server->plugins,
                .limits = &server->config.privacy_limits,
                .tls = server->config.tls_ca[0] != 0,
                .ops = &jobs_ops,
                .user = server};
        server->book = (struct mfl_book){.loop = loop, .store = server->store};
        server->gate = (struct mfl_gate){.sessions = &server->sessions, .loop = loop, .book = &server->book};
        server->inquiries =
                (struct mfl_inquiries){.loop = loop, .store = server->store, .sessions = &server->sessions};
        server->daemons = (struct mfl_daemons){.loop = loop,
                .sessions = &server->sessions,
                .jobs = &server->jobs,
                .gate = &server->gate,
                .inquiries = &server->inquiries,
                .timeline = server->observed.timeline};
        server->admin = (struct mfl_admin){.loop = loop,
                .store = server->store,
                .budget = &server->budget,
                .jobs = &server->jobs,
                .sessions = &server->sessions,
                .gate = &server->gate,
                .book = &server->book,
                .inquiries = &server->inquiries,
                .logins = &server->logins,
                .retention = {server->config.keep_ended_ms, server->config.keep_ended_max},
                .moves_max = server->config.moves_max};
        server->pages = (struct mfl_pages){.loop = loop,
                .store = server->store,
                .config = &server->config,
                .jobs = &server->jobs,
                .sessions = &server->sessions,
                .gate = &server->gate,
                .logins = &server->logins,
                .budget = &server->budget,
                .observed = &server->observed};
        server->carriers = (struct mfl_carriers){.loop = loop,
                .sessions = &server->sessions,
                .heartbeat_ms = (uint32_t)server->config.heartbeat_ms,
                .dead_ms = (uint32_t)server->config.dead_ms,
                .instance = server->carriers.instance,
                .name = "",
                .ops = &carriers_ops,
                .user = server};
        mfl_daemons_open(&server->daemons);
        mfl_carriers_open(&server->carriers);
        mfl_peers_open(server);
        mfl_admin_open(&server->admin);
}

static int open_memory(struct mfl_server *server, struct mfl_error *err)
{
        uint64_t machine_bytes, limit = server->config.memory_max_bytes;
        int r = mfl_memory_total(&machine_bytes, err);
        if (!r)
                mfl_budget_init(&server->budget, limit ? limit : machine_bytes / 10 * 8);
        return r;
}

static int open_state(struct mfl_server *server, struct mfl_error *err)
{
        const char *warning, *http = server->config.http;
        struct mfl_cluster *cluster = server->cluster;
        int r = mfl_store_open_in(
                server->config.state_dir, cluster ? mfl_cluster_store(cluster) : NULL, &server->store, err);
        if (r)
                return r;
        for (uint32_t i = 0; (warning = mfl_store_warning(server->store, i)); i++)
                mfl_log(MFL_LOG_WARN, "%s", warning);
        return mfl_observed_open(&server->observed, *http && strcmp(http, "off"), mfl_unix_ms(), err);
}

/* A relay has sessions and a loop, and neither core nor state. */
static int open_relay(struct mfl_server *server, struct mfl_error *err)
{
        int r = open_loop(server, NULL, err);
        if (!r)
                r = mfl_relay_open(&server->loop, &server->sessions, &server->config, &server->budget,
                        &server->relay, err);
        if (!r)
                r = mfl_server_listen(server, err);
        if (!r)
                mfl_log(MFL_LOG_INFO, "relay %s of %s: listening on %s%s, %.1f GiB for params and sums",
                        mfl_relay_name(server->relay), server->config.upstream, server->address,
                        mfl_admission_has_tls(&server->sessions) ? " with TLS" : "",
                        (double)server->budget.limit_bytes / (1u << 30));
        return r;
}

static int open_standby(struct mfl_server *server, struct mfl_error *err)
{
        int r = open_loop(server, NULL, err);
        if (r)
                return r;
        mfl_standby_open(server);
        r = mfl_server_listen(server, err);
        if (!r)
                mfl_log(MFL_LOG_INFO, "server %s of a cluster: listening on %s%s, following",
                        server->config.cluster.name, server->address,
                        mfl_admission_has_tls(&server->sessions) ? " with TLS" : "");
        return r;
}

/* A relay, or a server that does not lead. */
static int open_without_state(struct mfl_server *server, struct mfl_error *err)
{
        return server->standby ? open_standby(server, err) : open_relay(server, err);
}

static void take_role(struct mfl_server *server, struct mfl_cluster *cluster)
{
        struct mfl_cluster_view view = {.role = MFL_CLUSTER_LEADS};
        server->cluster = cluster;
        if (cluster)
                mfl_cluster_look(cluster, &view);
        server->standby = view.role != MFL_CLUSTER_LEADS;
        server->sessions.term = view.term;
}

int mfl_server_open(const struct mfl_server_config *config, struct mfl_cluster *cluster,
        struct mfl_server **ret_server, struct mfl_error *err)
{
        struct mfl_server *server = mfl_calloc(1, sizeof *server);
        if (!server)
                return mfl_fail_memory(err, sizeof *server, "the server");
        server->config = *config;
        take_role(server, cluster);
        int r = open_memory(server, err);
        if (!r)
                r = mfl_plugins_open(config->plugins, &server->plugins, err);
        if (!r)
                r = mfl_sessions_open(&server->sessions, &server->loop, &server->config, err);
        if (!r && (*config->upstream || server->standby)) {
                r = open_without_state(server, err);
                if (!r)
                        *ret_server = server;
                return r;
        }
        if (!r)
                r = open_state(server, err);
        if (!r)
                r = open_core(server, err);
        if (!r && cluster)
                r = mfl_loop_open_copies(&server->loop, err);
        if (r)
                return r;
        connect_rooms(server);
        r = mfl_pages_open(&server->pages, err); /* before the jobs, so that it can say that they load */
        if (!r)
                r = mfl_gate_open(&server->gate, server->store, err);
        if (!r)
                r = open_jobs(server, err);
        if (!r)
                r = mfl_server_listen(server, err);
        if (r)
                return r;
        mfl_log(MFL_LOG_INFO, "listening on %s%s, state in %s, %.1f GiB for jobs", server->address,
                mfl_admission_has_tls(&server->sessions) ? " with TLS" : "", config->state_dir,
                (double)server->budget.limit_bytes / (1u << 30));
        mfl_pages_ready(&server->pages);
        *ret_server = server;
        return 0;
}

const char *mfl_server_address(const struct mfl_server *server)
{
        return server->address;
}

int mfl_server_run(struct mfl_server *server, struct mfl_error *err)
{
        int r = mfl_loop_run(&server->loop, err);
        const char *over = server->relay ? mfl_relay_over(server->relay) : NULL;
        return r || !over ? r : mfl_fail(err, MFL_INVALID, "upstream %s: %s", server->config.upstream, over);
}

/* ---- close ---- */

static void close_handles(struct mfl_server *server)
{
        mfl_standby_unwatch(server);
        uv_handle_t *handles[] = {(uv_handle_t *)&server->sighup, (uv_handle_t *)&server->status,
                (uv_handle_t *)&server->watchdog, (uv_handle_t *)&server->flush,
                (uv_handle_t *)&server->sigterm, (uv_handle_t *)&server->sigint,
                (uv_handle_t *)&server->stdin_pipe};
        size_t n = MFL_ARRAY_SIZE(handles) - !server->config.exit_with_stdin;
        for (size_t i = 0; i < n; i++)
                uv_close(handles[i], NULL);
        for (uint32_t i = 0; i < server->n_listeners; i++)
                uv_close((uv_handle_t *)&server->listeners[i], NULL);
}

void mfl_server_close(struct mfl_server *server)
{
        if (!server->turned)
                mfl_service_stopping();
        if (server->relay)
                mfl_relay_end(server->relay);
        else if (!server->standby)
                mfl_pages_close(&server->pages);
        mfl_loop_begin_close(&server->loop);
        mfl_sessions_end(&server->sessions,
                server->turned ? "the cluster's leader changes" : "the server is stopping");
        close_handles(server);
        mfl_loop_drain(&server->loop); /* until the last stream and worker is closed */
        if (server->relay)
                mfl_relay_close(server->relay);
        mfl_inquiries_close(&server->inquiries);
        mfl_jobs_close(&server->jobs);
        mfl_sessions_close(&server->sessions);
        mfl_observed_close(&server->observed);
        mfl_gate_close(&server->gate);
        mfl_store_close(server->store);
        mfl_plugins_close(server->plugins);
        mfl_loop_close(&server->loop);
        free(server);
}
