/* SPDX-License-Identifier: Apache-2.0 */
/* Secure sums: the masks that are left in the sums are taken off, and the result is checked as a whole. */
#include <math.h>

#include "common/secure/ring.h"
#include "common/secure/shares.h"
#include "server/runtime/runtime_internal.h"

/* More elements than apply takes at once, since a mask's key is set up for each range. */
#define STRETCH ((uint64_t)65536)

static int check_figures(const struct mfl_runtime *rt, const uint64_t *figures, struct mfl_error *err)
{
        uint64_t weight = figures[MFL_FIGURE_WEIGHT];
        bool wrong = !weight || weight > rt->fixed.weight_max;
        for (int i = MFL_FIGURE_SAMPLES; i < MFL_SECURE_FIGURES; i++)
                wrong |= figures[i] > (uint64_t)INT64_MAX;
        return wrong ? mfl_fail(err, MFL_INVALID,
                               "the secure sum is not one of valid updates: its weight is %llu of at most "
                               "%llu, or another "
                               "figure is impossible",
                               (unsigned long long)weight, (unsigned long long)rt->fixed.weight_max)
                     : 0;
}

/* Kind distributed: what members' noise may add to an element, 16 standard deviations at least (common/secure/shares.h), as a weight. */
static uint64_t noise_weight(const struct mfl_runtime *rt)
{
        const struct mfl_privacy_spec *privacy = &rt->spec->privacy;
        if (privacy->kind != MFL_PRIVACY_DISTRIBUTED)
                return 0;
        double sigma = privacy->noise * privacy->clip * sqrt((double)MFL_SECURE_SHARES_MOST);
        return (uint64_t)ceil(16 * sigma / (double)rt->fixed.delta_max);
}

/* No element is larger than one of updates of that weight can be. */
static int check_range(const struct mfl_runtime *rt, const int64_t *sums, uint64_t from, uint64_t n,
        uint64_t weight, int64_t *zeros, struct mfl_error *err)
{
        struct mfl_error why;
        memset(zeros, 0, n * sizeof *zeros);
        int r = mfl_fixed_parts_add_i64(
                &rt->fixed, &rt->graph->statistics, from, weight, sums, (size_t)n, zeros, &why);
        return r > 0 ? mfl_fail(err, MFL_INVALID, "the secure sum is not one of valid updates: %.300s",
                               why.text)
                     : r;
}

static int unfold(struct mfl_runtime *rt, const struct mfl_secure_ring *ring, uint64_t from, uint64_t n,
        uint64_t weight, struct mfl_error *err)
{
        struct mfl_error why;
        int r = mfl_secure_ring_unfold(ring, from, weight, rt->sums + from, n, &why);
        return r > 0 ? mfl_fail(err, MFL_INVALID, "the secure sum is not one of valid updates: %.300s",
                               why.text)
                     : r;
}

int mfl_runtime_unmask(struct mfl_runtime *rt, struct mfl_leader_opening *opening, struct mfl_error *err)
{
        int64_t *zeros = mfl_malloc(STRETCH * sizeof *zeros);
        if (!zeros)
                return mfl_fail_memory(err, STRETCH * sizeof *zeros, "a check");
        struct mfl_secure_ring ring = {0};
        uint64_t *figures = opening->figures;
        mfl_ahead_undo(rt);
        int r = mfl_secure_ring_make(rt->spec->secure.bits, rt->spec->compression.bits, rt->graph, &rt->fixed,
                rt->pool->current->grid, &ring, err);
        if (!r)
                r = mfl_leader_unmask(opening, rt->n, figures, MFL_SECURE_FIGURES, err);
        if (!r)
                r = check_figures(rt, figures, err);
        if (!r)
                r = mfl_job_check_ring(rt->spec, figures[MFL_FIGURE_WEIGHT], err);
        for (uint64_t at = 0; at < rt->n && !r; at += STRETCH) {
                uint64_t n = MFL_MIN(rt->n - at, STRETCH);
                r = mfl_leader_unmask(opening, at, (uint64_t *)rt->sums + at, (size_t)n, err);
                if (!r)
                        r = unfold(rt, &ring, at, n, figures[MFL_FIGURE_WEIGHT], err);
                if (!r)
                        r = check_range(rt, rt->sums + at, at, n,
                                figures[MFL_FIGURE_WEIGHT] + noise_weight(rt), zeros, err);
        }
        free(zeros);
        mfl_secure_ring_deinit(&ring);
        if (!r)
                rt->weight_added = figures[MFL_FIGURE_WEIGHT];
        return r;
}

/* ---- buckets ---- */

/* Secure sums of buckets: robust rules with unit: bucket, whose rows are sums that the server opens (server/round/round_secure.h has who is
 * in which). A row is what runtime_unit.c makes of the same clients' single updates, bit for bit.
 *   - add: a masked update into its bucket's sum, modulo 2^64, in a spill file of its own (8 bytes per parameter and bucket);
 *   - unmask: the masks off, the sum checked, its mean into the round's spill file.
 * Clients count alike, so the weight of a sum is the number of its clients: a bucket of any other has no row. */
struct opened {
        uint32_t at, n; /* its clients; n 0: it has no row */
};

struct mfl_buckets {
        struct mfl_spill *sums; /* a row is rt->n numbers of 64 bits; its item is the bucket */
        uint64_t *clients;      /* [cohort] of the buckets that were opened, one after another */
        struct opened *v;       /* [most] */
        uint32_t most, n_clients, room;
};

uint32_t mfl_buckets_most(const struct mfl_job *spec, uint32_t cohort)
{
        return MFL_MAX(cohort / spec->aggregation.robust.bucket, 1u);
}

int mfl_buckets_open(struct mfl_runtime *rt, const char *dir, uint32_t cohort, struct mfl_error *err)
{
        struct mfl_buckets *buckets = rt->buckets = mfl_calloc(1, sizeof *buckets);
        if (!buckets)
                return mfl_fail_memory(err, sizeof *buckets, "the buckets of a round");
        buckets->most = mfl_buckets_most(rt->spec, cohort);
        buckets->room = cohort;
        buckets->clients = mfl_calloc(cohort, sizeof *buckets->clients);
        buckets->v = mfl_calloc(buckets->most, sizeof *buckets->v);
        if (!buckets->clients || !buckets->v)
                return mfl_fail_memory(err, cohort * sizeof *buckets->clients, "the buckets of a round");
        return mfl_spill_new(dir, rt->job, buckets->most, 2 * rt->n, &buckets->sums, err);
}

void mfl_buckets_close(struct mfl_buckets *buckets)
{
        if (!buckets)
                return;
        mfl_spill_free(buckets->sums);
        free(buckets->clients);
        free(buckets->v);
        free(buckets);
}

void mfl_buckets_clear(struct mfl_buckets *buckets)
{
        mfl_spill_clear(buckets->sums);
        memset(buckets->v, 0, buckets->most * sizeof *buckets->v);
        buckets->n_clients = 0;
}

/* NULL: nothing was added to it. */
static uint64_t *sum_of(const struct mfl_buckets *buckets, uint32_t bucket)
{
        for (uint32_t i = 0; i < mfl_spill_rows(buckets->sums); i++)
                if (mfl_spill_item(buckets->sums, i) == bucket)
                        return (uint64_t *)(void *)mfl_spill_row(buckets->sums, i);
        return NULL;
}

/* The pages of elements [at, at + n) go back. */
static void release(const struct mfl_buckets *buckets, uint64_t at, uint64_t n)
{
        mfl_spill_release(buckets->sums, 2 * at, 2 * n);
}

int mfl_buckets_add(struct mfl_runtime *rt, uint32_t bucket, const uint64_t *masked, struct mfl_error *err)
{
        struct mfl_buckets *buckets = rt->buckets;
        uint64_t *sum = sum_of(buckets, bucket);
        float *zeros = NULL;
        int r = sum ? 0 : mfl_spill_zero(buckets->sums, bucket, &zeros, err);
        if (r)
                return r;
        sum = sum ? sum : (uint64_t *)(void *)zeros;
        for (uint64_t at = 0; at < rt->n; at += RANGE_ELEMENTS) {
                uint64_t n = MFL_MIN(rt->n - at, (uint64_t)RANGE_ELEMENTS);
                for (uint64_t i = at; i < at + n; i++)
                        sum[i] += masked[i];
                release(buckets, at, n);
        }
        return 0;
}

/* Elements [at, part.end) of the mean. */
static void take_mean(
        const struct mfl_fixed_part *part, const int64_t *sum, uint64_t at, uint32_t n, float *to)
{
        double back = ldexp(1, -part->fixed.scale_bits);
        for (uint64_t i = at; i < part->end; i++)
                to[i] = (float)((double)sum[i] / n * back);
}

static int open_range(struct mfl_runtime *rt, const struct mfl_leader_opening *opening, uint64_t *sum,
        uint32_t n_clients, uint64_t at, uint64_t n, float *to, struct mfl_error *err)
{
        int64_t zeros[4096];
        int r = mfl_leader_unmask(opening, at, sum + at, (size_t)n, err);
        const int64_t *plain = (const int64_t *)(const void *)sum;
        for (uint64_t i = 0; i < n && !r; i += MFL_ARRAY_SIZE(zeros)) {
                uint64_t some = MFL_MIN(n - i, (uint64_t)MFL_ARRAY_SIZE(zeros));
                r = check_range(rt, plain + at + i, at + i, some, n_clients, zeros, err);
        }
        for (uint64_t i = at; i < at + n && !r;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, i, at + n);
                take_mean(&part, plain, i, n_clients, to);
                i = part.end;
        }
        return r;
}

static int check_weight(const struct mfl_runtime *rt, const struct mfl_leader_opening *opening, uint32_t n,
        struct mfl_error *err)
{
        int r = check_figures(rt, opening->figures, err);
        if (!r && opening->figures[MFL_FIGURE_WEIGHT] != n)
                r = mfl_fail(err, MFL_INVALID,
                        "the secure sum of %u clients has the weight %llu: one of them counts as another "
                        "number than 1",
                        n, (unsigned long long)opening->figures[MFL_FIGURE_WEIGHT]);
        return r;
}

/* The row of a sum that proves wrong goes. */
static void drop_row(struct mfl_spill *spill, uint64_t item)
{
        for (uint32_t i = 0; i < mfl_spill_rows(spill); i++)
                if (mfl_spill_item(spill, i) == item) {
                        mfl_spill_drop(spill, i);
                        return;
                }
}

int mfl_runtime_unmask_bucket(struct mfl_runtime *rt, struct mfl_leader_opening *opening, uint32_t bucket,
        const uint64_t *clients, uint32_t n, struct mfl_error *err)
{
        struct mfl_buckets *buckets = rt->buckets;
        uint64_t *sum = sum_of(buckets, bucket);
        float *row = NULL;
        mfl_assert(sum && n && bucket < buckets->most && n <= buckets->room - buckets->n_clients);
        int r = mfl_leader_unmask(opening, rt->n, opening->figures, MFL_SECURE_FIGURES, err);
        if (!r)
                r = check_weight(rt, opening, n, err);
        if (!r)
                r = mfl_spill_zero(rt->spill, clients[0], &row, err);
        if (r)
                return r;
        for (uint64_t at = 0; at < rt->n && !r; at += 4 * RANGE_ELEMENTS) {
                uint64_t some = MFL_MIN(rt->n - at, (uint64_t)4 * RANGE_ELEMENTS);
                r = open_range(rt, opening, sum, n, at, some, row, err);
                release(buckets, at, some);
                mfl_spill_release(rt->spill, at, some);
        }
        if (r) {
                drop_row(rt->spill, clients[0]);
                return r;
        }
        buckets->v[bucket].at = buckets->n_clients;
        buckets->v[bucket].n = n;
        memcpy(buckets->clients + buckets->n_clients, clients, n * sizeof *clients);
        buckets->n_clients += n;
        rt->weight_added += n;
        return 0;
}

void mfl_buckets_tell(const struct mfl_runtime *rt, uint32_t row, struct mfl_rows_members *ret_members)
{
        const struct mfl_buckets *buckets = rt->buckets;
        uint64_t item = mfl_spill_item(rt->spill, row);
        for (uint32_t b = 0; b < buckets->most; b++) {
                const uint64_t *clients = buckets->clients + buckets->v[b].at;
                if (!buckets->v[b].n || clients[0] != item)
                        continue;
                ret_members->n = buckets->v[b].n;
                for (uint32_t i = 0; i < MFL_MIN(ret_members->n, (uint32_t)MFL_MEMBERS_TOLD); i++)
                        ret_members->v[i] = clients[i];
        }
}
