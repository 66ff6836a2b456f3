/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: daemons that can reach each other's memory.
 *
 * Daemons form a node if Hello.node, user, network space and memory space are equal, and they have a memory
 * space, a node name and an instance other than 0. A daemon that nobody can reach is a node by itself, so
 * every daemon has one. A node's order is by device memory, largest first, then by bus, then by name: the
 * first daemon has the most room for the others' sums, and the order is the same every time. Among a node's
 * daemons that work for one job, the first one fetches the params (Task.params_from).
 */
#ifndef MFL_SERVER_STATE_CORE_NODE_H
#define MFL_SERVER_STATE_CORE_NODE_H

#include "server/state/action.h"

struct core_daemon;
struct core_host;
struct mfl_core;

/* Lost daemons in their grace time are included. */
struct core_node {
        uint64_t key;
        struct core_host *host;
        struct core_node *host_next;
        struct core_daemon *first;         /* in the node's order */
        const struct core_daemon *by_name; /* the first by name: the node's label */
        uint32_t n;
        uint64_t deal;                        /* the last deal that formed groups here */
        const struct core_daemon *sharers[2]; /* of one GPU; valid while core->changes == sharers_of */
        uint64_t sharers_of;
};

/* The nodes with one Hello.node. */
struct core_host {
        uint64_t key;
        struct core_node *first;
        uint32_t n_nodes;
};

/* Whether `info`, from a new Hello, describes the same place as daemon->info. */
bool mfl_core_node_same(const struct core_daemon *daemon, const struct mfl_daemon_info *info);
int mfl_core_node_enter(struct mfl_core *core, struct core_daemon *daemon);  /* -ENOMEM */
void mfl_core_node_leave(struct mfl_core *core, struct core_daemon *daemon); /* if it is in one */
void mfl_core_node_label(const struct core_daemon *daemon, char ret_node[MFL_NODE_BYTES]);
/* Whether NCCL can add among the node's connected daemons (deal 0), or those with one task of that deal. */
bool mfl_core_node_nccl(const struct core_node *node, uint64_t deal);
/* What keeps the daemon from adding by NCCL with them; false: nothing. */
bool mfl_core_node_obstacle(const struct core_daemon *daemon, uint64_t deal, char reason[MFL_REASON_BYTES]);
void mfl_core_node_check(const struct mfl_core *core);

#endif
