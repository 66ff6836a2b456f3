/* SPDX-License-Identifier: Apache-2.0 */
/* How long jobs that have ended are kept. Pure: no I/O, no clock. */
#ifndef MFL_SERVER_JOBS_RETENTION_H
#define MFL_SERVER_JOBS_RETENTION_H

#include "common/base/base.h"

/* keep_ended and keep_ended_max of server.yaml; 0: no limit. */
struct mfl_retention {
        uint64_t keep_ms;
        uint32_t keep_max;
};

enum mfl_retention_verdict {
        MFL_RETENTION_KEEP,
        MFL_RETENTION_OLD,  /* the first one has ended too long ago */
        MFL_RETENTION_MANY, /* there are more than keep_max */
};
/* What to do with the job that ended first, of n_ended that have ended; finished_ms and now_ms are Unix time. A job without
 * a time, 0, is only counted. */
enum mfl_retention_verdict mfl_retention_check(
        const struct mfl_retention *limits, size_t n_ended, uint64_t finished_ms, uint64_t now_ms);
/* Why, for the audit and the log. Returns buf. */
const char *mfl_retention_text(
        const struct mfl_retention *limits, enum mfl_retention_verdict verdict, char *buf, size_t buf_bytes);

#endif
