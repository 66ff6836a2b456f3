/* SPDX-License-Identifier: Apache-2.0 */
/* What is measured while daemons work: the time of tasks, the speed of uploads, and what daemons hold.
 * How these numbers are used is in server/round/round_speed.h.
 */
#ifndef MFL_SERVER_WORK_CORE_MEASURE_H
#define MFL_SERVER_WORK_CORE_MEASURE_H

#include "server/state/state.h"

/* The daemon has sent the last message about the task. */
void mfl_core_measure_task(struct mfl_core *core, struct core_task *task);
/* All bytes of the update are here. */
void mfl_core_measure_upload(const struct mfl_core *core, const struct core_update *update);
/* The daemon announced a result for an earlier start of the server; it will be wanted. */
void mfl_core_measure_held(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job,
        const struct mfl_announce *announce);

#endif
