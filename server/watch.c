/* SPDX-License-Identifier: Apache-2.0 */
/* What operators see of jobs: the protobuf views, and the watchers that are told when something changes. */
#include <math.h>
#include <stdio.h>

#include "server/server.h"

#define ROUNDS_AT_START 1000 /* a watcher gets so many of the past at most */
#define LOG_LINES_AT_START 10000
#define WATCHERS_MAX 256 /* of a connection */
#define CREW_EVERY_MS 1000
#define QUEUE_LIMIT_BYTES                                                                                    \
        (8u << 20) /* a watcher that reads no faster than this misses progress, never rounds */

struct mfl_watcher {
        struct mfl_watcher *next; /* of the session */
        struct mfl_session *session;
        uint64_t request;
        char job[MFL_JOB_ID_BYTES];
        bool logs, follow, all_rounds, crew;
        uint64_t crew_ms; /* when the crew was sent last */
        bool more;        /* of the past is to be read */
        bool started;     /* the past was sent */
        bool ended;
        uint64_t log_seq;    /* last line sent */
        uint32_t round_sent; /* last round sent */
};

void mfl_watch_round_info(const struct mfl_store_round *info, Mfl__RoundInfo *ret_info)
{
        const struct mfl_round_record *record = &info->record;
        Mfl__RoundInfo out = MFL__ROUND_INFO__INIT;
        out.round = record->round;
        out.evaluated = record->evaluated;
        out.no_accuracy = isnan(record->accuracy) || isnan(record->train_accuracy);
        out.accuracy = out.no_accuracy ? 0 : record->accuracy;
        out.loss = record->loss;
        out.train_loss = record->train_loss;
        out.train_accuracy = out.no_accuracy ? 0 : record->train_accuracy;
        out.samples = record->samples;
        out.clients = record->clients;
        out.clients_rejected = record->clients_rejected;
        out.weight = record->weight;
        out.bytes_up = info->bytes_up;
        out.bytes_down = info->bytes_down;
        out.bytes_up_alone = info->bytes_up_alone;
        out.bytes_down_alone = info->bytes_down_alone;
        out.seconds = (double)(record->ended_ms - record->started_ms) / 1000.0;
        out.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = (uint8_t *)record->digest};
        out.attempt = record->attempt;
        out.committed_ms = info->committed_ms;
        out.kept = info->kept;
        out.daemons = record->daemons;
        *ret_info = out;
}

static Mfl__JobState wire_state(enum mfl_job_state state)
{
        return (Mfl__JobState)state; /* the numbers are the same by design */
}
_Static_assert((int)MFL_JOB_WAITING == MFL__JOB_STATE__JOB_WAITING, "states differ from the wire's");
_Static_assert((int)MFL_JOB_STOPPED == MFL__JOB_STATE__JOB_STOPPED, "states differ from the wire's");

void mfl_watch_job_info(
        struct mfl_server_job *job, Mfl__JobInfo *ret_info, struct mfl_job_info_buffers *buffers)
{
        Mfl__JobInfo out = MFL__JOB_INFO__INIT;
        struct mfl_core_job_view *view = &buffers->view;
        out.job = job->id;
        out.name = job->spec->name;
        out.state = wire_state(job->state);
        out.reason = job->reason;
        out.round = job->committed;
        out.rounds = job->spec->rounds;
        out.n_params = job->n_params;
        out.n_frozen = job->n_frozen;
        out.model = job->spec->model.preset[0] ? job->spec->model.preset : "layers";
        out.data = job->spec->data.name;
        out.strategy = (char *)mfl_strategy_name(job->spec->aggregation.strategy);
        out.owner = job->owner;
        out.per_token = job->per_token;
        out.created_ms = job->created_unix_ms;
        out.finished_ms = job->finished_unix_ms;
        if (job->has_last) {
                mfl_watch_round_info(&job->last, &buffers->last);
                out.last = &buffers->last;
        }
        if (job->has_evaluated && !job->last.record.evaluated) {
                mfl_watch_round_info(&job->evaluated, &buffers->evaluated);
                out.evaluated = &buffers->evaluated;
        }
        if (job->has_best) {
                mfl_watch_round_info(&job->best, &buffers->best);
                out.best = &buffers->best;
        }
        if (job->in_core && !mfl_core_job_view(job->server->core, job->id, view)) {
                out.phase = (char *)view->phase;
                out.in_round = view->in_round;
                out.attempt = view->attempt;
                out.clients_done = view->clients_done;
                out.clients_total = view->clients_total;
                out.daemons = view->daemons;
                if (view->reason[0] && job->state <= MFL_JOB_RUNNING)
                        out.reason = view->reason;
        }
        *ret_info = out;
}

static void send_event(struct mfl_watcher *watcher, Mfl__Event *event)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        envelope.request = watcher->request;
        envelope.body_case = MFL__ENVELOPE__BODY_EVENT;
        envelope.event = event;
        mfl_session_send(watcher->session, &envelope);
}

/* Who works for the job, where and when that is to be told; NULL: not now. Between two phases nobody does for
 * a moment, which is nothing to tell. */
static struct mfl_crew *crew_of(
        struct mfl_watcher *watcher, struct mfl_server_job *job, const Mfl__JobInfo *info)
{
        uint64_t now_ms = mfl_server_now(job->server);
        bool between = !info->daemons && (!strcmp(info->phase, "apply") || !strcmp(info->phase, "commit"));
        if (!watcher->crew || between || job->state != MFL_JOB_RUNNING ||
                (watcher->crew_ms && now_ms - watcher->crew_ms < CREW_EVERY_MS))
                return NULL;
        watcher->crew_ms = now_ms;
        return mfl_crew_new(job);
}

static void send_info(struct mfl_watcher *watcher, struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        Mfl__Event event = MFL__EVENT__INIT;
        struct mfl_job_info_buffers buffers;
        mfl_watch_job_info(job, &info, &buffers);
        event.what_case = MFL__EVENT__WHAT_INFO;
        event.info = &info;
        MFL_CLEANUP_FREE struct mfl_crew *crew = crew_of(watcher, job, &info);
        event.crew = crew ? mfl_crew_wire(crew) : NULL;
        send_event(watcher, &event);
        if (job->state >= MFL_JOB_DONE)
                watcher->ended = true;
}

static void send_round(struct mfl_watcher *watcher, const struct mfl_store_round *round)
{
        Mfl__RoundInfo info;
        Mfl__Event event = MFL__EVENT__INIT;
        if (round->record.round <= watcher->round_sent)
                return;
        watcher->round_sent = round->record.round;
        mfl_watch_round_info(round, &info);
        event.what_case = MFL__EVENT__WHAT_ROUND;
        event.round = &info;
        send_event(watcher, &event);
}

static void send_line(struct mfl_watcher *watcher, uint64_t seq, uint64_t time_ms, const char *text)
{
        Mfl__LogLine line = MFL__LOG_LINE__INIT;
        Mfl__Event event = MFL__EVENT__INIT;
        if (seq <= watcher->log_seq)
                return;
        watcher->log_seq = seq;
        line.seq = seq;
        line.time_ms = time_ms;
        line.text = (char *)text;
        event.what_case = MFL__EVENT__WHAT_LOG;
        event.log = &line;
        send_event(watcher, &event);
}

/* ---- the past, read by the disk worker ---- */

struct past {
        struct mfl_work work;
        struct mfl_server *server;
        uint32_t conn;
        uint64_t request;
        char job[MFL_JOB_ID_BYTES];
        bool logs, all_rounds;
        uint32_t rounds_from;
        struct mfl_store_rounds rounds;
        struct mfl_store_lines lines;
        int status;
        struct mfl_error err;
};

static void run_past(struct mfl_work *work)
{
        struct past *past = MFL_CONTAINER_OF(work, struct past, work);
        struct mfl_store *store = past->server->store;
        if (past->logs)
                past->status =
                        mfl_store_log_list(store, past->job, 0, LOG_LINES_AT_START, &past->lines, &past->err);
        else if (past->all_rounds)
                past->status = mfl_store_round_page(
                        store, past->job, past->rounds_from, ROUNDS_AT_START, &past->rounds, &past->err);
        else
                past->status = mfl_store_round_list(
                        store, past->job, past->rounds_from, ROUNDS_AT_START, &past->rounds, &past->err);
}

static struct mfl_watcher *find_watcher(struct mfl_session *session, uint64_t request)
{
        struct mfl_watcher *w = session ? session->watchers : NULL;
        while (w && w->request != request)
                w = w->next;
        return w;
}

static void finish(struct mfl_watcher *watcher)
{
        Mfl__Done done = MFL__DONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_watcher **at = &watcher->session->watchers;
        done.text = "";
        envelope.request = watcher->request;
        envelope.body_case = MFL__ENVELOPE__BODY_DONE;
        envelope.done = &done;
        mfl_session_send(watcher->session, &envelope);
        while (*at != watcher)
                at = &(*at)->next;
        *at = watcher->next;
        watcher->session->server->n_log_watchers -= watcher->logs;
        free(watcher);
}

static void more_past(struct mfl_watcher *watcher);

static void send_past(struct past *past, struct mfl_watcher *watcher)
{
        struct mfl_server_job *job = mfl_server_job_find(past->server, past->job);
        for (uint32_t i = 0; i < past->rounds.n; i++)
                send_round(watcher, &past->rounds.v[i]);
        for (uint32_t i = 0; i < past->lines.n; i++)
                send_line(watcher, past->lines.v[i].seq, past->lines.v[i].time_ms, past->lines.v[i].text);
        if (past->all_rounds && past->rounds.n == ROUNDS_AT_START) {
                watcher->more = true;
                more_past(watcher);
                return;
        }
        watcher->started = true;
        if (watcher->logs) {
                watcher->ended = !watcher->follow || !job || job->state >= MFL_JOB_DONE;
        } else if (job) {
                if (job->has_last)
                        send_round(watcher, &job->last); /* committed while the past was read */
                send_info(watcher, job);
        } else {
                watcher->ended = true;
        }
        if (watcher->ended)
                finish(watcher);
}

static void done_past(struct mfl_work *work)
{
        struct past *past = MFL_CONTAINER_OF(work, struct past, work);
        struct mfl_session *session = mfl_session_find(past->server, past->conn);
        struct mfl_watcher *watcher = find_watcher(session, past->request);
        mfl_session_worked(past->server, past->conn);
        if (past->status < 0 && !work->cancelled)
                mfl_server_fatal(past->server, past->status, &past->err);
        else if (watcher && past->status > 0)
                mfl_operator_fail(
                        session, past->request, MFL__FAILURE_CODE__FAILURE_CONFLICT, "%s", past->err.text);
        else if (watcher && !work->cancelled)
                send_past(past, watcher);
        mfl_store_rounds_deinit(&past->rounds);
        mfl_store_lines_deinit(&past->lines);
        free(past);
}

/* False: the worker has too much to do for this peer. */
static bool start_past(struct mfl_watcher *watcher)
{
        struct mfl_session *session = watcher->session;
        struct mfl_error err;
        struct past *past = mfl_calloc(1, sizeof *past);
        if (!past) {
                mfl_server_fatal(session->server, mfl_fail_memory(&err, sizeof *past, "a watcher"), &err);
                return true;
        }
        *past = (struct past){.server = session->server,
                .conn = session->conn,
                .request = watcher->request,
                .logs = watcher->logs,
                .all_rounds = watcher->all_rounds,
                .rounds_from = watcher->round_sent,
                .work = {.run = run_past, .done = done_past}};
        mfl_strcpy(past->job, sizeof past->job, watcher->job);
        bool taken = mfl_session_submit(session, &past->work);
        if (!taken)
                free(past);
        return taken;
}

/* The next page of the past, unless the one before is still on its way to a slow peer, or the worker is busy:
 * then the flush looks again. */
static void more_past(struct mfl_watcher *watcher)
{
        if (watcher->session->stream.queued_bytes >= QUEUE_LIMIT_BYTES)
                return;
        watcher->more = !start_past(watcher);
}

static uint32_t count_watchers(const struct mfl_session *session)
{
        uint32_t n = 0;
        for (const struct mfl_watcher *w = session->watchers; w; w = w->next)
                n++;
        return n;
}

void mfl_watch_start(
        struct mfl_session *session, uint64_t request, struct mfl_server_job *job, const Mfl__Watch *watch)
{
        struct mfl_error err;
        if (count_watchers(session) == WATCHERS_MAX) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "this connection watches %d jobs already, which is the limit", WATCHERS_MAX);
                return;
        }
        struct mfl_watcher *watcher = mfl_calloc(1, sizeof *watcher);
        if (!watcher) {
                mfl_server_fatal(session->server, mfl_fail_memory(&err, sizeof *watcher, "a watcher"), &err);
                return;
        }
        *watcher = (struct mfl_watcher){.next = session->watchers,
                .session = session,
                .request = request,
                .logs = watch->logs,
                .follow = watch->follow,
                .all_rounds = watch->all_rounds,
                .crew = watch->crew,
                .round_sent = watch->rounds_from};
        mfl_strcpy(watcher->job, sizeof watcher->job, job->id);
        session->watchers = watcher;
        session->server->n_log_watchers += watch->logs;
        watcher->more = !start_past(watcher);
}

void mfl_watch_forget(struct mfl_session *session)
{
        struct mfl_watcher *w;
        while ((w = session->watchers)) {
                session->watchers = w->next;
                session->server->n_log_watchers -= w->logs;
                free(w);
        }
}

/* ---- changes ---- */

void mfl_watch_round(struct mfl_server_job *job, const struct mfl_store_round *round)
{
        for (struct mfl_session *s = job->server->sessions; s; s = s->next)
                for (struct mfl_watcher *w = s->watchers; w; w = w->next)
                        if (w->started && !w->logs && !strcmp(w->job, job->id))
                                send_round(w, round);
}

void mfl_watch_log(
        struct mfl_server *server, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text)
{
        if (!server->n_log_watchers)
                return;
        for (struct mfl_session *s = server->sessions; s; s = s->next)
                for (struct mfl_watcher *w = s->watchers; w; w = w->next)
                        if (w->started && w->logs && !strcmp(w->job, job) &&
                                s->stream.queued_bytes < QUEUE_LIMIT_BYTES)
                                send_line(w, seq, time_unix_ms, text);
}

static void flush_session(struct mfl_session *session)
{
        struct mfl_watcher *w = session->watchers, *next;
        for (; w; w = next) {
                next = w->next;
                struct mfl_server_job *job = mfl_server_job_find(session->server, w->job);
                if (w->more)
                        more_past(w);
                if (!w->started)
                        continue;
                if (w->logs)
                        w->ended = !job || job->state >= MFL_JOB_DONE;
                else if (job && (job->dirty || job->state == MFL_JOB_RUNNING) &&
                         session->stream.queued_bytes < QUEUE_LIMIT_BYTES)
                        send_info(w, job);
                else if (!job)
                        w->ended = true;
                if (w->ended)
                        finish(w);
        }
}

void mfl_watch_flush(struct mfl_server *server)
{
        if (server->n_operators)
                for (struct mfl_session *s = server->sessions; s; s = s->next)
                        if (s->watchers)
                                flush_session(s);
        for (struct mfl_server_job *job = server->jobs; job; job = job->next)
                job->dirty = false;
}
