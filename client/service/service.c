/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the service manager the daemon's state, and reads the configuration again at SIGHUP.
 *
 * Ways to fail: a configuration that has become wrong; the old one stays, and the log says what is wrong. */
#include "client/service/service.h"

#include <signal.h>

#include "common/base/systemd.h"

/* Time to say Bye, and to free the device. */
#define STOP_MARGIN_MS 10000

static void reload(struct mfl_client_service *service)
{
        struct mfl_client_config config;
        struct mfl_error err = {{0}};
        int r = mfl_client_config_init(&config, service->argc, service->argv, &err);
        if (r) {
                mfl_log(MFL_LOG_ERROR, "the configuration stays unchanged: %s", err.text);
        } else {
                mfl_log_set_level((enum mfl_log_level)config.log_level);
                mfl_log(MFL_LOG_INFO,
                        "configuration read again: log_level %s; other keys take effect at the next start",
                        mfl_log_level_name((enum mfl_log_level)config.log_level));
        }
        mfl_client_config_deinit(&config);
}

static void on_hangup(uv_signal_t *handle, int number)
{
        struct mfl_client_service *service = handle->data;
        mfl_systemd_reloading();
        reload(service);
        if (service->on_reload)
                service->on_reload(service->user);
        mfl_systemd_notify("READY=1");
}

static void on_watchdog(uv_timer_t *timer)
{
        mfl_systemd_notify("WATCHDOG=1");
}

void mfl_client_service_open(struct mfl_client_service *service, uv_loop_t *loop)
{
        uint64_t watchdog_ms = mfl_systemd_watchdog_ms();
        uv_signal_init(loop, &service->sighup);
        uv_timer_init(loop, &service->watchdog);
        service->sighup.data = service->watchdog.data = service;
        uv_signal_start(&service->sighup, on_hangup, SIGHUP);
        uv_unref((uv_handle_t *)&service->sighup);
        if (watchdog_ms)
                uv_timer_start(&service->watchdog, on_watchdog, 0, MFL_MAX(watchdog_ms / 2, 1u));
        uv_unref((uv_handle_t *)&service->watchdog);
}

void mfl_client_service_ready(const char *status)
{
        mfl_systemd_notify("READY=1");
        mfl_systemd_status("%s", status);
}

/* As in sd_notify(3), EXTEND_TIMEOUT_USEC: once is enough, because the process ends within that time. */
void mfl_client_service_stopping(uint64_t within_ms)
{
        char extend[64];
        mfl_systemd_notify("STOPPING=1");
        mfl_snprintf(extend, sizeof(extend), "EXTEND_TIMEOUT_USEC=%llu",
                (unsigned long long)(within_ms + STOP_MARGIN_MS) * 1000);
        mfl_systemd_notify(extend);
}

void mfl_client_service_close(struct mfl_client_service *service)
{
        if (uv_is_closing((uv_handle_t *)&service->sighup))
                return;
        mfl_systemd_notify("STOPPING=1");
        uv_close((uv_handle_t *)&service->sighup, NULL);
        uv_close((uv_handle_t *)&service->watchdog, NULL);
}
