/* SPDX-License-Identifier: Apache-2.0 */
/* One secure sum: that of a round, or of a bucket of its clients (round_secure.h). Its members, stages, and end. */
#ifndef MFL_SERVER_SUM_CORE_SUM_H
#define MFL_SERVER_SUM_CORE_SUM_H

#include "server/secure/leader.h"
#include "server/state/state.h"

struct core_sum_member {
        uint64_t task;
        uint32_t conn;
        uint32_t item; /* of the job's items; of a bucket, where a task has one */
};

enum core_sum_state {
        CORE_SUM_GOES_ON, /* leader's stages */
        CORE_SUM_OPENED,  /* its masks are off */
        CORE_SUM_FAILED,
};

struct core_sum {
        enum core_sum_state state;
        uint32_t bucket;           /* its number */
        bool is_bucket;            /* else it is the round's only one */
        struct mfl_leader *leader; /* NULL: it never began */
        uint32_t n;
        struct core_sum_member *v;
        uint64_t due_ms; /* of the stage (mfl_core_sum_due); CORE_NEVER: no stage is due */
        char why[MFL_REASON_BYTES];
        uint64_t figures[MFL_SECURE_FIGURES]; /* OPENED */
        uint64_t *clients; /* of a bucket: its survivors, ascending; from mfl_core_sum_clients on */
        uint32_t n_clients;
};

/* What the update of the task, or of its node, is: HELD. NULL: there is none. */
struct core_update *mfl_core_sum_held(const struct core_task *task);

/* A zeroed sum of those tasks, each with an update that is held, and its keys. MFL_INVALID: it can't begin; -ENOMEM. */
int mfl_core_sum_begin(const struct core_job *job, struct core_task *const *tasks, uint32_t n,
        struct core_sum *sum, struct mfl_error *err);
void mfl_core_sum_deinit(struct core_sum *sum);

/* Its member with that task; n: none. */
uint32_t mfl_core_sum_member(const struct core_sum *sum, uint64_t task);
uint32_t mfl_core_sum_conn(const struct core_sum *sum, uint32_t i);
/* The update of member i, in whatever state; NULL: it was dropped. */
struct core_update *mfl_core_sum_update(
        const struct mfl_core *core, const struct core_sum *sum, uint32_t i, struct core_task **ret_task);
/* Its clients are missing; what is in the sum stays there. */
void mfl_core_sum_drop(struct mfl_core *core, struct core_sum *sum, uint32_t i, const char *reason);
/* What became of its members' updates. */
void mfl_core_sum_watch(struct mfl_core *core, struct core_sum *sum);
/* Begins the time of the stage. */
void mfl_core_sum_send(struct mfl_core *core, const struct core_job *job, struct core_sum *sum);
uint64_t mfl_core_sum_due(const struct core_job *job, const struct core_sum *sum);
/* All have answered, or the time of the stage is over; no update is being added. */
bool mfl_core_sum_over(const struct mfl_core *core, const struct core_job *job, const struct core_sum *sum);
/* The next stage; its messages are sent, but for SIGN, before which the opening must be written down. */
void mfl_core_sum_advance(struct mfl_core *core, struct core_job *job, struct core_sum *sum);
void mfl_core_sum_fail(struct mfl_core *core, struct core_job *job, struct core_sum *sum, const char *why);
/* WHOLE, of a bucket. -ENOMEM. */
int mfl_core_sum_clients(const struct core_job *job, struct core_sum *sum);
/* How many of its clients count, as far as it is known; of a bucket. */
uint32_t mfl_core_sum_counted(const struct core_job *job, const struct core_sum *sum);
/* A bucket that has failed: its clients, which were counted as their updates were added, are missing. */
void mfl_core_sum_uncount(struct core_job *job, const struct core_sum *sum);

#endif
