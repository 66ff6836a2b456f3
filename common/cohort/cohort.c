/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a round's clients, in real and in virtual time. */
#include "common/cohort/cohort_internal.h"

#include <inttypes.h>
#include <math.h>

#include "common/cohort/draw.h"
#include "common/cohort/duration.h"
#include "common/method/method.h"

/* So often, time passes or clients are drawn again before a round gives up. */
#define TRIES_MAX 1000u

static bool is_virtual(const struct mfl_job *job)
{
        return job->time == MFL_TIME_VIRTUAL;
}

bool mfl_cohort_needs_samples(const struct mfl_job *job)
{
        enum mfl_selection kind = job->selection.kind;
        bool by_size =
                kind == MFL_SELECT_WEIGHTED || kind == MFL_SELECT_POWER_OF_CHOICE || kind == MFL_SELECT_OORT;
        return by_size || (is_virtual(job) && !mfl_trace_is_fixed(&job->trace));
}

uint64_t mfl_cohort_duration(const struct mfl_cohort_ask *ask, uint32_t client)
{
        const struct mfl_job *job = ask->job;
        uint64_t rows = ask->samples ? mfl_method_all_steps(job, ask->round, ask->samples[client]) *
                                               job->training.batch * job->training.accumulate
                                     : 0;
        return mfl_duration_of(&job->trace, job->seed, client, rows, ask->bytes);
}

/* ---- the pool ---- */

static bool is_on(const struct mfl_cohort_ask *ask, uint32_t client, uint64_t time_us, uint64_t *ret_until)
{
        *ret_until = MFL_VIRTUAL_NEVER;
        return !is_virtual(ask->job) ||
               mfl_duration_is_on(&ask->job->trace, ask->job->seed, client, time_us, ret_until);
}

/* ret_next: when the next of those who are off comes on. */
static int make_pool(
        const struct mfl_cohort_ask *ask, uint64_t time_us, struct cohort_pool *ret, uint64_t *ret_next)
{
        const struct mfl_job *job = ask->job;
        bool turns = job->selection.kind == MFL_SELECT_SEPARATED;
        uint32_t apart = turns ? job->selection.separation : 1, first = turns ? (ask->round - 1) % apart : 0;
        uint64_t until;
        *ret_next = MFL_VIRTUAL_NEVER;
        *ret = (struct cohort_pool){.n = ask->population};
        if (!turns && !is_virtual(job))
                return 0;
        ret->n = 0;
        ret->v = mfl_malloc((ask->population / apart + 1) * sizeof *ret->v);
        if (!ret->v)
                return -ENOMEM;
        for (uint64_t k = first; k < ask->population; k += apart) {
                if (is_on(ask, (uint32_t)k, time_us, &until))
                        ret->v[ret->n++] = (uint32_t)k;
                else
                        *ret_next = MFL_MIN(*ret_next, until);
        }
        return 0;
}

/* ---- kinds ---- */

static uint32_t client_at(const struct cohort_pool *pool, uint32_t i)
{
        return pool->v ? pool->v[i] : i;
}

static int draw_uniform(
        const struct cohort_pool *pool, struct mfl_rng *rng, uint32_t n, uint32_t *ret_v, uint32_t *ret_n)
{
        *ret_n = MFL_MIN(n, pool->n);
        int r = *ret_n < pool->n ? mfl_draw_uniform(rng, pool->n, *ret_n, ret_v) : 0;
        for (uint32_t i = 0; !r && i < *ret_n; i++)
                ret_v[i] = client_at(pool, *ret_n < pool->n ? ret_v[i] : i);
        return r;
}

static int draw_each(const struct mfl_cohort_ask *ask, uint64_t time_us, struct mfl_rng *rng, uint32_t n,
        uint32_t *ret_v, uint32_t *ret_n)
{
        uint64_t below = (uint64_t)ceil(ldexp(ask->job->selection.rate, 32)), until;
        *ret_n = 0;
        for (uint32_t k = 0; k < ask->population && *ret_n < n; k++)
                if (mfl_rng_u32(rng) < below && is_on(ask, k, time_us, &until))
                        ret_v[(*ret_n)++] = k;
        return 0;
}

int mfl_cohort_by_samples(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool,
        struct mfl_rng *rng, uint32_t n, uint32_t *ret_v, uint32_t *ret_n)
{
        MFL_CLEANUP_FREE uint64_t *weight = mfl_malloc(MFL_MAX(pool->n, 1u) * sizeof *weight);
        if (!weight)
                return -ENOMEM;
        for (uint32_t i = 0; i < pool->n; i++)
                weight[i] = ask->samples[client_at(pool, i)];
        int r = mfl_draw_weighted(rng, weight, pool->n, n, ret_v, ret_n);
        for (uint32_t i = 0; !r && i < *ret_n; i++)
                ret_v[i] = client_at(pool, ret_v[i]);
        return r;
}

struct candidate {
        const union mfl_memory_row *row;
        uint32_t client, order;
};

/* The larger mean loss first; compared without rounding. */
static int compare_losses(const void *a, const void *b)
{
        __extension__ typedef __int128 wide;
        const struct candidate *x = a, *y = b;
        bool known_x = x->row->times, known_y = y->row->times;
        if (known_x != known_y)
                return known_x - known_y;
        if (known_x) {
                wide left = (wide)x->row->loss.loss_sum * (int64_t)MFL_MAX(y->row->loss.samples, (uint64_t)1);
                wide right =
                        (wide)y->row->loss.loss_sum * (int64_t)MFL_MAX(x->row->loss.samples, (uint64_t)1);
                if (left != right)
                        return left > right ? -1 : 1;
        }
        return (x->order > y->order) - (x->order < y->order);
}

static int draw_by_loss(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool, struct mfl_rng *rng,
        uint32_t n, uint32_t *ret_v, uint32_t *ret_n)
{
        uint32_t n_candidates = MFL_MIN(ask->job->selection.candidates, pool->n);
        MFL_CLEANUP_FREE uint32_t *drawn = mfl_malloc(MFL_MAX(n_candidates, 1u) * sizeof *drawn);
        MFL_CLEANUP_FREE struct candidate *v = mfl_malloc(MFL_MAX(n_candidates, 1u) * sizeof *v);
        if (!drawn || !v)
                return -ENOMEM;
        int r = mfl_cohort_by_samples(ask, pool, rng, n_candidates, drawn, &n_candidates);
        if (r)
                return r;
        /* One that is left out never has a loss, and would be first in all rounds: it is last. */
        static const union mfl_memory_row left_out = {{.times = 1}};
        for (uint32_t i = 0; i < n_candidates; i++) {
                bool without = mfl_job_is_without(ask->job, drawn[i]);
                v[i] = (struct candidate){without ? &left_out : &ask->memory[drawn[i]], drawn[i], i};
        }
        qsort(v, n_candidates, sizeof *v, compare_losses);
        *ret_n = MFL_MIN(n, n_candidates);
        for (uint32_t i = 0; i < *ret_n; i++)
                ret_v[i] = v[i].client;
        return 0;
}

static int draw(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool, uint64_t time_us,
        uint32_t number, uint32_t n, uint32_t *ret_v, uint32_t *ret_n)
{
        uint64_t seed = ask->secret ? *ask->secret : ask->job->seed;
        struct mfl_rng rng =
                mfl_rng_new(seed, MFL_RNG_SELECT, ask->round, ask->attempt | (uint64_t)number << 32);
        switch (ask->job->selection.kind) {
        case MFL_SELECT_POISSON:
                return draw_each(ask, time_us, &rng, n, ret_v, ret_n);
        case MFL_SELECT_WEIGHTED:
                return mfl_cohort_by_samples(ask, pool, &rng, n, ret_v, ret_n);
        case MFL_SELECT_POWER_OF_CHOICE:
                return draw_by_loss(ask, pool, &rng, n, ret_v, ret_n);
        case MFL_SELECT_OORT:
                return mfl_cohort_oort(ask, pool, &rng, n, ret_v, ret_n);
        default:
                return draw_uniform(pool, &rng, n, ret_v, ret_n);
        }
}

/* ---- virtual time ---- */

struct turn {
        uint64_t duration_us;
        uint32_t client;
};

static int compare_turns(const void *a, const void *b)
{
        const struct turn *x = a, *y = b;
        if (x->duration_us != y->duration_us)
                return x->duration_us < y->duration_us ? -1 : 1;
        return (x->client > y->client) - (x->client < y->client);
}

/* Keeps the first `wanted` of *n clients that are on time. Returns how long the round takes. */
static uint64_t keep_first(const struct mfl_cohort_ask *ask, uint64_t start_us, uint32_t wanted,
        struct turn *turns, uint32_t *v, uint32_t *n)
{
        uint64_t deadline_us = ask->job->limits.virtual_deadline_ms * 1000, slowest_us = 0;
        uint32_t n_turns = 0, n_drawn = *n;
        for (uint32_t i = 0; i < n_drawn; i++) {
                uint64_t until, duration_us = mfl_cohort_duration(ask, v[i]);
                slowest_us = MFL_MAX(slowest_us, duration_us);
                is_on(ask, v[i], start_us, &until);
                if ((!deadline_us || duration_us <= deadline_us) && duration_us <= until - start_us)
                        turns[n_turns++] = (struct turn){duration_us, v[i]};
        }
        qsort(turns, n_turns, sizeof *turns, compare_turns);
        *n = MFL_MIN(n_turns, wanted);
        for (uint32_t i = 0; i < *n; i++)
                v[i] = turns[i].client;
        if (*n == MFL_MIN(n_drawn, wanted))
                return *n ? turns[*n - 1].duration_us : 0;
        return deadline_us ? deadline_us : slowest_us;
}

static int compare_clients(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

static uint32_t count_needed(const struct mfl_job *job, uint32_t wanted)
{
        bool each = job->selection.kind == MFL_SELECT_POISSON;
        return each ? 0 : MFL_MAX((uint32_t)ceil(job->limits.quorum * wanted), 1u);
}

static int fail_short(
        const struct mfl_cohort_ask *ask, const char *what, uint32_t n, uint32_t need, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "round %u: in virtual time, %u of the %u clients that its quorum needs %s, after %u tries; "
                "lower "
                "selection.clients or limits.quorum",
                ask->round, n, need, what, TRIES_MAX);
}

static int draw_virtual(const struct mfl_cohort_ask *ask, uint32_t room, struct turn *turns,
        struct mfl_cohort *c, struct mfl_error *err)
{
        uint32_t need = count_needed(ask->job, c->wanted), number = 0;
        c->start_us = ask->start_us;
        for (uint32_t tries = 0; tries < 2 * TRIES_MAX; tries++) {
                struct cohort_pool pool;
                uint64_t next_us;
                int r = make_pool(ask, c->start_us, &pool, &next_us);
                if (r)
                        return r;
                if (pool.n < need) {
                        uint32_t n_on = pool.n;
                        free(pool.v);
                        if (next_us == MFL_VIRTUAL_NEVER || tries == 2 * TRIES_MAX - 1)
                                return fail_short(ask, "are on at once", n_on, need, err);
                        c->start_us = next_us;
                        continue;
                }
                r = draw(ask, &pool, c->start_us, number++, room, c->client, &c->n);
                free(pool.v);
                if (r)
                        return r;
                uint64_t took_us = keep_first(ask, c->start_us, c->wanted, turns, c->client, &c->n);
                if (c->n >= need) {
                        if (ask->job->selection.kind == MFL_SELECT_POISSON)
                                c->wanted = c->n;
                        c->end_us = c->start_us + took_us;
                        return 0;
                }
                if (number == TRIES_MAX)
                        break;
                c->start_us += took_us;
        }
        return fail_short(ask, "are done in time", c->n, need, err);
}

/* ---- a round ---- */

static int draw_real(const struct mfl_cohort_ask *ask, uint32_t n, struct mfl_cohort *c)
{
        struct cohort_pool pool;
        uint64_t next_us;
        int r = make_pool(ask, 0, &pool, &next_us);
        if (!r)
                r = draw(ask, &pool, 0, 0, n, c->client, &c->n);
        free(pool.v);
        c->wanted = c->n;
        return r;
}

int mfl_cohort_draw(const struct mfl_cohort_ask *ask, struct mfl_cohort *ret_cohort, struct mfl_error *err)
{
        const struct mfl_job *job = ask->job;
        uint32_t wanted = mfl_job_cohort_size(job, ask->population);
        uint32_t room = is_virtual(job) ? (uint32_t)MFL_MIN(
                                                  ceil(job->selection.over * wanted), (double)ask->population)
                                        : wanted;
        struct mfl_cohort c = {.client = mfl_malloc(MFL_MAX(room, 1u) * sizeof *c.client), .wanted = wanted};
        struct turn *turns = is_virtual(job) ? mfl_malloc(MFL_MAX(room, 1u) * sizeof *turns) : NULL;
        int r = !c.client || (is_virtual(job) && !turns) ? -ENOMEM
                : is_virtual(job)                        ? draw_virtual(ask, room, turns, &c, err)
                                                         : draw_real(ask, room, &c);
        free(turns);
        if (r) {
                free(c.client);
                return r == -ENOMEM ? mfl_fail_memory(err, room * sizeof *c.client, "a round's clients") : r;
        }
        uint32_t sorted = 1; /* most are: a quarter of a million takes its time */
        while (sorted < c.n && c.client[sorted - 1] < c.client[sorted])
                sorted++;
        if (sorted < c.n)
                qsort(c.client, c.n, sizeof *c.client, compare_clients);
        *ret_cohort = c;
        return 0;
}
