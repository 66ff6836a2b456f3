/* SPDX-License-Identifier: Apache-2.0 */
/* What the server counts for metrics and pages from events and actions as they pass. Counters never fall
 * while the process lives, and none is on disk. What a room does by itself (connections, refusals) it counts
 * itself.
 */
#ifndef MFL_SERVER_OBSERVE_OBSERVED_H
#define MFL_SERVER_OBSERVE_OBSERVED_H

#include "server/observe/disk.h"
#include "server/observe/timeline.h"

/* Of the whole server. */
struct mfl_observed {
        uint64_t started_unix_ms;
        uint64_t uploads_refused[MFL_REFUSED_UNKNOWN + 1];
        uint64_t updates_added, updates_rejected, clients_rejected, rounds_committed;
        struct mfl_disk_seen disk;
        struct mfl_histogram loop_lag_seconds;
        uint64_t beat_ns;
        struct mfl_timeline *timeline; /* NULL: no HTTP port, so nobody can look */
};
/* Of a job, since this start of the server. */
struct mfl_job_observed {
        uint64_t bytes_up, bytes_down; /* updates from and params to its daemons */
        struct mfl_histogram round_seconds;
        uint64_t rounds, clients, clients_rejected;
        uint64_t checkpoint_ns, commit_ns; /* when the order was given; 0: none is pending */
        struct mfl_round_record record;    /* being committed */
        struct mfl_team_totals teams;      /* when the core released the job; before, the core has them */
        bool evaluated;
        double accuracy, loss; /* of the last evaluated round */
};
extern const struct mfl_bounds mfl_round_bounds, mfl_lag_bounds; /* seconds */

/* with_timeline: whether to keep one. -ENOMEM. */
int mfl_observed_open(
        struct mfl_observed *seen, bool with_timeline, uint64_t now_unix_ms, struct mfl_error *err);
void mfl_observed_close(struct mfl_observed *seen);
/* A round of the job was committed, as job->record says. */
void mfl_observed_round(
        struct mfl_observed *seen, struct mfl_job_observed *job, const char *id, uint64_t now_ms);
/* From a timer of that period: how late the loop is. */
void mfl_observed_beat(struct mfl_observed *seen, uint64_t now_ns, uint64_t period_ms);

#endif
