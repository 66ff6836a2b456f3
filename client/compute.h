/* SPDX-License-Identifier: Apache-2.0 */
/* What carries out a daemon's tasks beside its loop. The link knows this table only, so a benchmark or a test
 * puts something else where the trainer would be.
 *
 * Contract: a start that fails never calls done. One that succeeds calls it exactly once, later, on the loop
 * thread. All functions are for the loop thread. Tasks run in the order started.
 */
#ifndef MFL_CLIENT_COMPUTE_H
#define MFL_CLIENT_COMPUTE_H

#include "client/trainer.h"
#include "common/worker.h"

/* One task. The starter keeps it, and everything that it points to, until done. */
struct mfl_compute_call {
        const struct mfl_task *task;
        const char *job_text;
        const float *params; /* task->n_params floats */
        struct mfl_train_control control;
        void (*done)(struct mfl_compute_call *call);
        /* Set before done: as mfl_trainer_run. The result is freed by result_free. */
        int status;
        struct mfl_error err;
        struct mfl_train_result *result;
        /* The implementation's own. */
        void *compute;
        struct mfl_work work;
};

struct mfl_compute_ops {
        int (*start)(void *compute, struct mfl_compute_call *call, struct mfl_error *err);
        void (*cancel)(void *compute, struct mfl_compute_call *call); /* done still comes; idempotent */
        void (*forget)(void *compute, const char *job);
        void (*result_free)(void *compute, struct mfl_train_result *result); /* NULL is fine */
};

/* The trainer on a worker thread. */
struct mfl_compute {
        struct mfl_trainer *trainer;
        struct mfl_worker worker;
        void (*on_close)(struct mfl_compute *compute);
        void *user;
};
extern const struct mfl_compute_ops mfl_compute_trainer; /* its compute is a struct mfl_compute */

/* Borrows the trainer. Negative on failure. */
int mfl_compute_open(
        struct mfl_compute *compute, uv_loop_t *loop, struct mfl_trainer *trainer, struct mfl_error *err);
/* Waits for what runs (cancel it first); cb may be NULL. */
void mfl_compute_close(struct mfl_compute *compute, void (*cb)(struct mfl_compute *compute));

#endif
