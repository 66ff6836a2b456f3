/* SPDX-License-Identifier: Apache-2.0 */
/* How long jobs that have ended are kept. */
#include "server/jobs/retention.h"

#include <inttypes.h>

enum mfl_retention_verdict mfl_retention_check(
        const struct mfl_retention *limits, size_t n_ended, uint64_t finished_ms, uint64_t now_ms)
{
        if (!n_ended || !finished_ms)
                return MFL_RETENTION_KEEP;
        /* The clock may have been set back. */
        if (limits->keep_ms && now_ms > finished_ms && now_ms - finished_ms >= limits->keep_ms)
                return MFL_RETENTION_OLD;
        return limits->keep_max && n_ended > limits->keep_max ? MFL_RETENTION_MANY : MFL_RETENTION_KEEP;
}

const char *mfl_retention_text(
        const struct mfl_retention *limits, enum mfl_retention_verdict verdict, char *buf, size_t buf_bytes)
{
        mfl_assert(verdict != MFL_RETENTION_KEEP);
        if (verdict == MFL_RETENTION_OLD)
                mfl_snprintf(buf, buf_bytes, "it ended more than %" PRIu64 " s ago (keep_ended)",
                        limits->keep_ms / 1000);
        else
                mfl_snprintf(buf, buf_bytes, "more than %" PRIu32 " jobs have ended (keep_ended_max)",
                        limits->keep_max);
        return buf;
}
