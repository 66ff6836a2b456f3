/* SPDX-License-Identifier: Apache-2.0 */
/* How the disk does. */
#include "server/observe/disk.h"

#define FAILING_MS 30000u /* what failed is tried again every few seconds; older failures say nothing */

const struct mfl_bounds mfl_disk_bounds = {
        12, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30}};

const char *mfl_disk_op_name(enum mfl_disk_op op)
{
        static const char *const names[] = {"checkpoint", "commit", "state", "log"};
        _Static_assert(MFL_ARRAY_SIZE(names) == MFL_DISK_OPS_, "an operation without a name");
        mfl_assert(op < MFL_DISK_OPS_);
        return names[op];
}

void mfl_disk_note(struct mfl_disk_seen *seen, enum mfl_disk_op op, bool ok, const char *why, uint64_t now_ms)
{
        mfl_assert(op < MFL_DISK_OPS_);
        seen->failed_ms[op] = ok ? 0 : MFL_MAX(now_ms, (uint64_t)1);
        if (ok)
                return;
        seen->failures[op]++;
        mfl_strcpy(seen->reason, sizeof seen->reason, why);
}

const char *mfl_disk_failing(const struct mfl_disk_seen *seen, uint64_t now_ms)
{
        for (int op = 0; op < MFL_DISK_OPS_; op++)
                if (seen->failed_ms[op] && now_ms - seen->failed_ms[op] < FAILING_MS)
                        return seen->reason;
        return NULL;
}
