/* SPDX-License-Identifier: Apache-2.0 */
/* What releases of a job cost, and how many its budget allows. A release is a noisy sum that may have left the server; of kind local, a
 * noisy change that has left a client's daemon, and then what follows on sampling does not count.
 *
 * A round draws each client with a probability that is a multiple of 2^-32 (common/cohort/cohort.h), which is what counts here, and
 * cuts a cohort off at a size that it exceeds with a probability below 2^-70. For R releases that cost at most E, R (1 + e^E) 2^-70 of
 * delta are set aside for that; E is 8, 16, 24 or 32, the first that holds. Pure but for memory; a call of epsilon takes a tenth of a second, rounds some of those.
 */
#ifndef MFL_COMMON_PRIVACY_SPEND_H
#define MFL_COMMON_PRIVACY_SPEND_H

#include "common/privacy/spec.h"

/* The cost of so many releases; infinity above 32. 0 releases cost 0. rate: of the job's selection. */
int mfl_privacy_epsilon(const struct mfl_privacy_spec *spec, double rate, uint64_t releases,
        double *ret_epsilon, struct mfl_error *err);

/* The most releases, up to `most`, that cost at most epsilon_max. */
int mfl_privacy_releases(const struct mfl_privacy_spec *spec, double rate, uint64_t most,
        uint64_t *ret_releases, struct mfl_error *err);

/* MFL_INVALID: the first release alone costs more than epsilon_max; the text says what it costs. */
int mfl_privacy_check_first(const struct mfl_privacy_spec *spec, double rate, struct mfl_error *err);

#endif
