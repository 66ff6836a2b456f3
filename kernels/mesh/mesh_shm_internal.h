/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of kernels/mesh/mesh_shm.h: what a segment holds, and who has opened which. */
#ifndef MFL_KERNELS_MESH_MESH_SHM_INTERNAL_H
#define MFL_KERNELS_MESH_MESH_SHM_INTERNAL_H

#include "kernels/mesh/mesh_shm.h"

#define MFL_MESH_SHM_SLOTS 4u
#define MFL_MESH_SHM_REASON_BYTES 256
#define MFL_MESH_SHM_NAME_BYTES 128

/* What a slot holds. All ranks' stamps of a round must be equal. */
struct mfl_mesh_stamp {
        uint32_t kind, type, reduction, peer, step, sequence;
        uint64_t n, edge; /* a hash of the slices */
};

/* Only its own rank writes a segment. Counters only grow. */
struct mfl_mesh_segment {
        char magic[8];
        uint32_t rank, n_ranks, epoch, ring_bytes;
        uint64_t team;
        _Atomic uint32_t mapped;                 /* this rank has mapped all others */
        _Alignas(64) _Atomic uint32_t word;      /* a futex; grows with every change below */
        _Alignas(64) _Atomic uint32_t asleep;    /* 1 + the rank on whose word this one sleeps */
        _Alignas(64) _Atomic uint64_t published; /* rounds whose slot is filled */
        _Atomic uint64_t reduced;                /* ... whose result is in the slot */
        _Atomic uint64_t done; /* ... of which this rank needs nothing of the others any more */
        _Alignas(64) _Atomic uint32_t left, breaking, broken;
        char reason[MFL_MESH_SHM_REASON_BYTES]; /* if broken */
        uint32_t accused, loss;
        struct {
                _Atomic uint64_t published, done; /* rounds sent to that rank; taken from it */
        } pair[MFL_MESH_RANKS_MAX];
        struct mfl_mesh_stamp stamp[MFL_MESH_SHM_SLOTS], pair_stamp[MFL_MESH_SHM_SLOTS];
        /* from MFL_MESH_SHM_DATA on: the ring's slots, then a quarter of that for sends */
};

#define MFL_MESH_SHM_DATA 8192u

struct mfl_mesh_shm_peer {
        struct mfl_mesh_segment *segment; /* the own one can be written */
        int fd;                           /* of the own one: locked as long as the process lives */
};

struct mfl_mesh_shm {
        struct mfl_mesh base;
        struct mfl_mesh_shm_peer peer[MFL_MESH_RANKS_MAX];
        uint32_t slot_bytes, part_bytes; /* of a slot; of the part of it that is for one rank */
        uint64_t segment_bytes;
        /* What is under way. */
        struct mfl_mesh_op op;
        uint64_t edge[MFL_MESH_RANKS_MAX + 1];
        struct mfl_mesh_stamp stamp;
        bool running;
        uint64_t piece, rounds,
                base_round; /* elements of a slice in a round; rounds in all; first one of the operation */
        uint64_t n_published, n_reduced, n_done;
        uint64_t next_round;                                              /* of collectives */
        uint64_t n_sent[MFL_MESH_RANKS_MAX], n_taken[MFL_MESH_RANKS_MAX]; /* rounds with each rank */
        /* Who keeps this rank from going on; the word before that was found, and whether that rank had left then. */
        bool blocked, blocker_left;
        _Atomic uint32_t blocker; /* 1 + rank */
        _Atomic bool in_pair;     /* it sends or receives */
        uint32_t word;
};

extern const struct mfl_mesh_ops mfl_mesh_shm_ops;

static inline struct mfl_mesh_segment *mfl_mesh_shm_own(struct mfl_mesh_shm *mesh)
{
        return mesh->peer[mesh->base.rank].segment;
}

/* Says that the own segment has changed. */
void mfl_mesh_shm_tell(struct mfl_mesh_shm *mesh);
/* Whether a counter in the segment of a rank has come that far; else that rank is who this one waits for, unless it
 * waits for another already. */
bool mfl_mesh_shm_reached(
        struct mfl_mesh_shm *mesh, uint32_t rank, const _Atomic uint64_t *counter, uint64_t count);
/* Until the segment of that rank has changed, or some milliseconds. */
void mfl_mesh_shm_sleep(struct mfl_mesh_shm *mesh, uint64_t wait_ns);
/* From any thread; only the first reason counts. accused: as in struct mfl_mesh. */
void mfl_mesh_shm_break(struct mfl_mesh_shm *mesh, uint32_t accused, const char *reason);
/* MFL_MESH_BROKEN if any rank has broken it. */
int mfl_mesh_shm_is_broken(struct mfl_mesh_shm *mesh, struct mfl_error *err);
/* The rank for which all wait. */
uint32_t mfl_mesh_shm_last(struct mfl_mesh_shm *mesh);
/* Whether the process of a rank has ended. */
bool mfl_mesh_shm_is_dead(const struct mfl_mesh_shm *mesh, uint32_t rank);
/* Unmaps all; half-opened ones, too. */
void mfl_mesh_shm_free(struct mfl_mesh_shm *mesh);

#endif
