/* SPDX-License-Identifier: Apache-2.0 */
/* What one round costs each node on the network: counted bytes, and the bytes that the core says it would
 * have cost without groups and shared params. A table of bounded size, in the order in which nodes appear.
 *
 * One thread at a time. A zeroed table is empty. Functions return 0 or -ENOMEM.
 */
#ifndef MFL_SERVER_SHELL_NODE_COST_H
#define MFL_SERVER_SHELL_NODE_COST_H

#include "server/store/store.h"

/* The most rows; when one is left, further nodes share it under this name. */
#define MFL_NODE_COST_ROWS_MAX MFL_STORE_NODES_MAX
#define MFL_NODE_COST_OTHERS "others"
/* The most daemons that are counted; bytes of further daemons are still added. */
#define MFL_NODE_COST_DAEMONS_MAX 16384

struct mfl_node_cost_key; /* a node, or a daemon at a node */

struct mfl_node_costs {
        uint32_t round;
        struct mfl_store_nodes nodes; /* the rows */
        uint32_t nodes_room;
        uint32_t n_keys, keys_room, n_daemons, index_size; /* index_size: a power of two, or 0 */
        struct mfl_node_cost_key *keys;
        uint32_t *index; /* hash table of positions in keys + 1; 0: free */
};

/* Empties the table for a round; keeps what it has allocated. */
void mfl_node_costs_reset(struct mfl_node_costs *costs, uint32_t round);
void mfl_node_costs_deinit(struct mfl_node_costs *costs);
/* Bytes that went over the network. node: a label as mfl_core_node gives it. */
int mfl_node_costs_bytes(
        struct mfl_node_costs *costs, const char *node, uint64_t up, uint64_t down, struct mfl_error *err);
/* Bytes that would have gone over the network for this daemon without groups and shared params. */
int mfl_node_costs_alone(struct mfl_node_costs *costs, const char *node, const char *daemon, uint64_t up,
        uint64_t down, struct mfl_error *err);
/* The sum of the rows; its node is empty. */
struct mfl_store_node mfl_node_costs_sum(const struct mfl_node_costs *costs);
/* A copy of the rows, which the caller frees. */
int mfl_node_costs_copy(
        const struct mfl_node_costs *costs, struct mfl_store_nodes *ret_nodes, struct mfl_error *err);

#endif
