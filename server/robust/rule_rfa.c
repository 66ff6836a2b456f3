/* SPDX-License-Identifier: Apache-2.0 */
/* The geometric median: Pillutla, Kakade, Harchaoui: "Robust Aggregation for Federated Learning", IEEE TSP 2022,
 * algorithm 2, the smoothed Weiszfeld iteration with equal weights:
 *
 *      z <- sum of b_k x_k / sum of b_k,   b_k = 1 / max(nu, ||x_k - z||)
 *
 * It begins at the mean and ends when the sum of distances falls by less than 1e-6 of itself, or after 100 steps. nu is 1e-5.
 * z is a weighted sum of rows, so its distances follow from G: z^2 - 2 z x_k + x_k^2. */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

static double find_distances(const struct mfl_rows *rows, const double *w, double *distance)
{
        const double *g = rows->g;
        double norm2 = 0, sum = 0;
        for (uint32_t k = 0; k < rows->m; k++) {
                double zx = 0;
                for (uint32_t j = 0; j < rows->m; j++)
                        zx += w[j] * g[(size_t)k * rows->stride + j];
                distance[k] = zx;
                norm2 += w[k] * zx;
        }
        for (uint32_t k = 0; k < rows->m; k++) {
                double d2 = norm2 - 2 * distance[k] + mfl_rows_norm2(rows, k);
                distance[k] = d2 > 0 ? sqrt(d2) : 0;
                sum += distance[k];
        }
        return sum;
}

void mfl_weiszfeld(const struct mfl_rows *rows, const struct mfl_weiszfeld *how, double *w, double *distance)
{
        for (uint32_t k = 0; k < rows->m; k++)
                w[k] = how->from_origin ? 0 : 1.0 / rows->m;
        double sum = find_distances(rows, w, distance);
        for (uint32_t step = 0; step < how->steps; step++) {
                double total = 0, before = sum;
                for (uint32_t k = 0; k < rows->m; k++) {
                        w[k] = 1 / MFL_MAX(how->nu, distance[k]);
                        total += w[k];
                }
                for (uint32_t k = 0; k < rows->m; k++)
                        w[k] /= total;
                sum = find_distances(rows, w, distance);
                if (step && how->stop > 0 && fabs(before - sum) <= how->stop * sum)
                        break;
        }
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        static const struct mfl_weiszfeld how = {.nu = 1e-5, .steps = 100, .stop = 1e-6};
        ruling->column = MFL_COLUMN_SUM;
        mfl_weiszfeld(rows, &how, ruling->weight, ruling->score);
        return 0;
}

const struct mfl_robust_rule mfl_rule_rfa = {.kind = MFL_STRATEGY_RFA, .decide = decide};
