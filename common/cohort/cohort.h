/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients of a population a round has: a function of the job, the round, the attempt, and what rounds before it have
 * told (memory.h).
 *
 * Draws use the stream (seed, MFL_RNG_SELECT, round, attempt + 2^32 * draw), attempt and draw counting from 0:
 *
 *      uniform          n of the pool without replacement; nothing is drawn if that is the whole pool
 *      separated        the same; the pool has those whose turn it is
 *      poisson          client k if the k-th number is below rate * 2^32; at most mfl_job_cohort_size of them
 *      weighted         n of the pool, proportional to their samples (draw.h)
 *      power-of-choice  `candidates` of the pool, proportional to their samples; of those the n with the largest mean loss in
 *                       their last local training that counted. Who has none comes first, in the order drawn. (Cho, Wang, Joshi,
 *                       AISTATS 2022, arXiv 2010.01243: pi_rpow-d)
 *      oort             cohort_oort.c
 *
 * Real time: the pool is everybody, or those whose turn it is, and n is selection.clients. Virtual time: the pool has those
 * who are on at the round's start. ceil(over * clients) are drawn. A client that is not done by the deadline, or goes off before
 * it is done, is late. The first `clients` of the others by (duration, number) are the round's; nobody else is trained. The
 * round ends with the last of them, or with the deadline if some were late and it is short of clients. (Without a deadline:
 * when the slowest one drawn would have been done.) While fewer than ceil(quorum * clients) are on, time passes. If fewer than
 * that are on time, time passes until the round would have ended, and draw + 1 follows.
 *
 * Asynchronous jobs: calendar.h.
 *
 * Pure, except for allocation; any thread.
 */
#ifndef MFL_COMMON_COHORT_COHORT_H
#define MFL_COMMON_COHORT_COHORT_H

#include "common/base/rng.h"
#include "common/cohort/memory.h"

struct mfl_cohort_ask {
        const struct mfl_job *job;
        uint32_t population, round, attempt;
        const uint32_t *samples;            /* of each client; NULL unless mfl_cohort_needs_samples */
        const union mfl_memory_row *memory; /* NULL unless mfl_memory_is_needed */
        uint64_t bytes;                     /* virtual time: of a client's params, down and up */
        uint64_t start_us;                  /* virtual time: the round before ended then */
};

struct mfl_cohort {
        uint32_t *client; /* n of them, ascending; on the heap */
        uint32_t *base;   /* asynchronous: the version that each starts from; on the heap. NULL: the newest */
        uint32_t n;
        uint32_t wanted;  /* the quorum's whole */
        uint32_t dropped; /* asynchronous: updates that will never count */
        uint64_t start_us, end_us;
};

/* MFL_INVALID: in virtual time, there will never be enough clients; the text says how many are missing. -ENOMEM. */
int mfl_cohort_draw(const struct mfl_cohort_ask *ask, struct mfl_cohort *ret_cohort, struct mfl_error *err);
bool mfl_cohort_needs_samples(const struct mfl_job *job);

#endif
