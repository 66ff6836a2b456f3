/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in order of a number; and a chosen rule's way from the strategy to its table. */
#include <stdlib.h>

#include "server/robust/rule.h"

static int compare(const void *a, const void *b)
{
        const struct mfl_ranked *x = a, *y = b;
        if (x->key != y->key)
                return x->key < y->key ? -1 : 1;
        return (x->row > y->row) - (x->row < y->row);
}

void mfl_rank(struct mfl_ranked *v, uint32_t n)
{
        qsort(v, n, sizeof *v, compare);
}

double mfl_ranked_median(const struct mfl_ranked *v, uint32_t n)
{
        return n % 2 ? v[n / 2].key : (v[n / 2 - 1].key + v[n / 2].key) / 2;
}

static const struct mfl_robust_rule *const rules[] = {
        &mfl_rule_median,
        &mfl_rule_trimmed_mean,
        &mfl_rule_mean_around_median,
        &mfl_rule_krum,
        &mfl_rule_multi_krum,
        &mfl_rule_bulyan,
        &mfl_rule_rfa,
        &mfl_rule_centered_clip,
        &mfl_rule_norm_filter,
};

const struct mfl_robust_rule *mfl_robust_get(enum mfl_strategy_kind kind)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++)
                if (rules[i]->kind == kind)
                        return rules[i];
        return NULL;
}
