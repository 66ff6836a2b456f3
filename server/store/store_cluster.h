/* SPDX-License-Identifier: Apache-2.0 */
/* What a store needs of the cluster that its installation runs on, and what the cluster needs of a state directory.
 *
 * THE LEADER'S STORE (mfl_store_open_in) works as always, on its own SQLite database, and in addition:
 *   - a file that rows are going to name is given to `blob` when it is durable here, before the row's transaction;
 *   - what a transaction changed (SQLite's session extension, https://www.sqlite.org/sessionintro.html) is given to `commit`, as
 *     the last thing before the local COMMIT. The entries of the log are numbered from 1, and the database knows the last one that
 *     is in it (meta, "cluster_seq", within the same transaction).
 * So the log has every change before this database has it, the database is always a prefix of the log, and a crash between the
 * two is mended by applying the entry, as every follower does.
 *
 * A FOLLOWER'S DIRECTORY (struct mfl_replica) is brought up to date entry by entry, and file by file. It is locked as by a server.
 *
 * Without a cluster none of this runs: one comparison with NULL per transaction.
 *
 * Threads as in store.h; a replica belongs to one thread. */
#ifndef MFL_SERVER_STORE_STORE_CLUSTER_H
#define MFL_SERVER_STORE_STORE_CLUSTER_H

#include "server/store/store.h"

/* What an entry changes. */
struct mfl_store_change {
        uint64_t seq;
        uint32_t schema;
        const void *bytes; /* a changeset */
        size_t n;
        const char *whole; /* or, if not NULL, this file is the whole database as it is after the entry */
        uint64_t whole_bytes;
        uint8_t whole_sha256[32];
};
#define MFL_STORE_CHANGE_MAX ((size_t)512 << 10) /* bytes; larger ones are sent as the whole database */
#define MFL_STORE_WHOLE_EVERY 512u               /* so the log never has more entries than that */

/* Both may block, and return 0, or MFL_STORE_FULL or MFL_STORE_AGAIN with a text: then nothing is committed, as far as this store
 * is concerned, and the caller may try again. If the entry was written after all, or another server leads, the cluster closes the
 * server. */
struct mfl_store_cluster {
        int (*blob)(void *user, const char *path, const uint8_t sha256[32], uint64_t bytes,
                struct mfl_error *err);
        int (*commit)(void *user, const struct mfl_store_change *change, struct mfl_error *err);
        void *user;
};
/* As mfl_store_open; cluster NULL is mfl_store_open. It outlives the store. MFL_EXISTS: the directory belongs to a cluster, and
 * cluster is NULL, or the other way round. */
int mfl_store_open_in(const char *state_dir, const struct mfl_store_cluster *cluster,
        struct mfl_store **ret_store, struct mfl_error *err);

/* ---- a follower's directory ---- */
struct mfl_replica;
/* Makes the directory, takes its lock, and opens the database as it is, without checks or migration. MFL_EXISTS: it is that of a
 * server of its own, with jobs. Other errors as mfl_store_open. */
int mfl_replica_open(const char *state_dir, struct mfl_replica **ret_replica, struct mfl_error *err);
void mfl_replica_close(struct mfl_replica *replica);         /* NULL is fine */
uint64_t mfl_replica_seq(const struct mfl_replica *replica); /* of the last entry applied; 0: none */
/* Applies the entry after the last one, or one that is a whole database (the file is moved), durably. MFL_STORE_NEWER: its schema is
 * a later release's. MFL_STORE_DAMAGED: this database is not what the entry was made for. */
int mfl_replica_apply(
        struct mfl_replica *replica, const struct mfl_store_change *change, struct mfl_error *err);

/* A file that rows name: PATH, with that SHA-256. bytes 0: the size is not known. */
typedef int mfl_replica_on_file(
        void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err);
/* Calls it for every file that should be there, and makes the jobs' directories. Stops at a result other than 0. */
int mfl_replica_files(
        struct mfl_replica *replica, mfl_replica_on_file *on_file, void *user, struct mfl_error *err);
/* Removes files of checkpoints that no row names any longer, and directories of deleted jobs. */
void mfl_replica_prune(struct mfl_replica *replica);

/* --join-cluster: what a directory without a cluster becomes: it gets the number 1, as if an entry with the whole database had been
 * applied, and change describes that entry; its file is PATH. MFL_EXISTS: it is in a cluster. Nothing is durable before
 * mfl_replica_joined. */
int mfl_replica_join(const char *state_dir, const char *path, struct mfl_replica **ret_replica,
        struct mfl_store_change *ret_change, struct mfl_error *err);
/* After its entry was written. */
int mfl_replica_joined(struct mfl_replica *replica, struct mfl_error *err);
/* --leave: a server of its own again. */
int mfl_replica_leave(struct mfl_replica *replica, struct mfl_error *err);

#endif
