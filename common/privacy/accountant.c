/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what is asked, and asks both neighbours. */
#include "common/privacy/accountant.h"

#include "common/privacy/loss.h"

#include <math.h>

#define STEP 1e-4
#define STEP_MAX 1.0
#define SIGMA_MIN 0.05

static int check(const struct mfl_dp_rounds *v, size_t n, double delta, struct mfl_error *err)
{
        if (!(delta > 0 && delta < 1))
                return mfl_fail(err, MFL_INVALID,
                        "delta: expected a number between 0 and 1, such as 1e-5, got %g", delta);
        if (!n || n > MFL_DP_PARTS_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "expected 1 to %d kinds of rounds, got %zu", MFL_DP_PARTS_MAX, n);
        for (size_t i = 0; i < n; i++) {
                if (!(v[i].sigma >= SIGMA_MIN && v[i].sigma <= 1e6))
                        return mfl_fail(
                                err, MFL_INVALID, "sigma: expected 0.05 to 1000000, got %g", v[i].sigma);
                if (!(v[i].rate > 0 && v[i].rate <= 1))
                        return mfl_fail(err, MFL_INVALID,
                                "q: expected a probability above 0 and at most 1, got %g", v[i].rate);
                if (v[i].rounds < 1 || v[i].rounds > 1000000000)
                        return mfl_fail(err, MFL_INVALID, "rounds: expected 1 to 1000000000, got %llu",
                                (unsigned long long)v[i].rounds);
        }
        return 0;
}

static int epsilon_with(const struct mfl_dp_rounds *v, size_t n, enum mfl_dp_neighbour neighbour, double step,
        double delta, double *ret_epsilon, struct mfl_error *err)
{
        struct mfl_dp_loss *round = mfl_calloc(n, sizeof *round), all = {0};
        uint64_t *times = mfl_malloc(n * sizeof *times);
        int r = round && times ? 0 : mfl_fail_memory(err, n * sizeof *round, "privacy losses");
        for (size_t i = 0; !r && i < n; i++) {
                times[i] = v[i].rounds;
                r = mfl_dp_loss_round(&v[i], neighbour, step, &round[i], err);
        }
        if (!r)
                r = mfl_dp_loss_compose(round, times, n, &all, err);
        if (!r)
                *ret_epsilon = mfl_dp_loss_epsilon(&all, delta);
        for (size_t i = 0; round && i < n; i++)
                mfl_dp_loss_deinit(&round[i]);
        mfl_dp_loss_deinit(&all);
        free(round);
        free(times);
        return r;
}

int mfl_dp_epsilon(const struct mfl_dp_rounds *v, size_t n, double delta, struct mfl_dp_cost *ret_cost,
        struct mfl_error *err)
{
        struct mfl_dp_cost cost = {0};
        int r = check(v, n, delta, err);
        for (int neighbour = 0; !r && neighbour < 2; neighbour++) {
                double epsilon = 0;
                r = MFL_BUSY;
                for (double step = STEP; r == MFL_BUSY && step < STEP_MAX; step *= 8)
                        r = epsilon_with(v, n, (enum mfl_dp_neighbour)neighbour, step, delta, &epsilon, err);
                cost.epsilon = fmax(cost.epsilon, epsilon);
        }
        if (r == MFL_BUSY) { /* the loss is beyond all use */
                cost.epsilon = INFINITY;
                r = 0;
        }
        if (r)
                return r;
        cost.epsilon_rdp = mfl_dp_rdp_epsilon(v, n, delta);
        *ret_cost = cost;
        return 0;
}

/* log(cost / epsilon) at sigma, above 0 where it costs too much. */
static int excess(struct mfl_dp_rounds *v, double sigma, double epsilon, double delta, double *ret_excess,
        struct mfl_error *err)
{
        struct mfl_dp_cost cost;
        v->sigma = sigma;
        int r = mfl_dp_epsilon(v, 1, delta, &cost, err);
        if (!r)
                *ret_excess = fmin(fmax(log(cost.epsilon / epsilon), -30), 30);
        return r;
}

/* Secants in logarithms, in which cost over sigma is nearly straight, between bounds that hold; a little is added so that
 * both bounds come near. */
int mfl_dp_sigma(
        double epsilon, double rate, uint64_t rounds, double delta, double *ret_sigma, struct mfl_error *err)
{
        struct mfl_dp_rounds v = {.rate = rate, .rounds = rounds};
        double low = 0, high = 1, below = 0, above = 0;
        if (!(epsilon > 0 && epsilon <= 1000))
                return mfl_fail(err, MFL_INVALID,
                        "epsilon: expected a number above 0 and at most 1000, got %g", epsilon);
        int r = excess(&v, high, epsilon, delta, &above, err);
        while (!r && above > 0) {
                low = high;
                below = above;
                high *= 2;
                if (high > 1e6)
                        return mfl_fail(
                                err, MFL_INVALID, "no sigma up to 1000000 is enough for epsilon %g", epsilon);
                r = excess(&v, high, epsilon, delta, &above, err);
        }
        for (double try = high / 2; !r && !low; try = fmax(try / 2, SIGMA_MIN)) {
                r = excess(&v, try, epsilon, delta, &below, err);
                if (below > 0)
                        low = try;
                else {
                        high = try;
                        above = below;
                        /* less than the least is not accounted for */
                        low = 0;
                        if (try == SIGMA_MIN)
                                low = try;
                }
        }
        for (int i = 0; !r && high - low > 1e-5 * high; i++) {
                double share = i % 3 == 2 ? 0.5 : below / (below - above), at;
                at = exp(log(low) + share * (log(high) - log(low)));
                at *= i % 3 == 0 ? 1 + 4e-6 : i % 3 == 1 ? 1 - 4e-6 : 1;
                double off;
                at = fmin(fmax(at, low * (1 + 1e-6)), high * (1 - 1e-6));
                r = excess(&v, at, epsilon, delta, &off, err);
                *(off > 0 ? &low : &high) = at;
                *(off > 0 ? &below : &above) = off;
        }
        if (!r)
                *ret_sigma = high;
        return r;
}
