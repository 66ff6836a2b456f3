/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to rows before a rule: a small matrix A from G, and the Gram matrix of the rows of A X, which is A G A^T.
 *
 *   nnm     each row becomes the mean of the m - f rows that are nearest to it, itself among them: Allouah et al.: "Fixing
 *           by Mixing", AISTATS 2023, algorithm 2
 *   bucket  means of s rows each in an order that is drawn by (seed, round); the last may have fewer: Karimireddy, He,
 *           Jaggi: "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022, algorithm 1
 *   clip    rows longer than the radius, or than the median length, are shortened to it
 *   arc     the floor(2 (f / m) (m - f)) longest rows are shortened to the length of the next: Allouah et al.: "Adaptive
 *           Gradient Clipping for Robust Federated Learning", 2024, algorithm 2
 */
#include <math.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "server/robust/rule.h"

struct step {
        uint32_t n, n_out;
        double *b; /* [n_out][n] */
};

static void fill_nnm(const struct mfl_rows *rows, uint32_t keep, struct mfl_ranked *v, struct step *step)
{
        for (uint32_t i = 0; i < rows->m; i++) {
                for (uint32_t j = 0; j < rows->m; j++) /* itself is the first of those at distance 0 */
                        v[j] = (struct mfl_ranked){j == i ? -1 : mfl_rows_distance2(rows, i, j), j};
                mfl_rank(v, rows->m);
                for (uint32_t j = 0; j < keep; j++)
                        step->b[(size_t)i * rows->m + v[j].row] = 1.0 / keep;
        }
}

static int fill_buckets(
        const struct mfl_job *job, uint32_t round, uint32_t at, uint32_t size, struct step *step)
{
        uint32_t n = step->n, *order = mfl_malloc(n * sizeof *order);
        if (!order)
                return -ENOMEM;
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_BUCKET, round, at);
        for (uint32_t i = 0; i < n; i++)
                order[i] = i;
        mfl_rng_shuffle(&rng, order, n);
        for (uint32_t i = 0; i < n; i++) {
                uint32_t bucket = i / size, members = MFL_MIN(size, n - bucket * size);
                step->b[(size_t)bucket * n + order[i]] = 1.0 / members;
        }
        free(order);
        return 0;
}

/* Rows longer than `limit` are shortened to it. */
static void fill_clip(const struct mfl_rows *rows, double limit, struct step *step)
{
        for (uint32_t i = 0; i < rows->m; i++) {
                double norm = sqrt(mfl_rows_norm2(rows, i));
                step->b[(size_t)i * rows->m + i] = norm > limit ? limit / norm : 1;
        }
}

static double clip_limit(const struct mfl_rows *rows, const struct mfl_robust_spec *spec,
        const struct mfl_before *before, struct mfl_ranked *v)
{
        uint32_t m = rows->m, f = spec->f;
        for (uint32_t i = 0; i < m; i++)
                v[i] = (struct mfl_ranked){sqrt(mfl_rows_norm2(rows, i)), i};
        mfl_rank(v, m);
        if (before->kind == MFL_BEFORE_CLIP)
                return before->radius > 0 ? before->radius : mfl_ranked_median(v, m);
        uint32_t clipped = f < m ? (uint32_t)(2 * (uint64_t)f * (m - f) / m) : m;
        return v[clipped < m ? m - clipped - 1 : 0].key;
}

/* ret = b a: [n_out][n] times [n][n_in]. a NULL: the identity, b. */
static double *compose(const struct step *step, const double *a, uint32_t n_in)
{
        double *made = mfl_calloc((size_t)step->n_out * n_in, sizeof *made);
        for (uint32_t i = 0; made && i < step->n_out; i++)
                for (uint32_t k = 0; k < step->n; k++) {
                        double b = step->b[(size_t)i * step->n + k];
                        if (!a)
                                made[(size_t)i * n_in + k] = b;
                        for (uint32_t j = 0; a && b != 0 && j < n_in; j++)
                                made[(size_t)i * n_in + j] += b * a[(size_t)k * n_in + j];
                }
        return made;
}

/* b g b^T; the guess, the last row and column, stays as it is. */
static double *transform(const struct step *step, const double *g, bool guess)
{
        uint32_t n = step->n, out = step->n_out, from = n + guess, to = out + guess;
        double *half = mfl_calloc((size_t)to * from, sizeof *half),
               *made = mfl_calloc((size_t)to * to, sizeof *made);
        if (!half || !made) {
                free(half);
                free(made);
                return NULL;
        }
        for (uint32_t i = 0; i < to; i++)
                for (uint32_t k = 0; k < n + guess; k++) {
                        double b = i < out && k < n ? step->b[(size_t)i * n + k] : i == out && k == n;
                        for (uint32_t j = 0; b != 0 && j < from; j++)
                                half[(size_t)i * from + j] += b * g[(size_t)k * from + j];
                }
        for (uint32_t i = 0; i < to; i++)
                for (uint32_t j = 0; j <= i; j++) {
                        double sum = 0;
                        for (uint32_t k = 0; k < n && j < out; k++)
                                sum += half[(size_t)i * from + k] * step->b[(size_t)j * n + k];
                        if (j == out)
                                sum = half[(size_t)i * from + n];
                        made[(size_t)i * to + j] = made[(size_t)j * to + i] = sum;
                }
        free(half);
        return made;
}

static int fill(const struct mfl_job *job, uint32_t at, uint32_t round, const struct mfl_rows *rows,
        struct step *step)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        const struct mfl_before *before = &spec->before[at];
        if (before->kind == MFL_BEFORE_BUCKET)
                return fill_buckets(job, round, at, before->size, step);
        struct mfl_ranked *v = mfl_calloc(rows->m, sizeof *v);
        if (!v)
                return -ENOMEM;
        if (before->kind == MFL_BEFORE_NNM)
                fill_nnm(rows, rows->m > spec->f ? rows->m - spec->f : 1, v, step);
        else
                fill_clip(rows, clip_limit(rows, spec, before, v), step);
        free(v);
        return 0;
}

int mfl_before_apply(const struct mfl_job *job, uint32_t at, uint32_t round, bool guess, uint32_t *n,
        double **a, double **g, uint32_t n_in)
{
        const struct mfl_before *before = &job->aggregation.robust.before[at];
        const struct mfl_rows rows = {*n, *n + guess, *g, guess};
        struct step step = {.n = *n, .n_out = *n};
        if (before->kind == MFL_BEFORE_BUCKET)
                step.n_out = *n / before->size + (*n % before->size != 0);
        step.b = mfl_calloc((size_t)step.n_out * step.n, sizeof *step.b);
        int r = step.b ? fill(job, at, round, &rows, &step) : -ENOMEM;
        double *a_new = r ? NULL : compose(&step, *a, n_in), *g_new = r ? NULL : transform(&step, *g, guess);
        free(step.b);
        if (!a_new || !g_new) {
                free(a_new);
                free(g_new);
                return -ENOMEM;
        }
        free(*a);
        free(*g);
        *a = a_new;
        *g = g_new;
        *n = step.n_out;
        return 0;
}
