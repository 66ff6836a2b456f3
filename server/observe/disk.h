/* SPDX-License-Identifier: Apache-2.0 */
/* How the disk does: failures by operation, and how long checkpoints and commits take. Loop thread only. */
#ifndef MFL_SERVER_OBSERVE_DISK_H
#define MFL_SERVER_OBSERVE_DISK_H

#include "proto/message.h"
#include "server/observe/histogram.h"

/* What the server asks of the disk. */
enum mfl_disk_op {
        MFL_DISK_CHECKPOINT,
        MFL_DISK_COMMIT,
        MFL_DISK_STATE, /* of a job */
        MFL_DISK_LOG,
        MFL_DISK_OPS_,
};
const char *mfl_disk_op_name(enum mfl_disk_op op);

struct mfl_disk_seen {
        uint64_t failures[MFL_DISK_OPS_];
        uint64_t failed_ms[MFL_DISK_OPS_]; /* the last failure since the last success; 0: none */
        char reason[MFL_REASON_BYTES];     /* of the last failure */
        struct mfl_histogram commit_seconds, checkpoint_seconds;
};
extern const struct mfl_bounds mfl_disk_bounds; /* seconds */

/* An operation ended. why: only read when it failed. */
void mfl_disk_note(
        struct mfl_disk_seen *seen, enum mfl_disk_op op, bool ok, const char *why, uint64_t now_ms);
/* Why the disk refused something within the last half minute, when the same operation has not succeeded
 * since; else NULL. */
const char *mfl_disk_failing(const struct mfl_disk_seen *seen, uint64_t now_ms);

#endif
