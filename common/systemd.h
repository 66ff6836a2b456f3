/* SPDX-License-Identifier: Apache-2.0 */
/* What a service tells its manager and takes from it: readiness, status, watchdog, inherited sockets, the
 * journal. By libsystemd (systemd.c); without it (systemd_absent.c) and in a program that no manager started
 * all of this does nothing, and the program runs on as it would at a prompt.
 *
 * Any thread, but for mfl_systemd_listeners, which is for the start of a program: it changes the environment.
 */
#ifndef MFL_COMMON_SYSTEMD_H
#define MFL_COMMON_SYSTEMD_H

#include "common/base.h"

/* Whether a manager listens to this process ($NOTIFY_SOCKET): nobody need compose texts for nobody. */
bool mfl_systemd_listens(void);

/* As sd_notify(3): assignments, one a line, such as "READY=1". What can't be sent is lost. May wait while the
 * manager's socket is full, which takes hundreds of unread messages. */
void mfl_systemd_notify(const char *state);

/* The line that `systemctl status` shows; control characters are replaced by '?'. */
void mfl_systemd_status(const char *fmt, ...) MFL_PRINTF(1, 2);

/* Says that a reload begins; READY=1 ends it. Carries the clock that Type=notify-reload wants. */
void mfl_systemd_reloading(void);

/* How long the manager waits for a sign of life before it kills this process, in ms; 0: it does not. */
uint64_t mfl_systemd_watchdog_ms(void);

/* Sockets that the manager has opened for this process (sd_listen_fds(3)): writes the descriptors, which
 * listen on TCP and are the caller's from here on, and their number, 0 without any. MFL_INVALID: a
 * descriptor of another kind, or more than max. */
int mfl_systemd_listeners(int *ret_fds, uint32_t max, uint32_t *ret_n, struct mfl_error *err);

/* Sends one entry to the journal: text, priority (3 error ... 7 debug), the program's name, and MFL_JOB=job
 * where job isn't NULL or "". False when there is no journal to be reached; the caller writes elsewhere. */
bool mfl_systemd_journal(const char *program, int priority, const char *job, const char *text);

#endif
