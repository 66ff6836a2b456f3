/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the partitioners share. Private to this folder. Pure; any thread. */
#ifndef MFL_COMMON_PARTITION_PARTITION_DRAW_H
#define MFL_COMMON_PARTITION_PARTITION_DRAW_H

#include "common/partition/partition.h"
#include "common/base/rng.h"

/* Streams of MFL_RNG_PARTITION, the coordinate a. Part of reproducibility: append, never renumber. */
enum {
        MFL_STREAM_IID = 0,
        MFL_STREAM_SHARDS = 1,
        MFL_STREAM_DIRICHLET_ORDER = 2, /* b: class */
        MFL_STREAM_DIRICHLET = 3,       /* b: attempt, class */
        MFL_STREAM_SIZES = 4,
        MFL_STREAM_CLASS_ORDER = 5,  /* b: class */
        MFL_STREAM_CLASSES = 6,      /* b: client */
        MFL_STREAM_LOGNORMAL = 7,    /* b: class */
        MFL_STREAM_REST = 8,         /* b: class */
        MFL_STREAM_INNER_PRIORS = 9, /* b: client */
        MFL_STREAM_INNER = 10,
        MFL_STREAM_HELD = 11, /* b: client */
};

#define MFL_ALPHA_MIN 1e-6
#define MFL_ALPHA_MAX 1e9

/* index holds the samples 0..n-1 sorted by label, stably; those of class c are index[first[c] .. first[c +
 * 1]). first has classes + 1 entries. -ENOMEM. */
int mfl_sort_by_label(const int32_t *labels, uint32_t n, int classes, uint32_t *first, uint32_t *index);

/* The same, with the samples of each class shuffled. Allocates both arrays; the caller frees them. */
int mfl_shuffle_by_label(uint64_t seed, const int32_t *labels, uint32_t n, int classes, uint32_t **ret_first,
        uint32_t **ret_index, struct mfl_error *err);

/* A standard normal number, and the logarithm of a Gamma(alpha) number, to the same bit on every machine. */
double mfl_draw_normal(struct mfl_rng *rng);
double mfl_draw_log_gamma(struct mfl_rng *rng, double alpha);

/* Each fills start and index of a partition (arrays of n_clients + 1 and n). labels are NULL if the data set has
 * none, and otherwise valid. n is at least n_clients, which is at least 1. */
int mfl_draw_dirichlet(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);
int mfl_draw_shards(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);
/* size, linear, square, exponential */
int mfl_draw_sizes(
        const struct mfl_job *job, uint32_t n, struct mfl_partition *partition, struct mfl_error *err);
int mfl_draw_pathological(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);
int mfl_draw_distribution(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);
int mfl_draw_inner_dirichlet(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err);
/* Writes start from data.sizes: start[n_clients] is the sum. MFL_INVALID when the sizes do not fit clients or n. */
int mfl_partition_sizes_given(const struct mfl_job *job, uint32_t n, uint32_t *start, struct mfl_error *err);
/* Near-equal parts: sizes differ by one at most. start has parts + 1 entries. */
void mfl_cut_evenly(uint32_t n, uint32_t parts, uint32_t *start);

#endif
