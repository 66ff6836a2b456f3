/* SPDX-License-Identifier: Apache-2.0 */
/* What runtime.c (the job, arithmetic), runtime_pool.c (blocks, params) and runtime_slot.c (slots) share. */
#ifndef MFL_SERVER_RUNTIME_INTERNAL_H
#define MFL_SERVER_RUNTIME_INTERNAL_H

#include <pthread.h>

#include "common/digest.h"
#include "server/runtime.h"
#include "server/spill.h"

#define RANGE_ELEMENTS                                                                                       \
        16384 /* apply works so many at a time: 64 KiB of floats, still in cache when hashed                 \
               */

struct mfl_block {
        struct mfl_pool *pool;
        struct mfl_block *next_free;
        uint32_t refs;
        void *memory;
};

/* Lives until the runtime is closed and the last block is released. Everything is guarded by the mutex. */
struct mfl_pool {
        pthread_mutex_t mutex;
        struct mfl_budget *budget;
        uint64_t block_bytes;
        uint32_t n_blocks, n_base; /* there are, there are when nobody holds more than it should */
        struct mfl_block *free;
        bool closed;
        struct mfl_params *current, *previous; /* current has a reference, previous has none */
};

/* Takes over the reservation of n_base blocks, on failure too. */
int mfl_pool_new(struct mfl_budget *budget, uint64_t block_bytes, uint64_t params_bytes, uint32_t n_base,
        struct mfl_pool **ret_pool, struct mfl_error *err);
void mfl_pool_close(struct mfl_pool *pool);
/* A block with one reference, under the mutex. NULL when all are held (MFL_BUSY). */
struct mfl_block *mfl_pool_take(struct mfl_pool *pool);
/* Under the mutex. */
void mfl_block_ref(struct mfl_block *block);
/* Takes the mutex itself. */
void mfl_block_release(struct mfl_block *block);

/* Params over a block, taking over its reference; the digest is filled in by the caller. */
struct mfl_params *mfl_params_new(struct mfl_block *block, uint64_t n);
/* Makes them the current ones, taking over the reference. */
void mfl_pool_publish(struct mfl_pool *pool, struct mfl_params *params);

struct mfl_extent {
        uint64_t begin, end;
};
struct mfl_slot {
        struct mfl_block *block; /* NULL: not open */
        uint64_t opening, bytes;
        enum mfl_encoding encoding;
        uint32_t n_extents, room; /* arrived: ascending, neither touching nor overlapping */
        struct mfl_extent *extents;
};

struct mfl_runtime {
        char job[MFL_JOB_ID_BYTES];
        const struct mfl_job *spec;
        const struct mfl_graph *graph;
        const struct mfl_strategy_ops *strategy;
        struct mfl_fixed fixed;
        struct mfl_budget *budget;
        uint64_t n, budget_bytes;  /* n: params that move; budget_bytes: sums and state */
        struct mfl_params *frozen; /* NULL: none are */
        struct mfl_sha256 hashed;  /* the digest of all params, as far as the frozen ones */
        struct mfl_pool *pool;
        uint32_t n_slots;
        struct mfl_slot *slots; /* guarded by the pool's mutex */
        uint64_t openings;
        int64_t *sums; /* NULL for single updates */
        float *state[MFL_STRATEGY_STATES_MAX];
        struct mfl_spill *spill; /* NULL but for single updates */
        uint64_t weight_added;   /* in this round */
        double *d;               /* RANGE_ELEMENTS */
        const float **rows;      /* cohort */
        float *scratch;          /* cohort */
};

#endif
