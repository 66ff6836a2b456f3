/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinate-wise trimmed mean: Yin, Chen, Ramchandran, Bartlett, ICML 2018, definition 2: in each coordinate the mean of
 * what is left when the c smallest and the c largest values are removed. c = f (as byzfl's TrMean), or without f
 * floor(beta m) (the paper, and Flower). */
#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        ruling->column = MFL_COLUMN_TRIM;
        ruling->cut = spec->has_f ? spec->f : (uint32_t)(spec->beta * rows->m);
        for (uint32_t i = 0; i < rows->m; i++)
                ruling->weight[i] = 1;
        return 0;
}

const struct mfl_robust_rule mfl_rule_trimmed_mean = {.kind = MFL_STRATEGY_TRIMMED_MEAN, .decide = decide};
