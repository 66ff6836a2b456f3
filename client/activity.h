/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a daemon's workers goes, and how many samples they train a second: for people who look.
 *
 * A worker is in one state at each moment: it computes, or it gets data ready, or it is idle. An idle one has
 * the network to thank for that while params or an update are on their way, and else something else: it has
 * no task, or waits for a grant, for others, for the round. So n workers have n seconds in each second, none
 * of them counted twice, and a transfer that hides behind training costs nothing here either.
 *
 * Pure but for its lock: time comes in as an argument (mfl_now_ns). All functions from any thread. Times of
 * several threads may come in the wrong order; one before the last counts as that.
 */
#ifndef MFL_CLIENT_ACTIVITY_H
#define MFL_CLIENT_ACTIVITY_H

#include <pthread.h>

#include "proto/message.h"

/* Of a worker. Whether an idle one waits or has the network to thank is told by mfl_activity_transfer. */
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
        uint64_t start_ns, now_ns; /* when it began; up to where time is accounted for */
        uint64_t total_ns[MFL_ACTIVITY_STATES], samples;
        struct mfl_activity_second ring[MFL_ACTIVITY_SECONDS];
};

/* All workers are idle. Negative on failure. */
int mfl_activity_init(
        struct mfl_activity *activity, uint32_t n_workers, uint64_t now_ns, struct mfl_error *err);
void mfl_activity_deinit(struct mfl_activity *activity);
/* n workers that were at `from` are at `to` now. */
void mfl_activity_move(struct mfl_activity *activity, uint32_t n, enum mfl_activity_work from,
        enum mfl_activity_work to, uint64_t now_ns);
/* A piece of work that ends now trained so many samples; of the time that workers have computed, reads_ns
 * worker-nanoseconds of the latest went into getting data ready. That is known only afterwards: whoever
 * computes measures it, per batch. */
void mfl_activity_count(struct mfl_activity *activity, uint64_t samples, uint64_t reads_ns, uint64_t now_ns);
/* Whether params or an update are on their way to or from this daemon, or are added with those of its node.
 */
void mfl_activity_transfer(struct mfl_activity *activity, bool under_way, uint64_t now_ns);
/* Of the last MFL_ACTIVITY_SECONDS, counted from a whole second on, or since the start when that is less. */
void mfl_activity_read(
        struct mfl_activity *activity, uint64_t now_ns, struct mfl_activity_figures *ret_figures);

#endif
