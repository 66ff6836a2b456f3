/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks on updates:
 *
 *   alie     mean + z std: Baruch, Baruch, Goldberg: "A Little Is Enough", NeurIPS 2019, algorithm 3
 *   ipm      -scale mean: Xie, Koyejo, Gupta: "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
 *            Manipulation", UAI 2020
 *   min-max, min-sum   mean - gamma std: Shejwalkar, Houmansadr: "Manipulating the Byzantine", NDSS 2021, sections IV-B and C. Both
 *            conditions are quadratic in gamma, so the largest one has a closed form
 *   fang-krum     -lambda sign(mean): Fang, Cao, Jia, Gong: "Local Model Poisoning Attacks to Byzantine-Robust Federated
 *                 Learning", USENIX Security 2020, section 4.2, with the bad rows equal to each other
 *   fang-trimmed  beyond the honest extremes, against the sign of their mean: the same, section 4.3, full knowledge
 *   backdoor      scale times its own, trained on patched samples: Bagdasaryan et al.: "How To Backdoor Federated Learning",
 *                 AISTATS 2020, section 4.1, model replacement; the patch is that of Gu, Dolan-Gavitt, Garg: "BadNets", 2017
 *   mimic    one honest row again: Karimireddy, He, Jaggi, ICLR 2022
 */
#include "server/robust/attack.h"

#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

/* The central region of Acklam's rational approximation of the normal quantile, relative error 1.2e-9. */
static double quantile(double p)
{
        double q = p - 0.5, r = q * q;
        double over =
                ((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r +
                         1.383577518672690e+02) *
                                r -
                        3.066479806614716e+01) *
                        r +
                2.506628277459239e+00;
        double under =
                ((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r +
                         6.680131188771972e+01) *
                                r -
                        1.328068155288572e+01) *
                        r +
                1;
        return q * over / under;
}

bool mfl_attack_compares(enum mfl_attack attack)
{
        return attack == MFL_ATTACK_MIN_MAX || attack == MFL_ATTACK_MIN_SUM || attack == MFL_ATTACK_FANG_KRUM;
}

double mfl_attack_alie(uint32_t n, uint32_t n_bad)
{
        double honest = (double)n - n_bad, s = (double)(n / 2) + 1 - n_bad;
        double p = honest > 0 ? (honest - MFL_MAX(s, 0.0)) / honest : 0.5;
        return p <= 0.5 ? 0 : quantile(MFL_MIN(p, 0.97575));
}

double mfl_attack_gamma(enum mfl_attack kind, uint32_t n, const double *g)
{
        size_t w = n + 1;
        double p2 = g[n * w + n], mean2 = 0, mean_p = 0, most = 0, gamma = INFINITY, squares = 0;
        for (uint32_t i = 0; i < n; i++) {
                double sum = 0;
                for (uint32_t j = 0; j < n; j++) {
                        double d = g[i * w + i] + g[j * w + j] - 2 * g[i * w + j];
                        sum = kind == MFL_ATTACK_MIN_SUM ? sum + MFL_MAX(d, 0.0) : MFL_MAX(sum, d);
                        mean2 += g[i * w + j] / n / n;
                }
                most = MFL_MAX(most, sum);
                mean_p += g[n * w + i] / n;
        }
        if (!(p2 > 0))
                return 0;
        for (uint32_t i = 0; i < n; i++) {
                /* |mean - gamma p - x_i|^2 = a - 2 gamma b + gamma^2 p2 */
                double with = 0;
                for (uint32_t j = 0; j < n; j++)
                        with += g[i * w + j] / n;
                double a = mean2 - 2 * with + g[i * w + i], b = mean_p - g[n * w + i];
                squares += a;
                gamma = MFL_MIN(gamma, (b + sqrt(MFL_MAX(b * b - p2 * (a - most), 0.0))) / p2);
        }
        if (kind == MFL_ATTACK_MIN_SUM) /* the b sum to 0 */
                return sqrt(MFL_MAX(most - squares, 0.0) / (n * p2));
        return MFL_MAX(gamma, 0.0);
}

static double mean_of(const float *const *honest, uint32_t n, size_t e)
{
        double sum = 0;
        for (uint32_t k = 0; k < n; k++)
                sum += (double)honest[k][e];
        return sum / n;
}

static double deviation_of(const float *const *honest, uint32_t n, size_t e, double mean)
{
        double sum = 0;
        for (uint32_t k = 0; k < n; k++)
                sum += ((double)honest[k][e] - mean) * ((double)honest[k][e] - mean);
        return n > 1 ? sqrt(sum / (n - 1)) : 0;
}

void mfl_attack_signs(const float *const *honest, uint32_t n, size_t count, float *out)
{
        for (size_t e = 0; e < count; e++) {
                double mean = mean_of(honest, n, e);
                out[e] = (float)((mean > 0) - (mean < 0));
        }
}

/* The Gram matrix of the honest rows and the bad ones. */
static void fill_lambda(uint32_t n, uint32_t m, const double *g, double lambda, double *made)
{
        size_t w = n + 1;
        for (uint32_t i = 0; i < m; i++)
                for (uint32_t j = 0; j < m; j++) {
                        double factor = (i < n ? 1 : -lambda) * (j < n ? 1 : -lambda);
                        made[(size_t)i * m + j] = factor * g[MFL_MIN(i, n) * w + MFL_MIN(j, n)];
                }
}

/* The paper's bound (equation 5): above it Krum takes an honest row. */
static double lambda_most(uint32_t n, uint32_t n_bad, const struct mfl_rows *honest, double elements,
        struct mfl_ranked *v, double *score)
{
        uint32_t m = n + n_bad, nearest = m > n_bad + 2 ? m - n_bad - 2 : 1;
        double least = INFINITY, longest = 0;
        mfl_krum_scores(honest, NULL, nearest, v, score);
        for (uint32_t i = 0; i < n; i++) {
                least = MFL_MIN(least, score[i]);
                longest = MFL_MAX(longest, sqrt(mfl_rows_norm2(honest, i)));
        }
        double others = m > 2 * n_bad + 1 ? (double)m - 2 * n_bad - 1 : 1;
        return sqrt(least / (others * elements)) + longest / sqrt(elements);
}

int mfl_attack_lambda(uint32_t n, uint32_t n_bad, const double *g, double *ret_lambda)
{
        uint32_t m = n + n_bad, best = 0;
        double *made = mfl_calloc((size_t)m * m, sizeof *made), *score = mfl_calloc(m, sizeof *score);
        struct mfl_ranked *v = mfl_calloc(m, sizeof *v);
        double elements = g[(size_t)n * (n + 1) + n], lambda = 0;
        int r = made && score && v ? 0 : -ENOMEM;
        const struct mfl_robust_spec spec = {.f = n_bad};
        if (!r && elements > 0) {
                const struct mfl_rows honest = {.m = n, .stride = n + 1, .g = g},
                                      all = {.m = m, .stride = m, .g = made};
                lambda = 2 * lambda_most(n, n_bad, &honest, elements, v, score);
                do {
                        lambda /= 2;
                        fill_lambda(n, m, g, lambda, made);
                        mfl_krum_scores(&all, NULL, mfl_krum_neighbours(&spec, m), v, score);
                        best = 0;
                        for (uint32_t i = 1; i < m; i++)
                                best = score[i] < score[best] ? i : best;
                } while (best < n && lambda >= 1e-5);
        }
        free(made);
        free(score);
        free(v);
        if (!r)
                *ret_lambda = lambda;
        return r;
}

/* Uniform beyond the honest extreme: up to b times as far from 0, or to a b-th of it where it is on the other side. */
static double beyond(const float *const *honest, uint32_t n, size_t e, double b, double u)
{
        double least = (double)honest[0][e], most = least, mean = mean_of(honest, n, e);
        for (uint32_t k = 1; k < n; k++) {
                least = MFL_MIN(least, (double)honest[k][e]);
                most = MFL_MAX(most, (double)honest[k][e]);
        }
        double from = mean > 0 ? least : most, to = (mean > 0) == (from > 0) ? from / b : from * b;
        return from + u * (to - from);
}

void mfl_attack_deviation(const float *const *honest, uint32_t n, size_t count, float *out)
{
        for (size_t e = 0; e < count; e++)
                out[e] = (float)deviation_of(honest, n, e, mean_of(honest, n, e));
}

void mfl_attack_range(const struct mfl_attack_plan *plan, const float *const *honest, uint32_t n,
        const float *own, uint64_t first, size_t count, float limit, float *out)
{
        struct mfl_rng_key key = mfl_rng_derive(plan->seed, MFL_RNG_ATTACK, plan->client + 1, plan->round);
        for (size_t e = 0; e < count; e++) {
                double v = (double)own[e], mean = n ? mean_of(honest, n, e) : v;
                if (plan->kind == MFL_ATTACK_SIGN_FLIP)
                        v = -plan->scale * v;
                else if (plan->kind == MFL_ATTACK_GAUSSIAN)
                        v = plan->scale * mfl_robust_normal(key, first + e);
                else if (plan->kind == MFL_ATTACK_ALIE && n)
                        v = mean + plan->scale * deviation_of(honest, n, e, mean);
                else if (plan->kind == MFL_ATTACK_IPM && n)
                        v = -plan->scale * mean;
                else if ((plan->kind == MFL_ATTACK_MIN_MAX || plan->kind == MFL_ATTACK_MIN_SUM) && n)
                        v = mean - plan->scale * deviation_of(honest, n, e, mean);
                else if (plan->kind == MFL_ATTACK_FANG_KRUM && n)
                        v = -plan->scale * ((mean > 0) - (mean < 0));
                else if (plan->kind == MFL_ATTACK_FANG_TRIMMED && n)
                        v = beyond(honest, n, e, plan->scale,
                                (double)mfl_u32_to_unit(mfl_rng_block(key, first + e).v[0]));
                else if (plan->kind == MFL_ATTACK_BACKDOOR)
                        v = plan->scale * v;
                else if (plan->kind == MFL_ATTACK_MIMIC && n)
                        v = (double)honest[0][e];
                else if (plan->kind == MFL_ATTACK_LAZY)
                        v = 0;
                out[e] = (float)MFL_MIN(MFL_MAX(v, -(double)limit), (double)limit);
        }
}
