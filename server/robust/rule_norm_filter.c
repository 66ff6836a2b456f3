/* SPDX-License-Identifier: Apache-2.0 */
/* Norm filter: the mean of the m - f shortest rows. Gupta, Liu, Vaidya: "Byzantine Fault-Tolerant Distributed Machine
 * Learning with Norm-Based Comparative Gradient Elimination", DSN-W 2021, with the mean instead of the sum. */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m, k = m - spec->f;
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t i = 0; i < m; i++) {
                ruling->score[i] = sqrt(mfl_rows_norm2(rows, i));
                v[i] = (struct mfl_ranked){ruling->score[i], i};
        }
        mfl_rank(v, m);
        ruling->column = MFL_COLUMN_SUM;
        for (uint32_t i = 0; i < k; i++)
                ruling->weight[v[i].row] = 1.0 / k;
        free(v);
        return 0;
}

const struct mfl_robust_rule mfl_rule_norm_filter = {.kind = MFL_STRATEGY_NORM_FILTER, .decide = decide};
