/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's memory budget, and result buffers that are used again. */
#include "client/trainer_internal.h"

struct trainer_idle {
        uint64_t bytes;
        struct trainer_idle *next;
};

int trainer_memory_init(struct trainer_memory *memory, struct mfl_budget *budget, struct mfl_error *err)
{
        *memory = (struct trainer_memory){0};
        mfl_budget_init(&memory->own, 0);
        memory->budget = budget ? budget : &memory->own;
        int r = pthread_mutex_init(&memory->lock, NULL);
        return r ? mfl_fail(err, -r, "trainer: mutex: %s", strerror(r)) : 0;
}

static void trim_locked(struct trainer_memory *memory)
{
        while (memory->idle) {
                struct trainer_idle *idle = memory->idle;
                memory->idle = idle->next;
                memory->used -= idle->bytes;
                mfl_budget_release(memory->budget, idle->bytes);
                free(idle);
        }
}

void trainer_memory_trim(struct trainer_memory *memory)
{
        pthread_mutex_lock(&memory->lock);
        trim_locked(memory);
        pthread_mutex_unlock(&memory->lock);
}

void trainer_memory_deinit(struct trainer_memory *memory)
{
        trim_locked(memory);
        mfl_assert(memory->used == 0);
        pthread_mutex_destroy(&memory->lock);
}

static int reserve_locked(
        struct trainer_memory *memory, uint64_t bytes, const char *what, struct mfl_error *err)
{
        int r = mfl_budget_reserve(memory->budget, bytes, what, err);
        if (r && memory->idle) {
                trim_locked(memory);
                r = mfl_budget_reserve(memory->budget, bytes, what, err);
        }
        if (r)
                return MFL_INVALID;
        memory->used += bytes;
        return 0;
}

int trainer_memory_reserve(
        struct trainer_memory *memory, uint64_t bytes, const char *what, struct mfl_error *err)
{
        pthread_mutex_lock(&memory->lock);
        int r = reserve_locked(memory, bytes, what, err);
        pthread_mutex_unlock(&memory->lock);
        return r;
}

void trainer_memory_release(struct trainer_memory *memory, uint64_t bytes)
{
        pthread_mutex_lock(&memory->lock);
        mfl_assert(memory->used >= bytes);
        memory->used -= bytes;
        mfl_budget_release(memory->budget, bytes);
        pthread_mutex_unlock(&memory->lock);
}

uint64_t trainer_memory_left(struct trainer_memory *memory)
{
        uint64_t limit = memory->budget->limit_bytes, used = mfl_budget_used(memory->budget);
        return !limit ? UINT64_MAX : limit > used ? limit - used : 0;
}

static void *take_idle_locked(struct trainer_memory *memory, uint64_t bytes)
{
        for (struct trainer_idle **at = &memory->idle; *at; at = &(*at)->next) {
                struct trainer_idle *idle = *at;
                if (idle->bytes == bytes) {
                        *at = idle->next;
                        return idle;
                }
        }
        return NULL;
}

/* A buffer's head has to fit while it is idle. */
static uint64_t buffer_bytes(uint64_t bytes)
{
        return MFL_MAX(bytes, sizeof(struct trainer_idle));
}

int trainer_buffer_get(struct trainer_memory *memory, uint64_t bytes, const char *what, void **ret_buffer,
        struct mfl_error *err)
{
        uint64_t size = buffer_bytes(bytes);
        pthread_mutex_lock(&memory->lock);
        void *buffer = take_idle_locked(memory, size);
        int r = buffer ? 0 : reserve_locked(memory, size, what, err);
        pthread_mutex_unlock(&memory->lock);
        if (!r && !buffer) {
                buffer = mfl_alloc_aligned(size);
                if (!buffer) {
                        trainer_memory_release(memory, size);
                        r = mfl_fail_memory(err, size, what);
                }
        }
        if (!r)
                *ret_buffer = buffer;
        return r;
}

void trainer_buffer_put(struct trainer_memory *memory, void *buffer, uint64_t bytes)
{
        if (!buffer)
                return;
        struct trainer_idle *idle = buffer;
        pthread_mutex_lock(&memory->lock);
        idle->bytes = buffer_bytes(bytes);
        idle->next = memory->idle;
        memory->idle = idle;
        pthread_mutex_unlock(&memory->lock);
}
