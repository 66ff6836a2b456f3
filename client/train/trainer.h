/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer: runs one task (training of clients, or evaluation of shards) on a backend, and blocks until it
 * is done. It knows no loop, socket or agent.
 *
 * Up to `workers` threads take a task's items, each with its own network (made once per job, reused over
 * clients, tasks and rounds), in the task's order, or the longest first if a network can train several at
 * once. A network trains up to G clients at once, each in its own lane; a lane whose client is done takes the
 * next one. G is the job's `fuse`, or the result of the backend's `fuse`. If the backend has a sum of
 * updates, it is used, so that one update leaves the device. A client's result depends only on (job, client,
 * round, params), and the sum of updates is exact (common/base/fixed.h). So the same clients give the same
 * bits in one task or in many, on one thread or on many.
 *
 * What a client computes: epoch e of client k in round r goes through a fresh copy of the partition's list of
 * k, shuffled with the stream (seed, MFL_RNG_SHUFFLE, k, r * 65536 + e), in consecutive batches; the last
 * batch may be short. With `steps` there are as many epochs as needed, cut after that many steps. The dropout
 * key is (seed, MFL_RNG_DROPOUT, k, r), the augmentation key (seed, MFL_RNG_AUGMENT, k, r). With partition
 * `local` there is one client, k = mfl_partition_site_client(site, name).
 *
 * Memory: networks, scratch and result buffers are reserved from a budget before they are allocated; if
 * something does not fit, the task fails with both sizes in the text. A device with its own memory has its
 * own budget, for networks and data sets; a data set that would take more than half of the rest of it is
 * streamed instead. Once every worker's network exists, nothing is allocated per client. Result buffers are
 * kept and reused, because fresh pages cost more than the sums.
 *
 * How a sum comes to the host: the last worker to end leaves its network's sum (on a GPU, the device's) where
 * it is, and mfl_trainer_land brings it range by range; a starter that asks for this may announce the update
 * and send ranges meanwhile. A sum that other daemons of the node read (shm) is whole when mfl_trainer_run
 * returns. The order of clients, and how many train at once, are chosen so that lanes end together
 * (client/train/trainer_balance.c); the result does not depend on either.
 *
 * Groups (client/node/collective.h): a training task that is part of a group always makes an exact sum, even
 * of one client, and puts it where the group's other members can read it. shm: the result's buffer is in
 * shared memory. nccl: the sum is also kept on the device, and read into an ordinary buffer once. If that is
 * not possible (no share, no room), the result is an ordinary one, and the log says why, once per job.
 * mfl_trainer_combine adds the group's sums into its own memory, so the daemon's update stays intact.
 *
 * Teams (kernels/team/team.h): a job with `parallel` trains a client on several threads of the daemon, or, if the task
 * has a team, on those of several daemons (client/train/trainer_meet.h). A task of kind ASSIST has no result: 0 updates.
 *
 * Programs (client/program/program.h): a job with training.program is trained and evaluated by one, client after client; what becomes
 * of its params is the same (trainer_delta.c).
 *
 * Threads: mfl_trainer_run, mfl_trainer_forget, mfl_trainer_rest and mfl_trainer_trim one at a time; mfl_trainer_combine one at a time, also
 * while a task runs; the other functions and the fields of the controls from any thread. */
#ifndef MFL_CLIENT_TRAIN_TRAINER_H
#define MFL_CLIENT_TRAIN_TRAINER_H

#include <stdatomic.h>

#include "client/train/activity.h"
#include "client/node/collective.h"
#include "client/peer/peer.h"
#include "client/data/population.h"
#include "common/base/base.h"
#include "common/base/budget.h"
#include "common/base/digest.h"
#include "common/data/dataset.h"
#include "common/secure/ring.h"
#include "kernels/backend.h"
#include "proto/message.h"

enum {
        MFL_CANCELLED = 16,   /* control.cancel was set */
        MFL_TEAM_BROKEN = 17, /* another member of the task's team is gone or late, or has failed */
};

struct mfl_filters;
struct mfl_programs;
struct mfl_site_privacy;
struct mfl_trainer;

struct mfl_trainer_options {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device; /* outlives the trainer */
        uint32_t workers; /* threads, >= 1; a job with `threads: T` gets workers / T networks, at least 1 */
        struct mfl_budget
                *budget; /* networks and results are charged to it; outlives the trainer; NULL: no limit */
        /* If the device has its own memory (device_info): how much of it networks and data sets may use; 0:
         * nine tenths of what is free when the trainer is made. */
        uint64_t device_memory_bytes;
        const char *name; /* the daemon's */
        const char *site; /* NULL or "": it is one by itself */
        uint32_t n_data_sets;
        const struct mfl_dataset *const *data_sets; /* outlive the trainer; the array is copied */
        const uint64_t *fingerprints;               /* one each; copied */
        /* All three outlive the trainer; NULL: not there, and results for groups that need it are ordinary
         * ones. */
        struct mfl_share *share;
        struct mfl_collective *shm, *nccl;
        struct mfl_peer_port *peers;   /* outlives the trainer; NULL: no teams over several nodes */
        struct mfl_activity *activity; /* of `workers` workers; outlives the trainer; NULL: no figures are
                                          kept */
        /* Own training code, and paths that it must not read (ends with NULL). Both outlive the trainer; NULL: none. */
        const struct mfl_programs *programs;
        /* client/plugin/plugin.h. Both outlive the trainer; NULL: none. plugins: for jobs' logs; filters: of each client's update. */
        const char *plugins;
        struct mfl_filters *filters;
        const char *const *hidden;
        const struct mfl_site_privacy *privacy; /* client/noise/site.h; outlives the trainer; NULL: none */
        const char *
                state_dir; /* where clients' states are kept (client/keep/keep.h); outlives the trainer; NULL: nowhere */
        uint32_t
                unreached_rest_ms; /* so long GPUs that did not reach each other three times are not tried; 0: ten minutes */
};

/* What the task's starter may watch and change meanwhile. Zeroed before the task. */
struct mfl_train_control {
        atomic_bool cancel; /* noticed between chunks of about 20 ms */
        atomic_bool
                regroup; /* also with `cancel`: the members of the task's team need not wait for each other any more */
        _Atomic uint32_t items_done;
        _Atomic uint64_t samples_done;
        _Atomic int64_t loss_sum;
        /* Training. Lower half: one more than the last of the task's items that has begun; upper half: how
         * many were given back. They share one number, so that no item is ever both. */
        _Atomic uint64_t items;
        /* After MFL_TEAM_BROKEN: 1 + the team's member that is lost, or 0: not known; and what has happened to it (enum
         * mfl_mesh_loss). */
        _Atomic uint32_t accused, loss;
};
/* From now on the task has its first `keep` items, or those that have begun, and at least one. Returns how
 * many it has: its result has exactly these, and no other item ever begins. n_items: the task's count when it
 * was started. Repeating the call is fine; after the task's end it changes nothing. */
uint32_t mfl_train_recall(struct mfl_train_control *control, uint32_t n_items, uint32_t keep);

struct mfl_train_request {
        const struct mfl_task *task;
        const char *job_text; /* terminated */
        const float *frozen;  /* task->n_frozen floats; NULL where that is 0 */
        const float *params;  /* the other task->n_params - n_frozen floats, which move */
        /* The same floats on the device; NULL: not staged. */
        const struct mfl_stage *frozen_stage, *params_stage;
        /* For a job whose clients keep states (common/method/method.h), from round 2 on: brings what is added to the gradients of a
         * client's training, or to the params that its training or evaluation starts from, n floats: as many as `params` has, or a client's state
         * (mfl_method_state_floats). Called on the trainer's threads; blocks. MFL_CANCELLED. */
        int (*correct)(void *user, uint64_t client, uint64_t n, float *to, struct mfl_error *err);
        void *correct_user;
        struct mfl_train_control *control;
        /* Where the call puts the figures of the job's population if it makes the job: the job is new here,
         * or its memory had to make room for others. The caller frees them. Set at any time during the call;
         * the caller may take them at once by an exchange. NULL: not wanted. */
        _Atomic(Mfl__Partition *) *population;
        /* NULL: a result is whole when the call returns. Otherwise it may be late (struct mfl_train_result),
         * and mfl_trainer_land calls this as it grows. */
        void (*advanced)(void *user);
        void *user;
};

/* TRAIN: one update, or one per item with task->single_updates. A single client outside a group, whose task has not `sum`, and single
 * updates, hold the client's delta (MFL_ENCODING_F32); others hold the sum (MFL_ENCODING_I64). */
struct mfl_train_result {
        uint64_t n;   /* elements of each update: the params that move */
        bool grouped; /* update 0 is where members of groups of task->group.collective's kind can read it */
        uint64_t
                floats; /* in a buffer of floats: with a model of its own behind the delta, which may stay here */
        bool packed;                 /* compression.up: they travel packed (common/codec/pack.h) */
        struct mfl_secure_ring ring; /* secure_sum: in which they are masked */
        uint64_t noise; /* sigma of the noise that members of the sum share, in its units; 0: none */
        uint8_t digest[MFL_SHA256_BYTES]; /* noise: of the sum */
        uint32_t
                tail; /* secure_sum: elements behind the n of a grouped result, which its owner sets and a group adds, too */
        uint32_t n_updates;
        struct mfl_announce *updates; /* without task, job and round */
        void **data;                  /* updates[i].bytes each; NULL where that is 0 */
        uint32_t n_eval;
        struct mfl_eval_item *eval;
        uint32_t n_tally; /* n_eval times mfl_tally_size, or 0 */
        uint64_t *tally;
        /* All numbers are right, but only the first control.ready elements of update 0, the only update, are
         * final; all are final when mfl_trainer_land returns. */
        bool late;
        struct mfl_comm_control control;
};

int mfl_trainer_new(
        const struct mfl_trainer_options *options, struct mfl_trainer **ret_trainer, struct mfl_error *err);
void mfl_trainer_free(struct mfl_trainer *trainer); /* free results first */

/* Errors: MFL_INVALID if this daemon can't do this task (its job file, data set, backend, memory: the text
 * says why), MFL_CANCELLED, MFL_TEAM_BROKEN; negative if the device or the process is broken. */
int mfl_trainer_run(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct mfl_train_result **ret_result, struct mfl_error *err);
/* Brings the rest of a late result, on the thread of mfl_trainer_run and before its next call. Negative: the
 * device or the process is broken. */
int mfl_trainer_land(struct mfl_trainer *trainer, struct mfl_train_result *result, struct mfl_error *err);
/* Not while it lands. Others that read a shared buffer keep what they have mapped. NULL is fine. */
void mfl_trainer_result_free(struct mfl_trainer *trainer, struct mfl_train_result *result);
/* Lets the members of `group` find a grouped result. Only a rename. MFL_INVALID: it is not grouped, or what
 * mfl_share_publish says. */
int mfl_trainer_publish(struct mfl_trainer *trainer, const struct mfl_train_result *result, uint64_t group,
        struct mfl_error *err);

/* One order to add the sums of a group; the starter sets some fields and zeroes the others. */
struct mfl_train_combine {
        const struct mfl_train_result *result; /* this daemon's; grouped, and kept until the call is back */
        struct mfl_group group;
        uint64_t ranks;       /* bit r: rank r's sum is added */
        uint32_t leader;      /* rank */
        uint32_t deadline_ms; /* from the call on */
        struct mfl_comm_control *control;
        /* Set before control->ready leaves 0, if this daemon is the leader: result->n elements, final up to
         * control->ready, and all of them after success. */
        int64_t *sum;
};
/* Blocks. MFL_INVALID: the result is not grouped in that way, or there is no room for the sum;
 * MFL_COLLECTIVE_BROKEN: a member is gone, it was cancelled, or too late; both with the reason, and the
 * result is unchanged. Negative: the device or the process is broken. In every case mfl_trainer_combine_free
 * frees `sum`. */
int mfl_trainer_combine(
        struct mfl_trainer *trainer, struct mfl_train_combine *combine, struct mfl_error *err);
void mfl_trainer_combine_free(struct mfl_trainer *trainer, struct mfl_train_combine *combine);
/* As in struct mfl_collective_ops of the trainer's nccl; MFL_INVALID without one. */
int mfl_trainer_communicator(struct mfl_trainer *trainer, const struct mfl_group *group, const uint8_t *id,
        void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason), void *user,
        struct mfl_error *err);
/* Params on their way to the device's own memory (backend.h), for a thread beside the one that runs tasks. n:
 * floats, the same for new and free. *ret_stage is NULL after 0 if this device has no such memory, or too little.
 * A stage outlives the tasks that use it. Negative: the device or the process is broken. */
int mfl_trainer_stage_new(
        struct mfl_trainer *trainer, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err);
void mfl_trainer_stage_free(
        struct mfl_trainer *trainer, struct mfl_stage *stage, uint64_t n); /* NULL is fine */
int mfl_trainer_stage_put(struct mfl_trainer *trainer, struct mfl_stage *stage, uint64_t first,
        const float *params, uint64_t n, struct mfl_error *err);
/* Frees what is kept for a job; an unknown job is fine. */
void mfl_trainer_forget(struct mfl_trainer *trainer, const char *job);
/* The daemon has had no task for a while: closes the communicator that its GPU's last team left open. */
void mfl_trainer_rest(struct mfl_trainer *trainer);
/* Frees the networks of all jobs and memory kept for reuse: params that arrive need the room. */
void mfl_trainer_trim(struct mfl_trainer *trainer);
/* Bytes of the host's memory charged now, shared or not, including results and memory kept for reuse. */
uint64_t mfl_trainer_memory(struct mfl_trainer *trainer);

#endif
