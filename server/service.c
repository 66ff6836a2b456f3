/* SPDX-License-Identifier: Apache-2.0 */
/* The server as a service: what its manager is told and asks for.
 *
 *   - sockets that the manager has opened take the place of `listen`, so that callers wait at a restart
 * instead of being refused;
 *   - READY=1 once jobs are loaded and callers are taken, and a status line that follows what goes on;
 *   - signs of life from the loop itself, so that they end when it hangs, and none while the disk worker
 * hangs, without which no round is committed;
 *   - SIGHUP reads the configuration again.
 *
 * Ways to fail: sockets of the wrong kind, or on an address that the configuration does not allow (the start
 * ends); a new configuration that is wrong (the old one stays, the log says why).
 */
#include <signal.h>
#include <stdio.h>

#include "common/log.h"
#include "common/systemd.h"
#include "server/server.h"

#define STATUS_EVERY_MS 1000
/* A piece of the disk worker's work that has not ended after so many watchdog periods never will. A slow disk
 * may take long over one checkpoint. */
#define DISK_STUCK_PERIODS 4

/* ---- listening ---- */

static void describe_address(const struct sockaddr_storage *address, char *buf, size_t bytes)
{
        char host[64] = "?";
        if (address->ss_family == AF_INET6) {
                const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)address;
                uv_ip6_name(in, host, sizeof host);
                snprintf(buf, bytes, "[%s]:%u", host, ntohs(in->sin6_port));
        } else {
                const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
                uv_ip4_name(in, host, sizeof host);
                snprintf(buf, bytes, "%s:%u", host, ntohs(in->sin_port));
        }
}

static int listen_on(
        struct mfl_server *server, int fd, char *ret_address, size_t bytes, struct mfl_error *err)
{
        struct sockaddr_storage address = {0};
        int n = sizeof address;
        uv_tcp_t *listener = &server->listeners[server->n_listeners++];
        uv_tcp_init(&server->loop, listener);
        listener->data = server;
        int r = uv_tcp_open(listener, fd);
        if (!r)
                r = uv_tcp_getsockname(listener, (struct sockaddr *)&address, &n);
        if (r)
                return mfl_fail(err, -1, "take over socket %d: %s", fd, uv_strerror(r));
        describe_address(&address, ret_address, bytes);
        r = mfl_server_may_listen(server, (const struct sockaddr *)&address, ret_address, err);
        if (r)
                return r;
        r = uv_listen((uv_stream_t *)listener, MFL_LISTEN_BACKLOG, mfl_session_on_connection);
        return r ? mfl_fail(err, -1, "listen on %s: %s", ret_address, uv_strerror(r)) : 0;
}

int mfl_service_listen(struct mfl_server *server, uint32_t *ret_n, struct mfl_error *err)
{
        int fds[MFL_SERVER_LISTENERS_MAX];
        uint32_t n;
        int r = mfl_systemd_listeners(fds, MFL_SERVER_LISTENERS_MAX, &n, err);
        for (uint32_t i = 0; !r && i < n; i++) {
                char address[sizeof server->address];
                r = listen_on(server, fds[i], address, sizeof address, err);
                if (r)
                        break;
                mfl_log(MFL_LOG_INFO,
                        "listening on %s by the service manager's socket; the configuration's listen (%s) is "
                        "not used",
                        address, server->config.listen);
                if (!i)
                        mfl_strcpy(server->address, sizeof server->address, address);
        }
        if (!r)
                *ret_n = n;
        return r;
}

/* ---- what the manager is told ---- */

static void describe(const struct mfl_server *server, char *buf, size_t bytes)
{
        uint32_t n_running = 0, n_waiting = 0, n_daemons = 0;
        for (const struct mfl_server_job *job = server->jobs; job; job = job->next) {
                n_running += job->state == MFL_JOB_RUNNING;
                n_waiting += job->state == MFL_JOB_WAITING;
        }
        for (const struct mfl_session *s = server->sessions; s; s = s->next)
                n_daemons += s->role == MFL__ROLE__ROLE_DAEMON;
        snprintf(buf, bytes, "%s: %u job%s at work, %u waiting; %u daemon%s connected", server->address,
                n_running, n_running == 1 ? "" : "s", n_waiting, n_daemons, n_daemons == 1 ? "" : "s");
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
        uint64_t running_ms = mfl_worker_running_ms(&server->disk);
        if (running_ms < DISK_STUCK_PERIODS * server->watchdog_ms)
                mfl_systemd_notify("WATCHDOG=1");
        else
                mfl_log(MFL_LOG_ERROR,
                        "the disk has not answered for %llu s: no sign of life to the service manager",
                        (unsigned long long)running_ms / 1000);
}

void mfl_service_ready(struct mfl_server *server)
{
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
                "configuration read again: log_level %s, was %s; other keys count from the next start",
                level_text(config->log_level), level_text(server->config.log_level));
        server->config.log_level = config->log_level;
        mfl_log_set_level((enum mfl_log_level)config->log_level);
}

void mfl_server_reload(struct mfl_server *server)
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
        int loaded = mfl_admission_load(server, &tls_err);
        if (loaded)
                mfl_log(MFL_LOG_ERROR, "reload: %s; the certificates stay as they were", tls_err.text);
        mfl_audit_note(server, NULL, "reload", "", r || loaded ? "failed" : "done",
                r        ? err.text
                : loaded ? tls_err.text
                         : "SIGHUP");
        mfl_systemd_notify("READY=1");
}

static void on_hangup(uv_signal_t *handle, int number)
{
        mfl_server_reload(handle->data);
}

void mfl_service_open(struct mfl_server *server)
{
        uv_signal_init(&server->loop, &server->sighup);
        uv_timer_init(&server->loop, &server->status);
        uv_timer_init(&server->loop, &server->watchdog);
        server->sighup.data = server->status.data = server->watchdog.data = server;
        uv_signal_start(&server->sighup, on_hangup, SIGHUP);
        if (mfl_systemd_listens())
                uv_timer_start(&server->status, on_status, STATUS_EVERY_MS, STATUS_EVERY_MS);
        server->watchdog_ms = mfl_systemd_watchdog_ms();
        if (server->watchdog_ms)
                uv_timer_start(&server->watchdog, on_watchdog, 0, MFL_MAX(server->watchdog_ms / 2, 1u));
}
