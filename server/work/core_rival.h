/* SPDX-License-Identifier: Apache-2.0 */
/* Rivals: a second process under the name of a connected daemon.
 *
 * The rival waits for its Welcome while the server asks the first process for a Pong. If it answers, or is
 * heard from for 8 s, the rival is refused with retry. If it stays silent for 2 s, the server closes its
 * connection, also with retry, and the rival comes in. Nothing else ends the first process.
 */
#ifndef MFL_SERVER_WORK_CORE_RIVAL_H
#define MFL_SERVER_WORK_CORE_RIVAL_H

#include "server/state/state.h"

void mfl_core_rival_add(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained);
void mfl_core_rival_pong(struct mfl_core *core, struct core_daemon *daemon, uint64_t cookie);
void mfl_core_rival_gone(struct mfl_core *core, uint32_t conn);
void mfl_core_rival_expel(struct mfl_core *core, const char *name, const char *reason);
void mfl_core_rivals_timers(struct mfl_core *core, uint64_t *next_ms);
/* Lets those in whose name is free by now. */
void mfl_core_rivals_admit(struct mfl_core *core);
void mfl_core_rivals_free(struct mfl_core *core);

#endif
