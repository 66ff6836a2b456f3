/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to another server of the cluster, for files by their SHA-256 (mfl.proto, PutFile and GetFile). One thread; every call
 * blocks, within the time limits below. A connection is made when it is needed, and again after any failure.
 *
 * Errors, positive, with a text: MFL_BUSY: the other server can't be reached, has not answered in time, or refuses; MFL_NOT_FOUND: it has
 * no such file; MFL_INVALID: what it has sent is not what was asked for. MFL_BUSY, too, when a file whose size no row says does not fit. */
#ifndef MFL_SERVER_CLUSTER_PEER_H
#define MFL_SERVER_CLUSTER_PEER_H

#include "proto/tls/tls.h"

#define MFL_PEER_CONNECT_MS 2000u
#define MFL_PEER_ANSWER_MS 10000u

struct mfl_peer;
struct mfl_peer_options {
        const char *own;          /* this server's name */
        const char *name;         /* the other one's */
        const char *address;      /* HOST:PORT */
        struct mfl_tls_files tls; /* ca "": plain TCP; read for each connection */
};
/* The options' texts are borrowed. */
int mfl_peer_new(const struct mfl_peer_options *options, struct mfl_peer **ret_peer, struct mfl_error *err);
void mfl_peer_free(struct mfl_peer *peer); /* NULL is fine */

/* Sends what the other server lacks of the file at path; 0: it has all of it on its disk. on_piece: the other server has taken one;
 * it may put another file to the same peer. */
int mfl_peer_put(struct mfl_peer *peer, const char *path, const uint8_t sha256[32], uint64_t bytes,
        void (*on_piece)(void *user), void *user, struct mfl_error *err);
/* Writes the file to path, bytes of it (0: the row does not say how many) and no more, durably, checked: nothing is left of one that is wrong. beat: as mfl_blobs. */
int mfl_peer_get(struct mfl_peer *peer, const uint8_t sha256[32], uint64_t bytes, const char *path,
        bool (*beat)(void *user), void *user, struct mfl_error *err);

#endif
