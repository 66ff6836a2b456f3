/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the store share. */
#ifndef MFL_SERVER_STORE_STORE_INTERNAL_H
#define MFL_SERVER_STORE_STORE_INTERNAL_H

#include <pthread.h>

#include "server/store/store.h"
#include "server/store/store_backup.h"
#include "server/store/store_db.h"
#include "server/store/store_evidence.h"
#include "server/store/store_strays.h"

struct mfl_store_pending {
        char job[MFL_JOB_ID_BYTES];
        uint64_t seq, time_ms;
        char *text;
};

#define MFL_STORE_WARNINGS_MAX 20

struct mfl_store {
        char *dir;
        int lock_fd;
        uint32_t boot;
        pthread_mutex_t mutex; /* the database */
        struct mfl_db *db;
        uint64_t n_uploads; /* names of files */
        struct mfl_store_counter counter;
        bool counts, count_fails;
        uint64_t commits; /* transactions of the database */
        struct mfl_store_evidence evidence;
        uint32_t n_warnings;
        char *warnings[MFL_STORE_WARNINGS_MAX];
        mfl_store_on_finding *on_repair; /* NULL: damage is refused */
        void *repair_user;
        const struct mfl_store_cluster *cluster; /* NULL: none; the next four are its */
        struct mfl_changes *changes;             /* of the open transaction */
        uint64_t seq;                            /* of the last entry in the database */
        uint32_t schema;                         /* of this program */
        bool whole;        /* the schema changes: the next entry is the whole database */
        uint64_t late_seq; /* the entry that should have been the whole database, and could not; 0: none */

        pthread_mutex_t log_mutex; /* protects the rest; taken inside mutex, never the other way round */
        uint64_t next_seq, lost;
        struct mfl_store_pendings {
                uint32_t n, room;
                struct mfl_store_pending *v;
        } pending, writing; /* writing: the older lines; changed under both mutexes */
};

uint64_t mfl_store_unix_ms(void);
int mfl_store_schema_newest(void);

/* lock: for reading. begin: for writing; takes the mutex and begins a transaction. end writes the waiting log lines
 * and commits if r is 0, otherwise rolls back; returns r or the commit's result. */
void mfl_store_lock(struct mfl_store *store);
void mfl_store_unlock(struct mfl_store *store);
int mfl_store_begin(struct mfl_store *store, struct mfl_error *err);
int mfl_store_end(struct mfl_store *store, int r, struct mfl_error *err);
/* The entry of the open transaction is written to the log. */
int mfl_store_replicate(struct mfl_store *store, struct mfl_error *err);
/* -1: the database is of a server of its own. schema 0: an empty database. */
int mfl_store_cluster_seq(struct mfl_db *db, int64_t schema, int64_t *ret_seq, struct mfl_error *err);
/* Saves the database, as the open transaction sees it, and describes the file. */
int mfl_store_whole(
        struct mfl_db *db, const char *path, struct mfl_store_change *change, struct mfl_error *err);
/* Reads the number of the last entry. MFL_EXISTS, see mfl_store_open_in. */
int mfl_store_check_cluster(struct mfl_store *store, int64_t schema, struct mfl_error *err);
/* A file that rows are going to name. */
int mfl_store_give(struct mfl_store *store, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err);
/* Removes the copy of mfl_store_states_copy, if no other server has taken it. */
void mfl_store_states_drop(struct mfl_store *store, const char *id);
/* Of a file of clients' states that mfl_store_states_copy has described; the other one copies and gives it, too. In a transaction. */
int mfl_store_states_row(
        struct mfl_store *store, const char *id, const struct mfl_store_file *file, struct mfl_error *err);
int mfl_store_give_states(struct mfl_store *store, const char *id, struct mfl_error *err);
/* store.c: the directory, made and locked; close it with mfl_store_close. */
int mfl_store_claim(const char *state_dir, struct mfl_store **ret_store, struct mfl_error *err);
/* The file `commits`. A failure is logged once: a number that is too old only proves less. */
void mfl_store_write_count(struct mfl_store *store);

/* A warning: shown at the start, and kept as a log line of the server. */
void mfl_store_warn(struct mfl_store *store, const char *fmt, ...) MFL_PRINTF(2, 3);
/* store_vet.c: checks everything before the first write; version: the schema. MFL_STORE_DAMAGED. With on_repair it
 * reports damage instead. ret_survey: the files in jobs/ that no row names. */
int mfl_store_vet(
        struct mfl_store *store, int64_t version, struct mfl_store_survey *ret_survey, struct mfl_error *err);
/* After the migration: removes, or moves aside, what the survey has found. */
int mfl_store_tidy(struct mfl_store *store, const struct mfl_store_survey *survey, struct mfl_error *err);
/* For a repair, within a transaction: deletes damaged rows, and restores the rows that every database must have. */
int mfl_store_mend_rows(struct mfl_store *store, struct mfl_error *err);

/* store_log.c. log_write, within a transaction, writes the lines logged so far; log_written, after the commit,
 * forgets them. */
int mfl_store_log_write(struct mfl_store *store, struct mfl_error *err);
void mfl_store_log_written(struct mfl_store *store);
void mfl_store_log_deinit(struct mfl_store *store);
void mfl_store_logf(struct mfl_store *store, const char *id, const char *fmt, ...) MFL_PRINTF(3, 4);

/* store_nodes.c, within a transaction: replaces the rows of a round; the oldest rows go. */
/* Writes a round's scores, and removes those of rounds whose files are gone. Within a transaction. */
int mfl_store_scores_row(
        struct mfl_store *store, const char *id, const struct mfl_store_round *round, struct mfl_error *err);
int mfl_store_node_rows(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_store_nodes *nodes, struct mfl_error *err);

/* The same: what a round changed. */
int mfl_store_state_rows(struct mfl_store *store, const char *id, const struct mfl_store_states *states,
        struct mfl_error *err);

/* store_files.c */
int mfl_store_sha256_file(
        const char *path, uint8_t ret_sha256[32], uint64_t *ret_bytes, struct mfl_error *err);
/* jobs/ID, durable. */
int mfl_store_make_job_dir(struct mfl_store *store, const char *id, struct mfl_error *err);
/* Removes jobs/ID and everything in it; failures are logged, and the next start removes the rest. */
void mfl_store_remove_job_dir(struct mfl_store *store, const char *id);
void mfl_store_unlink(struct mfl_store *store, const char *id, const char *file);
void mfl_store_clean_uploads(struct mfl_store *store);
/* SHA-256 of the whole upload. */
int mfl_store_upload_digest(struct mfl_store_upload *upload, uint8_t ret_sha256[32], struct mfl_error *err);
/* The whole upload becomes jobs/ID/initial.f32. The upload stays the caller's. */
int mfl_store_upload_place(struct mfl_store_upload *upload, const char *id, struct mfl_error *err);

/* MFL_NOT_FOUND when there is no such job. Under the mutex. */
int mfl_store_check_job(struct mfl_store *store, const char *id, struct mfl_error *err);

#define MFL_STORE_ROUND_COLUMNS                                                                              \
        "round, attempt, evaluated, loss, accuracy, train_loss, train_accuracy, eval_samples, samples, "     \
        "weight, "                                                                                           \
        "clients, clients_rejected, daemons, started_ms, ended_ms, digest, bytes_up, bytes_down, "           \
        "committed_ms, file, "                                                                               \
        "file_sha256, file_bytes, kept, bytes_up_alone, bytes_down_alone, "                                  \
        "frozen_file, frozen_sha256, frozen_bytes, mean_iou, virtual_start_us, virtual_end_us, clamped, "    \
        "states_lost, choice, measures, metric_names, metrics"

/* store_arrivals.c, in a transaction: MFL_BUSY if something needs the job. */
int mfl_store_check_removable(struct mfl_store *store, const char *id, struct mfl_error *err);

/* store_arrivals.c, in a transaction: the new job has the rounds of the old one up to that one, and its checkpoint. */
int mfl_store_rewind(struct mfl_store *store, const char *from, const char *to,
        const struct mfl_store_round *at, struct mfl_error *err);
/* store_arrivals.c, in a transaction: the new job repeats the first `rounds` of the old one, and then stops. */
int mfl_store_replay(
        struct mfl_store *store, const char *from, const char *to, uint32_t rounds, struct mfl_error *err);

#endif
