/* SPDX-License-Identifier: Apache-2.0 */
/* Teams over several nodes: the port where daemons reach this one, and the mesh of their ranks over TCP (mfl.proto, PEERS).
 * It stands in client/, not in kernels/, because it needs the protocol's frames and TLS.
 *
 * The port has a thread of its own. It greets whoever connects, and hands a connection on when the other side has proved to
 * be a rank of a team that meets here; what anybody else sends is read up to one greeting, and ends with his connection.
 *
 * The mesh: every rank has a connection to every other; ranks of one process have a pair of sockets instead, without TLS. All
 * collectives are direct: in a reduce-scatter, rank r gets slice r from every other rank and adds it up in the ranks' order;
 * an all-reduce does that, and sends the result to all, piece by piece. So each vector travels once: (W - 1)/W of its bytes from
 * each rank, in one hop. Pieces are sent from the caller's buffer and received into its place in the other's, but for those
 * that are reduced.
 * Memory of a mesh: 4 MiB for pieces, and with TLS 64 KiB to 256 KiB for each other rank. Nothing is allocated in an operation
 * but the envelopes of its pieces.
 *
 * Threads: any for the port; the mesh as kernels/mesh/mesh.h says. */
#ifndef MFL_CLIENT_PEER_PEER_H
#define MFL_CLIENT_PEER_PEER_H

#include "kernels/mesh/mesh.h"
#include "proto/message.h"
#include "proto/tls/tls.h"

struct mfl_peer_port;

struct mfl_peer_port_options {
        const char *listen;       /* "HOST:PORT"; port 0: any free one */
        const char *address;      /* where others reach it; NULL or "": as it listens */
        struct mfl_tls_files tls; /* without ca: plain, and on loopback only. Read again for each meeting */
};

/* MFL_INVALID with the address: it can't be listened on, needs TLS, or is one that nobody can reach (0.0.0.0). Negative:
 * memory, file handles, threads. */
int mfl_peer_port_open(
        const struct mfl_peer_port_options *options, struct mfl_peer_port **ret_port, struct mfl_error *err);
/* "HOST:PORT", for others. */
const char *mfl_peer_port_address(const struct mfl_peer_port *port);
void mfl_peer_port_close(struct mfl_peer_port *port); /* when no mesh is left; NULL is fine */

struct mfl_mesh_tcp_options {
        struct mfl_peer_port *port;
        uint64_t team;
        uint32_t epoch;
        uint32_t rank, n_ranks;
        uint32_t local_first, n_local; /* ranks of this process, this one among them */
        const char *const *
                address; /* n_ranks: where each rank is reached; of higher ranks NULL or "" will do: nobody then learns
                             who else can be reached when one can't */
        uint8_t key[MFL_TEAM_KEY_BYTES]; /* the same at all ranks, and nowhere else */
        uint32_t deadline_ms;            /* for all ranks to appear */
        const atomic_bool *cancel;       /* NULL: nobody cancels */
        /* After MFL_MESH_BROKEN: as in struct mfl_mesh, like loss; NULL: not wanted. The own rank, and MFL_MESH_ISOLATED: of
         * two other daemons or more it could connect to none. */
        uint32_t *accused;
        enum mfl_mesh_loss *loss;
};

/* Blocks until all ranks of (team, epoch) are connected to one another, at most deadline_ms. A rank that can't be reached
 * within some seconds, or does not have the key, ends it sooner. MFL_MESH_BROKEN: not all ranks came, with the one that is
 * missing; or it was cancelled. Negative: memory, file handles.
 *
 * A rank whose process dies breaks the mesh as soon as another needs it; one that is stopped, or whose host is gone,
 * breaks it when the caller's deadline is over, or when the caller is told otherwise and aborts. */
int mfl_mesh_tcp_open(
        const struct mfl_mesh_tcp_options *options, struct mfl_mesh **ret_mesh, struct mfl_error *err);

/* Memory of a rank's mesh, at most: with TLS to each other rank. */
uint64_t mfl_mesh_tcp_bytes(uint32_t n_ranks);

#endif
