/* SPDX-License-Identifier: Apache-2.0 */
/* The server's counters. */
#include "server/observe/observed.h"

const struct mfl_bounds mfl_round_bounds = {12, {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}};
const struct mfl_bounds mfl_lag_bounds = {9, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2}};

int mfl_observed_open(
        struct mfl_observed *seen, bool with_timeline, uint64_t now_unix_ms, struct mfl_error *err)
{
        *seen = (struct mfl_observed){.started_unix_ms = now_unix_ms};
        if (with_timeline && !(seen->timeline = mfl_calloc(1, sizeof *seen->timeline)))
                return mfl_fail_memory(err, sizeof *seen->timeline, "a timeline");
        return 0;
}

void mfl_observed_close(struct mfl_observed *seen)
{
        free(seen->timeline);
        seen->timeline = NULL;
}

void mfl_observed_round(
        struct mfl_observed *seen, struct mfl_job_observed *job, const char *id, uint64_t now_ms)
{
        const struct mfl_round_record *record = &job->record;
        mfl_assert(record->round && record->started_ms <= record->ended_ms);
        seen->rounds_committed++;
        seen->clients_rejected += record->clients_rejected;
        job->rounds++;
        job->clients += record->clients;
        job->clients_rejected += record->clients_rejected;
        mfl_histogram_add(&job->round_seconds, &mfl_round_bounds,
                (double)(record->ended_ms - record->started_ms) / 1e3);
        if (record->evaluated) {
                job->evaluated = true;
                job->accuracy = record->accuracy;
                job->loss = record->loss;
        }
        if (seen->timeline)
                mfl_timeline_round(seen->timeline, id, record, now_ms);
}

void mfl_observed_beat(struct mfl_observed *seen, uint64_t now_ns, uint64_t period_ms)
{
        uint64_t due = seen->beat_ns + period_ms * 1000000u;
        if (seen->beat_ns)
                mfl_histogram_add(&seen->loop_lag_seconds, &mfl_lag_bounds,
                        now_ns > due ? (double)(now_ns - due) / 1e9 : 0);
        seen->beat_ns = now_ns;
}
