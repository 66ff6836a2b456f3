/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of operators (`mfl`): requests and their answers, and watchers that hear when something
 * changes. What memory knows is answered at once; what the database must do goes to the disk worker and is
 * answered when it is done. A request that fails gets a Failure, and the connection stays. Loop thread only.
 *
 *     operator.c   which file answers which message     (top)
 *     jobs.c pull.c stop.c submit.c daemons.c drain.c login.c rules.c watch.c
 *     retain.c     deletes old jobs by itself
 *     permit.c     who may do what
 *     request.c    requests on the disk worker, answers (bottom)
 */
#ifndef MFL_SERVER_ADMIN_ADMIN_H
#define MFL_SERVER_ADMIN_ADMIN_H

#include "common/base/budget.h"
#include "server/access/gate.h"
#include "server/inquiry/inquiry.h"
#include "server/jobs/job.h"
#include "server/jobs/retention.h"
#include "server/session/session.h"

struct mfl_admin {
        struct mfl_loop *loop;
        struct mfl_store *store;
        struct mfl_budget *budget;
        struct mfl_jobs *jobs;
        struct mfl_sessions *sessions;
        struct mfl_gate *gate;
        struct mfl_book *book;
        struct mfl_inquiries *inquiries;
        struct mfl_logins *logins;
        struct mfl_retention retention; /* may change at any time */
        uint64_t moves_max;             /* bytes of jobs that are on their way here */
        /* Private. */
        bool retaining;                /* a job is being deleted */
        bool retain_failed;            /* the last one was not, and the log says so */
        struct mfl_drain_wait *drains; /* operators that wait until a daemon is idle */
        uint32_t n_operators, n_log_watchers;
};

/* What an operator's session has. */
struct mfl_operator_peer {
        struct mfl_watcher *watchers;
        struct mfl_model_watcher *model_watchers;
        Mfl__Serving *serving;             /* the newest that it told; NULL: none */
        struct mfl_submission *submission; /* NULL: no initial params are coming */
        struct mfl_asking *asking;         /* NULL: no model of an inquiry is coming */
};

/* Takes over the sessions of operators. */
void mfl_admin_open(struct mfl_admin *admin);
/* At the start, when the jobs are there: which of them have registered models. Blocks. */
int mfl_admin_open_registry(struct mfl_admin *admin, struct mfl_error *err);
/* A few times a second: tells watchers of jobs that changed, and operators of daemons that are idle by now.
 */
void mfl_admin_beat(struct mfl_admin *admin);
/* About once a second: deletes jobs that ended too long ago, or are too many (retain.c). */
void mfl_admin_retain(struct mfl_admin *admin);
/* For watchers: job->last was committed; a line of the log of a job. */
void mfl_admin_round(struct mfl_admin *admin, const struct mfl_server_job *job);
void mfl_admin_log(
        struct mfl_admin *admin, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text);

#endif
