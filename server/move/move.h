/* SPDX-License-Identifier: Apache-2.0 */
/* A job that moves to another server (mfl.proto, Move). Here is what each of the two servers must not forget:
 *
 *     where it was                                  where it goes
 *     begin: a row (token, outward), durable
 *     the job stops; export: the list of files ---> files into uploads/
 *                                                   take: rows, files and a row (token, job), in one transaction
 *     end: the row says where it is now       <---
 *
 * The job is in one place at every moment: until `take` has committed it is the first server's, which lets nobody delete it, and from then
 * on it is the second one's, which never takes the token twice. back: only when the second one has promised (void) never to take it.
 *
 * What moves: the job's rows (file move.rows: jobs, rounds, scores, partitions, contract, clients' states, releases, the ledger's row, log
 * lines) and every file in its directory. What does not: audit, rules, tokens of submissions, registered models (they stay where they
 * are, with the job's checkpoints), and noise.key.
 *
 * Worker threads. Errors as in store.h. Fault points: "after-move-begin", "before-move-place", "before-move-take", "after-move-take",
 * "before-move-end", "after-move-end", and those of the transactions. */
#ifndef MFL_SERVER_MOVE_MOVE_H
#define MFL_SERVER_MOVE_MOVE_H

#include "server/store/store.h"

#define MFL_MOVE_TOKEN_BYTES 33
#define MFL_MOVE_TO_BYTES 256
#define MFL_MOVE_ROWS "move.rows"

struct mfl_move {
        char token[MFL_MOVE_TOKEN_BYTES];
        char to[MFL_MOVE_TO_BYTES];
        char there[MFL_JOB_ID_BYTES]; /* "": still on its way */
};
struct mfl_move_files {
        uint32_t n;
        struct mfl_store_file *v; /* the first is MFL_MOVE_ROWS */
};
void mfl_move_files_deinit(struct mfl_move_files *files);

/* ---- where it was ---- */
/* Writes the row; if there is one, that is the answer, whatever `to`. MFL_BUSY: the job has ended, or a model of it is registered in a
 * way that needs it unfinished. MFL_EXISTS: it has moved already; ret_move says where. */
int mfl_store_move_begin(struct mfl_store *store, const char *id, const char *to, struct mfl_move *ret_move,
        struct mfl_error *err);
/* MFL_NOT_FOUND: it does not move. */
int mfl_store_move_get(
        struct mfl_store *store, const char *id, struct mfl_move *ret_move, struct mfl_error *err);
/* The job is stopped: writes move.rows, and lists the files. MFL_BUSY: it has ended by itself meanwhile, and moves no more. */
int mfl_store_move_export(
        struct mfl_store *store, const char *id, struct mfl_move_files *ret_files, struct mfl_error *err);
/* A piece of a file. *ret_n < n: its end. */
int mfl_store_move_read(struct mfl_store *store, const char *id, const char *file, uint64_t offset,
        void *ret_bytes, size_t n, size_t *ret_n, struct mfl_error *err);
/* MFL_BUSY: it has not stopped. */
int mfl_store_move_end(struct mfl_store *store, const char *id, const char *there, struct mfl_error *err);
/* The job is WAITING again. MFL_EXISTS: it is there already. */
int mfl_store_move_back(struct mfl_store *store, const char *id, struct mfl_error *err);
/* At the start: jobs that move run nowhere, also if this server was killed before they had stopped. */
int mfl_store_move_settle(struct mfl_store *store, struct mfl_error *err);
/* Where the last job went that has left after the newest job came; "": nowhere. */
int mfl_store_move_last(struct mfl_store *store, char ret_to[MFL_MOVE_TO_BYTES], struct mfl_error *err);

/* ---- where it goes ---- */
/* The job that the token stands for, "" if it was never taken. MFL_BUSY: the token is void. MFL_INVALID: the job leaves this server. */
int mfl_store_move_known(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* From now on the token is never taken, and what was written for it is gone. ret_id: it was taken before. */
int mfl_store_move_void(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* Before the first byte: whether files of that size may come, all moves together at most `max`, and have room on the disk. MFL_STORE_FULL. */
int mfl_store_move_fits(
        struct mfl_store *store, const char *token, uint64_t bytes, uint64_t max, struct mfl_error *err);
/* MFL_NOT_FOUND: not at the end of what has come. MFL_BUSY, MFL_INVALID: as mfl_store_move_known, or it was taken. MFL_STORE_FULL: beyond `max`. */
int mfl_store_move_write(struct mfl_store *store, const char *token, const char *file, uint64_t offset,
        const void *bytes, size_t n, uint64_t max, struct mfl_error *err);

struct mfl_move_take {
        const char *token, *from, *owner;
        const char *had; /* its number there */
        bool any_owner;  /* the job keeps its owner; else it belongs to `owner` */
        const struct mfl_store_file *files;
        uint32_t n_files;
        /* Whether this server runs such a job; under the store's mutex: must not use the store. */
        int (*vet)(void *user, const char *text, struct mfl_error *err);
        /* Whether a body of the table, round_scores or job_partitions, is one that this server can read again. */
        bool (*vet_body)(const char *table, const char *daemon, const void *bytes, size_t n);
        void *user;
};
/* Adds the job, with the number that it had if none as high was ever given here. MFL_EXISTS: the token was taken before, *ret_id is that job. MFL_INVALID: files that are
 * not as listed, rows of another release. */
int mfl_store_move_take(struct mfl_store *store, const struct mfl_move_take *take,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);

#endif
