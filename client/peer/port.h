/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of this process wait for those who connect to them. Inside client/peer. */
#ifndef MFL_CLIENT_PEER_PORT_H
#define MFL_CLIENT_PEER_PORT_H

#include "client/peer/link.h"
#include "client/peer/peer.h"

/* A rank that meets its team. The port's lock guards the links. */
struct peer_meeting {
        uint64_t team;
        uint32_t epoch, rank, n_ranks;
        uint8_t key[MFL_TEAM_KEY_BYTES];
        struct peer_link *link[MFL_MESH_RANKS_MAX]; /* of those who have come; greeted */
        struct peer_meeting *next;
};

/* From here to the end of `leave`, the port accepts those ranks above the meeting's own. Certificates are read again; if
 * that fails, the last ones serve on. */
void mfl_peer_port_expect(struct mfl_peer_port *port, struct peer_meeting *meeting);
void mfl_peer_port_leave(struct mfl_peer_port *port, struct peer_meeting *meeting);
/* Waits until that rank has come, at most so long. NULL: it has not. The link is the caller's. */
struct peer_link *mfl_peer_port_take(
        struct mfl_peer_port *port, struct peer_meeting *meeting, uint32_t rank, uint32_t wait_ms);
/* A rank of this process comes to another one. Takes the socket, also after a failure. MFL_BUSY: that one is not here yet. */
int mfl_peer_port_bring(struct mfl_peer_port *port, const struct peer_meeting *own, uint32_t to, int fd,
        struct mfl_error *err);
/* For connections to others; NULL: plain. The reference is the caller's. MFL_INVALID: the certificates can't be read. */
int mfl_peer_port_client_tls(
        struct mfl_peer_port *port, struct mfl_tls_context **ret_context, struct mfl_error *err);

#endif
