/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of `mfl`. What memory knows is answered at once; what the database must do goes to the disk worker
 * and is answered when it is done. A request that fails gets a Failure, the connection stays.
 */
#include <stdio.h>

#include "common/log.h"
#include "common/model/safetensors.h"
#include "server/server.h"

#define DETAIL_ROUNDS 1000

/* ---- answers ---- */

void mfl_operator_fail(
        struct mfl_session *session, uint64_t request, Mfl__FailureCode code, const char *fmt, ...)
{
        char text[600];
        Mfl__Failure failure = MFL__FAILURE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        failure.code = code;
        failure.text = text;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_FAILURE;
        envelope.failure = &failure;
        mfl_session_send(session, &envelope);
}

static Mfl__FailureCode failure_code(int status)
{
        switch (status) {
        case MFL_NOT_FOUND:
                return MFL__FAILURE_CODE__FAILURE_NOT_FOUND;
        case MFL_EXISTS:
        case MFL_BUSY:
                return MFL__FAILURE_CODE__FAILURE_CONFLICT;
        case MFL_INVALID:
                return MFL__FAILURE_CODE__FAILURE_INVALID;
        default:
                return MFL__FAILURE_CODE__FAILURE_LIMIT;
        }
}

static void answer_done(struct mfl_session *session, uint64_t request, const char *text)
{
        Mfl__Done done = MFL__DONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        done.text = (char *)text;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DONE;
        envelope.done = &done;
        mfl_session_send(session, &envelope);
}

static void out_of_memory(struct mfl_session *session, size_t bytes, const char *what)
{
        struct mfl_error err;
        mfl_server_fatal(session->server, mfl_fail_memory(&err, bytes, what), &err);
}

static struct mfl_server_job *job_or_fail(struct mfl_session *session, uint64_t request, const char *id)
{
        struct mfl_server_job *job = mfl_server_job_find(session->server, id);
        if (!job)
                mfl_operator_fail(
                        session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND, "there is no job '%s'", id);
        return job;
}

/* ---- requests that the disk worker does ---- */

struct disk_request {
        struct mfl_work work;
        struct mfl_server *server;
        uint32_t conn;
        uint64_t request;
        char job[MFL_JOB_ID_BYTES];
        int status;
        struct mfl_error err;
        void (*answer)(
                struct disk_request *op, struct mfl_session *session); /* session NULL: the asker is gone */
        /* submit, clone */
        char *text;
        char token[MFL_TOKEN_BYTES], name[MFL_NAME_BYTES];
        struct mfl_store_upload *upload;
        char new_job[MFL_JOB_ID_BYTES];
        struct mfl_store_job row;
        /* show, models */
        struct mfl_store_rounds rounds;
        /* pull: the round; drain: on or off */
        int64_t which;
        bool wait;
        struct mfl_graph *graph;
        struct mfl_data_info data;
        struct mfl_store_round round;
        struct mfl_params *params;
};

static struct disk_request *request_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct disk_request, work);
}

static void request_free(struct disk_request *op)
{
        mfl_store_upload_discard(op->upload);
        mfl_store_rounds_deinit(&op->rounds);
        mfl_store_job_deinit(&op->row);
        mfl_graph_free(op->graph);
        mfl_params_unref(op->params);
        free(op->text);
        free(op);
}

static void done_request(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        struct mfl_session *session = mfl_session_find(op->server, op->conn);
        if (op->status < 0 && !work->cancelled)
                mfl_server_fatal(op->server, op->status, &op->err);
        else if (op->status > 0 && op->status != MFL_EXISTS && session)
                mfl_operator_fail(session, op->request, failure_code(op->status), "%s", op->err.text);
        else if (op->status >= 0 && !work->cancelled)
                op->answer(op, session);
        request_free(op);
}

static struct disk_request *request_new(struct mfl_session *session, uint64_t request, const char *job,
        void (*run)(struct mfl_work *), void (*answer)(struct disk_request *, struct mfl_session *))
{
        struct disk_request *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                out_of_memory(session, sizeof *op, "a request");
                return NULL;
        }
        op->server = session->server;
        op->conn = session->conn;
        op->request = request;
        mfl_strcpy(op->job, sizeof op->job, job);
        op->work.run = run;
        op->work.done = done_request;
        op->answer = answer;
        return op;
}

static void request_start(struct disk_request *op, struct mfl_session *session)
{
        if (mfl_worker_submit(&op->server->disk, &op->work)) {
                mfl_operator_fail(
                        session, op->request, MFL__FAILURE_CODE__FAILURE_LIMIT, "the server is too busy");
                request_free(op);
        }
}

/* ---- submit, clone ---- */

struct mfl_submission {
        uint64_t request, expected, received; /* floats */
        char *text;
        char token[MFL_TOKEN_BYTES], name[MFL_NAME_BYTES];
        struct mfl_store_upload *upload;
        uint8_t *buffer;
        size_t buffer_bytes;
        uint64_t reserved;
};

static void run_submit(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        op->status =
                op->text ? mfl_store_job_add(op->server->store, op->name, op->text, op->token, op->upload,
                                   op->new_job, &op->err)
                         : mfl_store_job_clone(op->server->store, op->job, op->token, op->new_job, &op->err);
        if (op->status)
                return; /* MFL_EXISTS: the token was known */
        op->upload = NULL;
        op->status = mfl_store_job_get(op->server->store, op->new_job, &op->row, &op->err);
}

static void answer_submit(struct disk_request *op, struct mfl_session *session)
{
        struct mfl_error err;
        struct mfl_server_job *job;
        int r = 0;
        if (op->status != MFL_EXISTS) {
                r = mfl_server_job_new(op->server, &op->row, &job, &err);
                if (!r)
                        r = mfl_server_job_start(job, &err);
                if (r < 0)
                        mfl_server_fatal(op->server, r, &err);
                else if (!r)
                        mfl_log(MFL_LOG_INFO, "%s (%s): submitted", op->new_job, job->spec->name);
        }
        if (!session || r < 0)
                return;
        if (r) {
                mfl_operator_fail(session, op->request, failure_code(r), "%s", err.text);
                return;
        }
        Mfl__Submitted body = MFL__SUBMITTED__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = op->new_job;
        body.existed = op->status == MFL_EXISTS;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_SUBMITTED;
        envelope.submitted = &body;
        mfl_session_send(session, &envelope);
}

static void submission_free(struct mfl_session *session)
{
        struct mfl_submission *s = session->submission;
        if (!s)
                return;
        session->submission = NULL;
        mfl_store_upload_discard(s->upload);
        if (s->reserved)
                mfl_budget_release(&session->server->budget, s->reserved);
        free(s->text);
        free(s->buffer);
        free(s);
}

static void submit_now(struct mfl_session *session, uint64_t request, char *text, const char *name,
        const char *token, struct mfl_store_upload *upload)
{
        struct disk_request *op = request_new(session, request, "", run_submit, answer_submit);
        if (!op)
                return;
        op->text = text;
        op->upload = upload;
        mfl_strcpy(op->name, sizeof op->name, name);
        mfl_strcpy(op->token, sizeof op->token, token);
        request_start(op, session);
}

static int begin_submission(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit,
        char *text, const char *name, struct mfl_error *err)
{
        struct mfl_submission *s = mfl_calloc(1, sizeof *s);
        if (!s)
                return mfl_fail_memory(err, sizeof *s, "a submission");
        s->request = request;
        s->expected = submit->initial_count;
        s->text = text;
        mfl_strcpy(s->name, sizeof s->name, name);
        mfl_strcpy(s->token, sizeof s->token, submit->token);
        session->submission = s;
        /* Until the disk has them, floats may wait in memory. */
        int r = mfl_budget_reserve(
                &session->server->budget, MFL_PAYLOAD_MAX, "a submission's initial params", err);
        if (!r)
                s->reserved = MFL_PAYLOAD_MAX;
        if (!r)
                r = mfl_store_upload_begin(session->server->store, s->expected, &s->upload, err);
        if (r)
                submission_free(session);
        return r;
}

static void on_submit(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit)
{
        struct mfl_job *spec;
        struct mfl_error err;
        const char *file = submit->file[0] ? submit->file : "job";
        int r = mfl_job_parse(submit->text, strlen(submit->text), file, &spec, &err);
        if (r > 0)
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID, "%s", err.text);
        if (r < 0)
                mfl_server_fatal(session->server, r, &err);
        if (r)
                return;
        bool wants_initial = spec->model.initial != NULL;
        char name[MFL_NAME_BYTES];
        mfl_strcpy(name, sizeof name, spec->name);
        mfl_job_free(spec);
        if (wants_initial != (submit->initial_count > 0)) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "%s: model.initial: %s", file,
                        wants_initial ? "the initial params must be sent along"
                                      : "was sent, but is not in the job");
                return;
        }
        char *text = mfl_strdup(submit->text);
        if (!text) {
                out_of_memory(session, strlen(submit->text), "a job's text");
                return;
        }
        if (!submit->initial_count) {
                submit_now(session, request, text, name, submit->token, NULL);
                return;
        }
        submission_free(session);
        r = begin_submission(session, request, submit, text, name, &err);
        if (r < 0)
                mfl_server_fatal(session->server, r, &err);
        else if (r)
                mfl_operator_fail(session, request, failure_code(r), "%s", err.text);
}

int mfl_operator_initial_begin(struct mfl_session *session, const Mfl__Envelope *envelope,
        size_t payload_bytes, void **ret_dst, struct mfl_error *err)
{
        struct mfl_submission *s = session->submission;
        *ret_dst = NULL;
        if (!s) /* its Submit failed; what was under way is dropped */
                return 0;
        if (envelope->initial->offset != s->received || payload_bytes % 4 ||
                payload_bytes / 4 > s->expected - s->received)
                return mfl_fail(err, MFL_INVALID, "Initial: expected floats from %llu on, at most %llu",
                        (unsigned long long)s->received, (unsigned long long)(s->expected - s->received));
        if (s->buffer_bytes < payload_bytes) {
                free(s->buffer);
                s->buffer = mfl_malloc(payload_bytes);
                s->buffer_bytes = s->buffer ? payload_bytes : 0;
                if (!s->buffer)
                        return mfl_fail_memory(err, payload_bytes, "initial params");
        }
        *ret_dst = s->buffer;
        return 0;
}

/* The write goes to the page cache: at most 4 MiB, well under a millisecond, so the loop does it itself. */
int mfl_operator_initial_done(struct mfl_session *session, const Mfl__Envelope *envelope,
        size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_submission *s = session->submission;
        struct mfl_error why;
        if (!s)
                return 0;
        int r = mfl_store_upload_write(s->upload, s->buffer, payload_bytes, &why);
        if (r) {
                *err = why;
                if (r > 0)
                        mfl_operator_fail(session, s->request, failure_code(r), "%s", why.text);
                submission_free(session);
                return r < 0 ? r : 0;
        }
        s->received += payload_bytes / 4;
        if (s->received < s->expected)
                return 0;
        submit_now(session, s->request, s->text, s->name, s->token, s->upload);
        s->text = NULL;
        s->upload = NULL;
        submission_free(session);
        return 0;
}

static void on_clone(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone)
{
        if (!job_or_fail(session, request, clone->job))
                return;
        struct disk_request *op = request_new(session, request, clone->job, run_submit, answer_submit);
        if (!op)
                return;
        mfl_strcpy(op->token, sizeof op->token, clone->token);
        request_start(op, session);
}

/* ---- list, show, models ---- */

struct job_list_entry {
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
};

static void on_list(struct mfl_session *session, uint64_t request)
{
        size_t n = 0, i = 0;
        for (struct mfl_server_job *job = session->server->jobs; job; job = job->next)
                n++;
        MFL_CLEANUP_FREE struct job_list_entry *entries = mfl_calloc(n, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__JobInfo **pointers = mfl_calloc(n, sizeof *pointers);
        if (!entries || !pointers) {
                out_of_memory(session, n * sizeof *entries, "a list of jobs");
                return;
        }
        for (struct mfl_server_job *job = session->server->jobs; job; job = job->next, i++) {
                mfl_watch_job_info(job, &entries[i].info, &entries[i].buffers);
                pointers[i] = &entries[i].info;
        }
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        list.n_jobs = n;
        list.jobs = pointers;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_LIST;
        envelope.job_list = &list;
        mfl_session_send(session, &envelope);
}

static void run_rounds(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        op->status =
                mfl_store_round_list(op->server->store, op->job, 0, DETAIL_ROUNDS, &op->rounds, &op->err);
}

/* The rounds as protobuf: two arrays, freed by the caller. */
static bool round_infos(const struct mfl_store_rounds *rounds, bool kept_only, Mfl__RoundInfo **ret_infos,
        Mfl__RoundInfo ***ret_pointers, size_t *ret_n)
{
        Mfl__RoundInfo *infos = mfl_calloc(rounds->n, sizeof *infos);
        Mfl__RoundInfo **pointers = mfl_calloc(rounds->n, sizeof *pointers);
        size_t n = 0;
        *ret_infos = infos;
        *ret_pointers = pointers;
        *ret_n = 0;
        if (!infos || !pointers)
                return false;
        for (uint32_t i = 0; i < rounds->n; i++) {
                if (kept_only && !rounds->v[i].kept)
                        continue;
                mfl_watch_round_info(&rounds->v[i], &infos[n]);
                pointers[n] = &infos[n];
                n++;
        }
        *ret_n = n;
        return true;
}

static void answer_show(struct disk_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        Mfl__JobDetail detail = MFL__JOB_DETAIL__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_job_info_buffers buffers;
        Mfl__JobInfo info;
        if (!session || !job)
                return;
        if (!round_infos(&op->rounds, false, &infos, &pointers, &detail.n_rounds)) {
                out_of_memory(session, 0, "rounds");
                return;
        }
        mfl_watch_job_info(job, &info, &buffers);
        detail.info = &info;
        detail.text = job->text;
        detail.rounds = pointers;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_DETAIL;
        envelope.job_detail = &detail;
        mfl_session_send(session, &envelope);
}

static void answer_models(struct disk_request *op, struct mfl_session *session)
{
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        Mfl__ModelList list = MFL__MODEL_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session)
                return;
        if (!round_infos(&op->rounds, true, &infos, &pointers, &list.n_models)) {
                out_of_memory(session, 0, "rounds");
                return;
        }
        list.models = pointers;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_MODEL_LIST;
        envelope.model_list = &list;
        mfl_session_send(session, &envelope);
}

static void ask_rounds(struct mfl_session *session, uint64_t request, const char *id,
        void (*answer)(struct disk_request *, struct mfl_session *))
{
        if (!job_or_fail(session, request, id))
                return;
        struct disk_request *op = request_new(session, request, id, run_rounds, answer);
        if (op)
                request_start(op, session);
}

/* ---- pull ---- */

static int load_params(struct disk_request *op)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_st_file *file = NULL;
        float *v;
        mfl_store_path(op->server->store, op->job, op->round.file.name, path);
        int r = mfl_st_open(path, &file, &op->err);
        if (r)
                return r;
        r = mfl_params_alone(
                &op->server->budget, op->graph->n, op->round.record.digest, &v, &op->params, &op->err);
        if (!r)
                r = mfl_st_to_params(file, op->graph, v, &op->err);
        mfl_st_close(file);
        return r;
}

static void run_pull(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        struct mfl_store_job row = {{0}};
        struct mfl_job *spec = NULL;
        op->status = mfl_store_round_get(
                op->server->store, op->job, op->which, op->which < 0, &op->round, &op->err);
        if (op->status)
                return;
        if (!op->round.kept) {
                op->status = mfl_fail(&op->err, MFL_NOT_FOUND,
                        "%s: the model of round %u is not kept any more (checkpoints.keep); `mfl models %s` "
                        "lists those that are",
                        op->job, op->round.record.round, op->job);
                return;
        }
        op->status = mfl_store_job_get(op->server->store, op->job, &row, &op->err);
        if (!op->status)
                op->status = mfl_job_parse(row.text, strlen(row.text), op->job, &spec, &op->err);
        if (!op->status)
                op->status =
                        mfl_job_graph(spec, &row.data.shape, (int)row.data.classes, &op->graph, &op->err);
        if (!op->status) {
                op->data = row.data;
                op->text = row.text;
                row.text = NULL;
                op->status = load_params(op);
        }
        mfl_job_free(spec);
        mfl_store_job_deinit(&row);
}

static void answer_pull(struct disk_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        Mfl__RoundInfo round;
        Mfl__PullBegin body = MFL__PULL_BEGIN__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        uint32_t shape[MFL_SHAPE_RANK_MAX];
        if (!session || !job)
                return;
        mfl_watch_round_info(&op->round, &round);
        for (int i = 0; i < op->graph->input.rank; i++)
                shape[i] = (uint32_t)op->graph->input.dim[i];
        body.round = &round;
        body.n_params = op->graph->n;
        body.text = op->text;
        body.n_input = (size_t)op->graph->input.rank;
        body.input = shape;
        body.classes = (uint32_t)op->graph->classes;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_PULL_BEGIN;
        envelope.pull_begin = &body;
        mfl_session_send(session, &envelope);
        mfl_transfer_start(session, job, op->params, 0, op->request);
}

static void on_pull(struct mfl_session *session, uint64_t request, const Mfl__Pull *pull)
{
        if (!job_or_fail(session, request, pull->job))
                return;
        struct disk_request *op = request_new(session, request, pull->job, run_pull, answer_pull);
        if (!op)
                return;
        op->which = pull->round;
        request_start(op, session);
}

/* ---- stop, delete ---- */

static void on_stop(struct mfl_session *session, uint64_t request, const Mfl__StopJob *stop)
{
        struct mfl_server_job *job = job_or_fail(session, request, stop->job);
        if (!job)
                return;
        if (job->state >= MFL_JOB_DONE) {
                answer_done(session, request, "it had ended already");
                return;
        }
        struct mfl_core_event event = {.kind = MFL_EV_JOB_STOP};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_strcpy(event.reason, sizeof event.reason, "stopped by an operator");
        mfl_server_feed(session->server, &event);
        answer_done(session, request, "stopped");
}

static void run_delete(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        op->status = mfl_store_job_delete(op->server->store, op->job, &op->err);
}

static void answer_delete(struct disk_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        if (job && !job->operations) {
                for (struct mfl_session *s = op->server->sessions; s; s = s->next)
                        if (s->transfer.job == job)
                                mfl_transfer_stop(s);
                mfl_server_job_free(job);
        }
        if (session)
                answer_done(session, op->request, "deleted");
}

static void on_delete(struct mfl_session *session, uint64_t request, const Mfl__DeleteJob *body)
{
        struct mfl_server_job *job = job_or_fail(session, request, body->job);
        if (!job)
                return;
        if (job->state < MFL_JOB_DONE || job->in_core || job->operations) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "%s is still running; stop it first (mfl stop %s)", job->id, job->id);
                return;
        }
        struct disk_request *op = request_new(session, request, job->id, run_delete, answer_delete);
        if (op)
                request_start(op, session);
}

/* ---- daemons ---- */

struct daemon_entry {
        Mfl__DaemonInfo info;
        struct mfl_core_daemon_view view;
        Mfl__DataSet sets[MFL_DATA_SETS_MAX];
        Mfl__DataSet *set_pointers[MFL_DATA_SETS_MAX];
        uint32_t shapes[MFL_DATA_SETS_MAX][MFL_SHAPE_RANK_MAX];
};

static void fill_data_sets(struct daemon_entry *entry)
{
        const struct mfl_daemon_info *info = entry->view.info;
        uint32_t n = MFL_MIN(info->n_data_sets, (uint32_t)MFL_DATA_SETS_MAX);
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_data_info *data = &info->data_sets[i];
                Mfl__DataSet *set = &entry->sets[i];
                mfl__data_set__init(set);
                set->name = (char *)data->name;
                for (int d = 0; d < data->shape.rank; d++)
                        entry->shapes[i][d] = (uint32_t)data->shape.dim[d];
                set->n_shape = (size_t)data->shape.rank;
                set->shape = entry->shapes[i];
                set->classes = data->classes;
                set->train_samples = data->train_samples;
                set->test_samples = data->test_samples;
                set->fingerprint = data->fingerprint;
                entry->set_pointers[i] = set;
        }
        entry->info.n_data_sets = n;
        entry->info.data_sets = entry->set_pointers;
}

static void fill_daemon(struct mfl_server *server, struct daemon_entry *entry)
{
        const struct mfl_core_daemon_view *view = &entry->view;
        struct mfl_session *session = view->conn ? mfl_session_find(server, view->conn) : NULL;
        Mfl__DaemonInfo *out = &entry->info;
        mfl__daemon_info__init(out);
        out->name = (char *)view->info->name;
        out->node = (char *)view->info->node;
        out->backend = (char *)view->info->backend;
        out->device = (char *)view->info->device;
        out->software = (char *)view->info->software;
        out->workers = view->info->workers;
        out->address = session ? session->peer : "";
        out->connected_ms = session ? session->connected_unix_ms : 0;
        out->state = (char *)view->state;
        out->job = (char *)view->job;
        out->round = view->round;
        out->items_done = view->items_done;
        out->items_total = view->items_total;
        out->samples_per_second = view->samples_per_second;
        out->note = (char *)view->note;
        fill_data_sets(entry);
}

static void on_daemons(struct mfl_session *session, uint64_t request)
{
        struct mfl_server *server = session->server;
        uint32_t n = mfl_core_daemon_count(server->core);
        uint32_t shown = MFL_MIN(n, 1000u); /* an envelope has a limit */
        MFL_CLEANUP_FREE struct daemon_entry *entries = mfl_calloc(shown, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__DaemonInfo **pointers = mfl_calloc(shown, sizeof *pointers);
        if (!entries || !pointers) {
                out_of_memory(session, shown * sizeof *entries, "a list of daemons");
                return;
        }
        for (uint32_t i = 0; i < shown; i++) {
                mfl_core_daemon_view(server->core, i, &entries[i].view);
                fill_daemon(server, &entries[i]);
                pointers[i] = &entries[i].info;
        }
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        list.n_daemons = shown;
        list.daemons = pointers;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DAEMON_LIST;
        envelope.daemon_list = &list;
        mfl_session_send(session, &envelope);
}

struct mfl_drain_wait {
        struct mfl_drain_wait *next;
        uint32_t conn;
        uint64_t request;
        char daemon[MFL_NAME_BYTES];
};

/* "" when there is no such daemon. */
static const char *daemon_state(struct mfl_server *server, const char *name)
{
        uint32_t n = mfl_core_daemon_count(server->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                if (!strcmp(view.info->name, name))
                        return view.state;
        }
        return "";
}

void mfl_operator_check_drains(struct mfl_server *server)
{
        struct mfl_drain_wait **at = &server->drains, *wait;
        while ((wait = *at)) {
                if (!strcmp(daemon_state(server, wait->daemon), "draining")) {
                        at = &wait->next;
                        continue;
                }
                struct mfl_session *session = mfl_session_find(server, wait->conn);
                if (session)
                        answer_done(session, wait->request, "drained");
                *at = wait->next;
                free(wait);
        }
}

static void feed_drain(struct mfl_server *server, const char *daemon, bool on)
{
        struct mfl_core_event event = {.kind = MFL_EV_DRAIN, .drain = {.on = on}};
        mfl_strcpy(event.drain.name, sizeof event.drain.name, daemon);
        mfl_server_feed(server, &event);
}

static char *drained_name(struct mfl_server *server, const char *daemon)
{
        for (uint32_t i = 0; i < server->drained.n; i++)
                if (!strcmp(server->drained.v[i], daemon))
                        return server->drained.v[i];
        return NULL;
}

void mfl_operator_drain_again(struct mfl_server *server, const char *daemon)
{
        if (drained_name(server, daemon))
                feed_drain(server, daemon, true);
}

/* Keeps the list in memory as the database will have it. */
static int note_drained(struct mfl_server *server, const char *daemon, bool on)
{
        struct mfl_store_names *names = &server->drained;
        char *known = drained_name(server, daemon);
        if (on && !known) {
                void *v = mfl_realloc(names->v, (names->n + 1) * sizeof *names->v);
                if (!v)
                        return -ENOMEM;
                names->v = v;
                mfl_strcpy(names->v[names->n++], MFL_NAME_BYTES, daemon);
        } else if (!on && known) {
                memmove(known, names->v[--names->n], MFL_NAME_BYTES);
        }
        return 0;
}

static void run_drain(struct mfl_work *work)
{
        struct disk_request *op = request_of(work);
        op->status = mfl_store_drain(op->server->store, op->name, op->which != 0, &op->err);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon);

static void answer_drain(struct disk_request *op, struct mfl_session *session)
{
        const char *state = daemon_state(op->server, op->name);
        if (!session)
                return;
        if (op->wait && !strcmp(state, "draining"))
                wait_for_drain(session, op->request, op->name);
        else
                answer_done(session, op->request, state);
}

static void on_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain)
{
        struct mfl_server *server = session->server;
        if (!*daemon_state(server, drain->daemon)) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND,
                        "there is no daemon '%s'", drain->daemon);
                return;
        }
        struct disk_request *op = request_new(session, request, "", run_drain, answer_drain);
        if (!op)
                return;
        if (note_drained(server, drain->daemon, !drain->undo)) {
                request_free(op);
                out_of_memory(session, MFL_NAME_BYTES, "names of daemons");
                return;
        }
        feed_drain(server, drain->daemon, !drain->undo);
        mfl_strcpy(op->name, sizeof op->name, drain->daemon);
        op->which = !drain->undo;
        op->wait = drain->wait;
        request_start(op, session);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon)
{
        struct mfl_server *server = session->server;
        struct mfl_drain_wait *wait = mfl_calloc(1, sizeof *wait);
        if (!wait) {
                out_of_memory(session, sizeof *wait, "a request");
                return;
        }
        wait->conn = session->conn;
        wait->request = request;
        mfl_strcpy(wait->daemon, sizeof wait->daemon, daemon);
        wait->next = server->drains;
        server->drains = wait;
}

/* ---- dispatch ---- */

int mfl_operator_request(struct mfl_session *session, const Mfl__Envelope *e, struct mfl_error *err)
{
        struct mfl_server_job *job;
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_SUBMIT:
                on_submit(session, e->request, e->submit);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_JOBS:
                on_list(session, e->request);
                return 0;
        case MFL__ENVELOPE__BODY_SHOW_JOB:
                ask_rounds(session, e->request, e->show_job->job, answer_show);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_MODELS:
                ask_rounds(session, e->request, e->list_models->job, answer_models);
                return 0;
        case MFL__ENVELOPE__BODY_WATCH:
                job = job_or_fail(session, e->request, e->watch->job);
                if (job)
                        mfl_watch_start(session, e->request, job, e->watch);
                return 0;
        case MFL__ENVELOPE__BODY_STOP_JOB:
                on_stop(session, e->request, e->stop_job);
                return 0;
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                on_delete(session, e->request, e->delete_job);
                return 0;
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                on_clone(session, e->request, e->clone_job);
                return 0;
        case MFL__ENVELOPE__BODY_PULL:
                on_pull(session, e->request, e->pull);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_DAEMONS:
                on_daemons(session, e->request);
                return 0;
        case MFL__ENVELOPE__BODY_DRAIN:
                on_drain(session, e->request, e->drain);
                return 0;
        default:
                return mfl_fail(err, MFL_INVALID, "an operator may not send this message");
        }
}

void mfl_operator_forget(struct mfl_session *session)
{
        submission_free(session);
}
