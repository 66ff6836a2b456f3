/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the core during a step: actions, trace lines, and the time of its next timer. */
#ifndef MFL_SERVER_STATE_CORE_OUT_H
#define MFL_SERVER_STATE_CORE_OUT_H

#include "server/state/action.h"

struct core_daemon;
struct core_job;
struct mfl_core;

/* Appends an action and returns it. If memory is out, core->error is set and the result is scrap. */
struct mfl_core_action *mfl_core_act(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_job *job);
void mfl_core_action_deinit(struct mfl_core_action *action);
/* Appends a line to the trace. job may be NULL. */
void mfl_core_trace(struct mfl_core *core, const struct core_job *job, const char *fmt, ...) MFL_PRINTF(3, 4);
/* Returns the message to fill in. The daemon must be connected. */
struct mfl_msg *mfl_core_send(struct mfl_core *core, struct core_daemon *daemon, enum mfl_msg_kind kind);
void mfl_core_send_close(struct mfl_core *core, uint32_t conn, bool retry, const char *reason);
/* Timers run at this time at the latest. */
void mfl_core_wake(struct mfl_core *core, uint64_t at_ms);
/* A new number for a task, a group or a communicator; never returned twice. */
uint64_t mfl_core_number(struct mfl_core *core);

#endif
