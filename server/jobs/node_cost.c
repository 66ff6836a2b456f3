/* SPDX-License-Identifier: Apache-2.0 */
/* Network costs of one round by node: rows, and a hash table that finds a node's row and its daemons. */
#include "server/jobs/node_cost.h"

struct mfl_node_cost_key {
        uint32_t row;
        char daemon[MFL_NAME_BYTES]; /* empty: the node itself */
};

/* FNV-1a (Fowler, Noll, Vo); the NUL between the texts counts. */
static uint32_t hash_text(uint32_t hash, const char *text)
{
        do
                hash = (hash ^ (uint8_t)*text) * 16777619u;
        while (*text++);
        return hash;
}

/* Position of the key in the index, or of the free place where it belongs. */
static uint32_t find(const struct mfl_node_costs *costs, const char *node, const char *daemon)
{
        uint32_t mask = costs->index_size - 1;
        uint32_t i = hash_text(hash_text(2166136261u, node), daemon) & mask;
        for (; costs->index[i]; i = (i + 1) & mask) {
                const struct mfl_node_cost_key *key = &costs->keys[costs->index[i] - 1];
                if (!strcmp(key->daemon, daemon) && !strcmp(costs->nodes.v[key->row].node, node))
                        break;
        }
        return i;
}

static int grow_index(struct mfl_node_costs *costs, struct mfl_error *err)
{
        uint32_t size = costs->index_size ? 2 * costs->index_size : 64;
        uint32_t *index = mfl_calloc(size, sizeof *index);
        if (!index)
                return mfl_fail_memory(err, size * sizeof *index, "the costs of nodes");
        free(costs->index);
        costs->index = index;
        costs->index_size = size;
        for (uint32_t k = 0; k < costs->n_keys; k++) {
                const struct mfl_node_cost_key *key = &costs->keys[k];
                costs->index[find(costs, costs->nodes.v[key->row].node, key->daemon)] = k + 1;
        }
        return 0;
}

/* Room for one more row and one more key, so that what follows can't fail. */
static int make_room(struct mfl_node_costs *costs, struct mfl_error *err)
{
        if (costs->nodes.n == costs->nodes_room) {
                uint32_t room = costs->nodes_room ? 2 * costs->nodes_room : 8;
                struct mfl_store_node *v = mfl_realloc(costs->nodes.v, room * sizeof *v);
                if (!v)
                        return mfl_fail_memory(err, room * sizeof *v, "the costs of nodes");
                costs->nodes.v = v;
                costs->nodes_room = room;
        }
        if (costs->n_keys == costs->keys_room) {
                uint32_t room = costs->keys_room ? 2 * costs->keys_room : 16;
                struct mfl_node_cost_key *keys = mfl_realloc(costs->keys, room * sizeof *keys);
                if (!keys)
                        return mfl_fail_memory(err, room * sizeof *keys, "the costs of nodes");
                costs->keys = keys;
                costs->keys_room = room;
        }
        return (costs->n_keys + 1) * 2 > costs->index_size ? grow_index(costs, err) : 0;
}

static void add_key(struct mfl_node_costs *costs, uint32_t at, uint32_t row, const char *daemon)
{
        struct mfl_node_cost_key *key = &costs->keys[costs->n_keys];
        key->row = row;
        mfl_strcpy(key->daemon, sizeof key->daemon, daemon);
        mfl_assert(!costs->index[at] && costs->n_keys < costs->keys_room && row < costs->nodes.n);
        costs->index[at] = ++costs->n_keys;
}

/* The node's row; makes one if there is none. */
static int find_row(struct mfl_node_costs *costs, const char *node, struct mfl_store_node **ret_row,
        struct mfl_error *err)
{
        int r = make_room(costs, err);
        if (r)
                return r;
        uint32_t at = find(costs, node, "");
        if (!costs->index[at] && costs->nodes.n + 1 >= MFL_NODE_COST_ROWS_MAX) {
                node = MFL_NODE_COST_OTHERS;
                at = find(costs, node, "");
        }
        if (!costs->index[at]) {
                uint32_t row = costs->nodes.n++;
                costs->nodes.v[row] = (struct mfl_store_node){.round = costs->round};
                mfl_strcpy(costs->nodes.v[row].node, sizeof costs->nodes.v[row].node, node);
                add_key(costs, at, row, "");
        }
        *ret_row = &costs->nodes.v[costs->keys[costs->index[at] - 1].row];
        return 0;
}

static int count_daemon(
        struct mfl_node_costs *costs, struct mfl_store_node *row, const char *daemon, struct mfl_error *err)
{
        uint32_t i = (uint32_t)(row - costs->nodes.v);
        int r = make_room(costs, err);
        if (r)
                return r;
        row = &costs->nodes.v[i];
        uint32_t at = find(costs, row->node, daemon);
        if (costs->index[at] || costs->n_daemons == MFL_NODE_COST_DAEMONS_MAX)
                return 0;
        add_key(costs, at, i, daemon);
        costs->n_daemons++;
        row->daemons++;
        return 0;
}

int mfl_node_costs_bytes(
        struct mfl_node_costs *costs, const char *node, uint64_t up, uint64_t down, struct mfl_error *err)
{
        struct mfl_store_node *row;
        int r = find_row(costs, node, &row, err);
        if (r)
                return r;
        row->up += up;
        row->down += down;
        return 0;
}

int mfl_node_costs_alone(struct mfl_node_costs *costs, const char *node, const char *daemon, uint64_t up,
        uint64_t down, struct mfl_error *err)
{
        struct mfl_store_node *row;
        int r = find_row(costs, node, &row, err);
        if (r)
                return r;
        row->up_alone += up;
        row->down_alone += down;
        return *daemon ? count_daemon(costs, row, daemon, err) : 0;
}

struct mfl_store_node mfl_node_costs_sum(const struct mfl_node_costs *costs)
{
        struct mfl_store_node sum = {.round = costs->round};
        for (uint32_t i = 0; i < costs->nodes.n; i++) {
                const struct mfl_store_node *row = &costs->nodes.v[i];
                sum.daemons += row->daemons;
                sum.up += row->up;
                sum.down += row->down;
                sum.up_alone += row->up_alone;
                sum.down_alone += row->down_alone;
        }
        return sum;
}

int mfl_node_costs_copy(
        const struct mfl_node_costs *costs, struct mfl_store_nodes *ret_nodes, struct mfl_error *err)
{
        size_t bytes = costs->nodes.n * sizeof *costs->nodes.v;
        struct mfl_store_nodes nodes = {.n = costs->nodes.n};
        if (bytes && !(nodes.v = mfl_malloc(bytes)))
                return mfl_fail_memory(err, bytes, "the costs of nodes");
        if (bytes)
                memcpy(nodes.v, costs->nodes.v, bytes);
        *ret_nodes = nodes;
        return 0;
}

void mfl_node_costs_reset(struct mfl_node_costs *costs, uint32_t round)
{
        costs->round = round;
        costs->nodes.n = costs->n_keys = costs->n_daemons = 0;
        if (costs->index)
                memset(costs->index, 0, costs->index_size * sizeof *costs->index);
}

void mfl_node_costs_deinit(struct mfl_node_costs *costs)
{
        mfl_store_nodes_deinit(&costs->nodes);
        free(costs->keys);
        free(costs->index);
        *costs = (struct mfl_node_costs){0};
}
