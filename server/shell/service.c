/* SPDX-License-Identifier: Apache-2.0 */
/* The server as a service:
 *
 *   - READY=1 once jobs are loaded and the server listens, and a status line that follows its work;
 *   - watchdog signals come from the loop itself, so that they stop when it hangs; they also stop while the
 *     disk worker hangs, because without it no round is committed;
 *   - SIGHUP reads the configuration and the certificates again; wrong ones change nothing, and the log says
 *     why.
 */
#include "server/shell/service.h"

#include <signal.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/systemd.h"
#include "server/session/admission.h"

#define STATUS_EVERY_MS 1000
/* The disk worker is stuck when one piece of work takes this many watchdog periods. A slow disk may take long
 * over one checkpoint. */
#define DISK_STUCK_PERIODS 4

/* ---- what the manager is told ---- */

static void describe(const struct mfl_server *server, char *buf, size_t bytes)
{
        uint32_t n_running = 0, n_waiting = 0, n_daemons = 0;
        for (const struct mfl_server_job *job = server->jobs.first; job; job = job->next) {
                n_running += job->state == MFL_JOB_RUNNING;
                n_waiting += job->state == MFL_JOB_WAITING;
        }
        for (const struct mfl_session *s = server->sessions.first; s; s = s->next)
                n_daemons += mfl_session_is_daemon(s);
        snprintf(buf, bytes, "%s: %u job%s running, %u waiting; %u daemon%s connected", server->address,
                n_running, n_running == 1 ? "" : "s", n_waiting, n_daemons, n_daemons == 1 ? "" : "s");
        const uint32_t n_warnings = server->store ? mfl_store_warnings(server->store) : 0;
        const size_t n = strlen(buf);
        if (n_warnings)
                snprintf(buf + n, bytes - n,
                        "; %u warning%s about the state directory (mfl-server --check-state)", n_warnings,
                        n_warnings == 1 ? "" : "s");
}

static void tell_status(struct mfl_server *server)
{
        char text[sizeof server->status_text];
        describe(server, text, sizeof text);
        if (!strcmp(text, server->status_text))
                return;
        strcpy(server->status_text, text);
        mfl_systemd_status("%s", text);
}

static void on_status(uv_timer_t *timer)
{
        tell_status(timer->data);
}

static void on_watchdog(uv_timer_t *timer)
{
        struct mfl_server *server = timer->data;
        uint64_t running_ms = mfl_worker_running_ms(&server->loop.disk);
        if (running_ms < DISK_STUCK_PERIODS * server->watchdog_ms)
                mfl_systemd_notify("WATCHDOG=1");
        else
                mfl_log(MFL_LOG_ERROR,
                        "the disk has not answered for %llu s: no watchdog signal is sent to the service "
                        "manager",
                        (unsigned long long)running_ms / 1000);
}

/* As TimeoutStartSec of mfl-server.service: what a start may take, closing and opening in another role may take, too. */
#define TURN_WITHIN_US 900000000ull

static void set_watchdog(uint64_t us)
{
        char text[64];
        snprintf(text, sizeof text, "WATCHDOG_USEC=%llu", (unsigned long long)us);
        mfl_systemd_notify(text);
}

void mfl_service_turning(void)
{
        if (mfl_systemd_watchdog_ms())
                set_watchdog(TURN_WITHIN_US);
}

void mfl_service_ready(struct mfl_server *server)
{
        if (server->cluster && mfl_systemd_watchdog_ms())
                set_watchdog(mfl_systemd_watchdog_ms() * 1000);
        mfl_systemd_notify("READY=1");
        if (mfl_systemd_listens())
                tell_status(server);
}

/* ---- reload ---- */

static const char *level_text(uint32_t level)
{
        return mfl_log_level_name((enum mfl_log_level)level);
}

static void take_over(struct mfl_server *server, const struct mfl_server_config *config)
{
        mfl_log(MFL_LOG_INFO,
                "configuration read again: log_level %s, was %s; keep_ended and keep_ended_max apply, other "
                "keys from the next start",
                level_text(config->log_level), level_text(server->config.log_level));
        server->config.log_level = config->log_level;
        server->config.keep_ended_ms = config->keep_ended_ms;
        server->config.keep_ended_max = config->keep_ended_max;
        server->admin.retention = (struct mfl_retention){config->keep_ended_ms, config->keep_ended_max};
        mfl_log_set_level((enum mfl_log_level)config->log_level);
}

/* No connection notices. A wrong configuration changes nothing. */
static void reload(struct mfl_server *server)
{
        struct mfl_server_config config;
        struct mfl_error err = {{0}};
        bool usage;
        mfl_systemd_reloading();
        int r = mfl_server_config_load(server->config.argc, server->config.argv, &config, &usage, &err);
        if (r)
                mfl_log(MFL_LOG_ERROR, "the configuration stays as it was: %s", err.text);
        else
                take_over(server, &config);
        struct mfl_error tls_err = {{0}};
        int loaded = mfl_admission_load(&server->sessions, &tls_err);
        if (!loaded)
                loaded = mfl_pages_renew(&server->pages, &tls_err);
        if (loaded)
                mfl_log(MFL_LOG_ERROR, "reload: %s; the certificates stay as they were", tls_err.text);
        if (server->store)
                mfl_book_note(&server->book, NULL, "reload", "", r || loaded ? "failed" : "done",
                        r        ? err.text
                        : loaded ? tls_err.text
                                 : "SIGHUP");
        mfl_systemd_notify("READY=1");
}

static void on_hangup(uv_signal_t *handle, int number)
{
        reload(handle->data);
}

void mfl_service_open(struct mfl_server *server)
{
        uv_signal_init(&server->loop.uv, &server->sighup);
        uv_timer_init(&server->loop.uv, &server->status);
        uv_timer_init(&server->loop.uv, &server->watchdog);
        server->sighup.data = server->status.data = server->watchdog.data = server;
        uv_signal_start(&server->sighup, on_hangup, SIGHUP);
        if (mfl_systemd_listens())
                uv_timer_start(&server->status, on_status, STATUS_EVERY_MS, STATUS_EVERY_MS);
        server->watchdog_ms = mfl_systemd_watchdog_ms();
        if (server->watchdog_ms)
                uv_timer_start(&server->watchdog, on_watchdog, 0, MFL_MAX(server->watchdog_ms / 2, 1u));
}

void mfl_service_stopping(void)
{
        mfl_systemd_notify("STOPPING=1");
}
