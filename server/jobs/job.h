/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in the shell: their memory, their files and their rows, while the core decides. Each order of the core
 * that takes time goes to a worker and ends in exactly one event, or in the end of the process when memory or
 * the database is broken:
 *
 *   prepare      graph, last committed round, memory, params   JOB_READY or JOB_PREPARE_FAILED
 *   slot_add     check and add an upload                       ADDED
 *   apply        the strategy                                  APPLIED
 *   checkpoint   the file (disk worker)                        CHECKPOINTED; a full disk: ok = false
 *   commit       the database row (disk worker)                COMMITTED; a full disk: ok = false
 *   release      the memory goes when nothing uses it          none
 *
 * Loop thread only, except the run functions of work. A job's object lives until the job is deleted, its
 * runtime until the core releases it.
 */
#ifndef MFL_SERVER_JOBS_JOB_H
#define MFL_SERVER_JOBS_JOB_H

#include "common/base/budget.h"
#include "common/job/job.h"
#include "common/stats/stats.h"
#include "server/jobs/node_cost.h"
#include "server/loop/loop.h"
#include "server/observe/observed.h"
#include "server/runtime/runtime.h"
#include "server/store/store.h"

struct mfl_server_job;

/* A daemon asks for what is added to the gradients of a client's training. */
struct mfl_correction_ask {
        uint32_t conn;
        uint64_t client, offset;          /* offset: floats that it has */
        uint8_t digest[MFL_DIGEST_BYTES]; /* of the round's params */
};

/* What the owner of the jobs does for them. */
struct mfl_jobs_ops {
        /* Sends a message to the daemon of that connection, if it is still there. */
        void (*send)(void *user, uint32_t conn, const struct mfl_msg *msg);
        /* The bytes of an update that came inside of its Announce, while the core processes that; NULL: it
         * must be uploaded. They are handed over once, and valid during the call of the core. */
        const void *(*inside)(void *user, uint32_t conn, uint64_t task, uint32_t update, size_t *ret_bytes);
        /* What mfl_server_job_correct has found. correction NULL: nothing, ask again later. Borrowed. */
        void (*corrected)(void *user, struct mfl_server_job *job, const struct mfl_correction_ask *ask,
                struct mfl_params *correction);
        /* A round is committed: job->last. */
        void (*committed)(void *user, struct mfl_server_job *job);
        /* Asks the sites for statistics of the job's data set, and later calls mfl_server_job_measured. False: fewer than n_sites have it, or not now. */
        bool (*measure)(void *user, struct mfl_server_job *job, uint32_t n_sites);
        /* The job is done, failed or stopped. */
        void (*ended)(void *user, struct mfl_server_job *job);
};

struct mfl_jobs {
        struct mfl_loop *loop;
        struct mfl_store *store;
        struct mfl_budget *budget;
        struct mfl_disk_seen *disk;
        uint32_t slots; /* staging buffers of each job; 0: by the model's size */
        bool allow_simulation;
        bool tls; /* daemons come with certificates */
        const struct mfl_plugins *plugins;
        const struct mfl_privacy_limits *limits; /* of data sets (server/jobs/spent.h); NULL: none */
        const struct mfl_jobs_ops *ops;
        void *user;
        struct mfl_server_job *first; /* the oldest */
        /* Where the last job has moved that left after the newest one came (server/move/move.h): with nothing left to do, daemons are
         * sent there; "": nowhere. */
        char moved_to[256];
        uint64_t ended[MFL_JOB_STOPPED + 1]; /* since the start, by state */
};

/* Where a job stands between the core and its memory. */
enum mfl_job_stage {
        MFL_STAGE_STORED,    /* only in the database: ended, or about to be added */
        MFL_STAGE_ADDED,     /* the core has it; no memory yet */
        MFL_STAGE_READY,     /* its runtime is there */
        MFL_STAGE_RELEASING, /* the core has released it; its memory goes when no operation runs */
};

struct mfl_server_job {
        char id[MFL_JOB_ID_BYTES];
        struct mfl_jobs *jobs;
        struct mfl_server_job *next;
        char owner[MFL_OWNER_BYTES];
        char *text;
        struct mfl_job *spec;
        enum mfl_job_state state;
        bool unread; /* this release can't read its text: spec is a stand-in, state is FAILED if it had not ended, and the database keeps what it had */
        char reason[MFL_REASON_BYTES];
        uint64_t created_unix_ms, finished_unix_ms;
        uint64_t archived_unix_ms; /* 0: it is not archived */
        uint32_t committed;
        uint32_t last_round; /* privacy: none follows it; workers only */
        uint64_t n_params, n_frozen;
        bool has_last, has_evaluated, has_best;
        struct mfl_store_round last, evaluated, best;
        enum mfl_job_stage stage;
        uint32_t operations; /* on a worker, and chunks that are landing */
        uint32_t computing;  /* operations on the worker of sums */
        struct mfl_graph *graph;
        struct mfl_runtime *runtime;    /* not NULL when READY */
        struct mfl_node_costs costs[2]; /* of the round opened last, and of the one before, which may not be
                                           committed yet */
        bool per_token;                 /* its losses are per token */
        uint64_t version;               /* rises with each change that watchers see */
        struct mfl_data_info data;
        char data_from[MFL_NAME_BYTES];
        uint32_t stop_after;   /* 0: nobody asked for it */
        bool state_unwritten;  /* the disk has not taken `state` yet */
        bool metrics_off;      /* they have crashed too often; workers only */
        bool prepared_stored;  /* what PREPARE found is in the database; workers only, one after the other */
        uint32_t checkpointed; /* round of `file` and `frozen_file` */
        uint32_t written;      /* the same, but most servers of the cluster do not have them yet; 0: none */
        bool frozen_given;     /* most servers have `frozen_file` */
        struct mfl_store_file file, frozen_file, states_file;
        char choice[MFL_STORE_CHOICE_BYTES]; /* of the round applied last */
        uint64_t releases_max;               /* privacy: that the budget allows; workers only */
        struct mfl_job_observed observed;
        struct {                          /* data.normalise: federated (job_measure.c) */
                struct job_operation *op; /* that waits for it; NULL: none */
                bool asked, text_unstored;
                uint64_t next_ms;
        } measure;
        bool registered;                     /* a round of it is a registered model: it is not deleted */
        bool has_partition;                  /* of a population: stored, or on its way to the store */
        char partition_from[MFL_NAME_BYTES]; /* the daemon that sent it */
};

/* ---- the list ---- */
struct mfl_server_job *mfl_server_job_find(const struct mfl_jobs *jobs, const char *id); /* NULL: none */
/* At start and after Submit: loads the job from its row and appends it. */
int mfl_server_job_new(struct mfl_jobs *jobs, const struct mfl_store_job *row,
        struct mfl_server_job **ret_job, struct mfl_error *err);
/* At start, of a job whose file another release took and this one refuses, as `why` says: users see it failed with that reason, unless it had ended, and may
 * pull its rounds' files, archive or delete it. */
int mfl_server_job_new_unread(struct mfl_jobs *jobs, const struct mfl_store_job *row, const char *why,
        struct mfl_server_job **ret_job, struct mfl_error *err);
/* Hands an unfinished job to the core. Blocking. */
int mfl_server_job_start(struct mfl_server_job *job, struct mfl_error *err);
/* Where daemons are to go, because no job is left here, and one has moved; NULL: they stay. */
const char *mfl_jobs_moved_to(const struct mfl_jobs *jobs);
/* A few times a second. */
void mfl_server_job_measure_beat(struct mfl_server_job *job);
/* What the sites have said; stats valid if answered > 0. told: a line about those that have refused or failed; "": none. */
void mfl_server_job_measured(struct mfl_server_job *job, const struct mfl_stats *stats, uint32_t answered,
        uint32_t silent, const char *told);
/* Removes the job from the list and frees it; not while operations run. */
void mfl_server_job_free(struct mfl_server_job *job);
/* At the end of the process, when the workers are closed. */
void mfl_jobs_close(struct mfl_jobs *jobs);

struct mfl_team_totals mfl_server_job_teams(const struct mfl_server_job *job);
static inline bool mfl_server_job_in_core(const struct mfl_server_job *job)
{
        return job->stage != MFL_STAGE_STORED;
}

static inline bool mfl_server_job_has_ended(const struct mfl_server_job *job)
{
        return job->state >= MFL_JOB_DONE;
}

/* The number that is in an id: ids grow with it, in the order of the list. "": 0. */
static inline uint64_t mfl_server_job_number(const char *id)
{
        return strtoull(id + strcspn(id, "0123456789"), NULL, 10);
}

/* Watchers shall look at it again. */
static inline void mfl_server_job_changed(struct mfl_server_job *job)
{
        job->version++;
}

/* ---- the core's orders ---- */
/* Carries out an action about this job. */
void mfl_server_job_act(struct mfl_server_job *job, const struct mfl_core_action *action);
/* About once a second: writes the state that the disk did not take before. */
void mfl_server_job_retry_state(struct mfl_server_job *job);

/* ---- uploads ---- */
/* Something uses the job's memory: it stays until the use ends. */
void mfl_server_job_use(struct mfl_server_job *job);
void mfl_server_job_unuse(struct mfl_server_job *job);
/* Finds what is added to the gradients of a client's training; ops->corrected follows, later. */
void mfl_server_job_correct(struct mfl_server_job *job, const struct mfl_correction_ask *ask);
/* A chunk has arrived: what lies in the slot without a gap may be added already. */
void mfl_server_job_slot_ahead(struct mfl_server_job *job, uint32_t slot);
/* Bytes of the current round that came from or went to a daemon. */
void mfl_server_job_cost_bytes(struct mfl_server_job *job, uint32_t conn, uint64_t up, uint64_t down);

#endif
