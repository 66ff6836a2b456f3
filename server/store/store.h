/* SPDX-License-Identifier: Apache-2.0 */
/* The server's state across crashes: a SQLite database (jobs, rounds, log lines) and one safetensors file per kept
 * checkpoint (DESIGN section 8).
 *
 *      STATE_DIR/lock                               flock of the one server
 *      STATE_DIR/mfl.db                             WAL, synchronous=FULL
 *      STATE_DIR/commits                            the number of its transactions (store_evidence.h)
 *      STATE_DIR/mfl.db.schema-2.bak                the database before the last upgrade
 *      STATE_DIR/uploads/                           initial params being received; emptied at open
 *      STATE_DIR/orphans/20261123T101500Z-j-000007/ complete checkpoints without a row (store_strays.h)
 *      STATE_DIR/jobs/j-000001/initial.f32          uploaded initial params: raw little-endian floats
 *      STATE_DIR/jobs/j-000001/frozen.safetensors   frozen params, once per job
 *      STATE_DIR/jobs/j-000001/round-000012.safetensors   the other params, and the strategy's state
 *
 * Committing a round: first the checkpoint's files (each tmp, fsync, rename, fsync directory), then one transaction
 * with the round's row, which names the files and their SHA-256, and with the rows that retention drops; then the
 * dropped files are unlinked. Frozen params are written with the first committed round, and every later row names
 * them; rounds of releases before schema 6 have all params in their own file. So a damaged frozen.safetensors
 * invalidates all rounds, and the job starts over. A crash at any point leaves either the old round or the new one,
 * complete. Fault points: those of common/base/fs.h, "before-db-commit", "after-db-commit" (every transaction),
 * "before-unlink", "after-unlink".
 *
 * Nothing on the disk is trusted unchecked. Files have a SHA-256 in their row; rows have a checksum (store_sums.h);
 * the database counts its transactions, so that lost ones are noticed (store_evidence.h); and a complete checkpoint
 * without a row is never removed (store_strays.h). Open checks all of this except the files, and refuses a directory
 * that has lost something; mfl_store_repair makes it usable again.
 *
 * Threads: any; calls are serialised inside (except the writing of checkpoint files). All calls may block on the
 * disk, so they are for worker threads and for the start of the program.
 *
 * Errors, positive: after MFL_STORE_FULL and MFL_STORE_AGAIN everything is as before, and the call may be repeated
 * later; MFL_INVALID, MFL_NOT_FOUND, MFL_EXISTS, MFL_BUSY as noted below. Negative: the database is corrupt, or
 * memory is out.
 */
#ifndef MFL_SERVER_STORE_STORE_H
#define MFL_SERVER_STORE_STORE_H

#include "common/job/job_record.h"
#include "proto/message.h"
#include "server/store/checkpoint.h"

enum {
        MFL_STORE_FULL = 16,    /* no space left (ENOSPC, EDQUOT, SQLITE_FULL) */
        MFL_STORE_AGAIN = 17,   /* another disk error that may pass (EIO, EMFILE, a busy database) */
        MFL_STORE_LOCKED = 18,  /* open: another server has this state directory */
        MFL_STORE_NEWER = 19,   /* open: written by a newer version */
        MFL_STORE_DAMAGED = 20, /* open: the database is damaged, or not one of ours */
        MFL_STORE_RULES_FULL = 21,
        MFL_STORE_ORPHANS_FULL = 22, /* open: MFL_STORE_ORPHANS_MAX folders have already been moved aside */
        MFL_STORE_TOKEN_TAKEN = 23,  /* the token was used for another request */
};

#define MFL_TOKEN_BYTES 64
#define MFL_OWNER_BYTES 64
#define MFL_STORE_LOG_LINES_MAX 10000 /* per job; the oldest go */
#define MFL_STORE_PATH_BYTES 4096
#define MFL_STORE_ORPHANS_MAX 64

struct mfl_store;

/* Creates or opens the directory, takes the lock, verifies it, migrates the schema, raises the boot counter, and
 * removes or moves aside the files that no row names. MFL_STORE_DAMAGED: nothing was changed. Before a migration it
 * saves the database as mfl.db.schema-N.bak (N: the old schema), which the previous version can use; only the back-up
 * of the last migration is kept. Fault points: "before-migration-save", "after-migration-save", then those of the
 * transaction. */
int mfl_store_open(const char *state_dir, struct mfl_store **ret_store, struct mfl_error *err);
/* What an administrator should know about the open, as lines; NULL after the last. */
const char *mfl_store_warning(const struct mfl_store *store, uint32_t i);
uint32_t mfl_store_warnings(const struct mfl_store *store); /* how many */
void mfl_store_close(struct mfl_store *store);              /* flushes log lines; NULL is fine */
/* The number of this start: Unix seconds, or the last start's number plus one if that is larger. So a new directory
 * in the place of a lost one does not repeat its numbers. */
uint32_t mfl_store_boot(const struct mfl_store *store);
const char *mfl_store_dir(const struct mfl_store *store);

/* ---- jobs ---- */
struct mfl_store_job {
        char id[MFL_JOB_ID_BYTES];
        char name[MFL_NAME_BYTES];
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        char owner[MFL_OWNER_BYTES];      /* "" for jobs older than owners */
        uint64_t created_ms, finished_ms; /* Unix time; 0: not yet */
        uint64_t archived_ms;             /* Unix time; 0: it is not archived */
        bool has_initial;                 /* initial.f32 */
        bool initial_known;               /* initial_sha256 is valid: jobs from before schema 7 have none */
        uint8_t initial_sha256[32];
        /* Known once the job has been prepared (mfl_store_job_prepared), else zero. */
        struct mfl_data_info data;
        char data_from[MFL_NAME_BYTES]; /* the daemon whose data set this is */
        uint64_t n_params;
        uint64_t
                n_frozen; /* of n_params; 0 also for a job whose params are all sent in the order of layers */
        uint32_t
                arithmetic; /* MFL_ARITHMETIC_VERSION of the program that added it; 4 for all before schema 8 */
        uint32_t committed;  /* last committed round */
        uint32_t stop_after; /* the job ends when this round is committed; 0: with its last round */
        char *text;          /* the job file; owned; NULL where noted */
};
void mfl_store_job_deinit(struct mfl_store_job *job);
struct mfl_store_jobs {
        uint32_t n;
        struct mfl_store_job *v;
};
void mfl_store_jobs_deinit(struct mfl_store_jobs *jobs);

/* Initial params that are being received. write: any number of bytes; MFL_INVALID for more than expected. */
struct mfl_store_upload;
int mfl_store_upload_begin(struct mfl_store *store, uint64_t n_floats, struct mfl_store_upload **ret_upload,
        struct mfl_error *err);
int mfl_store_upload_write(
        struct mfl_store_upload *upload, const void *data, size_t bytes, struct mfl_error *err);
void mfl_store_upload_discard(struct mfl_store_upload *upload); /* NULL is fine */

/* Adds a job in state WAITING. token: "" for none; it belongs to its owner ("local" and "anybody", who have no
 * certificate, count as one). If the token was used before, *ret_id is that job's id, with MFL_EXISTS for the same
 * request and MFL_STORE_TOKEN_TAKEN for another one (text, initial params, cloned job). upload (NULL: none) must be
 * complete, otherwise MFL_INVALID; only success consumes it. */
int mfl_store_job_add(struct mfl_store *store, const char *name, const char *text, const char *token,
        const char *owner, struct mfl_store_upload *upload, char ret_id[MFL_JOB_ID_BYTES],
        struct mfl_error *err);
/* Whether the owner has used the token: adding a job with it adds none. "": false. */
int mfl_store_token_used(
        struct mfl_store *store, const char *token, const char *owner, bool *ret_used, struct mfl_error *err);
/* Adds a job with the same initial params and text. */
int mfl_store_job_clone(struct mfl_store *store, const char *id, const char *token, const char *owner,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* Adds a clone whose text leaves the client out, and which has the rounds up to `at`, whose files are there, and goes on after it. */
struct mfl_store_round;
struct mfl_store_forget {
        const char *text;
        uint32_t client;
        const struct mfl_store_round *at; /* NULL: from the start */
        const char *asker;                /* whose the token is; the new job is its owner's */
};
int mfl_store_job_forget(struct mfl_store *store, const char *id, const struct mfl_store_forget *forget,
        const char *token, const char *owner, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* Of a job that is not there: MFL_EXISTS with the id of the job that took its place, if the asker wanted that with the same token
 * and client; MFL_STORE_TOKEN_TAKEN if the token was used for something else; otherwise MFL_NOT_FOUND. */
int mfl_store_job_forgotten(struct mfl_store *store, const char *id, uint32_t client, const char *token,
        const char *asker, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* Adds a clone that makes the first `rounds` rounds again, with the clients that are recorded of them, and then stops. */
int mfl_store_job_replay(struct mfl_store *store, const char *id, uint32_t rounds, const char *token,
        const char *owner, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* The first DONE, FAILED or STOPPED sets finished_ms. These states also remove a checkpoint that was not committed. */
int mfl_store_job_set_state(struct mfl_store *store, const char *id, enum mfl_job_state state,
        const char *reason, struct mfl_error *err);
int mfl_store_job_prepared(struct mfl_store *store, const char *id, const struct mfl_data_info *data,
        const char *data_from, uint64_t n_params, uint64_t n_frozen, struct mfl_error *err);
/* The server has filled in what the file leaves to it. */
int mfl_store_job_set_text(struct mfl_store *store, const char *id, const char *text, struct mfl_error *err);
/* 0: it is archived no longer. The caller has checked that the job has ended. */
int mfl_store_job_archive(
        struct mfl_store *store, const char *id, uint64_t archived_ms, struct mfl_error *err);
int mfl_store_job_stop_after(struct mfl_store *store, const char *id, uint32_t round, struct mfl_error *err);
/* Deletes rows and files. MFL_BUSY unless the job is DONE, FAILED or STOPPED, and while something needs it: then it stays as it was. */
int mfl_store_job_delete(struct mfl_store *store, const char *id, struct mfl_error *err);
/* In whatever state: that of the release that can read the job, which does not run. */
int mfl_store_job_delete_unread(struct mfl_store *store, const char *id, struct mfl_error *err);
/* MFL_INVALID: initial.f32 differs from what was submitted. */
int mfl_store_initial_check(struct mfl_store *store, const char *id, struct mfl_error *err);
/* With its text. MFL_NOT_FOUND; MFL_STORE_DAMAGED: the job's row is damaged. */
int mfl_store_job_get(
        struct mfl_store *store, const char *id, struct mfl_store_job *ret_job, struct mfl_error *err);
/* By id; without texts. unfinished: only WAITING and RUNNING. */
int mfl_store_job_list(
        struct mfl_store *store, bool unfinished, struct mfl_store_jobs *ret_jobs, struct mfl_error *err);

/* ---- checkpoints and rounds ---- */
struct mfl_store_file {
        char name[64]; /* in the job's directory */
        uint8_t sha256[32];
        uint64_t bytes;
};
/* What a client keeps from round to round: where it lies in the file clients.f32 of the job's directory, which the runtime
 * writes (server/runtime/states.h). */
struct mfl_store_state {
        uint64_t client;
        uint32_t round; /* that wrote it */
        uint32_t
                slot; /* MFL_STORE_STATE_LOST: its round is superseded; in a commit: the client's state is forgotten */
        uint32_t crc;       /* CRC-32C of its floats */
        bool at_site;       /* its site keeps it (client_state: daemon), and the file has nothing of it; */
        uint8_t sha256[32]; /* of its floats */
};
#define MFL_STORE_STATE_LOST UINT32_MAX
#define MFL_STORE_SECRET_FILE "noise.key" /* in the state directory; in no back-up */
#define MFL_STORE_STATES_FILE "clients.f32"
#define MFL_STORE_CHANGES_FILE "deltas.f32" /* server/runtime/changes.h */
#define MFL_STORE_PLUGIN_FILE "plugin.mark" /* server/strategy/plugin.h */
#define MFL_STORE_METRIC_FILE "metric.mark"
struct mfl_store_states {
        uint32_t n;
        struct mfl_store_state *v;
};
void mfl_store_states_deinit(struct mfl_store_states *states);
/* By client: those of the newest committed round. */
int mfl_store_state_list(
        struct mfl_store *store, const char *id, struct mfl_store_states *ret_states, struct mfl_error *err);

#define MFL_STORE_CHOICE_BYTES 384
struct mfl_store_round {
        struct mfl_round_record record;
        uint64_t bytes_up, bytes_down;
        uint64_t bytes_up_alone, bytes_down_alone; /* what it would have been without shared nodes */
        uint64_t committed_ms;                     /* Unix time */
        bool kept;                                 /* its file is there */
        struct mfl_store_file file;
        struct mfl_store_file frozen; /* the params that `file` lacks; name "": `file` has all */
        uint32_t states_lost; /* clients whose state was lost before the round, and which began anew */
        const struct mfl_store_states
                *states;                     /* for the commit: the states that the round wrote; NULL: none */
        char choice[MFL_STORE_CHOICE_BYTES]; /* what a robust rule made of the updates; "": no such rule */
        struct mfl_metrics metrics;
        struct mfl_store_file
                states_file; /* for the commit, in a cluster: the copy of MFL_STORE_STATES_FILE; name "": none */
        const void *scores; /* for commit alone: bytes that the store keeps as long as `file`; NULL: none */
        size_t scores_bytes;
};
struct mfl_store_rounds {
        uint32_t n;
        struct mfl_store_round *v;
};
void mfl_store_rounds_deinit(struct mfl_store_rounds *rounds);

/* The network traffic of one node in one round, in bytes. */
struct mfl_store_node {
        uint32_t round, daemons;
        char node[MFL_NODE_BYTES];
        uint64_t up, down, up_alone, down_alone;
};
struct mfl_store_nodes {
        uint32_t n;
        struct mfl_store_node *v;
};
#define MFL_STORE_NODES_MAX 1000      /* rows of one round */
#define MFL_STORE_NODE_ROUNDS_MAX 100 /* newest rounds of a job whose rows are kept */
void mfl_store_nodes_deinit(struct mfl_store_nodes *nodes);

/* CHECKPOINT: writes the file of a round, and the file of the frozen params unless a committed round names one;
 * durable when this returns 0. May be repeated after a failure, or for a round that began before a crash. Tensors:
 * the moving ones of the graph's table, then "strategy/STATE/TENSOR" for each state vector. ret_frozen: its name is
 * "" if nothing is frozen. In a cluster mfl_store_given follows. */
int mfl_store_checkpoint(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_store_file *ret_file,
        struct mfl_store_file *ret_frozen, struct mfl_error *err);
/* In a cluster, after the checkpoint: a copy of the file of clients' states as it is now, since rows of a later round may soon be written to free
 * places of it. ret_file: its name is "" if there is no cluster, or no such file. */
int mfl_store_states_copy(
        struct mfl_store *store, const char *id, struct mfl_store_file *ret_file, struct mfl_error *err);
/* In a cluster: gives a file of the checkpoint, or that copy, which goes then, to the other servers. Nothing without a cluster, or with the
 * name "". May wait for long; a thread of its own. */
int mfl_store_given(
        struct mfl_store *store, const char *id, const struct mfl_store_file *file, struct mfl_error *err);
/* COMMIT: writes the row, and applies retention: it keeps the newest round, the best one (by accuracy, then lower
 * loss, then the later round; among evaluated rounds) and `keep` more, newest first. May be repeated. Sets
 * round->committed_ms and kept. nodes: the round's rows, each node once; their `round` is ignored. */
int mfl_store_commit(struct mfl_store *store, const char *id, struct mfl_store_round *round,
        const struct mfl_store_nodes *nodes, uint32_t keep, struct mfl_error *err);
/* Rows of the newest rounds, at most limit, and for each round all rows or none: by round, then by node. */
int mfl_store_node_list(struct mfl_store *store, const char *id, uint32_t limit,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err);
/* The newest kept scores of a job (round->scores), which the caller frees; NULL: there are none. */
int mfl_store_scores_get(
        struct mfl_store *store, const char *id, void **ret_scores, size_t *ret_bytes, struct mfl_error *err);
/* Rounds in (after, ...], ascending, the newest `limit` of them (0: all). */
int mfl_store_round_list(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err);
/* Rounds in (after, ...], ascending, the oldest `limit` of them. */
int mfl_store_round_page(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err);
#define MFL_STORE_NEWEST ((int64_t)-1)
#define MFL_STORE_BEST ((int64_t)-2)
#define MFL_STORE_EVALUATED ((int64_t)-3) /* the newest one that was evaluated */
/* A committed round, by number or by one of the names above. kept_only: only rounds whose file exists. MFL_NOT_FOUND.
 */
int mfl_store_round_get(struct mfl_store *store, const char *id, int64_t which, bool kept_only,
        struct mfl_store_round *ret_round, struct mfl_error *err);
/* The path of a file in the job's directory ("initial.f32", file.name). Returns buf. */
const char *mfl_store_path(
        const struct mfl_store *store, const char *id, const char *file, char buf[MFL_STORE_PATH_BYTES]);

/* Checks that a round's files are as committed; otherwise MFL_STORE_DAMAGED, and a line in the job's log. */
int mfl_store_round_verify(
        struct mfl_store *store, const char *id, const struct mfl_store_round *round, struct mfl_error *err);

/* Where an unfinished job resumes: the last committed round whose files exist with the right SHA-256. A round with a
 * missing or damaged file is skipped with a log line, and the rounds after the one found are marked as superseded in
 * the database. */
struct mfl_store_resume {
        uint32_t round;                             /* 0: from the start */
        char checkpoint_path[MFL_STORE_PATH_BYTES]; /* "" for round 0 */
        char frozen_path[MFL_STORE_PATH_BYTES];     /* "": no separate file */
        char initial_path[MFL_STORE_PATH_BYTES];    /* round 0 with uploaded params, else "" */
        uint8_t digest[MFL_DIGEST_BYTES];           /* of the params; zero for round 0 */
        uint32_t passed_over;                       /* damaged rounds */
        uint64_t virtual_us;                        /* when the round ended in virtual time; 0: in none */
};
int mfl_store_resume(
        struct mfl_store *store, const char *id, struct mfl_store_resume *ret_resume, struct mfl_error *err);

/* Releases of noisy sums (privacy): what may have left the server, committed or not. One release for each round
 * and digest. */
struct mfl_store_released {
        uint64_t n;      /* of the job */
        uint64_t beyond; /* rounds after `round` that have one or more */
};
int mfl_store_released(struct mfl_store *store, const char *id, uint32_t round,
        struct mfl_store_released *ret_released, struct mfl_error *err);
/* Whether all that the job has begin with these n bytes of their digests. */
int mfl_store_released_alike(struct mfl_store *store, const char *id, const uint8_t *begin, size_t n,
        bool *ret_alike, struct mfl_error *err);
/* Adds one, durably, unless it is there; *ret_n: how many there are now. MFL_BUSY: it would be one more than n_max, and nothing
 * was added. MFL_STORE_FULL, MFL_STORE_AGAIN. */
int mfl_store_release(struct mfl_store *store, const char *id, uint32_t round,
        const uint8_t digest[MFL_DIGEST_BYTES], uint64_t n_max, uint64_t *ret_n, struct mfl_error *err);

/* What a job has released of a data set: `releases` of the accountant's sigma and rate. Rows stay when jobs go. */
struct mfl_store_spent {
        char data[MFL_NAME_BYTES], job[MFL_JOB_ID_BYTES];
        double sigma, rate;
        uint64_t releases; /* 1 or more */
};
struct mfl_store_spents {
        uint32_t n, room;
        struct mfl_store_spent *v;
};
/* A row with fewer releases, or none, is raised; durable. MFL_STORE_FULL, MFL_STORE_AGAIN. */
int mfl_store_spend(struct mfl_store *store, const struct mfl_store_spent *spent, struct mfl_error *err);
/* By data set and job; data "": all. */
int mfl_store_spent_list(
        struct mfl_store *store, const char *data, struct mfl_store_spents *ret_list, struct mfl_error *err);
void mfl_store_spents_deinit(struct mfl_store_spents *list);

/* ---- daemons ---- */
/* Drained daemons stay drained when the server restarts. "*", which is not a valid daemon name, stands for all of
 * them. */
int mfl_store_drain(struct mfl_store *store, const char *daemon, bool on, struct mfl_error *err);
struct mfl_store_names {
        uint32_t n;
        char (*v)[MFL_NAME_BYTES];
};
int mfl_store_drained(struct mfl_store *store, struct mfl_store_names *ret_names, struct mfl_error *err);
void mfl_store_names_deinit(struct mfl_store_names *names);

/* Which daemons may take part; the numbers are those of the wire. */
enum mfl_verdict {
        MFL_VERDICT_DENY = 1,
        MFL_VERDICT_ALLOW = 2,
};
struct mfl_store_rule {
        char pattern[MFL_ACCESS_PATTERN_BYTES];
        enum mfl_verdict verdict;
        char who[MFL_OWNER_BYTES];
        uint64_t time_ms, until_ms; /* Unix time; until_ms 0: permanent */
        char reason[MFL_ACCESS_REASON_BYTES];
};
struct mfl_store_rules {
        uint32_t n;
        struct mfl_store_rule *v;
};
/* Replaces a rule with the same pattern and verdict. MFL_STORE_RULES_FULL: there are MFL_ACCESS_RULES_MAX other
 * rules; expired rules do not count, and are removed. */
int mfl_store_rule_put(struct mfl_store *store, const struct mfl_store_rule *rule, struct mfl_error *err);
/* MFL_NOT_FOUND. */
int mfl_store_rule_remove(
        struct mfl_store *store, const char *pattern, enum mfl_verdict verdict, struct mfl_error *err);
/* By pattern, then verdict. */
int mfl_store_rules(struct mfl_store *store, struct mfl_store_rules *ret_rules, struct mfl_error *err);
void mfl_store_rules_deinit(struct mfl_store_rules *rules);

/* ---- audit ---- */
#define MFL_STORE_AUDIT_MAX 100000 /* rows; the oldest go */
struct mfl_store_audit {
        uint64_t seq, time_ms; /* set by the store; Unix time */
        char who[MFL_OWNER_BYTES], address[80], action[16], object[MFL_NAME_BYTES], result[16], text[400];
};
struct mfl_store_audits {
        uint32_t n;
        struct mfl_store_audit *v;
};
/* Durable when this returns 0. */
int mfl_store_audit_add(struct mfl_store *store, const struct mfl_store_audit *entry, struct mfl_error *err);
/* The newest entries, at most limit, oldest first. v is freed with free(). */
int mfl_store_audit_list(
        struct mfl_store *store, uint32_t limit, struct mfl_store_audits *ret_audits, struct mfl_error *err);

/* ---- partitions ---- */
/* How a job's data are divided, as reported by a daemon: bytes that the store does not interpret. daemon "": for the
 * whole population; otherwise for that daemon's own data, with at most MFL_STORE_SITES_MAX daemons. The newest report
 * is kept. */
#define MFL_STORE_SITES_MAX 10000
struct mfl_store_partition {
        char daemon[MFL_NAME_BYTES];
        void *body;
        size_t bytes;
};
struct mfl_store_partitions {
        uint32_t n;
        struct mfl_store_partition *v;
};
/* MFL_NOT_FOUND: there is no such job. */
int mfl_store_partition_put(struct mfl_store *store, const char *id, const char *daemon, const void *body,
        size_t bytes, struct mfl_error *err);
/* By daemon. */
int mfl_store_partition_list(struct mfl_store *store, const char *id,
        struct mfl_store_partitions *ret_partitions, struct mfl_error *err);
void mfl_store_partitions_deinit(struct mfl_store_partitions *partitions);

/* ---- arrivals ---- */
/* The order in which the updates of a version came, of an asynchronous job in real time (common/cohort/calendar.h); they are written before
 * the version is made, and never changed. */
struct mfl_arrival;
int mfl_store_arrivals_put(struct mfl_store *store, const char *id, uint32_t version,
        const struct mfl_arrival *v, uint32_t n, struct mfl_error *err);
/* Of versions above `after`, ascending. *ret_v: the caller frees it; NULL if there are none. */
int mfl_store_arrivals_get(struct mfl_store *store, const char *id, uint32_t after,
        struct mfl_arrival **ret_v, uint32_t *ret_n, struct mfl_error *err);

/* ---- contracts ---- */
/* What the input of a job's model is (common/contract/contract.h), as text that the store does not interpret. MFL_NOT_FOUND:
 * there is no such job. */
int mfl_store_contract_put(struct mfl_store *store, const char *id, const char *text, struct mfl_error *err);
/* *ret_text: on the heap; NULL: none was put. */
int mfl_store_contract_get(struct mfl_store *store, const char *id, char **ret_text, struct mfl_error *err);

/* ---- log lines ---- */
struct mfl_store_line {
        uint64_t seq, time_ms; /* seq rises over all jobs; Unix time */
        char *text;
};
struct mfl_store_lines {
        uint32_t n;
        struct mfl_store_line *v;
};
void mfl_store_lines_deinit(struct mfl_store_lines *lines);
/* Keeps a line in memory; the next transaction writes it, or flush (call it about once a second). A crash loses
 * unwritten lines. id may be "" (the server's own lines). Cheap, and never blocks on the disk, so the loop thread may
 * call it. While 4096 lines wait, further ones are dropped, and a line tells their number. */
void mfl_store_log(struct mfl_store *store, const char *id, const char *text, uint64_t *ret_seq);
int mfl_store_flush(struct mfl_store *store, struct mfl_error *err);
/* Lines with seq > after, ascending, at most limit. Flushes first; lines that the disk does not accept are listed
 * from memory. */
int mfl_store_log_list(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct mfl_store_lines *ret_lines, struct mfl_error *err);

/* ---- several servers (server/cluster/cluster.h) ----
 * THE LEADER'S STORE (mfl_store_open_in) works as always, on its own SQLite database, and in addition:
 *   - a file that rows are going to name is given to `blob` when it is durable here, before the row's transaction;
 *   - what a transaction changed (SQLite's session extension, https://www.sqlite.org/sessionintro.html) is given to `commit`, as
 *     the last thing before the local COMMIT. The entries of the log are numbered from 1, and the database knows the last one that
 *     is in it (meta, "cluster_seq", within the same transaction).
 * So the log has every change before this database has it, the database is always a prefix of the log, and a crash between the
 * two is mended by applying the entry, as every follower does.
 * Without a cluster none of this runs: one comparison with NULL per transaction. */

/* What an entry changes. */
struct mfl_store_change {
        uint64_t seq;
        uint32_t schema;
        const void *bytes; /* a changeset */
        size_t n;
        const char *whole; /* or, if not NULL, this file is the whole database as it is after the entry */
        uint64_t whole_bytes;
        uint8_t whole_sha256[32];
        bool first; /* it has new tables: nothing else is done before */
};
#define MFL_STORE_CHANGE_MAX ((size_t)512 << 10) /* bytes; larger ones are sent as the whole database */
/* So the log has no more entries than that, unless the other servers can't take the file: then it is tried again a little later, and changes go
 * on, MFL_STORE_WHOLE_LATE of them. */
#define MFL_STORE_WHOLE_EVERY 512u
#define MFL_STORE_WHOLE_LATE 2048u

/* Both may block (blob with waits: as long as it gets anywhere, which is for a thread of its own), and return 0, or MFL_STORE_FULL or MFL_STORE_AGAIN with a text: then nothing is committed, as far as this store
 * is concerned, and the caller may try again. If the entry was written after all, or another server leads, the cluster closes the
 * server. */
struct mfl_store_cluster {
        int (*blob)(void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, bool waits,
                struct mfl_error *err);
        int (*commit)(void *user, const struct mfl_store_change *change, struct mfl_error *err);
        void *user;
};
/* As mfl_store_open; cluster NULL is mfl_store_open. It outlives the store. MFL_EXISTS: the directory belongs to a cluster, and
 * cluster is NULL, or the other way round. */
int mfl_store_open_in(const char *state_dir, const struct mfl_store_cluster *cluster,
        struct mfl_store **ret_store, struct mfl_error *err);

#endif
