/* SPDX-License-Identifier: Apache-2.0 */
/* What a service exchanges with its service manager: readiness, status, watchdog, inherited sockets, the journal.
 * Implemented with libsystemd (systemd.c). Without it (systemd_absent.c), and in a program that no manager started,
 * all of this does nothing, and the program runs as it would at a prompt.
 *
 * Any thread, except mfl_systemd_listeners, which changes the environment: call it at the start of a program.
 */
#ifndef MFL_COMMON_BASE_SYSTEMD_H
#define MFL_COMMON_BASE_SYSTEMD_H

#include "common/base/base.h"

/* Whether a manager listens to this process ($NOTIFY_SOCKET). If not, no texts need to be composed. */
bool mfl_systemd_listens(void);

/* Like sd_notify(3): assignments, one per line, such as "READY=1". What cannot be sent is lost. May wait while the
 * manager's socket is full, which takes hundreds of unread messages. */
void mfl_systemd_notify(const char *state);

/* The line that `systemctl status` shows; control characters are replaced by '?'. */
void mfl_systemd_status(const char *fmt, ...) MFL_PRINTF(1, 2);

/* Reports that a reload begins; READY=1 ends it. Includes the timestamp that Type=notify-reload requires. */
void mfl_systemd_reloading(void);

/* How long the manager waits for a sign of life before it kills this process, in ms; 0: it does not. */
uint64_t mfl_systemd_watchdog_ms(void);

/* The listening TCP sockets that the manager has opened for this process (sd_listen_fds(3)): writes the descriptors,
 * which the caller owns from then on, and their number (0: none). They are copies: a server that is closed and opened again in
 * the same process asks again. MFL_INVALID: a descriptor of another kind, or more than max. */
int mfl_systemd_listeners(int *ret_fds, uint32_t max, uint32_t *ret_n, struct mfl_error *err);

/* Sends one entry to the journal: text, priority (3 error ... 7 debug), the program's name, and MFL_JOB=job
 * unless job is NULL or "". False when no journal can be reached; the caller then writes elsewhere. */
bool mfl_systemd_journal(const char *program, int priority, const char *job, const char *text);

#endif
