/* SPDX-License-Identifier: Apache-2.0 */
/* The Dirichlet partition: each class is divided over the clients in proportions drawn from Dirichlet(alpha).
 *
 * The label skew of Hsu, Qi, Brown: "Measuring the effects of non-identical data distribution for federated
 * visual classification" (2019), in the per-class form that is common since Yurochkin et al. (2019) and that
 * flwr-datasets uses, so client sizes vary too. The whole draw is repeated until every client has
 * min_samples.
 *
 * Every daemon must draw the same partition, so the random numbers are exact to the bit (partition_draw.c). The
 * proportions are then rounded to multiples of 2^-30 and cut in integers.
 */
#include "common/partition/partition_draw.h"
#include "common/exact/exact.h"

#include <math.h>

#define ATTEMPTS_MAX 32

/* One class of n_class samples: cut[k] is where client k's part ends, cut[n_clients - 1] = n_class. size, when not
 * NULL, is how much each client holds already: clients above the average get nothing. */
static void draw_cuts(const struct mfl_job *job, uint32_t attempt, int class, uint32_t n_class,
        uint32_t n_clients, const uint32_t *size, uint32_t n, double *p, uint32_t *cut)
{
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_DIRICHLET,
                (uint64_t)attempt << 32 | (uint32_t) class);
        double top = -INFINITY, sum = 0;
        for (uint32_t k = 0; k < n_clients; k++) {
                p[k] = mfl_draw_log_gamma(&rng, job->data.alpha);
                if (size && (uint64_t)size[k] * n_clients > n)
                        p[k] = -INFINITY;
                top = MFL_MAX(top, p[k]);
        }
        for (uint32_t k = 0; k < n_clients; k++) {
                p[k] = mfl_exact_exp(p[k] - top);
                sum += p[k];
        }
        /* Rounded up by a half each, the units add up to less than 2^30 + 2^31; times n_class that is below
         * 2^64. */
        uint64_t total = 0, at = 0;
        for (uint32_t k = 0; k < n_clients; k++)
                total += (uint64_t)(p[k] / sum * 0x1p30 + 0.5);
        for (uint32_t k = 0; k < n_clients; k++) {
                at += (uint64_t)(p[k] / sum * 0x1p30 + 0.5);
                cut[k] = (uint32_t)(at * n_class / total);
        }
}

/* Draws one attempt. size[k] becomes the number of client k's samples. With an index, client k's go to
 * index + start[k]. */
static void draw_attempt(const struct mfl_job *job, uint32_t attempt, int classes, const uint32_t *first,
        const uint32_t *sorted, double *p, uint32_t *cut, uint32_t n_clients, uint32_t *size,
        const uint32_t *start, uint32_t *index)
{
        memset(size, 0, n_clients * sizeof *size);
        for (int c = 0; c < classes; c++) {
                uint32_t n_class = first[c + 1] - first[c], from = 0;
                if (!n_class)
                        continue;
                draw_cuts(job, attempt, c, n_class, n_clients, job->data.self_balancing ? size : NULL,
                        first[classes], p, cut);
                for (uint32_t k = 0; k < n_clients; k++) {
                        if (index)
                                memcpy(index + start[k] + size[k], sorted + first[c] + from,
                                        (cut[k] - from) * sizeof *index);
                        size[k] += cut[k] - from;
                        from = cut[k];
                }
        }
}

static uint32_t smallest(const uint32_t *v, uint32_t n)
{
        uint32_t least = v[0];
        for (uint32_t i = 1; i < n; i++)
                least = MFL_MIN(least, v[i]);
        return least;
}

int mfl_draw_dirichlet(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err)
{
        uint32_t n_clients = partition->n_clients, wanted = MFL_MAX(job->data.min_samples, 1), best = 0,
                 attempt = 0;
        MFL_CLEANUP_FREE uint32_t *sorted = mfl_calloc(n, sizeof *sorted);
        MFL_CLEANUP_FREE uint32_t *first = mfl_calloc((size_t)classes + 1, sizeof *first);
        MFL_CLEANUP_FREE uint32_t *cut = mfl_calloc(n_clients, sizeof *cut);
        MFL_CLEANUP_FREE uint32_t *size = mfl_calloc(n_clients, sizeof *size);
        MFL_CLEANUP_FREE double *p = mfl_calloc(n_clients, sizeof *p);
        if (!sorted || !first || !cut || !size || !p || mfl_sort_by_label(labels, n, classes, first, sorted))
                return mfl_fail_memory(err, (size_t)n * sizeof *sorted, "a Dirichlet partition");
        for (int c = 0; c < classes; c++) {
                struct mfl_rng rng =
                        mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_DIRICHLET_ORDER, (uint64_t)c);
                mfl_rng_shuffle(&rng, sorted + first[c], first[c + 1] - first[c]);
        }
        for (; attempt < ATTEMPTS_MAX; attempt++) {
                draw_attempt(job, attempt, classes, first, sorted, p, cut, n_clients, size, NULL, NULL);
                uint32_t least = smallest(size, n_clients);
                best = MFL_MAX(best, least);
                if (least >= wanted)
                        break;
        }
        if (attempt == ATTEMPTS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data.alpha: in %d draws of Dirichlet(%g) over %u clients and %u samples "
                        "some client always had fewer than %u samples (at best %u); raise alpha, or lower "
                        "clients or min_samples",
                        ATTEMPTS_MAX, job->data.alpha, n_clients, n, wanted, best);
        /* Turns the sizes into starts, then repeats the same draw and fills it in: no table of clients times classes
         * is needed. */
        for (uint32_t k = 0; k < n_clients; k++)
                partition->start[k + 1] = partition->start[k] + size[k];
        draw_attempt(job, attempt, classes, first, sorted, p, cut, n_clients, size, partition->start,
                partition->index);
        return 0;
}
