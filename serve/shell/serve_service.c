/* SPDX-License-Identifier: Apache-2.0 */
/* The server as a service: signals, readiness and status for the service manager, and signs of life, which stop when the loop
 * hangs or a batch does. */
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "common/base/log.h"
#include "common/base/systemd.h"
#include "serve/shell/serve.h"

#define STATUS_EVERY_MS 1000
#define STUCK_PERIODS 4 /* of the watchdog, that one batch may take */
#define DAY_S 86400
#define EXPIRY_DAYS 7 /* a warning comes so long before */

static void on_stop(uv_signal_t *signal, int number)
{
        mfl_serve_stop(signal->data);
}

/* Clients see it at once, and the server would not: it asks for no own certificate. */
static void on_expiry(uv_timer_t *timer)
{
        mfl_serve_watch_certificate(timer->data);
}

void mfl_serve_watch_certificate(struct mfl_serve *serve)
{
        const struct mfl_serve_config *c = serve->config;
        if (!serve->http.config.tls)
                return;
        const int64_t left = mfl_tls_context_expires(serve->http.config.tls) - (int64_t)time(NULL);
        if (left < 0)
                mfl_log(MFL_LOG_ERROR,
                        "certificate %s has expired: clients refuse it; put a new one in its place, and "
                        "reload",
                        c->tls_cert);
        else if (left < EXPIRY_DAYS * DAY_S)
                mfl_log(MFL_LOG_WARN, "certificate %s expires in %lld hours", c->tls_cert,
                        (long long)left / 3600);
        const int64_t next = left < 0 ? DAY_S : left < DAY_S ? left + 1 : DAY_S;
        uv_timer_start(&serve->expiry, on_expiry, (uint64_t)next * 1000, 0);
}

static void take_over(struct mfl_serve *serve, const struct mfl_serve_config *fresh)
{
        serve->config->log_level = fresh->log_level;
        mfl_log_set_level((enum mfl_log_level)fresh->log_level);
}

static void reload(struct mfl_serve *serve)
{
        struct mfl_serve_config *fresh = mfl_calloc(1, sizeof *fresh);
        struct mfl_error err = {{0}};
        bool usage;
        mfl_systemd_reloading();
        int r = fresh ? mfl_serve_config_load(serve->config->argc, serve->config->argv, fresh, &usage, &err)
                      : mfl_fail_memory(&err, sizeof *fresh, "the configuration");
        if (r)
                mfl_log(MFL_LOG_ERROR, "the configuration stays as it was: %s", err.text);
        else
                take_over(serve, fresh);
        free(fresh);
        r = mfl_serve_read_secrets(serve, &err);
        if (r)
                mfl_log(MFL_LOG_ERROR, "reload: %s; certificates and keys stay as they were", err.text);
        else
                mfl_log(MFL_LOG_INFO, "configuration, certificates and keys read again; keys of the "
                                      "configuration other than log_level apply from the next start");
        if (!r)
                mfl_serve_watch_certificate(serve);
        mfl_models_reload(&serve->models);
        mfl_systemd_notify("READY=1");
}

static void on_hangup(uv_signal_t *signal, int number)
{
        reload(signal->data);
}

static void on_status(uv_timer_t *timer)
{
        struct mfl_serve *serve = timer->data;
        char text[sizeof serve->status_text];
        uint32_t n = 0;
        for (uint32_t i = 0; i < serve->models.n; i++)
                n += serve->models.v[i].current != NULL;
        snprintf(text, sizeof text, "%.100s: %u of %u models served; %u connections", serve->address, n,
                serve->models.n, serve->http.n_conns);
        if (!strcmp(text, serve->status_text))
                return;
        strcpy(serve->status_text, text);
        mfl_systemd_status("%s", text);
}

static void on_watchdog(uv_timer_t *timer)
{
        struct mfl_serve *serve = timer->data;
        uint64_t running_ms = 0;
        for (uint32_t i = 0; i < serve->models.n_engines; i++)
                running_ms = MFL_MAX(running_ms, mfl_worker_running_ms(&serve->models.engines[i]));
        if (running_ms < STUCK_PERIODS * serve->watchdog_ms)
                mfl_systemd_notify("WATCHDOG=1");
        else
                mfl_log(MFL_LOG_ERROR,
                        "a batch has been computing for %llu s: no watchdog signal is sent to the service "
                        "manager",
                        (unsigned long long)running_ms / 1000);
}

static void on_input_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        static char ignored[64];
        *buf = uv_buf_init(ignored, sizeof ignored);
}

static void on_input(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        if (n < 0)
                mfl_serve_stop(stream->data);
}

static void watch_input(struct mfl_serve *serve)
{
        uv_pipe_init(&serve->loop, &serve->input, 0);
        serve->input.data = serve;
        serve->has_input = true;
        if (uv_pipe_open(&serve->input, 0) ||
                uv_read_start((uv_stream_t *)&serve->input, on_input_alloc, on_input))
                mfl_log(MFL_LOG_WARN, "standard input is no pipe or socket: its end will not be noticed");
}

void mfl_serve_service_open(struct mfl_serve *serve)
{
        uv_signal_init(&serve->loop, &serve->sigterm);
        uv_signal_init(&serve->loop, &serve->sigint);
        uv_signal_init(&serve->loop, &serve->sighup);
        uv_timer_init(&serve->loop, &serve->status);
        uv_timer_init(&serve->loop, &serve->watchdog);
        uv_timer_init(&serve->loop, &serve->expiry);
        serve->n_handles = 6;
        serve->sigterm.data = serve->sigint.data = serve->sighup.data = serve->status.data =
                serve->watchdog.data = serve->expiry.data = serve;
        mfl_serve_watch_certificate(serve);
        uv_signal_start(&serve->sigterm, on_stop, SIGTERM);
        uv_signal_start(&serve->sigint, on_stop, SIGINT);
        uv_signal_start(&serve->sighup, on_hangup, SIGHUP);
        if (serve->config->exit_with_stdin)
                watch_input(serve);
        mfl_systemd_notify("READY=1"); /* it listens; /v2/health/ready says whether models are loaded */
        if (mfl_systemd_listens())
                uv_timer_start(&serve->status, on_status, 0, STATUS_EVERY_MS);
        serve->watchdog_ms = mfl_systemd_watchdog_ms();
        if (serve->watchdog_ms)
                uv_timer_start(&serve->watchdog, on_watchdog, 0, MFL_MAX(serve->watchdog_ms / 2, 1u));
}

void mfl_serve_service_close(struct mfl_serve *serve)
{
        uv_handle_t *const handles[] = {(uv_handle_t *)&serve->sigterm, (uv_handle_t *)&serve->sigint,
                (uv_handle_t *)&serve->sighup, (uv_handle_t *)&serve->status, (uv_handle_t *)&serve->watchdog,
                (uv_handle_t *)&serve->expiry};
        for (uint32_t i = 0; i < serve->n_handles; i++)
                uv_close(handles[i], NULL);
        if (serve->has_input)
                uv_close((uv_handle_t *)&serve->input, NULL);
}
