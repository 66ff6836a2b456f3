/* SPDX-License-Identifier: Apache-2.0 */
/* Mean around the median: Xie, Koyejo, Gupta: "Generalized Byzantine-tolerant SGD", 2018, definition 7: in each coordinate
 * the mean of the m - f values that are nearest to the median. */
#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        ruling->column = MFL_COLUMN_NEAR;
        ruling->cut = rows->m - spec->f;
        for (uint32_t i = 0; i < rows->m; i++)
                ruling->weight[i] = 1;
        return 0;
}

const struct mfl_robust_rule mfl_rule_mean_around_median = {
        .kind = MFL_STRATEGY_MEAN_AROUND_MEDIAN, .decide = decide};
