/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinate-wise median: Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
 * Statistical Rates", ICML 2018, definition 1 and algorithm 1 (option I):
 *
 *      g = med{x_i : i = 1..m},  g_k = med{x_i,k},  med being the usual one-dimensional median
 *
 * For even m it is the mean of the two middle values. */
#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        ruling->column = MFL_COLUMN_MEDIAN;
        for (uint32_t i = 0; i < rows->m; i++)
                ruling->weight[i] = 1;
        return 0;
}

const struct mfl_robust_rule mfl_rule_median = {.kind = MFL_STRATEGY_MEDIAN, .decide = decide};
