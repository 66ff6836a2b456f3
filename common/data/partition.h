/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the training split into a population of clients, and the test split into evaluation shards.
 * A function of (labels, kind, clients, seed) alone, so that every daemon computes the same partition.
 * Pure; any thread. MFL_INVALID when the population does not fit the data, with both numbers.
 */
#ifndef MFL_COMMON_DATA_PARTITION_H
#define MFL_COMMON_DATA_PARTITION_H

#include "common/data/dataset.h"
#include "common/job.h"

/* Client k owns index[start[k] .. start[k + 1]), sample numbers of the training split. */
struct mfl_partition {
        uint32_t n_clients;
        uint32_t *start; /* n_clients + 1 */
        uint32_t *index; /* n samples; iid and shards use every sample, in the order drawn */
};

/* local gives one client that owns everything. */
int mfl_partition_new(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition **ret_partition, struct mfl_error *err);
void mfl_partition_free(struct mfl_partition *partition);

/* The table of `mfl data show`: per client its samples and a bar of its classes, then a summary line; at most
 * rows_max clients (0: all), bars of bar_columns columns, colours and UTF-8 blocks only when told. Caller
 * frees; NULL when out of memory. */
struct mfl_partition_view {
        uint32_t rows_max;
        int bar_columns;
        bool colour, utf8;
};
char *mfl_partition_table(const struct mfl_partition *partition, const int32_t *labels, int classes,
        const struct mfl_partition_view *view);

#endif
