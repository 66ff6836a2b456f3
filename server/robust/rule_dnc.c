/* SPDX-License-Identifier: Apache-2.0 */
/* DnC, divide and conquer: Shejwalkar, Houmansadr: "Manipulating the Byzantine", NDSS 2021, algorithm 2, with c = 1.
 *
 * For each of `iterations` draws of `sample` elements: the rows less their mean, their first right singular vector v, and
 * score_k = <x_k - mean, v>^2; the f rows with the largest scores are left out. The aggregate is the mean of the rows that no draw has
 * left out; if there are none, of those that the fewest have.
 *
 * With C = (I - 11'/m) G (I - 11'/m) of the drawn elements and u its first eigenvector, of eigenvalue s, score_k = s u_k^2. u comes
 * from the power method, from the column of C with the largest diagonal, until no element moves by 1e-14, at most 10,000 steps.
 *
 * The score that is told is the largest of the draws'. */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

#define STEPS_MAX 10000
#define STILL 1e-14

/* ret_c: the Gram matrix of the rows less their mean. */
static void centre(uint32_t m, const double *g, double *mean, double *ret_c)
{
        double all = 0;
        for (uint32_t i = 0; i < m; i++) {
                mean[i] = 0;
                for (uint32_t j = 0; j < m; j++)
                        mean[i] += g[(size_t)i * m + j];
                mean[i] /= m;
                all += mean[i] / m;
        }
        for (uint32_t i = 0; i < m; i++)
                for (uint32_t j = 0; j < m; j++)
                        ret_c[(size_t)i * m + j] = g[(size_t)i * m + j] - mean[i] - mean[j] + all;
}

static double length_of(const double *v, uint32_t m)
{
        double sum = 0;
        for (uint32_t i = 0; i < m; i++)
                sum += v[i] * v[i];
        return sqrt(sum);
}

/* One step of the power method; the eigenvalue, 0 where C u is 0. *ret_moved: the largest change of an element. */
static double step(uint32_t m, const double *c, double *u, double *next, double *ret_moved)
{
        for (uint32_t i = 0; i < m; i++) {
                next[i] = 0;
                for (uint32_t j = 0; j < m; j++)
                        next[i] += c[(size_t)i * m + j] * u[j];
        }
        double value = length_of(next, m);
        *ret_moved = 0;
        for (uint32_t i = 0; i < m && value > 0; i++) {
                *ret_moved = MFL_MAX(*ret_moved, fabs(next[i] / value - u[i]));
                u[i] = next[i] / value;
        }
        return value;
}

/* score_k = s u_k^2. scratch: 2m. */
static void find_scores(uint32_t m, const double *c, double *scratch, double *score)
{
        double *u = scratch, *next = u + m, value = 0, moved = 1;
        uint32_t at = 0;
        for (uint32_t i = 1; i < m; i++)
                at = c[(size_t)i * m + i] > c[(size_t)at * m + at] ? i : at;
        for (uint32_t i = 0; i < m; i++)
                u[i] = c[(size_t)i * m + at];
        double length = length_of(u, m);
        for (uint32_t i = 0; i < m && length > 0; i++)
                u[i] /= length;
        for (int k = 0; k < STEPS_MAX && length > 0 && moved > STILL; k++)
                value = step(m, c, u, next, &moved);
        for (uint32_t i = 0; i < m; i++)
                score[i] = value * u[i] * u[i];
}

static void take(const struct mfl_rows *rows, const uint32_t *times_out, struct mfl_ruling *ruling)
{
        uint32_t fewest = UINT32_MAX, n = 0;
        for (uint32_t i = 0; i < rows->m; i++)
                fewest = MFL_MIN(fewest, times_out[i]);
        for (uint32_t i = 0; i < rows->m; i++)
                n += times_out[i] == fewest;
        for (uint32_t i = 0; i < rows->m; i++)
                ruling->weight[i] = times_out[i] == fewest ? 1.0 / n : 0;
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        size_t square = (size_t)m * m;
        double *c = mfl_malloc((square + 3 * (size_t)m) * sizeof *c);
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        uint32_t *times_out = mfl_calloc(m, sizeof *times_out);
        int r = c && v && times_out ? 0 : -ENOMEM;
        for (uint32_t s = 0; s < rows->n_samples && !r; s++) {
                double *score = c + square;
                centre(m, rows->sample + s * square, score, c);
                find_scores(m, c, score + m, score);
                for (uint32_t i = 0; i < m; i++) {
                        v[i] = (struct mfl_ranked){score[i], i};
                        ruling->score[i] = s ? MFL_MAX(ruling->score[i], score[i]) : score[i];
                }
                mfl_rank(v, m);
                for (uint32_t k = m - spec->f; k < m; k++)
                        times_out[v[k].row]++;
        }
        ruling->column = MFL_COLUMN_SUM;
        if (!r)
                take(rows, times_out, ruling);
        free(c);
        free(v);
        free(times_out);
        return r;
}

const struct mfl_robust_rule mfl_rule_dnc = {
        .kind = MFL_STRATEGY_DNC, .wants_samples = true, .decide = decide};
