/* SPDX-License-Identifier: Apache-2.0 */
/* The administrator's way to a daemon: the socket policy.dir/NAME.sock, mode 0600, so only the daemon's user and root can
 * connect. A connection has one line ("approve JOB", "deny JOB", "jobs", "budget") and one answer (client/policy/gate.h), then ends. */
#ifndef MFL_CLIENT_POLICY_CONTROL_H
#define MFL_CLIENT_POLICY_CONTROL_H

#include <uv.h>

#include "client/policy/gate.h"

struct mfl_control;

/* The gate outlives it. MFL_INVALID: the path is too long, or another daemon listens there. Loop thread. */
int mfl_control_open(uv_loop_t *loop, const char *dir, const char *name, struct mfl_gate *gate,
        struct mfl_control **ret_control, struct mfl_error *err);
/* Removes the socket and closes; the memory goes on the loop. NULL is fine. */
void mfl_control_close(struct mfl_control *control);

/* The other side: sends the line to each daemon of the directory and prints the answers. Blocks. The program's exit
 * status: 0, or 1 if no daemon did what was asked. */
int mfl_control_tell(const char *dir, const char *line);

#endif
