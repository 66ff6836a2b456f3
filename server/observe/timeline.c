/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes become spans, and rounds are kept, in rings of fixed size. */
#include "server/observe/timeline.h"

const char *mfl_span_kind_name(enum mfl_span_kind kind)
{
        static const char *const names[] = {"train", "evaluate", "wait", "upload"};
        mfl_assert((size_t)kind < MFL_ARRAY_SIZE(names));
        return names[kind];
}

static void lane_close(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, struct mfl_lane *lane, uint64_t now_ms)
{
        if (!lane->open)
                return;
        mfl_assert(lane->span.from_ms <= now_ms);
        lane->open = false;
        lane->span.to_ms = now_ms;
        memcpy(lane->span.daemon, lanes->daemon, sizeof lanes->daemon);
        timeline->spans[timeline->n_spans++ % MFL_SPANS_MAX] = lane->span;
}

static void lane_open(struct mfl_timeline *timeline, struct mfl_lanes *lanes, struct mfl_lane *lane,
        const struct mfl_span *span)
{
        mfl_assert((lane == &lanes->compute) == (span->kind <= MFL_SPAN_EVALUATE));
        lane_close(timeline, lanes, lane, span->from_ms);
        lane->open = true;
        lane->span = *span;
}

/* The network lane goes on with the same update in another state. */
static void network_becomes(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, enum mfl_span_kind kind, uint64_t now_ms)
{
        struct mfl_span span = lanes->network.span;
        span.kind = kind;
        span.from_ms = now_ms;
        lane_open(timeline, lanes, &lanes->network, &span);
}

void mfl_lanes_task(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, const struct mfl_task *task, uint64_t now_ms)
{
        struct mfl_span span = {.kind = task->kind == MFL_TASK_EVAL ? MFL_SPAN_EVALUATE : MFL_SPAN_TRAIN,
                .round = task->round,
                .from_ms = now_ms};
        const struct mfl_lane *lane = &lanes->compute;
        lanes->task = task->task;
        if (lane->open && lane->span.kind == span.kind && lane->span.round == task->round &&
                !strcmp(lane->span.job, task->job)) {
                lanes->n_items += task->n_items; /* more of the same, after another daemon was lost */
                return;
        }
        lanes->n_items = task->n_items;
        lanes->n_announced = 0;
        mfl_strcpy(span.job, sizeof span.job, task->job);
        lane_open(timeline, lanes, &lanes->compute, &span);
}

void mfl_lanes_announced(struct mfl_timeline *timeline, struct mfl_lanes *lanes,
        const struct mfl_announce *announce, uint64_t now_ms)
{
        lanes->n_announced += MFL_MIN(announce->item_count, (uint32_t)MFL_ITEMS_MAX);
        if (lanes->n_announced >= lanes->n_items && lanes->compute.span.kind == MFL_SPAN_TRAIN)
                lane_close(timeline, lanes, &lanes->compute, now_ms);
        lanes->n_updates++;
        if (lanes->network.open)
                return;
        struct mfl_span span = {.kind = MFL_SPAN_WAIT, .round = announce->round, .from_ms = now_ms};
        mfl_strcpy(span.job, sizeof span.job, announce->job);
        lane_open(timeline, lanes, &lanes->network, &span);
}

void mfl_lanes_returned(struct mfl_lanes *lanes, uint64_t task, uint32_t n_items_left)
{
        if (task == lanes->task)
                lanes->n_items = MFL_MIN(lanes->n_items, n_items_left);
}

void mfl_lanes_computed(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms)
{
        lane_close(timeline, lanes, &lanes->compute, now_ms);
}

void mfl_lanes_granted(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms)
{
        if (lanes->network.open && lanes->network.span.kind == MFL_SPAN_WAIT)
                network_becomes(timeline, lanes, MFL_SPAN_UPLOAD, now_ms);
}

void mfl_lanes_uploaded(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms)
{
        if (lanes->network.open && lanes->network.span.kind == MFL_SPAN_UPLOAD)
                network_becomes(timeline, lanes, MFL_SPAN_WAIT, now_ms);
}

void mfl_lanes_answered(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms)
{
        lanes->n_updates -= lanes->n_updates > 0;
        if (!lanes->n_updates)
                lane_close(timeline, lanes, &lanes->network, now_ms);
}

void mfl_lanes_cancelled(
        struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t task, uint64_t now_ms)
{
        if (task == lanes->task)
                mfl_lanes_end(timeline, lanes, now_ms);
}

void mfl_lanes_end(struct mfl_timeline *timeline, struct mfl_lanes *lanes, uint64_t now_ms)
{
        lanes->n_updates = 0;
        lane_close(timeline, lanes, &lanes->compute, now_ms);
        lane_close(timeline, lanes, &lanes->network, now_ms);
}

void mfl_timeline_round(struct mfl_timeline *timeline, const char *job, const struct mfl_round_record *record,
        uint64_t now_ms)
{
        struct mfl_round_seen *round = &timeline->rounds[timeline->n_rounds++ % MFL_ROUNDS_SEEN_MAX];
        mfl_assert(record->started_ms <= record->ended_ms);
        *round = (struct mfl_round_seen){.round = record->round,
                .daemons = record->daemons,
                .clients = record->clients,
                .started_ms = record->started_ms,
                .ended_ms = record->ended_ms,
                .committed_ms = now_ms};
        mfl_strcpy(round->job, sizeof round->job, job);
}

void mfl_timeline_spans(const struct mfl_timeline *timeline, mfl_span_call *call, void *user)
{
        uint64_t n = MFL_MIN(timeline->n_spans, (uint64_t)MFL_SPANS_MAX);
        for (uint64_t i = timeline->n_spans - n; i < timeline->n_spans; i++)
                call(user, &timeline->spans[i % MFL_SPANS_MAX], false);
}

void mfl_lanes_spans(const struct mfl_lanes *lanes, uint64_t now_ms, mfl_span_call *call, void *user)
{
        const struct mfl_lane *lane[] = {&lanes->compute, &lanes->network};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lane); i++) {
                if (!lane[i]->open)
                        continue;
                struct mfl_span span = lane[i]->span;
                memcpy(span.daemon, lanes->daemon, sizeof span.daemon);
                span.to_ms = now_ms;
                call(user, &span, true);
        }
}
