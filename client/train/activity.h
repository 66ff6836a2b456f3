/* SPDX-License-Identifier: Apache-2.0 */
/* How a daemon's workers spend their time, and how many samples they train per second: figures for people.
 *
 * At each moment, a worker computes, gets data ready, or is idle. Idle time counts as network time while
 * params or an update are on their way, and otherwise as waiting: for a task, a grant, other daemons, the
 * round. So n workers have n seconds in each second, none is counted twice, and a transfer that hides behind
 * training costs nothing.
 *
 * Pure except for its lock: time comes in as an argument (mfl_now_ns). Any thread may call all functions.
 * Times of several threads may come out of order; a time before the last one counts as the last one. */
#ifndef MFL_CLIENT_TRAIN_ACTIVITY_H
#define MFL_CLIENT_TRAIN_ACTIVITY_H

#include <pthread.h>

#include "proto/message.h"

/* A worker's state. Whether an idle worker waits for the network is told by mfl_activity_transfer. */
enum mfl_activity_work {
        MFL_ACTIVITY_COMPUTES,
        MFL_ACTIVITY_READS, /* batches, data sets, partitions */
        MFL_ACTIVITY_IDLE,
        MFL_ACTIVITY_WORKS_
};

/* What happened in one second of the clock. */
struct mfl_activity_second {
        uint64_t number; /* second of the clock */
        uint64_t ns[MFL_ACTIVITY_STATES];
        uint64_t samples;
};

/* Private. */
struct mfl_activity {
        pthread_mutex_t lock;
        uint32_t n[MFL_ACTIVITY_WORKS_]; /* workers */
        bool transfer;
        uint64_t start_ns, now_ns; /* when it began; up to when time is accounted for */
        uint64_t busy_ns;          /* when a worker was last not waiting */
        uint64_t total_ns[MFL_ACTIVITY_STATES], samples;
        struct mfl_activity_second ring[MFL_ACTIVITY_SECONDS];
};

/* All workers are idle. Negative on failure. */
int mfl_activity_init(
        struct mfl_activity *activity, uint32_t n_workers, uint64_t now_ns, struct mfl_error *err);
void mfl_activity_deinit(struct mfl_activity *activity);
/* n workers go from `from` to `to`. */
void mfl_activity_move(struct mfl_activity *activity, uint32_t n, enum mfl_activity_work from,
        enum mfl_activity_work to, uint64_t now_ns);
/* A piece of work that ends now trained this many samples; the latest reads_ns worker-nanoseconds of the
 * computing went into getting data ready. That is known only afterwards: the computing thread measures it,
 * per batch. */
void mfl_activity_count(struct mfl_activity *activity, uint64_t samples, uint64_t reads_ns, uint64_t now_ns);
/* Whether params or an update are on their way to or from this daemon, or are being added with those of its
 * node. */
void mfl_activity_transfer(struct mfl_activity *activity, bool under_way, uint64_t now_ns);
/* For the last MFL_ACTIVITY_SECONDS, in whole seconds; or since the start, or since work began after a pause
 * of 2 s or more, if that is less: a job's first rounds are not averaged with the pause before them. */
void mfl_activity_read(
        struct mfl_activity *activity, uint64_t now_ns, struct mfl_activity_figures *ret_figures);

#endif
