/* SPDX-License-Identifier: Apache-2.0 */
/* FLAME: Nguyen et al.: "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022, algorithm 1.
 *
 *   1. the cluster of more than half of the rows whose cosine distances are smallest: HDBSCAN with min_cluster_size
 *      floor(m / 2) + 1, min_samples 1 and allow_single_cluster, which with so large a cluster is the first component of more
 *      than half of the rows when the pairs are joined from the nearest on;
 *   2. its rows, none longer than S, the median length of all rows; their mean;
 *   3. normal noise of deviation lambda S on each element (`noise`, 0.001).
 *
 * The cosines are those of updates; the paper writes W_i, models, whose cosines are all nearly 1. A row of zeros has the distance 1
 * from any other.
 *
 *   score_k = the least distance at which row k is joined to the cluster; rows outside: its distance from the nearest row
 *   inside */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

struct pair {
        double distance;
        uint32_t i, j;
};

static int by_distance(const void *x, const void *y)
{
        const struct pair *a = x, *b = y;
        if (a->distance != b->distance)
                return a->distance < b->distance ? -1 : 1;
        if (a->i != b->i)
                return a->i < b->i ? -1 : 1;
        return (a->j > b->j) - (a->j < b->j);
}

static double cosine_distance(const struct mfl_rows *rows, uint32_t i, uint32_t j)
{
        double lengths =
                sqrt(mfl_rows_norm2(rows, i) * mfl_rows_norm2(rows, j)); /* equal rows: exactly G_ij */
        return lengths > 0 ? 1 - rows->g[(size_t)i * rows->stride + j] / lengths : 1;
}

static uint32_t root_of(uint32_t *parent, uint32_t i)
{
        while (parent[i] != i) {
                parent[i] = parent[parent[i]];
                i = parent[i];
        }
        return i;
}

/* Joins the nearest pairs until a component has `least` rows. in[i]: row i is in it. score as above. */
static void find_cluster(const struct pair *pairs, size_t n, uint32_t m, uint32_t least, uint32_t *parent,
        uint32_t *size, bool *in, double *score)
{
        for (uint32_t i = 0; i < m; i++) {
                parent[i] = i;
                size[i] = 1;
                score[i] = INFINITY;
        }
        uint32_t found = 0;
        for (size_t k = 0; k < n && size[found] < least; k++) {
                uint32_t a = root_of(parent, pairs[k].i), b = root_of(parent, pairs[k].j);
                score[pairs[k].i] = MFL_MIN(score[pairs[k].i], pairs[k].distance);
                score[pairs[k].j] = MFL_MIN(score[pairs[k].j], pairs[k].distance);
                if (a == b)
                        continue;
                parent[MFL_MAX(a, b)] = MFL_MIN(a, b);
                size[MFL_MIN(a, b)] += size[MFL_MAX(a, b)];
                if (size[MFL_MIN(a, b)] > size[found])
                        found = MFL_MIN(a, b);
        }
        for (uint32_t i = 0; i < m; i++)
                in[i] = root_of(parent, i) == found;
        for (uint32_t i = 0; i < m; i++)
                score[i] = in[i] ? score[i] : INFINITY;
        for (size_t k = 0; k < n; k++) {
                uint32_t i = pairs[k].i, j = pairs[k].j;
                if (in[i] != in[j])
                        score[in[i] ? j : i] = MFL_MIN(score[in[i] ? j : i], pairs[k].distance);
        }
}

static void weigh(const struct mfl_rows *rows, const bool *in, struct mfl_ranked *v, double noise,
        struct mfl_ruling *ruling)
{
        uint32_t m = rows->m, n = 0;
        for (uint32_t i = 0; i < m; i++) {
                v[i] = (struct mfl_ranked){sqrt(mfl_rows_norm2(rows, i)), i};
                n += in[i];
        }
        mfl_rank(v, m);
        double limit = mfl_ranked_median(v, m);
        for (uint32_t k = 0; k < m; k++)
                if (in[v[k].row])
                        ruling->weight[v[k].row] = (v[k].key > limit ? limit / v[k].key : 1) / n;
        ruling->noise = noise * limit;
}

static int decide(const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling)
{
        uint32_t m = rows->m;
        size_t n = 0;
        struct pair *pairs = mfl_malloc(((size_t)m * (m - 1) / 2 + 1) * sizeof *pairs);
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        uint32_t *forest = mfl_calloc(2 * (size_t)m, sizeof *forest);
        bool *in = mfl_calloc(m, sizeof *in);
        int r = pairs && v && forest && in ? 0 : -ENOMEM;
        for (uint32_t i = 0; i < m && !r; i++)
                for (uint32_t j = i + 1; j < m; j++)
                        pairs[n++] = (struct pair){cosine_distance(rows, i, j), i, j};
        if (!r) {
                qsort(pairs, n, sizeof *pairs, by_distance);
                find_cluster(pairs, n, m, m / 2 + 1, forest, forest + m, in, ruling->score);
                weigh(rows, in, v, spec->noise, ruling);
                ruling->column = MFL_COLUMN_SUM;
        }
        free(pairs);
        free(v);
        free(forest);
        free(in);
        return r;
}

const struct mfl_robust_rule mfl_rule_flame = {.kind = MFL_STRATEGY_FLAME, .decide = decide};
