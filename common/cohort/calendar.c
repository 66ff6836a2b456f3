/* SPDX-License-Identifier: Apache-2.0 */
/* Advances an asynchronous job's calendar by one version. */
#include "common/cohort/calendar.h"

#include "common/cohort/cohort_internal.h"
#include "common/cohort/draw.h"
#include "common/cohort/duration.h"

_Static_assert(sizeof(union mfl_calendar_row) == 32, "4 words in a checkpoint");

struct calendar {
        const struct mfl_cohort_ask *ask;
        union mfl_calendar_row *place; /* n_places */
        uint32_t n_places, n_free;
        uint64_t now_us, next_on_us;
        uint32_t newest, draws, dropped;
        uint64_t n_events;
        uint32_t *busy, n_busy; /* clients that train or are in the buffer, ascending */
        uint32_t *client, *base, n, wanted;
};

uint32_t mfl_calendar_rows(const struct mfl_job *job)
{
        return mfl_job_is_async(job) ? mfl_job_concurrency(job) + 1 : 0;
}

union mfl_calendar_row *mfl_calendar_new(const struct mfl_job *job)
{
        return mfl_calloc(mfl_calendar_rows(job), sizeof(union mfl_calendar_row));
}

uint32_t mfl_calendar_oldest(const struct mfl_job *job, const union mfl_calendar_row *rows, uint32_t newest)
{
        uint32_t oldest = newest;
        for (uint32_t i = 1; i < mfl_calendar_rows(job); i++)
                if (rows[i].client && !rows[i].lost)
                        oldest = MFL_MIN(oldest, rows[i].base);
        return oldest;
}

/* ---- who is busy ---- */

static int compare_clients(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

/* The first entry that is not below the client. */
static uint32_t find_busy(const struct calendar *c, uint32_t client)
{
        uint32_t low = 0, high = c->n_busy;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                if (c->busy[middle] < client)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static void set_busy(struct calendar *c, uint32_t client)
{
        uint32_t i = find_busy(c, client);
        memmove(c->busy + i + 1, c->busy + i, (c->n_busy++ - i) * sizeof *c->busy);
        c->busy[i] = client;
}

static void set_idle(struct calendar *c, uint32_t client)
{
        uint32_t i = find_busy(c, client);
        mfl_assert(i < c->n_busy && c->busy[i] == client);
        memmove(c->busy + i, c->busy + i + 1, (--c->n_busy - i) * sizeof *c->busy);
}

static void list_busy(struct calendar *c)
{
        for (uint32_t i = 0; i < c->n_places; i++) {
                if (c->place[i].client)
                        c->busy[c->n_busy++] = (uint32_t)(c->place[i].client - 1);
                else
                        c->n_free++;
        }
        qsort(c->busy, c->n_busy, sizeof *c->busy, compare_clients);
}

/* ---- arrivals ---- */

static bool is_before(const union mfl_calendar_row *a, const union mfl_calendar_row *b)
{
        return a->end_us != b->end_us ? a->end_us < b->end_us : a->client < b->client;
}

/* Who is done first; NULL: nobody trains. */
static union mfl_calendar_row *find_first(const struct calendar *c)
{
        union mfl_calendar_row *first = NULL;
        for (uint32_t i = 0; i < c->n_places; i++)
                if (c->place[i].client && (!first || is_before(&c->place[i], first)))
                        first = &c->place[i];
        return first;
}

static void arrive(struct calendar *c, union mfl_calendar_row *row)
{
        uint32_t client = (uint32_t)(row->client - 1);
        if (row->lost || c->newest - row->base > c->ask->job->aggregation.staleness_max) {
                c->dropped++;
                set_idle(c, client);
        } else {
                c->client[c->n] = client;
                c->base[c->n++] = row->base;
        }
        *row = (union mfl_calendar_row){.word = {0}};
        c->n_free++;
        c->n_events++;
}

/* ---- starts ---- */

static bool varies(const struct mfl_job *job)
{
        return job->trace.csv || job->trace.online < 1;
}

static void start(struct calendar *c, union mfl_calendar_row *row, uint32_t client)
{
        const struct mfl_job *job = c->ask->job;
        uint64_t until_us, duration_us = mfl_cohort_duration(c->ask, client);
        uint64_t deadline_us = job->limits.virtual_deadline_ms * 1000;
        mfl_duration_is_on(&job->trace, job->seed, client, c->now_us, &until_us);
        *row = (union mfl_calendar_row){.client = (uint64_t)client + 1,
                .start_us = c->now_us,
                .end_us = c->now_us + duration_us,
                .base = c->newest};
        if (deadline_us && duration_us > deadline_us) {
                row->end_us = c->now_us + deadline_us;
                row->lost = true;
        }
        if (row->end_us > until_us) {
                row->end_us = until_us;
                row->lost = true;
        }
        set_busy(c, client);
        c->n_free--;
        c->n_events++;
}

/* Clients that are idle and on, ascending. */
static int list_idle(struct calendar *c, uint32_t **ret_v, uint32_t *ret_n)
{
        const struct mfl_job *job = c->ask->job;
        uint32_t *v = mfl_malloc(MFL_MAX(c->ask->population, 1u) * sizeof *v);
        uint32_t n = 0, at = 0;
        if (!v)
                return -ENOMEM;
        for (uint32_t k = 0; k < c->ask->population; k++) {
                uint64_t change_us;
                if (at < c->n_busy && c->busy[at] == k) {
                        at++;
                        continue;
                }
                if (mfl_duration_is_on(&job->trace, job->seed, k, c->now_us, &change_us))
                        v[n++] = k;
                else
                        c->next_on_us = MFL_MIN(c->next_on_us, change_us);
        }
        *ret_v = v;
        *ret_n = n;
        return 0;
}

/* n of the idle clients, ascending; idle NULL: all that are not busy. */
static int draw(struct calendar *c, const uint32_t *idle, uint32_t n_idle, uint32_t n, uint32_t *ret_v)
{
        int r = 0;
        if (n < n_idle) {
                struct mfl_rng rng = mfl_rng_new(
                        c->ask->job->seed, MFL_RNG_SELECT, c->ask->round, (uint64_t)c->draws++ << 32);
                r = mfl_draw_uniform(&rng, n_idle, n, ret_v);
        }
        for (uint32_t i = 0, at = 0; !r && i < n; i++) {
                uint32_t k = n < n_idle ? ret_v[i] : i;
                if (idle) {
                        ret_v[i] = idle[k];
                        continue;
                }
                while (at < c->n_busy && c->busy[at] <= k + at)
                        at++;
                ret_v[i] = k + at;
        }
        return r;
}

static int fill_places(struct calendar *c)
{
        uint32_t *idle = NULL, n_idle = c->ask->population - c->n_busy;
        c->next_on_us = MFL_VIRTUAL_NEVER;
        if (!c->n_free)
                return 0;
        int r = varies(c->ask->job) ? list_idle(c, &idle, &n_idle) : 0;
        uint32_t n = MFL_MIN(n_idle, c->n_free), i = 0;
        uint32_t *v = r || !n ? NULL : mfl_malloc(n * sizeof *v);
        if (!r && n)
                r = v ? draw(c, idle, n_idle, n, v) : -ENOMEM;
        for (uint32_t p = 0; !r && i < n; p++)
                if (!c->place[p].client)
                        start(c, &c->place[p], v[i++]);
        free(v);
        free(idle);
        if (!c->n_free)
                c->next_on_us = MFL_VIRTUAL_NEVER;
        return r;
}

/* ---- a version ---- */

static int fail_empty(const struct calendar *c, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "version %u: in virtual time, only %u of the %u updates of its buffer ever arrive, and %u "
                "were "
                "dropped; lower aggregation.buffer, or raise limits.virtual_deadline or the time that "
                "clients "
                "are on",
                c->ask->round, c->n, c->wanted, c->dropped);
}

static int run(struct calendar *c, struct mfl_error *err)
{
        uint64_t events_max = 100 * ((uint64_t)c->n_places + c->wanted) + 1000;
        while (c->n_events < events_max) {
                union mfl_calendar_row *first;
                while ((first = find_first(c)) && first->end_us <= c->now_us) {
                        arrive(c, first);
                        if (c->n == c->wanted)
                                return 0;
                }
                int r = fill_places(c);
                if (r)
                        return r;
                first = find_first(c);
                uint64_t next_us = first ? first->end_us : MFL_VIRTUAL_NEVER;
                next_us = MFL_MIN(next_us, c->next_on_us);
                if (next_us == MFL_VIRTUAL_NEVER)
                        break;
                c->now_us = next_us;
                c->n_events++;
        }
        return fail_empty(c, err);
}

struct arrival {
        uint32_t client, base;
};

static int compare_arrivals(const void *a, const void *b)
{
        const struct arrival *x = a, *y = b;
        return (x->client > y->client) - (x->client < y->client);
}

static int sort(struct calendar *c)
{
        struct arrival *v = mfl_malloc(c->n * sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t i = 0; i < c->n; i++)
                v[i] = (struct arrival){c->client[i], c->base[i]};
        qsort(v, c->n, sizeof *v, compare_arrivals);
        for (uint32_t i = 0; i < c->n; i++) {
                c->client[i] = v[i].client;
                c->base[i] = v[i].base;
        }
        free(v);
        return 0;
}

int mfl_calendar_advance(const struct mfl_cohort_ask *ask, const union mfl_calendar_row *rows,
        union mfl_calendar_row *ret_rows, struct mfl_cohort *ret_cohort, struct mfl_error *err)
{
        uint32_t n_places = mfl_job_concurrency(ask->job), wanted = mfl_job_buffer(ask->job);
        struct calendar c = {.ask = ask,
                .place = ret_rows + 1,
                .n_places = n_places,
                .now_us = rows[0].now_us,
                .newest = ask->round - 1,
                .wanted = wanted,
                .busy = mfl_malloc(((size_t)n_places + wanted) * sizeof *c.busy),
                .client = mfl_malloc(wanted * sizeof *c.client),
                .base = mfl_malloc(wanted * sizeof *c.base)};
        memcpy(ret_rows, rows, ((size_t)n_places + 1) * sizeof *rows);
        int r = c.busy && c.client && c.base ? 0 : -ENOMEM;
        if (!r) {
                list_busy(&c);
                r = run(&c, err);
        }
        if (!r)
                r = sort(&c);
        free(c.busy);
        if (r) {
                free(c.client);
                free(c.base);
                return r == -ENOMEM ? mfl_fail_memory(err, wanted * sizeof *c.client, "a version's clients")
                                    : r;
        }
        ret_rows[0] = (union mfl_calendar_row){.now_us = c.now_us};
        *ret_cohort = (struct mfl_cohort){.client = c.client,
                .base = c.base,
                .n = wanted,
                .wanted = wanted,
                .start_us = rows[0].now_us,
                .end_us = c.now_us,
                .dropped = c.dropped};
        return 0;
}
