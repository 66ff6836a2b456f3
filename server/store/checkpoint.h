/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint is made of: the params of a job and the state of its strategy, borrowed from their owner. */
#ifndef MFL_SERVER_STORE_CHECKPOINT_H
#define MFL_SERVER_STORE_CHECKPOINT_H

#include "common/job/edges.h"
#include "common/model/graph.h"

/* The strategy's and the rest; or each region's params and states (common/job/edges.h), or what bad servers sent. */
#define MFL_CHECKPOINT_STATES_MAX (4 + 3 * MFL_REGIONS_MAX)
#define MFL_CHECKPOINT_NUMBERS_MAX (4 + MFL_REGIONS_MAX)
#define MFL_CHECKPOINT_GRID "grid" /* key of the metadata with the grid's exponents, separated by blanks */
#define MFL_CHECKPOINT_MEMORY "selection/clients"
#define MFL_CHECKPOINT_NUMBER "strategy_" /* and the number's name: the key of its metadata */

struct mfl_checkpoint {
        const struct mfl_graph *graph;
        const float *frozen, *params; /* graph->n_frozen floats, and graph->n_moving */
        const uint8_t *digest;        /* of both */
        int n_state;
        const char *state_name[MFL_CHECKPOINT_STATES_MAX];
        const float *state[MFL_CHECKPOINT_STATES_MAX]; /* graph->n_moving floats each */
        int n_numbers;
        const char *number_name[MFL_CHECKPOINT_NUMBERS_MAX];
        double number[MFL_CHECKPOINT_NUMBERS_MAX];
        const int32_t
                *grid; /* of the deltas that start from these params (common/codec/grid.h); NULL: none */
        uint32_t n_grid;
        /* What is remembered of clients (common/cohort/memory.h), as the tensor MFL_CHECKPOINT_MEMORY of n_memory rows of 4
         * int64; 0: nothing. */
        const int64_t *memory;
        uint64_t n_memory;
};

#endif
