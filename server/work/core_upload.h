/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads: slots, in the order in which updates were announced, and what becomes of their bytes.
 *
 * An upload that is silent for upload_stall_ms gives its slot to the next one that waits, and waits again. If
 * no other waits, the server asks for the missing bytes again. A group's sum that stalls ends its group, so
 * that the members upload alone. A byte of any upload from the daemon is enough not to stall.
 */
#ifndef MFL_SERVER_WORK_CORE_UPLOAD_H
#define MFL_SERVER_WORK_CORE_UPLOAD_H

#include "server/state/state.h"

/* Gives free slots to updates that wait, and takes slots from uploads that stall. */
void mfl_core_slots_grant(struct mfl_core *core, struct core_job *job);
/* Asks for the missing bytes of a FILLING update. */
void mfl_core_update_grant(struct mfl_core *core, struct core_update *update);
/* UPLOAD_COMPLETE, SLOT_BUSY, ADDED. */
void mfl_core_slot_event(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
void mfl_core_slots_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);

#endif
