/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the server now and then how a daemon's device is and what its workers do: every two seconds while
 * they work, seldom while they wait, at once when a connection is new. Loop thread.
 */
#ifndef MFL_CLIENT_REPORT_H
#define MFL_CLIENT_REPORT_H

#include "client/activity.h"
#include "client/link.h"

struct mfl_client_report {
        struct mfl_activity *activity; /* outlives the report */
        struct mfl_link *link;         /* NULL: nothing is told any more */
        /* Private. */
        uv_timer_t timer;
        struct mfl_telemetry gpu; /* the newest figures */
        uint64_t gpu_ms, told_ms; /* when they came; when something was told last */
        bool gpu_news, idle_told; /* the last word was that all workers wait */
};

/* activity and link are set. */
void mfl_client_report_open(struct mfl_client_report *report, uv_loop_t *loop);
/* A connection is new: what was told before is not known there. */
void mfl_client_report_online(struct mfl_client_report *report);
/* The GPU was measured. */
void mfl_client_report_gpu(struct mfl_client_report *report, const struct mfl_telemetry *gpu);
void mfl_client_report_close(struct mfl_client_report *report);

#endif
