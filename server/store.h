/* SPDX-License-Identifier: Apache-2.0 */
/* The server's memory across crashes: a SQLite database (jobs, rounds, log lines) and one safetensors file
 * per kept checkpoint (DESIGN section 8).
 *
 *      STATE_DIR/lock                               flock of the one server
 *      STATE_DIR/mfl.db                             WAL, synchronous=FULL
 *      STATE_DIR/mfl.db.schema-2.bak                as it was before the last upgrade
 *      STATE_DIR/uploads/                           initial params being received; emptied at open
 *      STATE_DIR/jobs/j-000001/initial.f32          initial params that were uploaded: raw little-endian
 * floats STATE_DIR/jobs/j-000001/frozen.safetensors   of a job with frozen params: those, once
 *      STATE_DIR/jobs/j-000001/round-000012.safetensors   the other params, and the strategy's state
 *
 * A round is committed so: the checkpoint's files (each tmp, fsync, rename, fsync directory), then one
 * transaction with the round's row, which names the files and their SHA-256, and what retention drops; then
 * the dropped files are unlinked. Frozen params are written with the first round that is committed, and named
 * by every row after it; rounds of releases before schema 6 have all params in their own file. So a damaged
 * frozen.safetensors takes all rounds with it, and the job begins anew. A crash anywhere leaves the old round
 * or the new one, whole; files without a row are removed at open, with a log line. Fault points: those of
 * common/fs.h, "before-db-commit", "after-db-commit" (every transaction), "before-unlink", "after-unlink".
 *
 * Threads: any; calls are serialised inside (writing a checkpoint's file is not). All calls may block on the
 * disk: worker threads, and the start of the program.
 *
 * Errors, positive: MFL_STORE_FULL and MFL_STORE_AGAIN leave everything as it was and may be tried again
 * later; MFL_INVALID, MFL_NOT_FOUND, MFL_EXISTS, MFL_BUSY as said below. Negative: the database is corrupt,
 * or memory is out.
 */
#ifndef MFL_SERVER_STORE_H
#define MFL_SERVER_STORE_H

#include "server/core.h"
#include "server/runtime.h"

enum {
        MFL_STORE_FULL = 16,    /* no space left (ENOSPC, EDQUOT, SQLITE_FULL) */
        MFL_STORE_AGAIN = 17,   /* another disk error that may pass (EIO, EMFILE, a busy database) */
        MFL_STORE_LOCKED = 18,  /* open: another server has this state directory */
        MFL_STORE_NEWER = 19,   /* open: written by a newer version */
        MFL_STORE_DAMAGED = 20, /* open: the database is not one of ours, or not any more */
        MFL_STORE_RULES_FULL = 21,
};

#define MFL_TOKEN_BYTES 64
#define MFL_OWNER_BYTES 64
#define MFL_STORE_LOG_LINES_MAX 10000 /* per job; the oldest go */
#define MFL_STORE_PATH_BYTES 4096

struct mfl_store;

/* Makes or opens the directory, takes the lock, migrates the schema, raises the boot counter, removes
 * orphans. Before a migration the database is saved as mfl.db.schema-N.bak (N: the schema that it has), which
 * the version before can be started with; the one of the last migration is kept. Fault points:
 * "before-migration-save", "after-migration-save", then those of the transaction. */
int mfl_store_open(const char *state_dir, struct mfl_store **ret_store, struct mfl_error *err);
void mfl_store_close(struct mfl_store *store); /* flushes log lines; NULL is fine */
/* The number of this start: Unix seconds, or one more than the last one's where that is more. So a directory
 * that was lost and begun anew does not give out the numbers of the one before. */
uint32_t mfl_store_boot(const struct mfl_store *store);
const char *mfl_store_dir(const struct mfl_store *store);

/* ---- jobs ---- */
struct mfl_store_job {
        char id[MFL_JOB_ID_BYTES];
        char name[MFL_NAME_BYTES];
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        char token[MFL_TOKEN_BYTES];
        char owner[MFL_OWNER_BYTES];      /* "" for jobs of before there were owners */
        uint64_t created_ms, finished_ms; /* Unix time; 0: not yet */
        bool has_initial;                 /* initial.f32 */
        /* Known once the job has been prepared (mfl_store_job_prepared), else zero. */
        struct mfl_data_info data;
        char data_from[MFL_NAME_BYTES]; /* the daemon whose data these are */
        uint64_t n_params;
        uint64_t n_frozen;   /* of them; 0 also of a job of which all travel in the order of layers */
        uint32_t committed;  /* last committed round */
        uint32_t stop_after; /* it ends when that round is committed; 0: with its last */
        char *text;          /* the job file; owned; NULL where said so */
};
void mfl_store_job_deinit(struct mfl_store_job *job);
struct mfl_store_jobs {
        uint32_t n;
        struct mfl_store_job *v;
};
void mfl_store_jobs_deinit(struct mfl_store_jobs *jobs);

/* Initial params on their way in. write: any number of bytes; more than expected is MFL_INVALID. */
struct mfl_store_upload;
int mfl_store_upload_begin(struct mfl_store *store, uint64_t n_floats, struct mfl_store_upload **ret_upload,
        struct mfl_error *err);
int mfl_store_upload_write(
        struct mfl_store_upload *upload, const void *data, size_t bytes, struct mfl_error *err);
void mfl_store_upload_discard(struct mfl_store_upload *upload); /* NULL is fine */

/* A new job in state WAITING. token: "" for none; one that is known gives the job's id and MFL_EXISTS. upload
 * (NULL: none) must be whole, else MFL_INVALID; it is used up by success only. */
int mfl_store_job_add(struct mfl_store *store, const char *name, const char *text, const char *token,
        const char *owner, struct mfl_store_upload *upload, char ret_id[MFL_JOB_ID_BYTES],
        struct mfl_error *err);
/* A new job of the same text and initial params. */
int mfl_store_job_clone(struct mfl_store *store, const char *id, const char *token, const char *owner,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err);
/* finished_ms is set by the first DONE, FAILED or STOPPED. */
int mfl_store_job_set_state(struct mfl_store *store, const char *id, enum mfl_job_state state,
        const char *reason, struct mfl_error *err);
int mfl_store_job_prepared(struct mfl_store *store, const char *id, const struct mfl_data_info *data,
        const char *data_from, uint64_t n_params, uint64_t n_frozen, struct mfl_error *err);
int mfl_store_job_stop_after(struct mfl_store *store, const char *id, uint32_t round, struct mfl_error *err);
/* Rows and files. MFL_BUSY unless it is DONE, FAILED or STOPPED. */
int mfl_store_job_delete(struct mfl_store *store, const char *id, struct mfl_error *err);
/* With its text. MFL_NOT_FOUND. */
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
struct mfl_store_round {
        struct mfl_round_record record;
        uint64_t bytes_up, bytes_down;
        uint64_t bytes_up_alone, bytes_down_alone; /* had no daemons shared a node */
        uint64_t committed_ms;                     /* Unix time */
        bool kept;                                 /* its file is there */
        struct mfl_store_file file;
        struct mfl_store_file frozen; /* the params that `file` has not; name "": it has all */
};
struct mfl_store_rounds {
        uint32_t n;
        struct mfl_store_round *v;
};
void mfl_store_rounds_deinit(struct mfl_store_rounds *rounds);

/* What one node's part in one round cost on the network: bytes. */
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
#define MFL_STORE_NODE_ROUNDS_MAX 100 /* of a job, the newest, whose rows are kept */
void mfl_store_nodes_deinit(struct mfl_store_nodes *nodes);

/* CHECKPOINT: writes round's file, and that of the frozen params where no committed round names one; durable
 * when this returns 0. Again after a failure, or for a round that was begun before a crash, is fine. Tensors:
 * those of the graph's table that move, then "strategy/STATE/TENSOR" for each state vector. ret_frozen: its
 * name is "" where nothing is frozen. */
int mfl_store_checkpoint(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_store_file *ret_file,
        struct mfl_store_file *ret_frozen, struct mfl_error *err);
/* COMMIT: the row, with retention: kept are the newest, the best (accuracy, then lower loss, then the later;
 * among evaluated ones) and `keep` more, the newest first. Repeating it is fine. round->committed_ms and kept
 * are set here. nodes: the round's rows, each node once; `round` in them is not looked at. */
int mfl_store_commit(struct mfl_store *store, const char *id, struct mfl_store_round *round,
        const struct mfl_store_nodes *nodes, uint32_t keep, struct mfl_error *err);
/* Rows of the newest rounds, all of a round's or none, at most limit: by round, then by node. */
int mfl_store_node_list(struct mfl_store *store, const char *id, uint32_t limit,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err);
/* Rounds in (after, ...], ascending, the newest `limit` of them (0: all). */
int mfl_store_round_list(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err);
/* Rounds in (after, ...], ascending, the oldest `limit` of them. */
int mfl_store_round_page(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err);
#define MFL_STORE_NEWEST ((int64_t)-1)
#define MFL_STORE_BEST ((int64_t)-2)
#define MFL_STORE_EVALUATED ((int64_t)-3) /* the newest one that was evaluated */
/* A committed round, by number or as named above. kept_only: among those whose file is there.
 * MFL_NOT_FOUND. */
int mfl_store_round_get(struct mfl_store *store, const char *id, int64_t which, bool kept_only,
        struct mfl_store_round *ret_round, struct mfl_error *err);
/* The path of a file in the job's directory ("initial.f32", file.name). Returns buf. */
const char *mfl_store_path(
        const struct mfl_store *store, const char *id, const char *file, char buf[MFL_STORE_PATH_BYTES]);

/* Where an unfinished job goes on: the last committed round whose files are there with the right SHA-256. A
 * missing or damaged file is passed over with a log line, and the rounds after the one found are struck
 * (superseded) in the database. */
struct mfl_store_resume {
        uint32_t round;                             /* 0: from the start */
        char checkpoint_path[MFL_STORE_PATH_BYTES]; /* "" for round 0 */
        char frozen_path[MFL_STORE_PATH_BYTES];     /* "": nothing lies apart */
        char initial_path[MFL_STORE_PATH_BYTES];    /* round 0 with uploaded params, else "" */
        uint8_t digest[MFL_DIGEST_BYTES];           /* of the params; zero for round 0 */
        uint32_t passed_over;                       /* damaged rounds */
};
int mfl_store_resume(
        struct mfl_store *store, const char *id, struct mfl_store_resume *ret_resume, struct mfl_error *err);

/* ---- daemons ---- */
/* Daemons that an administrator has drained stay so over a restart of the server. "*", which is no daemon's
 * name, stands for all of them. */
int mfl_store_drain(struct mfl_store *store, const char *daemon, bool on, struct mfl_error *err);
struct mfl_store_names {
        uint32_t n;
        char (*v)[MFL_NAME_BYTES];
};
int mfl_store_drained(struct mfl_store *store, struct mfl_store_names *ret_names, struct mfl_error *err);
void mfl_store_names_deinit(struct mfl_store_names *names);

/* Which daemons may take part (server/access.h); the numbers are those of the wire. */
enum mfl_verdict {
        MFL_VERDICT_DENY = 1,
        MFL_VERDICT_ALLOW = 2,
};
struct mfl_store_rule {
        char pattern[MFL_ACCESS_PATTERN_BYTES];
        enum mfl_verdict verdict;
        char who[MFL_OWNER_BYTES];
        uint64_t time_ms, until_ms; /* Unix time; until_ms 0: for good */
        char reason[MFL_ACCESS_REASON_BYTES];
};
struct mfl_store_rules {
        uint32_t n;
        struct mfl_store_rule *v;
};
/* In the place of one with the same pattern and verdict. MFL_STORE_RULES_FULL: there are MFL_ACCESS_RULES_MAX
 * of others, not counting those whose end has come, which go. */
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
/* The newest, at most limit, the oldest of them first. v is freed with free(). */
int mfl_store_audit_list(
        struct mfl_store *store, uint32_t limit, struct mfl_store_audits *ret_audits, struct mfl_error *err);

/* ---- partitions ---- */
/* How a job's data are divided, as a daemon has told: bytes that the store does not look into. daemon "": of
 * the whole population, and the first is kept; else of that daemon's own data, and the newest is kept, of at
 * most MFL_STORE_SITES_MAX daemons. */
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
/* Keeps a line in memory; it is written with the next transaction, or by flush (once a second is right). A
 * crash loses what was not written. id may be "" (the server's own lines). Cheap and never blocks on the
 * disk: loop thread too. Lines beyond 4096 waiting ones are dropped, and counted in a line. */
void mfl_store_log(struct mfl_store *store, const char *id, const char *text, uint64_t *ret_seq);
int mfl_store_flush(struct mfl_store *store, struct mfl_error *err);
/* Lines with seq > after, ascending, at most limit. Flushes first; what the disk does not take is listed from
 * memory. */
int mfl_store_log_list(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct mfl_store_lines *ret_lines, struct mfl_error *err);

#endif
