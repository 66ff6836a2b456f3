/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's memory budget, and result buffers that are reused. */
#include "client/train/trainer_internal.h"

struct trainer_idle {
        uint64_t bytes;
        struct trainer_idle *next;
};

int mfl_trainer_memory_init(struct trainer_memory *memory, struct mfl_budget *budget, struct mfl_error *err)
{
        *memory = (struct trainer_memory){0};
        mfl_budget_init(&memory->own, 0);
        memory->budget = budget ? budget : &memory->own;
        int r = pthread_mutex_init(&memory->lock, NULL);
        return r ? mfl_fail(err, -r, "trainer: mutex: %s", strerror(r)) : 0;
}

static void uncharge_locked(struct trainer_memory *memory, uint64_t bytes)
{
        mfl_assert(memory->used >= bytes);
        memory->used -= bytes;
        mfl_budget_release(memory->budget, bytes);
}

static void free_shared_locked(struct trainer_memory *memory, struct trainer_shared *shared)
{
        mfl_share_buffer_free(shared->buffer);
        uncharge_locked(memory, shared->bytes);
        free(shared);
}

/* Not under the lock, which the loop needs to give results back: a sum on a device is freed when the current
 * reduction has ended, and only the loop can cancel that. */
void mfl_trainer_memory_trim(struct trainer_memory *memory)
{
        uint64_t bytes = 0;
        pthread_mutex_lock(&memory->lock);
        struct trainer_idle *idle = memory->idle;
        struct trainer_shared *shared = memory->idle_shared;
        struct trainer_held *held = memory->idle_held;
        memory->idle = NULL;
        memory->idle_shared = NULL;
        memory->idle_held = NULL;
        pthread_mutex_unlock(&memory->lock);
        for (struct trainer_shared *next; shared; shared = next) {
                next = shared->next;
                bytes += shared->bytes;
                mfl_share_buffer_free(shared->buffer);
                free(shared);
        }
        for (struct trainer_held *next; held; held = next) {
                next = held->next;
                bytes += held->bytes;
                memory->held_free(held->sum);
                free(held);
        }
        for (struct trainer_idle *next; idle; idle = next) {
                next = idle->next;
                bytes += idle->bytes;
                free(idle);
        }
        mfl_trainer_memory_release(memory, bytes);
}

void mfl_trainer_memory_deinit(struct trainer_memory *memory)
{
        mfl_trainer_memory_trim(memory);
        mfl_assert(memory->used == 0);
        pthread_mutex_destroy(&memory->lock);
}

/* *ret_idle: freeing the idle buffers would help. */
static int try_reserve(struct trainer_memory *memory, uint64_t bytes, const char *what, bool *ret_idle,
        struct mfl_error *err)
{
        pthread_mutex_lock(&memory->lock);
        int r = mfl_budget_reserve(memory->budget, bytes, what, err);
        if (!r)
                memory->used += bytes;
        *ret_idle = memory->idle || memory->idle_shared || memory->idle_held;
        pthread_mutex_unlock(&memory->lock);
        return r ? MFL_INVALID : 0;
}

int mfl_trainer_memory_reserve(
        struct trainer_memory *memory, uint64_t bytes, const char *what, struct mfl_error *err)
{
        bool idle;
        int r = try_reserve(memory, bytes, what, &idle, err);
        if (r && idle) {
                mfl_trainer_memory_trim(memory);
                r = try_reserve(memory, bytes, what, &idle, err);
        }
        return r;
}

void mfl_trainer_memory_release(struct trainer_memory *memory, uint64_t bytes)
{
        pthread_mutex_lock(&memory->lock);
        uncharge_locked(memory, bytes);
        pthread_mutex_unlock(&memory->lock);
}

uint64_t mfl_trainer_memory_left(struct trainer_memory *memory)
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

/* While a buffer is idle, its head must fit into it. */
static uint64_t buffer_bytes(uint64_t bytes)
{
        return MFL_MAX(bytes, sizeof(struct trainer_idle));
}

int mfl_trainer_buffer_get(struct trainer_memory *memory, uint64_t bytes, const char *what, void **ret_buffer,
        struct mfl_error *err)
{
        uint64_t size = buffer_bytes(bytes);
        pthread_mutex_lock(&memory->lock);
        void *buffer = take_idle_locked(memory, size);
        pthread_mutex_unlock(&memory->lock);
        int r = buffer ? 0 : mfl_trainer_memory_reserve(memory, size, what, err);
        if (!r && !buffer) {
                buffer = mfl_alloc_aligned(size);
                if (!buffer) {
                        mfl_trainer_memory_release(memory, size);
                        r = mfl_fail_memory(err, size, what);
                }
        }
        if (!r)
                *ret_buffer = buffer;
        return r;
}

void mfl_trainer_buffer_put(struct trainer_memory *memory, void *buffer, uint64_t bytes)
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

/* ---- buffers that other daemons read ---- */

/* A buffer that is still read is given up: a stopped reader must not cost one more buffer per round. It keeps
 * what it has mapped. */
static struct trainer_shared *take_shared_locked(struct trainer_memory *memory, uint64_t bytes)
{
        for (struct trainer_shared **at = &memory->idle_shared; *at;) {
                struct trainer_shared *shared = *at;
                if (shared->bytes != bytes) {
                        at = &shared->next;
                        continue;
                }
                *at = shared->next;
                if (mfl_share_idle(shared->buffer))
                        return shared;
                free_shared_locked(memory, shared);
        }
        return NULL;
}

static bool has_idle_shared(struct trainer_memory *memory)
{
        pthread_mutex_lock(&memory->lock);
        bool has = memory->idle_shared != NULL;
        pthread_mutex_unlock(&memory->lock);
        return has;
}

static int new_shared(struct trainer_memory *memory, struct mfl_share *share, struct trainer_shared *shared,
        struct mfl_error *err)
{
        int r = mfl_trainer_memory_reserve(memory, shared->bytes, "an update", err);
        if (r)
                return r;
        r = mfl_share_buffer_new(share, shared->bytes, &shared->buffer, err);
        if (r == MFL_INVALID && has_idle_shared(memory)) {
                mfl_trainer_memory_trim(memory);
                r = mfl_share_buffer_new(share, shared->bytes, &shared->buffer, err);
        }
        if (r)
                mfl_trainer_memory_release(memory, shared->bytes);
        else
                mfl_share_buffer_touch(shared->buffer);
        return r;
}

int mfl_trainer_shared_get(struct trainer_memory *memory, struct mfl_share *share, uint64_t bytes,
        struct trainer_shared **ret_shared, struct mfl_error *err)
{
        pthread_mutex_lock(&memory->lock);
        struct trainer_shared *shared = take_shared_locked(memory, bytes);
        pthread_mutex_unlock(&memory->lock);
        if (!shared) {
                shared = mfl_calloc(1, sizeof(*shared));
                if (!shared)
                        return mfl_fail_memory(err, sizeof(*shared), "an update");
                shared->bytes = bytes;
                int r = new_shared(memory, share, shared, err);
                if (r) {
                        free(shared);
                        return r;
                }
        }
        *ret_shared = shared;
        return 0;
}

void mfl_trainer_shared_put(struct trainer_memory *memory, struct trainer_shared *shared)
{
        if (!shared)
                return;
        mfl_share_withdraw(shared->buffer);
        pthread_mutex_lock(&memory->lock);
        shared->next = memory->idle_shared;
        memory->idle_shared = shared;
        pthread_mutex_unlock(&memory->lock);
}

/* ---- sums on a device ---- */

static struct trainer_held *take_held(struct trainer_memory *memory, uint64_t n)
{
        struct trainer_held *found = NULL;
        pthread_mutex_lock(&memory->lock);
        for (struct trainer_held **at = &memory->idle_held; *at && !found; at = &(*at)->next) {
                if ((*at)->n != n)
                        continue;
                found = *at;
                *at = found->next;
                break;
        }
        pthread_mutex_unlock(&memory->lock);
        return found;
}

static int new_held(struct trainer_memory *memory, const struct mfl_backend_ops *ops,
        struct mfl_device *device, struct trainer_held *held, struct mfl_error *err)
{
        held->bytes = ops->sum_bytes(held->n);
        int r = mfl_trainer_memory_reserve(memory, held->bytes, "a sum on the device", err);
        if (r)
                return r;
        r = ops->sum_new(device, held->n, &held->sum, err);
        if (r)
                mfl_trainer_memory_release(memory, held->bytes);
        return r;
}

int mfl_trainer_held_get(struct trainer_memory *memory, const struct mfl_backend_ops *ops,
        struct mfl_device *device, uint64_t n, struct trainer_held **ret_held, struct mfl_error *err)
{
        struct trainer_held *held = take_held(memory, n);
        if (held) {
                *ret_held = held;
                return ops->sum_clear(held->sum, err);
        }
        held = mfl_calloc(1, sizeof(*held));
        if (!held)
                return mfl_fail_memory(err, sizeof(*held), "a sum on the device");
        held->n = n;
        int r = new_held(memory, ops, device, held, err);
        if (r) {
                free(held);
                return r;
        }
        *ret_held = held;
        return 0;
}

void mfl_trainer_held_put(struct trainer_memory *memory, struct trainer_held *held)
{
        if (!held)
                return;
        pthread_mutex_lock(&memory->lock);
        held->next = memory->idle_held;
        memory->idle_held = held;
        pthread_mutex_unlock(&memory->lock);
}
