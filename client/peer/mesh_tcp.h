/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by mesh_tcp.c (operations) and mesh_tcp_open.c (meeting): the mesh of ranks over connections. */
#ifndef MFL_CLIENT_PEER_MESH_TCP_H
#define MFL_CLIENT_PEER_MESH_TCP_H

#include <pthread.h>

#include "client/peer/link.h"
#include "kernels/mesh/mesh.h"

#define MESH_TCP_PIECE_BYTES ((uint64_t)512 << 10) /* at most; the wire allows twice that */
#define MESH_TCP_PIECE_BYTES_MIN ((uint64_t)64 << 10)
#define MESH_TCP_SLOTS_BYTES ((uint64_t)4 << 20)

/* Pieces that one side owes the other in an operation: in = what the sender had, and for an all-reduce its results. */
enum { FLOW_IN, FLOW_RESULT, FLOWS_ };

struct mesh_tcp_peer {
        struct peer_link *link; /* NULL: this is the own rank, or the connection is over */
        bool parted;            /* it has said that it is done */
        char reason[256];       /* why the connection is over */
        uint64_t sent[FLOWS_], to_send[FLOWS_], got[FLOWS_], to_get[FLOWS_];
        uint8_t *slot; /* for a piece that will be reduced */
        bool full;     /* it is in the slot */
        bool slotted;  /* the frame at hand goes there */
};

struct mesh_tcp {
        struct mfl_mesh base;
        pthread_mutex_t lock; /* for all below, against `abort` */
        int wake;             /* an eventfd: somebody has aborted it */
        bool running, broken;
        char reason[512];
        uint8_t *slots;
        struct mesh_tcp_peer peer[MFL_MESH_RANKS_MAX];
        struct mfl_mesh_op op;
        uint64_t edge[MFL_MESH_RANKS_MAX + 1], edge_hash;
        uint64_t piece;   /* elements */
        uint64_t n_own;   /* pieces of the own slice that are to be reduced */
        uint64_t reduced; /* of them so far */
        uint64_t piece_bytes;
};

extern const struct mfl_mesh_ops mfl_mesh_tcp_ops;
/* Breaks it for all, from any thread. accused: as in struct mfl_mesh. */
void mfl_mesh_tcp_break(struct mesh_tcp *mesh, uint32_t accused, const char *reason);

#endif
