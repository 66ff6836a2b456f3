/* SPDX-License-Identifier: Apache-2.0 */
/* A new version on trial: which requests it answers, and whether it does well. Pure: time comes in as microseconds of any
 * monotonic clock.
 *
 * A key is always answered by the same version while the share stays. A version is bad when more than failures_max of its requests
 * have failed, and at least three, so that a single accident is none; or when a row takes it more than slower_max
 * times as long as the version before, which counts from its 50th request on. It is good when it has not been bad for for_us.
 */
#ifndef MFL_SERVE_BATCH_CANARY_H
#define MFL_SERVE_BATCH_CANARY_H

#include "common/base/base.h"

struct mfl_canary_config {
        double share; /* of the keys, 0 to 1: what a new version answers before it takes over */
        double mirror; /* of the keys: what it computes, too, without answering; both 0: it takes over at once */
        uint64_t for_us;
        double failures_max; /* a share of the requests */
        double slower_max;
};

/* Answers of two versions to the same questions. */
struct mfl_mirrored {
        uint64_t requests, dropped; /* dropped: the new version had a batch waiting */
        uint64_t rows,
                differ; /* differ: rows whose class is another one; without classes, rows with other numbers */
        double difference_max; /* of two numbers */
};

enum mfl_canary_verdict {
        MFL_CANARY_GOING,
        MFL_CANARY_GOOD,
        MFL_CANARY_BAD,
};

struct mfl_canary {
        struct mfl_canary_config config;
        uint64_t began_us, n, n_failed;
};

/* Whether the new version answers requests with this key. */
bool mfl_canary_takes(double share, const void *key, size_t bytes);
/* Whether it computes them, too, after the other version has answered them. The keys are those at the other end: both shares are disjoint as long
 * as their sum is at most 1. */
bool mfl_canary_mirrors(double share, const void *key, size_t bytes);
void mfl_canary_begin(struct mfl_canary *canary, const struct mfl_canary_config *config, uint64_t now_us);
/* It has answered a request, or failed to. */
void mfl_canary_note(struct mfl_canary *canary, bool failed);
/* row_us: how long a row takes it, and took the version before; 0: unknown. */
enum mfl_canary_verdict mfl_canary_judge(
        const struct mfl_canary *canary, uint64_t now_us, double row_us, double row_us_before);

/* Compares n rows of so many numbers, old with new: positions is how many classes a row has (of equal length); 0: they are no classes. */
void mfl_mirrored_add(struct mfl_mirrored *mirrored, const float *before, const float *now, uint32_t n,
        uint32_t numbers, uint32_t positions);

#endif
