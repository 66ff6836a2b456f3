/* SPDX-License-Identifier: Apache-2.0 */
/* Many rounds' loss: the distribution of a sum of independent losses, as the inverse transform of the product of powers of
 * their transforms.
 *
 * The transform is circular: a loss outside of its window would appear inside. Chernoff's inequality, log P(sum >= x) <=
 * sum of log E exp(t l) - t x for each t > 0, and likewise below, gives a window outside of which lies less than TAIL. What is
 * above it counts as a loss of everything; what is below appears as a larger loss, and errs to the safe side.
 */
#include "common/privacy/fft.h"
#include "common/privacy/loss.h"

#include <math.h>

#define TAIL 1e-15
#define WINDOW_MAX ((size_t)1 << 22)
#define COARSE 4096 /* intervals in which the moments are bounded */

/* A round's losses in intervals, each with its probability and its ends. */
struct coarse {
        size_t n;
        double p[COARSE + 1], low[COARSE + 1], high[COARSE + 1];
};

static void make_coarse(const struct mfl_dp_loss *loss, struct coarse *ret_coarse)
{
        size_t each = loss->n / COARSE + 1;
        ret_coarse->n = 0;
        for (size_t from = 0; from < loss->n; from += each) {
                size_t to = MFL_MIN(loss->n, from + each);
                double p = 0;
                for (size_t i = from; i < to; i++)
                        p += loss->p[i];
                if (p <= 0)
                        continue;
                ret_coarse->low[ret_coarse->n] = (double)(loss->first + (int64_t)from) * loss->step;
                ret_coarse->high[ret_coarse->n] = (double)(loss->first + (int64_t)to - 1) * loss->step;
                ret_coarse->p[ret_coarse->n++] = p;
        }
}

/* A bound of log E exp(t l): each interval counts with its end on the side of t. */
static double log_moment(const struct coarse *c, double t)
{
        const double *l = t > 0 ? c->high : c->low;
        double most = -INFINITY, sum = 0;
        for (size_t i = 0; i < c->n; i++)
                most = fmax(most, t * l[i]);
        for (size_t i = 0; i < c->n; i++)
                sum += c->p[i] * exp(t * l[i] - most);
        return most + log(sum);
}

/* Beyond which lies less than TAIL; in steps. Never beyond what all rounds together can lose. */
static int bounds_of(const struct mfl_dp_loss *v, const uint64_t *times, size_t n, double *ret_low,
        double *ret_high, struct mfl_error *err)
{
        struct coarse *coarse = mfl_malloc(n * sizeof *coarse);
        double low = 0, high = 0;
        if (!coarse)
                return mfl_fail_memory(err, n * sizeof *coarse, "privacy losses");
        for (size_t i = 0; i < n; i++) {
                make_coarse(&v[i], &coarse[i]);
                low += (double)times[i] * (double)v[i].first * v[i].step;
                high += (double)times[i] * (double)(v[i].first + (int64_t)v[i].n - 1) * v[i].step;
        }
        for (double t = 0x1p-10; t < 0x1p16; t *= 1.3) {
                double above = 0, below = 0;
                for (size_t i = 0; i < n; i++) {
                        above += (double)times[i] * log_moment(&coarse[i], t);
                        below += (double)times[i] * log_moment(&coarse[i], -t);
                }
                high = fmin(high, (above - log(TAIL)) / t);
                low = fmax(low, -(below - log(TAIL)) / t);
        }
        free(coarse);
        *ret_low = floor(low / v[0].step) - 1;
        *ret_high = ceil(high / v[0].step) + 1;
        return 0;
}

static double complex power(double complex x, uint64_t times)
{
        double complex result = 1;
        for (; times; times >>= 1) {
                if (times & 1)
                        result = mfl_complex(creal(result) * creal(x) - cimag(result) * cimag(x),
                                creal(result) * cimag(x) + cimag(result) * creal(x));
                x = mfl_complex(creal(x) * creal(x) - cimag(x) * cimag(x), 2 * creal(x) * cimag(x));
        }
        return result;
}

struct transforms {
        size_t n;
        double complex *roots, *one, *all;
};

static void multiply(const struct transforms *t, const struct mfl_dp_loss *loss, uint64_t times)
{
        memset(t->one, 0, t->n * sizeof *t->one);
        for (size_t i = 0; i < loss->n; i++)
                t->one[(size_t)(loss->first + (int64_t)i) & (t->n - 1)] += loss->p[i];
        mfl_fft(t->one, t->n, t->roots, 0);
        for (size_t k = 0; k < t->n; k++)
                t->all[k] *= power(t->one[k], times);
}

static int transforms_new(struct transforms *t, struct mfl_error *err)
{
        t->roots = mfl_malloc(t->n / 2 * sizeof *t->roots);
        t->one = mfl_malloc(t->n * sizeof *t->one);
        t->all = mfl_malloc(t->n * sizeof *t->all);
        if (!t->roots || !t->one || !t->all)
                return mfl_fail_memory(
                        err, 5 * t->n / 2 * sizeof *t->all, "the composition of privacy losses");
        mfl_fft_roots(t->roots, t->n);
        for (size_t k = 0; k < t->n; k++)
                t->all[k] = 1;
        return 0;
}

/* Rounding shows where nothing should be: as probabilities below 0. Those become 0, which errs to the safe side; what it may
 * have taken away elsewhere is independent from point to point, so that a sum of N is off by about the root of N times a
 * point's. Four times that counts as a loss of everything. */
static int take_result(
        const struct transforms *t, int64_t first, struct mfl_dp_loss *loss, struct mfl_error *err)
{
        double square = 0, negative = 0;
        loss->first = first;
        loss->n = t->n;
        loss->p = mfl_malloc(t->n * sizeof *loss->p);
        if (!loss->p)
                return mfl_fail_memory(err, t->n * sizeof *loss->p, "a privacy loss");
        for (size_t i = 0; i < t->n; i++) {
                double p = creal(t->all[(size_t)(first + (int64_t)i) & (t->n - 1)]) / (double)t->n;
                loss->p[i] = fmax(0, p);
                square += p < 0 ? p * p : 0;
                negative += p < 0;
        }
        if (negative > 0)
                loss->infinite += 4 * sqrt(square / negative * (double)t->n);
        return 0;
}

int mfl_dp_loss_compose(const struct mfl_dp_loss *v, const uint64_t *times, size_t n,
        struct mfl_dp_loss *ret_loss, struct mfl_error *err)
{
        struct transforms t = {.n = 2};
        struct mfl_dp_loss loss = {.step = v[0].step};
        double low = 0, high = 0;
        int r = bounds_of(v, times, n, &low, &high, err);
        if (r)
                return r;
        while (t.n < WINDOW_MAX && (double)t.n < high - low + 1)
                t.n *= 2;
        if (!(high - low + 1 <= (double)t.n))
                return mfl_fail(err, MFL_BUSY, "a loss from %g to %g needs too many points", low * loss.step,
                        high * loss.step);
        double log_finite = 0;
        for (size_t i = 0; i < n; i++)
                log_finite += (double)times[i] * log1p(-v[i].infinite);
        r = transforms_new(&t, err);
        for (size_t i = 0; !r && i < n; i++)
                multiply(&t, &v[i], times[i]);
        if (!r) {
                loss.infinite = -expm1(log_finite) + TAIL;
                mfl_fft(t.all, t.n, t.roots, 1);
                r = take_result(&t, (int64_t)low, &loss, err);
        }
        free(t.roots);
        free(t.one);
        free(t.all);
        if (!r)
                *ret_loss = loss;
        return r;
}
