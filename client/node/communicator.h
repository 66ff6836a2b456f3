/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator between the GPUs of a team's ranks. Opening one takes all of them, and seconds with the real library, so it outlives
 * its task: the next team of the same ranks goes on with it.
 *
 * Each has a number, from the id that its ranks opened it with. When ranks meet, they compare the numbers of what they have: a daemon
 * that is new, stands at another rank, has closed its own, or whose last team broke has another number or none, and then all open a new
 * one. It is closed when its team breaks, when a meeting finds that not all have it, with its job or another job's first task, and when
 * the daemon has had nothing to do for a while.
 *
 * Threads: one at a time. */
#ifndef MFL_CLIENT_NODE_COMMUNICATOR_H
#define MFL_CLIENT_NODE_COMMUNICATOR_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "kernels/backend.h"
#include "proto/message.h"

/* Zeroed: none is open. */
struct mfl_communicator {
        struct mfl_mesh *mesh; /* NULL: none is open */
        int64_t number;        /* above 0; all its ranks' alike, and no other one's */
        char job[MFL_JOB_ID_BYTES];
        uint32_t unreached;    /* meetings in a row in which GPUs did not reach each other */
        uint64_t unreached_ns; /* the last of them */
        uint32_t rest_ms;      /* after too many of them; 0: ten minutes */
};

/* Of what is open for the meeting's rank of so many; 0: nothing is. */
int64_t mfl_communicator_number(const struct mfl_communicator *c, const struct mfl_mesh *meeting);
/* c->mesh, in place of what was open, by all ranks of the meeting with one id. Errors are those of struct mfl_comm_ops, mesh. */
int mfl_communicator_open(struct mfl_communicator *c, const struct mfl_backend_ops *ops,
        struct mfl_device *device, const char *job, const struct mfl_mesh *meeting,
        const uint8_t id[MFL_COMM_ID_BYTES], const atomic_bool *cancel, struct mfl_error *err);
/* The meeting that used c->mesh is over; whole: well, so the next one may go on with it. mesh: c->mesh, or NULL if it was not used. */
void mfl_communicator_leave(struct mfl_communicator *c, struct mfl_mesh *mesh, bool whole);
/* MFL_INVALID: GPUs did not reach each other three times in a row, and are not tried for a while. */
int mfl_communicator_check(const struct mfl_communicator *c, struct mfl_error *err);
void mfl_communicator_close(struct mfl_communicator *c); /* fine if none is open */
/* If it is of that job; with `others`, of any other. */
void mfl_communicator_close_of(struct mfl_communicator *c, const char *job, bool others);

#endif
