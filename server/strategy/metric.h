/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics that an administrator adds (include/mfl/metric.h): found for a job, and measured from an evaluation's exact sums.
 *
 * A metric's crash is the server's. Each evaluation is noted in a file of the job's before the first metric is called, and the note is removed
 * after the last one. A job whose note has counted three crashes goes on without metrics. */
#ifndef MFL_SERVER_STRATEGY_METRIC_H
#define MFL_SERVER_STRATEGY_METRIC_H

#include "common/job/job_record.h"
#include "common/plugin/object.h"

struct mfl_job;
extern const struct mfl_plugin_kind mfl_metric_kind;

/* Sets object and values of the job's metrics. MFL_NOT_FOUND: one is not loaded; MFL_INVALID: its numbers are wrong, or it has nothing
 * to be made of. */
int mfl_metrics_resolve(
        const struct mfl_plugin_objects *objects, struct mfl_job *spec, struct mfl_error *err);
/* "metric f-beta 1.0 (beta 2), sha256 0123...", of the k-th metric of a resolved job. */
void mfl_metrics_describe(const struct mfl_job *spec, uint32_t k, char *text, size_t bytes);

/* sums: the tally of `answers` classes or target values (common/measure/tally.h), of a round that was evaluated. mark: the file of the note.
 * On any thread, one at a time for each job. MFL_INVALID: the metrics have crashed too often, and none is measured. */
int mfl_metrics_measure(const struct mfl_job *spec, const char *mark, const struct mfl_round_record *record,
        const uint64_t *sums, uint32_t answers, struct mfl_metrics *ret_metrics, struct mfl_error *err);

#endif
