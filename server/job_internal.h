/* SPDX-License-Identifier: Apache-2.0 */
/* What job.c and the other files of a job in the shell share: operations on the workers. */
#ifndef MFL_SERVER_JOB_INTERNAL_H
#define MFL_SERVER_JOB_INTERNAL_H

#include "server/server.h"

struct job_operation {
        struct mfl_work work;
        struct mfl_server_job *job;
        struct mfl_core_event event; /* what it ends in */
        int status;
        struct mfl_error err;
        union {
                struct {
                        struct mfl_data_info data;
                        char data_from[MFL_NAME_BYTES];
                        struct mfl_graph *graph;
                        struct mfl_runtime *runtime;
                        uint32_t population;
                } prepare;
                struct {
                        uint32_t slot;
                        uint64_t weight, item;
                } add;
                uint64_t weight; /* apply */
                uint32_t round;  /* checkpoint */
                struct {
                        struct mfl_store_round commit;
                        struct mfl_store_nodes nodes;
                };
                struct {
                        enum mfl_job_state state;
                        uint32_t stop_after;
                };
        };
        struct mfl_store_file file, frozen;
};

/* One of the core's orders on its way through a worker. `run` works there, `done` back on the loop, where it
 * ends with job_operation_end, or is job_operation_finish, which does only that. NULL: memory is out, and the
 * process ends. */
struct job_operation *job_operation_new(struct mfl_server_job *job, enum mfl_core_event_kind ends_in,
        void (*run)(struct mfl_work *), void (*done)(struct mfl_work *));
void job_operation_start(struct job_operation *op, struct mfl_worker *worker);
/* The common end: tells the core, unless the worker was closed or something broke. */
void job_operation_end(struct job_operation *op);
void job_operation_finish(struct mfl_work *work);

static inline struct job_operation *job_operation_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct job_operation, work);
}

static inline void job_fatal(struct mfl_server_job *job, int code, const struct mfl_error *err)
{
        mfl_server_fatal(job->server, code, err);
}

static inline bool job_is_per_token(const struct mfl_graph *graph)
{
        return graph->vocabulary && graph->positions > 1;
}

#endif
