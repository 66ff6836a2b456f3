/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of the pages; loop thread. */
#ifndef MFL_SERVER_WEB_CONTENTS_H
#define MFL_SERVER_WEB_CONTENTS_H

#include "proto/wire.h"
#include "server/web/pages.h"
#include "server/web/text.h"

/* metrics.c: at most this many jobs and daemons have series. Shown jobs are unfinished, or have
 * ended within MFL_METRICS_ENDED_MS, so that their last figures are scraped. */
#define MFL_METRICS_JOBS_MAX 100
#define MFL_METRICS_DAEMONS_MAX 1000
#define MFL_METRICS_ENDED_MS 600000u
void mfl_metrics_text(const struct mfl_pages *pages, struct mfl_text *text);

#define MFL_PAGES_JOBS_MAX 1000 /* as JSON, which is searched: the newest; archived ones are left out first */
#define MFL_PAGES_ROWS_MAX 200  /* of the page without JavaScript */
#define MFL_PAGES_DAEMONS_MAX 500 /* by name */
#define MFL_PAGES_ROUNDS_MAX 400  /* points of a curve; of more, each k-th and the last */
#define MFL_PAGES_LINES_MAX 300   /* of a job's log */
#define MFL_PAGES_CLIENTS_MAX 64  /* rows of the table of clients, evenly chosen */

/* pages_jobs.c: the list of jobs. Each step writes a piece of it; true: *ret_text is the list, and the next step begins another one. */
struct mfl_page_jobs;
struct mfl_page_jobs *mfl_page_jobs_new(void); /* NULL: out of memory */
bool mfl_page_jobs_step(struct mfl_page_jobs *page, const struct mfl_jobs *jobs, struct mfl_text *ret_text);
void mfl_page_jobs_free(struct mfl_page_jobs *page); /* NULL is fine */

/* pages_json.c: in the vocabulary of proto/json/json.h. */
/* Writes the object as a line, and takes it; NULL: memory ran out. */
struct json_t;
void mfl_page_put_json(struct mfl_text *text, struct json_t *object);
void mfl_page_daemons(const struct mfl_pages *pages, struct mfl_text *text);
void mfl_page_timeline(const struct mfl_pages *pages, struct mfl_text *text);
void mfl_page_job(
        const struct mfl_server_job *job, const struct mfl_store_rounds *rounds, struct mfl_text *text);
/* partition NULL: no daemon has told yet. */
void mfl_page_partition(
        const struct mfl_server_job *job, const Mfl__Partition *partition, struct mfl_text *text);
/* The job file, the newest MFL_PAGES_LINES_MAX lines of the job's log, and the newest scores (NULL: there are none). */
void mfl_page_file(const struct mfl_server_job *job, struct mfl_text *text);
void mfl_page_log(
        const struct mfl_server_job *job, const struct mfl_store_lines *lines, struct mfl_text *text);
void mfl_page_scores(const struct mfl_server_job *job, const Mfl__RoundScores *scores, struct mfl_text *text);

/* pages_html.c, pages_partition.c: the pages as they are without JavaScript. */
void mfl_html_login(const struct mfl_pages *pages, struct mfl_text *text);
void mfl_html_models(const struct mfl_pages *pages, struct mfl_text *text);
void mfl_html_overview(const struct mfl_pages *pages, struct mfl_text *text);
void mfl_html_job(const struct mfl_server_job *job, const struct mfl_store_rounds *rounds,
        const Mfl__Partition *partition, struct mfl_text *text);
void mfl_html_partition(const Mfl__Partition *partition, struct mfl_text *text);

#endif
