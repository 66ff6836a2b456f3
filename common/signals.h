/* SPDX-License-Identifier: Apache-2.0 */
/* The signals of a daemon that has no loop yet. */
#ifndef MFL_COMMON_SIGNALS_H
#define MFL_COMMON_SIGNALS_H

/* For the start of a service, once it is known that one is to run, and before its first line. SIGTERM and
 * SIGINT end the process with status 0 from here on: what has not begun is stopped when it goes, just as it
 * would be by its loop's own handlers, which replace these (uv_signal_start). Whatever is on disk bears a
 * SIGKILL at any time, so nothing is lost. SIGPIPE is ignored. The starting thread, before it makes others.
 */
void mfl_signals_init(void);

#endif
