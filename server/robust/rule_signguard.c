/* SPDX-License-Identifier: Apache-2.0 */
/* SignGuard: Xu, Huang, Song, Lan: "Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering", ICDCS
 * 2022, algorithm 2.
 *
 *   1. rows of lengths from 0.1 to 3 times the median length;
 *   2. of all rows the largest cluster of (share of negative, of zero, of positive elements) by mean shift with a flat kernel, whose
 *      bandwidth is the mean over the rows of the distance to their floor(m / 2)th nearest, themselves counted;
 *   3. the mean of the rows in both, none longer than the median length. If no row is in both: of those of 1.
 *
 * The paper counts signs on a random tenth of the elements; here on all.
 *
 *   score_k = the distance of row k's shares from the centre of the cluster */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

#define SHORTEST 0.1
#define LONGEST 3.0
#define STEPS_MAX 300
#define STILL 1e-3 /* of the bandwidth */

struct shares {
        double v[MFL_SIGNS];
};

static double between(const struct shares *a, const struct shares *b)
{
        double sum = 0;
        for (int k = 0; k < MFL_SIGNS; k++)
                sum += (a->v[k] - b->v[k]) * (a->v[k] - b->v[k]);
        return sqrt(sum);
}

static double bandwidth(const struct shares *x, uint32_t m, struct mfl_ranked *v)
{
        uint32_t nearest = MFL_MAX(m / 2, 1u);
        double sum = 0;
        for (uint32_t i = 0; i < m; i++) {
                for (uint32_t j = 0; j < m; j++)
                        v[j] = (struct mfl_ranked){between(&x[i], &x[j]), j};
                mfl_rank(v, m);
                sum += v[nearest - 1].key;
        }
        return sum / m;
}

/* The mean of the points no farther from `from` than the width, and how many they are. There is at least one. */
static uint32_t mean_near(
        const struct shares *x, uint32_t m, const struct shares *from, double width, struct shares *ret_mean)
{
        struct shares sum = {{0}};
        uint32_t n = 0;
        for (uint32_t i = 0; i < m; i++) {
                if (between(&x[i], from) > width)
                        continue;
                n++;
                for (int k = 0; k < MFL_SIGNS; k++)
                        sum.v[k] += x[i].v[k];
        }
        for (int k = 0; k < MFL_SIGNS; k++)
                ret_mean->v[k] = n ? sum.v[k] / n : from->v[k];
        return n;
}

/* Where a point comes to rest, and how many points are near it there. */
static uint32_t climb(const struct shares *x, uint32_t m, double width, struct shares *at)
{
        uint32_t n = 0;
        for (int step = 0; step < STEPS_MAX; step++) {
                struct shares next;
                n = mean_near(x, m, at, width, &next);
                double moved = between(&next, at);
                *at = next;
                if (moved <= STILL * width)
                        break;
        }
        return n;
}

/* Peaks from the highest on, those near a higher one left out. Moves them to the front; how many they are. */
static uint32_t keep_peaks(
        struct shares *peak, const struct mfl_ranked *order, uint32_t m, double width, struct shares *kept)
{
        uint32_t n = 0;
        for (uint32_t k = 0; k < m; k++) {
                bool apart = true;
                for (uint32_t i = 0; i < n && apart; i++)
                        apart = between(&peak[order[k].row], &kept[i]) > width;
                if (apart)
                        kept[n++] = peak[order[k].row];
        }
        return n;
}

/* label[i]: the nearest of the kept peaks. The peak with the most rows, the higher one of two. */
static uint32_t largest(
        const struct shares *x, uint32_t m, const struct shares *kept, uint32_t n, uint32_t *label)
{
        uint32_t best = 0, most = 0;
        for (uint32_t i = 0; i < m; i++) {
                label[i] = 0;
                for (uint32_t k = 1; k < n; k++)
                        if (between(&x[i], &kept[k]) < between(&x[i], &kept[label[i]]))
                                label[i] = k;
        }
        for (uint32_t k = 0; k < n; k++) {
                uint32_t members = 0;
                for (uint32_t i = 0; i < m; i++)
                        members += label[i] == k;
                if (members > most) {
                        most = members;
                        best = k;
                }
        }
        return best;
}

/* in[i]: row i is in the largest cluster. room: 3m. */
static void cluster(const struct mfl_rows *rows, struct shares *room, struct mfl_ranked *v, uint32_t *label,
        bool *in, double *score)
{
        uint32_t m = rows->m;
        struct shares *x = room, *peak = x + m, *kept = peak + m;
        for (uint32_t i = 0; i < m; i++) {
                double n = 0;
                for (int k = 0; k < MFL_SIGNS; k++)
                        n += rows->sign[(size_t)k * m + i];
                for (int k = 0; k < MFL_SIGNS; k++)
                        x[i].v[k] = rows->sign[(size_t)k * m + i] / n;
        }
        double width = bandwidth(x, m, v);
        for (uint32_t i = 0; i < m; i++) {
                peak[i] = x[i];
                v[i] = (struct mfl_ranked){-(double)climb(x, m, width, &peak[i]), i};
        }
        mfl_rank(v, m);
        uint32_t n = keep_peaks(peak, v, m, width, kept), best = largest(x, m, kept, n, label);
        for (uint32_t i = 0; i < m; i++) {
                in[i] = label[i] == best;
                score[i] = between(&x[i], &kept[best]);
        }
}

static void weigh(
        const struct mfl_rows *rows, const bool *in, struct mfl_ranked *v, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m, n_fit = 0, n_both = 0;
        for (uint32_t i = 0; i < m; i++)
                v[i] = (struct mfl_ranked){sqrt(mfl_rows_norm2(rows, i)), i};
        mfl_rank(v, m);
        double median = mfl_ranked_median(v, m);
        for (uint32_t k = 0; k < m; k++) {
                bool fits = v[k].key >= SHORTEST * median && v[k].key <= LONGEST * median;
                n_fit += fits;
                n_both += fits && in[v[k].row];
        }
        uint32_t n = n_both ? n_both : n_fit; /* of an odd number, the median itself fits */
        for (uint32_t k = 0; k < m; k++) {
                uint32_t row = v[k].row;
                bool fits = v[k].key >= SHORTEST * median && v[k].key <= LONGEST * median;
                if (!n || (fits && (in[row] || !n_both)))
                        ruling->weight[row] =
                                (v[k].key > median && median > 0 ? median / v[k].key : 1) / (n ? n : m);
        }
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        struct shares *room = mfl_calloc(3 * (size_t)m, sizeof *room);
        uint32_t *label = mfl_calloc(m, sizeof *label);
        bool *in = mfl_calloc(m, sizeof *in);
        int r = v && room && label && in ? 0 : -ENOMEM;
        ruling->column = MFL_COLUMN_SUM;
        if (!r) {
                cluster(rows, room, v, label, in, ruling->score);
                weigh(rows, in, v, ruling);
        }
        free(v);
        free(room);
        free(label);
        free(in);
        return r;
}

const struct mfl_robust_rule mfl_rule_signguard = {
        .kind = MFL_STRATEGY_SIGNGUARD, .wants_signs = true, .decide = decide};
