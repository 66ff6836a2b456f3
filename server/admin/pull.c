/* SPDX-License-Identifier: Apache-2.0 */
/* Pull: a committed model, read from its checkpoint and sent as params, with the names of its tensors if they were asked for. */
#include "common/base/digest.h"
#include "common/model/safetensors.h"
#include "proto/version.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/runtime/changes.h"
#include "server/transfer/params_down.h"
#include "server/views/contract_view.h"
#include "server/views/job_view.h"

static int load_params(struct mfl_request *op)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_st_file *file = NULL, *frozen = NULL;
        float *v;
        /* The asker compares the digest of what it gets with the round's, unless it gets the order of layers.
         */
        int r = op->by_layers ? mfl_store_round_verify(op->admin->store, op->job, &op->round, &op->err) : 0;
        if (!r)
                r = mfl_st_open(mfl_store_path(op->admin->store, op->job, op->round.file.name, path), &file,
                        &op->err);
        if (!r && op->round.frozen.name[0])
                r = mfl_st_open(mfl_store_path(op->admin->store, op->job, op->round.frozen.name, path),
                        &frozen, &op->err);
        if (!r)
                r = mfl_params_alone(
                        op->admin->budget, op->graph->n, op->round.record.digest, &v, &op->params, &op->err);
        if (!r)
                r = mfl_st_to_params(file, frozen, op->graph, v, &op->err);
        mfl_st_close(frozen);
        mfl_st_close(file);
        /* A peer that knows no frozen params orders them differently, and checks that order's digest. */
        if (!r && op->by_layers)
                r = mfl_sha256(v, op->graph->n * sizeof *v, op->round.record.digest, &op->err);
        return r;
}

/* What frozen params would change by is 0. */
static int load_change(struct mfl_request *op)
{
        char path[MFL_STORE_PATH_BYTES];
        float *v;
        const struct mfl_graph *graph = op->graph;
        mfl_store_path(op->admin->store, op->job, MFL_STORE_CHANGES_FILE, path);
        int r = mfl_changes_list(path, op->round.record.round, &op->changes, &op->n_changes, &op->err);
        const struct mfl_change *change = r ? NULL : &op->changes[op->change - 1];
        if (!r && (op->change > op->n_changes || change->n != graph->n_moving))
                r = mfl_fail(&op->err, MFL_NOT_FOUND, "%s: round %u has the changes of %u clients", op->job,
                        op->round.record.round, op->n_changes);
        if (!r)
                r = mfl_params_alone(
                        op->admin->budget, graph->n, op->round.record.digest, &v, &op->params, &op->err);
        if (r)
                return r;
        memset(v, 0, graph->n_frozen * sizeof *v);
        r = mfl_changes_read(path, change, v + graph->n_frozen, &op->err);
        return r ? r : mfl_sha256(v, graph->n * sizeof *v, op->round.record.digest, &op->err);
}

void mfl_request_load_model(struct mfl_request *op)
{
        struct mfl_store_job row = {{0}};
        struct mfl_job *spec = NULL;
        op->status = mfl_store_round_get(
                op->admin->store, op->job, op->which, op->which < 0, &op->round, &op->err);
        if (op->status)
                return;
        if (!op->change && !op->round.kept) {
                op->status = mfl_fail(&op->err, MFL_NOT_FOUND,
                        "%s: the model of round %u is no longer kept (checkpoints.keep); `mfl models %s` "
                        "lists those that are",
                        op->job, op->round.record.round, op->job);
                return;
        }
        op->status = mfl_store_job_get(op->admin->store, op->job, &row, &op->err);
        if (!op->status)
                op->status = mfl_job_parse(row.text, strlen(row.text), op->job, &spec, &op->err);
        if (!op->status) {
                spec->by_layers = !row.n_frozen || op->by_layers;
                op->status =
                        mfl_job_graph(spec, &row.data.shape, (int)row.data.classes, &op->graph, &op->err);
        }
        if (!op->status)
                op->status = mfl_view_contract(op->admin->store, op->job, &op->contract, &op->err);
        if (!op->status) {
                op->data = row.data;
                op->text = row.text;
                row.text = NULL;
                op->status = op->change ? load_change(op) : load_params(op);
        }
        mfl_job_free(spec);
        mfl_store_job_deinit(&row);
}

static void run_pull(struct mfl_work *work)
{
        mfl_request_load_model(mfl_request_of(work));
}

/* An envelope holds this many, whatever their names. */
#define TENSORS_MAX 1000

struct tensors {
        Mfl__ModelTensors body;
        Mfl__ModelTensor v[TENSORS_MAX], *at[TENSORS_MAX];
        uint32_t shape[TENSORS_MAX][MFL_SHAPE_RANK_MAX];
};

static void send_tensors(struct mfl_request *op, struct mfl_session *session, struct tensors *t)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!t->body.n_tensors)
                return;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_MODEL_TENSORS;
        envelope.model_tensors = &t->body;
        mfl_session_send(session, &envelope);
        t->body.n_tensors = 0;
}

static void add_tensor(struct mfl_request *op, struct mfl_session *session, const char *name,
        const struct mfl_param *param, struct tensors *t)
{
        size_t i = t->body.n_tensors++;
        mfl__model_tensor__init(&t->v[i]);
        for (int d = 0; d < param->shape.rank; d++)
                t->shape[i][d] = (uint32_t)param->shape.dim[d];
        t->v[i].name = (char *)(uintptr_t)name;
        t->v[i].n_shape = (size_t)param->shape.rank;
        t->v[i].shape = t->shape[i];
        t->v[i].offset = param->offset;
        t->at[i] = &t->v[i];
        if (t->body.n_tensors == TENSORS_MAX)
                send_tensors(op, session, t);
}

static uint32_t count_tensors(const struct mfl_graph *graph)
{
        uint32_t n = (uint32_t)graph->n_params;
        for (int k = 0; k < graph->n_aliases; k++)
                n += graph->aliases[k].written;
        return n;
}

/* The names that an exported file has (mfl_st_add_aliases). */
static int send_all_tensors(struct mfl_request *op, struct mfl_session *session)
{
        const struct mfl_graph *graph = op->graph;
        MFL_CLEANUP_FREE struct tensors *t = mfl_calloc(1, sizeof *t);
        if (!t)
                return mfl_fail_memory(&op->err, sizeof *t, "a table of tensors");
        mfl__model_tensors__init(&t->body);
        t->body.tensors = t->at;
        for (int i = 0; i < graph->n_params; i++)
                add_tensor(op, session, graph->params[i].name, &graph->params[i], t);
        for (int k = 0; k < graph->n_aliases; k++)
                if (graph->aliases[k].written)
                        add_tensor(op, session, graph->aliases[k].name,
                                &graph->params[graph->aliases[k].param], t);
        send_tensors(op, session, t);
        return 0;
}

static void answer_pull(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        Mfl__RoundInfo round;
        Mfl__PullBegin body = MFL__PULL_BEGIN__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        uint32_t shape[MFL_SHAPE_RANK_MAX];
        if (!session || !job)
                return;
        mfl_assert(op->graph && op->params && op->params->n == op->graph->n);
        mfl_view_round(&op->round, &round);
        for (int i = 0; i < op->graph->input.rank; i++)
                shape[i] = (uint32_t)op->graph->input.dim[i];
        body.round = &round;
        body.n_params = op->graph->n;
        body.n_frozen = op->graph->n_frozen;
        body.n_tensors = op->tensors ? count_tensors(op->graph) : 0;
        body.text = op->text;
        if (op->contract)
                body.contract = op->contract;
        body.n_input = (size_t)op->graph->input.rank;
        body.input = shape;
        body.classes = (uint32_t)op->graph->classes;
        uint64_t clients[MFL_CHANGES_CLIENTS_MAX], weights[MFL_CHANGES_CLIENTS_MAX];
        for (uint32_t i = 0; i < op->n_changes; i++) {
                clients[i] = op->changes[i].client;
                weights[i] = op->changes[i].weight;
        }
        body.n_clients = body.n_weights = op->n_changes;
        body.clients = clients;
        body.weights = weights;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_PULL_BEGIN;
        envelope.pull_begin = &body;
        mfl_session_send(session, &envelope);
        if (op->tensors && send_all_tensors(op, session)) {
                mfl_operator_no_memory(session, sizeof(struct tensors), "a table of tensors");
                return;
        }
        mfl_transfer_start(session, job, op->params, 0, op->request, NULL);
}

void mfl_operator_pull(struct mfl_session *session, uint64_t request, const Mfl__Pull *pull)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, pull->job);
        /* Everybody may have a model; what single clients have sent is its owner's business. */
        if (!job ||
                (pull->change && !mfl_operator_may_touch(session, request, job, "pull clients' changes of")))
                return;
        struct mfl_request *op = mfl_request_new(session, request, pull->job, run_pull, answer_pull);
        if (!op)
                return;
        op->which = pull->round;
        op->tensors = pull->tensors;
        op->change = pull->change;
        op->by_layers = session->protocol < MFL_PROTOCOL_FROZEN;
        mfl_request_start(op, session);
}
