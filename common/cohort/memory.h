/* SPDX-License-Identifier: Apache-2.0 */
/* What a server remembers of the clients of a job whose selection needs it (power-of-choice, Oort): the losses of each
 * client's last local training that counted, and Oort's pacer. 32 bytes per client, whatever the number of rounds. It changes
 * with the rounds that are applied, and is stored with them. Pure, except for allocation; any thread.
 */
#ifndef MFL_COMMON_COHORT_MEMORY_H
#define MFL_COMMON_COHORT_MEMORY_H

#include "common/base/fixed.h"
#include "common/job/job.h"

struct mfl_seen_client {
        uint64_t client;
        struct mfl_client_loss loss;
};

union mfl_memory_row {
        struct {
                struct mfl_client_loss loss;
                uint32_t round, times; /* the last round that it counted in, and how many did; 0: none */
        };
        struct {
                uint64_t threshold; /* Oort: percentile of the durations that are not punished */
                double now, before; /* Oort: sums over rounds of the mean utility of exploited clients */
                uint64_t unused;
        } pacer;
        int64_t word[4];
};

/* Whether the job has such a memory; and whether batches' squares are part of it. */
bool mfl_memory_is_needed(const struct mfl_job *job);
bool mfl_memory_needs_squares(const struct mfl_job *job);

/* population + 1 rows: a client's, then the pacer's. NULL: out of memory. The caller frees it. */
union mfl_memory_row *mfl_memory_new(const struct mfl_job *job, uint32_t population);
/* After a round: the clients that counted in it, ascending. */
void mfl_memory_learn(union mfl_memory_row *memory, const struct mfl_job *job, uint32_t population,
        uint32_t round, const uint32_t *samples, const struct mfl_seen_client *seen, uint32_t n);
/* Oort's statistical utility of a client of that many samples: |B| sqrt(mean squared loss) (Lai et al., OSDI 2021, eq. 1). */
double mfl_memory_utility(const union mfl_memory_row *row, uint32_t samples);
/* Adds a batch of n predictions with this sum of losses to a sum of squares. Saturates. */
int64_t mfl_memory_add_square(int64_t sum, int64_t loss_sum, uint64_t n);

#endif
