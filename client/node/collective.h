/* SPDX-License-Identifier: Apache-2.0 */
/* A collective: how the daemons of one node add their updates, so that one of them, the leader, uploads the
 * sum for all.
 *
 *   solo   nothing is added: every daemon uploads its own update
 *   shm    every member's sum is in memory that the others can read (client/node/share.h); the leader adds
 *   nccl   every member's sum is on its GPU; all members call NCCL's reduce together
 *
 * The server decides the order (server/core/core_group.c): it orders `combine` only when every member has
 * announced that its sum is ready, so nobody waits in a collective for a member that still trains; the
 * leader's upload counts only if no member was lost before it was whole; and a member that is told Alone
 * uploads its own update, which combine never changes. The sum is exact (64-bit fixed point,
 * common/base/fixed.h), so a round's model does not depend on which collective was used, or whether one was.
 *
 * shm is a pull: members do nothing during combine, and only the leader writes, into its own memory. A member
 * that is stopped or killed after its announce can't delay the sum, nor spoil a later one when it wakes. The
 * lower bound is (k + 1) * 8 n bytes of memory traffic for k members of n params. */
#ifndef MFL_CLIENT_NODE_COLLECTIVE_H
#define MFL_CLIENT_NODE_COLLECTIVE_H

#include "client/node/share.h"
#include "common/base/base.h"
#include "kernels/backend.h"
#include "proto/message.h"

enum {
        MFL_COLLECTIVE_BROKEN = 16, /* a member is gone, or it was cancelled or too late; no update is lost */
};

/* One order to add. */
struct mfl_combine {
        const struct mfl_group *group;
        uint64_t ranks;       /* bit r: rank r's sum is added; includes the leader and the caller */
        uint32_t leader;      /* rank */
        uint64_t n;           /* elements of every member's sum */
        const int64_t *own;   /* the caller's sum, in the host's memory */
        struct mfl_sum *held; /* nccl: the same on the device */
        int64_t *out;         /* leader: n elements to write; others: NULL */
        uint32_t deadline_ms; /* from now */
        struct mfl_comm_control *control;
};

struct mfl_collective;

struct mfl_collective_ops {
        const char *name;
        enum mfl_collective_kind kind;
        /* Blocks; one at a time, on one thread, which need not be the one that trains. MFL_COLLECTIVE_BROKEN
         * with the reason; negative only when this process can't go on. */
        int (*combine)(
                struct mfl_collective *collective, const struct mfl_combine *combine, struct mfl_error *err);
        /* nccl: the communicator of the coming groups, opened while the daemon trains; NULL elsewhere. Any
         * thread; returns at once. `id` NULL: this rank makes the id, and made is called, on any thread, with
         * it or with NULL and the reason. With or without `id`, made (which may be NULL) is called with NULL
         * and the reason if the opening fails later, unless a newer order or close has replaced it. A number
         * that is known is not opened again. */
        int (*communicator)(struct mfl_collective *collective, const struct mfl_group *group,
                const uint8_t *id,
                void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason),
                void *user, struct mfl_error *err);
        void (*close)(struct mfl_collective *collective); /* no combine may be running */
};

struct mfl_collective {
        const struct mfl_collective_ops *ops;
};

/* The key under which a member publishes its sum for a group; depends on the number only. */
void mfl_collective_key(uint64_t group, uint8_t key[MFL_SHARE_KEY_BYTES]);

/* threads: the leader's maximum, >= 1. It uses as many as the group's members train with (mfl_group.workers;
 * 0: all), because all of them are idle then. */
int mfl_collective_shm_new(struct mfl_share *share, uint32_t threads, struct mfl_collective **ret_collective,
        struct mfl_error *err);
/* MFL_INVALID, with the reason, where the backend or the device has no NCCL. */
int mfl_collective_nccl_new(const struct mfl_backend_ops *ops, struct mfl_device *device,
        struct mfl_collective **ret_collective, struct mfl_error *err);
/* NULL is fine. */
void mfl_collective_close(struct mfl_collective *collective);

#endif
