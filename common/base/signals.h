/* SPDX-License-Identifier: Apache-2.0 */
/* The signals of a daemon that has no loop yet. */
#ifndef MFL_COMMON_BASE_SIGNALS_H
#define MFL_COMMON_BASE_SIGNALS_H

/* Call it at the start of a service, once it is clear that a service is to run, and before its first line of log.
 * From then on SIGTERM and SIGINT end the process with status 0, as the handlers of its loop do, which replace these
 * later (uv_signal_start). Nothing is lost: the files on disk survive a SIGKILL at any time. SIGPIPE is ignored. Call
 * it on the main thread, before it starts other threads.
 */
void mfl_signals_init(void);

#endif
