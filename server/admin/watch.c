/* SPDX-License-Identifier: Apache-2.0 */
/* Watchers. */
#include "server/admin/watch.h"

#include "server/loop/states.h"
#include "server/views/crew_view.h"
#include "server/views/job_view.h"

#define ROUNDS_AT_START 1000 /* a page of the past; a watcher that does not want all rounds gets one */
#define LOG_LINES_AT_START 10000
#define WATCHERS_MAX 256 /* per connection */
#define CREW_EVERY_MS 1000
#define QUEUE_LIMIT_BYTES (8u << 20) /* a watcher that reads more slowly misses progress, never rounds */

enum watcher_state {
        WATCHER_PAST,
        WATCHER_READING,
        WATCHER_FOLLOWING,
};

static const unsigned edges[] = {
        [WATCHER_PAST] = MFL_TO(WATCHER_READING),
        [WATCHER_READING] = MFL_TO(WATCHER_PAST) | MFL_TO(WATCHER_FOLLOWING),
        [WATCHER_FOLLOWING] = 0,
};

struct mfl_watcher {
        struct mfl_watcher *next; /* of the session */
        struct mfl_session *session;
        enum watcher_state state;
        uint64_t request;
        char job[MFL_JOB_ID_BYTES];
        bool logs, follow, all_rounds, crew; /* what it asked for */
        uint64_t crew_ms;                    /* when the crew was sent last */
        uint64_t version;                    /* of the job, when its info was sent last */
        uint64_t log_seq;                    /* last line sent */
        uint32_t round_sent;                 /* last round sent */
};

static void send_event(struct mfl_watcher *watcher, Mfl__Event *event)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        envelope.request = watcher->request;
        envelope.body_case = MFL__ENVELOPE__BODY_EVENT;
        envelope.event = event;
        mfl_session_send(watcher->session, &envelope);
}

/* Who works for the job, if the watcher wants it and it is time; else NULL. Between two phases nobody works
 * for a moment, which is not worth telling. */
static struct mfl_crew *crew_of(
        struct mfl_watcher *watcher, const struct mfl_server_job *job, const Mfl__JobInfo *info)
{
        uint64_t now_ms = mfl_loop_now(job->jobs->loop);
        bool between = !info->daemons && (!strcmp(info->phase, "apply") || !strcmp(info->phase, "commit"));
        if (!watcher->crew || between || job->state != MFL_JOB_RUNNING ||
                (watcher->crew_ms && now_ms - watcher->crew_ms < CREW_EVERY_MS))
                return NULL;
        watcher->crew_ms = now_ms;
        return mfl_crew_new(job, watcher->session->all);
}

static void send_info(struct mfl_watcher *watcher, const struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        Mfl__Event event = MFL__EVENT__INIT;
        struct mfl_job_info_buffers buffers;
        mfl_assert(!watcher->logs && !strcmp(watcher->job, job->id));
        mfl_view_job(job, &info, &buffers);
        event.what_case = MFL__EVENT__WHAT_INFO;
        event.info = &info;
        MFL_CLEANUP_FREE struct mfl_crew *crew = crew_of(watcher, job, &info);
        event.crew = crew ? mfl_crew_wire(crew) : NULL;
        send_event(watcher, &event);
        watcher->version = job->version;
}

static void send_round(struct mfl_watcher *watcher, const struct mfl_store_round *round)
{
        Mfl__RoundInfo info;
        Mfl__Event event = MFL__EVENT__INIT;
        if (round->record.round <= watcher->round_sent)
                return;
        watcher->round_sent = round->record.round;
        mfl_view_round(round, &info);
        event.what_case = MFL__EVENT__WHAT_ROUND;
        event.round = &info;
        send_event(watcher, &event);
}

static void send_line(struct mfl_watcher *watcher, uint64_t seq, uint64_t time_ms, const char *text)
{
        Mfl__LogLine line = MFL__LOG_LINE__INIT;
        Mfl__Event event = MFL__EVENT__INIT;
        mfl_assert(watcher->logs);
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
        struct mfl_admin *admin;
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
        struct mfl_store *store = past->admin->store;
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
        struct mfl_watcher *w = session ? mfl_operator_of(session)->watchers : NULL;
        while (w && w->request != request)
                w = w->next;
        return w;
}

static void drop(struct mfl_watcher *watcher)
{
        struct mfl_watcher **at = &mfl_operator_of(watcher->session)->watchers;
        while (*at != watcher)
                at = &(*at)->next;
        *at = watcher->next;
        mfl_admin_of(watcher->session)->n_log_watchers -= watcher->logs;
        free(watcher);
}

static void finish(struct mfl_watcher *watcher)
{
        mfl_assert(watcher->state == WATCHER_FOLLOWING);
        mfl_operator_done(watcher->session, watcher->request, "");
        drop(watcher);
}

static void ask_past(struct mfl_watcher *watcher);

/* True: the watcher has seen everything that it will ever see. */
static bool follow(struct mfl_watcher *watcher, const struct mfl_server_job *job)
{
        mfl_state_move(watcher->state, edges, WATCHER_FOLLOWING);
        if (!job)
                return true;
        if (watcher->logs)
                return !watcher->follow || mfl_server_job_has_ended(job);
        if (job->has_last)
                send_round(watcher, &job->last); /* committed while the past was read */
        send_info(watcher, job);
        return mfl_server_job_has_ended(job);
}

static void send_past(const struct past *past, struct mfl_watcher *watcher)
{
        for (uint32_t i = 0; i < past->rounds.n; i++)
                send_round(watcher, &past->rounds.v[i]);
        for (uint32_t i = 0; i < past->lines.n; i++)
                send_line(watcher, past->lines.v[i].seq, past->lines.v[i].time_ms, past->lines.v[i].text);
        if (past->all_rounds && past->rounds.n == ROUNDS_AT_START) {
                mfl_state_move(watcher->state, edges, WATCHER_PAST);
                ask_past(watcher);
                return;
        }
        if (follow(watcher, mfl_server_job_find(past->admin->jobs, past->job)))
                finish(watcher);
}

static void done_past(struct mfl_work *work)
{
        struct past *past = MFL_CONTAINER_OF(work, struct past, work);
        struct mfl_sessions *sessions = past->admin->sessions;
        struct mfl_session *session = mfl_session_find(sessions, past->conn);
        struct mfl_watcher *watcher = find_watcher(session, past->request);
        mfl_session_worked(sessions, past->conn);
        if (past->status < 0 && !work->cancelled) {
                mfl_loop_fatal(past->admin->loop, past->status, &past->err);
        } else if (watcher && past->status > 0) {
                mfl_session_fail(
                        session, past->request, MFL__FAILURE_CODE__FAILURE_CONFLICT, "%s", past->err.text);
                drop(watcher);
        } else if (watcher && !work->cancelled) {
                send_past(past, watcher);
        }
        mfl_store_rounds_deinit(&past->rounds);
        mfl_store_lines_deinit(&past->lines);
        free(past);
}

/* False: the worker has too much to do for this peer. */
static bool start_past(struct mfl_watcher *watcher)
{
        struct mfl_session *session = watcher->session;
        struct past *past = mfl_calloc(1, sizeof *past);
        if (!past) {
                mfl_operator_no_memory(session, sizeof *past, "a watcher");
                return false;
        }
        *past = (struct past){.admin = mfl_admin_of(session),
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

/* The next page of the past, unless the one before is still on its way to a slow peer or the worker is busy:
 * then the next flush asks again. */
static void ask_past(struct mfl_watcher *watcher)
{
        if (watcher->session->stream.queued_bytes < QUEUE_LIMIT_BYTES && start_past(watcher))
                mfl_state_move(watcher->state, edges, WATCHER_READING);
}

static uint32_t count_watchers(const struct mfl_session *session)
{
        uint32_t n = 0;
        for (const struct mfl_watcher *w = mfl_operator_of(session)->watchers; w; w = w->next)
                n++;
        return n;
}

void mfl_watch_start(struct mfl_session *session, uint64_t request, const Mfl__Watch *watch)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        const struct mfl_server_job *job = mfl_operator_job(session, request, watch->job);
        if (!job)
                return;
        if (count_watchers(session) == WATCHERS_MAX) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "this connection watches %d jobs already, which is the limit", WATCHERS_MAX);
                return;
        }
        struct mfl_watcher *watcher = mfl_calloc(1, sizeof *watcher);
        if (!watcher) {
                mfl_operator_no_memory(session, sizeof *watcher, "a watcher");
                return;
        }
        *watcher = (struct mfl_watcher){.next = peer->watchers,
                .session = session,
                .state = WATCHER_PAST,
                .request = request,
                .logs = watch->logs,
                .follow = watch->follow,
                .all_rounds = watch->all_rounds,
                .crew = watch->crew,
                .round_sent = watch->rounds_from};
        mfl_strcpy(watcher->job, sizeof watcher->job, job->id);
        peer->watchers = watcher;
        mfl_admin_of(session)->n_log_watchers += watch->logs;
        ask_past(watcher);
}

void mfl_watch_forget(struct mfl_session *session)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        while (peer->watchers)
                drop(peer->watchers);
}

/* ---- changes ---- */

/* The next session of an operator, from this one on. */
static struct mfl_session *next_operator(struct mfl_session *s)
{
        while (s && (s->role != MFL__ROLE__ROLE_OPERATOR || !s->peer))
                s = s->next;
        return s;
}

void mfl_watch_round(struct mfl_admin *admin, const struct mfl_server_job *job)
{
        struct mfl_session *s = next_operator(admin->n_operators ? admin->sessions->first : NULL);
        for (; s; s = next_operator(s->next))
                for (struct mfl_watcher *w = mfl_operator_of(s)->watchers; w; w = w->next)
                        if (w->state == WATCHER_FOLLOWING && !w->logs && !strcmp(w->job, job->id))
                                send_round(w, &job->last);
}

void mfl_watch_log(
        struct mfl_admin *admin, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text)
{
        struct mfl_session *s = next_operator(admin->sessions->first);
        for (; s; s = next_operator(s->next))
                for (struct mfl_watcher *w = mfl_operator_of(s)->watchers; w; w = w->next)
                        if (w->state == WATCHER_FOLLOWING && w->logs && !strcmp(w->job, job) &&
                                s->stream.queued_bytes < QUEUE_LIMIT_BYTES)
                                send_line(w, seq, time_unix_ms, text);
}

/* True: it has seen everything. */
static bool flush_watcher(struct mfl_watcher *w)
{
        const struct mfl_server_job *job = mfl_server_job_find(mfl_admin_of(w->session)->jobs, w->job);
        if (!job)
                return true;
        if (w->logs)
                return mfl_server_job_has_ended(job);
        if (w->session->stream.queued_bytes >= QUEUE_LIMIT_BYTES)
                return false;
        if (w->version != job->version || !mfl_server_job_has_ended(job))
                send_info(w, job);
        return mfl_server_job_has_ended(job);
}

void mfl_watch_flush(struct mfl_admin *admin)
{
        struct mfl_watcher *w, *next;
        struct mfl_session *s = next_operator(admin->sessions->first);
        for (; s; s = next_operator(s->next))
                for (w = mfl_operator_of(s)->watchers; w; w = next) {
                        next = w->next;
                        if (w->state == WATCHER_PAST)
                                ask_past(w);
                        if (w->state == WATCHER_FOLLOWING && flush_watcher(w))
                                finish(w);
                }
}
