/* SPDX-License-Identifier: Apache-2.0 */
/* What store.c (open, transactions), the other files of it share. */
#ifndef MFL_SERVER_STORE_INTERNAL_H
#define MFL_SERVER_STORE_INTERNAL_H

#include <pthread.h>

#include "server/store.h"
#include "server/store_db.h"

struct mfl_store_pending {
        char job[MFL_JOB_ID_BYTES];
        uint64_t seq, time_ms;
        char *text;
};

struct mfl_store {
        char *dir;
        int lock_fd;
        uint32_t boot;
        pthread_mutex_t mutex; /* the database */
        struct mfl_db *db;
        uint64_t n_uploads; /* names of files */

        pthread_mutex_t log_mutex; /* the rest; taken inside mutex, never the other way round */
        uint64_t next_seq, lost;
        uint32_t n_pending, pending_room;
        struct mfl_store_pending *pending;
};

uint64_t mfl_store_unix_ms(void);
int mfl_store_schema_newest(void);

/* Reading: takes the mutex. Writing: takes it and begins a transaction; end writes the waiting log lines and
 * commits when r is 0, else rolls back; returns r or the commit's result. */
void mfl_store_lock(struct mfl_store *store);
void mfl_store_unlock(struct mfl_store *store);
int mfl_store_begin(struct mfl_store *store, struct mfl_error *err);
int mfl_store_end(struct mfl_store *store, int r, struct mfl_error *err);

/* store_log.c, within a transaction. */
int mfl_store_log_write(struct mfl_store *store, uint32_t *ret_n, struct mfl_error *err);
void mfl_store_log_written(struct mfl_store *store, uint32_t n);
void mfl_store_logf(struct mfl_store *store, const char *id, const char *fmt, ...) MFL_PRINTF(3, 4);

/* store_nodes.c, within a transaction: the rows of a round in place of those that it had; the oldest go. */
int mfl_store_node_rows(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_store_nodes *nodes, struct mfl_error *err);

/* store_rounds.c: the file of frozen params that the newest kept round names; its name is "" where none
 * does. */
int mfl_store_frozen_file(
        struct mfl_store *store, const char *id, struct mfl_store_file *ret_file, struct mfl_error *err);

/* store_files.c */
int mfl_store_sha256_file(
        const char *path, uint8_t ret_sha256[32], uint64_t *ret_bytes, struct mfl_error *err);
/* jobs/ID, durable. */
int mfl_store_make_job_dir(struct mfl_store *store, const char *id, struct mfl_error *err);
/* Everything in jobs/ID and itself; what fails is logged and removed at the next start. */
void mfl_store_remove_job_dir(struct mfl_store *store, const char *id);
void mfl_store_unlink(struct mfl_store *store, const char *id, const char *file);
int mfl_store_remove_orphans(struct mfl_store *store, struct mfl_error *err);
/* The whole upload becomes jobs/ID/initial.f32. The upload stays the caller's. */
int mfl_store_upload_place(struct mfl_store_upload *upload, const char *id, struct mfl_error *err);

/* MFL_NOT_FOUND when there is no such job. Under the mutex. */
int mfl_store_check_job(struct mfl_store *store, const char *id, struct mfl_error *err);

#endif
