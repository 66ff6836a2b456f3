/* SPDX-License-Identifier: Apache-2.0 */
/* Token buckets by address. The hash of an address selects one group of the table. */
#include "server/session/rate.h"

#define GROUP 8
#define GROUPS (MFL_RATE_ADDRESSES_MAX / GROUP)

struct bucket {
        struct in6_addr address;
        uint64_t full_ns; /* when it will be full; in the past: the bucket is full and the entry free */
};

struct mfl_rate {
        uint64_t token_ns; /* time per token */
        uint32_t burst;
        struct bucket buckets[GROUPS][GROUP];
};

int mfl_rate_new(uint32_t per_second, uint32_t burst, struct mfl_rate **ret_rate, struct mfl_error *err)
{
        mfl_assert(per_second > 0 && burst > 0);
        struct mfl_rate *rate = mfl_calloc(1, sizeof *rate);
        if (!rate)
                return mfl_fail_memory(err, sizeof *rate, "the rates of addresses");
        rate->token_ns = 1000000000u / per_second;
        rate->burst = burst;
        *ret_rate = rate;
        return 0;
}

void mfl_rate_free(struct mfl_rate *rate)
{
        free(rate);
}

/* FNV-1a. Colliding addresses give an attacker nothing: each has its own tokens anyway. */
static uint32_t hash(const struct in6_addr *address)
{
        uint32_t h = 0x811c9dc5u;
        for (size_t i = 0; i < sizeof address->s6_addr; i++)
                h = (h ^ address->s6_addr[i]) * 0x01000193u;
        return h ^ h >> 16;
}

static struct bucket *find(struct mfl_rate *rate, const struct in6_addr *address)
{
        struct bucket *group = rate->buckets[hash(address) % GROUPS], *fullest = group;
        for (int i = 0; i < GROUP; i++) {
                if (!memcmp(&group[i].address, address, sizeof *address))
                        return &group[i];
                if (group[i].full_ns < fullest->full_ns)
                        fullest = &group[i];
        }
        fullest->address = *address;
        fullest->full_ns = 0;
        return fullest;
}

bool mfl_rate_take(struct mfl_rate *rate, const struct in6_addr *address, uint64_t now_ns)
{
        struct bucket *b = find(rate, address);
        mfl_assert(!memcmp(&b->address, address, sizeof *address));
        uint64_t full_ns = MFL_MAX(b->full_ns, now_ns);
        if (full_ns - now_ns > rate->token_ns * (rate->burst - 1))
                return false;
        b->full_ns = full_ns + rate->token_ns;
        return true;
}
