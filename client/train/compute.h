/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a daemon's tasks beside its loop. The link knows only this table, so benchmarks and tests put
 * something else in the trainer's place.
 *
 * Contract: a start that fails never calls done. A start that succeeds calls it exactly once, later, on the
 * loop thread. All functions are for the loop thread. Tasks run in the order started. So do combines, but on
 * their own worker: when the server orders one, the daemon may be at its next task, perhaps of another job,
 * and the whole node would wait for that. This is safe: shm needs no device; NCCL's reduce has its own
 * stream, and backend.h lets several threads use a device; a communicator is touched only by the combines'
 * worker, and by the collective's own thread while nothing is combined. What is added was finished before it
 * was announced, and does not change.
 *
 * A training's result may be late (client/train/trainer.h): done is called when its numbers are known, and
 * the rest of its sum follows before the next task begins. The listener is told as the sum grows, and as a
 * combine's sum grows: once for everything since the last time.
 *
 *     worker:   train ........ | bring the sum: range 0 | range 1 | .. | next task
 *     loop:                      done -> Announce -> Grant -> chunks of what has come */
#ifndef MFL_CLIENT_TRAIN_COMPUTE_H
#define MFL_CLIENT_TRAIN_COMPUTE_H

#include <pthread.h>

#include "client/train/trainer.h"
#include "common/base/worker.h"

/* One task. The starter keeps it, and everything that it points to, until done. */
struct mfl_compute_call {
        const struct mfl_task *task;
        const char *job_text;
        const float *frozen, *params; /* as mfl_train_request */
        const struct mfl_stage *frozen_stage, *params_stage;
        int (*correct)(void *user, uint64_t client, uint64_t n, float *to,
                struct mfl_error *err); /* as mfl_train_request */
        void *correct_user;
        struct mfl_train_control control;
        void (*done)(struct mfl_compute_call *call);
        /* Set before done: as mfl_trainer_run. The result is freed by result_free. */
        int status;
        struct mfl_error err;
        struct mfl_train_result *result;
        /* Figures of the job's population, as in mfl_train_request; the starter takes and frees them. */
        _Atomic(Mfl__Partition *) population;
        /* The implementation's own. */
        void *compute;
        struct mfl_compute_bringing *bringing;
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

/* One order to free what is only kept ready. The starter keeps it until done. */
struct mfl_trim_call {
        void (*done)(struct mfl_trim_call *call);
        /* The implementation's own. */
        void *compute;
        struct mfl_work work;
};

/* Told on the loop thread of everything that no call's done reports. */
struct mfl_compute_listener {
        /* What became of a communicator: its id, if this daemon was to make it; or NULL and the reason, if it
         * can't be made or opened, or has failed since. */
        void (*communicator)(void *user, uint64_t communicator, const uint8_t *id, const char *reason);
        void (*advanced)(void *user); /* more of a late result or of a combine is there */
        void (*broken)(void *user, const struct mfl_error *err); /* the process can't go on */
        void *user;
};

/* The members from publish on may be NULL if results are never grouped. */
struct mfl_compute_ops {
        int (*start)(void *compute, struct mfl_compute_call *call, struct mfl_error *err);
        void (*cancel)(void *compute, struct mfl_compute_call *call); /* done still comes; idempotent */
        void (*forget)(void *compute, const char *job);
        /* Frees networks and buffers that no task uses, after the tasks that were started before. False: it did not start. NULL:
         * nothing can be freed. */
        bool (*trim)(void *compute, struct mfl_trim_call *call);
        void (*result_free)(void *compute, struct mfl_train_result *result); /* NULL is fine; late ones too */
        int (*publish)(
                void *compute, const struct mfl_train_result *result, uint64_t group, struct mfl_error *err);
        int (*combine)(void *compute, struct mfl_combine_call *call, struct mfl_error *err);
        /* done still comes, soon; idempotent */
        void (*combine_cancel)(void *compute, struct mfl_combine_call *call);
        /* After done, when the sum is no longer read. */
        void (*combine_free)(void *compute, struct mfl_combine_call *call);
        /* The group's communicator is new: with id NULL make it, otherwise open it. The listener is told the
         * result. */
        int (*communicator)(
                void *compute, const struct mfl_group *group, const uint8_t *id, struct mfl_error *err);
        /* One listener at a time, copied; NULL: none from here on. */
        void (*listen)(void *compute, const struct mfl_compute_listener *listener);
        /* As mfl_trainer_stage_...: for one thread beside the loop. All NULL: nothing is staged. */
        int (*stage_new)(void *compute, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err);
        void (*stage_free)(void *compute, struct mfl_stage *stage, uint64_t n);
        int (*stage_put)(void *compute, struct mfl_stage *stage, uint64_t first, const float *params,
                uint64_t n, struct mfl_error *err);
        /* Other work for the worker, after the tasks that were started before. False: it was not taken. NULL: none is. */
        bool (*aside)(void *compute, struct mfl_work *work);
        /* For a training that is not done: as mfl_train_recall. NULL: nothing is ever given back. */
        uint32_t (*recall)(void *compute, struct mfl_compute_call *call, uint32_t keep);
};

/* The trainer on two worker threads. Its memory stays until the trainer's collectives are closed, because one
 * may still report a communicator; the report is then dropped. */
struct mfl_compute {
        struct mfl_trainer *trainer;
        struct mfl_worker worker, combiner;
        pthread_mutex_t lock; /* of notes and closed */
        struct mfl_compute_note *notes;
        bool closed;
        uv_async_t noted;                      /* and sums that grow */
        uv_timer_t idle;                       /* since the last task's end */
        struct mfl_work rest;                  /* ordered then */
        bool resting;                          /* it is on its way */
        uint32_t n_open;                       /* of the workers, the async and the timer */
        struct mfl_compute_listener listener;  /* its members are NULL without a listener */
        struct mfl_compute_bringing *bringing; /* of tasks that were started; only the loop thread uses it */
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
