/* SPDX-License-Identifier: Apache-2.0 */
/* Inner Dirichlet (Acar et al., "Federated learning based on dynamic regularization", arXiv 2111.04263):
 * given sizes; each client's class mix is drawn from Dirichlet(alpha), and samples are assigned one by one: first a
 * random client that is not full, then a class by the client's mix among the classes with samples left.
 */
#include "common/partition/partition_draw.h"
#include "common/exact/exact.h"

#include <math.h>

#define PRIORS_MAX (1u << 28)  /* clients times classes, of four bytes each */
#define STEPS_MAX (1ull << 33) /* samples times classes: some seconds */

struct inner {
        uint32_t n_clients;
        int classes;
        uint32_t *priors;         /* [client][class], multiples of 2^-20; 0: never */
        uint32_t *first, *sorted; /* of the classes, see mfl_sort_by_label */
        uint32_t *left;           /* classes: samples not dealt */
        uint32_t *open;           /* clients that are not full */
        uint32_t *next;           /* clients: where the next sample goes */
};

/* A class without samples has the prior 0: it was never among the classes. */
static void draw_priors(const struct mfl_job *job, struct inner *d, double *p)
{
        for (uint32_t k = 0; k < d->n_clients; k++) {
                uint32_t *prior = d->priors + (size_t)k * (size_t)d->classes;
                struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_INNER_PRIORS, k);
                double top = -INFINITY, sum = 0;
                for (int c = 0; c < d->classes; c++) {
                        p[c] = d->left[c] ? mfl_draw_log_gamma(&rng, job->data.alpha) : -INFINITY;
                        top = MFL_MAX(top, p[c]);
                }
                for (int c = 0; c < d->classes; c++)
                        sum += p[c] = mfl_exact_exp(p[c] - top);
                for (int c = 0; c < d->classes; c++)
                        prior[c] = (uint32_t)(p[c] / sum * 0x1p20 + 0.5);
        }
}

/* Draws a class by the client's mix, or by the samples left if the mix has none of the remaining classes. */
static int draw_class(const struct inner *d, const uint32_t *prior, struct mfl_rng *rng)
{
        uint64_t sum = 0;
        for (int c = 0; c < d->classes; c++)
                sum += d->left[c] ? prior[c] : 0;
        const uint32_t *weight = sum ? prior : d->left;
        for (int c = 0; weight == d->left && c < d->classes; c++)
                sum += d->left[c];
        uint32_t at = mfl_rng_below(rng, (uint32_t)sum);
        for (int c = 0;; c++) {
                uint32_t w = d->left[c] ? weight[c] : 0;
                if (at < w)
                        return c;
                at -= w;
        }
}

static void deal(const struct mfl_job *job, struct inner *d, struct mfl_partition *p)
{
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_INNER, 0);
        for (uint32_t n_open = d->n_clients; n_open;) {
                uint32_t at = mfl_rng_below(&rng, n_open), k = d->open[at];
                int c = draw_class(d, d->priors + (size_t)k * (size_t)d->classes, &rng);
                p->index[d->next[k]++] = d->sorted[d->first[c] + --d->left[c]];
                if (d->next[k] == p->start[k + 1])
                        d->open[at] = d->open[--n_open];
        }
}

static int prepare(struct inner *d, const struct mfl_partition *p, struct mfl_error *err)
{
        size_t priors = (size_t)d->n_clients * (size_t)d->classes;
        if (priors > PRIORS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %u clients times %d classes is too many; the limit is %u",
                        d->n_clients, d->classes, PRIORS_MAX);
        uint64_t steps = (uint64_t)p->start[p->n_clients] * (uint64_t)d->classes;
        if (steps > STEPS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data.sizes: %u samples times %d classes would take too long; the limit is %llu",
                        p->start[p->n_clients], d->classes, STEPS_MAX);
        d->priors = mfl_calloc(priors, sizeof *d->priors);
        d->left = mfl_calloc((size_t)d->classes, sizeof *d->left);
        d->open = mfl_calloc(d->n_clients, sizeof *d->open);
        d->next = mfl_calloc(d->n_clients, sizeof *d->next);
        if (!d->priors || !d->left || !d->open || !d->next)
                return mfl_fail_memory(err, priors * sizeof *d->priors, "class mixes");
        for (int c = 0; c < d->classes; c++)
                d->left[c] = d->first[c + 1] - d->first[c];
        for (uint32_t k = 0; k < d->n_clients; k++) {
                d->open[k] = k;
                d->next[k] = p->start[k];
        }
        return 0;
}

int mfl_draw_inner_dirichlet(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *p, struct mfl_error *err)
{
        struct inner d = {.n_clients = p->n_clients, .classes = classes};
        MFL_CLEANUP_FREE double *mix = mfl_calloc((size_t)classes, sizeof *mix);
        int r = mix ? mfl_partition_sizes_given(job, n, p->start, err)
                    : mfl_fail_memory(err, (size_t)classes * sizeof *mix, "class mixes");
        if (!r)
                r = mfl_shuffle_by_label(job->seed, labels, n, classes, &d.first, &d.sorted, err);
        if (!r)
                r = prepare(&d, p, err);
        if (!r) {
                draw_priors(job, &d, mix);
                deal(job, &d, p);
        }
        free(d.priors);
        free(d.first);
        free(d.sorted);
        free(d.left);
        free(d.open);
        free(d.next);
        return r;
}
