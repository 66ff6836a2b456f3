/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon can have in common with the other daemons of its host: shared memory, NCCL, and how they
 * reach it. Opened once, at start.
 *
 * Ways to fail: no shared memory or no NCCL is none, but a reason that people see in `mfl daemons` and in the
 * log; unless --collective nccl demands it (MFL_INVALID). Negative: the process can't go on.
 */
#ifndef MFL_CLIENT_NODE_H
#define MFL_CLIENT_NODE_H

#include "client/collective.h"
#include "client/config.h"

struct mfl_client_node {
        struct mfl_share *share;           /* NULL: none */
        struct mfl_collective *shm, *nccl; /* NULL: none */
        bool has_reach;
        struct mfl_reach reach;
        char text[512]; /* "shm (/dev/shm, 24.0 GiB free)", "solo: ..." */
};

/* threads: what shm may add with. Zeroed before. close also after a failure. */
int mfl_client_node_open(struct mfl_client_node *node, const struct mfl_client_config *config,
        uint64_t instance, uint32_t threads, const struct mfl_backend_ops *ops, struct mfl_device *device,
        struct mfl_error *err);
/* After whatever uses it. Nothing of this daemon is left in the shared directory. */
void mfl_client_node_close(struct mfl_client_node *node);

#endif
