/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules share: distances, orders of rows. Private to the room. */
#ifndef MFL_SERVER_ROBUST_RULE_H
#define MFL_SERVER_ROBUST_RULE_H

#include "server/robust/robust.h"

/* The squared distance of two rows. */
static inline double mfl_rows_distance2(const struct mfl_rows *rows, uint32_t i, uint32_t j)
{
        const double *g = rows->g;
        size_t s = rows->stride;
        double d = g[i * s + i] + g[j * s + j] - 2 * g[i * s + j];
        return d > 0 ? d : 0;
}

static inline double mfl_rows_norm2(const struct mfl_rows *rows, uint32_t i)
{
        return rows->g[(size_t)i * rows->stride + i];
}

/* A row with what it is ordered by. */
struct mfl_ranked {
        double key;
        uint32_t row;
};
/* Ascending by key, then by row. */
void mfl_rank(struct mfl_ranked *v, uint32_t n);
/* Of v, which is ranked: for an even n the mean of the two in the middle. */
double mfl_ranked_median(const struct mfl_ranked *v, uint32_t n);

/* score[i] = the sum of the squared distances of row i to the n others that are nearest to it, both not `gone` (NULL: none
 * are). scratch: rows->m. */
void mfl_krum_scores(
        const struct mfl_rows *rows, const bool *gone, uint32_t n, struct mfl_ranked *scratch, double *score);
/* Neighbours of Krum for m rows. */
uint32_t mfl_krum_neighbours(const struct mfl_robust_spec *spec, uint32_t m);

struct mfl_weiszfeld {
        double nu;        /* no distance counts as less */
        uint32_t steps;   /* at most */
        double stop;      /* when the sum of distances falls by a smaller share; 0: never */
        bool from_origin; /* begins at 0 instead of the mean */
};
/* Weights of the rows in their geometric median, with sum 1, and the distances of the rows from the point before the last
 * step; w, distance: rows->m. */
void mfl_weiszfeld(const struct mfl_rows *rows, const struct mfl_weiszfeld *how, double *w, double *distance);

/* Number `at` of a stream of normal numbers: a sum of twelve uniform ones, less 6, which is exact on every machine. */
static inline double mfl_robust_normal(struct mfl_rng_key key, uint64_t at)
{
        double sum = -6;
        for (uint64_t block = 3 * at; block < 3 * at + 3; block++) {
                struct mfl_philox u = mfl_rng_block(key, block);
                for (int i = 0; i < 4; i++)
                        sum += (double)mfl_u32_to_unit(u.v[i]);
        }
        return sum;
}

/* d[e] by a rule per element; v: scratch of n doubles. */
double mfl_column_median(double *v, uint32_t n);
double mfl_column_trim(double *v, uint32_t n, uint32_t cut);
/* v stays as it is; scratch: 2n. */
double mfl_column_near(const double *v, uint32_t n, uint32_t keep, double *scratch);

/* before.c: replaces a [n][n_in] (NULL: the identity) and the n x n part of g by what a step makes of them. *n shrinks with
 * buckets. */
int mfl_before_apply(const struct mfl_job *job, uint32_t step, uint32_t round, bool guess, uint32_t *n,
        double **a, double **g, uint32_t n_in);

extern const struct mfl_robust_rule mfl_rule_mean, mfl_rule_median, mfl_rule_trimmed_mean,
        mfl_rule_mean_around_median, mfl_rule_krum, mfl_rule_multi_krum, mfl_rule_bulyan, mfl_rule_rfa,
        mfl_rule_centered_clip, mfl_rule_norm_filter, mfl_rule_dnc, mfl_rule_signguard, mfl_rule_flame,
        mfl_rule_foolsgold, mfl_rule_fltrust;

#endif
