/* SPDX-License-Identifier: Apache-2.0 */
/* What data sets may tell in all: `privacy_limits` of server.yaml, and the cost of what several jobs have released of one data set. */
#ifndef MFL_COMMON_PRIVACY_LIMITS_H
#define MFL_COMMON_PRIVACY_LIMITS_H

#include "common/privacy/accountant.h"
#include "common/privacy/spec.h"

#define MFL_PRIVACY_LIMITS_MAX 64
#define MFL_PRIVACY_DATA_BYTES 64

struct mfl_privacy_limit {
        char data[MFL_PRIVACY_DATA_BYTES];
        double epsilon, delta;
};

struct mfl_privacy_limits {
        uint32_t n;
        struct mfl_privacy_limit v[MFL_PRIVACY_LIMITS_MAX];
};

/* Reads {NAME: {epsilon: 8, delta: 1e-5}, ...}. value: struct mfl_privacy_limits. MFL_INVALID. */
int mfl_privacy_limits_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* NULL: the data set has none. */
const struct mfl_privacy_limit *mfl_privacy_limits_find(
        const struct mfl_privacy_limits *limits, const char *data);

/* So many releases of a job, as the accountant counts them. */
struct mfl_dp_rounds mfl_privacy_part(const struct mfl_privacy_spec *spec, double rate, uint64_t releases);
/* Of n parts together, none of 0 releases: with what is set aside for cohorts that are cut off (spend.h). Infinity above 32. 0 for no part. A call takes
 * some tenths of a second. */
int mfl_privacy_sum(
        const struct mfl_dp_rounds *v, size_t n, double delta, double *ret_epsilon, struct mfl_error *err);

#endif
