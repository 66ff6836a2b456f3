/* SPDX-License-Identifier: Apache-2.0 */
/* Updates: the queue for slots, counting, and the answers to their daemons. An update counts once. */
#ifndef MFL_SERVER_WORK_CORE_UPDATE_H
#define MFL_SERVER_WORK_CORE_UPDATE_H

#include "server/state/state.h"

/* An action about the update's slot. A group's sum has the group's number as its task, and the sum of the
 * weights. */
struct mfl_core_action *mfl_core_update_act(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_update *update);
/* It waits for a slot, for itself or as its group's leader. */
void mfl_core_update_enqueue(struct mfl_core *core, struct core_update *update);
/* Of a secure sum: it is masked later, and its daemon tells new keys. */
void mfl_core_update_hold(struct core_update *update);
/* As enqueue, but it keeps its turn. */
void mfl_core_update_enqueue_first(struct mfl_core *core, struct core_update *update);
void mfl_core_update_dequeue(struct core_job *job, struct core_update *update);
/* QUEUED or FILLING: it gives up its place or slot, and waits for its group. */
void mfl_core_update_unslot(struct mfl_core *core, struct core_update *update);
void mfl_core_update_free_slot(struct mfl_core *core, struct core_update *update);
/* Forgets an update that is not being added, and is in no group, as if it had never been announced. */
void mfl_core_update_drop(struct mfl_core *core, struct core_update *update);
void mfl_core_update_count(struct mfl_core *core, struct core_update *update);
/* It is invalid, and would be invalid again. */
void mfl_core_update_refuse(struct mfl_core *core, struct core_update *update, const char *reason);
/* These send nothing if the daemon is NULL or lost. */
void mfl_core_send_accepted(
        struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update);
void mfl_core_send_refused(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update,
        enum mfl_refused code, const char *reason);

#endif
