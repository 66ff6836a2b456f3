/* SPDX-License-Identifier: Apache-2.0 */
/* Taking back from a task what is neither counted nor being added. */
#ifndef MFL_SERVER_WORK_CORE_RECLAIM_H
#define MFL_SERVER_WORK_CORE_RECLAIM_H

#include "server/state/state.h"

/* The task loses its daemon; its items become `to` (OPEN or MISSING). It must not be in a group, unless the
 * group's sum is being added. */
void mfl_core_task_reclaim(struct mfl_core *core, struct core_task *task, enum item_state to);

#endif
