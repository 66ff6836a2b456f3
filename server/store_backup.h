/* SPDX-License-Identifier: Apache-2.0 */
/* A state directory seen from outside: back-ups of one that a server may be using, and verification. For
 * `mfl-server --backup` and `--check-state`, which run as processes of their own. Blocking.
 *
 * A back-up is a state directory: mfl.db, and jobs/ID/ with the files that its rows name. To restore, put it
 * in the place of the old one. It shows the state at one instant, between two transactions of the server:
 *   - with the write lock of the database (BEGIN IMMEDIATE) the rows are read and the files that they name
 * are opened. No round is committed and no file removed meanwhile, since files go only after the transaction
 *     that drops their rows. It lasts milliseconds; the server waits so long;
 *   - then the lock is dropped. What retention or `mfl delete` remove from now on stays readable by the open
 *     descriptors, and the database is copied as a reader's snapshot of that instant;
 *   - each file's SHA-256 is compared with its row's while it is copied; everything is synced under DIR.tmp,
 *     which is renamed to DIR at the end: a DIR that is there is whole.
 */
#ifndef MFL_SERVER_STORE_BACKUP_H
#define MFL_SERVER_STORE_BACKUP_H

#include "server/store.h"

struct mfl_store_summary {
        uint32_t schema, findings;
        char software[64]; /* that opened it last */
        uint64_t jobs, jobs_unfinished, rounds;
        uint64_t files, bytes; /* checkpoints and initial params: those that are as their rows say */
};
/* One finding, as a line for people. */
typedef void mfl_store_on_finding(void *user, const char *text);

/* dir must not be there, nor DIR.tmp; directories above it must. Damaged files of the state are findings, and
 * are copied as they are, so that nothing is lost that somebody may still want. MFL_INVALID: dir is there or
 * in state_dir, or state_dir holds no state; MFL_STORE_NEWER, MFL_STORE_DAMAGED: the database;
 * MFL_STORE_FULL, MFL_STORE_AGAIN: the disk, or a server that holds the database for too long. */
int mfl_store_backup(const char *state_dir, const char *dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err);

/* Reads everything, writes nothing (SQLite may leave an empty -wal and -shm beside the database). A server
 * may run on it. Codes as above; what is wrong with rows or files is a finding. */
int mfl_store_check(const char *state_dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err);

/* ---- what both share (store_named.c) ---- */

/* A file that a row names. */
struct mfl_store_named {
        char job[MFL_JOB_ID_BYTES];
        uint32_t round; /* 0: initial params, whose digest no row has */
        struct mfl_store_file file;
        int fd; /* -1: not open */
};
#define MFL_STORE_SCHEMA_FROZEN 6u /* from it on rounds may name a second file */
struct mfl_store_inventory {
        uint32_t n, room;
        struct mfl_store_named *v;
};
struct mfl_db;
/* Schema, numbers and files of a database of any schema up to this program's. MFL_STORE_NEWER,
 * MFL_STORE_DAMAGED. */
int mfl_store_inventory_read(struct mfl_db *db, const char *state_dir,
        struct mfl_store_inventory *ret_inventory, struct mfl_store_summary *ret_summary,
        struct mfl_error *err);
void mfl_store_inventory_deinit(struct mfl_store_inventory *inventory); /* closes descriptors */
/* STATE_DIR/jobs/ID/FILE. Returns buf. */
const char *mfl_store_named_path(
        const char *state_dir, const struct mfl_store_named *named, char buf[MFL_STORE_PATH_BYTES]);
/* What is wrong with a file of this size and digest; NULL: nothing. */
const char *mfl_store_named_fault(
        const struct mfl_store_named *named, uint64_t bytes, const uint8_t sha256[32]);

#endif
