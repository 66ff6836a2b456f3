/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons come and go: connections, grace time, liveness, drain, and expulsion.
 *
 * A daemon that is heard from is alive, however slow it is. If its connection breaks, it keeps its tasks for
 * reconnect_grace_ms, unless another process appears under its name. Bytes of its uploads stay in their slots
 * for that time. There is no grace time for a daemon that says Bye with retry = false, or is expelled. A
 * daemon that says Leaving keeps its tasks and gets no others, as if it were drained, until its process
 * ends.
 */
#ifndef MFL_SERVER_WORK_CORE_PRESENCE_H
#define MFL_SERVER_WORK_CORE_PRESENCE_H

#include "server/state/state.h"

/* False: another process with this name is connected; nothing was done. */
bool mfl_core_daemon_up(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained);
void mfl_core_daemon_down(struct mfl_core *core, struct core_daemon *daemon, const char *why);
/* Says Bye and closes the connection; the tasks have their grace time. */
void mfl_core_daemon_close(
        struct mfl_core *core, struct core_daemon *daemon, bool retry, const char *fmt, ...) MFL_PRINTF(4, 5);
/* The daemon said that it will not come back. */
void mfl_core_daemon_left(struct mfl_core *core, struct core_daemon *daemon, const char *reason);
void mfl_core_daemon_leaving(struct mfl_core *core, struct core_daemon *daemon, const char *reason);
void mfl_core_daemon_timers(struct mfl_core *core, struct core_daemon *daemon, uint64_t *next_ms);
void mfl_core_daemon_drain(struct mfl_core *core, const char *name, bool on);
void mfl_core_daemon_expel(struct mfl_core *core, const char *name, const char *reason);
/* It reported something impossible: it is accused by name and expelled for good. Don't use the daemon after
 * this call: it may be freed. */
void mfl_core_daemon_lied(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job,
        const char *fmt, ...) MFL_PRINTF(4, 5);

#endif
