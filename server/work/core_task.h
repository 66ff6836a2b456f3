/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: giving work to daemons, and taking it back. */
#ifndef MFL_SERVER_WORK_CORE_TASK_H
#define MFL_SERVER_WORK_CORE_TASK_H

#include "server/state/state.h"

/* Gives items[index[0 .. n)] to the daemon as one task, which mfl_core_task_send sends. */
void mfl_core_task_give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon,
        const uint32_t *index, uint32_t n);
void mfl_core_task_send(struct mfl_core *core, struct core_task *task);
/* Sends the job's file, unless this connection has had it. */
void mfl_core_task_spec(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job);
/* After a lost connection; without its group. */
void mfl_core_task_send_again(struct mfl_core *core, struct core_task *task);
/* The daemon's connection is lost: updates in the queue must be announced again; those in slots stay
 * there. */
void mfl_core_task_offline(struct mfl_core *core, struct core_task *task);
/* Takes the task out of its group, and back from its daemon; see core_reclaim.h. */
void mfl_core_task_take(struct mfl_core *core, struct core_task *task, enum item_state to);

#endif
