/* SPDX-License-Identifier: Apache-2.0 */
/* What the partitioners share. Private to common/data. Pure; any thread. */
#ifndef MFL_COMMON_DATA_PARTITION_DRAW_H
#define MFL_COMMON_DATA_PARTITION_DRAW_H

#include "common/data/partition.h"
#include "common/rng.h"

/* Streams of MFL_RNG_PARTITION, the coordinate a. Part of reproducibility: append, never renumber. */
enum {
        MFL_STREAM_IID = 0,
        MFL_STREAM_SHARDS = 1,
        MFL_STREAM_DIRICHLET_ORDER = 2, /* b: class */
        MFL_STREAM_DIRICHLET = 3,       /* b: attempt, class */
};

#define MFL_ALPHA_MIN 1e-6
#define MFL_ALPHA_MAX 1e9

/* index holds the samples 0..n-1 sorted by label, stably; those of class c are index[first[c] .. first[c +
 * 1]). first has classes + 1 entries. -ENOMEM. */
int mfl_sort_by_label(const int32_t *labels, uint32_t n, int classes, uint32_t *first, uint32_t *index);

/* Fills start and index of a partition (arrays of n_clients + 1 and n). The population has been checked. */
int mfl_draw_dirichlet(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);

#endif
