/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room. */
#ifndef MFL_COMMON_COHORT_COHORT_INTERNAL_H
#define MFL_COMMON_COHORT_COHORT_INTERNAL_H

#include "common/cohort/cohort.h"

/* Who may be drawn, ascending; v NULL: everybody below n. */
struct cohort_pool {
        uint32_t *v;
        uint32_t n;
};

uint64_t mfl_cohort_duration(const struct mfl_cohort_ask *ask, uint32_t client);
/* n of the pool, proportional to their samples, in the order drawn. -ENOMEM. */
int mfl_cohort_by_samples(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool,
        struct mfl_rng *rng, uint32_t n, uint32_t *ret_v, uint32_t *ret_n);
/* The same for Oort. */
int mfl_cohort_oort(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool, struct mfl_rng *rng,
        uint32_t n, uint32_t *ret_v, uint32_t *ret_n);

#endif
