/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the state of a daemon's device and workers to the server: every two seconds while they work, rarely
 * while they wait, at once on a new connection. Loop thread. */
#ifndef MFL_CLIENT_SERVICE_REPORT_H
#define MFL_CLIENT_SERVICE_REPORT_H

#include "client/train/activity.h"
#include "client/link/link.h"

struct mfl_client_report {
        struct mfl_activity *activity; /* outlives the report */
        struct mfl_link *link;         /* NULL: nothing is reported any more */
        /* Private. */
        uv_timer_t timer;
        struct mfl_telemetry gpu; /* the newest figures */
        uint64_t gpu_ms, told_ms; /* when they came; when the last report was sent */
        bool gpu_news, idle_told; /* the last report said that all workers wait */
};

/* activity and link are set. */
void mfl_client_report_open(struct mfl_client_report *report, uv_loop_t *loop);
/* The connection is new, and the server knows nothing yet. */
void mfl_client_report_online(struct mfl_client_report *report);
/* The GPU was measured. */
void mfl_client_report_gpu(struct mfl_client_report *report, const struct mfl_telemetry *gpu);
void mfl_client_report_close(struct mfl_client_report *report);

/* Everything that may change the last bit of a result (DESIGN: same job, same seed, same kind of device), as text. */
void mfl_client_report_numerics(const struct mfl_device_info *device, char *buf, size_t bytes);

#endif
