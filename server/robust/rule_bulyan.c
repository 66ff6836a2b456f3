/* SPDX-License-Identifier: Apache-2.0 */
/* Bulyan: El Mhamdi, Guerraoui, Rouault: "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018,
 * section 4. Krum on the rows that are left, r of them, with r - f - 2 neighbours (at least 1), takes one row away at a
 * time, until theta = m - 2f are taken. In each coordinate the result is the mean of the theta - 2f taken values that are
 * nearest to their median. A row's score is Krum's when it was taken, or at the end. */
#include <stdlib.h>

#include "server/robust/rule.h"

/* nearest[i]: all rows by their distance to row i, itself left out. */
static void rank_all(const struct mfl_rows *rows, struct mfl_ranked *nearest)
{
        uint32_t m = rows->m;
        for (uint32_t i = 0; i < m; i++) {
                struct mfl_ranked *v = nearest + (size_t)i * m;
                uint32_t n = 0;
                for (uint32_t j = 0; j < m; j++)
                        if (j != i)
                                v[n++] = (struct mfl_ranked){mfl_rows_distance2(rows, i, j), j};
                mfl_rank(v, n);
        }
}

static double score_of(const struct mfl_ranked *v, uint32_t others, const bool *gone, uint32_t n)
{
        double sum = 0;
        for (uint32_t j = 0; j < others && n; j++)
                if (!gone[v[j].row]) {
                        sum += v[j].key;
                        n--;
                }
        return sum;
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m, f = spec->f, theta = m - 2 * f;
        struct mfl_ranked *nearest = mfl_calloc((size_t)m * m, sizeof *nearest);
        bool *gone = mfl_calloc(m, sizeof *gone);
        if (!nearest || !gone) {
                free(nearest);
                free(gone);
                return -ENOMEM;
        }
        rank_all(rows, nearest);
        for (uint32_t taken = 0; taken < theta; taken++) {
                uint32_t left = m - taken, n = left > f + 3 ? left - f - 2 : 1, best = m;
                for (uint32_t i = 0; i < m; i++) {
                        if (gone[i])
                                continue;
                        ruling->score[i] = score_of(nearest + (size_t)i * m, m - 1, gone, n);
                        if (best == m || ruling->score[i] < ruling->score[best])
                                best = i;
                }
                gone[best] = true;
                ruling->weight[best] = 1;
        }
        ruling->column = MFL_COLUMN_NEAR;
        ruling->cut = theta - 2 * f;
        free(nearest);
        free(gone);
        return 0;
}

const struct mfl_robust_rule mfl_rule_bulyan = {.kind = MFL_STRATEGY_BULYAN, .decide = decide};
