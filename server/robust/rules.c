/* SPDX-License-Identifier: Apache-2.0 */
/* The table of robust rules. */
#include "server/robust/rule.h"

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
        &mfl_rule_dnc,
        &mfl_rule_signguard,
        &mfl_rule_flame,
        &mfl_rule_foolsgold,
        &mfl_rule_fltrust,
};

const struct mfl_robust_rule *mfl_robust_get(enum mfl_strategy_kind kind)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++)
                if (rules[i]->kind == kind)
                        return rules[i];
        return NULL;
}
