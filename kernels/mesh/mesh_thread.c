/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh of threads of one process. Every rank reads what the others have in their buffers, and writes its own only:
 *
 * 1. each rank posts its operation, and waits until all have;
 * 2. it reduces or copies its share; an all-reduce has one more such turn, in which it fetches the other slices;
 * 3. it tells that it is done, and waits until all are, so that buffers can be used again.
 *
 * Bytes that a rank moves: a reduce-scatter of n elements of b bytes reads n b and writes n b / ranks, which is the least
 * that any exchange can do. Sends have a place of their own for each pair of ranks. Waiting spins for as long as the
 * other side usually needs, then sleeps. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "kernels/mesh/mesh.h"

#define SPIN_NS 20000u
#define CHUNK_BYTES 8192u

struct place {
        _Atomic uint64_t posted, ready, done; /* operations; ready: the first turn of an all-reduce */
        struct mfl_mesh_op op;                /* of `posted` */
};

struct hub {
        pthread_mutex_t lock; /* of the rest */
        pthread_cond_t turned;
        _Atomic uint64_t turn;
        _Atomic uint32_t n_asleep, n_open;
        _Atomic uint32_t n_inside; /* ranks that read others' buffers */
        atomic_bool broken;
        char reason[160];
        uint32_t n;
        struct place *collective, *pair; /* n; n * n: from, to */
};

struct thread_mesh {
        struct mfl_mesh base;
        struct hub *hub;
        struct mfl_mesh_op op;
        bool running;
        int phase;
        uint64_t count;   /* collectives so far */
        uint64_t *n_pair; /* sends to, then receives from, each rank */
};

static void tell(struct hub *hub)
{
        atomic_fetch_add(&hub->turn, 1);
        if (!atomic_load(&hub->n_asleep))
                return;
        pthread_mutex_lock(&hub->lock);
        pthread_cond_broadcast(&hub->turned);
        pthread_mutex_unlock(&hub->lock);
}

static void break_hub(struct hub *hub, const char *reason)
{
        pthread_mutex_lock(&hub->lock);
        if (!atomic_load(&hub->broken)) {
                mfl_strcpy(hub->reason, sizeof(hub->reason), reason);
                atomic_store(&hub->broken, true);
        }
        pthread_mutex_unlock(&hub->lock);
        tell(hub);
}

static int is_broken(struct hub *hub, struct mfl_error *err)
{
        if (!atomic_load(&hub->broken))
                return 0;
        while (atomic_load(&hub->n_inside)) /* for as long as a copy takes */
                sched_yield();
        return mfl_fail(err, MFL_MESH_BROKEN, "the team's mesh is broken: %s", hub->reason);
}

/* Buffers of the others may be read between enter and leave: who finds the mesh broken waits for those who are inside
 * before it returns, and its caller frees buffers. */
static bool enter(struct hub *hub)
{
        atomic_fetch_add(&hub->n_inside, 1);
        if (!atomic_load(&hub->broken))
                return true;
        atomic_fetch_sub(&hub->n_inside, 1);
        return false;
}

static void leave(struct hub *hub)
{
        atomic_fetch_sub(&hub->n_inside, 1);
}

/* The two ends of what is under way: all ranks, or a pair. */
static bool is_pair(const struct mfl_mesh_op *op)
{
        return op->kind == MFL_MESH_SEND || op->kind == MFL_MESH_RECV;
}

static struct place *pair_of(struct thread_mesh *mesh, uint32_t from, uint32_t to)
{
        return &mesh->hub->pair[(size_t)from * mesh->hub->n + to];
}

static struct place *own_place(struct thread_mesh *mesh)
{
        return &mesh->hub->collective[mesh->base.rank];
}

static int thread_start(struct mfl_mesh *base, const struct mfl_mesh_op *op, struct mfl_error *err)
{
        struct thread_mesh *mesh = MFL_CONTAINER_OF(base, struct thread_mesh, base);
        mfl_assert(!mesh->running);
        int r = is_broken(mesh->hub, err);
        if (r)
                return r;
        mesh->op = *op;
        mesh->phase = 0;
        mesh->running = true;
        if (op->kind == MFL_MESH_RECV)
                return 0;
        struct place *place =
                op->kind == MFL_MESH_SEND ? pair_of(mesh, base->rank, op->peer) : own_place(mesh);
        place->op = *op;
        atomic_store_explicit(&place->posted,
                op->kind == MFL_MESH_SEND ? ++mesh->n_pair[op->peer] : ++mesh->count, memory_order_release);
        tell(mesh->hub);
        return 0;
}

static bool all_reached(struct thread_mesh *mesh, size_t field)
{
        for (uint32_t r = 0; r < mesh->hub->n; r++) {
                _Atomic uint64_t *at = (_Atomic uint64_t *)((char *)&mesh->hub->collective[r] + field);
                if (atomic_load_explicit(at, memory_order_acquire) < mesh->count)
                        return false;
        }
        return true;
}

static bool same(const struct mfl_mesh_op *a, const struct mfl_mesh_op *b)
{
        return a->kind == b->kind && a->type == b->type && a->reduction == b->reduction && a->n == b->n &&
               a->step == b->step && a->sequence == b->sequence && (is_pair(a) || a->peer == b->peer);
}

static int check(
        struct thread_mesh *mesh, const struct mfl_mesh_op *theirs, uint32_t rank, struct mfl_error *err)
{
        struct mfl_mesh_op own = mesh->op, other = *theirs;
        char reason[160];
        if (is_pair(&own))
                own.kind = other.kind;
        if (same(&own, &other))
                return 0;
        snprintf(reason, sizeof(reason),
                "rank %u is at step %u, operation %u, and rank %u at step %u, operation %u", mesh->base.rank,
                own.step, own.sequence, rank, other.step, other.sequence);
        break_hub(mesh->hub, reason);
        return is_broken(mesh->hub, err);
}

/* In any order: to the own elements, where they lie. */
static void reduce_own(struct thread_mesh *mesh, uint64_t first, uint64_t n, char *out)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = mfl_mesh_type_bytes(op->type);
        for (uint64_t at = 0, count; at < n; at += count) {
                const char *own = (const char *)op->in + (first + at) * size;
                count = MFL_MIN(CHUNK_BYTES / size, n - at);
                if (own != out + at * size)
                        memcpy(out + at * size, own, count * size);
                for (uint32_t r = 0; r < mesh->hub->n; r++)
                        if (r != mesh->base.rank)
                                mfl_mesh_reduce(op->type, op->reduction, out + at * size,
                                        (const char *)mesh->hub->collective[r].op.in + (first + at) * size,
                                        count);
        }
}

/* The ranks' elements [first, first + n) reduced, in the order of the ranks where that counts, to out. */
static void reduce(struct thread_mesh *mesh, uint64_t first, uint64_t n, void *out)
{
        const struct mfl_mesh_op *op = &mesh->op;
        const void *part[MFL_MESH_RANKS_MAX];
        if (mfl_mesh_any_order(op->type, op->reduction)) {
                reduce_own(mesh, first, n, out);
                return;
        }
        for (uint32_t r = 0; r < mesh->hub->n; r++)
                part[r] =
                        (const char *)mesh->hub->collective[r].op.in + first * mfl_mesh_type_bytes(op->type);
        mfl_mesh_reduce_parts(op, part, mesh->hub->n, first, n, out);
}

/* The slice of every other rank, from where it lies at that rank. */
static void fetch(struct thread_mesh *mesh, bool gathers)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = mfl_mesh_type_bytes(op->type), first, n;
        for (uint32_t r = 0; r < mesh->hub->n; r++) {
                const struct mfl_mesh_op *theirs = &mesh->hub->collective[r].op;
                mfl_mesh_op_slice(op, mesh->hub->n, r, &first, &n);
                const char *from = gathers ? theirs->in : (const char *)theirs->out + first * size;
                if (n && from != (const char *)op->out + first * size)
                        memcpy((char *)op->out + first * size, from, n * size);
                if (r != mesh->base.rank)
                        mesh->base.received_bytes += n * size;
        }
}

static void exchange(struct thread_mesh *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = mfl_mesh_type_bytes(op->type), first, n, own;
        mfl_mesh_op_slice(op, mesh->hub->n, mesh->base.rank, &own, &n);
        for (uint32_t r = 0; r < mesh->hub->n; r++) {
                mfl_mesh_op_slice(op, mesh->hub->n, r, &first, &n);
                memcpy((char *)op->out + first * size,
                        (const char *)mesh->hub->collective[r].op.in + own * size, n * size);
        }
}

/* The rank's share of the operation; whether others still need something of it before all are done. */
static bool work(struct thread_mesh *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = mfl_mesh_type_bytes(op->type), first, n;
        mfl_mesh_op_slice(op, mesh->hub->n, mesh->base.rank, &first, &n);
        switch (op->kind) {
        case MFL_MESH_ALL_REDUCE:
                reduce(mesh, first, n, (char *)op->out + first * size);
                mesh->base.received_bytes += n * size * (mesh->hub->n - 1);
                return true;
        case MFL_MESH_REDUCE_SCATTER:
                reduce(mesh, first, n, op->out);
                mesh->base.received_bytes += n * size * (mesh->hub->n - 1);
                return false;
        case MFL_MESH_ALL_GATHER:
                fetch(mesh, true);
                return false;
        case MFL_MESH_BROADCAST:
                if (op->peer != mesh->base.rank)
                        memcpy(op->out, mesh->hub->collective[op->peer].op.in, op->n * size);
                return false;
        case MFL_MESH_ALL_TO_ALL:
                exchange(mesh);
                return false;
        case MFL_MESH_BARRIER:
                return false;
        case MFL_MESH_SEND:
        case MFL_MESH_RECV:
        case MFL_MESH_KIND_COUNT_:
                break;
        }
        mfl_assert(false);
}

static int collective_progress(struct thread_mesh *mesh, struct mfl_error *err)
{
        struct place *own = own_place(mesh);
        if (mesh->phase == 0) {
                if (!all_reached(mesh, offsetof(struct place, posted)))
                        return MFL_MESH_PENDING;
                for (uint32_t r = 0; r < mesh->hub->n; r++) {
                        int rc = check(mesh, &mesh->hub->collective[r].op, r, err);
                        if (rc)
                                return rc;
                }
                if (!enter(mesh->hub))
                        return MFL_MESH_PENDING;
                mesh->phase = work(mesh) ? 1 : 2;
                leave(mesh->hub);
                atomic_store_explicit(
                        mesh->phase == 1 ? &own->ready : &own->done, mesh->count, memory_order_release);
                tell(mesh->hub);
        }
        if (mesh->phase == 1) {
                if (!all_reached(mesh, offsetof(struct place, ready)))
                        return MFL_MESH_PENDING;
                if (!enter(mesh->hub))
                        return MFL_MESH_PENDING;
                fetch(mesh, false);
                leave(mesh->hub);
                mesh->phase = 2;
                atomic_store_explicit(&own->done, mesh->count, memory_order_release);
                tell(mesh->hub);
        }
        return all_reached(mesh, offsetof(struct place, done)) ? 0 : MFL_MESH_PENDING;
}

static int pair_progress(struct thread_mesh *mesh, struct mfl_error *err)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint32_t own = mesh->base.rank, n = mesh->hub->n;
        uint64_t bytes = op->n * mfl_mesh_type_bytes(op->type);
        if (op->kind == MFL_MESH_SEND) {
                struct place *place = pair_of(mesh, own, op->peer);
                if (atomic_load_explicit(&place->done, memory_order_acquire) < mesh->n_pair[op->peer])
                        return MFL_MESH_PENDING;
                mesh->base.sent_bytes += bytes;
                return 0;
        }
        struct place *place = pair_of(mesh, op->peer, own);
        uint64_t *count = &mesh->n_pair[n + op->peer];
        if (atomic_load_explicit(&place->posted, memory_order_acquire) < *count + 1)
                return MFL_MESH_PENDING;
        int r = check(mesh, &place->op, op->peer, err);
        if (r)
                return r;
        if (!enter(mesh->hub))
                return MFL_MESH_PENDING;
        memcpy(op->out, place->op.in, bytes);
        leave(mesh->hub);
        mesh->base.received_bytes += bytes;
        atomic_store_explicit(&place->done, ++*count, memory_order_release);
        tell(mesh->hub);
        return 0;
}

/* Until something has turned since `turn`, or wait_ns are over. */
static void sleep_for(struct hub *hub, uint64_t turn, uint64_t wait_ns)
{
        uint64_t end_ns = mfl_now_ns() + MFL_MIN(wait_ns, SPIN_NS);
        while (atomic_load(&hub->turn) == turn)
                if (mfl_now_ns() >= end_ns)
                        break;
        if (atomic_load(&hub->turn) != turn || wait_ns <= SPIN_NS)
                return;
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        uint64_t ns = (uint64_t)end.tv_nsec + wait_ns - SPIN_NS;
        end.tv_sec += (time_t)(ns / 1000000000);
        end.tv_nsec = (long)(ns % 1000000000);
        pthread_mutex_lock(&hub->lock);
        atomic_fetch_add(&hub->n_asleep, 1);
        int r = 0;
        while (!r && atomic_load(&hub->turn) == turn)
                r = pthread_cond_timedwait(&hub->turned, &hub->lock, &end);
        atomic_fetch_sub(&hub->n_asleep, 1);
        pthread_mutex_unlock(&hub->lock);
}

static int thread_progress(struct mfl_mesh *base, uint64_t wait_ns, struct mfl_error *err)
{
        struct thread_mesh *mesh = MFL_CONTAINER_OF(base, struct thread_mesh, base);
        uint64_t end_ns = mfl_now_ns() + wait_ns;
        mfl_assert(mesh->running);
        for (;;) {
                uint64_t turn = atomic_load(&mesh->hub->turn), now_ns;
                /* What all have finished is finished, even if one has left since. */
                int r = is_pair(&mesh->op) ? pair_progress(mesh, err) : collective_progress(mesh, err);
                if (r == MFL_MESH_PENDING && is_broken(mesh->hub, err))
                        r = MFL_MESH_BROKEN;
                if (r != MFL_MESH_PENDING) {
                        mesh->running = false;
                        return r;
                }
                now_ns = mfl_now_ns();
                if (now_ns >= end_ns)
                        return MFL_MESH_PENDING;
                sleep_for(mesh->hub, turn, end_ns - now_ns);
        }
}

static void thread_abort(struct mfl_mesh *base, const char *reason)
{
        break_hub(MFL_CONTAINER_OF(base, struct thread_mesh, base)->hub, reason);
}

/* Who has begun it waits for this rank, so that its place stays as it is. */
static int thread_look(
        struct mfl_mesh *base, const struct mfl_mesh_op *op, bool *ret_begun, struct mfl_error *err)
{
        struct thread_mesh *mesh = MFL_CONTAINER_OF(base, struct thread_mesh, base);
        int r = is_broken(mesh->hub, err);
        for (uint32_t rank = 0; !r && rank < mesh->hub->n; rank++) {
                const struct place *place = &mesh->hub->collective[rank];
                if (atomic_load_explicit(&place->posted, memory_order_acquire) > mesh->count)
                        *ret_begun =
                                *ret_begun || (place->op.kind == op->kind && place->op.step == op->step &&
                                                      place->op.sequence == op->sequence);
        }
        return r;
}

static void hub_free(struct hub *hub)
{
        pthread_cond_destroy(&hub->turned);
        pthread_mutex_destroy(&hub->lock);
        free(hub->collective);
        free(hub->pair);
        free(hub);
}

static void thread_close(struct mfl_mesh *base)
{
        struct thread_mesh *mesh = MFL_CONTAINER_OF(base, struct thread_mesh, base);
        struct hub *hub = mesh->hub;
        char reason[64];
        snprintf(reason, sizeof(reason), "rank %u has left", base->rank);
        break_hub(hub, reason);
        free(mesh->n_pair);
        free(mesh);
        if (atomic_fetch_sub(&hub->n_open, 1) == 1)
                hub_free(hub);
}

static const struct mfl_mesh_ops thread_ops = {
        .name = "thread",
        .start = thread_start,
        .progress = thread_progress,
        .abort = thread_abort,
        .close = thread_close,
        .look = thread_look,
};

static int hub_new(uint32_t n, struct hub **ret_hub, struct mfl_error *err)
{
        struct hub *hub = mfl_calloc(1, sizeof(*hub));
        if (!hub)
                return mfl_fail_memory(err, sizeof(*hub), "a mesh");
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&hub->turned, &attributes);
        pthread_condattr_destroy(&attributes);
        pthread_mutex_init(&hub->lock, NULL);
        hub->n = n;
        hub->collective = mfl_calloc(n, sizeof(*hub->collective));
        hub->pair = mfl_calloc((size_t)n * n, sizeof(*hub->pair));
        if (hub->collective && hub->pair) {
                *ret_hub = hub;
                return 0;
        }
        hub_free(hub);
        return mfl_fail_memory(err, (size_t)n * n * sizeof(*hub->pair), "a mesh");
}

int mfl_mesh_threads_new(uint32_t n, struct mfl_mesh **ret_ranks, struct mfl_error *err)
{
        struct hub *hub = NULL;
        mfl_assert(n >= 1 && n <= MFL_MESH_RANKS_MAX);
        int r = hub_new(n, &hub, err);
        if (r)
                return r;
        atomic_store(&hub->n_open, n);
        for (uint32_t rank = 0; rank < n; rank++) {
                struct thread_mesh *mesh = mfl_calloc(1, sizeof(*mesh));
                uint64_t *n_pair = mfl_calloc((size_t)n * 2, sizeof(*n_pair));
                if (!mesh || !n_pair) {
                        free(mesh);
                        free(n_pair);
                        for (uint32_t k = 0; k < rank; k++)
                                thread_close(ret_ranks[k]);
                        if (atomic_fetch_sub(&hub->n_open, n - rank) == n - rank)
                                hub_free(hub);
                        return mfl_fail_memory(err, sizeof(*mesh), "a mesh");
                }
                *mesh = (struct thread_mesh){.base = {.ops = &thread_ops, .rank = rank, .n_ranks = n},
                        .hub = hub,
                        .n_pair = n_pair};
                ret_ranks[rank] = &mesh->base;
        }
        return 0;
}
