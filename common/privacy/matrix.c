/* SPDX-License-Identifier: Apache-2.0 */
#include "common/privacy/matrix.h"

#include <math.h>

/* Coefficient j of (1 - x)^(1/2) from the one before, and of (1 - x)^(-1/2). */
static double next_root(double before, uint32_t j)
{
        return before * (2.0 * j - 3) / (2.0 * j);
}

static double next_inverse_root(double before, uint32_t j)
{
        return before * (2.0 * j - 1) / (2.0 * j);
}

static void make_band(double (*next)(double before, uint32_t j), uint32_t p, double *ret_v)
{
        ret_v[0] = 1;
        for (uint32_t j = 1; j < p; j++)
                ret_v[j] = next(ret_v[j - 1], j);
}

/* The first n coefficients of 1 / v, v having p of them and v[0] = 1. */
static void invert(const double *v, uint32_t p, uint32_t n, double *ret_inverse)
{
        ret_inverse[0] = 1;
        for (uint32_t t = 1; t < n; t++) {
                double sum = 0;
                for (uint32_t j = 1; j < p && j <= t; j++)
                        sum += v[j] * ret_inverse[t - j];
                ret_inverse[t] = -sum;
        }
}

/* c: n coefficients of C; room for one in each round. Columns b apart add up: element t becomes c[t] + c[t - b] + c[t - 2 b] .. */
static double find_sensitivity(double *c, uint32_t n, uint32_t rounds, uint32_t b)
{
        double before = INFINITY, squares = 0;
        for (uint32_t t = 0; t < rounds; t++) {
                double one = t < n ? c[t] : 0;
                mfl_assert(one >= 0 && one <= before);
                before = one;
                c[t] = one + (t >= b ? c[t - b] : 0);
                squares += c[t] * c[t];
        }
        return sqrt(squares) * (1 + 0x1p-40);
}

/* The noise of rounds 1 to t together has the coefficients v[0], v[0] + v[1], .. */
static double find_error(const double *v, uint32_t n, uint32_t rounds)
{
        double prefix = 0, variance = 0, all = 0;
        for (uint32_t t = 0; t < rounds; t++) {
                prefix += t < n ? v[t] : 0;
                variance += prefix * prefix;
                all += variance;
        }
        return sqrt(all / rounds);
}

/* c: room for `rounds`. */
static void make_bsr(uint32_t rounds, uint32_t b, double *c, struct mfl_matrix *m)
{
        m->bands = MFL_MIN(b, rounds);
        m->n = rounds;
        make_band(next_inverse_root, m->bands, c);
        invert(c, m->bands, rounds, m->v);
        m->sensitivity = find_sensitivity(c, m->bands, rounds, b);
        m->error = find_error(m->v, m->n, rounds);
}

static void make_bisr(uint32_t rounds, uint32_t b, double *c, struct mfl_matrix *m)
{
        double best = INFINITY;
        make_band(next_root, MFL_MIN(MFL_MATRIX_BANDS_MAX, rounds), m->v);
        for (uint32_t p = 1; p <= MFL_MIN(MFL_MATRIX_BANDS_MAX, rounds); p++) {
                invert(m->v, p, rounds, c);
                double sensitivity = find_sensitivity(c, rounds, rounds, b),
                       error = find_error(m->v, p, rounds);
                if (sensitivity * error >= best)
                        continue;
                best = sensitivity * error;
                m->n = m->bands = p;
                m->sensitivity = sensitivity;
                m->error = error;
        }
}

int mfl_matrix_new(enum mfl_privacy_mechanism mechanism, uint32_t rounds, uint32_t separation,
        struct mfl_matrix **ret_matrix, struct mfl_error *err)
{
        mfl_assert(mechanism != MFL_MECHANISM_GAUSSIAN && rounds >= 1 && rounds <= MFL_MATRIX_ROUNDS_MAX &&
                   separation >= 1);
        struct mfl_matrix *m = mfl_calloc(1, sizeof *m + rounds * sizeof m->v[0]);
        MFL_CLEANUP_FREE double *c = mfl_calloc(rounds, sizeof *c);
        if (!m || !c) {
                free(m);
                return mfl_fail_memory(err, 2 * rounds * sizeof *c, "correlated noise");
        }
        (mechanism == MFL_MECHANISM_BSR ? make_bsr : make_bisr)(rounds, separation, c, m);
        *ret_matrix = m;
        return 0;
}
