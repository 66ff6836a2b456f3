/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on stderr: "HH:MM:SS mfl-server: warning: text", or with the journal's "<4>" priority in front
 * and no time when stderr is a service manager's ($JOURNAL_STREAM names its device and inode). One line is
 * one write. When that stream is the journal's own socket, lines become journal entries with fields (systemd.h).
 * Control characters in the text, which may come from a peer, are replaced by '?'. Any thread.
 */
#ifndef MFL_COMMON_BASE_LOG_H
#define MFL_COMMON_BASE_LOG_H

#include "common/base/base.h"

enum mfl_log_level {
        MFL_LOG_ERROR,
        MFL_LOG_WARN,
        MFL_LOG_INFO,
        MFL_LOG_DEBUG,
};

/* At the start of a program, before threads: its name, and the least important level that is shown (default
 * MFL_LOG_INFO). program is not copied. */
void mfl_log_init(const char *program, enum mfl_log_level level);

/* Formats one line; text over 2000 bytes is cut and ends with "...". Never fails, leaves errno alone. */
void mfl_log(enum mfl_log_level level, const char *fmt, ...) MFL_PRINTF(2, 3);

/* The same, with the journal field MFL_JOB=job, so that the text need not name the job; "" for none. */
void mfl_log_job(enum mfl_log_level level, const char *job, const char *fmt, ...) MFL_PRINTF(3, 4);

/* Changes the least important level that is shown. Any thread. */
void mfl_log_set_level(enum mfl_log_level level);

/* Also passes every line that is shown to sink (NULL: to no function), without time and program. Called under the
 * log's lock, on the thread that logs: sink must be quick and must not log. */
typedef void mfl_log_sink(void *user, enum mfl_log_level level, const char *text);
void mfl_log_set_sink(mfl_log_sink *sink, void *user);

/* "error", "warning", "info", "debug"; and back, false when it is none of them ("warn" is one too). */
const char *mfl_log_level_name(enum mfl_log_level level);
bool mfl_log_level_parse(const char *name, enum mfl_log_level *ret_level);

#endif
