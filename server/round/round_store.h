/* SPDX-License-Identifier: Apache-2.0 */
/* Storing an applied round, while its job goes on (the diagram is in core.h).
 *
 *   EMPTY --> CHECKPOINT --ok--> CHECKPOINTED --the record is complete--> COMMIT --ok--> EMPTY
 *               |    ^                                                    |    ^
 *             failed | every 5 s                                        failed | every 5 s
 *               v    |                                                    v    |
 *           CHECKPOINT_RETRY                                            COMMIT_RETRY
 *
 * While the disk fails, the job's reason tells why it waits.
 */
#ifndef MFL_SERVER_ROUND_ROUND_STORE_H
#define MFL_SERVER_ROUND_ROUND_STORE_H

#include "server/state/state.h"

/* Begins to store the round at hand, with its record as far as it is known. */
void mfl_round_store_begin(struct mfl_core *core, struct core_job *job);
/* Commits once the checkpoint is on disk and the record is complete. */
void mfl_round_store_progress(struct mfl_core *core, struct core_job *job);
/* Repeats what the disk refused. */
void mfl_round_store_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);
void mfl_round_checkpointed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason);
void mfl_round_committed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason);

#endif
