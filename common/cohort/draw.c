/* SPDX-License-Identifier: Apache-2.0 */
/* Uniform and weighted draws without replacement. */
#include "common/cohort/draw.h"

/* ---- uniform: without an array of the population ---- */

/* The values that swaps have put into places of the array 0, 1, 2, ...: open addressing, at most half
 * full. */
struct swaps {
        uint32_t *place, *value; /* place + 1; 0: free */
        uint32_t mask;
};

static uint32_t find_place(const struct swaps *swaps, uint32_t place)
{
        uint32_t at = place * 0x9E3779B1u >> 7 & swaps->mask;
        while (swaps->place[at] && swaps->place[at] != place + 1)
                at = (at + 1) & swaps->mask;
        return at;
}

static uint32_t value_at(const struct swaps *swaps, uint32_t place)
{
        uint32_t at = find_place(swaps, place);
        return swaps->place[at] ? swaps->value[at] : place;
}

/* Radix sort, eleven bits at a time from the lowest. */
static void sort_numbers(uint32_t *v, uint32_t *scratch, uint32_t n)
{
        for (uint32_t shift = 0; shift < 33; shift += 11) {
                uint32_t start[2048 + 1] = {0};
                for (uint32_t i = 0; i < n; i++)
                        start[(v[i] >> shift & 2047) + 1]++;
                for (uint32_t k = 0; k < 2048; k++)
                        start[k + 1] += start[k];
                for (uint32_t i = 0; i < n; i++)
                        scratch[start[v[i] >> shift & 2047]++] = v[i];
                uint32_t *t = v;
                v = scratch;
                scratch = t;
        }
        memcpy(scratch, v, n * sizeof *v); /* after three passes the result is in the former scratch */
}

int mfl_draw_uniform(struct mfl_rng *rng, uint32_t population, uint32_t n, uint32_t *ret_v)
{
        uint32_t capacity = 16;
        while (capacity < 2 * (uint64_t)n)
                capacity *= 2;
        struct swaps swaps = {mfl_calloc(capacity, sizeof *swaps.place),
                mfl_malloc(capacity * sizeof *swaps.value), capacity - 1};
        uint32_t *scratch = mfl_malloc(n * sizeof *scratch);
        bool ok = swaps.place && swaps.value && scratch;
        for (uint32_t i = 0; ok && i < n; i++) {
                uint32_t j = i + mfl_rng_below(rng, population - i);
                uint32_t first = value_at(&swaps, i), at = find_place(&swaps, j);
                ret_v[i] = swaps.place[at] ? swaps.value[at] : j;
                swaps.place[at] = j + 1; /* place i is not needed again */
                swaps.value[at] = first;
        }
        if (ok)
                sort_numbers(ret_v, scratch, n);
        free(swaps.place);
        free(swaps.value);
        free(scratch);
        return ok ? 0 : -ENOMEM;
}

/* ---- weighted ---- */

/* Uniform in [0, n), without bias. */
static uint64_t draw_below(struct mfl_rng *rng, uint64_t n)
{
        __extension__ typedef unsigned __int128 wide;
        wide m = (wide)mfl_rng_u64(rng) * n;
        if ((uint64_t)m < n) {
                uint64_t floor = -n % n;
                while ((uint64_t)m < floor)
                        m = (wide)mfl_rng_u64(rng) * n;
        }
        return (uint64_t)(m >> 64);
}

/* sum[i], i from 1: the weights of the i & -i items up to item i - 1. */
static uint64_t make_sums(uint64_t *sum, const uint64_t *weight, uint32_t n)
{
        uint64_t total = 0;
        for (uint32_t i = 1; i <= n; i++) {
                mfl_assert(weight[i - 1] < (uint64_t)1 << 63 && total + weight[i - 1] < (uint64_t)1 << 63);
                total += weight[i - 1];
                sum[i] += weight[i - 1];
                uint64_t up = (uint64_t)i + (i & -i);
                if (up <= n)
                        sum[up] += sum[i];
        }
        return total;
}

/* The item in whose range of the cumulative weights `at` lies. */
static uint32_t find_item(const uint64_t *sum, uint32_t n, uint64_t at)
{
        uint32_t i = 0;
        for (uint32_t step = 1u << (31 - __builtin_clz(n)); step; step >>= 1)
                if ((uint64_t)i + step <= n && sum[i + step] <= at) {
                        i += step;
                        at -= sum[i];
                }
        return i;
}

int mfl_draw_weighted(struct mfl_rng *rng, const uint64_t *weight, uint32_t population, uint32_t n,
        uint32_t *ret_v, uint32_t *ret_n)
{
        MFL_CLEANUP_FREE uint64_t *sum = mfl_calloc((size_t)population + 1, sizeof *sum);
        if (!sum)
                return -ENOMEM;
        uint64_t total = make_sums(sum, weight, population);
        uint32_t drawn = 0;
        while (drawn < n && total) {
                uint32_t item = find_item(sum, population, draw_below(rng, total));
                ret_v[drawn++] = item;
                total -= weight[item];
                for (uint64_t i = (uint64_t)item + 1; i <= population; i += i & -i)
                        sum[i] -= weight[item];
        }
        *ret_n = drawn;
        return 0;
}
