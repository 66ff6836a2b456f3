/* SPDX-License-Identifier: Apache-2.0 */
/* A rank is lost at every operation of a training in turn. */
#ifndef MFL_KERNELS_CONFORMANCE_CONFORMANCE_LOST_H
#define MFL_KERNELS_CONFORMANCE_CONFORMANCE_LOST_H

#include "kernels/conformance/conformance_worker.h"

/* Another team goes on, and ends with these params and this score. Changes
 * run->how. */
void mfl_conf_test_lost(struct team_run *run, const float *expected, const struct mfl_score *score);
/* The same with snapshots of shards; and with a second loss while they are taken over. */
void mfl_conf_test_lost_shard(struct team_run *run, const float *expected, const struct mfl_score *score);
void mfl_conf_test_lost_again(struct team_run *run, const float *expected, const struct mfl_score *score);

#endif
