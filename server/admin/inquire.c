/* SPDX-License-Identifier: Apache-2.0 */
/* Inquiries of operators: `mfl data stats`, `mfl validate`, `mfl predict --at`; and the reports that are kept. */
#include "common/base/digest.h"
#include "common/settings/yaml_edit.h"
#include "proto/inquiry.h"
#include "server/admin/answers.h"
#include "server/models/models.h"

struct inquire_op {
        Mfl__InquiryKind kind;
        char data[MFL_NAME_BYTES], at[MFL_NAME_BYTES], model[2 * MFL_NAME_BYTES];
        uint64_t within_ms;
        uint32_t bins, n_edges;
        bool no_accuracy, sent; /* sent: the model came with the inquiry */
        char where[MFL_WHERE_BYTES];
        bool exists; /* JOB: its token has made a job */
        uint32_t scored;
        uint64_t n_frozen;
        double *edges;
};

/* An inquiry whose model is coming. */
struct mfl_asking {
        struct mfl_request *op;
        float *v;
        uint64_t received;
};

static void free_own(void *own)
{
        struct inquire_op *op = own;
        free(op->edges);
        free(op);
}

/* ---- the model ---- */

/* "NAME@alias" is one version from here on. */
static int resolve(struct mfl_request *op)
{
        struct inquire_op *own = op->own;
        struct mfl_store_version version;
        if (!*own->model)
                return 0;
        int r = mfl_store_version_find(op->admin->store, own->model, &version, &op->err);
        if (r)
                return r;
        mfl_snprintf(own->model, sizeof own->model, "%s@%u", version.name, version.version);
        mfl_strcpy(op->job, sizeof op->job, version.job);
        op->which = version.round;
        return 0;
}

/* The job file, which from here on names the data set that is asked about. */
static int name_data(struct mfl_request *op)
{
        struct inquire_op *own = op->own;
        char value[MFL_NAME_BYTES + 2], *text;
        if (!*own->data) {
                mfl_strcpy(own->data, sizeof own->data, op->data.name);
                return 0;
        }
        if (!strcmp(own->data, op->data.name))
                return 0;
        mfl_snprintf(value, sizeof value, "'%s'", own->data);
        int r = mfl_yaml_set(op->text, op->job, "data.name", value, &text, &op->err);
        if (!r) {
                free(op->text);
                op->text = text;
        }
        return r;
}

/* The model that came with the inquiry. */
static int take_sent(struct mfl_request *op)
{
        struct mfl_job *spec;
        uint8_t digest[MFL_DIGEST_BYTES];
        int r = mfl_sha256(op->params->v, op->params->n * sizeof(float), digest, &op->err);
        if (!r && memcmp(digest, op->round.record.digest, sizeof digest) != 0)
                r = mfl_fail(&op->err, MFL_INVALID, "the params that came are not those of the digest");
        if (!r)
                r = mfl_job_parse(op->text, strlen(op->text), "the model's job file", &spec, &op->err);
        if (r)
                return r;
        mfl_strcpy(op->data.name, sizeof op->data.name, spec->data.name);
        mfl_job_free(spec);
        return 0;
}

static void load(struct mfl_request *op)
{
        const struct inquire_op *own = op->own;
        if (own->sent) {
                op->status = take_sent(op);
                return;
        }
        op->status = resolve(op);
        if (!op->status)
                mfl_request_load_model(op);
}

/* The job that somebody may submit. */
static int take_job(struct mfl_request *op)
{
        struct inquire_op *own = op->own;
        struct mfl_job *spec;
        int r = mfl_job_parse(op->text, strlen(op->text), "the job", &spec, &op->err);
        if (r)
                return r;
        if (!*own->data)
                mfl_strcpy(own->data, sizeof own->data, spec->data.name);
        mfl_strcpy(own->where, sizeof own->where, spec->selection.where);
        mfl_job_free(spec);
        return mfl_store_token_used(op->admin->store, op->token, op->audit.who, &own->exists, &op->err);
}

static void run_inquire(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct inquire_op *own = op->own;
        struct mfl_job *spec;
        if (own->kind == MFL__INQUIRY_KIND__INQUIRY_STATS)
                return;
        if (own->kind == MFL__INQUIRY_KIND__INQUIRY_JOB) {
                op->status = take_job(op);
                return;
        }
        load(op);
        if (!op->status)
                op->status = name_data(op);
        if (!op->status)
                op->status = mfl_job_parse(op->text, strlen(op->text), op->job, &spec, &op->err);
        if (op->status)
                return;
        if (op->graph)
                own->n_frozen = op->graph->n_frozen;
        own->no_accuracy = !mfl_loss_decides(spec->training.loss);
        if (op->graph && !mfl_job_has_program(spec)) /* only a program knows what it scores */
                own->scored = (uint32_t)(mfl_loss_answers(spec->training.loss) == MFL_ANSWERS_LABELS
                                                 ? op->graph->positions
                                                 : op->graph->classes);
        mfl_job_free(spec);
}

/* ---- the report ---- */

struct waiting {
        struct mfl_sessions *sessions;
        uint32_t conn;
        uint64_t request;
};

static void on_report(void *user, const Mfl__InquiryReport *report, const struct mfl_stats *stats)
{
        struct waiting *waiting = user;
        struct mfl_session *session = mfl_session_find(waiting->sessions, waiting->conn);
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        envelope.request = waiting->request;
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_REPORT;
        envelope.inquiry_report = (Mfl__InquiryReport *)(uintptr_t)report;
        if (session && mfl__inquiry_report__get_packed_size(report) > MFL_LIST_BYTES_MAX)
                mfl_session_fail(session, waiting->request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "the report is larger than a message: ask fewer sites, or for fewer bins");
        else if (session)
                mfl_session_send(session, &envelope);
        free(waiting);
}

/* A job that is submitted again: what sites say of another one is no matter. */
static void answer_existing(const struct mfl_request *op, struct mfl_session *session)
{
        const struct inquire_op *own = op->own;
        Mfl__InquiryReport report = MFL__INQUIRY_REPORT__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        report.kind = own->kind;
        report.data = (char *)(uintptr_t)own->data;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_REPORT;
        envelope.inquiry_report = &report;
        if (session)
                mfl_session_send(session, &envelope);
}

static void answer_inquire(struct mfl_request *op, struct mfl_session *session)
{
        const struct inquire_op *own = op->own;
        if (own->exists) {
                answer_existing(op, session);
                return;
        }
        struct waiting *waiting = session ? mfl_calloc(1, sizeof *waiting) : NULL;
        if (!waiting) {
                if (session)
                        mfl_operator_no_memory(session, sizeof *waiting, "an inquiry");
                return;
        }
        *waiting = (struct waiting){op->admin->sessions, op->conn, op->request};
        struct mfl_inquiry_question question = {.kind = own->kind,
                .data = own->data,
                .at = own->at,
                .who = session->who,
                .model = own->model,
                .job = op->job,
                .where = own->where,
                .round = op->round.record.round,
                .within_ms = own->within_ms,
                .text = op->text,
                .params = op->params,
                .n_frozen = own->n_frozen,
                .foreign = own->sent,
                .no_accuracy = own->no_accuracy,
                .scored = own->scored,
                .bins = own->bins,
                .n_edges = own->n_edges,
                .edges = own->edges};
        struct mfl_error err;
        memcpy(question.digest, op->round.record.digest, sizeof question.digest);
        int r = mfl_inquiry_start(op->admin->inquiries, &question, on_report, waiting, &err);
        if (!r)
                return;
        free(waiting);
        if (r < 0)
                mfl_loop_fatal(op->admin->loop, r, &err);
        else
                mfl_session_fail(session, op->request, mfl_operator_failure_code(r), "%s", err.text);
}

/* ---- a model that comes with the inquiry ---- */

void mfl_operator_asking_free(struct mfl_session *session)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        if (!peer->asking)
                return;
        mfl_request_free(peer->asking->op);
        free(peer->asking);
        peer->asking = NULL;
}

static void expect_model(struct mfl_session *session, struct mfl_request *op, const Mfl__Inquire *inquire)
{
        struct inquire_op *own = op->own;
        struct mfl_asking *asking = mfl_calloc(1, sizeof *asking);
        struct mfl_error err;
        own->sent = true;
        own->n_frozen = inquire->n_frozen;
        memcpy(op->round.record.digest, inquire->digest.data, MFL_DIGEST_BYTES);
        op->text = mfl_strdup(inquire->text);
        int r = asking && op->text ? 0 : mfl_fail_memory(&err, sizeof *asking, "a model");
        if (!r)
                r = mfl_params_arriving(op->admin->budget, inquire->n_params, op->round.record.digest,
                        &asking->v, &op->params, &err);
        if (!r) {
                mfl_operator_asking_free(session);
                asking->op = op;
                mfl_operator_of(session)->asking = asking;
                return;
        }
        free(asking);
        mfl_request_free(op);
        if (r < 0)
                mfl_loop_fatal(session->all->loop, r, &err);
        else
                mfl_session_fail(session, op->request, mfl_operator_failure_code(r), "%s", err.text);
}

bool mfl_operator_asking_begin(struct mfl_session *session, const Mfl__Initial *initial, size_t payload_bytes,
        void **ret_dst, int *ret_status, struct mfl_error *err)
{
        struct mfl_asking *asking = mfl_operator_of(session)->asking;
        if (!asking)
                return false;
        const uint64_t left = asking->op->params->n - asking->received;
        if (initial->offset != asking->received || payload_bytes % 4 || payload_bytes / 4 > left)
                *ret_status =
                        mfl_fail(err, MFL_INVALID, "Initial: expected floats from %llu on, at most %llu",
                                (unsigned long long)asking->received, (unsigned long long)left);
        else
                *ret_dst = asking->v + asking->received;
        return true;
}

bool mfl_operator_asking_done(struct mfl_session *session, size_t payload_bytes)
{
        struct mfl_asking *asking = mfl_operator_of(session)->asking;
        if (!asking)
                return false;
        asking->received += payload_bytes / 4;
        if (asking->received < asking->op->params->n)
                return true;
        mfl_operator_of(session)->asking = NULL;
        mfl_request_start(asking->op, session);
        free(asking);
        return true;
}

/* ---- inquiries ---- */

void mfl_operator_inquire(struct mfl_session *session, uint64_t request, const Mfl__Inquire *inquire)
{
        if (*inquire->text && (*inquire->job || *inquire->model)) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "Inquire.text: a model that is sent is none of a job or of the registry");
                return;
        }
        if (*inquire->job && !mfl_operator_job(session, request, inquire->job))
                return;
        struct mfl_request *op = mfl_request_new(session, request, inquire->job, run_inquire, answer_inquire);
        struct inquire_op *own = op ? mfl_calloc(1, sizeof *own) : NULL;
        if (own)
                own->edges = mfl_calloc(inquire->n_edges + 1, sizeof *own->edges);
        if (!own || !own->edges) {
                if (op) {
                        mfl_operator_no_memory(session, sizeof *own, "an inquiry");
                        mfl_request_free(op);
                }
                free(own);
                return;
        }
        op->own = own;
        op->own_free = free_own;
        op->which = inquire->round;
        own->kind = inquire->kind;
        own->within_ms = 1000ull * inquire->deadline_s;
        own->bins = inquire->bins;
        own->n_edges = (uint32_t)inquire->n_edges;
        for (size_t i = 0; i < inquire->n_edges; i++)
                own->edges[i] = inquire->edges[i];
        mfl_strcpy(own->data, sizeof own->data, inquire->data);
        mfl_strcpy(own->at, sizeof own->at, inquire->at);
        mfl_strcpy(own->model, sizeof own->model, inquire->model);
        mfl_strcpy(op->token, sizeof op->token, inquire->token);
        if (own->kind == MFL__INQUIRY_KIND__INQUIRY_JOB) {
                op->text = mfl_strdup(inquire->text);
                if (op->text)
                        mfl_request_start(op, session);
                else {
                        mfl_operator_no_memory(session, strlen(inquire->text), "an inquiry");
                        mfl_request_free(op);
                }
                return;
        }
        mfl_request_audit(op, "inquire",
                *inquire->text    ? "a file's model"
                : *inquire->job   ? inquire->job
                : *inquire->model ? inquire->model
                                  : inquire->data);
        mfl_snprintf(op->audit.text, sizeof op->audit.text, "%s of data set %s%s%s",
                own->kind == MFL__INQUIRY_KIND__INQUIRY_STATS      ? "statistics"
                : own->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE ? "an evaluation"
                                                                   : "predictions",
                *own->data ? own->data : "of the job", *own->at ? " at " : "", own->at);
        if (*inquire->text)
                expect_model(session, op, inquire);
        else
                mfl_request_start(op, session);
}

/* ---- those of before ---- */

#define LIST_DEFAULT 20

struct list_op {
        Mfl__InquiryKind kind;
        bool has_digest;
        uint8_t digest[MFL_DIGEST_BYTES];
        struct mfl_store_inquiries rows;
};

static void free_list(void *own)
{
        struct list_op *op = own;
        mfl_store_inquiries_deinit(&op->rows);
        free(op);
}

static void run_list(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct list_op *own = op->own;
        op->status = mfl_store_inquiry_list(op->admin->store, (uint32_t)own->kind,
                own->has_digest ? own->digest : NULL, (uint32_t)op->which, &own->rows, &op->err);
}

static void answer_list(struct mfl_request *op, struct mfl_session *session)
{
        const struct list_op *own = op->own;
        Mfl__InquiryList list = MFL__INQUIRY_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        MFL_CLEANUP_FREE Mfl__InquiryReport **reports = mfl_calloc(own->rows.n + 1, sizeof *reports);
        size_t bytes = 0;
        if (!session)
                return;
        if (!reports) {
                mfl_operator_no_memory(session, own->rows.n * sizeof *reports, "reports");
                return;
        }
        for (uint32_t i = 0; i < own->rows.n; i++) {
                const struct mfl_store_inquiry *row = &own->rows.v[i];
                bytes += row->bytes + 32;
                Mfl__InquiryReport *report =
                        bytes > MFL_LIST_BYTES_MAX ? NULL
                                                   : mfl__inquiry_report__unpack(NULL, row->bytes, row->body);
                if (!report) /* the oldest are left out */
                        break;
                report->number = row->n;
                reports[list.n_reports++] = report;
        }
        list.reports = reports;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_LIST;
        envelope.inquiry_list = &list;
        mfl_session_send(session, &envelope);
        for (size_t i = 0; i < list.n_reports; i++)
                mfl__inquiry_report__free_unpacked(reports[i], NULL);
}

void mfl_operator_inquiries(struct mfl_session *session, uint64_t request, const Mfl__ListInquiries *list)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_list, answer_list);
        struct list_op *own = op ? mfl_calloc(1, sizeof *own) : NULL;
        if (!own) {
                if (op) {
                        mfl_operator_no_memory(session, sizeof *own, "reports");
                        mfl_request_free(op);
                }
                return;
        }
        op->own = own;
        op->own_free = free_list;
        op->which = list->count ? list->count : LIST_DEFAULT;
        own->kind = list->kind;
        own->has_digest = list->digest.len == MFL_DIGEST_BYTES;
        if (own->has_digest)
                memcpy(own->digest, list->digest.data, MFL_DIGEST_BYTES);
        mfl_request_start(op, session);
}
