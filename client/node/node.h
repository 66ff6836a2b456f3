/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon can share with the other daemons of its host: memory, NCCL, and how they reach it. Opened
 * once, at start.
 *
 * Ways to fail: missing shared memory or NCCL is not a failure, but a reason that people see in `mfl daemons`
 * and in the log; unless MFL_CLIENT_COLLECTIVE_NCCL demands it (MFL_INVALID). Negative: the process can't go
 * on. */
#ifndef MFL_CLIENT_NODE_NODE_H
#define MFL_CLIENT_NODE_NODE_H

#include "client/node/collective.h"

enum mfl_client_collective {
        MFL_CLIENT_COLLECTIVE_AUTO,
        MFL_CLIENT_COLLECTIVE_SHM,
        MFL_CLIENT_COLLECTIVE_SOLO,
        MFL_CLIENT_COLLECTIVE_NCCL,
};

struct mfl_client_node_options {
        enum mfl_client_collective collective;
        const char *share_dir; /* NULL: /dev/shm */
        uint64_t instance;     /* of this process */
        uint32_t threads;      /* that shm may add with */
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
};

struct mfl_client_node {
        struct mfl_share *share;           /* NULL: none */
        struct mfl_collective *shm, *nccl; /* NULL: none */
        bool has_reach;
        struct mfl_reach reach;
        char text[512]; /* "shm (/dev/shm, 24.0 GiB free)", "solo: ..." */
};

/* The node is zeroed before. Call close also after a failure. */
int mfl_client_node_open(
        struct mfl_client_node *node, const struct mfl_client_node_options *options, struct mfl_error *err);
/* After everything that uses it. Leaves nothing of this daemon in the shared directory. */
void mfl_client_node_close(struct mfl_client_node *node);

#endif
