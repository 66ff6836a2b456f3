/* SPDX-License-Identifier: Apache-2.0 */
/* One message with the newest figures of both kinds, because the server keeps only the last. Work that begins
 * is reported within LOOK_MS. */
#include "client/service/report.h"

#include <stdio.h>

#define LOOK_MS 500u
#define EVERY_MS 2000u
#define EVERY_IDLE_MS 20000u /* the server forgets figures after a minute */
#define GPU_MS_MAX 30000u    /* a sampler that hangs must not pass off old figures as new */

static void tell(struct mfl_client_report *report, bool anyway)
{
        struct mfl_telemetry told = {0};
        uint64_t now_ms = mfl_now_ms();
        if (!report->link)
                return;
        if (report->gpu.known && now_ms - report->gpu_ms <= GPU_MS_MAX)
                told = report->gpu;
        mfl_activity_read(report->activity, mfl_now_ns(), &told.activity);
        told.known |= MFL_TELEMETRY_ACTIVITY;
        bool idle = told.activity.share[MFL_ACTIVITY_WAIT] >= 1;
        bool old = idle && report->idle_told && !report->gpu_news, woke = report->idle_told && !idle;
        if (!anyway && !woke && now_ms - report->told_ms < (old ? EVERY_IDLE_MS : EVERY_MS))
                return;
        mfl_link_telemetry(report->link, &told);
        report->idle_told = idle;
        report->gpu_news = false;
        report->told_ms = now_ms;
}

static void on_timer(uv_timer_t *timer)
{
        tell(timer->data, false);
}

void mfl_client_report_open(struct mfl_client_report *report, uv_loop_t *loop)
{
        uv_timer_init(loop, &report->timer);
        report->timer.data = report;
        uv_timer_start(&report->timer, on_timer, LOOK_MS, LOOK_MS);
}

void mfl_client_report_online(struct mfl_client_report *report)
{
        tell(report, true);
}

void mfl_client_report_gpu(struct mfl_client_report *report, const struct mfl_telemetry *gpu)
{
        report->gpu = *gpu;
        report->gpu_ms = mfl_now_ms();
        report->gpu_news = true;
}

void mfl_client_report_close(struct mfl_client_report *report)
{
        report->link = NULL;
        uv_close((uv_handle_t *)&report->timer, NULL);
}

void mfl_client_report_numerics(const struct mfl_device_info *device, char *buf, size_t bytes)
{
        char text[512];
        snprintf(text, sizeof text, "mfl-%d %s (%s) on %s", MFL_ARITHMETIC_VERSION, device->backend,
                device->library, device->name);
        mfl_strcpy(buf, bytes, text);
        for (char *at = buf; *at; at++) /* may be cut within a character */
                if ((unsigned char)*at >= 0x80)
                        *at = '?';
}
