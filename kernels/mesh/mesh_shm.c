/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a shared-memory mesh.
 *
 * Every segment has a ring of slots, and an operation is a row of rounds, each with a piece of every slice. In a round a
 * rank
 *
 * 1. publishes: copies what others need of its input into its slot, one part for each of them;
 * 2. takes: reduces its part of all ranks' slots (an all-reduce puts the result into its own slot again), or copies it;
 * 3. of an all-reduce, gathers the others' results.
 * It does the three as far as the others allow, so several rounds are under way at once, and a slot is filled again when
 * all have done with it. Slots are small enough to stay in the caches: memory sees each vector once. Nobody waits for
 * the others at an operation's end, since nobody reads another's buffers.
 *
 * Who was stopped and wakes in an old epoch writes into a segment that nobody has mapped any more. */
#include "kernels/mesh/mesh_shm_internal.h"

#include <stdio.h>

#define SPIN_NS 30000u
#define SPIN_TURNS 200u /* between two looks at the clock */
#define PIECE_BYTES_MIN 32768u

static struct mfl_mesh_shm *of(struct mfl_mesh *base)
{
        return MFL_CONTAINER_OF(base, struct mfl_mesh_shm, base);
}

/* ---- what an operation is made of ---- */

static bool is_pair(const struct mfl_mesh_op *op)
{
        return op->kind == MFL_MESH_SEND || op->kind == MFL_MESH_RECV;
}

static uint64_t size_of(const struct mfl_mesh_shm *mesh)
{
        return mfl_mesh_type_bytes(mesh->op.type);
}

static char *slot_of(struct mfl_mesh_shm *mesh, uint32_t rank, uint64_t round)
{
        return (char *)mesh->peer[rank].segment + MFL_MESH_SHM_DATA +
               round % MFL_MESH_SHM_SLOTS * mesh->slot_bytes;
}

static char *pair_slot_of(struct mfl_mesh_shm *mesh, uint32_t rank, uint64_t round)
{
        return (char *)mesh->peer[rank].segment + MFL_MESH_SHM_DATA +
               (uint64_t)MFL_MESH_SHM_SLOTS * mesh->slot_bytes +
               round % MFL_MESH_SHM_SLOTS * (mesh->slot_bytes / 4);
}

/* The elements of a slice that a round carries: [*ret_first, + the result). */
static uint64_t piece_of(const struct mfl_mesh_shm *mesh, uint64_t round, uint32_t rank, uint64_t *ret_first)
{
        uint64_t first = 0, n = mesh->op.n, at = round * mesh->piece;
        if (mesh->op.kind != MFL_MESH_BROADCAST)
                mfl_mesh_op_slice(&mesh->op, mesh->base.n_ranks, rank, &first, &n);
        *ret_first = first + MFL_MIN(at, n);
        return MFL_MIN(mesh->piece, n - MFL_MIN(at, n));
}

static uint64_t edge_hash(const struct mfl_mesh_op *op, uint32_t n_ranks)
{
        uint64_t hash = 0xcbf29ce484222325u;
        for (uint32_t r = 0; op->edge && r <= n_ranks; r++)
                hash = (hash ^ op->edge[r]) * 0x100000001b3u;
        return hash;
}

static void set_pieces(struct mfl_mesh_shm *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = size_of(mesh), most = op->n, bytes_max = mesh->slot_bytes;
        if (is_pair(op)) {
                bytes_max /= 4;
        } else if (op->kind != MFL_MESH_BROADCAST) {
                most = 0;
                for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                        uint64_t first, n;
                        mfl_mesh_op_slice(op, mesh->base.n_ranks, r, &first, &n);
                        most = MFL_MAX(most, n);
                }
                if (op->kind != MFL_MESH_ALL_GATHER)
                        bytes_max = mesh->part_bytes;
        }
        /* Smaller than they could be, so that copying and reducing overlap for vectors of middle size, too. */
        uint64_t bytes = (most * size / MFL_MESH_SHM_SLOTS + 63) / 64 * 64;
        bytes = MFL_MIN(MFL_MAX(bytes, PIECE_BYTES_MIN), bytes_max);
        mesh->piece = bytes / size;
        mesh->rounds = MFL_MAX(1, (most + mesh->piece - 1) / mesh->piece);
}

static int shm_start(struct mfl_mesh *base, const struct mfl_mesh_op *op, struct mfl_error *err)
{
        struct mfl_mesh_shm *mesh = of(base);
        mfl_assert(!mesh->running);
        int r = mfl_mesh_shm_is_broken(mesh, err);
        if (r)
                return r;
        mesh->op = *op;
        if (op->edge) {
                memcpy(mesh->edge, op->edge, (base->n_ranks + 1) * sizeof(*op->edge));
                mesh->op.edge = mesh->edge;
        }
        if (op->kind == MFL_MESH_BARRIER)
                mesh->op.n = 0;
        mesh->stamp = (struct mfl_mesh_stamp){.kind = op->kind == MFL_MESH_RECV ? MFL_MESH_SEND : op->kind,
                .type = op->type,
                .reduction = op->reduction,
                .peer = is_pair(op) ? 0 : op->peer,
                .step = op->step,
                .sequence = op->sequence,
                .n = mesh->op.n,
                .edge = edge_hash(op, base->n_ranks)};
        set_pieces(mesh);
        atomic_store(&mesh->in_pair, is_pair(op));
        mesh->n_published = mesh->n_reduced = mesh->n_done = 0;
        mesh->base_round = op->kind == MFL_MESH_SEND   ? mesh->n_sent[op->peer]
                           : op->kind == MFL_MESH_RECV ? mesh->n_taken[op->peer]
                                                       : mesh->next_round;
        mesh->running = true;
        return 0;
}

static int check_stamp(struct mfl_mesh_shm *mesh, uint32_t rank, const struct mfl_mesh_stamp *stamps,
        uint64_t round, struct mfl_error *err)
{
        const struct mfl_mesh_stamp *theirs = &stamps[round % MFL_MESH_SHM_SLOTS], *own = &mesh->stamp;
        char reason[160];
        if (!memcmp(theirs, own, sizeof(*own)))
                return 0;
        snprintf(reason, sizeof(reason),
                "rank %u is at step %u, operation %u, and rank %u at step %u, operation %u", mesh->base.rank,
                own->step, own->sequence, rank, theirs->step, theirs->sequence);
        mfl_mesh_shm_break(mesh, 0, reason);
        return mfl_mesh_shm_is_broken(mesh, err);
}

/* ---- rounds of collectives ---- */

/* Whether the slot of the next round is free: all have done with what it held. */
static bool can_publish(struct mfl_mesh_shm *mesh)
{
        uint64_t round = mesh->base_round + mesh->n_published;
        if (mesh->n_published == mesh->rounds || mesh->n_published - mesh->n_done >= MFL_MESH_SHM_SLOTS)
                return false;
        for (uint32_t r = 0; round >= MFL_MESH_SHM_SLOTS && r < mesh->base.n_ranks; r++)
                if (!mfl_mesh_shm_reached(
                            mesh, r, &mesh->peer[r].segment->done, round + 1 - MFL_MESH_SHM_SLOTS))
                        return false;
        return true;
}

static void put(struct mfl_mesh_shm *mesh, char *to, uint64_t first, uint64_t n)
{
        uint64_t size = size_of(mesh);
        if (n)
                memcpy(to, (const char *)mesh->op.in + first * size, n * size);
        mesh->base.sent_bytes += n * size;
}

static void publish(struct mfl_mesh_shm *mesh)
{
        struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh);
        uint64_t round = mesh->base_round + mesh->n_published, first, slice, n;
        uint32_t rank = mesh->base.rank, ranks = mesh->base.n_ranks;
        char *slot = slot_of(mesh, rank, round);
        own->stamp[round % MFL_MESH_SHM_SLOTS] = mesh->stamp;
        n = piece_of(mesh, mesh->n_published, rank, &first);
        switch (mesh->op.kind) {
        case MFL_MESH_ALL_REDUCE:
        case MFL_MESH_REDUCE_SCATTER:
        case MFL_MESH_ALL_TO_ALL:
                for (uint32_t r = 0; r < ranks; r++) {
                        n = piece_of(mesh, mesh->n_published, r, &first);
                        if (r != rank)
                                put(mesh, slot + (uint64_t)r * mesh->part_bytes, first, n);
                }
                break;
        case MFL_MESH_ALL_GATHER:
                mfl_mesh_op_slice(&mesh->op, ranks, rank, &slice, &(uint64_t){0});
                if (ranks > 1)
                        put(mesh, slot, first - slice, n);
                break;
        case MFL_MESH_BROADCAST:
                if (rank == mesh->op.peer)
                        put(mesh, slot, first, n);
                break;
        default:
                break;
        }
        mesh->n_published++;
        atomic_store_explicit(&own->published, round + 1, memory_order_release);
}

/* In any order: to the own part, where it lies. */
static void reduce_own(struct mfl_mesh_shm *mesh, uint64_t round, const char *own, char *out, uint64_t n)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t size = size_of(mesh);
        uint32_t rank = mesh->base.rank;
        if (own != out)
                memcpy(out, own, n * size);
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                if (r != rank)
                        mfl_mesh_reduce(op->type, op->reduction, out,
                                slot_of(mesh, r, round) + (uint64_t)rank * mesh->part_bytes, n);
}

/* The ranks' parts reduced, in the order of the ranks where that counts, to the output and, for an all-reduce, to the own slot. */
static void reduce(struct mfl_mesh_shm *mesh, uint64_t round, uint64_t first, uint64_t n)
{
        const struct mfl_mesh_op *op = &mesh->op;
        const void *part[MFL_MESH_RANKS_MAX];
        uint64_t size = size_of(mesh), own_first = 0,
                 out_size = op->reduction == MFL_MESH_SUM_ROUNDED ? sizeof(int64_t) : size;
        uint32_t rank = mesh->base.rank, ranks = mesh->base.n_ranks;
        bool all = op->kind == MFL_MESH_ALL_REDUCE;
        if (!all)
                mfl_mesh_op_slice(op, ranks, rank, &own_first, &(uint64_t){0});
        char *out = (char *)op->out + (first - own_first) * out_size;
        const char *own = (const char *)op->in + first * size;
        for (uint32_t r = 0; r < ranks; r++)
                part[r] = r == rank ? own : slot_of(mesh, r, round) + (uint64_t)rank * mesh->part_bytes;
        if (n && mfl_mesh_any_order(op->type, op->reduction))
                reduce_own(mesh, round, own, out, n);
        else
                mfl_mesh_reduce_parts(op, part, ranks, first, n, out);
        if (n && all && ranks > 1)
                memcpy(slot_of(mesh, rank, round) + (uint64_t)rank * mesh->part_bytes, out, n * size);
        mesh->base.received_bytes += n * size * (ranks - 1);
        if (all)
                mesh->base.sent_bytes += n * size;
}

/* To `first` of the output, from a part of another's slot; its own part from its input. */
static void copy(struct mfl_mesh_shm *mesh, uint64_t first, uint64_t n, const char *from, bool counts)
{
        uint64_t size = size_of(mesh);
        char *to = (char *)mesh->op.out + first * size;
        if (n && to != from)
                memcpy(to, from, n * size);
        if (counts)
                mesh->base.received_bytes += n * size;
}

static void take(struct mfl_mesh_shm *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t at = mesh->n_reduced, round = mesh->base_round + at, size = size_of(mesh), first, slice, n;
        uint32_t rank = mesh->base.rank;
        n = piece_of(mesh, at, rank, &first);
        switch (op->kind) {
        case MFL_MESH_ALL_REDUCE:
        case MFL_MESH_REDUCE_SCATTER:
                reduce(mesh, round, first, n);
                return;
        case MFL_MESH_BROADCAST:
                if (rank != op->peer)
                        copy(mesh, first, n, slot_of(mesh, op->peer, round), true);
                return;
        case MFL_MESH_ALL_GATHER:
                mfl_mesh_op_slice(op, mesh->base.n_ranks, rank, &slice, &(uint64_t){0});
                for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                        n = piece_of(mesh, at, r, &first);
                        copy(mesh, first, n,
                                r == rank ? (const char *)op->in + (first - slice) * size
                                          : slot_of(mesh, r, round),
                                r != rank);
                }
                return;
        case MFL_MESH_ALL_TO_ALL:
                for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                        n = piece_of(mesh, at, r, &first);
                        copy(mesh, first, n,
                                r == rank ? (const char *)op->in + first * size
                                          : slot_of(mesh, r, round) + (uint64_t)rank * mesh->part_bytes,
                                r != rank);
                }
                return;
        default:
                return;
        }
}

static void gather(struct mfl_mesh_shm *mesh)
{
        uint64_t round = mesh->base_round + mesh->n_done, first;
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                uint64_t n = piece_of(mesh, mesh->n_done, r, &first);
                if (r != mesh->base.rank)
                        copy(mesh, first, n, slot_of(mesh, r, round) + (uint64_t)r * mesh->part_bytes, true);
        }
}

static void count_done(struct mfl_mesh_shm *mesh)
{
        mesh->n_done++;
        atomic_store_explicit(
                &mfl_mesh_shm_own(mesh)->done, mesh->base_round + mesh->n_done, memory_order_release);
}

/* One thing that can be done at once, the oldest round's first. */
static int collective_turn(struct mfl_mesh_shm *mesh, bool *ret_moved, struct mfl_error *err)
{
        bool gathers = mesh->op.kind == MFL_MESH_ALL_REDUCE, ready;
        uint32_t ranks = mesh->base.n_ranks;
        uint64_t round = mesh->base_round + mesh->n_done;
        *ret_moved = true;
        ready = gathers && mesh->n_done < mesh->n_reduced;
        for (uint32_t r = 0; ready && r < ranks; r++)
                ready = mfl_mesh_shm_reached(mesh, r, &mesh->peer[r].segment->reduced, round + 1);
        if (ready) {
                gather(mesh);
                count_done(mesh);
                return 0;
        }
        round = mesh->base_round + mesh->n_reduced;
        ready = mesh->n_reduced < mesh->n_published;
        for (uint32_t r = 0; ready && r < ranks; r++)
                ready = mfl_mesh_shm_reached(mesh, r, &mesh->peer[r].segment->published, round + 1);
        if (ready) {
                for (uint32_t r = 0; r < ranks; r++) {
                        int rc = check_stamp(mesh, r, mesh->peer[r].segment->stamp, round, err);
                        if (rc)
                                return rc;
                }
                take(mesh);
                mesh->n_reduced++;
                atomic_store_explicit(&mfl_mesh_shm_own(mesh)->reduced, round + 1, memory_order_release);
                if (!gathers)
                        count_done(mesh);
                return 0;
        }
        if (can_publish(mesh)) {
                publish(mesh);
                return 0;
        }
        *ret_moved = false;
        return 0;
}

/* ---- sends ---- */

static int send_turn(struct mfl_mesh_shm *mesh, bool *ret_moved)
{
        uint32_t rank = mesh->base.rank, peer = mesh->op.peer;
        struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh);
        const _Atomic uint64_t *taken = &mesh->peer[peer].segment->pair[rank].done;
        uint64_t round = mesh->base_round + mesh->n_published, left = mesh->rounds - mesh->n_published;
        *ret_moved = false;
        if (!left) { /* the ring serves another next: the send ends when all of it was taken */
                if (mfl_mesh_shm_reached(mesh, peer, taken, round)) {
                        mesh->n_done = mesh->rounds;
                        *ret_moved = true;
                }
                return 0;
        }
        if (mesh->n_published >= MFL_MESH_SHM_SLOTS &&
                !mfl_mesh_shm_reached(mesh, peer, taken, round + 1 - MFL_MESH_SHM_SLOTS))
                return 0;
        uint64_t first = mesh->n_published * mesh->piece;
        own->pair_stamp[round % MFL_MESH_SHM_SLOTS] = mesh->stamp;
        put(mesh, pair_slot_of(mesh, rank, round), first, MFL_MIN(mesh->piece, mesh->op.n - first));
        mesh->n_published++;
        atomic_store_explicit(&own->pair[peer].published, round + 1, memory_order_release);
        *ret_moved = true;
        return 0;
}

static int receive_turn(struct mfl_mesh_shm *mesh, bool *ret_moved, struct mfl_error *err)
{
        uint32_t rank = mesh->base.rank, peer = mesh->op.peer;
        struct mfl_mesh_segment *theirs = mesh->peer[peer].segment;
        uint64_t round = mesh->base_round + mesh->n_done, first = mesh->n_done * mesh->piece;
        *ret_moved = mfl_mesh_shm_reached(mesh, peer, &theirs->pair[rank].published, round + 1);
        if (!*ret_moved)
                return 0;
        int r = check_stamp(mesh, peer, theirs->pair_stamp, round, err);
        if (r)
                return r;
        copy(mesh, first, MFL_MIN(mesh->piece, mesh->op.n - first), pair_slot_of(mesh, peer, round), true);
        mesh->n_done++;
        atomic_store_explicit(&mfl_mesh_shm_own(mesh)->pair[peer].done, round + 1, memory_order_release);
        return 0;
}

/* ---- the table ---- */

static void finish(struct mfl_mesh_shm *mesh)
{
        mesh->running = false;
        uint64_t *next = mesh->op.kind == MFL_MESH_SEND   ? &mesh->n_sent[mesh->op.peer]
                         : mesh->op.kind == MFL_MESH_RECV ? &mesh->n_taken[mesh->op.peer]
                                                          : &mesh->next_round;
        *next = mesh->base_round + mesh->rounds;
}

/* All that can be done now. */
static int attempt(struct mfl_mesh_shm *mesh, struct mfl_error *err)
{
        while (mesh->n_done < mesh->rounds) {
                bool moved = false;
                int r;
                mesh->blocked = false;
                if (mesh->op.kind == MFL_MESH_SEND)
                        r = send_turn(mesh, &moved);
                else if (mesh->op.kind == MFL_MESH_RECV)
                        r = receive_turn(mesh, &moved, err);
                else
                        r = collective_turn(mesh, &moved, err);
                if (r)
                        return r;
                if (!moved)
                        return MFL_MESH_PENDING;
                mfl_mesh_shm_tell(mesh);
        }
        atomic_store(&mesh->blocker, 0);
        finish(mesh);
        return 0;
}

/* After an attempt that could not go on. `dead`: as found before that attempt. */
static int look_around(struct mfl_mesh_shm *mesh, uint32_t dead, struct mfl_error *err)
{
        uint32_t blocker = atomic_load(&mesh->blocker);
        char reason[64];
        if (mesh->blocked && (mesh->blocker_left || dead == blocker)) {
                snprintf(reason, sizeof(reason), "rank %u %s", blocker - 1,
                        mesh->blocker_left ? "has left" : "has died");
                if (!mfl_mesh_shm_is_broken(mesh, NULL))
                        mfl_mesh_shm_break(mesh, blocker, reason);
        }
        return mfl_mesh_shm_is_broken(mesh, err);
}

/* Attempts for as long as the other side usually needs. */
static int poll(struct mfl_mesh_shm *mesh, uint32_t dead, uint64_t wait_ns, struct mfl_error *err)
{
        uint64_t end_ns = mfl_now_ns() + MFL_MIN(wait_ns, SPIN_NS);
        for (;;) {
                int r = attempt(mesh, err);
                if (r != MFL_MESH_PENDING)
                        return r;
                const _Atomic uint32_t *word = &mesh->peer[atomic_load(&mesh->blocker) - 1].segment->word;
                for (uint32_t i = 0; i < SPIN_TURNS && atomic_load(word) == mesh->word; i++)
                        ;
                if (atomic_load(word) != mesh->word)
                        continue;
                r = look_around(mesh, dead, err);
                if (r) /* who broke it may have ended this operation before, so that it has ended here, too */
                        return attempt(mesh, NULL) ? r : 0;
                if (mfl_now_ns() >= end_ns)
                        return MFL_MESH_PENDING;
        }
}

static int shm_progress(struct mfl_mesh *base, uint64_t wait_ns, struct mfl_error *err)
{
        struct mfl_mesh_shm *mesh = of(base);
        uint64_t end_ns = mfl_now_ns() + wait_ns;
        uint32_t dead = 0;
        mfl_assert(mesh->running);
        for (;;) {
                int r = poll(mesh, dead, wait_ns, err);
                if (r != MFL_MESH_PENDING) {
                        mesh->running = false;
                        return r;
                }
                uint64_t now_ns = mfl_now_ns();
                if (now_ns >= end_ns)
                        return MFL_MESH_PENDING;
                uint32_t blocker = atomic_load(&mesh->blocker);
                mfl_mesh_shm_sleep(mesh, end_ns - now_ns);
                if (atomic_load(&mesh->peer[blocker - 1].segment->word) == mesh->word)
                        dead = mfl_mesh_shm_is_dead(mesh, blocker - 1) ? blocker : 0;
        }
}

static void shm_abort(struct mfl_mesh *base, const char *reason)
{
        struct mfl_mesh_shm *mesh = of(base);
        uint32_t blocker = base->late ? atomic_load(&mesh->blocker) : 0, accused = 0;
        char text[MFL_MESH_SHM_REASON_BYTES];
        if (blocker) {
                accused = 1 + (atomic_load(&mesh->in_pair) ? blocker - 1 : mfl_mesh_shm_last(mesh));
                snprintf(text, sizeof(text), "%s; rank %u has not come", reason, accused - 1);
        } else
                mfl_strcpy(text, sizeof(text), reason);
        mfl_mesh_shm_break(mesh, accused, text);
}

static void shm_close(struct mfl_mesh *base)
{
        struct mfl_mesh_shm *mesh = of(base);
        if (mesh->running) {
                char reason[64];
                snprintf(reason, sizeof(reason), "rank %u has left", base->rank);
                mfl_mesh_shm_break(mesh, base->rank + 1, reason);
        }
        atomic_store(&mfl_mesh_shm_own(mesh)->left, 1);
        mfl_mesh_shm_tell(mesh);
        mfl_mesh_shm_free(mesh);
}

/* A round that this rank has not joined keeps its slot. */
static int shm_look(
        struct mfl_mesh *base, const struct mfl_mesh_op *op, bool *ret_begun, struct mfl_error *err)
{
        struct mfl_mesh_shm *mesh = of(base);
        uint64_t round = mesh->next_round;
        mfl_assert(!mesh->running);
        for (uint32_t r = 0; r < base->n_ranks; r++) {
                const struct mfl_mesh_segment *theirs = mesh->peer[r].segment;
                const struct mfl_mesh_stamp *stamp = &theirs->stamp[round % MFL_MESH_SHM_SLOTS];
                bool left = atomic_load(&theirs->left);
                char reason[64];
                if (r == base->rank)
                        continue;
                if (atomic_load_explicit(&theirs->published, memory_order_acquire) > round)
                        *ret_begun =
                                *ret_begun || (stamp->kind == (uint32_t)op->kind && stamp->step == op->step &&
                                                      stamp->sequence == op->sequence);
                if ((!left && !mfl_mesh_shm_is_dead(mesh, r)) || mfl_mesh_shm_is_broken(mesh, NULL))
                        continue;
                snprintf(reason, sizeof(reason), "rank %u has %s", r, left ? "left" : "died");
                mfl_mesh_shm_break(mesh, r + 1, reason);
        }
        return mfl_mesh_shm_is_broken(mesh, err);
}

const struct mfl_mesh_ops mfl_mesh_shm_ops = {
        .name = "shm",
        .start = shm_start,
        .progress = shm_progress,
        .abort = shm_abort,
        .close = shm_close,
        .look = shm_look,
};
