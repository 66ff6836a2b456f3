/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the training split into a population of clients, and the test split into evaluation shards. A function of
 * (labels, kind, clients, seed) alone, so that every daemon computes the same partition. Pure; any thread.
 * MFL_INVALID when the population does not fit the data, with both numbers.
 */
#ifndef MFL_COMMON_PARTITION_PARTITION_H
#define MFL_COMMON_PARTITION_PARTITION_H

#include "common/data/dataset.h"
#include "common/job/job.h"

/* Client k owns index[start[k] .. start[k + 1]), sample numbers of the training split. No sample occurs twice; size,
 * distribution, inner-dirichlet, pathological and natural-id may leave samples out. Of its n samples the last
 * mfl_job_held(job, n) are for evaluations, drawn by the seed, and it trains on the others. */
struct mfl_partition {
        uint32_t n_clients;
        uint32_t *start; /* n_clients + 1; start[n_clients] samples in all */
        uint32_t *index; /* in the order drawn, or shuffled where samples are kept for evaluations */
};

/* Divides the training split of a data set, whose labels or owners the job's partition may need. local makes one
 * client that owns everything. MFL_INVALID also when the data set has no class labels (or owners) and the partition
 * needs them. */
int mfl_partition_dataset(const struct mfl_job *job, const struct mfl_dataset *dataset,
        struct mfl_partition **ret_partition, struct mfl_error *err);
/* The same for n samples of which only the class labels are known. */
int mfl_partition_new(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition **ret_partition, struct mfl_error *err);
void mfl_partition_free(struct mfl_partition *partition);
/* Whether n training samples are enough for the job's population, as far as that is known without the labels. */
int mfl_partition_check(const struct mfl_job *job, uint32_t n, struct mfl_error *err);
/* The number of samples of client k, if it follows from n alone (iid); false if it needs the labels, or a pass over
 * the population. */
bool mfl_partition_client(const struct mfl_job *job, uint32_t n, uint64_t k, uint32_t *ret_samples);

/* Partition `local`: the client whose data a site holds, or, with site "", the daemon of that name alone. All who ask get
 * the same number. */
int mfl_partition_site_client(
        const char *site, const char *daemon, uint64_t *ret_client, struct mfl_error *err);

/* Cuts n test samples into shards for evaluation: shard s is the samples [s * per_shard, (s + 1) *
 * per_shard), the last one shorter. per_shard is a multiple of batch (> 0), the smallest that gives at most
 * MFL_EVAL_SHARDS_MAX shards. The cut does not depend on the number of daemons, and a batch never crosses
 * shards, so the metrics of a model do not depend on which daemon evaluates which shard. Returns the number of
 * shards; 0 for n = 0. */
#define MFL_EVAL_SHARDS_MAX 64
uint32_t mfl_eval_shards(uint32_t n, uint32_t batch, uint32_t *ret_per_shard);

/* The table of `mfl data show`: per client its samples and a bar of its classes, then a summary line; at most
 * rows_max clients (0: all), bars of bar_columns columns, colours and UTF-8 blocks only on request. The caller frees
 * it; NULL when out of memory. bar_columns 0 makes rows of 79 columns. The skew of a client is the total-variation
 * distance, 0 to 1, between its class mix and that of all clients together. */
struct mfl_partition_view {
        uint32_t rows_max;
        int bar_columns;
        bool colour, utf8;
        const char *heading; /* what labels are; NULL: classes */
};
char *mfl_partition_table(const struct mfl_partition *partition, const int32_t *labels, int classes,
        const struct mfl_partition_view *view);

#endif
