/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC'11). A number depends only on its stream and its index, so it is the same on every machine, in
 * every order, on the CPU and on a GPU. All functions are inline and pure; no thread, no errors.
 *
 * A stream is named by (seed, domain, a, b): the job's seed, what the numbers are for, and two coordinates
 * such as client and round. Distinct names give independent streams.
 */
#ifndef MFL_COMMON_BASE_RNG_H
#define MFL_COMMON_BASE_RNG_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MFL_HD __host__ __device__
#else
#define MFL_HD
#endif

/* What a stream is for. The values are part of reproducibility: append, never renumber. */
enum mfl_rng_domain {
        MFL_RNG_INIT = 1,      /* a: parameter tensor index */
        MFL_RNG_PARTITION = 2, /* a: partition step */
        MFL_RNG_SELECT = 3,    /* a: round, b: attempt; 0, 0: the clients that evaluate */
        MFL_RNG_SHUFFLE = 4,   /* a: client, b: round * 65536 + epoch */
        MFL_RNG_DROPOUT =
                5,       /* a: client, b: round; then one stream per step and layer, mfl_rng_dropout_key */
        MFL_RNG_SIM = 6, /* the simulator's own */
        MFL_RNG_TEST = 7,
        MFL_RNG_JITTER = 8,   /* back-off in agents; never touches a model */
        MFL_RNG_DATA = 9,     /* synthetic data sets: a: what, b: class, split, sample */
        MFL_RNG_AUGMENT = 10, /* a: client, b: round; then one stream per step: mfl_rng_augment_key */
        MFL_RNG_GRID = 11,    /* rounding of updates: a: client, b: round; number e is element e's */
        MFL_RNG_TRACE = 12,   /* virtual time: a: client, b: 0 its speed, 1 when it is on */
        MFL_RNG_ATTACK =
                17, /* a, b: 0: which clients are bad; a: client + 1, b: round: what a bad client sends */
        MFL_RNG_BUCKET = 18,  /* a: round, b: step of `before` */
        MFL_RNG_COLUMNS = 40, /* a: round, b: sample; block k: which element of part k a rule looks at */
        MFL_RNG_FLAME = 41,   /* a: round; number e is element e's noise */
        MFL_RNG_UNIT = 55,    /* a: round: rows of unit bucket */
        MFL_RNG_POISON = 56,  /* a: client: which of its samples get a backdoor's patch */
        MFL_RNG_HALF = 64,    /* rounding of updates to bfloat16: as MFL_RNG_GRID */
        MFL_RNG_REGION = 150, /* a: a site's key: its region */
        MFL_RNG_SERVER =
                151, /* a, b: 0: which servers are bad; a: server + 1, b: round: what a bad server sends */
};

struct mfl_philox {
        uint32_t v[4];
};

static inline MFL_HD struct mfl_philox mfl_philox4x32(struct mfl_philox ctr, uint32_t k0, uint32_t k1)
{
        for (int i = 0; i < 10; i++) {
                uint64_t p0 = (uint64_t)0xD2511F53u * ctr.v[0];
                uint64_t p1 = (uint64_t)0xCD9E8D57u * ctr.v[2];
                struct mfl_philox next = {{(uint32_t)(p1 >> 32) ^ ctr.v[1] ^ k0, (uint32_t)p1,
                        (uint32_t)(p0 >> 32) ^ ctr.v[3] ^ k1, (uint32_t)p0}};
                ctr = next;
                k0 += 0x9E3779B9u;
                k1 += 0xBB67AE85u;
        }
        return ctr;
}

/* A stream: 64-bit key and the upper 64 bits of the counter; the lower 64 bits are the block index. */
struct mfl_rng_key {
        uint32_t k[2], hi[2];
};

struct mfl_rng {
        struct mfl_rng_key key;
        uint64_t next; /* index of the next 32-bit number */
        struct mfl_philox block;
};

static inline MFL_HD struct mfl_rng_key mfl_rng_derive(uint64_t seed, uint32_t domain, uint64_t a, uint64_t b)
{
        struct mfl_philox c = {{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
        c = mfl_philox4x32(c, (uint32_t)seed, (uint32_t)(seed >> 32) ^ (domain * 0x9E3779B1u));
        struct mfl_rng_key key = {{c.v[0], c.v[1]}, {c.v[2], c.v[3] ^ domain}};
        return key;
}

/* The i-th block of four 32-bit numbers of a stream. */
static inline MFL_HD struct mfl_philox mfl_rng_block(struct mfl_rng_key key, uint64_t i)
{
        struct mfl_philox c = {{(uint32_t)i, (uint32_t)(i >> 32), key.hi[0], key.hi[1]}};
        return mfl_philox4x32(c, key.k[0], key.k[1]);
}

/* The stream of one training step and one dropout layer of one client and round: element e of group-local
 * mask uses number e of it. The key argument is mfl_rng_derive(seed, MFL_RNG_DROPOUT, client, round). */
static inline MFL_HD struct mfl_rng_key mfl_rng_dropout_key(
        struct mfl_rng_key key, uint32_t step, uint32_t layer)
{
        return mfl_rng_derive((uint64_t)key.k[0] | (uint64_t)key.k[1] << 32, MFL_RNG_DROPOUT,
                (uint64_t)key.hi[0] | (uint64_t)key.hi[1] << 32, (uint64_t)step << 32 | layer);
}

/* The stream of one training step's augmentation: block r of it belongs to row r of the batch. The key
 * argument is mfl_rng_derive(seed, MFL_RNG_AUGMENT, client, round). */
static inline MFL_HD struct mfl_rng_key mfl_rng_augment_key(struct mfl_rng_key key, uint32_t step)
{
        return mfl_rng_derive((uint64_t)key.k[0] | (uint64_t)key.k[1] << 32, MFL_RNG_AUGMENT,
                (uint64_t)key.hi[0] | (uint64_t)key.hi[1] << 32, (uint64_t)step << 32);
}

static inline struct mfl_rng mfl_rng_new(uint64_t seed, enum mfl_rng_domain domain, uint64_t a, uint64_t b)
{
        struct mfl_rng r = {.key = mfl_rng_derive(seed, (uint32_t)domain, a, b), .next = 0};
        return r;
}

static inline uint32_t mfl_rng_u32(struct mfl_rng *r)
{
        if (r->next % 4 == 0)
                r->block = mfl_rng_block(r->key, r->next / 4);
        return r->block.v[r->next++ % 4];
}

static inline uint64_t mfl_rng_u64(struct mfl_rng *r)
{
        uint64_t lo = mfl_rng_u32(r);
        return lo | (uint64_t)mfl_rng_u32(r) << 32;
}

/* Uniform in [0, n), without bias (Lemire 2019); n > 0. */
static inline uint32_t mfl_rng_below(struct mfl_rng *r, uint32_t n)
{
        uint64_t m = (uint64_t)mfl_rng_u32(r) * n;
        if ((uint32_t)m < n) {
                uint32_t floor = (uint32_t)(-n) % n;
                while ((uint32_t)m < floor)
                        m = (uint64_t)mfl_rng_u32(r) * n;
        }
        return (uint32_t)(m >> 32);
}

/* Uniform in [0, 1) with 24 bits, exact in float on every machine. */
static inline MFL_HD float mfl_u32_to_unit(uint32_t u)
{
        return (float)(u >> 8) * 0x1p-24f;
}

/* Uniform in (0, 1) with 53 bits. */
static inline double mfl_rng_unit(struct mfl_rng *r)
{
        return ((double)(mfl_rng_u64(r) >> 11) + 0.5) * 0x1p-53;
}

/* Fisher-Yates, in place. */
static inline void mfl_rng_shuffle(struct mfl_rng *r, uint32_t *v, uint32_t n)
{
        for (uint32_t i = n; i > 1; i--) {
                uint32_t j = mfl_rng_below(r, i);
                uint32_t t = v[i - 1];
                v[i - 1] = v[j];
                v[j] = t;
        }
}

#endif
