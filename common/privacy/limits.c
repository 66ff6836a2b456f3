/* SPDX-License-Identifier: Apache-2.0 */
#include "common/privacy/limits.h"

#include <math.h>

#include "common/privacy/gaussian.h"

#define EPSILON_MAX 32.0

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_privacy_limit, member)
static const struct mfl_yaml_field fields[] = {
        {.key = "epsilon",
                AT(F64, epsilon),
                .required = true,
                .min = 0,
                .max = EPSILON_MAX,
                .min_open = true},
        {.key = "delta", AT(F64, delta), .min = 1e-12, .max = 0.1},
        {0},
};

int mfl_privacy_limits_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_privacy_limits *limits = value;
        if (node->type != MFL_YAML_MAPPING || !node->first)
                return mfl_yaml_fail(
                        doc, node, err, "expected data sets with limits: {patients: {epsilon: 8}}");
        limits->n = 0;
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_privacy_limit limit = {.delta = 1e-5};
                if (limits->n == MFL_PRIVACY_LIMITS_MAX)
                        return mfl_yaml_fail(
                                doc, n, err, "expected at most %d data sets", MFL_PRIVACY_LIMITS_MAX);
                if (!mfl_strcpy(limit.data, sizeof limit.data, n->key) || !limit.data[0])
                        return mfl_yaml_fail(doc, n, err, "expected the name of a data set");
                if (n->type != MFL_YAML_MAPPING)
                        return mfl_yaml_fail(
                                doc, n, err, "expected a mapping such as {epsilon: 8, delta: 1e-5}");
                int r = mfl_yaml_read(doc, n, fields, &limit, err);
                if (r)
                        return r;
                limits->v[limits->n++] = limit;
        }
        return 0;
}

const struct mfl_privacy_limit *mfl_privacy_limits_find(
        const struct mfl_privacy_limits *limits, const char *data)
{
        for (uint32_t i = 0; limits && i < limits->n; i++)
                if (!strcmp(limits->v[i].data, data))
                        return &limits->v[i];
        return NULL;
}

struct mfl_dp_rounds mfl_privacy_part(const struct mfl_privacy_spec *spec, double rate, uint64_t releases)
{
        if (spec->mechanism != MFL_MECHANISM_GAUSSIAN) /* all rounds together: common/privacy/matrix.h */
                return (struct mfl_dp_rounds){spec->noise, 1, releases > 0};
        if (spec->kind != MFL_PRIVACY_CENTRAL)
                return (struct mfl_dp_rounds){spec->noise / MFL_PRIVACY_LOCAL_DISTANCE, 1, releases};
        return (struct mfl_dp_rounds){spec->noise, ldexp(ceil(ldexp(rate, 32)), -32), releases};
}

static void add_part(struct mfl_dp_rounds *to, size_t *n, struct mfl_dp_rounds part)
{
        for (size_t i = 0; i < *n; i++)
                if (to[i].sigma == part.sigma && to[i].rate == part.rate) {
                        to[i].rounds += part.rounds;
                        return;
                }
        to[(*n)++] = part;
}

/* Parts without sampling are one, and so are those alike, so that any number of jobs fits; returns how many are left. */
static size_t gather(const struct mfl_dp_rounds *v, size_t n, struct mfl_dp_rounds *to, double *ret_precision)
{
        size_t n_to = 0;
        double precision = 0;
        for (size_t i = 0; i < n; i++)
                if (v[i].rate == 1)
                        precision += (double)v[i].rounds / (v[i].sigma * v[i].sigma);
                else
                        add_part(to, &n_to, v[i]);
        *ret_precision = precision;
        return n_to;
}

static int sum_sampled(
        const struct mfl_dp_rounds *v, size_t n, double delta, double *ret_epsilon, struct mfl_error *err)
{
        struct mfl_dp_cost cost = {.epsilon = 0};
        double sampled = 0;
        for (size_t i = 0; i < n; i++)
                sampled += v[i].rate < 1 ? (double)v[i].rounds : 0;
        for (double most = 8; most <= EPSILON_MAX; most = MFL_MAX(most + 8, 8 * ceil(cost.epsilon / 8))) {
                double cut = ldexp(sampled * (1 + exp(most)), -70);
                cost.epsilon = INFINITY;
                int r = delta > cut ? mfl_dp_epsilon(v, n, delta - cut, &cost, err) : 0;
                if (r)
                        return r;
                if (cost.epsilon <= most)
                        break;
        }
        *ret_epsilon = cost.epsilon;
        return 0;
}

int mfl_privacy_sum(
        const struct mfl_dp_rounds *v, size_t n, double delta, double *ret_epsilon, struct mfl_error *err)
{
        double precision, epsilon = 0;
        MFL_CLEANUP_FREE struct mfl_dp_rounds *parts = mfl_calloc(n + 1, sizeof *parts);
        if (!parts)
                return mfl_fail_memory(err, n * sizeof *parts, "a budget");
        size_t n_parts = gather(v, n, parts, &precision);
        double alone = precision > 0 ? mfl_dp_gaussian_epsilon(1 / sqrt(precision), delta) : 0;
        int r = 0;
        if (n_parts && alone <= EPSILON_MAX) {
                if (precision > 0)
                        parts[n_parts++] = (struct mfl_dp_rounds){1 / sqrt(precision), 1, 1};
                r = sum_sampled(parts, n_parts, delta, &epsilon, err);
        } else
                epsilon = alone;
        if (!r)
                *ret_epsilon = epsilon <= EPSILON_MAX ? epsilon : INFINITY;
        return r;
}
