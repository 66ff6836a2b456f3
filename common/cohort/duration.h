/* SPDX-License-Identifier: Apache-2.0 */
/* What a trace says of a client: how long its turn takes, and when it is on.
 *
 * A client that trains on n rows in all (steps * batch) for a model of b bytes, down and up together, takes 3 n / speed + b /
 * bandwidth: a backward pass costs two forward ones (FedScale, Lai et al., ICML 2022, and its client_metadata.py).
 *
 * Without a table, the model: a forward pass of one sample takes exp(mu + sigma z) / speed seconds, z standard normal, one per
 * client (stream (seed, MFL_RNG_TRACE, client, 0), Marsaglia's polar method), and all have one bandwidth. A client is on once a
 * day, for the share `online` of it, from (u1 + u2) / 2 on with u1, u2 uniform over the day (stream 1): more clients are on after
 * noon than at night.
 *
 * Pure functions, any thread; no libm decides a bit.
 */
#ifndef MFL_COMMON_COHORT_DURATION_H
#define MFL_COMMON_COHORT_DURATION_H

#include "common/trace/trace.h"

/* What client k takes for `rows` rows of local training and `bytes` of transfer; at most MFL_VIRTUAL_MAX_US. */
uint64_t mfl_duration_of(
        const struct mfl_trace *trace, uint64_t seed, uint32_t k, uint64_t rows, uint64_t bytes);
/* Whether client k is on at that time, and until when that stays so (MFL_VIRTUAL_NEVER: for ever). */
bool mfl_duration_is_on(
        const struct mfl_trace *trace, uint64_t seed, uint32_t k, uint64_t time_us, uint64_t *ret_until_us);

#endif
