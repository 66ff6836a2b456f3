/* SPDX-License-Identifier: Apache-2.0 */
/* A state directory seen from outside: back-ups while a server may be using it, and verification. For `mfl-server
 * --backup` and `--check-state`, which run as processes of their own. Blocking.
 *
 * A back-up is a state directory: mfl.db, and jobs/ID/ with the files that its rows name. To restore, replace the old
 * directory by it. It shows the state at one instant, between two transactions of the server:
 *   - under the write lock of the database (BEGIN IMMEDIATE) it reads the rows and opens the files that they name.
 *     Meanwhile no round is committed and no file removed, because files go only after the transaction that drops
 *     their rows. This takes milliseconds, while the server waits;
 *   - then it releases the lock. What retention or `mfl delete` remove from now on stays readable through the open
 *     descriptors, and the database is copied as a reader's snapshot of that instant;
 *   - it compares each file's SHA-256 with its row while copying, and syncs everything under DIR.tmp, which it
 *     renames to DIR at the end: if DIR exists, it is complete.
 */
#ifndef MFL_SERVER_STORE_STORE_BACKUP_H
#define MFL_SERVER_STORE_STORE_BACKUP_H

#include "server/store/store.h"

struct mfl_db;
struct mfl_store_summary {
        uint32_t schema, findings;
        char software[64]; /* of the program that opened it last */
        uint64_t jobs, jobs_unfinished, rounds;
        uint64_t files, bytes; /* intact checkpoints and initial params */
        uint32_t orphans;      /* folders that were moved aside */
};
/* One finding, as a line for people. */
typedef void mfl_store_on_finding(void *user, const char *text);

/* dir and DIR.tmp must not exist; the directories above must. Damaged files of the state are findings, and are copied
 * as they are, so that nothing is lost. MFL_INVALID: dir exists or is in state_dir, or state_dir is not a state
 * directory; MFL_STORE_NEWER, MFL_STORE_DAMAGED: the database; MFL_STORE_FULL, MFL_STORE_AGAIN: the disk, or a server
 * that locks the database for too long. */
int mfl_store_backup(const char *state_dir, const char *dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err);

/* Reads everything, writes nothing (SQLite may leave an empty -wal and -shm beside the database). A server may be
 * using it. Codes as above; damaged rows and files are findings. */
int mfl_store_check(const char *state_dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err);

/* Makes a directory that mfl_store_open refuses as MFL_STORE_DAMAGED usable without what is lost: it keeps the log of
 * the database as mfl.db-wal.damaged, deletes damaged rows (a job's row stays, failed), and moves complete
 * checkpoints that no row names aside. It reports each step as a line. MFL_STORE_DAMAGED: damaged pages of the
 * database, which cannot be repaired. MFL_STORE_LOCKED: a server is running. */
int mfl_store_repair(
        const char *state_dir, mfl_store_on_finding *on_finding, void *user, struct mfl_error *err);

/* ---- what both share (store_named.c) ---- */

/* Checks the database itself: lost transactions (evidence, read before the database was opened), rows and schema.
 * Returns how many findings there were. */
struct mfl_store_evidence;
int mfl_store_check_rows(struct mfl_db *db, uint32_t schema, const struct mfl_store_evidence *evidence,
        mfl_store_on_finding *on_finding, void *user, uint32_t *ret_n, struct mfl_error *err);
/* Like mfl_store_evidence_read, for a directory that a server may be using. */
int mfl_store_evidence_read_live(const char *state_dir, bool *ret_running,
        struct mfl_store_evidence *ret_evidence, struct mfl_error *err);

/* A file that a row names. */
struct mfl_store_named {
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;      /* 0: initial params */
        bool digest_unknown; /* initial params from before schema 7 */
        struct mfl_store_file file;
        int fd; /* -1: not open */
};
#define MFL_STORE_SCHEMA_FROZEN 6u  /* from this schema on, rounds may name a second file */
#define MFL_STORE_SCHEMA_STATES 10u /* from this schema on, clients may have states */
struct mfl_store_inventory {
        uint32_t n, room;
        struct mfl_store_named *v;
};
/* Reads schema, numbers and files from a database of any schema up to this program's. MFL_STORE_NEWER,
 * MFL_STORE_DAMAGED. */
int mfl_store_inventory_read(struct mfl_db *db, const char *state_dir,
        struct mfl_store_inventory *ret_inventory, struct mfl_store_summary *ret_summary,
        struct mfl_error *err);
void mfl_store_inventory_deinit(struct mfl_store_inventory *inventory); /* closes descriptors */
/* STATE_DIR/jobs/ID/FILE. Returns buf. */
const char *mfl_store_named_path(
        const char *state_dir, const struct mfl_store_named *named, char buf[MFL_STORE_PATH_BYTES]);
/* Compares a file's size and digest with its row: the difference in words, or NULL. */
const char *mfl_store_named_fault(
        const struct mfl_store_named *named, uint64_t bytes, const uint8_t sha256[32]);

#endif
