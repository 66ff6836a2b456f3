/* SPDX-License-Identifier: Apache-2.0 */
/* The plain mean: what `on_few: mean` falls back to. Not robust: one row moves it anywhere. */
#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        ruling->column = MFL_COLUMN_SUM;
        for (uint32_t i = 0; i < rows->m; i++)
                ruling->weight[i] = 1.0 / rows->m;
        return 0;
}

const struct mfl_robust_rule mfl_rule_mean = {.kind = MFL_STRATEGY_FEDAVG, .decide = decide};
