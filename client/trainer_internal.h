/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer's files share: memory budgets, threads, jobs kept warm, one task at work. */
#ifndef MFL_CLIENT_TRAINER_INTERNAL_H
#define MFL_CLIENT_TRAINER_INTERNAL_H

#include <pthread.h>

#include "client/trainer.h"
#include "common/data/partition.h"
#include "common/job.h"

/* ---- memory: trainer_memory.c ---- */

/* A result's buffer that other daemons may read. */
struct trainer_shared {
        struct mfl_share_buffer *buffer;
        uint64_t bytes;
        struct trainer_shared *next;
};

/* A result's sum on the device. */
struct trainer_held {
        struct mfl_sum *sum;
        uint64_t n, bytes; /* of the device's memory */
        struct trainer_held *next;
};

/* Result buffers that nobody uses wait in `idle`; its head lies in the buffer's own first bytes. */
struct trainer_memory {
        pthread_mutex_t lock;
        struct mfl_budget *budget, own; /* idle buffers are charged too */
        uint64_t used;                  /* by this trainer */
        struct trainer_idle *idle;
        struct trainer_shared *idle_shared;
        struct trainer_held *idle_held; /* of the device's memory */
        void (*held_free)(struct mfl_sum *sum);
};
int trainer_memory_init(struct trainer_memory *memory, struct mfl_budget *budget, struct mfl_error *err);
void trainer_memory_deinit(struct trainer_memory *memory);
/* MFL_INVALID with what and the sizes. Idle buffers are freed first where that helps. */
int trainer_memory_reserve(
        struct trainer_memory *memory, uint64_t bytes, const char *what, struct mfl_error *err);
void trainer_memory_release(struct trainer_memory *memory, uint64_t bytes);
int trainer_buffer_get(struct trainer_memory *memory, uint64_t bytes, const char *what, void **ret_buffer,
        struct mfl_error *err);
void trainer_buffer_put(struct trainer_memory *memory, void *buffer, uint64_t bytes);
/* The same in shared memory; other daemons may read a buffer that was put back, so it is used again only when
 * none does. MFL_INVALID also when the share has no room. */
int trainer_shared_get(struct trainer_memory *memory, struct mfl_share *share, uint64_t bytes,
        struct trainer_shared **ret_shared, struct mfl_error *err);
void trainer_shared_put(struct trainer_memory *memory, struct trainer_shared *shared); /* NULL is fine */
/* The same on a device; holds zeros. */
int trainer_held_get(struct trainer_memory *memory, const struct mfl_backend_ops *ops,
        struct mfl_device *device, uint64_t n, struct trainer_held **ret_held, struct mfl_error *err);
void trainer_held_put(struct trainer_memory *memory, struct trainer_held *held); /* NULL is fine */
void trainer_memory_trim(struct trainer_memory *memory);
/* What is left of the budget; UINT64_MAX without a limit. */
uint64_t trainer_memory_left(struct trainer_memory *memory);

/* ---- threads: trainer_pool.c ---- */

struct trainer_pool {
        pthread_mutex_t lock;
        pthread_cond_t start, done;
        struct trainer_thread *threads;
        uint32_t n, n_wanted, n_busy;
        uint64_t generation;
        bool stop;
        void (*fn)(void *arg, uint32_t worker);
        void *arg;
};
int trainer_pool_init(struct trainer_pool *pool, uint32_t n, struct mfl_error *err);
void trainer_pool_deinit(struct trainer_pool *pool);
/* Calls fn(arg, w) for w in [0, n) at the same time; returns when all have. n <= the pool's. */
void trainer_pool_run(
        struct trainer_pool *pool, uint32_t n, void (*fn)(void *arg, uint32_t worker), void *arg);

/* ---- jobs: trainer_job.c ---- */

#define CHUNK_EVAL_BATCHES 4u

/* Where a client's local training stands. */
struct trainer_local {
        uint64_t client;
        const uint32_t *samples;
        uint32_t n;
        uint64_t n_steps, step; /* in all; next */
        uint64_t epoch;         /* next to be shuffled */
        uint32_t at;            /* position within the epoch's order */
};

/* One group of a network: a client in training, or none. A lane whose client is done takes the next one at
 * once, so clients of different sizes keep the device full. */
struct trainer_lane {
        bool active;
        uint32_t item; /* of the task */
        uint64_t weight, busy_ns;
        struct trainer_local local;
        uint32_t *order; /* the client's samples, shuffled */
};

/* One worker's own of one job. */
struct trainer_slot {
        struct mfl_net *train, *eval;
        uint32_t n_lanes;  /* G, the training network's groups */
        uint32_t n_wanted; /* clients that it was made for */
        struct trainer_lane *lanes;
        struct mfl_group_steps *groups;
        uint64_t *weight, *n_bad;             /* each lane's, in sum_add */
        float *after;                         /* params that move after a training, then the delta */
        float *lr_scale;                      /* n_lanes * steps_max; NULL: the learning rate is constant */
        uint32_t *index;                      /* n_lanes * steps_max * rows of a step */
        uint32_t *count;                      /* n_lanes * steps_max */
        uint32_t steps_max;                   /* of one call of the backend */
        uint32_t chunk_steps;                 /* adapts to CHUNK_NS */
        bool sum_used;                        /* the network's own sum may hold something */
        uint64_t train_told_ns, eval_told_ns; /* what the networks have spent on batches and was counted */
};

struct trainer_data {
        const struct mfl_dataset *dataset;
        uint64_t fingerprint;
        struct mfl_device_data *train, *test; /* made when first needed */
        bool train_streamed, test_streamed;
        uint64_t device_bytes; /* reserved */
};

struct trainer_job {
        char id[MFL_JOB_ID_BYTES];
        char *text;
        struct mfl_job *spec;
        struct mfl_graph *graph;
        struct trainer_data *data;
        struct mfl_partition *partition;
        uint32_t samples_max; /* of the largest client */
        uint32_t *test_index; /* 0, 1, 2, .. */
        uint32_t n_slots;     /* workers of the daemon / threads of a client */
        struct trainer_slot *slots;
        uint64_t bytes, device_bytes; /* reserved, of the host's memory and of the device's own */
        bool told_ungrouped;
        struct trainer_job *next;
};

struct mfl_trainer {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_info info;
        uint32_t workers;
        uint64_t local_item;
        uint32_t n_data;
        struct trainer_data *data;
        struct trainer_memory memory, device_memory; /* the second only where the device has its own */
        struct trainer_pool pool;
        struct mfl_share *share;           /* NULL: none */
        struct mfl_collective *shm, *nccl; /* NULL: none */
        struct mfl_activity *activity;     /* NULL: none */
        struct trainer_job *jobs;          /* last used first */
        bool no_room;                      /* why the last trainer_job_prepare failed, if it did */
};

/* The rows of an optimizer step: batch * accumulate. */
static inline uint32_t trainer_step_rows(const struct mfl_job *spec)
{
        return spec->training.batch * spec->training.accumulate;
}

/* The job of a request, made or found. */
int trainer_job_get(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err);
/* Sees to it that the first n slots are fit for the kind of task; n_items: of the task. */
int trainer_job_prepare(struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind,
        uint32_t n, uint32_t n_items, struct mfl_error *err);
void trainer_job_free(struct mfl_trainer *trainer, struct trainer_job *job);
/* The samples of an item: MFL_INVALID for one that the job does not have. */
int trainer_job_client(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err);

/* trainer_advice.c: a training network of these options is more than `room` bytes. Appends to the text of the
 * refusal, which may not be NULL, what of the job could be changed and what it would take then. */
void trainer_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint64_t room, struct mfl_error *err);

/* ---- one task: trainer.c, trainer_train.c, trainer_eval.c ---- */

#define STRIPES 64u

struct trainer_item {
        uint64_t weight, samples, correct, train_us;
        int64_t loss_sum;
        char *rejected; /* reason; NULL: counted */
};

struct trainer_run {
        struct mfl_trainer *trainer;
        struct trainer_job *job;
        const struct mfl_train_request *request;
        struct mfl_train_result *result;
        struct trainer_item *items;
        _Atomic uint32_t next; /* item, or unit of evaluation */
        atomic_bool stop;      /* someone failed */
        pthread_mutex_t lock;  /* of code and err */
        int code;
        struct mfl_error err;
        int64_t *sum;         /* MFL_ENCODING_I64 */
        bool alone;           /* no place that the group reaches is wanted */
        bool unprepared;      /* for want of memory */
        struct mfl_sum *held; /* where networks' sums go first, if not NULL */
        uint64_t stripe;      /* elements under one lock */
        pthread_mutex_t stripes[STRIPES];
        /* evaluation */
        struct trainer_unit *units;
        uint32_t n_units;
        pthread_mutex_t eval_lock;
};

/* A result together with what its buffers need to go back. */
struct trainer_result {
        struct mfl_train_result base;
        enum mfl_encoding encoding;
        enum mfl_collective_kind kind; /* grouped: how */
        struct trainer_shared *shared; /* data[0] lies in it */
        struct trainer_held *held;
};

/* trainer_group.c: gives the result of a group's task a place that the group reaches, if there is one; else
 * nothing changes. Negative: this process can't go on. */
int trainer_group_place(struct trainer_run *run, struct trainer_result *result, struct mfl_error *err);
void trainer_group_leave(struct mfl_trainer *trainer, struct trainer_result *result);

/* n of the daemon's workers turn from one thing to another. */
static inline void trainer_turn(
        struct mfl_trainer *trainer, uint32_t n, enum mfl_activity_work from, enum mfl_activity_work to)
{
        if (trainer->activity)
                mfl_activity_move(trainer->activity, n, from, to, mfl_now_ns());
}
/* How many of the daemon's workers one network takes. */
static inline uint32_t trainer_width(const struct trainer_run *run)
{
        return MFL_MIN(run->trainer->workers, MFL_MAX(1u, run->job->spec->training.threads));
}
/* A network has been at work until now: samples it trained, and what it has spent on batches (all calls so
 * far), of which *told_ns was counted before; reads_ns: what the trainer has spent on their indices. */
void trainer_count(struct trainer_run *run, struct mfl_net *net, uint64_t samples, uint64_t reads_ns,
        uint64_t now_ns, uint64_t *told_ns);

/* Keeps the first failure and tells the other threads to stop. */
void trainer_run_fail(struct trainer_run *run, int code, const struct mfl_error *err);
/* True when the thread should come back: somebody failed, or the task is cancelled. */
bool trainer_run_stopped(struct trainer_run *run);

void trainer_train_worker(void *arg, uint32_t worker); /* arg: struct trainer_run */
int trainer_train_result(struct trainer_run *run, struct mfl_error *err);
int trainer_eval_units(struct trainer_run *run, struct mfl_error *err);
void trainer_eval_worker(void *arg, uint32_t worker);

#endif
