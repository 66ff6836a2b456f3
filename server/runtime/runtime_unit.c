/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of several clients (unit: bucket): the clients of a round whose updates are there, in the order of their numbers, are
 * shuffled by (seed, round), and each `bucket` of them in turn is a row, their exact mean:
 *
 *      sum over the bucket of round(delta_k 2^s)  /  (clients 2^s)
 *
 * an integer sum as that of every other aggregation (common/base/fixed.h), so it has no order, and whoever adds gives the same
 * row. The last bucket may have fewer clients, and counts as much. A row takes the place of the lowest of its clients. */
#include <math.h>
#include <stdlib.h>

#include "server/runtime/runtime_internal.h"

struct mfl_rows_buckets {
        uint32_t *order;  /* [cohort] rows of the spill, bucket by bucket */
        uint32_t *bucket; /* [cohort] of a row of the spill that is picked */
        uint32_t n;
};

int mfl_unit_new(uint32_t cohort, struct mfl_rows_buckets **ret_unit)
{
        struct mfl_rows_buckets *unit = mfl_calloc(1, sizeof *unit);
        if (!unit)
                return -ENOMEM;
        unit->order = mfl_calloc(cohort, sizeof *unit->order);
        unit->bucket = mfl_calloc(cohort, sizeof *unit->bucket);
        if (!unit->order || !unit->bucket) {
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
        free(unit);
}

static void add_part(const struct mfl_fixed_part *part, const uint32_t *members, uint32_t n,
        const float **rows, size_t count, float *to)
{
        double scale = ldexp(1, part->fixed.scale_bits), back = ldexp(1, -part->fixed.scale_bits);
        for (size_t e = 0; e < count; e++) {
                int64_t sum = 0;
                for (uint32_t k = 0; k < n; k++)
                        sum += (int64_t)mfl_fixed_round((double)rows[members[k]][e] * scale);
                to[e] = (float)((double)sum / n * back);
        }
}

/* Bucket b becomes the mean of its clients, in the row of the first. */
static void fill_bucket(struct mfl_runtime *rt, const uint32_t *members, uint32_t n)
{
        float *to = mfl_spill_row(rt->spill, members[0]);
        for (uint64_t at = 0; at < rt->n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(
                        &rt->fixed, &rt->graph->statistics, at, MFL_MIN(rt->n, at + RANGE_ELEMENTS));
                mfl_spill_range(rt->spill, at, rt->rows);
                add_part(&part, members, n, rt->rows, part.end - at, to + at);
                at = part.end;
        }
}

static int by_row(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

void mfl_unit_merge(struct mfl_runtime *rt)
{
        struct mfl_rows_buckets *unit = rt->unit;
        uint32_t size = rt->spec->aggregation.robust.bucket;
        if (!unit)
                return;
        struct mfl_rng rng = mfl_rng_new(rt->spec->seed, MFL_RNG_UNIT, rt->round, 0);
        unit->n = rt->n_pick;
        memcpy(unit->order, rt->pick, unit->n * sizeof *unit->order);
        mfl_rng_shuffle(&rng, unit->order, unit->n);
        rt->n_pick = 0;
        for (uint32_t at = 0; at < unit->n; at += size) {
                uint32_t n = MFL_MIN(size, unit->n - at), *members = unit->order + at;
                qsort(members, n, sizeof *members, by_row);
                fill_bucket(rt, members, n);
                unit->bucket[members[0]] = at;
                rt->pick[rt->n_pick++] = members[0];
        }
        qsort(rt->pick, rt->n_pick, sizeof *rt->pick, by_row);
        for (uint64_t at = 0; at < rt->n; at += RANGE_ELEMENTS)
                mfl_spill_release(rt->spill, at, MFL_MIN(rt->n - at, (uint64_t)RANGE_ELEMENTS));
}

void mfl_unit_tell(const struct mfl_runtime *rt, uint32_t row, struct mfl_rows_members *ret_members)
{
        const struct mfl_rows_buckets *unit = rt->unit;
        *ret_members = (struct mfl_rows_members){0};
        if (!unit)
                return;
        uint32_t at = unit->bucket[row];
        ret_members->n = MFL_MIN(rt->spec->aggregation.robust.bucket, unit->n - at);
        for (uint32_t i = 0; i < MFL_MIN(ret_members->n, (uint32_t)MFL_MEMBERS_TOLD); i++)
                ret_members->v[i] = mfl_spill_item(rt->spill, unit->order[at + i]);
}
