/* SPDX-License-Identifier: Apache-2.0 */
/* What carries out a daemon's tasks beside its loop. The link knows this table only, so a benchmark or a test
 * puts something else where the trainer would be.
 *
 * Contract: a start that fails never calls done. One that succeeds calls it exactly once, later, on the loop
 * thread. All functions are for the loop thread. Tasks run in the order started, and so do combines, but
 * these on a worker of their own: when the server orders one, the daemon may be at its next task, perhaps of
 * another job, and the whole node's sum would wait for that. Nothing stands against it: shm needs no device;
 * NCCL's reduce has a stream of its own, backend.h lets several threads use a device, and a communicator is
 * touched by the combines' worker, and by the collective's own thread while nothing is combined. What is
 * added was finished before it was announced, and is not changed.
 */
#ifndef MFL_CLIENT_COMPUTE_H
#define MFL_CLIENT_COMPUTE_H

#include <pthread.h>

#include "client/trainer.h"
#include "common/worker.h"

/* One task. The starter keeps it, and everything that it points to, until done. */
struct mfl_compute_call {
        const struct mfl_task *task;
        const char *job_text;
        const float *frozen, *params; /* as mfl_train_request */
        struct mfl_train_control control;
        void (*done)(struct mfl_compute_call *call);
        /* Set before done: as mfl_trainer_run. The result is freed by result_free. */
        int status;
        struct mfl_error err;
        struct mfl_train_result *result;
        /* Figures of the job's population, as mfl_train_request; the starter's to take and to free. */
        _Atomic(Mfl__Partition *) population;
        /* The implementation's own. */
        void *compute;
        struct mfl_work work;
};

/* One order to add a group's sums. The starter keeps it, and the result, until done and combine_free. */
struct mfl_combine_call {
        struct mfl_train_combine combine; /* deadline_ms counts from the start; control is set by it */
        struct mfl_comm_control control;  /* ready may be watched */
        void (*done)(struct mfl_combine_call *call);
        /* Set before done: as mfl_trainer_combine. */
        int status;
        struct mfl_error err;
        /* The implementation's own. */
        void *compute;
        uint64_t start_ms;
        struct mfl_work work;
};

/* What became of a communicator, on the loop thread: id, when this daemon was to make it; or NULL and the
 * reason, when it can't be made or opened or has failed since. */
typedef void (*mfl_communicator_cb)(void *user, uint64_t communicator, const uint8_t *id, const char *reason);

/* The members from publish on may be NULL, where results are never grouped. */
struct mfl_compute_ops {
        int (*start)(void *compute, struct mfl_compute_call *call, struct mfl_error *err);
        void (*cancel)(void *compute, struct mfl_compute_call *call); /* done still comes; idempotent */
        void (*forget)(void *compute, const char *job);
        void (*result_free)(void *compute, struct mfl_train_result *result); /* NULL is fine */
        int (*publish)(
                void *compute, const struct mfl_train_result *result, uint64_t group, struct mfl_error *err);
        int (*combine)(void *compute, struct mfl_combine_call *call, struct mfl_error *err);
        /* done still comes, soon; idempotent */
        void (*combine_cancel)(void *compute, struct mfl_combine_call *call);
        /* After done, when nobody reads the sum any more. */
        void (*combine_free)(void *compute, struct mfl_combine_call *call);
        /* The group's communicator is new: with id NULL make it, else open it. What comes of it is told to
         * the listener. */
        int (*communicator)(
                void *compute, const struct mfl_group *group, const uint8_t *id, struct mfl_error *err);
        /* One at a time; NULL: nothing is told from here on. */
        void (*listen)(void *compute, mfl_communicator_cb cb, void *user);
};

/* The trainer on two worker threads. Its memory stays until the trainer's collectives are closed, for one may
 * still tell of a communicator, which is then dropped. */
struct mfl_compute {
        struct mfl_trainer *trainer;
        struct mfl_worker worker, combiner;
        pthread_mutex_t lock; /* of notes and closed */
        struct mfl_compute_note *notes;
        bool closed;
        uv_async_t noted;
        uint32_t n_open; /* of the workers and the async */
        mfl_communicator_cb listener;
        void *listener_user;
        void (*on_close)(struct mfl_compute *compute);
        void *user;
};
extern const struct mfl_compute_ops mfl_compute_trainer; /* its compute is a struct mfl_compute */

/* Borrows the trainer. Negative on failure; the loop can't be closed then. */
int mfl_compute_open(
        struct mfl_compute *compute, uv_loop_t *loop, struct mfl_trainer *trainer, struct mfl_error *err);
/* Waits for what runs (cancel it first); cb may be NULL. */
void mfl_compute_close(struct mfl_compute *compute, void (*cb)(struct mfl_compute *compute));

#endif
