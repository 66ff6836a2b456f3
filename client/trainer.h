/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer: carries out one task (training of clients, or evaluation of shards) on a backend, and blocks
 * until it is done. It knows no loop, socket or agent.
 *
 * A task's items are pulled by up to `workers` threads, each with its own network (made once per job, reused
 * over clients, tasks and rounds). A network trains up to G clients at once, each in its own lane; a lane
 * that has finished its client takes the next. G is the job's `fuse`, or what the backend's `fuse` says; the
 * backend's own sum of updates is used where it has one, so that one update leaves the device. A client's
 * result depends on (job, client, round, params) alone; the sum of updates is exact (common/fixed.h). So one
 * task, or the same clients cut into many, on one thread or on many, give the same bits.
 *
 * What a client computes: epoch e of client k in round r goes through a fresh copy of the partition's list of
 * k, shuffled with the stream (seed, MFL_RNG_SHUFFLE, k, r * 65536 + e), in consecutive batches, the last of
 * which may be short. With `steps` there are as many epochs as needed, cut after that many steps. The dropout
 * key is (seed, MFL_RNG_DROPOUT, k, r), that of augmentation (seed, MFL_RNG_AUGMENT, k, r). With partition
 * `local` there is one client, k = mfl_trainer_local_item(name).
 *
 * Memory: networks, scratch and result buffers are reserved from a budget before they are allocated; what
 * does not fit makes the task fail with both sizes in the text. A device with memory of its own has a budget
 * of its own, for networks and data sets; a data set that would take more than half of what is left there is
 * streamed instead. Nothing is allocated per client once every
 * worker's network exists. Result buffers are kept and used again, because fresh pages cost more than the
 * sums.
 *
 * Groups (client/collective.h): a training task that is part of a group makes an exact sum in any case, also
 * of one client, and lays it where the group's other members reach it. shm: the result's buffer is in shared
 * memory. nccl: the sum is held on the device besides, and read into an ordinary buffer once. Where that
 * can't be had (no share, no room), the result is an ordinary one, and a line of the log tells why, once per
 * job. mfl_trainer_combine adds the group's sums into memory of its own, so the daemon's update is there
 * whatever becomes of that.
 *
 * Threads: mfl_trainer_run and mfl_trainer_forget one at a time; mfl_trainer_combine one at a time, also
 * while a task runs; the other functions and the fields of the controls from any thread.
 */
#ifndef MFL_CLIENT_TRAINER_H
#define MFL_CLIENT_TRAINER_H

#include <stdatomic.h>

#include "client/activity.h"
#include "client/collective.h"
#include "client/population.h"
#include "common/base.h"
#include "common/budget.h"
#include "common/data/dataset.h"
#include "kernels/backend.h"
#include "proto/message.h"

enum {
        MFL_CANCELLED = 16, /* control.cancel was set */
};

struct mfl_trainer;

struct mfl_trainer_options {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device; /* outlives the trainer */
        uint32_t workers; /* threads, >= 1; a job with `threads: T` is given workers / T networks, at least 1
                           */
        struct mfl_budget
                *budget; /* networks and results are charged to it; outlives the trainer; NULL: no limit */
        /* Where the device has its own memory (device_info): how much of it networks and data sets may take;
         * 0: nine tenths of what is free when the trainer is made. */
        uint64_t device_memory_bytes;
        const char *name; /* the daemon's */
        uint32_t n_data_sets;
        const struct mfl_dataset *const *data_sets; /* outlive the trainer; the array is copied */
        const uint64_t *fingerprints;               /* one each; copied */
        /* All three outlive the trainer; NULL: none, and results for groups that need it are ordinary ones.
         */
        struct mfl_share *share;
        struct mfl_collective *shm, *nccl;
        struct mfl_activity *activity; /* of `workers` workers; outlives the trainer; NULL: none is kept */
};

/* What the task's starter may watch and do meanwhile. Zeroed before the task. */
struct mfl_train_control {
        atomic_bool cancel; /* noticed between chunks of about 20 ms */
        _Atomic uint32_t items_done;
        _Atomic uint64_t samples_done;
        _Atomic int64_t loss_sum;
};

struct mfl_train_request {
        const struct mfl_task *task;
        const char *job_text; /* terminated */
        const float *frozen;  /* task->n_frozen floats; NULL where that is 0 */
        const float *params;  /* the other task->n_params - n_frozen, which move */
        struct mfl_train_control *control;
        /* NULL, or where the figures of the job's population go, the caller's then, when this call makes it:
         * the job is new here, or its memory had to make room for others'. Set at any time of the call; may
         * be taken by an exchange at once. */
        _Atomic(Mfl__Partition *) *population;
};

/* TRAIN: one update, or one per item with task->single_updates. A task of one client outside a group, and
 * single updates, hold the client's delta (MFL_ENCODING_F32); others the sum (MFL_ENCODING_I64). */
struct mfl_train_result {
        uint64_t n;   /* elements of each update: the params that move */
        bool grouped; /* update 0 lies where members of groups of task->group.collective's kind reach it */
        uint32_t n_updates;
        struct mfl_announce *updates; /* without task, job and round */
        void **data;                  /* updates[i].bytes each; NULL where that is 0 */
        uint32_t n_eval;
        struct mfl_eval_item *eval;
};

int mfl_trainer_new(
        const struct mfl_trainer_options *options, struct mfl_trainer **ret_trainer, struct mfl_error *err);
void mfl_trainer_free(struct mfl_trainer *trainer); /* results first */

/* Errors: MFL_INVALID when this daemon cannot do this task (its job file, data set, backend, memory: the text
 * tells), MFL_CANCELLED; negative when the device or the process is broken. */
int mfl_trainer_run(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct mfl_train_result **ret_result, struct mfl_error *err);
/* Others that still read a shared buffer keep what they have. NULL is fine. */
void mfl_trainer_result_free(struct mfl_trainer *trainer, struct mfl_train_result *result);
/* Lets the members of `group` find a grouped result. Only a rename. MFL_INVALID: it is not grouped, or what
 * mfl_share_publish says. */
int mfl_trainer_publish(struct mfl_trainer *trainer, const struct mfl_train_result *result, uint64_t group,
        struct mfl_error *err);

/* One order to add the sums of a group; zeroed but for what the starter sets. */
struct mfl_train_combine {
        const struct mfl_train_result *result; /* this daemon's; grouped, and kept until the call is back */
        struct mfl_group group;
        uint64_t ranks;       /* bit r: rank r's sum is added */
        uint32_t leader;      /* rank */
        uint32_t deadline_ms; /* from the call on */
        struct mfl_comm_control *control;
        /* Set when this daemon is the leader, before control->ready leaves 0: result->n elements, final up to
         * there, and all of them after success. */
        int64_t *sum;
};
/* Blocks. MFL_INVALID: the result is not grouped in that way, or there is no room for the sum;
 * MFL_COLLECTIVE_BROKEN: a member is gone, it was cancelled, or too late; both with the reason, and the
 * result is as it was. Negative: the device or the process is broken. Whatever it returns, `sum` is given
 * back by mfl_trainer_combine_free. */
int mfl_trainer_combine(
        struct mfl_trainer *trainer, struct mfl_train_combine *combine, struct mfl_error *err);
void mfl_trainer_combine_free(struct mfl_trainer *trainer, struct mfl_train_combine *combine);
/* As struct mfl_collective_ops of the trainer's nccl; MFL_INVALID where it has none. */
int mfl_trainer_communicator(struct mfl_trainer *trainer, const struct mfl_group *group, const uint8_t *id,
        void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason), void *user,
        struct mfl_error *err);
/* Frees what is kept for a job; an unknown job is fine. */
void mfl_trainer_forget(struct mfl_trainer *trainer, const char *job);
/* Bytes charged now, results and what is kept for reuse included; of the host's memory, shared or not. */
uint64_t mfl_trainer_memory(struct mfl_trainer *trainer);

/* The number of a daemon as the one client of partition `local`: the first 8 bytes (LE) of SHA-256 of its
 * name. */
int mfl_trainer_local_item(const char *name, uint64_t *ret_item, struct mfl_error *err);

#endif
