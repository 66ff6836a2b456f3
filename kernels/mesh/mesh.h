/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh: the workers of a team, and the collectives by which they train one client together. One table; a mesh is the
 * threads of a process, the processes of a node, or nodes, and who uses it does not know which.
 *
 * All ranks of a mesh start the same operations in the same order. An operation carries where in the training it stands
 * (step, sequence): a rank that starts another one than its peers, or one of another epoch, breaks the mesh instead of
 * adding what does not belong together.
 *
 * Reductions of integers and maxima have one result in any order. Sums of floats are taken in the order of the ranks,
 * from rank 0 on; their bits depend on the number of ranks.
 *
 * Threads: a rank belongs to one thread at a time; `abort` may be called from any. Nothing blocks for longer than the
 * caller says. Errors: MFL_MESH_BROKEN, with the reason, when another rank is gone, late, aborted, or does something
 * else; from then on every call of every rank fails so, and the mesh can only be closed. Buffers belong to the caller,
 * and may not be touched until the operation has ended. */
#ifndef MFL_KERNELS_MESH_MESH_H
#define MFL_KERNELS_MESH_MESH_H

#include <stdatomic.h>

#include "common/base/base.h"

enum {
        MFL_MESH_BROKEN = 18,  /* close it */
        MFL_MESH_PENDING = 19, /* of progress: not ended yet */
};

#define MFL_MESH_RANKS_MAX 64u
#define MFL_MESH_SEQUENCE_LOST                                                                               \
        UINT32_MAX /* of the barrier at which ranks whose mesh between devices broke find who is lost */

enum mfl_mesh_kind {
        MFL_MESH_BARRIER,
        MFL_MESH_ALL_REDUCE,     /* out[0 .. n) = the ranks' in[0 .. n) reduced; out may be in */
        MFL_MESH_REDUCE_SCATTER, /* out[0 .. own) = the rank's slice of that; out may be in + the slice's first */
        MFL_MESH_ALL_GATHER, /* out[0 .. n) = the ranks' slices; in is the rank's own, and may lie in its place in out */
        MFL_MESH_BROADCAST, /* out[0 .. n) of every other rank = in[0 .. n) of `peer` */
        MFL_MESH_ALL_TO_ALL, /* slice r of out = the own slice of rank r's in; all slices of one size, out is not in */
        MFL_MESH_SEND, /* in[0 .. n) goes to `peer`, which receives it */
        MFL_MESH_RECV,
        MFL_MESH_KIND_COUNT_
};

/* What has happened to a rank that broke a mesh. */
enum mfl_mesh_loss {
        MFL_MESH_GONE,      /* its process has ended, or its connection */
        MFL_MESH_LATE,      /* the others have waited for it */
        MFL_MESH_UNREACHED, /* no connection to it could be made */
        MFL_MESH_ISOLATED,  /* it could connect to nobody */
        MFL_MESH_LOSS_COUNT_
};

enum mfl_mesh_type { MFL_MESH_I64, MFL_MESH_F32, MFL_MESH_BF16, MFL_MESH_U8, MFL_MESH_TYPE_COUNT_ };

enum mfl_mesh_reduction {
        MFL_MESH_SUM, /* integers wrap */
        MFL_MESH_MAX, /* of floats: a NaN counts as infinity */
        /* Of floats, in a reduce-scatter: the sum of the integers that they are rounded to, where they arrive. out is int64_t, and
         * apart from in. Integers have twice the bytes. */
        MFL_MESH_SUM_ROUNDED,
};

/* out[0 .. n) = or, unless `first`, += the integers of in[0 .. n), which are elements [at, at + n) of the vector. On the thread
 * that is in `start` or `progress`. The operation's end ends its use. */
struct mfl_mesh_rounding {
        void (*add)(void *user, uint64_t at, uint64_t n, const float *in, bool first, int64_t *out);
        void *user;
};

struct mfl_mesh_op {
        enum mfl_mesh_kind kind;
        enum mfl_mesh_type type;
        enum mfl_mesh_reduction reduction;
        uint32_t peer;           /* broadcast, send, recv */
        uint32_t step, sequence; /* the same at all ranks, but for send and recv: at both ends */
        const void *in;
        void *out;
        uint64_t n;                               /* elements of the whole vector */
        const struct mfl_mesh_rounding *rounding; /* sum of rounded ones; each rank has its own */
        const uint64_t *
                edge; /* reduce-scatter, all-gather: slice r is [edge[r], edge[r + 1]); n_ranks + 1 numbers, the
                                 same at all ranks. NULL: mfl_mesh_slice of n in units of 1 */
};

struct mfl_mesh;

struct mfl_mesh_ops {
        const char *name; /* "thread", "shm", "tcp", "nccl" */
        /* Starts an operation; at most one at a time. The op itself may go away when this returns. */
        int (*start)(struct mfl_mesh *mesh, const struct mfl_mesh_op *op, struct mfl_error *err);
        /* Does what can be done of it, waiting for others at most that long. 0: it has ended. */
        int (*progress)(struct mfl_mesh *mesh, uint64_t wait_ns, struct mfl_error *err);
        /* Breaks the mesh for all ranks that can be reached, with a reason. */
        void (*abort)(struct mfl_mesh *mesh, const char *reason);
        void (*close)(struct mfl_mesh *mesh); /* aborts what still runs */
        /* While the rank has nothing under way: MFL_MESH_BROKEN if another rank has broken the mesh, or is gone. *ret_begun: another rank
         * has begun that collective, which would be the next one. NULL: the mesh can't say ("tcp", "nccl"). */
        int (*look)(
                struct mfl_mesh *mesh, const struct mfl_mesh_op *op, bool *ret_begun, struct mfl_error *err);
};

struct mfl_mesh {
        const struct mfl_mesh_ops *ops;
        uint32_t rank, n_ranks;
        uint64_t team;  /* a number that no other team of the ranks' processes has */
        uint32_t epoch; /* of the team: grows when members are lost or come */
        bool late;      /* it is aborted because others did not come in time */
        bool unreached; /* of a mesh between devices: it broke by itself, with all its ranks there */
        struct mfl_mesh *
                beside; /* of a mesh between devices: the ranks' other one, over which they hear what devices don't tell; idle while
                                    this one runs. NULL: none */
        uint32_t lag_ms;         /* so long after it has broken `progress` may take to return */
        uint32_t accused;        /* after MFL_MESH_BROKEN: 1 + the rank that is lost; 0: not known */
        enum mfl_mesh_loss loss; /* of the accused */
        /* For figures: what went from this rank to others, what it took from them, and the time in mfl_mesh_run. */
        uint64_t sent_bytes, received_bytes, run_ns;
};

uint64_t mfl_mesh_type_bytes(enum mfl_mesh_type type);
/* Slice `rank` of n elements cut into n_ranks parts of whole units, as equal as possible: its first element; rank =
 * n_ranks gives n. Slices are the same for all who ask. */
uint64_t mfl_mesh_slice(uint64_t n, uint64_t unit, uint32_t n_ranks, uint32_t rank);
/* The slice of a rank in an operation. */
void mfl_mesh_op_slice(
        const struct mfl_mesh_op *op, uint32_t n_ranks, uint32_t rank, uint64_t *ret_first, uint64_t *ret_n);
/* to[i] = the reduction of to[i] and from[i]. */
void mfl_mesh_reduce(
        enum mfl_mesh_type type, enum mfl_mesh_reduction reduction, void *to, const void *from, uint64_t n);

/* Elements [at, at + n) of an operation's vector, of which part[r] is rank r's, reduced in the ranks' order to out, which may be
 * one of the parts, if it is not of rounded sums. */
void mfl_mesh_reduce_parts(const struct mfl_mesh_op *op, const void *const *part, uint32_t n_ranks,
        uint64_t at, uint64_t n, void *out);
/* Whether the reduction has the same bits in any order: all but sums of floats. */
bool mfl_mesh_any_order(enum mfl_mesh_type type, enum mfl_mesh_reduction reduction);

/* Runs one operation to its end. MFL_MESH_BROKEN also when it has not ended after deadline_ms, or *cancel is set (NULL:
 * nobody cancels); the mesh is aborted then. */
int mfl_mesh_run(struct mfl_mesh *mesh, const struct mfl_mesh_op *op, uint32_t deadline_ms,
        const atomic_bool *cancel, struct mfl_error *err);
void mfl_mesh_close(struct mfl_mesh *mesh); /* NULL is fine */

/* A mesh of n threads of this process; ret_ranks[n]. Each rank is closed by itself; the last one frees what they share. */
int mfl_mesh_threads_new(uint32_t n, struct mfl_mesh **ret_ranks, struct mfl_error *err);

#endif
