/* SPDX-License-Identifier: Apache-2.0 */
/* What the server shows over HTTP: metrics, JSON and the dashboard, made on the loop thread from what it
 * knows, and handed to http.h. What only the database knows (a job's rounds) the disk worker reads, for one
 * page at a time, so that looking never holds up a commit for more than one query.
 */
#ifndef MFL_SERVER_PAGES_H
#define MFL_SERVER_PAGES_H

#include "server/http.h"
#include "server/server.h"
#include "server/text.h"

/* Opens the HTTP port when the configuration has one. MFL_INVALID: its address is not to be had so. */
int mfl_pages_open(struct mfl_server *server, struct mfl_error *err);
/* From now on /readyz says yes: jobs are loaded, connections are taken. */
void mfl_pages_ready(struct mfl_server *server);
/* From a timer: the loop turns; and how the server is. */
void mfl_pages_beat(struct mfl_server *server);
void mfl_pages_close(struct mfl_server *server);

/* ---- the pages' texts; loop thread ---- */
/* At most so many jobs and daemons are told apart in the metrics: those that are unfinished, and those that
 * ended within MFL_METRICS_ENDED_MS, so that their last figures are scraped. */
#define MFL_METRICS_JOBS_MAX 100
#define MFL_METRICS_DAEMONS_MAX 1000
#define MFL_METRICS_ENDED_MS 600000u
void mfl_metrics_text(struct mfl_server *server, struct mfl_text *text);

#define MFL_PAGES_JOBS_MAX 200    /* the newest */
#define MFL_PAGES_DAEMONS_MAX 500 /* by name */
#define MFL_PAGES_ROUNDS_MAX 400  /* points of a curve; of more, each k-th and the last */
void mfl_json_jobs(struct mfl_server *server, struct mfl_text *text);
void mfl_json_job(struct mfl_server_job *job, const struct mfl_store_rounds *rounds, struct mfl_text *text);
void mfl_json_daemons(struct mfl_server *server, struct mfl_text *text);
void mfl_json_timeline(struct mfl_server *server, struct mfl_text *text);
/* NULL: no daemon has told yet. Of the HTML's table at most MFL_PAGES_CLIENTS_MAX rows, evenly chosen. */
#define MFL_PAGES_CLIENTS_MAX 64
void mfl_json_partition(struct mfl_server_job *job, const Mfl__Partition *partition, struct mfl_text *text);
void mfl_html_partition(const Mfl__Partition *partition, struct mfl_text *text);
void mfl_html_overview(struct mfl_server *server, struct mfl_text *text);
void mfl_html_job(struct mfl_server_job *job, const struct mfl_store_rounds *rounds,
        const Mfl__Partition *partition, struct mfl_text *text);

/* ---- what they have in common ---- */
struct mfl_daemon_row {
        struct mfl_core_daemon_view view;
        const struct mfl_telemetry *telemetry; /* NULL: nothing known, or nothing of late */
        const char *address;
};
/* Rows of at most `max` daemons, by node and name. NULL: out of memory. Freed by the caller. */
struct mfl_daemon_row *mfl_daemon_rows(struct mfl_server *server, uint32_t max, uint32_t *ret_n);
const char *mfl_job_state_name(enum mfl_job_state state);
/* Every how many of n rounds is shown; the last one is in any case. */
uint32_t mfl_rounds_stride(uint32_t n);

#endif
