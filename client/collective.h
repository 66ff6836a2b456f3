/* SPDX-License-Identifier: Apache-2.0 */
/* A collective: how the daemons of one node add their updates before one of them uploads the sum.
 *
 * What is added is exact (64-bit fixed point, common/fixed.h), so a round's model does not depend on which
 * collective was used, or on whether one was. Kinds: `solo` (a daemon alone: nothing to add), which is the
 * only one so far; the table is made so that `nccl` (GPUs of one host) and `shm` (shared memory) fit without
 * a change of their callers:
 *
 *   - the members of a task are known when it starts (node, rank, n_ranks) and add in the same order of
 * tasks;
 *   - add blocks the calling thread, which is the one that owns the device, never a loop thread;
 *   - any member's death makes add fail with MFL_COLLECTIVE_BROKEN on all others, either by the collective's
 * own detection or because the owner, who learnt of it from the server, called abort from its loop thread;
 *   - after MFL_COLLECTIVE_BROKEN the sums are as they were before, every member uploads singly in that round
 *     (DESIGN section 10), and the collective is closed and opened anew.
 */
#ifndef MFL_CLIENT_COLLECTIVE_H
#define MFL_CLIENT_COLLECTIVE_H

#include "common/base.h"

enum {
        MFL_COLLECTIVE_BROKEN = 16, /* a member is gone or abort was called; nothing was added */
};

struct mfl_collective {
        const struct mfl_collective_ops *ops;
        uint32_t rank, n_ranks;
};

struct mfl_collective_options {
        const char *node; /* Hello.node: members have the same */
        uint32_t rank, n_ranks;
};

/* An update as the members add it: n elements and the additive scalars of its announcement. */
struct mfl_collective_update {
        int64_t *sum;
        size_t n;
        uint64_t weight, samples, correct, train_us;
        int64_t loss_sum;
};

struct mfl_collective_ops {
        const char *name;
        /* MFL_INVALID when the members can't be joined this way (solo: n_ranks must be 1). */
        int (*open)(const struct mfl_collective_options *options, struct mfl_collective **ret_collective,
                struct mfl_error *err);
        /* Adds the updates of all members. *ret_root tells the one member that holds the sum afterwards and
         * uploads it; the others' buffers are undefined. */
        int (*add)(struct mfl_collective *collective, struct mfl_collective_update *update, bool *ret_root,
                struct mfl_error *err);
        /* Any thread: an add that runs, and every later one, returns MFL_COLLECTIVE_BROKEN soon. */
        void (*abort)(struct mfl_collective *collective);
        void (*close)(struct mfl_collective *collective); /* NULL is fine; no add may be running */
};

extern const struct mfl_collective_ops mfl_collective_solo;

#endif
