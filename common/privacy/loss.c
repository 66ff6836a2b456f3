/* SPDX-License-Identifier: Apache-2.0 */
/* One round's loss. Outcomes are x = noise, or 1 + noise where the client took part, in units of the sensitivity:
 *
 *      without the client: N(0, sigma^2),     with it: (1 - q) N(0, sigma^2) + q N(1, sigma^2)
 *      L(x) = log(with / without) = log(1 - q + q exp((2x - 1) / (2 sigma^2)))
 *
 * If the neighbour lacks the client, the loss is L(x) of x drawn with it; if it has one more, -L(x) of x drawn without. The
 * probabilities P and Q of both in the interval between two grid points e and e + step are divided between its ends so that
 * both stay what they are: a at e and b at e + step with a + b = P and a exp(-e) + b exp(-e - step) = Q. That is
 * "connecting the dots": the curve delta(epsilon) stays right at the grid points and is too high between them.
 */
#include "common/privacy/loss.h"

#include <math.h>

#define TAIL 10.5 /* deviations; beyond lie 5e-26, which count as a loss of everything */
#define POINTS_MAX (4u << 20)

struct mix {
        double sigma, q;
        enum mfl_dp_neighbour neighbour;
};

/* L(x). */
static double loss_at(const struct mix *m, double x)
{
        double z = (2 * x - 1) / (2 * m->sigma * m->sigma);
        if (m->q == 1)
                return z;
        if (z > 0) /* nothing overflows */
                return z + log(m->q + (1 - m->q) * exp(-z));
        return log1p(m->q * expm1(z));
}

/* x with L(x) = loss; minus infinity: there is none, all losses are larger. */
static double outcome_of(const struct mix *m, double loss)
{
        double z = loss, s2 = m->sigma * m->sigma;
        if (m->q < 1 && loss > 1)
                z = loss + log1p(-(1 - m->q) * exp(-loss)) - log(m->q);
        else if (m->q < 1) {
                double odds = expm1(loss) + m->q;
                if (odds <= 0)
                        return -INFINITY;
                z = log(odds / m->q);
        }
        return s2 * z + 0.5;
}

/* The normal distribution's probability of (a, b], exact in both tails. */
static double normal_between(double a, double b)
{
        const double root = 0.70710678118654752440;
        if (a > 0)
                return 0.5 * (erfc(a * root) - erfc(b * root));
        if (b < 0)
                return 0.5 * (erfc(-b * root) - erfc(-a * root));
        return 1 - 0.5 * erfc(b * root) - 0.5 * erfc(-a * root);
}

static double without(const struct mix *m, double a, double b)
{
        return normal_between(a / m->sigma, b / m->sigma);
}

static double with(const struct mix *m, double a, double b)
{
        double moved = normal_between((a - 1) / m->sigma, (b - 1) / m->sigma);
        return m->q == 1 ? moved : (1 - m->q) * without(m, a, b) + m->q * moved;
}

/* P and Q of losses in (from, to]. */
static void masses(
        const struct mix *m, double from, double to, double x_min, double x_max, double *p, double *q)
{
        bool less = m->neighbour == MFL_DP_LESS;
        double a = fmin(fmax(outcome_of(m, less ? from : -to), x_min), x_max);
        double b = fmin(fmax(outcome_of(m, less ? to : -from), x_min), x_max);
        *p = a < b ? (less ? with(m, a, b) : without(m, a, b)) : 0;
        *q = a < b ? (less ? without(m, a, b) : with(m, a, b)) : 0;
}

int mfl_dp_loss_round(const struct mfl_dp_rounds *round, enum mfl_dp_neighbour neighbour, double step,
        struct mfl_dp_loss *ret_loss, struct mfl_error *err)
{
        struct mix m = {round->sigma, round->rate, neighbour};
        bool less = neighbour == MFL_DP_LESS;
        double x_min = -TAIL * m.sigma, x_max = 1 + TAIL * m.sigma;
        double low = less ? loss_at(&m, x_min) : -loss_at(&m, x_max);
        double high = less ? loss_at(&m, x_max) : -loss_at(&m, x_min);
        double first = floor(low / step), last = ceil(high / step) + 1;
        if (!(last - first < POINTS_MAX))
                return mfl_fail(err, MFL_BUSY, "a loss from %g to %g needs too many points", low, high);
        struct mfl_dp_loss loss = {.step = step, .first = (int64_t)first, .n = (size_t)(last - first) + 1};
        loss.p = mfl_calloc(loss.n, sizeof *loss.p);
        if (!loss.p)
                return mfl_fail_memory(err, loss.n * sizeof *loss.p, "a privacy loss");
        for (size_t i = 0; i + 1 < loss.n; i++) {
                double from = (first + (double)i) * step, p, q;
                masses(&m, from, from + step, x_min, x_max, &p, &q);
                double b = fmin(fmax((p - q * exp(from)) / -expm1(-step), 0), p);
                loss.p[i] += p - b;
                loss.p[i + 1] += b;
        }
        loss.infinite = erfc(TAIL * 0.70710678118654752440); /* all of both tails */
        *ret_loss = loss;
        return 0;
}

void mfl_dp_loss_deinit(struct mfl_dp_loss *loss)
{
        free(loss->p);
        *loss = (struct mfl_dp_loss){0};
}

/* delta(epsilon) = infinite + sum over losses l > epsilon of (1 - exp(epsilon - l)) p(l): from the largest loss down, with
 * `here` the sum of p and `scaled` that of p exp(e - l) at the grid point e at hand. */
double mfl_dp_loss_epsilon(const struct mfl_dp_loss *loss, double delta)
{
        double here = 0, scaled = 0, shrink = exp(-loss->step);
        if (loss->infinite > delta)
                return INFINITY;
        for (size_t i = loss->n; i-- > 0;) {
                double e = (double)(loss->first + (int64_t)i) * loss->step;
                here += loss->p[i];
                scaled = scaled * shrink + loss->p[i];
                /* Between this point and the one below, delta is infinite + here - exp(epsilon - e) scaled. */
                double below = e - loss->step;
                if (below > 0 && loss->infinite + here - scaled * shrink <= delta)
                        continue;
                double room = (loss->infinite + here - delta) / scaled;
                if (room <= 0)
                        return 0;
                return fmax(0, fmin(e, e + log(room)));
        }
        return 0;
}
