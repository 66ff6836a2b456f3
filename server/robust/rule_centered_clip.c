/* SPDX-License-Identifier: Apache-2.0 */
/* Centered clipping: Karimireddy, He, Jaggi: "Learning from History for Byzantine Robust Optimization", ICML 2021,
 * section 4, with one step (L = 1) from the aggregate of the round before, v:
 *
 *      v + mean of (x_k - v) min(1, tau / ||x_k - v||)
 *
 * In the first round v is 0. `clip_radius: median` takes the median of the distances for tau. */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        mfl_assert(rows->guess);
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t k = 0; k < m; k++) {
                ruling->score[k] = sqrt(mfl_rows_distance2(rows, k, m));
                v[k] = (struct mfl_ranked){ruling->score[k], k};
        }
        mfl_rank(v, m);
        double tau = spec->clip_radius > 0 ? spec->clip_radius : mfl_ranked_median(v, m), kept = 0;
        free(v);
        ruling->column = MFL_COLUMN_SUM;
        for (uint32_t k = 0; k < m; k++) {
                double clip = ruling->score[k] > tau ? tau / ruling->score[k] : 1;
                ruling->weight[k] = clip / m;
                kept += clip / m;
        }
        ruling->weight[m] = 1 - kept;
        return 0;
}

const struct mfl_robust_rule mfl_rule_centered_clip = {
        .kind = MFL_STRATEGY_CENTERED_CLIP, .wants_guess = true, .decide = decide};
