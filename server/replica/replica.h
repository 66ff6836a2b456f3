/* SPDX-License-Identifier: Apache-2.0 */
/* The state directory of a server that follows others of its cluster: brought up to date entry by entry (struct mfl_store_change), and
 * file by file. It is locked as by a server, and a server that is to lead opens it with mfl_store_open_in when the replica is closed.
 * One thread; every call may block on the disk. Errors as in store.h. */
#ifndef MFL_SERVER_REPLICA_REPLICA_H
#define MFL_SERVER_REPLICA_REPLICA_H

#include "server/store/store.h"

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
/* The same for a directory that a server has open. */
int mfl_replica_look(const char *state_dir, mfl_replica_on_file *on_file, void *user, struct mfl_error *err);
/* Removes files of checkpoints that no row names any longer, and directories of deleted jobs. */
void mfl_replica_prune(struct mfl_replica *replica);

/* --join-cluster: what a directory becomes in a cluster that has no installation yet: it gets the number 1, as if an entry with the
 * whole database had been applied, and change describes that entry; its file is PATH. MFL_EXISTS: it is empty, or of an older
 * release. Nothing is durable before mfl_replica_joined. */
int mfl_replica_join(const char *state_dir, const char *path, struct mfl_replica **ret_replica,
        struct mfl_store_change *ret_change, struct mfl_error *err);
/* After its entry was written. */
int mfl_replica_joined(struct mfl_replica *replica, struct mfl_error *err);
/* --leave: a server of its own again. */
int mfl_replica_leave(struct mfl_replica *replica, struct mfl_error *err);

#endif
