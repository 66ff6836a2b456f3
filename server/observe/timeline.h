/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline: what each daemon did recently, and which rounds were committed. A daemon has two lanes,
 * computing and sending, because it does both at once; a lane that closes leaves a span in a ring of fixed
 * size.
 *
 *     compute:  [ train ........ ]            [ evaluate ]
 *     network:        [ wait ][ upload ][ wait ]
 *
 * All times are the loop's clock. Loop thread only.
 */
#ifndef MFL_SERVER_OBSERVE_TIMELINE_H
#define MFL_SERVER_OBSERVE_TIMELINE_H

#include "server/core/core.h"

enum mfl_span_kind {
        MFL_SPAN_TRAIN,    /* from Task to the announcement of its last item */
        MFL_SPAN_EVALUATE, /* from Task to EvalResult */
        MFL_SPAN_WAIT,     /* an update waits: for a slot, for the sum, or for the others of its node */
        MFL_SPAN_UPLOAD,   /* from Grant to the last byte */
};
const char *mfl_span_kind_name(enum mfl_span_kind kind);

struct mfl_span {
        char daemon[MFL_NAME_BYTES];
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        enum mfl_span_kind kind;
        uint64_t from_ms, to_ms;
};
/* What one daemon does now. A zeroed one with its name is idle. */
struct mfl_lanes {
        char daemon[MFL_NAME_BYTES];
        struct mfl_lane {
                bool open;
                struct mfl_span span; /* daemon and to_ms are not set */
        } compute, network;
        uint64_t task;
        uint32_t n_items, n_announced; /* of the tasks in the computing lane */
        uint32_t n_updates;            /* announced, and neither counted nor refused yet */
};

struct mfl_round_seen {
        char job[MFL_JOB_ID_BYTES];
        uint32_t round, daemons, clients;
        uint64_t started_ms, ended_ms, committed_ms;
};

#define MFL_SPANS_MAX 4096
#define MFL_ROUNDS_SEEN_MAX 128
struct mfl_timeline {
        uint64_t n_spans, n_rounds; /* since the start; the newest lie before n % MAX */
        struct mfl_span spans[MFL_SPANS_MAX];
        struct mfl_round_seen rounds[MFL_ROUNDS_SEEN_MAX];
};

/* What happened at a daemon. */
void mfl_lanes_task(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, const struct mfl_task *task, uint64_t now_ms);
void mfl_lanes_announced(struct mfl_timeline *timeline, struct mfl_lanes *lanes,
        const struct mfl_announce *announce, uint64_t now_ms);
/* It has returned items of its task. */
void mfl_lanes_returned(struct mfl_lanes *lanes, uint64_t task, uint32_t n_items_left);
/* Its computation ended with a result or a failure. */
void mfl_lanes_computed(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms);
void mfl_lanes_granted(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms);
void mfl_lanes_uploaded(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms);
/* An update was counted or refused. */
void mfl_lanes_answered(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms);
void mfl_lanes_cancelled(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t task, uint64_t now_ms);
/* Ends everything: the daemon is gone. */
void mfl_lanes_end(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms);

void mfl_timeline_round(struct mfl_timeline *timeline, const char *job, const struct mfl_round_record *record,
        uint64_t now_ms);
/* Calls for each closed span, the oldest first; and for each open span of one daemon, as if it ended now. */
typedef void mfl_span_call(void *user, const struct mfl_span *span, bool open);
void mfl_timeline_spans(const struct mfl_timeline *timeline, mfl_span_call *call, void *user);
void mfl_lanes_spans(const struct mfl_lanes *lanes, uint64_t now_ms, mfl_span_call *call, void *user);

#endif
