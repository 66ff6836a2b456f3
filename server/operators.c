/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of `mfl`. What memory knows is answered at once; what the database must do goes to the disk worker
 * and is answered when it is done. A request that fails gets a Failure, the connection stays.
 */
#include "server/operator.h"

#include <stdio.h>

#include "common/digest.h"
#include "common/log.h"
#include "common/model/safetensors.h"
#include "proto/version.h"
#include "server/partition.h"

#define DETAIL_ROUNDS 1000
#define DETAIL_NODES 1000

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

Mfl__FailureCode mfl_operator_failure_code(int status)
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

void mfl_operator_done(struct mfl_session *session, uint64_t request, const char *text)
{
        Mfl__Done done = MFL__DONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        done.text = (char *)text;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DONE;
        envelope.done = &done;
        mfl_session_send(session, &envelope);
}

void mfl_operator_no_memory(struct mfl_session *session, size_t bytes, const char *what)
{
        struct mfl_error err;
        mfl_server_fatal(session->server, mfl_fail_memory(&err, bytes, what), &err);
}

struct mfl_server_job *mfl_operator_job(struct mfl_session *session, uint64_t request, const char *id)
{
        struct mfl_server_job *job = mfl_server_job_find(session->server, id);
        if (!job)
                mfl_operator_fail(
                        session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND, "there is no job '%s'", id);
        return job;
}

/* ---- requests that the disk worker does ---- */

struct mfl_request *mfl_request_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct mfl_request, work);
}

void mfl_request_free(struct mfl_request *op)
{
        mfl_store_upload_discard(op->upload);
        mfl_store_rounds_deinit(&op->rounds);
        mfl_store_nodes_deinit(&op->nodes);
        free(op->audits.v);
        mfl_job_partition_free(op->partition);
        mfl_store_job_deinit(&op->row);
        mfl_graph_free(op->graph);
        mfl_params_unref(op->params);
        free(op->text);
        free(op);
}

static void done_request(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_session *session = mfl_session_find(op->server, op->conn);
        mfl_session_worked(op->server, op->conn);
        if (op->status < 0 && !work->cancelled)
                mfl_server_fatal(op->server, op->status, &op->err);
        else if (op->status > 0 && op->status != MFL_EXISTS && session)
                mfl_operator_fail(
                        session, op->request, mfl_operator_failure_code(op->status), "%s", op->err.text);
        else if (op->status >= 0 && !work->cancelled)
                op->answer(op, session);
        mfl_request_free(op);
}

/* On the disk worker. A row that can't be written changes nothing about what was done: the log has it then.
 */
static void run_request(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_store_audit *e = &op->audit;
        struct mfl_error err;
        op->run(work);
        if (!*e->action)
                return;
        if (!*e->object)
                mfl_strcpy(e->object, sizeof e->object, op->new_job);
        mfl_strcpy(e->result, sizeof e->result, op->status && op->status != MFL_EXISTS ? "failed" : "done");
        if (op->status)
                mfl_strcpy(e->text, sizeof e->text, op->err.text);
        int r = mfl_store_audit_add(op->server->store, e, &err);
        if (r)
                mfl_log(MFL_LOG_WARN, "audit: %s from %s: %s %s: %s (not in the database: %s)", e->who,
                        e->address, e->action, e->object, e->result, err.text);
        if (r < 0 && op->status >= 0) {
                op->status = r;
                op->err = err;
        }
}

void mfl_request_audit(struct mfl_request *op, const char *action, const char *object)
{
        mfl_strcpy(op->audit.action, sizeof op->audit.action, action);
        mfl_strcpy(op->audit.object, sizeof op->audit.object, object);
}

struct mfl_request *mfl_request_new(struct mfl_session *session, uint64_t request, const char *job,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *))
{
        struct mfl_request *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                mfl_operator_no_memory(session, sizeof *op, "a request");
                return NULL;
        }
        op->server = session->server;
        op->conn = session->conn;
        op->request = request;
        mfl_strcpy(op->job, sizeof op->job, job);
        op->run = run;
        mfl_strcpy(op->audit.who, sizeof op->audit.who, session->who);
        mfl_strcpy(op->audit.address, sizeof op->audit.address, session->peer);
        op->work.run = run_request;
        op->work.done = done_request;
        op->answer = answer;
        return op;
}

void mfl_request_start(struct mfl_request *op, struct mfl_session *session)
{
        if (!mfl_session_submit(session, &op->work)) {
                mfl_operator_fail(
                        session, op->request, MFL__FAILURE_CODE__FAILURE_LIMIT, "the server is too busy");
                mfl_request_free(op);
        }
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
                mfl_operator_no_memory(session, n * sizeof *entries, "a list of jobs");
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
        while (mfl__job_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX) { /* the oldest are left out */
                size_t n_dropped = list.n_jobs / 8 + 1;
                list.jobs += n_dropped;
                list.n_jobs -= n_dropped;
        }
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_LIST;
        envelope.job_list = &list;
        mfl_session_send(session, &envelope);
}

static void run_rounds(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status =
                mfl_store_round_list(op->server->store, op->job, 0, DETAIL_ROUNDS, &op->rounds, &op->err);
}

static void run_detail(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        run_rounds(work);
        if (!op->status)
                op->status =
                        mfl_store_node_list(op->server->store, op->job, DETAIL_NODES, &op->nodes, &op->err);
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

/* The rows as protobuf, likewise. */
static bool node_costs(
        const struct mfl_store_nodes *nodes, Mfl__NodeCost **ret_costs, Mfl__NodeCost ***ret_pointers)
{
        Mfl__NodeCost *costs = mfl_calloc(nodes->n, sizeof *costs);
        Mfl__NodeCost **pointers = mfl_calloc(nodes->n, sizeof *pointers);
        *ret_costs = costs;
        *ret_pointers = pointers;
        if (!costs || !pointers)
                return false;
        for (uint32_t i = 0; i < nodes->n; i++) {
                const struct mfl_store_node *node = &nodes->v[i];
                mfl__node_cost__init(&costs[i]);
                costs[i].round = node->round;
                costs[i].node = (char *)node->node;
                costs[i].daemons = node->daemons;
                costs[i].bytes_up = node->up;
                costs[i].bytes_down = node->down;
                costs[i].bytes_up_alone = node->up_alone;
                costs[i].bytes_down_alone = node->down_alone;
                pointers[i] = &costs[i];
        }
        return true;
}

static void answer_show(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        MFL_CLEANUP_FREE Mfl__NodeCost *costs = NULL;
        MFL_CLEANUP_FREE Mfl__NodeCost **cost_pointers = NULL;
        Mfl__JobDetail detail = MFL__JOB_DETAIL__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_job_info_buffers buffers;
        Mfl__JobInfo info;
        if (!session || !job)
                return;
        if (!round_infos(&op->rounds, false, &infos, &pointers, &detail.n_rounds) ||
                !node_costs(&op->nodes, &costs, &cost_pointers)) {
                mfl_operator_no_memory(session, 0, "rounds");
                return;
        }
        mfl_watch_job_info(job, &info, &buffers);
        detail.info = &info;
        detail.text = job->text;
        detail.rounds = pointers;
        detail.n_nodes = op->nodes.n;
        detail.nodes = cost_pointers;
        while (detail.n_nodes && mfl__job_detail__get_packed_size(&detail) > MFL_LIST_BYTES_MAX) {
                size_t n_dropped = detail.n_nodes / 8 + 1; /* of the oldest rounds */
                detail.nodes += n_dropped;
                detail.n_nodes -= n_dropped;
        }
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_DETAIL;
        envelope.job_detail = &detail;
        mfl_session_send(session, &envelope);
}

static void answer_models(struct mfl_request *op, struct mfl_session *session)
{
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        Mfl__ModelList list = MFL__MODEL_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session)
                return;
        if (!round_infos(&op->rounds, true, &infos, &pointers, &list.n_models)) {
                mfl_operator_no_memory(session, 0, "rounds");
                return;
        }
        list.models = pointers;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_MODEL_LIST;
        envelope.model_list = &list;
        mfl_session_send(session, &envelope);
}

static void run_partition(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_job_partition_read(op->server->store, op->job, &op->partition, &op->err);
}

static void answer_partition(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        Mfl__JobPartition body = MFL__JOB_PARTITION__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session || !job)
                return;
        body.job = op->job;
        body.local = mfl_job_partition_is_local(job);
        body.partition = op->partition;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_PARTITION;
        envelope.job_partition = &body;
        mfl_session_send(session, &envelope);
}

static void ask_rounds(struct mfl_session *session, uint64_t request, const char *id,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *))
{
        if (!mfl_operator_job(session, request, id))
                return;
        struct mfl_request *op = mfl_request_new(session, request, id, run, answer);
        if (op)
                mfl_request_start(op, session);
}

/* ---- pull ---- */

static int load_params(struct mfl_request *op)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_st_file *file = NULL, *frozen = NULL;
        float *v;
        int r = mfl_st_open(
                mfl_store_path(op->server->store, op->job, op->round.file.name, path), &file, &op->err);
        if (!r && op->round.frozen.name[0])
                r = mfl_st_open(mfl_store_path(op->server->store, op->job, op->round.frozen.name, path),
                        &frozen, &op->err);
        if (!r)
                r = mfl_params_alone(&op->server->budget, op->graph->n, op->round.record.digest, &v,
                        &op->params, &op->err);
        if (!r)
                r = mfl_st_to_params(file, frozen, op->graph, v, &op->err);
        mfl_st_close(frozen);
        mfl_st_close(file);
        /* Who knows no frozen params has another order of them, and checks the digest of that. */
        if (!r && op->by_layers)
                r = mfl_sha256(v, op->graph->n * sizeof *v, op->round.record.digest, &op->err);
        return r;
}

static void run_pull(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
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
        if (!op->status) {
                spec->by_layers = !row.n_frozen || op->by_layers;
                op->status =
                        mfl_job_graph(spec, &row.data.shape, (int)row.data.classes, &op->graph, &op->err);
        }
        if (!op->status) {
                op->data = row.data;
                op->text = row.text;
                row.text = NULL;
                op->status = load_params(op);
        }
        mfl_job_free(spec);
        mfl_store_job_deinit(&row);
}

static void answer_pull(struct mfl_request *op, struct mfl_session *session)
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
        body.n_frozen = op->graph->n_frozen;
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
        if (!mfl_operator_job(session, request, pull->job))
                return;
        struct mfl_request *op = mfl_request_new(session, request, pull->job, run_pull, answer_pull);
        if (!op)
                return;
        op->which = pull->round;
        op->by_layers = session->protocol < MFL_PROTOCOL_FROZEN;
        mfl_request_start(op, session);
}

/* ---- stop, delete ---- */

/* Runs after the job's new state was written, so that the answer means what it says. */
static void run_after_stop(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_flush(op->server->store, &op->err);
        if (op->status > 0)
                op->status = 0;
}

static void answer_stop(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        char text[64];
        if (session && job && job->state < MFL_JOB_DONE) { /* `which` is the round that it ends after */
                snprintf(text, sizeof text, "stops after round %u", (uint32_t)op->which);
                mfl_operator_done(session, op->request, text);
        } else if (session)
                mfl_operator_done(session, op->request,
                        job && job->state_unwritten
                                ? "stopped; the disk does not take it yet, it is tried again"
                                : "stopped");
}

static void on_stop(struct mfl_session *session, uint64_t request, const char *id, bool after_round)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, id);
        if (!job)
                return;
        if (!mfl_operator_may_touch(session, request, job, "stop"))
                return;
        if (job->state >= MFL_JOB_DONE) {
                mfl_operator_done(session, request, "it had ended already");
                return;
        }
        struct mfl_core_event event = {.kind = MFL_EV_JOB_STOP, .after_round = after_round};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_snprintf(event.reason, sizeof event.reason,
                strcmp(session->who, "local") ? "stopped by %s" : "stopped by an operator", session->who);
        mfl_server_feed(session->server, &event);
        struct mfl_request *op = mfl_request_new(session, request, id, run_after_stop, answer_stop);
        if (!op)
                return;
        op->which = job->stop_after;
        mfl_request_audit(op, "stop", id);
        if (after_round)
                mfl_strcpy(op->audit.text, sizeof op->audit.text, "after the round under way");
        mfl_request_start(op, session);
}

static void run_delete(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_job_delete(op->server->store, op->job, &op->err);
}

static void answer_delete(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->server, op->job);
        if (job && !job->operations) {
                for (struct mfl_session *s = op->server->sessions; s; s = s->next)
                        if (s->transfer.job == job)
                                mfl_transfer_stop(s);
                mfl_server_job_free(job);
        }
        if (session)
                mfl_operator_done(session, op->request, "deleted");
}

static void on_delete(struct mfl_session *session, uint64_t request, const Mfl__DeleteJob *body)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, body->job);
        if (!job)
                return;
        if (!mfl_operator_may_touch(session, request, job, "delete"))
                return;
        if (job->state < MFL_JOB_DONE || job->in_core || job->operations) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "%s is still running; stop it first (mfl stop %s)", job->id, job->id);
                return;
        }
        struct mfl_request *op = mfl_request_new(session, request, job->id, run_delete, answer_delete);
        if (!op)
                return;
        mfl_request_audit(op, "delete", body->job);
        mfl_request_start(op, session);
}

/* ---- dispatch ---- */

int mfl_operator_request(struct mfl_session *session, const Mfl__Envelope *e, struct mfl_error *err)
{
        struct mfl_server_job *job;
        if (!mfl_operator_may_change(session, e))
                return 0;
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_SUBMIT:
                mfl_operator_submit(session, e->request, e->submit);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_JOBS:
                on_list(session, e->request);
                return 0;
        case MFL__ENVELOPE__BODY_SHOW_JOB:
                ask_rounds(session, e->request, e->show_job->job, run_detail, answer_show);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_MODELS:
                ask_rounds(session, e->request, e->list_models->job, run_rounds, answer_models);
                return 0;
        case MFL__ENVELOPE__BODY_GET_PARTITION:
                ask_rounds(session, e->request, e->get_partition->job, run_partition, answer_partition);
                return 0;
        case MFL__ENVELOPE__BODY_WATCH:
                job = mfl_operator_job(session, e->request, e->watch->job);
                if (job)
                        mfl_watch_start(session, e->request, job, e->watch);
                return 0;
        case MFL__ENVELOPE__BODY_STOP_JOB:
                on_stop(session, e->request, e->stop_job->job, false);
                return 0;
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                on_stop(session, e->request, e->stop_after_round->job, true);
                return 0;
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                on_delete(session, e->request, e->delete_job);
                return 0;
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                mfl_operator_clone(session, e->request, e->clone_job);
                return 0;
        case MFL__ENVELOPE__BODY_PULL:
                on_pull(session, e->request, e->pull);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_DAEMONS:
                mfl_operator_daemons(session, e->request);
                return 0;
        case MFL__ENVELOPE__BODY_DRAIN:
                mfl_operator_drain(session, e->request, e->drain);
                return 0;
        case MFL__ENVELOPE__BODY_ACCESS:
                mfl_operator_access(session, e->request, e->access);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_ACCESS:
                mfl_operator_access_list(session, e->request);
                return 0;
        case MFL__ENVELOPE__BODY_LIST_AUDIT:
                mfl_operator_audit(session, e->request, e->list_audit);
                return 0;
        case MFL__ENVELOPE__BODY__NOT_SET: /* with a request's number: of a newer `mfl` (mfl.proto, VERSIONS)
                                            */
                mfl_operator_fail(session, e->request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "this server (mfl-server " MFL_VERSION
                        ") does not know that request: upgrade the server");
                return 0;
        default:
                return mfl_fail(err, MFL_INVALID, "an operator may not send this message");
        }
}
