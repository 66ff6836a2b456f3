/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what passes between the shell and its core, and keeps who did what of late. */
#include "server/observe.h"

#include "server/server.h"

#define DISK_FAILING_MS 30000u /* what failed is tried again every few seconds: later nothing is known */

const struct mfl_bounds mfl_round_bounds = {12, {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}};
const struct mfl_bounds mfl_disk_bounds = {
        12, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30}};
const struct mfl_bounds mfl_lag_bounds = {9, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2}};

const char *mfl_disk_op_name(enum mfl_disk_op op)
{
        static const char *const names[] = {"checkpoint", "commit", "state", "log"};
        return names[op];
}

const char *mfl_span_kind_name(enum mfl_span_kind kind)
{
        static const char *const names[] = {"train", "evaluate", "wait", "upload"};
        return names[kind];
}

int mfl_observe_open(struct mfl_server *server, bool timeline, struct mfl_error *err)
{
        server->observed.started_unix_ms = mfl_unix_ms();
        if (!timeline)
                return 0;
        server->observed.timeline = mfl_calloc(1, sizeof *server->observed.timeline);
        return server->observed.timeline ? 0
                                         : mfl_fail_memory(err, sizeof(struct mfl_timeline), "a timeline");
}

void mfl_observe_close(struct mfl_server *server)
{
        free(server->observed.timeline);
        server->observed.timeline = NULL;
}

/* ---- spans ---- */

static struct mfl_lanes *lanes_of(struct mfl_server *server, uint32_t conn)
{
        struct mfl_session *session = server->observed.timeline ? mfl_session_find(server, conn) : NULL;
        return session ? session->lanes : NULL;
}

static void lane_close(struct mfl_server *server, struct mfl_lanes *lanes, struct mfl_lane *lane)
{
        struct mfl_timeline *timeline = server->observed.timeline;
        if (!lane->open)
                return;
        lane->open = false;
        lane->span.to_ms = mfl_server_now(server);
        memcpy(lane->span.daemon, lanes->daemon, sizeof lanes->daemon);
        timeline->spans[timeline->n_spans++ % MFL_SPANS_MAX] = lane->span;
}

static void lane_open(struct mfl_server *server, struct mfl_lanes *lanes, struct mfl_lane *lane,
        enum mfl_span_kind kind, const char *job, uint32_t round)
{
        lane_close(server, lanes, lane);
        lane->open = true;
        lane->span = (struct mfl_span){.kind = kind, .round = round, .from_ms = mfl_server_now(server)};
        mfl_strcpy(lane->span.job, sizeof lane->span.job, job);
}

static void daemon_up(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_session *session =
                server->observed.timeline ? mfl_session_find(server, event->conn) : NULL;
        if (!session || session->lanes)
                return;
        session->lanes = mfl_calloc(1, sizeof *session->lanes);
        if (session->lanes) /* else the timeline lacks it: nothing that a server should end for */
                mfl_strcpy(session->lanes->daemon, sizeof session->lanes->daemon, event->daemon->name);
}

static void task_sent(struct mfl_server *server, struct mfl_lanes *lanes, const struct mfl_task *task)
{
        enum mfl_span_kind kind = task->kind == MFL_TASK_EVAL ? MFL_SPAN_EVALUATE : MFL_SPAN_TRAIN;
        const struct mfl_lane *lane = &lanes->compute;
        lanes->task = task->task;
        if (lane->open && lane->span.kind == kind && lane->span.round == task->round &&
                !strcmp(lane->span.job, task->job)) {
                lanes->n_items += task->n_items; /* more of the same, after another daemon was lost */
                return;
        }
        lanes->n_items = task->n_items;
        lanes->n_announced = 0;
        lane_open(server, lanes, &lanes->compute, kind, task->job, task->round);
}

static void announced(struct mfl_server *server, struct mfl_lanes *lanes, const struct mfl_announce *announce)
{
        lanes->n_announced += MFL_MIN(announce->item_count, (uint32_t)MFL_ITEMS_MAX);
        if (lanes->n_announced >= lanes->n_items && lanes->compute.span.kind == MFL_SPAN_TRAIN)
                lane_close(server, lanes, &lanes->compute);
        lanes->n_updates++;
        if (!lanes->network.open)
                lane_open(server, lanes, &lanes->network, MFL_SPAN_WAIT, announce->job, announce->round);
}

static void upload_complete(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_server_job *job = mfl_server_job_find(server, event->job);
        struct mfl_lanes *lanes =
                job && event->slot < job->n_slots ? lanes_of(server, job->slots[event->slot].conn) : NULL;
        if (!lanes || !lanes->network.open || lanes->network.span.kind != MFL_SPAN_UPLOAD)
                return;
        struct mfl_span last = lanes->network.span;
        lane_open(server, lanes, &lanes->network, MFL_SPAN_WAIT, last.job, last.round);
}

static void update_answered(struct mfl_server *server, struct mfl_lanes *lanes)
{
        lanes->n_updates -= lanes->n_updates > 0;
        if (!lanes->n_updates)
                lane_close(server, lanes, &lanes->network);
}

static void message_came(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_lanes *lanes = lanes_of(server, event->conn);
        if (!lanes)
                return;
        if (event->msg->kind == MFL_MSG_ANNOUNCE)
                announced(server, lanes, &event->msg->announce);
        else if (event->msg->kind == MFL_MSG_EVAL_RESULT || event->msg->kind == MFL_MSG_TASK_FAILED)
                lane_close(server, lanes, &lanes->compute);
}

static void message_sent(struct mfl_server *server, const struct mfl_core_action *action)
{
        const struct mfl_msg *msg = &action->msg;
        if (msg->kind == MFL_MSG_REFUSED && msg->update.code <= MFL_REFUSED_UNKNOWN)
                server->observed.uploads_refused[msg->update.code]++;
        struct mfl_lanes *lanes = lanes_of(server, action->conn);
        if (!lanes)
                return;
        if (msg->kind == MFL_MSG_TASK)
                task_sent(server, lanes, &msg->task);
        else if (msg->kind == MFL_MSG_ACCEPTED || msg->kind == MFL_MSG_REFUSED)
                update_answered(server, lanes);
        else if (msg->kind == MFL_MSG_CANCEL && msg->cancel.task == lanes->task) {
                lanes->n_updates = 0;
                lane_close(server, lanes, &lanes->compute);
                lane_close(server, lanes, &lanes->network);
        }
}

static void granted(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_lanes *lanes = lanes_of(server, action->conn);
        if (lanes && lanes->network.open && lanes->network.span.kind == MFL_SPAN_WAIT) {
                struct mfl_span last = lanes->network.span;
                lane_open(server, lanes, &lanes->network, MFL_SPAN_UPLOAD, last.job, last.round);
        }
}

static void daemon_down(struct mfl_server *server, struct mfl_lanes *lanes)
{
        if (!lanes)
                return;
        lane_close(server, lanes, &lanes->compute);
        lane_close(server, lanes, &lanes->network);
        lanes->n_updates = 0;
}

void mfl_observe_closed(struct mfl_session *session)
{
        struct mfl_server *server = session->server;
        server->observed.bytes_in += session->stream.bytes_in;
        server->observed.bytes_out += session->stream.bytes_out;
        if (server->observed.timeline)
                daemon_down(server, session->lanes);
        free(session->lanes);
        session->lanes = NULL;
}

void mfl_observe_spans(struct mfl_server *server,
        void (*call)(void *user, const struct mfl_span *span, bool open), void *user)
{
        const struct mfl_timeline *timeline = server->observed.timeline;
        if (!timeline)
                return;
        uint64_t n = MFL_MIN(timeline->n_spans, (uint64_t)MFL_SPANS_MAX);
        for (uint64_t i = timeline->n_spans - n; i < timeline->n_spans; i++)
                call(user, &timeline->spans[i % MFL_SPANS_MAX], false);
        for (struct mfl_session *s = server->sessions; s; s = s->next) {
                struct mfl_lane *lanes[] = {
                        s->lanes ? &s->lanes->compute : NULL, s->lanes ? &s->lanes->network : NULL};
                for (size_t i = 0; i < MFL_ARRAY_SIZE(lanes); i++) {
                        if (!lanes[i] || !lanes[i]->open)
                                continue;
                        struct mfl_span span = lanes[i]->span;
                        memcpy(span.daemon, s->lanes->daemon, sizeof span.daemon);
                        span.to_ms = mfl_server_now(server);
                        call(user, &span, true);
                }
        }
}

/* ---- the disk ---- */

void mfl_observe_disk(struct mfl_server *server, enum mfl_disk_op op, bool ok, const char *why)
{
        struct mfl_observed *seen = &server->observed;
        seen->disk_failed_ms[op] = ok ? 0 : MFL_MAX(mfl_server_now(server), (uint64_t)1);
        if (ok)
                return;
        seen->disk_failures[op]++;
        mfl_strcpy(seen->disk_reason, sizeof seen->disk_reason, why);
}

const char *mfl_observe_disk_failing(const struct mfl_server *server, uint64_t now_ms)
{
        const struct mfl_observed *seen = &server->observed;
        for (int op = 0; op < MFL_DISK_OPS_; op++)
                if (seen->disk_failed_ms[op] && now_ms - seen->disk_failed_ms[op] < DISK_FAILING_MS)
                        return seen->disk_reason;
        return NULL;
}

static double seconds_since(uint64_t *ns)
{
        uint64_t from = *ns;
        *ns = 0;
        return from ? (double)(uv_hrtime() - from) / 1e9 : 0;
}

static void round_committed(struct mfl_server *server, struct mfl_server_job *job)
{
        struct mfl_job_observed *seen = &job->observed;
        const struct mfl_round_record *record = &seen->record;
        server->observed.rounds_committed++;
        server->observed.clients_rejected += record->clients_rejected;
        seen->rounds++;
        seen->clients += record->clients;
        seen->clients_rejected += record->clients_rejected;
        mfl_histogram_add(&seen->round_seconds, &mfl_round_bounds,
                (double)(record->ended_ms - record->started_ms) / 1e3);
        if (record->evaluated) {
                seen->evaluated = true;
                seen->accuracy = record->accuracy;
                seen->loss = record->loss;
        }
        struct mfl_timeline *timeline = server->observed.timeline;
        if (!timeline)
                return;
        struct mfl_round_seen *round = &timeline->rounds[timeline->n_rounds++ % MFL_ROUNDS_SEEN_MAX];
        *round = (struct mfl_round_seen){.round = record->round,
                .daemons = record->daemons,
                .clients = record->clients,
                .started_ms = record->started_ms,
                .ended_ms = record->ended_ms,
                .committed_ms = mfl_server_now(server)};
        mfl_strcpy(round->job, sizeof round->job, job->id);
}

static void stored(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_server_job *job = mfl_server_job_find(server, event->job);
        bool commit = event->kind == MFL_EV_COMMITTED;
        mfl_observe_disk(server, commit ? MFL_DISK_COMMIT : MFL_DISK_CHECKPOINT, event->ok, event->reason);
        if (!job)
                return;
        mfl_histogram_add(commit ? &server->observed.commit_seconds : &server->observed.checkpoint_seconds,
                &mfl_disk_bounds,
                seconds_since(commit ? &job->observed.commit_ns : &job->observed.checkpoint_ns));
        if (commit && event->ok)
                round_committed(server, job);
}

/* ---- events and actions ---- */

void mfl_observe_event(struct mfl_server *server, const struct mfl_core_event *event)
{
        switch (event->kind) {
        case MFL_EV_DAEMON_UP:
                daemon_up(server, event);
                break;
        case MFL_EV_MESSAGE:
                message_came(server, event);
                break;
        case MFL_EV_UPLOAD_COMPLETE:
                upload_complete(server, event);
                break;
        case MFL_EV_ADDED:
                server->observed.updates_added += event->ok;
                server->observed.updates_rejected += !event->ok;
                break;
        case MFL_EV_CHECKPOINTED:
        case MFL_EV_COMMITTED:
                stored(server, event);
                break;
        default:
                break;
        }
}

void mfl_observe_action(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_server_job *job;
        switch (action->kind) {
        case MFL_ACT_SEND:
                message_sent(server, action);
                break;
        case MFL_ACT_GRANT:
                granted(server, action);
                break;
        case MFL_ACT_CHECKPOINT:
                job = mfl_server_job_find(server, action->job);
                if (job)
                        job->observed.checkpoint_ns = uv_hrtime();
                break;
        case MFL_ACT_COMMIT:
                job = mfl_server_job_find(server, action->job);
                if (job) {
                        job->observed.commit_ns = uv_hrtime();
                        job->observed.record = action->record;
                }
                break;
        default:
                break;
        }
}

void mfl_observe_beat(struct mfl_server *server, uint64_t period_ms)
{
        struct mfl_observed *seen = &server->observed;
        uint64_t now = uv_hrtime(), due = seen->beat_ns + period_ms * 1000000u;
        if (seen->beat_ns)
                mfl_histogram_add(
                        &seen->loop_lag_seconds, &mfl_lag_bounds, now > due ? (double)(now - due) / 1e9 : 0);
        seen->beat_ns = now;
}
