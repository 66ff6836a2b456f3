/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's steps take on this machine, for `mfl plan`. */
#ifndef MFL_CLI_JOB_PLAN_MEASURE_H
#define MFL_CLI_JOB_PLAN_MEASURE_H

#include "common/job/job.h"
#include "common/model/graph.h"
#include "common/parallel/plan.h"

/* Sizes by the backend's own count. MFL_INVALID where it has no gradients of grains. */
int mfl_plan_sizes(const char *backend, const struct mfl_job *job, const struct mfl_graph *graph,
        struct mfl_parallel_facts *ret_facts, struct mfl_error *err);
/* Adds the times: one worker alone takes some steps with random samples, two threads exchange gradients over shared memory, and two
 * workers of a team over shared memory take steps in each stage. With a GPU, of which each member has its own, one worker is measured alone. Takes as much
 * memory as two daemons, some seconds, and two cores. */
int mfl_plan_measure(const char *backend, const struct mfl_job *job, const struct mfl_graph *graph,
        struct mfl_parallel_facts *facts, struct mfl_error *err);

#endif
