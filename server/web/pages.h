/* SPDX-License-Identifier: Apache-2.0 */
/* What the server shows over HTTP: metrics, JSON and the dashboard, made on the loop thread from read-only
 * views of the server, and handed to http.h. What only the database knows (the rounds of a job) is read by
 * the disk worker, for one page at a time, so that looking never delays a commit by more than one query. */
#ifndef MFL_SERVER_WEB_PAGES_H
#define MFL_SERVER_WEB_PAGES_H

#include "common/base/budget.h"
#include "server/daemons/daemon.h"
#include "server/web/http.h"

struct mfl_pages {
        struct mfl_loop *loop;
        struct mfl_store *store;
        const struct mfl_server_config *config;
        const struct mfl_jobs *jobs;
        struct mfl_sessions *sessions;
        const struct mfl_gate *gate;
        const struct mfl_budget *budget;
        struct mfl_observed *observed;
        struct mfl_logins *logins;
        /* Private. */
        struct mfl_http *http;           /* NULL: no HTTP port */
        struct mfl_page_jobs *list;      /* NULL: no HTTP port; then list_turn is no handle */
        uv_timer_t list_turn;            /* the list's next piece */
        struct mfl_page_detail *details; /* pages that wait for the database; the worker has the first */
        struct mfl_web_act *acts;        /* that are being done (acts.h) */
        uint32_t n_models;               /* that the disk worker makes files of */
        uint64_t wrong_ms;               /* when the audit got the last row of a wrong code; 0: never */
        uint32_t n_wrong;                /* wrong codes since */
        char cookie[40], host[256];      /* the name of logins' cookies; the host of http_url */
        bool ready;                      /* jobs are loaded, and connections are taken */
};

/* Opens the HTTP port if the configuration has one. MFL_INVALID: its address can't be used as it is given. */
int mfl_pages_open(struct mfl_pages *pages, struct mfl_error *err);
/* Reads the files of TLS again. MFL_INVALID: the old ones stay. */
int mfl_pages_renew(struct mfl_pages *pages, struct mfl_error *err);
/* From now on /readyz says yes. */
void mfl_pages_ready(struct mfl_pages *pages);
/* From a timer: the loop turns, and how the server does. */
void mfl_pages_beat(struct mfl_pages *pages);
void mfl_pages_close(struct mfl_pages *pages);

#endif
