/* SPDX-License-Identifier: Apache-2.0 */
/* The Dirichlet partition: each class is cut over the clients in proportions drawn from Dirichlet(alpha).
 *
 * The label skew of Hsu, Qi, Brown: "Measuring the effects of non-identical data distribution for federated
 * visual classification" (2019), in the per-class form that is common since Yurochkin et al. (2019) and that
 * flwr-datasets uses, so client sizes vary too. The whole draw is repeated until every client has
 * min_samples.
 *
 * Every daemon must draw the same partition, but log, exp and pow of two C libraries may differ in the last
 * bit. So nothing here calls them: logarithm and exponential are series below, made of IEEE 754 additions,
 * multiplications, divisions and square roots, which are exact to the bit everywhere (the build forbids
 * contraction to FMA). The proportions are then rounded to multiples of 2^-30 and cut in integers.
 */
#include "common/data/partition_draw.h"

#include <float.h>
#include <math.h>

/* 1 concerns float and 16 _Float16 (gcc for AVX512-FP16); only 2 and -1 keep doubles in wider registers. */
_Static_assert(FLT_EVAL_METHOD == 0 || FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 16,
        "doubles must be rounded to double after every operation");

#define ATTEMPTS_MAX 32

/* ln 2 in two parts, the first with zeros at its end, so that k * LN2_HIGH is exact for |k| < 2^11. */
#define LN2_HIGH 0x1.62e42fefa38p-1
#define LN2_LOW 0x1.ef35793c7673p-45

/* x > 0, normal. log(m * 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)); |s| <= 0.172, so s^25 / 25 is below
 * 2^-68. */
static double exact_log(double x)
{
        int e;
        double m = frexp(x, &e);
        if (m < 0.70710678118654752) {
                m *= 2;
                e--;
        }
        double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
        for (int k = 23; k >= 1; k -= 2)
                sum = sum * s2 + 1.0 / k;
        return (2 * s * sum + e * LN2_LOW) + e * LN2_HIGH;
}

/* x <= 0. exp(k ln 2 + r) = 2^k * Taylor(r); |r| <= 0.347, so r^16 / 16! is below 2^-68. */
double mfl_exact_exp(double x)
{
        if (x < -700)
                return 0; /* 2^-1010: nothing beside the largest proportion */
        int k = (int)(x * 0x1.71547652b82fep+0 - 0.5);
        double r = (x - k * LN2_HIGH) - k * LN2_LOW, sum = 1;
        for (int i = 15; i >= 1; i--)
                sum = 1 + sum * r / i;
        return ldexp(sum, k);
}

/* Standard normal by Marsaglia's polar method; the second number of the pair is not kept. */
double mfl_draw_normal(struct mfl_rng *rng)
{
        for (;;) {
                double u = 2 * mfl_rng_unit(rng) - 1, v = 2 * mfl_rng_unit(rng) - 1, q = u * u + v * v;
                if (q > 0x1p-1000 && q < 1)
                        return u * sqrt(-2 * exact_log(q) / q);
        }
}

/* The logarithm of a Gamma(alpha) number: Marsaglia and Tsang, "A simple method for generating gamma
 * variables" (2000). For alpha < 1 it is Gamma(alpha + 1) * U^(1/alpha), which underflows for a small alpha;
 * its logarithm does not. */
double mfl_draw_log_gamma(struct mfl_rng *rng, double alpha)
{
        double boost = 0;
        if (alpha < 1) {
                boost = exact_log(mfl_rng_unit(rng)) / alpha;
                alpha += 1;
        }
        double d = alpha - 1.0 / 3.0, c = 1 / sqrt(9 * d);
        for (;;) {
                double x = mfl_draw_normal(rng), t = 1 + c * x;
                if (t <= 0)
                        continue;
                double v = t * t * t;
                if (exact_log(mfl_rng_unit(rng)) < 0.5 * x * x + d - d * v + d * exact_log(v))
                        return exact_log(d) + exact_log(v) + boost;
        }
}

/* One class of n_class samples: cut[k] is where client k's part ends, cut[n_clients - 1] = n_class. size,
 * when not NULL, has what each client holds already: whoever has more than the average gets nothing. */
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
                        "some client always had less than %u samples (at best %u); raise alpha, or lower "
                        "clients or "
                        "min_samples",
                        ATTEMPTS_MAX, job->data.alpha, n_clients, n, wanted, best);
        /* The sizes become starts; then the same draw is made again and filled in, which needs no table of
         * clients times classes. */
        for (uint32_t k = 0; k < n_clients; k++)
                partition->start[k + 1] = partition->start[k] + size[k];
        draw_attempt(job, attempt, classes, first, sorted, p, cut, n_clients, size, partition->start,
                partition->index);
        return 0;
}
