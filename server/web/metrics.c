/* SPDX-License-Identifier: Apache-2.0 */
/* The text of /metrics, by Prometheus' naming conventions. The number of series is bounded: of many jobs and
 * daemons some are left out, and how many is a metric, too. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "proto/version.h"
#include "server/views/daemon_view.h"
#include "server/web/contents.h"
#include "server/web/exposition.h"

#define COUNTER MFL_METRIC_COUNTER
#define GAUGE MFL_METRIC_GAUGE
#define HISTOGRAM MFL_METRIC_HISTOGRAM

static void one_u64(struct mfl_exposition *out, enum mfl_metric_type type, const char *name, const char *help,
        uint64_t value)
{
        mfl_exposition_family(out, type, name, help);
        mfl_exposition_u64(out, value, MFL_NO_LABELS);
}

static void one_double(struct mfl_exposition *out, enum mfl_metric_type type, const char *name,
        const char *help, double value)
{
        mfl_exposition_family(out, type, name, help);
        mfl_exposition_double(out, value, MFL_NO_LABELS);
}

static void one_histogram(struct mfl_exposition *out, const char *name, const char *help,
        const struct mfl_histogram *histogram, const struct mfl_bounds *bounds)
{
        mfl_exposition_family(out, HISTOGRAM, name, help);
        mfl_exposition_histogram(out, histogram, bounds, MFL_NO_LABELS);
}

/* ---- jobs ---- */

struct job_row {
        const struct mfl_server_job *job;
        bool in_core;
        struct mfl_core_job_view view;
        struct mfl_team_totals teams;
};

static const char *const job_states[] = {"unknown", "waiting", "running", "done", "failed", "stopped"};

static void put_job_counts(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        uint64_t count[MFL_JOB_STOPPED + 1] = {0}, slots, used;
        for (const struct mfl_server_job *job = pages->jobs->first; job; job = job->next)
                count[job->state]++;
        mfl_core_slots_count(pages->loop->core, &slots, &used);
        mfl_exposition_family(out, GAUGE, "mfl_jobs", "Jobs that the server knows, by state.");
        for (int s = MFL_JOB_WAITING; s <= MFL_JOB_STOPPED; s++)
                mfl_exposition_u64(out, count[s], MFL_LABELS("state", job_states[s]));
        mfl_exposition_family(
                out, COUNTER, "mfl_jobs_ended_total", "Jobs that ended since the start, by state.");
        for (int s = MFL_JOB_DONE; s <= MFL_JOB_STOPPED; s++)
                mfl_exposition_u64(out, pages->jobs->ended[s], MFL_LABELS("state", job_states[s]));
        one_u64(out, GAUGE, "mfl_slots", "Upload slots of all jobs in memory.", slots);
        one_u64(out, GAUGE, "mfl_slots_used", "Upload slots that hold an upload.", used);
}

typedef void put_job(struct mfl_exposition *out, const struct job_row *row, const char *const *labels);

static void put_info(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        const struct mfl_job *spec = row->job->spec;
        mfl_exposition_u64(out, 1,
                MFL_LABELS("job", labels[1], "name", spec->name, "data", spec->data.name, "model",
                        mfl_job_model_name(spec), "strategy", mfl_strategy_name(spec->aggregation.strategy)));
}

static void put_round(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->committed, labels);
}

static void put_planned(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->spec->rounds, labels);
}

static void put_done(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->in_core ? row->view.clients_done : 0, labels);
}

static void put_expected(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->in_core ? row->view.clients_total : 0, labels);
}

static void put_daemons(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->in_core ? row->view.daemons : 0, labels);
}

static void put_accuracy(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        if (row->job->observed.evaluated && !isnan(row->job->observed.accuracy))
                mfl_exposition_double(out, row->job->observed.accuracy, labels);
}

static void put_loss(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        if (row->job->observed.evaluated)
                mfl_exposition_double(out, row->job->observed.loss, labels);
}

static void put_seconds(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_histogram(out, &row->job->observed.round_seconds, &mfl_round_bounds, labels);
}

static void put_received(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->observed.bytes_up, labels);
}

static void put_sent(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->observed.bytes_down, labels);
}

static void put_clients(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->observed.clients, labels);
}

static void put_rejected(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->job->observed.clients_rejected, labels);
}

static void put_teams(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->teams.formed, labels);
}

static void put_team_ends(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        const struct mfl_team_totals *t = &row->teams;
        mfl_exposition_u64(
                out, t->broken - t->late - t->unreached, MFL_LABELS("job", labels[1], "reason", "broken"));
        mfl_exposition_u64(out, t->late, MFL_LABELS("job", labels[1], "reason", "late"));
        mfl_exposition_u64(out, t->unreached, MFL_LABELS("job", labels[1], "reason", "unreached"));
        mfl_exposition_u64(out, row->teams.taken, MFL_LABELS("job", labels[1], "reason", "taken"));
}

static void put_team_kept(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        mfl_exposition_u64(out, row->teams.times.kept, labels);
}

static void put_team_seconds(struct mfl_exposition *out, const struct job_row *row, const char *const *labels)
{
        const struct mfl_task_times *t = &row->teams.times;
        mfl_exposition_double(
                out, (double)t->compute_us / 1e6, MFL_LABELS("job", labels[1], "part", "compute"));
        mfl_exposition_double(
                out, (double)t->exchange_us / 1e6, MFL_LABELS("job", labels[1], "part", "exchange"));
        mfl_exposition_double(out, (double)t->apply_us / 1e6, MFL_LABELS("job", labels[1], "part", "apply"));
}

static const struct {
        enum mfl_metric_type type;
        const char *name, *help;
        put_job *put;
} job_families[] = {
        {GAUGE, "mfl_job_info", "A job's name, data set, model and strategy; always 1.", put_info},
        {GAUGE, "mfl_job_round", "Committed rounds.", put_round},
        {GAUGE, "mfl_job_rounds_planned", "Rounds that the job has in all.", put_planned},
        {GAUGE, "mfl_job_clients_done",
                "Clients counted or rejected in the current phase, or evaluated parts of the test split.",
                put_done},
        {GAUGE, "mfl_job_clients_expected", "Clients, or parts of the test split, of the current phase.",
                put_expected},
        {GAUGE, "mfl_job_daemons", "Daemons that work for the job.", put_daemons},
        {GAUGE, "mfl_job_accuracy_ratio",
                "Accuracy on the test split after the last evaluated round. Without noise, and so not "
                "private, also in jobs with privacy.",
                put_accuracy},
        {GAUGE, "mfl_job_loss",
                "Loss on the test split after the last evaluated round. Without noise, and so not private, "
                "also in jobs with privacy.",
                put_loss},
        {HISTOGRAM, "mfl_job_round_seconds", "Time from a round's opening to the order to commit it.",
                put_seconds},
        {COUNTER, "mfl_job_received_bytes_total", "Bytes of updates from daemons.", put_received},
        {COUNTER, "mfl_job_sent_bytes_total", "Bytes of params to daemons.", put_sent},
        {COUNTER, "mfl_job_clients_counted_total", "Clients in committed rounds.", put_clients},
        {COUNTER, "mfl_job_clients_rejected_total", "Clients whose training gave no usable update.",
                put_rejected},
        {COUNTER, "mfl_job_teams_total", "Teams of daemons that were formed to train one client.", put_teams},
        {COUNTER, "mfl_job_teams_ended_total",
                "Teams that ended without a result: a member's process or connection ended (broken), it was "
                "late, it "
                "could not be connected to (unreached), or the server took its task back (taken).",
                put_team_ends},
        {COUNTER, "mfl_job_team_kept_steps_total",
                "Steps that a lost team had taken, and that the next one did not take again.", put_team_kept},
        {COUNTER, "mfl_job_team_seconds_total",
                "Time of teams' leaders: computing, exchanging while nothing is computed, and applying.",
                put_team_seconds},
};

static bool is_shown(const struct mfl_server_job *job)
{
        return !mfl_server_job_has_ended(job) || mfl_unix_ms() - job->finished_unix_ms < MFL_METRICS_ENDED_MS;
}

/* The shown jobs, unfinished ones first, so that ended ones are left out first. */
static uint32_t choose_jobs(const struct mfl_pages *pages, struct job_row *rows, uint32_t *ret_left_out)
{
        uint32_t n = 0, left_out = 0;
        for (int ended = 0; ended < 2; ended++)
                for (const struct mfl_server_job *job = pages->jobs->first; job; job = job->next) {
                        if (mfl_server_job_has_ended(job) != ended || !is_shown(job))
                                continue;
                        if (n == MFL_METRICS_JOBS_MAX) {
                                left_out++;
                                continue;
                        }
                        rows[n].job = job;
                        rows[n].in_core = mfl_server_job_in_core(job) &&
                                          !mfl_core_job_view(pages->loop->core, job->id, &rows[n].view);
                        rows[n].teams = mfl_server_job_teams(job);
                        n++;
                }
        *ret_left_out = left_out;
        return n;
}

static void put_jobs(const struct mfl_pages *pages, struct mfl_exposition *out, uint32_t *ret_left_out)
{
        MFL_CLEANUP_FREE struct job_row *rows = mfl_calloc(MFL_METRICS_JOBS_MAX, sizeof *rows);
        if (!rows) {
                out->text->failed = true;
                return;
        }
        uint32_t n = choose_jobs(pages, rows, ret_left_out);
        for (size_t f = 0; f < MFL_ARRAY_SIZE(job_families); f++) {
                mfl_exposition_family(out, job_families[f].type, job_families[f].name, job_families[f].help);
                for (uint32_t i = 0; i < n; i++)
                        job_families[f].put(out, &rows[i], MFL_LABELS("job", rows[i].job->id));
        }
}

/* ---- daemons ---- */

static const char *const daemon_states[] = {
        "idle", "training", "helping", "evaluating", "uploading", "draining", "drained", "lost"};

static void put_daemon_counts(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        uint64_t count[MFL_ARRAY_SIZE(daemon_states)] = {0};
        uint32_t n = mfl_core_daemon_count(pages->loop->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(pages->loop->core, i, &view);
                for (size_t s = 0; s < MFL_ARRAY_SIZE(daemon_states); s++)
                        count[s] += !strcmp(view.state, daemon_states[s]);
        }
        mfl_exposition_family(out, GAUGE, "mfl_daemons", "Daemons that the server knows, by state.");
        for (size_t s = 0; s < MFL_ARRAY_SIZE(daemon_states); s++)
                mfl_exposition_u64(out, count[s], MFL_LABELS("state", daemon_states[s]));
        mfl_exposition_u64(out, mfl_gate_refused(pages->gate), MFL_LABELS("state", "refused"));
}

/* A value of a daemon; false: unknown. */
typedef bool get_daemon(const struct mfl_daemon_row *row, double *ret_value);

static bool get_up(const struct mfl_daemon_row *row, double *ret_value)
{
        *ret_value = row->view.conn != 0;
        return true;
}

static bool get_clients(const struct mfl_daemon_row *row, double *ret_value)
{
        *ret_value = row->view.clients_per_second;
        return true;
}

static bool get_samples(const struct mfl_daemon_row *row, double *ret_value)
{
        *ret_value = row->view.samples_per_second;
        return true;
}

static bool knows(const struct mfl_daemon_row *row, unsigned bit)
{
        return row->telemetry && (row->telemetry->known & bit);
}

static bool get_gpu(const struct mfl_daemon_row *row, double *ret_value)
{
        if (!knows(row, MFL_TELEMETRY_GPU))
                return false;
        *ret_value = row->telemetry->gpu_percent / 100.0;
        return true;
}

static bool get_memory_used(const struct mfl_daemon_row *row, double *ret_value)
{
        if (!knows(row, MFL_TELEMETRY_MEMORY_USED))
                return false;
        *ret_value = (double)row->telemetry->memory_used;
        return true;
}

static bool get_memory(const struct mfl_daemon_row *row, double *ret_value)
{
        if (!knows(row, MFL_TELEMETRY_MEMORY_TOTAL))
                return false;
        *ret_value = (double)row->telemetry->memory_total;
        return true;
}

static bool get_temperature(const struct mfl_daemon_row *row, double *ret_value)
{
        if (!knows(row, MFL_TELEMETRY_TEMPERATURE))
                return false;
        *ret_value = row->telemetry->temperature_c;
        return true;
}

static bool get_power(const struct mfl_daemon_row *row, double *ret_value)
{
        if (!knows(row, MFL_TELEMETRY_POWER))
                return false;
        *ret_value = row->telemetry->power_mw / 1000.0;
        return true;
}

static const struct {
        const char *name, *help;
        get_daemon *get;
} daemon_families[] = {
        {"mfl_daemon_up",
                "1 while the daemon is connected, 0 while it may still come back (reconnect_grace).", get_up},
        {"mfl_daemon_clients_per_second", "Clients trained per second in its last training task.",
                get_clients},
        {"mfl_daemon_samples_per_second", "Samples trained per second in its last training task.",
                get_samples},
        {"mfl_daemon_gpu_utilization_ratio", "Load of its GPU.", get_gpu},
        {"mfl_daemon_gpu_memory_used_bytes", "Used memory of its GPU, by all processes.", get_memory_used},
        {"mfl_daemon_gpu_memory_bytes", "Memory of its GPU.", get_memory},
        {"mfl_daemon_gpu_temperature_celsius", "Temperature of its GPU.", get_temperature},
        {"mfl_daemon_gpu_power_watts", "Power that its GPU draws.", get_power},
};

/* Since the daemon's process began; daemons of older releases don't send these. */
static void put_activity(struct mfl_exposition *out, const struct mfl_daemon_row *rows, uint32_t n)
{
        mfl_exposition_family(out, COUNTER, "mfl_daemon_activity_seconds_total",
                "Time of all its workers together, by activity.");
        for (uint32_t i = 0; i < n; i++)
                for (int s = 0; s < MFL_ACTIVITY_STATES && knows(&rows[i], MFL_TELEMETRY_ACTIVITY); s++)
                        mfl_exposition_double(out, (double)rows[i].telemetry->activity.total_us[s] / 1e6,
                                MFL_LABELS("daemon", rows[i].view.info->name, "state",
                                        mfl_activity_state_name(s)));
        mfl_exposition_family(
                out, COUNTER, "mfl_daemon_trained_samples_total", "Samples that it has trained.");
        for (uint32_t i = 0; i < n; i++)
                if (knows(&rows[i], MFL_TELEMETRY_ACTIVITY))
                        mfl_exposition_u64(out, rows[i].telemetry->activity.samples,
                                MFL_LABELS("daemon", rows[i].view.info->name));
}

static void put_daemon_info(struct mfl_exposition *out, const struct mfl_daemon_row *rows, uint32_t n)
{
        mfl_exposition_family(out, GAUGE, "mfl_daemon_info", "What a daemon says about itself; always 1.");
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_daemon_info *info = rows[i].view.info;
                mfl_exposition_u64(out, 1,
                        MFL_LABELS("daemon", info->name, "node",
                                *rows[i].view.node ? rows[i].view.node : info->node, "backend", info->backend,
                                "device", info->device, "software", info->software));
        }
        mfl_exposition_family(
                out, GAUGE, "mfl_daemon_state", "1 for the state that the daemon is in, 0 for the others.");
        for (uint32_t i = 0; i < n; i++)
                for (size_t s = 0; s < MFL_ARRAY_SIZE(daemon_states); s++)
                        mfl_exposition_u64(out, !strcmp(rows[i].view.state, daemon_states[s]),
                                MFL_LABELS("daemon", rows[i].view.info->name, "state", daemon_states[s]));
}

static void put_daemons_of(const struct mfl_pages *pages, struct mfl_exposition *out, uint32_t *ret_left_out)
{
        uint32_t n;
        MFL_CLEANUP_FREE struct mfl_daemon_row *rows =
                mfl_daemon_rows(pages->sessions, MFL_METRICS_DAEMONS_MAX, &n);
        if (!rows) {
                out->text->failed = true;
                return;
        }
        *ret_left_out = mfl_core_daemon_count(pages->loop->core) - n;
        put_daemon_info(out, rows, n);
        for (size_t f = 0; f < MFL_ARRAY_SIZE(daemon_families); f++) {
                mfl_exposition_family(out, GAUGE, daemon_families[f].name, daemon_families[f].help);
                for (uint32_t i = 0; i < n; i++) {
                        double value;
                        if (daemon_families[f].get(&rows[i], &value))
                                mfl_exposition_double(
                                        out, value, MFL_LABELS("daemon", rows[i].view.info->name));
                }
        }
        put_activity(out, rows, n);
}

/* ---- the server ---- */

static void put_connections(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        const struct mfl_session_counts *seen = &pages->sessions->counts;
        const uint64_t *refused = pages->gate->n_refused;
        uint64_t count[3] = {0}, in = seen->bytes_in, sent = seen->bytes_out;
        for (const struct mfl_session *s = pages->sessions->first; s; s = s->next) {
                in += s->stream.bytes_in;
                sent += s->stream.bytes_out;
                count[s->role == MFL__ROLE__ROLE_DAEMON ? 0 : s->role == MFL__ROLE__ROLE_OPERATOR ? 1 : 2]++;
        }
        mfl_exposition_family(out, GAUGE, "mfl_connections", "Open connections, by the role of the peer.");
        mfl_exposition_u64(out, count[0], MFL_LABELS("role", "daemon"));
        mfl_exposition_u64(out, count[1], MFL_LABELS("role", "operator"));
        mfl_exposition_u64(out, count[2], MFL_LABELS("role", "unknown"));
        one_u64(out, GAUGE, "mfl_connections_max", "The largest number of connections (connections_max).",
                pages->config->connections_max);
        one_u64(out, COUNTER, "mfl_connections_accepted_total", "Accepted connections.", seen->accepted);
        one_u64(out, COUNTER, "mfl_connections_refused_total",
                "Connections closed because connections_max was reached.", seen->over_limit);
        one_u64(out, COUNTER, "mfl_connections_ungreeted_total",
                "Connections that ended without a valid greeting.", seen->ungreeted);
        struct mfl_session *most;
        one_u64(out, GAUGE, "mfl_connections_unread_bytes", "Bytes of messages that peers have not read yet.",
                mfl_session_unread(pages->sessions, &most));
        one_u64(out, COUNTER, "mfl_connections_unread_total",
                "Connections closed because they did not read (unread_max).", seen->unread);
        mfl_exposition_family(out, COUNTER, "mfl_daemons_refused_total",
                "Daemons refused or sent away, counting each attempt, by reason: their certificate, a rule "
                "that "
                "disables them, no rule that allows them, or untrue statements.");
        mfl_exposition_u64(out, refused[MFL_ACCESS_OK], MFL_LABELS("reason", "certificate"));
        mfl_exposition_u64(out, refused[MFL_ACCESS_DENIED], MFL_LABELS("reason", "disabled"));
        mfl_exposition_u64(out, refused[MFL_ACCESS_NOT_ALLOWED], MFL_LABELS("reason", "not_allowed"));
        mfl_exposition_u64(out, refused[MFL_ACCESS_LIED], MFL_LABELS("reason", "untrue"));
        one_u64(out, COUNTER, "mfl_received_bytes_total", "Bytes received on all connections.", in);
        one_u64(out, COUNTER, "mfl_sent_bytes_total", "Bytes sent on all connections.", sent);
}

static void put_updates(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        static const char *const reasons[] = {NULL, "late", "duplicate", "invalid", "unknown"};
        const struct mfl_observed *seen = pages->observed;
        mfl_exposition_family(out, COUNTER, "mfl_uploads_refused_total", "Refused updates, by reason.");
        for (int i = MFL_REFUSED_LATE; i <= MFL_REFUSED_UNKNOWN; i++)
                mfl_exposition_u64(out, seen->uploads_refused[i], MFL_LABELS("reason", reasons[i]));
        one_u64(out, COUNTER, "mfl_updates_added_total", "Updates that arrived completely and were added.",
                seen->updates_added);
        one_u64(out, COUNTER, "mfl_updates_rejected_total",
                "Updates that were not finite, over a limit or of the wrong kind.", seen->updates_rejected);
        one_u64(out, COUNTER, "mfl_clients_rejected_total", "Clients rejected in committed rounds.",
                seen->clients_rejected);
        one_u64(out, COUNTER, "mfl_rounds_committed_total", "Rounds committed, of all jobs.",
                seen->rounds_committed);
}

static void put_disk(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        const struct mfl_observed *seen = pages->observed;
        one_histogram(out, "mfl_checkpoint_seconds",
                "Time of a checkpoint, from its order to its end, with the wait in the queue.",
                &seen->disk.checkpoint_seconds, &mfl_disk_bounds);
        one_histogram(out, "mfl_commit_seconds",
                "Time of a commit, from its order to its end, with the wait in the queue.",
                &seen->disk.commit_seconds, &mfl_disk_bounds);
        mfl_exposition_family(out, COUNTER, "mfl_disk_failures_total", "Failed writes, by operation.");
        for (int op = 0; op < MFL_DISK_OPS_; op++)
                mfl_exposition_u64(
                        out, seen->disk.failures[op], MFL_LABELS("operation", mfl_disk_op_name(op)));
        one_u64(out, GAUGE, "mfl_disk_failing", "1 while the disk refuses writes.",
                mfl_disk_failing(&seen->disk, mfl_loop_now(pages->loop)) != NULL);
        one_u64(out, GAUGE, "mfl_state_warnings",
                "Warnings about the state directory at the start; the log has their texts.",
                mfl_store_warnings(pages->store));
}

static void put_machinery(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        one_u64(out, GAUGE, "mfl_memory_budget_bytes", "Memory that all jobs together may use (memory_max).",
                pages->budget->limit_bytes);
        one_u64(out, GAUGE, "mfl_memory_budget_used_bytes", "Memory reserved for jobs.",
                mfl_budget_used(pages->budget));
        mfl_exposition_family(
                out, GAUGE, "mfl_worker_queue_length", "Work items that a worker has not finished yet.");
        mfl_exposition_u64(out, mfl_worker_pending(&pages->loop->compute), MFL_LABELS("worker", "compute"));
        mfl_exposition_u64(out, mfl_worker_pending(&pages->loop->disk), MFL_LABELS("worker", "disk"));
        if (pages->loop->has_copies)
                mfl_exposition_u64(
                        out, mfl_worker_pending(&pages->loop->copies), MFL_LABELS("worker", "copies"));
        one_histogram(out, "mfl_loop_lag_seconds",
                "How late the event loop ran a timer that fires 5 times a second.",
                &pages->observed->loop_lag_seconds, &mfl_lag_bounds);
        uint64_t counts[MFL_HTTP_STATUSES] = {0};
        if (pages->http)
                mfl_http_counts(pages->http, counts);
        mfl_exposition_family(out, COUNTER, "mfl_http_responses_total", "Responses of this port, by status.");
        for (int i = 0; i < MFL_HTTP_STATUSES; i++) {
                char code[16];
                snprintf(code, sizeof code, "%u", i < MFL_HTTP_STATUSES - 1 ? mfl_http_statuses[i] : 0);
                mfl_exposition_u64(
                        out, counts[i], MFL_LABELS("code", i < MFL_HTTP_STATUSES - 1 ? code : "other"));
        }
}

/* ---- the process ---- */

/* From Linux 6.2 on, the folder's size is the number of descriptors; before, they are counted. */
static uint64_t open_descriptors(void)
{
        struct stat st;
        uint64_t n = 0;
        if (!stat("/proc/self/fd", &st) && st.st_size > 0)
                return (uint64_t)st.st_size;
        DIR *dir = opendir("/proc/self/fd");
        while (dir && readdir(dir))
                n++;
        if (dir)
                closedir(dir);
        return n > 3 ? n - 3 : 0; /* ".", ".." and the folder's own */
}

static void put_process(const struct mfl_pages *pages, struct mfl_exposition *out)
{
        unsigned long long size = 0, resident = 0;
        FILE *statm = fopen("/proc/self/statm", "re");
        if (statm && fscanf(statm, "%llu %llu", &size, &resident) != 2)
                size = resident = 0;
        if (statm)
                fclose(statm);
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        struct rlimit limit = {0};
        struct rusage usage = {0};
        getrlimit(RLIMIT_NOFILE, &limit);
        getrusage(RUSAGE_SELF, &usage);
        one_u64(out, GAUGE, "process_resident_memory_bytes", "Resident memory.", resident * page);
        one_u64(out, GAUGE, "process_virtual_memory_bytes", "Virtual memory.", size * page);
        one_u64(out, GAUGE, "process_open_fds", "Open file descriptors.", open_descriptors());
        one_u64(out, GAUGE, "process_max_fds", "Limit of open file descriptors.", limit.rlim_cur);
        one_double(out, COUNTER, "process_cpu_seconds_total", "CPU time, user and system.",
                (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                        (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
        one_double(out, GAUGE, "process_start_time_seconds", "Start of the process, Unix time.",
                (double)pages->observed->started_unix_ms / 1e3);
}

void mfl_metrics_text(const struct mfl_pages *pages, struct mfl_text *text)
{
        struct mfl_exposition out = {.text = text};
        uint32_t jobs_left_out = 0, daemons_left_out = 0;
        char protocol[16];
        snprintf(protocol, sizeof protocol, "%d", MFL_PROTOCOL_MAX);
        mfl_exposition_family(&out, GAUGE, "mfl_build_info", "The server's version; always 1.");
        mfl_exposition_u64(&out, 1, MFL_LABELS("version", MFL_VERSION, "protocol", protocol));
        put_job_counts(pages, &out);
        put_jobs(pages, &out, &jobs_left_out);
        put_daemon_counts(pages, &out);
        put_daemons_of(pages, &out, &daemons_left_out);
        mfl_exposition_family(
                &out, GAUGE, "mfl_series_left_out", "Jobs and daemons that this page leaves out.");
        mfl_exposition_u64(&out, jobs_left_out, MFL_LABELS("kind", "job"));
        mfl_exposition_u64(&out, daemons_left_out, MFL_LABELS("kind", "daemon"));
        put_connections(pages, &out);
        put_updates(pages, &out);
        put_disk(pages, &out);
        put_machinery(pages, &out);
        put_process(pages, &out);
}
