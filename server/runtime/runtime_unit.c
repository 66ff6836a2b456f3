/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of several clients. unit: bucket: the clients of a round whose updates are there, in the order of their numbers, are
 * shuffled by (seed, round), and each `bucket` of them in turn is a row, their exact mean:
 *
 *      sum over the bucket of round(delta_k 2^s)  /  (clients 2^s)
 *
 * an integer sum as that of every other aggregation (common/base/fixed.h), so it has no order, and whoever adds gives the same
 * row. The last bucket may have fewer clients, and counts as much. unit: server: the clients of each region are a row, that mean or
 * what edges.within makes of them per element. A row takes the place of the lowest of its clients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/robust/rule.h"
#include "server/runtime/runtime_internal.h"

struct mfl_rows_buckets {
        uint32_t *order;         /* [cohort] rows of the spill, bucket by bucket */
        uint32_t *bucket, *size; /* [cohort] of a row of the spill that is picked: where it is in order */
        const float **from;      /* [cohort] rows of a bucket, of a range */
        uint32_t n;
};

int mfl_unit_new(uint32_t cohort, struct mfl_rows_buckets **ret_unit)
{
        struct mfl_rows_buckets *unit = mfl_calloc(1, sizeof *unit);
        if (!unit)
                return -ENOMEM;
        unit->order = mfl_calloc(cohort, sizeof *unit->order);
        unit->bucket = mfl_calloc(cohort, sizeof *unit->bucket);
        unit->size = mfl_calloc(cohort, sizeof *unit->size);
        unit->from = mfl_calloc(cohort, sizeof *unit->from);
        if (!unit->order || !unit->bucket || !unit->size || !unit->from) {
                mfl_unit_free(unit);
                return -ENOMEM;
        }
        *ret_unit = unit;
        return 0;
}

void mfl_unit_free(struct mfl_rows_buckets *unit)
{
        if (!unit)
                return;
        free(unit->order);
        free(unit->bucket);
        free(unit->size);
        free(unit->from);
        free(unit);
}

static void add_part(
        const struct mfl_fixed_part *part, const float *const *rows, uint32_t n, size_t count, float *to)
{
        double scale = ldexp(1, part->fixed.scale_bits), back = ldexp(1, -part->fixed.scale_bits);
        for (size_t e = 0; e < count; e++) {
                int64_t sum = 0;
                for (uint32_t k = 0; k < n; k++)
                        sum += (int64_t)mfl_fixed_round((double)rows[k][e] * scale);
                to[e] = (float)((double)sum / n * back);
        }
}

/* What a region makes of n clients. */
static struct mfl_choice within(const struct mfl_job *spec, uint32_t n)
{
        bool median = spec->edges.within == MFL_REGION_MEDIAN;
        return (struct mfl_choice){.n_rows = n,
                .n_in = n,
                .n_out = n,
                .n_used = n,
                .column = median ? MFL_COLUMN_MEDIAN : MFL_COLUMN_TRIM,
                .cut = n / 5};
}

/* A bucket becomes its row, in the place of the first of its clients. scratch: of the choice, and of a range's result. */
static void fill_bucket(struct mfl_runtime *rt, const uint32_t *members, uint32_t n,
        const struct mfl_choice *choice, double *scratch)
{
        float *to = mfl_spill_row(rt->spill, members[0]);
        const float **from = rt->unit->from;
        for (uint64_t at = 0; at < rt->n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(
                        &rt->fixed, &rt->graph->statistics, at, MFL_MIN(rt->n, at + RANGE_ELEMENTS));
                size_t count = part.end - at;
                mfl_spill_range(rt->spill, at, rt->rows);
                for (uint32_t k = 0; k < n; k++)
                        from[k] = rt->rows[members[k]];
                if (choice) {
                        mfl_robust_reduce(choice, part.statistics, from, at, count, scratch, rt->d);
                        for (size_t e = 0; e < count; e++)
                                to[at + e] = (float)rt->d[e];
                } else
                        add_part(&part, from, n, count, to + at);
                mfl_spill_release_rows(rt->spill, members, n, at, count);
                at = part.end;
        }
}

static int by_row(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

static int merge_bucket(struct mfl_runtime *rt, uint32_t at, uint32_t n, bool ruled, struct mfl_error *err)
{
        struct mfl_rows_buckets *unit = rt->unit;
        uint32_t *members = unit->order + at;
        qsort(members, n, sizeof *members, by_row);
        if (ruled) {
                struct mfl_choice choice = within(rt->spec, n);
                MFL_CLEANUP_FREE double *scratch =
                        mfl_calloc(mfl_robust_scratch(&choice) + 1, sizeof *scratch);
                if (!scratch)
                        return mfl_fail_memory(err, n * sizeof *scratch, "a region");
                fill_bucket(rt, members, n, &choice, scratch);
        } else
                fill_bucket(rt, members, n, NULL, NULL);
        unit->bucket[members[0]] = at;
        unit->size[members[0]] = n;
        rt->pick[rt->n_pick++] = members[0];
        return 0;
}

static uint32_t region_of(const struct mfl_runtime *rt, uint32_t row)
{
        return mfl_job_region(rt->spec, mfl_spill_item(rt->spill, row));
}

/* Region by region. */
static int merge_servers(struct mfl_runtime *rt, struct mfl_error *err)
{
        struct mfl_rows_buckets *unit = rt->unit;
        bool ruled = rt->spec->edges.within != MFL_REGION_MEAN;
        uint32_t n_rows = rt->n_pick, at = 0;
        int r = 0;
        memcpy(unit->bucket, rt->pick, n_rows * sizeof *unit->bucket); /* for as long as there are none */
        for (uint32_t e = 0; e < rt->spec->edges.count; e++)
                for (uint32_t i = 0; i < n_rows; i++)
                        if (region_of(rt, unit->bucket[i]) == e)
                                unit->order[at++] = unit->bucket[i];
        rt->n_pick = 0;
        for (uint32_t from = 0, n; from < n_rows && !r; from += n) {
                uint32_t e = region_of(rt, unit->order[from]);
                for (n = 1; from + n < n_rows && region_of(rt, unit->order[from + n]) == e;)
                        n++;
                r = merge_bucket(rt, from, n, ruled, err);
        }
        return r;
}

static int merge_buckets(struct mfl_runtime *rt, struct mfl_error *err)
{
        struct mfl_rows_buckets *unit = rt->unit;
        int r = 0;
        memcpy(unit->order, rt->pick, unit->n * sizeof *unit->order);
        mfl_robust_draw(rt->spec, rt->round, unit->order, unit->n);
        rt->n_pick = 0;
        for (uint32_t at = 0, n; at < unit->n && !r; at += n) {
                n = mfl_robust_bucket_of(rt->spec, at, unit->n);
                r = merge_bucket(rt, at, n, false, err);
        }
        return r;
}

int mfl_unit_merge(struct mfl_runtime *rt, struct mfl_error *err)
{
        if (!rt->unit)
                return 0;
        rt->unit->n = rt->n_pick;
        bool servers = rt->spec->aggregation.robust.unit == MFL_ROWS_SERVER;
        int r = servers ? merge_servers(rt, err) : merge_buckets(rt, err);
        qsort(rt->pick, rt->n_pick, sizeof *rt->pick, by_row);
        return r;
}

void mfl_unit_tell(const struct mfl_runtime *rt, uint32_t row, struct mfl_rows_members *ret_members)
{
        const struct mfl_rows_buckets *unit = rt->unit;
        *ret_members = (struct mfl_rows_members){0};
        if (rt->buckets)
                mfl_buckets_tell(rt, row, ret_members);
        if (!unit)
                return;
        ret_members->n = unit->size[row];
        ret_members->is_server = rt->spec->aggregation.robust.unit == MFL_ROWS_SERVER;
        if (ret_members->is_server)
                ret_members->server = region_of(rt, row);
        for (uint32_t i = 0; i < MFL_MIN(ret_members->n, (uint32_t)MFL_MEMBERS_TOLD); i++)
                ret_members->v[i] = mfl_spill_item(rt->spill, unit->order[unit->bucket[row] + i]);
}

/* ---- servers that lie ---- */

/* Servers that lie, for tests of rules that compare servers (common/job/robust.h, enum mfl_server_attack): what a bad server sends
 * takes the place of what it has made of its clients' updates, after any attack of clients. Nothing that it sends is larger than
 * delta_max. Running statistics stay as they are. A delayed server sends what it had found the last time, which is stored with
 * the round. */
struct mfl_bad_servers {
        bool bad[MFL_REGIONS_MAX];
        float *found[MFL_REGIONS_MAX]; /* of delayed ones */
        char vector[MFL_REGIONS_MAX][32];
};

static bool is_delayed(const struct mfl_job *spec)
{
        return spec->simulation.servers.attack == MFL_SERVER_DELAYED;
}

uint64_t mfl_servers_bytes(const struct mfl_job *spec, uint64_t n)
{
        bool bad[MFL_REGIONS_MAX];
        return is_delayed(spec) ? mfl_simulation_servers(spec, bad) * n * sizeof(float) : 0;
}

int mfl_servers_open(struct mfl_runtime *rt, struct mfl_error *err)
{
        if (!rt->spec->simulation.servers.attack)
                return 0;
        struct mfl_bad_servers *servers = rt->servers = mfl_calloc(1, sizeof *servers);
        if (!servers)
                return mfl_fail_memory(err, sizeof *servers, "a simulated attack");
        mfl_simulation_servers(rt->spec, servers->bad);
        for (uint32_t e = 0; is_delayed(rt->spec) && e < rt->spec->edges.count; e++) {
                snprintf(servers->vector[e], sizeof servers->vector[e], "server_%u", e);
                servers->found[e] = servers->bad[e] ? mfl_calloc(rt->n, sizeof(float)) : NULL;
                if (servers->bad[e] && !servers->found[e])
                        return mfl_fail_memory(err, rt->n * sizeof(float), "a simulated attack");
        }
        return 0;
}

void mfl_servers_close(struct mfl_bad_servers *servers)
{
        for (uint32_t e = 0; servers && e < MFL_REGIONS_MAX; e++)
                free(servers->found[e]);
        free(servers);
}

int mfl_servers_load(struct mfl_runtime *rt, const char *path, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL;
        if (!rt->servers || !is_delayed(rt->spec))
                return 0;
        int r = mfl_st_open(path, &file, err);
        for (uint32_t e = 0; rt->servers && e < MFL_REGIONS_MAX && !r; e++)
                if (rt->servers->found[e])
                        r = mfl_runtime_load_state(
                                rt, file, rt->servers->vector[e], rt->servers->found[e], path, err);
        mfl_st_close(file);
        return r == MFL_NOT_FOUND ? MFL_INVALID : r;
}

void mfl_servers_store(const struct mfl_runtime *rt, struct mfl_checkpoint *checkpoint)
{
        for (uint32_t e = 0; rt->servers && e < MFL_REGIONS_MAX; e++)
                if (rt->servers->found[e]) {
                        checkpoint->state_name[checkpoint->n_state] = rt->servers->vector[e];
                        checkpoint->state[checkpoint->n_state++] = rt->servers->found[e];
                }
}

/* Elements [at, at + count) of what server e sends. */
static void lie_part(struct mfl_runtime *rt, uint32_t e, struct mfl_rng_key key, uint64_t at, size_t count,
        float limit, float *v)
{
        double scale = rt->spec->simulation.servers.scale;
        float *found = rt->servers->found[e];
        for (size_t i = 0; i < count; i++) {
                double own = (double)v[i], sent = own;
                switch (rt->spec->simulation.servers.attack) {
                case MFL_SERVER_HONEST:
                        break;
                case MFL_SERVER_SIGN_FLIP:
                        sent = -scale * own;
                        break;
                case MFL_SERVER_NOISE:
                        sent = own + scale * mfl_robust_normal(key, at + i);
                        break;
                case MFL_SERVER_RANDOM:
                        sent = scale * mfl_robust_normal(key, at + i);
                        break;
                case MFL_SERVER_DELAYED:
                        sent = (double)found[at + i];
                        found[at + i] = v[i];
                        break;
                }
                v[i] = (float)MFL_MIN(MFL_MAX(sent, -(double)limit), (double)limit);
        }
}

static void lie(struct mfl_runtime *rt, uint32_t e, uint32_t row)
{
        float *v = mfl_spill_row(rt->spill, row);
        struct mfl_rng_key key = mfl_rng_derive(rt->spec->seed, MFL_RNG_SERVER, (uint64_t)e + 1, rt->round);
        for (uint64_t at = 0; at < rt->n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(
                        &rt->fixed, &rt->graph->statistics, at, MFL_MIN(rt->n, at + RANGE_ELEMENTS));
                if (!part.statistics)
                        lie_part(rt, e, key, at, part.end - at, part.fixed.delta_max, v + at);
                mfl_spill_release_rows(rt->spill, &row, 1, at, part.end - at);
                at = part.end;
        }
        rt->report.n_bad_servers++;
}

void mfl_servers_lie(struct mfl_runtime *rt)
{
        if (!rt->servers || rt->round < rt->spec->simulation.servers.from)
                return;
        for (uint32_t i = 0; i < rt->n_pick; i++) {
                uint32_t e = mfl_job_region(rt->spec, mfl_spill_item(rt->spill, rt->pick[i]));
                if (rt->servers->bad[e])
                        lie(rt, e, rt->pick[i]);
        }
}
