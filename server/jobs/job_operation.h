/* SPDX-License-Identifier: Apache-2.0 */
/* An order of the core on its way through a worker: begun on the loop, ended there in at most one event.
 *
 *     NEW --start--> QUEUED --(run on the worker, done on the loop)--> ENDED
 *      |               ^ |
 *      |               +-+ again: the runtime was busy
 *      +--run here------------------------------------------------> ENDED
 *
 * While an operation runs, it uses the job's memory; the last one that ends lets a released job's
 * memory go.
 */
#ifndef MFL_SERVER_JOBS_JOB_OPERATION_H
#define MFL_SERVER_JOBS_JOB_OPERATION_H

#include "server/jobs/job.h"

/* What privacy adds to a prepared job (job_private.c). */
struct job_private {
        uint64_t select_seed;
        uint32_t last_round; /* 0: no limit */
};

enum job_operation_state {
        OPERATION_NEW,
        OPERATION_QUEUED,
        OPERATION_ENDED,
};

struct job_operation {
        struct mfl_work work;
        struct mfl_server_job *job;
        enum job_operation_state state;
        struct mfl_core_event event; /* what it ends in */
        bool computes;               /* on the worker of sums */
        int status;
        uint32_t round; /* open, apply, checkpoint */
        struct mfl_error err;
        union {
                struct {
                        struct mfl_data_info data;
                        char data_from[MFL_NAME_BYTES];
                        struct mfl_graph *graph;
                        struct mfl_runtime *runtime;
                        uint32_t population;
                        uint64_t virtual_us;
                        struct job_private private;
                        bool opened;                  /* a secure sum */
                        struct mfl_arrival *arrivals; /* recorded of versions that are not committed */
                        uint32_t n_arrivals;
                } prepare;
                uint32_t slot; /* add, ahead */
                struct {
                        struct mfl_round_totals totals; /* apply */
                        const struct mfl_arrival *arrivals;
                        uint32_t n_arrivals;
                };
                struct {
                        const struct mfl_leader *leader; /* note, unmask */
                        uint32_t bucket, n_clients;
                        const uint64_t *clients;
                } secure;
                struct {
                        const int64_t *memory;
                        uint64_t n_memory;
                };
                struct {
                        struct mfl_correction_ask ask;
                        struct mfl_params *params;
                } correction;
                struct {
                        struct mfl_store_round commit;
                        struct mfl_store_nodes nodes;
                        void *scores; /* packed; NULL: none */
                        size_t scores_bytes;
                        uint64_t *sums; /* for metrics; NULL: none */
                        uint32_t answers;
                };
                struct {
                        enum mfl_job_state state;
                        uint32_t stop_after;
                } kept;
        };
        struct mfl_store_file file, frozen, states; /* checkpoint */
        struct mfl_rows_report report;              /* apply */
};

/* `run` works on the worker, `done` back on the loop, where it ends with mfl_job_operation_end, or is
 * mfl_job_operation_finish, which does only that. MFL_EV_NONE: the core does not wait for it. NULL: memory ran
 * out and the process ends. */
struct job_operation *mfl_job_operation_new(struct mfl_server_job *job, enum mfl_core_event_kind ends_in,
        void (*run)(struct mfl_work *), void (*done)(struct mfl_work *));
/* For one that was not started. */
void mfl_job_operation_free(struct job_operation *op);
void mfl_job_operation_start(struct job_operation *op, struct mfl_worker *worker);
/* In `done`: puts it into the queue once more. False: the queue is full or closing. */
bool mfl_job_operation_again(struct job_operation *op, struct mfl_worker *worker);
/* r of a write that must be on the disk before anything else: MFL_BUSY if the disk is full or fails, after a line in the log and a pause.
 * Worker thread. */
int mfl_job_operation_disk(
        const struct mfl_server_job *job, int r, const char *what, const struct mfl_error *err);
/* Runs it here and now; the core hears of it when its step is over. */
void mfl_job_operation_run(struct job_operation *op);
/* The common end: tells the core, unless the worker was closed or something broke. */
void mfl_job_operation_end(struct job_operation *op);
void mfl_job_operation_finish(struct mfl_work *work);

static inline struct job_operation *job_operation_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct job_operation, work);
}

#endif
