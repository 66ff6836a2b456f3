/* SPDX-License-Identifier: Apache-2.0 */
/* Filling daemons up to an equal time. */
#include "server/round/round_share.h"

/* An item takes UNIT on the fastest daemon, and at most COST_MAX on any. Times of 2^25 items stay within
 * 64 bits. */
#define UNIT 1024
#define COST_MAX ((uint64_t)1 << 36)

static uint64_t ticks(double cost, double least)
{
        double t = cost / least * UNIT;
        return t < (double)COST_MAX ? MFL_MAX((uint64_t)t, (uint64_t)UNIT) : COST_MAX;
}

struct fill {
        const struct mfl_share *v;
        uint32_t n_shares, n_items;
        bool probe, fixed; /* whether these are respected */
};

/* The number of items that daemon i can do by time t. */
static uint32_t capacity(const struct fill *fill, uint32_t i, uint64_t t)
{
        const struct mfl_share *share = &fill->v[i];
        if (fill->fixed && share->fixed)
                return share->n;
        uint64_t n = t / share->ticks;
        n = n > share->load ? MFL_MIN(n - share->load, (uint64_t)fill->n_items) : 0;
        return fill->probe && share->probe ? MFL_MAX((uint32_t)n, 1u) : (uint32_t)n;
}

static uint64_t capacity_of_all(const struct fill *fill, uint64_t t)
{
        uint64_t sum = 0;
        for (uint32_t i = 0; i < fill->n_shares; i++)
                sum += capacity(fill, i, t);
        return sum;
}

/* A time in which some daemon alone could do all items. */
static uint64_t limit(const struct fill *fill)
{
        uint64_t least = 0;
        for (uint32_t i = 0; i < fill->n_shares; i++) {
                const struct mfl_share *share = &fill->v[i];
                uint64_t t = ((uint64_t)share->load + fill->n_items) * share->ticks;
                if (!(fill->fixed && share->fixed) && (!least || t < least))
                        least = t;
        }
        return least;
}

static void init_fill(struct fill *fill, struct mfl_share *v, uint32_t n_shares, uint32_t n_items)
{
        uint64_t sum = 0;
        uint32_t n = 0;
        double least = v[0].cost;
        for (uint32_t i = 0; i < n_shares; i++) {
                least = v[i].cost < least ? v[i].cost : least;
                sum += v[i].fixed ? v[i].n : 0;
                n += v[i].fixed;
        }
        for (uint32_t i = 0; i < n_shares; i++)
                v[i].ticks = ticks(v[i].cost, least);
        bool fixed = n && (n < n_shares ? sum <= n_items : sum == n_items);
        *fill = (struct fill){.v = v,
                .n_shares = n_shares,
                .n_items = n_items,
                .fixed = fixed,
                .probe = fixed ? n_items - sum >= n_shares - n : n_items >= n_shares};
}

void mfl_round_share(struct mfl_share *v, uint32_t n_shares, uint32_t n_items)
{
        struct fill fill;
        init_fill(&fill, v, n_shares, n_items);
        uint64_t low = 0, high = limit(&fill);
        while (low < high) {
                uint64_t middle = low + (high - low) / 2;
                if (capacity_of_all(&fill, middle) >= n_items)
                        high = middle;
                else
                        low = middle + 1;
        }
        uint64_t excess = capacity_of_all(&fill, low) - n_items;
        for (uint32_t i = 0; i < n_shares; i++) {
                uint32_t n = capacity(&fill, i, low);
                /* Several daemons may end exactly at `low`; then some of them get one item less. */
                if (excess && low && capacity(&fill, i, low - 1) < n) {
                        n--;
                        excess--;
                }
                v[i].n = n;
        }
}
