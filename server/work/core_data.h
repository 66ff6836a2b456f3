/* SPDX-License-Identifier: Apache-2.0 */
/* Which data set a job uses, and which daemons a waiting job lacks, and why.
 *
 * The first data set that a job uses decides what the others must be: equal in shape, number of classes and
 * meaning (if both tell it), and for a simulated population in content. JOB_PREPARE and JOB_DATA give it to
 * the shell to store; JOB_ADD gives it back after a restart.
 */
#ifndef MFL_SERVER_WORK_CORE_DATA_H
#define MFL_SERVER_WORK_CORE_DATA_H

#include "server/state/state.h"

/* False: no daemon has fitting data and takes work. The first such daemon decides, if nothing is decided. */
bool mfl_core_data_decide(struct mfl_core *core, struct core_job *job);
/* The job is prepared; or a daemon came, or takes work again: its data are compared, and people are told. */
void mfl_core_data_ready(struct mfl_core *core, struct core_job *job);
void mfl_core_data_arrived(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon);
/* Why the job waits: no daemon is usable; or only `usable` of `need` daemons are. */
void mfl_core_data_lack(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES]);
void mfl_core_data_missing(const struct mfl_core *core, const struct core_job *job, uint32_t usable,
        uint32_t need, char ret_text[MFL_REASON_BYTES]);

#endif
