/* SPDX-License-Identifier: Apache-2.0 */
/* A job that moves to another server, or comes from one: each step of mfl.proto's Move, carried out by the disk worker
 * (server/move/move.h says why no step can lose the job or have it twice).
 *   - HOLD marks the job, stops it, and then lists its files; READ sends them; GONE ends it here, and daemons with nothing left to do are
 *     sent to the other server; BACK starts it again;
 *   - OFFER and VOID look at a token, and OFFER at how much is to come; WRITE takes a piece; TAKE adds the job and starts it. */
#include "common/base/log.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/jobs/spent.h"
#include "server/move/move.h"
#include "server/transfer/params_down.h"

/* request->own: of every step. */
struct moving {
        Mfl__MoveStep step;
        char to[MFL_MOVE_TO_BYTES], token[MFL_MOVE_TOKEN_BYTES], there[MFL_JOB_ID_BYTES],
                file[MFL_NAME_BYTES];
        bool ready; /* HOLD: the job has stopped */
        bool back;
        bool any_owner;
        uint64_t offset;
        size_t n; /* of data */
        uint8_t *data;
        struct mfl_move move;
        struct mfl_move_files files;
};

static void free_moving(void *own)
{
        struct moving *m = own;
        free(m->data);
        mfl_move_files_deinit(&m->files);
        free(m);
}

static struct moving *moving_of(struct mfl_request *op)
{
        return op->own;
}

/* ---- on the disk worker ---- */

struct vetting {
        const struct mfl_request *op;
        struct mfl_store_spents spents;
};

/* As at submit: what it may tell of its data, with all that jobs have told here. */
static int check_limits(const struct vetting *vetting, const struct mfl_job *spec, struct mfl_error *err)
{
        const struct mfl_spent_ask ask = {.limits = vetting->op->admin->jobs->limits,
                .spec = spec,
                .job = "",
                .known = &vetting->spents};
        return mfl_spent_check_plan(&ask, err);
}

static int vet(void *user, const char *text, struct mfl_error *err)
{
        const struct vetting *vetting = user;
        const struct mfl_request *op = vetting->op;
        struct mfl_job *spec;
        int r = mfl_job_check_text(text, "the job", err);
        if (!r)
                r = mfl_job_parse(text, strlen(text), "the job", &spec, err);
        if (r)
                return r;
        if (spec->privacy.kind && spec->privacy.mechanism != MFL_MECHANISM_GAUSSIAN)
                r = mfl_fail(err, MFL_INVALID,
                        "the job: privacy.mechanism %s: noise of later rounds takes back what earlier noise "
                        "has "
                        "added, with the key of the server that began: it can't move",
                        mfl_privacy_mechanism_names[spec->privacy.mechanism]);
        if (!r)
                r = mfl_submit_allows(op->admin, spec, "the job", err);
        if (!r)
                r = check_limits(vetting, spec, err);
        mfl_job_free(spec);
        return r;
}

static bool vet_body(const char *table, const char *daemon, const void *bytes, size_t n)
{
        bool is;
        if (!strcmp(table, "round_scores")) {
                Mfl__RoundScores *scores = mfl__round_scores__unpack(NULL, n, bytes);
                is = scores != NULL;
                mfl__round_scores__free_unpacked(scores, NULL);
        } else { /* a site's own has one client: server/jobs/partition.c */
                Mfl__Partition *partition = mfl__partition__unpack(NULL, n, bytes);
                is = partition && (!*daemon || partition->n_shown == 1);
                mfl__partition__free_unpacked(partition, NULL);
        }
        return is;
}

static int run_take(struct mfl_request *op)
{
        struct moving *m = moving_of(op);
        struct vetting vetting = {.op = op};
        const struct mfl_move_take take = {.token = m->token,
                .from = m->to,
                .owner = op->audit.who,
                .had = m->there,
                .any_owner = m->any_owner,
                .files = m->files.v,
                .n_files = m->files.n,
                .vet = vet,
                .vet_body = vet_body,
                .user = &vetting};
        int r = mfl_store_spent_list(op->admin->store, "", &vetting.spents, &op->err);
        if (!r)
                r = mfl_store_move_take(op->admin->store, &take, op->new_job, &op->err);
        mfl_store_spents_deinit(&vetting.spents);
        return r ? r : mfl_store_job_get(op->admin->store, op->new_job, &op->row, &op->err);
}

static int run_read(struct mfl_request *op)
{
        struct moving *m = moving_of(op);
        m->data = mfl_malloc(MFL_MOVE_DATA_MAX);
        if (!m->data)
                return mfl_fail_memory(&op->err, MFL_MOVE_DATA_MAX, "a piece of a file");
        return mfl_store_move_read(
                op->admin->store, op->job, m->file, m->offset, m->data, MFL_MOVE_DATA_MAX, &m->n, &op->err);
}

/* Whatever keeps its files from leaving (a full disk, too many of them), the job can stay. */
static int hold_back(struct mfl_request *op)
{
        struct moving *m = moving_of(op);
        int r = mfl_store_move_get(op->admin->store, op->job, &m->move, &op->err);
        if (!r && *m->move.there)
                r = mfl_fail(&op->err, MFL_BUSY, "job %s has moved to %s, as %s", op->job, m->move.to,
                        m->move.there);
        if (!r && m->ready)
                mfl_strcpy(op->new_job, sizeof op->new_job, op->job);
        return r;
}

static int run_offer(struct mfl_request *op)
{
        struct moving *m = moving_of(op);
        uint64_t bytes = 0;
        int r = mfl_store_move_known(op->admin->store, m->token, op->new_job, &op->err);
        for (uint32_t i = 0; i < m->files.n && !r; i++) {
                const uint64_t more = m->files.v[i].bytes;
                bytes = more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
        }
        return r || *op->new_job ? r
                                 : mfl_store_move_fits(
                                           op->admin->store, m->token, bytes, op->admin->moves_max, &op->err);
}

static int run_step(struct mfl_request *op)
{
        struct mfl_store *store = op->admin->store;
        struct moving *m = moving_of(op);
        int r;
        switch (m->step) {
        case MFL__MOVE_STEP__MOVE_HOLD:
                if (m->back)
                        return hold_back(op);
                r = mfl_store_move_begin(store, op->job, m->to, &m->move, &op->err);
                if (r == MFL_EXISTS) /* there already */
                        r = MFL_BUSY;
                return r || !m->ready ? r : mfl_store_move_export(store, op->job, &m->files, &op->err);
        case MFL__MOVE_STEP__MOVE_READ:
                return run_read(op);
        case MFL__MOVE_STEP__MOVE_GONE:
                r = mfl_store_move_end(store, op->job, m->there, &op->err);
                return r ? r : mfl_store_move_get(store, op->job, &m->move, &op->err);
        case MFL__MOVE_STEP__MOVE_BACK:
                r = mfl_store_move_back(store, op->job, &op->err);
                if (r == MFL_EXISTS)
                        r = MFL_BUSY;
                mfl_strcpy(op->new_job, sizeof op->new_job, op->job);
                return r ? r : mfl_store_job_get(store, op->job, &op->row, &op->err);
        case MFL__MOVE_STEP__MOVE_OFFER:
                return run_offer(op);
        case MFL__MOVE_STEP__MOVE_WRITE:
                return mfl_store_move_write(
                        store, m->token, m->file, m->offset, m->data, m->n, op->admin->moves_max, &op->err);
        case MFL__MOVE_STEP__MOVE_TAKE:
                return run_take(op);
        default:
                return mfl_store_move_void(store, m->token, op->new_job, &op->err);
        }
}

static void run_move(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = run_step(op);
}

/* ---- on the loop ---- */

static void stop_job(struct mfl_request *op)
{
        const struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        struct mfl_core_event event = {.kind = MFL_EV_JOB_STOP};
        if (!job || mfl_server_job_has_ended(job))
                return;
        mfl_strcpy(event.job, sizeof event.job, op->job);
        mfl_snprintf(event.reason, sizeof event.reason, "on its way to %s", moving_of(op)->move.to);
        mfl_loop_feed(op->admin->loop, &event);
}

/* Daemons that have no other job here. Those of a relay stay with it. */
static void send_daemons(struct mfl_admin *admin)
{
        const char *to = mfl_jobs_moved_to(admin->jobs);
        char text[400];
        if (!to)
                return;
        mfl_snprintf(text, sizeof text, "the jobs of this server have moved to %s", to);
        for (struct mfl_session *s = admin->sessions->first; s; s = s->next)
                if (mfl_session_is_daemon(s) && !s->carrier && !s->stream.closing) {
                        s->stream.leader = to;
                        mfl_stream_close(&s->stream, text, true);
                }
}

static void end_job(struct mfl_request *op)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        struct moving *m = moving_of(op);
        mfl_strcpy(op->admin->jobs->moved_to, sizeof op->admin->jobs->moved_to, m->move.to);
        if (job) {
                mfl_snprintf(job->reason, sizeof job->reason, "moved to %s, as %s", m->move.to, m->there);
                job->version++;
        }
        mfl_log_job(MFL_LOG_INFO, op->job, "%s: moved to %s, as %s", op->job, m->move.to, m->there);
        send_daemons(op->admin);
}

/* It takes the place of the object that has ended. */
static int restart_job(struct mfl_request *op, struct mfl_error *err)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        if (job && job->operations) /* somebody has begun to ask sites about it meanwhile */
                return mfl_fail(
                        err, MFL_BUSY, "%s is in use: it goes on when this server starts again", op->job);
        if (job && job->unread) /* its file is not read here: it stays in the lists as it is */
                return 0;
        if (job) {
                mfl_transfer_stop_job(op->admin->sessions, job);
                mfl_server_job_free(job);
        }
        return mfl_submit_start(op, "goes on here", err);
}

static int carry_on(struct mfl_request *op, struct mfl_error *err)
{
        switch (moving_of(op)->step) {
        case MFL__MOVE_STEP__MOVE_HOLD:
                stop_job(op);
                return 0;
        case MFL__MOVE_STEP__MOVE_GONE:
                end_job(op);
                return 0;
        case MFL__MOVE_STEP__MOVE_BACK:
                return restart_job(op, err);
        case MFL__MOVE_STEP__MOVE_TAKE:
                return op->status == MFL_EXISTS ? 0 : mfl_submit_start(op, "has moved to this server", err);
        default:
                return 0;
        }
}

static void answer_move(struct mfl_request *op, struct mfl_session *session)
{
        struct moving *m = moving_of(op);
        Mfl__Moved body = MFL__MOVED__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_error err;
        int r = carry_on(op, &err);
        if (!session || r < 0)
                return;
        if (r) {
                mfl_session_fail(session, op->request, mfl_operator_failure_code(r), "%s", err.text);
                return;
        }
        const uint32_t n = m->step == MFL__MOVE_STEP__MOVE_HOLD ? m->files.n : 0;
        MFL_CLEANUP_FREE Mfl__MoveFile *files = mfl_calloc(n + 1, sizeof *files);
        MFL_CLEANUP_FREE Mfl__MoveFile **at = mfl_calloc(n + 1, sizeof(Mfl__MoveFile *));
        if (!files || !at) {
                mfl_operator_no_memory(session, n * sizeof *files, "the list of files");
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                mfl__move_file__init(&files[i]);
                files[i].name = m->files.v[i].name;
                files[i].bytes = m->files.v[i].bytes;
                files[i].sha256 = (ProtobufCBinaryData){.len = 32, .data = m->files.v[i].sha256};
                at[i] = &files[i];
        }
        body.n_files = n;
        body.files = at;
        body.token = m->move.token;
        body.to = m->move.to;
        body.job = op->new_job;
        if (m->step == MFL__MOVE_STEP__MOVE_READ)
                body.data = (ProtobufCBinaryData){.len = m->n, .data = m->data};
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_MOVED;
        envelope.moved = &body;
        mfl_session_send(session, &envelope);
}

/* ---- the request ---- */

static int copy_files(struct moving *m, const Mfl__Move *move, struct mfl_error *err)
{
        m->files.v = mfl_calloc(move->n_files + 1, sizeof *m->files.v);
        if (!m->files.v)
                return mfl_fail_memory(err, move->n_files * sizeof *m->files.v, "the list of files");
        m->files.n = (uint32_t)move->n_files;
        for (size_t i = 0; i < move->n_files; i++) {
                mfl_strcpy(m->files.v[i].name, sizeof m->files.v[i].name, move->files[i]->name);
                m->files.v[i].bytes = move->files[i]->bytes;
                memcpy(m->files.v[i].sha256, move->files[i]->sha256.data, 32);
        }
        return 0;
}

static int copy_move(const Mfl__Move *move, struct moving **ret_moving, struct mfl_error *err)
{
        struct moving *m = mfl_calloc(1, sizeof *m);
        int r = m ? 0 : mfl_fail_memory(err, sizeof *m, "a move");
        if (r)
                return r;
        m->step = move->step;
        m->back = move->back;
        mfl_strcpy(m->to, sizeof m->to, move->to);
        mfl_strcpy(m->token, sizeof m->token, move->token);
        mfl_strcpy(m->there, sizeof m->there, move->there);
        mfl_strcpy(m->file, sizeof m->file, move->file);
        m->offset = move->offset;
        if (move->step == MFL__MOVE_STEP__MOVE_TAKE || move->step == MFL__MOVE_STEP__MOVE_OFFER)
                r = copy_files(m, move, err);
        if (!r && move->step == MFL__MOVE_STEP__MOVE_WRITE && move->data.len) {
                m->data = mfl_malloc(move->data.len);
                m->n = move->data.len;
                r = m->data ? 0 : mfl_fail_memory(err, move->data.len, "a piece of a file");
                if (!r)
                        memcpy(m->data, move->data.data, move->data.len);
        }
        if (r)
                free_moving(m);
        else
                *ret_moving = m;
        return r;
}

static const char *const verbs[] = {[MFL__MOVE_STEP__MOVE_HOLD] = "move",
        [MFL__MOVE_STEP__MOVE_GONE] = "moved",
        [MFL__MOVE_STEP__MOVE_BACK] = "move-back",
        [MFL__MOVE_STEP__MOVE_TAKE] = "move-in",
        [MFL__MOVE_STEP__MOVE_VOID] = "move-void"};

static const char *verb_of(Mfl__MoveStep step)
{
        return (size_t)step < MFL_ARRAY_SIZE(verbs) ? verbs[step] : NULL;
}

/* False: the asker got a Failure. */
static bool may_move(struct mfl_session *session, uint64_t request, const Mfl__Move *move, bool *ret_ready)
{
        *ret_ready = false;
        if (!*move->job) /* for a job that comes, submitting is enough (permit.c) */
                return true;
        struct mfl_server_job *job = mfl_operator_job(session, request, move->job);
        if (!job || !mfl_operator_may_touch(session, request, job, "move"))
                return false;
        const bool leaves = (move->step == MFL__MOVE_STEP__MOVE_HOLD && !move->back) ||
                            move->step == MFL__MOVE_STEP__MOVE_READ;
        if (leaves && !mfl_operator_may_carry(session, request, job))
                return false;
        *ret_ready = mfl_server_job_has_ended(job) && !mfl_server_job_in_core(job) && !job->operations &&
                     !job->state_unwritten;
        if (*ret_ready || move->step == MFL__MOVE_STEP__MOVE_HOLD || move->step == MFL__MOVE_STEP__MOVE_GONE)
                return true;
        mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                "%s has not stopped yet: ask again", job->id);
        return false;
}

void mfl_operator_move(struct mfl_session *session, uint64_t request, const Mfl__Move *move)
{
        struct mfl_error err;
        struct moving *m;
        bool ready;
        if (!may_move(session, request, move, &ready))
                return;
        int r = copy_move(move, &m, &err);
        if (r) {
                mfl_loop_fatal(session->all->loop, r, &err);
                return;
        }
        m->ready = ready;
        m->any_owner = session->roles & MFL_TLS_ROLE_ADMIN;
        struct mfl_request *op = mfl_request_new(session, request, move->job, run_move, answer_move);
        if (!op) {
                free_moving(m);
                return;
        }
        op->own = m;
        op->own_free = free_moving;
        const char *verb = verb_of(m->step);
        if (verb && !(m->step == MFL__MOVE_STEP__MOVE_HOLD && ready)) {
                mfl_request_audit(op, verb, move->job);
                mfl_snprintf(op->audit.text, sizeof op->audit.text, "%s%s%s", *m->there ? m->there : "",
                        *m->there && *m->to ? ", " : "", m->to);
        }
        mfl_request_start(op, session);
}
