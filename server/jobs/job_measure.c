/* SPDX-License-Identifier: Apache-2.0 */
/* data.normalise: federated. Before a job is prepared, the sites are asked for their sums; the mean and deviation of all of them become part of the job file,
 * in the database and in memory, before any daemon sees it. So a restart, a clone and every daemon have the same numbers.
 *
 *     PREPARE -> as many sites as the job needs are there -> inquiry -> numbers -> the job's text -> prepared as any job
 *
 * A site that refuses is left out, with a line in the log. A site that was silent or failed, or data that do not add up, let the job ask again, until it is stopped. */
#include <math.h>

#include "common/base/log.h"
#include "common/settings/yaml_edit.h"
#include "server/jobs/job_internal.h"

#define AGAIN_MS 5000u
#define NUMBER_MAX 1e30 /* of job files */

bool mfl_server_job_measures(struct mfl_server_job *job, struct job_operation *op)
{
        if (job->spec->data.normalise.kind != MFL_NORMALISE_FEDERATED)
                return false;
        mfl_assert(!job->measure.op);
        job->measure.op = op;
        job->measure.next_ms = 0;
        mfl_server_job_use(job);
        return true;
}

static void log_line(const struct mfl_server_job *job, const char *text)
{
        uint64_t seq;
        mfl_log_job(MFL_LOG_INFO, job->id, "%s: %s", job->id, text);
        mfl_store_log(job->jobs->store, job->id, text, &seq);
}

/* It goes on: prepared, or released meanwhile. */
static void resume(struct mfl_server_job *job)
{
        struct job_operation *op = job->measure.op;
        job->measure.op = NULL;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
        mfl_server_job_unuse(job);
}

static uint32_t sites_needed(const struct mfl_job *spec)
{
        if (spec->data.partition != MFL_PARTITION_LOCAL)
                return 1;
        return MFL_MAX(MFL_MAX(spec->selection.daemons_min, spec->selection.clients), 1u);
}

void mfl_server_job_measure_beat(struct mfl_server_job *job)
{
        uint64_t now_ms = mfl_loop_now(job->jobs->loop);
        if (!job->measure.op || job->measure.asked)
                return;
        if (job->stage != MFL_STAGE_ADDED) {
                resume(job);
                return;
        }
        if (now_ms < job->measure.next_ms)
                return;
        job->measure.next_ms = now_ms + AGAIN_MS;
        job->measure.asked = job->jobs->ops->measure(job->jobs->user, job, sites_needed(job->spec));
        if (!job->measure.asked) /* sites are not there yet: look again soon */
                job->measure.next_ms = now_ms + 200;
}

static int set_numbers(struct mfl_server_job *job, const struct mfl_stats *stats, struct mfl_error *err)
{
        /* Targets follow; by number, because a column may have any name. */
        const struct mfl_shape *shape = &job->measure.op->prepare.data.shape;
        uint32_t n = (uint32_t)(shape->rank == 3 ? shape->dim[0] : shape->dim[shape->rank - 1]);
        if (n > stats->n_features)
                return mfl_fail(
                        err, MFL_INVALID, "the data set has no columns or channels that could be normalised");
        MFL_CLEANUP_FREE double *mean = mfl_calloc(2 * (size_t)n, sizeof *mean);
        if (!mean)
                return mfl_fail_memory(err, 2 * n * sizeof *mean, "means");
        for (uint32_t f = 0; f < n; f++) {
                if (stats->features[f].count)
                        mfl_stats_moments(stats, &stats->features[f], &mean[f], &mean[n + f]);
                if (!(mean[n + f] > 0)) /* a column of equal values */
                        mean[n + f] = 1;
                if (!(fabs(mean[f]) <= NUMBER_MAX && mean[n + f] <= NUMBER_MAX))
                        return mfl_fail(err, MFL_INVALID, "column %u has the mean %g and the deviation %g", f,
                                mean[f], mean[n + f]);
        }
        MFL_CLEANUP_FREE char *value = mfl_normalise_text(n, mean, mean + n);
        char *text = NULL;
        if (!value)
                return mfl_fail_memory(err, n, "data.normalise");
        int r = mfl_yaml_set(job->text, job->id, "data.normalise", value, &text, err);
        if (!r && mfl_normalise_give(&job->spec->data.normalise, n, mean, mean + n))
                r = mfl_fail_memory(err, n, "data.normalise");
        if (r) {
                free(text);
                return r;
        }
        free(job->text);
        job->text = text;
        job->measure.text_unstored = true;
        return 0;
}

void mfl_server_job_measured(struct mfl_server_job *job, const struct mfl_stats *stats, uint32_t answered,
        uint32_t silent, const char *told)
{
        struct mfl_error err = {""};
        char line[MFL_REASON_BYTES];
        job->measure.asked = false;
        if (!job->measure.op || job->stage != MFL_STAGE_ADDED)
                return; /* the beat sees to it */
        if (*told)
                log_line(job, told);
        int r = answered && !silent ? set_numbers(job, stats, &err) : MFL_BUSY;
        if (r < 0) {
                job_fatal(job, r, &err);
                return;
        }
        if (r) {
                mfl_snprintf(line, sizeof line, "mean and deviation are not measured yet: %s; asking again",
                        *err.text  ? err.text
                        : answered ? "not all sites have answered"
                                   : "no site has answered");
                log_line(job, line);
                return;
        }
        mfl_snprintf(line, sizeof line, "mean and deviation are those of %llu training samples at %u site%s",
                (unsigned long long)stats->samples, answered, answered == 1 ? "" : "s");
        log_line(job, line);
        resume(job);
}

int mfl_server_job_measure_store(struct mfl_server_job *job, struct mfl_error *err)
{
        if (!job->measure.text_unstored)
                return 0;
        int r = mfl_store_job_set_text(job->jobs->store, job->id, job->text, err);
        job->measure.text_unstored = r != 0;
        return r;
}

void mfl_server_job_measure_end(struct mfl_server_job *job)
{
        if (!job->measure.op)
                return;
        mfl_job_operation_free(job->measure.op);
        job->measure.op = NULL;
        job->operations--;
}
