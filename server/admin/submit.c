/* SPDX-License-Identifier: Apache-2.0 */
/* New jobs: Submit, with the initial params that may follow it, and CloneJob. */
#include "common/base/log.h"
#include "common/method/method.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/core/core_offer.h"
#include "server/jobs/spent.h"
#include "server/strategy/plugin.h"

struct mfl_submission {
        uint64_t request, expected, received; /* floats */
        char *text;
        char token[MFL_TOKEN_BYTES], name[MFL_NAME_BYTES];
        struct mfl_store_upload *upload;
        struct mfl_data_info data; /* as mfl_request's */
        uint8_t *buffer;
        size_t buffer_bytes;
        uint64_t reserved;
};

/* Whether the data set's budget has room for the job. */
static int check_spent(struct mfl_request *op, struct mfl_error *err)
{
        struct mfl_job *spec = NULL;
        struct mfl_store_job of = {.text = NULL}; /* clone: its text, as it is */
        if (!op->admin->jobs->limits || !op->admin->jobs->limits->n)
                return 0;
        int r = op->text ? 0 : mfl_store_job_get(op->admin->store, op->job, &of, err);
        const char *text = op->text ? op->text : of.text;
        if (!r)
                r = mfl_job_parse(text, strlen(text), "job", &spec, err);
        const struct mfl_spent_ask ask = {
                .store = op->admin->store, .limits = op->admin->jobs->limits, .spec = spec, .job = ""};
        if (!r)
                r = mfl_spent_check_plan(&ask, err);
        mfl_job_free(spec);
        mfl_store_job_deinit(&of);
        return r;
}

/* Whether limits.state has room for what all clients keep, as far as the job or its data set, by the daemons that are connected,
 * says how large the model is. */
static int check_states(struct mfl_request *op, struct mfl_error *err)
{
        struct mfl_job *spec;
        struct mfl_graph *graph = NULL;
        if (!op->text)
                return 0; /* clone: it was submitted once */
        int r = mfl_job_parse(op->text, strlen(op->text), "job", &spec, err);
        if (r)
                return r;
        bool known = spec->model.tensors || (spec->model.input.rank && spec->model.classes);
        if (mfl_job_keeps_state(spec) && (known || op->data.shape.rank))
                r = mfl_job_graph(spec, known ? &spec->model.input : &op->data.shape,
                        known ? spec->model.classes : (int)op->data.classes, &graph, err);
        if (r > 0) /* the job is shown failed, with what does not fit */
                r = 0;
        if (graph)
                r = mfl_method_check_states(spec, spec->data.clients, graph->n_moving, err);
        mfl_graph_free(graph);
        mfl_job_free(spec);
        return r;
}

/* A request that is repeated with its token makes no job: neither what the first one has spent nor a daemon that has come since is a reason
 * to refuse it. */
static int check_new(struct mfl_request *op, struct mfl_error *err)
{
        bool used;
        int r = mfl_store_token_used(op->admin->store, op->token, op->audit.who, &used, err);
        if (r || used)
                return r;
        r = check_spent(op, err);
        return r ? r : check_states(op, err);
}

static void run_submit(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = check_new(op, &op->err);
        if (op->status)
                return;
        op->status = op->text ? mfl_store_job_add(op->admin->store, op->name, op->text, op->token,
                                        op->audit.who, op->upload, op->new_job, &op->err)
                              : mfl_store_job_clone(op->admin->store, op->job, op->token, op->audit.who,
                                        op->new_job, &op->err);
        if (op->status)
                return; /* MFL_EXISTS: the token was known */
        op->upload = NULL;
        op->status = mfl_store_job_get(op->admin->store, op->new_job, &op->row, &op->err);
}

int mfl_submit_start(struct mfl_request *op, const char *what, struct mfl_error *err)
{
        struct mfl_server_job *job;
        int r = mfl_server_job_new(op->admin->jobs, &op->row, &job, err);
        if (!r)
                r = mfl_server_job_start(job, err);
        if (r < 0)
                mfl_loop_fatal(op->admin->loop, r, err);
        else if (!r)
                mfl_log_job(MFL_LOG_INFO, op->new_job, "%s (%s): %s", op->new_job, job->spec->name, what);
        return r;
}

int mfl_submit_allows(
        const struct mfl_admin *admin, struct mfl_job *spec, const char *file, struct mfl_error *err)
{
        if (mfl_simulation_is_on(&spec->simulation) && !admin->jobs->allow_simulation)
                return mfl_fail(err, MFL_INVALID, "%s: simulation: %s", file, MFL_SIMULATION_REFUSED);
        if (spec->secure.bits && !admin->jobs->tls)
                return mfl_fail(err, MFL_INVALID, "%s: secure_sum: " MFL_SECURE_NEEDS_TLS, file);
        return mfl_plugins_resolve(admin->jobs->plugins, spec, err);
}

void mfl_submit_answer(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_error err;
        int r = op->status == MFL_EXISTS ? 0 : mfl_submit_start(op, "submitted", &err);
        if (!session || r < 0)
                return;
        if (r) {
                mfl_session_fail(session, op->request, mfl_operator_failure_code(r), "%s", err.text);
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

void mfl_submission_free(struct mfl_session *session)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        struct mfl_submission *s = peer->submission;
        if (!s)
                return;
        peer->submission = NULL;
        mfl_store_upload_discard(s->upload);
        if (s->reserved)
                mfl_budget_release(mfl_admin_of(session)->budget, s->reserved);
        free(s->text);
        free(s->buffer);
        free(s);
}

/* data: what daemons say of its data set; without a shape: nothing that is the same for all. */
static void submit_now(struct mfl_session *session, uint64_t request, char *text, const char *name,
        const char *token, struct mfl_store_upload *upload, const struct mfl_data_info *data)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_submit, mfl_submit_answer);
        if (!op)
                return;
        op->text = text;
        op->upload = upload;
        op->data = *data;
        mfl_strcpy(op->name, sizeof op->name, name);
        mfl_strcpy(op->token, sizeof op->token, token);
        mfl_request_audit(op, "submit", "");
        mfl_strcpy(op->audit.text, sizeof op->audit.text, name);
        mfl_request_start(op, session);
}

static int begin_submission(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit,
        char *text, const char *name, const struct mfl_data_info *data, struct mfl_error *err)
{
        struct mfl_submission *s = mfl_calloc(1, sizeof *s);
        if (!s)
                return mfl_fail_memory(err, sizeof *s, "a submission");
        s->request = request;
        s->expected = submit->initial_count;
        s->text = text;
        s->data = *data;
        mfl_strcpy(s->name, sizeof s->name, name);
        mfl_strcpy(s->token, sizeof s->token, submit->token);
        mfl_assert(!mfl_operator_of(session)->submission && s->expected > 0);
        mfl_operator_of(session)->submission = s;
        /* Until the disk has them, floats may wait in memory. */
        int r = mfl_budget_reserve(
                mfl_admin_of(session)->budget, MFL_PAYLOAD_MAX, "a submission's initial params", err);
        if (!r)
                s->reserved = MFL_PAYLOAD_MAX;
        if (!r)
                r = mfl_store_upload_begin(mfl_admin_of(session)->store, s->expected, &s->upload, err);
        if (r)
                mfl_submission_free(session);
        return r;
}

/* Sites may come back with a filter, so that without any daemon the job waits. */
static int check_filters(const struct mfl_session *session, const struct mfl_job *spec, const char *file,
        struct mfl_error *err)
{
        char offer[MFL_NAME_BYTES];
        uint32_t connected;
        for (uint32_t i = 0; i < spec->n_filters; i++)
                if (!mfl_core_offers(session->all->loop->core, mfl_job_filter_offer(spec->filters[i], offer),
                            &connected) &&
                        connected)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: filters: none of the %u daemons that are connected has the filter %s "
                                "(filters in "
                                "client.yaml)",
                                file, connected, spec->filters[i]);
        return 0;
}

void mfl_operator_submit(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit)
{
        struct mfl_job *spec;
        struct mfl_error err;
        const char *file = submit->file[0] ? submit->file : "job";
        int r = mfl_job_check_text(submit->text, file, &err);
        if (!r)
                r = mfl_job_parse(submit->text, strlen(submit->text), file, &spec, &err);
        if (!r && ((r = mfl_job_check_moves(spec, &err)) || (r = mfl_job_check_over(spec, &err)) ||
                          (r = mfl_job_check_cohort(spec, &err))))
                mfl_job_free(spec);
        if (!r && ((r = mfl_submit_allows(mfl_admin_of(session), spec, file, &err)) ||
                          (r = check_filters(session, spec, file, &err))))
                mfl_job_free(spec);
        if (r > 0)
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID, "%s", err.text);
        if (r < 0)
                mfl_loop_fatal(session->all->loop, r, &err);
        if (r)
                return;
        bool wants_initial = spec->model.initial != NULL;
        char name[MFL_NAME_BYTES];
        mfl_strcpy(name, sizeof name, spec->name);
        const struct mfl_data_info *offered = mfl_core_offered(session->all->loop->core, spec);
        const struct mfl_data_info data = offered ? *offered : (struct mfl_data_info){.name = ""};
        mfl_job_free(spec);
        if (wants_initial != (submit->initial_count > 0)) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "%s: model.initial: %s", file,
                        wants_initial ? "the initial params must be sent with the job"
                                      : "was sent, but is not in the job");
                return;
        }
        char *text = mfl_strdup(submit->text);
        if (!text) {
                mfl_operator_no_memory(session, strlen(submit->text), "a job's text");
                return;
        }
        if (!submit->initial_count) {
                submit_now(session, request, text, name, submit->token, NULL, &data);
                return;
        }
        mfl_submission_free(session);
        r = begin_submission(session, request, submit, text, name, &data, &err);
        if (r < 0)
                mfl_loop_fatal(session->all->loop, r, &err);
        else if (r)
                mfl_session_fail(session, request, mfl_operator_failure_code(r), "%s", err.text);
}

int mfl_operator_initial_begin(struct mfl_session *session, const Mfl__Initial *initial, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct mfl_submission *s = mfl_operator_of(session)->submission;
        int status = 0;
        *ret_dst = NULL;
        if (mfl_operator_asking_begin(session, initial, payload_bytes, ret_dst, &status, err))
                return status;
        if (!s) /* its Submit failed; what is still coming is dropped */
                return 0;
        if (initial->offset != s->received || payload_bytes % 4 ||
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
int mfl_operator_initial_done(struct mfl_session *session, size_t payload_bytes, struct mfl_error *err)
{
        struct mfl_submission *s = mfl_operator_of(session)->submission;
        struct mfl_error why;
        if (mfl_operator_asking_done(session, payload_bytes) || !s)
                return 0;
        mfl_assert(s->upload && payload_bytes <= s->buffer_bytes && s->received < s->expected);
        int r = mfl_store_upload_write(s->upload, s->buffer, payload_bytes, &why);
        if (r) {
                *err = why;
                if (r > 0)
                        mfl_session_fail(session, s->request, mfl_operator_failure_code(r), "%s", why.text);
                mfl_submission_free(session);
                return r < 0 ? r : 0;
        }
        s->received += payload_bytes / 4;
        if (s->received < s->expected)
                return 0;
        submit_now(session, s->request, s->text, s->name, s->token, s->upload, &s->data);
        s->text = NULL;
        s->upload = NULL;
        mfl_submission_free(session);
        return 0;
}

void mfl_operator_clone(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, clone->job);
        if (!job || !mfl_operator_may_touch(session, request, job, "clone") ||
                !mfl_operator_may_copy(session, request, job))
                return;
        struct mfl_request *op = mfl_request_new(session, request, clone->job, run_submit, mfl_submit_answer);
        if (!op)
                return;
        mfl_strcpy(op->token, sizeof op->token, clone->token);
        mfl_request_audit(op, "clone", "");
        mfl_snprintf(op->audit.text, sizeof op->audit.text, "of %s", clone->job);
        mfl_request_start(op, session);
}
