/* SPDX-License-Identifier: Apache-2.0 */
/* FLTrust: Cao, Fang, Liu, Gong: "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021, equations 2 to
 * 4. With the update x_0 of the root, whose data are trusted:
 *
 *      t_k = max(0, cos(x_k, x_0)),   sum of t_k (||x_0|| / ||x_k||) x_k / sum of t_k
 *
 * score_k = 1 - cos(x_k, x_0); a row of zeros has the cosine 0. When no row is trusted, the aggregate is x_0 (the paper's is
 * not defined). */
#include <math.h>

#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        mfl_assert(rows->guess);
        double root = sqrt(mfl_rows_norm2(rows, m)), sum = 0;
        ruling->column = MFL_COLUMN_SUM;
        for (uint32_t k = 0; k < m; k++) {
                double lengths = sqrt(mfl_rows_norm2(rows, k)) * root;
                double cosine = lengths > 0 ? rows->g[(size_t)k * rows->stride + m] / lengths : 0;
                ruling->score[k] = 1 - cosine;
                ruling->weight[k] = MFL_MAX(cosine, 0.0);
                sum += ruling->weight[k];
        }
        for (uint32_t k = 0; k < m && sum > 0; k++)
                if (ruling->weight[k] > 0)
                        ruling->weight[k] *= root / sqrt(mfl_rows_norm2(rows, k)) / sum;
        if (!(sum > 0))
                ruling->weight[m] = 1;
        return 0;
}

const struct mfl_robust_rule mfl_rule_fltrust = {
        .kind = MFL_STRATEGY_FLTRUST, .wants_root = true, .decide = decide};
