/* SPDX-License-Identifier: Apache-2.0 */
/* Durations and availability of clients, from a table or from the model. */
#include "common/cohort/duration.h"

#include <math.h>

#include "common/base/rng.h"
#include "common/exact/exact.h"

__extension__ typedef unsigned __int128 wide;

/* ---- durations ---- */

static uint64_t bounded(wide us)
{
        return us < MFL_VIRTUAL_MAX_US ? (uint64_t)us : MFL_VIRTUAL_MAX_US;
}

/* n things at `rate` millionths of a thing per second. */
static uint64_t take(wide n, uint64_t rate)
{
        return bounded((n * 1000000000000u + rate - 1) / rate);
}

/* Marsaglia's polar method: of logarithms, roots and quotients alone. */
static double draw_normal(struct mfl_rng *rng)
{
        for (;;) {
                double u = 2 * mfl_rng_unit(rng) - 1, v = 2 * mfl_rng_unit(rng) - 1, s = u * u + v * v;
                if (s < 1 && s > 0x1p-100)
                        return u * sqrt(-2 * mfl_exact_log(s) / s);
        }
}

static double exponential(double x)
{
        return x <= 0 ? mfl_exact_exp(x) : 1 / mfl_exact_exp(-x);
}

uint64_t mfl_duration_of(
        const struct mfl_trace *trace, uint64_t seed, uint32_t k, uint64_t rows, uint64_t bytes)
{
        uint64_t bandwidth = trace->bandwidth * 1000000, compute;
        if (trace->client) {
                const struct mfl_trace_client *client = &trace->client[k];
                bandwidth = client->bandwidth;
                compute = client->speed ? take((wide)3 * rows, client->speed) : client->duration_us;
        } else {
                struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TRACE, k, 0);
                double us = ceil(3 * (double)rows *
                                 (exponential(trace->mu + trace->sigma * draw_normal(&rng)) / trace->speed) *
                                 1e6);
                compute = us < (double)MFL_VIRTUAL_MAX_US ? (uint64_t)us : MFL_VIRTUAL_MAX_US;
        }
        return bounded((wide)compute + (bandwidth ? take(bytes, bandwidth) : 0));
}

/* ---- availability ---- */

/* On in [from, until) of each day; until may lie in the next one. */
static bool in_span(uint64_t time_us, uint64_t day_us, uint64_t from, uint64_t until, uint64_t *ret_until)
{
        uint64_t at = time_us % day_us, since = (at + day_us - from) % day_us, length = until - from;
        *ret_until = time_us - since + (since < length ? length : day_us);
        return since < length;
}

static bool is_on_by_model(
        const struct mfl_trace *trace, uint64_t seed, uint32_t k, uint64_t time_us, uint64_t *ret_until)
{
        uint64_t day_us = trace->day_ms * 1000, length = (uint64_t)(trace->online * (double)day_us);
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TRACE, k, 1);
        uint64_t u = (uint64_t)mfl_rng_u32(&rng) + mfl_rng_u32(&rng);
        uint64_t from = (uint64_t)((wide)u * day_us >> 33);
        return in_span(time_us, day_us, from, from + MFL_MAX(length, (uint64_t)1), ret_until);
}

static bool is_on_by_table(const struct mfl_trace *trace, const struct mfl_trace_client *client,
        uint64_t time_us, uint64_t *ret_until)
{
        const struct mfl_trace_span *v = trace->span + client->first;
        uint64_t day_us = trace->day_ms * 1000, until = MFL_VIRTUAL_NEVER;
        uint32_t n = client->n;
        /* A span up to midnight goes on with one from midnight. */
        bool wraps = n > 1 && !v[0].from_us && v[n - 1].until_us == day_us;
        for (uint32_t i = wraps; i < n; i++) {
                uint64_t end = v[i].until_us + (wraps && i + 1 == n ? v[0].until_us : 0), change;
                bool on = in_span(time_us, day_us, v[i].from_us, end, &change);
                if (on) {
                        *ret_until = change;
                        return true;
                }
                until = MFL_MIN(until, change);
        }
        *ret_until = until;
        return false;
}

bool mfl_duration_is_on(
        const struct mfl_trace *trace, uint64_t seed, uint32_t k, uint64_t time_us, uint64_t *ret_until_us)
{
        const struct mfl_trace_client *client = trace->client ? &trace->client[k] : NULL;
        bool whole = client && client->n == 1 && !trace->span[client->first].from_us &&
                     trace->span[client->first].until_us == trace->day_ms * 1000;
        *ret_until_us = MFL_VIRTUAL_NEVER;
        if (client ? !client->n || whole : trace->online >= 1)
                return true;
        return client ? is_on_by_table(trace, client, time_us, ret_until_us)
                      : is_on_by_model(trace, seed, k, time_us, ret_until_us);
}
