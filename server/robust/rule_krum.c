/* SPDX-License-Identifier: Apache-2.0 */
/* Krum: Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine Tolerant Gradient
 * Descent", NeurIPS 2017, section 4:
 *
 *      s(i) = sum over the m - f - 2 nearest j != i of ||x_i - x_j||^2,   Krum = x_i with the least s(i)
 *
 * and Multi-Krum: the mean of the k rows with the least s(i). Here k = m - f, as in byzfl; the paper leaves it open.
 * `neighbours` takes the place of m - f - 2: byzfl has m - f - 1. */
#include <stdlib.h>

#include "server/robust/rule.h"

uint32_t mfl_krum_neighbours(const struct mfl_robust_spec *spec, uint32_t m)
{
        uint32_t n = spec->neighbours ? spec->neighbours : m > spec->f + 2 ? m - spec->f - 2 : 1;
        return MFL_MIN(n, m - 1);
}

void mfl_krum_scores(
        const struct mfl_rows *rows, const bool *gone, uint32_t n, struct mfl_ranked *scratch, double *score)
{
        for (uint32_t i = 0; i < rows->m; i++) {
                uint32_t others = 0;
                for (uint32_t j = 0; j < rows->m && !(gone && gone[i]); j++)
                        if (j != i && !(gone && gone[j]))
                                scratch[others++] = (struct mfl_ranked){mfl_rows_distance2(rows, i, j), j};
                mfl_rank(scratch, others);
                double sum = 0;
                for (uint32_t j = 0; j < MFL_MIN(n, others); j++)
                        sum += scratch[j].key;
                score[i] = sum;
        }
}

/* The mean of the k rows with the least scores. */
static int take_best(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, uint32_t k,
        struct mfl_ruling *ruling)
{
        struct mfl_ranked *v = mfl_calloc(rows->m, sizeof *v);
        if (!v)
                return -ENOMEM;
        mfl_krum_scores(rows, NULL, mfl_krum_neighbours(spec, rows->m), v, ruling->score);
        for (uint32_t i = 0; i < rows->m; i++)
                v[i] = (struct mfl_ranked){ruling->score[i], i};
        mfl_rank(v, rows->m);
        ruling->column = MFL_COLUMN_SUM;
        for (uint32_t i = 0; i < k; i++)
                ruling->weight[v[i].row] = 1.0 / k;
        free(v);
        return 0;
}

static int decide_krum(
        const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        return take_best(rows, spec, 1, ruling);
}

static int decide_multi(
        const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        return take_best(rows, spec, rows->m - spec->f, ruling);
}

const struct mfl_robust_rule mfl_rule_krum = {.kind = MFL_STRATEGY_KRUM, .decide = decide_krum},
                             mfl_rule_multi_krum = {.kind = MFL_STRATEGY_MULTI_KRUM, .decide = decide_multi};
