/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of params size, and params as reference-counted objects over them. */
#include "server/runtime/runtime_internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/crc32c.h"

static void free_block(struct mfl_pool *pool, struct mfl_block *block)
{
        pool->n_blocks--;
        if (pool->budget)
                mfl_budget_release(pool->budget, pool->block_bytes);
        if (pool->mapped)
                munmap(block->memory, pool->block_bytes);
        else
                free(block->memory);
        free(block);
}

/* The first touched_bytes are written once, so that memory that is not there is found missing now. */
static struct mfl_block *new_block(struct mfl_pool *pool, uint64_t touched_bytes, struct mfl_error *err)
{
        struct mfl_block *block = mfl_calloc(1, sizeof *block);
        void *memory = mfl_alloc_aligned(pool->block_bytes);
        if (!block || !memory) {
                free(block);
                free(memory);
                mfl_fail_memory(err, pool->block_bytes, "a block of parameters");
                return NULL;
        }
        memset(memory, 0, touched_bytes);
        block->memory = memory;
        block->pool = pool;
        pool->n_blocks++;
        return block;
}

static void free_pool_when_unused(struct mfl_pool *pool)
{
        if (!pool->closed || pool->n_blocks)
                return;
        pthread_mutex_destroy(&pool->mutex);
        free(pool);
}

/* Where slots are larger than params, the rest of a params block is given back while it holds them: the
 * process then has one copy of the model less in memory. It comes back, page by page, when the block is a
 * slot again. */
static void release_rest(struct mfl_pool *pool, struct mfl_params *params)
{
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t begin = (uintptr_t)(params->v + params->n), end = (uintptr_t)params->v + pool->block_bytes;
        begin = (begin + page - 1) & ~(page - 1);
        end &= ~(page - 1);
        if (begin < end)
                madvise((void *)begin, end - begin, MADV_DONTNEED);
}

int mfl_pool_new(struct mfl_budget *budget, uint64_t block_bytes, uint64_t params_bytes, uint32_t n_base,
        struct mfl_pool **ret_pool, struct mfl_error *err)
{
        struct mfl_pool *pool = mfl_calloc(1, sizeof *pool);
        if (!pool) {
                if (budget)
                        mfl_budget_release(budget, n_base * block_bytes);
                return mfl_fail_memory(err, sizeof *pool, "a pool of blocks");
        }
        pool->budget = budget;
        pool->block_bytes = block_bytes;
        pool->n_base = n_base;
        pthread_mutex_init(&pool->mutex, NULL);
        for (uint32_t i = 0; i < n_base; i++) {
                /* The one made last is taken first, for the params. */
                struct mfl_block *block = new_block(pool, i + 1 == n_base ? params_bytes : block_bytes, err);
                if (!block) {
                        if (budget)
                                mfl_budget_release(budget, (n_base - i) * block_bytes);
                        mfl_pool_close(pool);
                        return -ENOMEM;
                }
                block->next_free = pool->free;
                pool->free = block;
        }
        *ret_pool = pool;
        return 0;
}

void mfl_pool_close(struct mfl_pool *pool)
{
        if (!pool)
                return;
        mfl_params_unref(pool->current);
        pthread_mutex_lock(&pool->mutex);
        pool->current = NULL;
        pool->closed = true;
        while (pool->free) {
                struct mfl_block *block = pool->free;
                pool->free = block->next_free;
                free_block(pool, block);
        }
        bool unused = pool->n_blocks == 0;
        pthread_mutex_unlock(&pool->mutex);
        if (unused)
                free_pool_when_unused(pool);
}

static struct mfl_block *new_spare_block(struct mfl_pool *pool)
{
        if (pool->budget && mfl_budget_reserve(pool->budget, pool->block_bytes, "a spare block", NULL))
                return NULL;
        struct mfl_block *block = new_block(pool, pool->block_bytes, NULL);
        if (!block && pool->budget)
                mfl_budget_release(pool->budget, pool->block_bytes);
        return block;
}

struct mfl_block *mfl_pool_take(struct mfl_pool *pool)
{
        struct mfl_block *block = pool->free;
        if (block)
                pool->free = block->next_free;
        else if (pool->n_blocks < pool->n_base + MFL_RUNTIME_SPARE)
                block = new_spare_block(pool);
        if (block)
                block->refs = 1;
        return block;
}

void mfl_block_ref(struct mfl_block *block)
{
        block->refs++;
}

/* Under the mutex; true when the pool is closed and this was its last block. */
static bool drop_block(struct mfl_pool *pool, struct mfl_block *block)
{
        mfl_assert(block->refs > 0);
        if (--block->refs)
                return false;
        if (pool->closed || pool->n_blocks > pool->n_base) {
                free_block(pool, block);
                return pool->closed && pool->n_blocks == 0;
        }
        block->next_free = pool->free;
        pool->free = block;
        return false;
}

void mfl_block_release(struct mfl_block *block)
{
        if (!block)
                return;
        struct mfl_pool *pool = block->pool;
        pthread_mutex_lock(&pool->mutex);
        bool last = drop_block(pool, block);
        pthread_mutex_unlock(&pool->mutex);
        if (last)
                free_pool_when_unused(pool);
}

static uint64_t chunk_count(uint64_t n)
{
        return (n * sizeof(float) + MFL_PARAMS_CHUNK_BYTES - 1) / MFL_PARAMS_CHUNK_BYTES;
}

struct mfl_params *mfl_params_new(struct mfl_block *block, uint64_t n)
{
        struct mfl_params *params = mfl_calloc(1, sizeof *params);
        atomic_uint_least64_t *crc = mfl_calloc(chunk_count(n), sizeof *crc);
        if (!params || !crc) {
                free(params);
                free(crc);
                return NULL;
        }
        params->refs = 1;
        params->n = n;
        params->v = block->memory;
        params->block = block;
        params->crc = crc;
        return params;
}

/* A pool of one block that is closed at once: it goes with the params. */
static int make_alone(struct mfl_budget *budget, uint64_t n, uint64_t touched_bytes,
        const uint8_t digest[MFL_DIGEST_BYTES], float **ret_v, struct mfl_params **ret_params,
        struct mfl_error *err)
{
        struct mfl_pool *pool = NULL;
        int r = budget ? mfl_budget_reserve(budget, n * sizeof(float), "a model to send", err) : 0;
        if (r)
                return MFL_RUNTIME_MEMORY;
        r = mfl_pool_new(budget, n * sizeof(float), touched_bytes, 1, &pool, err);
        if (r)
                return r;
        struct mfl_block *block = mfl_pool_take(pool);
        struct mfl_params *params = mfl_params_new(block, n);
        mfl_pool_close(pool);
        if (!params) {
                mfl_block_release(block);
                return mfl_fail_memory(err, sizeof *params, "params");
        }
        memcpy(params->digest, digest, MFL_DIGEST_BYTES);
        *ret_v = block->memory;
        *ret_params = params;
        return 0;
}

int mfl_params_alone(struct mfl_budget *budget, uint64_t n, const uint8_t digest[MFL_DIGEST_BYTES],
        float **ret_v, struct mfl_params **ret_params, struct mfl_error *err)
{
        return make_alone(budget, n, n * sizeof(float), digest, ret_v, ret_params, err);
}

int mfl_params_arriving(struct mfl_budget *budget, uint64_t n, const uint8_t digest[MFL_DIGEST_BYTES],
        float **ret_v, struct mfl_params **ret_params, struct mfl_error *err)
{
        const int r = make_alone(budget, n, 0, digest, ret_v, ret_params, err);
        return r < 0 ? MFL_RUNTIME_MEMORY : r;
}

struct mfl_params *mfl_params_mapped(void *map, uint64_t n)
{
        struct mfl_pool *pool = mfl_calloc(1, sizeof *pool);
        struct mfl_block *block = mfl_calloc(1, sizeof *block);
        if (block)
                *block = (struct mfl_block){.pool = pool, .refs = 1, .memory = map};
        struct mfl_params *params = pool && block ? mfl_params_new(block, n) : NULL;
        if (!params) {
                free(pool);
                free(block);
                return NULL;
        }
        pthread_mutex_init(&pool->mutex, NULL);
        pool->block_bytes = n * sizeof(float);
        pool->n_blocks = pool->n_base = 1;
        pool->closed = pool->mapped = true;
        return params;
}

void mfl_params_forget_crc(struct mfl_params *params)
{
        for (uint64_t i = 0; i < chunk_count(params->n); i++)
                atomic_store(&params->crc[i], 0);
}

struct mfl_params *mfl_params_ref(struct mfl_params *params)
{
        atomic_fetch_add(&params->refs, 1);
        return params;
}

void mfl_params_unref(struct mfl_params *params)
{
        if (!params)
                return;
        struct mfl_block *block = params->block;
        struct mfl_pool *pool = block->pool;
        /* The last reference goes under the mutex, because mfl_runtime_params may be handing out a new one.
         */
        pthread_mutex_lock(&pool->mutex);
        bool gone = atomic_fetch_sub(&params->refs, 1) == 1, last = false;
        if (gone) {
                if (pool->previous == params)
                        pool->previous = NULL;
                last = drop_block(pool, block);
        }
        pthread_mutex_unlock(&pool->mutex);
        if (gone) {
                free(params->crc);
                free(params->grid);
                free(params->sites.v);
                free(params->step);
                free(params);
        }
        if (last)
                free_pool_when_unused(pool);
}

void mfl_pool_publish(struct mfl_pool *pool, struct mfl_params *params)
{
        release_rest(pool, params); /* nobody else knows the block yet */
        pthread_mutex_lock(&pool->mutex);
        struct mfl_params *old = pool->current;
        if (pool->previous)
                atomic_store(&pool->previous->retired, true);
        pool->previous = old;
        pool->current = params;
        pthread_mutex_unlock(&pool->mutex);
        mfl_params_unref(old);
}

/* Under the mutex: an asynchronous job's older version, or a region's. */
static struct mfl_params *find_version(const struct mfl_runtime *rt, const uint8_t *digest)
{
        for (uint32_t i = 0; i < rt->n_older; i++)
                if (rt->older[i] && !memcmp(rt->older[i]->digest, digest, MFL_DIGEST_BYTES))
                        return rt->older[i];
        return NULL;
}

struct mfl_params *mfl_runtime_params(struct mfl_runtime *rt, const uint8_t *digest)
{
        struct mfl_pool *pool = rt->pool;
        struct mfl_params *found = NULL;
        pthread_mutex_lock(&pool->mutex);
        if (digest && rt->frozen && !memcmp(rt->frozen->digest, digest, MFL_DIGEST_BYTES))
                found = rt->frozen;
        else if (!digest || !memcmp(pool->current->digest, digest, MFL_DIGEST_BYTES))
                found = pool->current;
        else if (pool->previous && !memcmp(pool->previous->digest, digest, MFL_DIGEST_BYTES))
                found = pool->previous;
        else
                found = find_version(rt, digest);
        if (found)
                atomic_fetch_add(&found->refs, 1);
        pthread_mutex_unlock(&pool->mutex);
        return found;
}

uint32_t mfl_params_crc(struct mfl_params *params, uint64_t i)
{
        mfl_assert(i < chunk_count(params->n));
        uint64_t known = atomic_load(&params->crc[i]);
        if (known)
                return (uint32_t)known;
        uint64_t offset = i * MFL_PARAMS_CHUNK_BYTES;
        uint64_t bytes = MFL_MIN(MFL_PARAMS_CHUNK_BYTES, params->n * sizeof(float) - offset);
        uint32_t crc = mfl_crc32c(0, (const char *)params->v + offset, bytes);
        atomic_store(&params->crc[i], (uint64_t)1 << 32 | crc);
        return crc;
}
