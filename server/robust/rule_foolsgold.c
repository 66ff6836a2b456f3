/* SPDX-License-Identifier: Apache-2.0 */
/* FoolsGold: Fung, Yoon, Beschastnikh: "The Limitations of Federated Learning in Sybil Settings", RAID 2020, algorithm 1. G is of
 * h_k, the sum of all that client k has sent, this update included (common/method/history.c); all elements are indicative.
 *
 *      v_i = max over j of cs_ij,   cs_ij = cos(h_i, h_j)
 *      cs_ij <- cs_ij v_i / v_j     where 0 < v_i < v_j (pardoning)
 *      a_i = 1 - max over j of cs_ij, in [0, 1];   a_i <- a_i / max a
 *      a_i <- min(1, max(0, ln(a_i / (1 - a_i)) + 1/2)),   sum of a_i x_i / sum of a_i
 *
 * a_i = 1 counts as 0.99 in the logarithm, as in the authors' code, which still gives 1. When all are alike, so that every a_i is 0,
 * each row counts the same. score_i = max over j of cs_ij after pardoning. */
#include <math.h>
#include <stdlib.h>

#include "common/exact/exact.h"
#include "server/robust/rule.h"

static double cosine(const struct mfl_rows *rows, uint32_t i, uint32_t j)
{
        double lengths =
                sqrt(mfl_rows_norm2(rows, i) * mfl_rows_norm2(rows, j)); /* equal rows: exactly G_ij */
        return lengths > 0 ? rows->g[(size_t)i * rows->stride + j] / lengths : 0;
}

static double logit(double a)
{
        if (!(a > 0))
                return 0;
        a = a >= 1 ? 0.99 : a;
        double v = mfl_exact_log(a / (1 - a)) + 0.5;
        return MFL_MIN(MFL_MAX(v, 0.0), 1.0);
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        double *v = mfl_calloc(m, sizeof *v), most = 0, sum = 0;
        if (!v)
                return -ENOMEM;
        for (uint32_t i = 0; i < m; i++) {
                v[i] = m > 1 ? -1 : 0;
                for (uint32_t j = 0; j < m; j++)
                        v[i] = j == i ? v[i] : MFL_MAX(v[i], cosine(rows, i, j));
        }
        for (uint32_t i = 0; i < m; i++) {
                double like = m > 1 ? -INFINITY : 0;
                for (uint32_t j = 0; j < m; j++) {
                        double cs = j == i ? -INFINITY : cosine(rows, i, j);
                        like = MFL_MAX(like, j != i && v[i] > 0 && v[i] < v[j] ? cs * v[i] / v[j] : cs);
                }
                ruling->score[i] = like;
                ruling->weight[i] = MFL_MIN(MFL_MAX(1 - like, 0.0), 1.0);
                most = MFL_MAX(most, ruling->weight[i]);
        }
        for (uint32_t i = 0; i < m; i++) {
                ruling->weight[i] = most > 0 ? logit(ruling->weight[i] / most) : 0;
                sum += ruling->weight[i];
        }
        for (uint32_t i = 0; i < m; i++)
                ruling->weight[i] = sum > 0 ? ruling->weight[i] / sum : 1.0 / m;
        ruling->column = MFL_COLUMN_SUM;
        free(v);
        return 0;
}

const struct mfl_robust_rule mfl_rule_foolsgold = {
        .kind = MFL_STRATEGY_FOOLSGOLD, .wants_history = true, .decide = decide};
