/* SPDX-License-Identifier: Apache-2.0 */
/* The server's inquiries. */
#include "client/link/link_inquiry.h"

#include "common/base/log.h"
#include "common/method/method.h"
#include "common/partition/partition.h"
#include "common/stats/stats.h"
#include "proto/inquiry.h"
#include "proto/stats/stats_wire.h"

#define OPEN_MAX 4u /* inquiries at a time */

enum inquiry_state {
        INQUIRY_FETCHES, /* params */
        INQUIRY_RUNS,
        INQUIRY_DONE, /* the answer could not be sent */
};

struct link_inquiry {
        struct mfl_link *link;
        uint64_t number;
        Mfl__InquiryKind kind;
        enum inquiry_state state;
        bool dead; /* nobody waits for it */
        char data[MFL_NAME_BYTES], who[MFL_NAME_BYTES];
        const struct mfl_dataset *dataset;
        uint64_t fingerprint;
        char *text;
        uint8_t digest[MFL_DIGEST_BYTES];
        uint64_t n_params, n_frozen, have, charged;
        float *params;
        double *edges;
        struct mfl_stats_ask ask;
        /* On the worker. */
        struct mfl_work work;
        int status;
        struct mfl_error err;
        struct mfl_stats stats;
        uint64_t rows;
        struct mfl_task task;
        struct mfl_compute_call call;
        /* The answer. */
        Mfl__InquiryStatus result;
        uint64_t samples, correct;
        int64_t loss_sum;
        bool few;
        char reason[MFL_REASON_BYTES];
        struct link_inquiry *next;
};

static void free_inquiry(struct link_inquiry *q)
{
        struct link_inquiry **at = &q->link->inquiries;
        while (*at && *at != q)
                at = &(*at)->next;
        if (*at)
                *at = q->next;
        if (q->charged)
                mfl_budget_release(q->link->options.budget, q->charged);
        mfl_stats_deinit(&q->stats);
        mfl_population_free(atomic_exchange(&q->call.population, NULL));
        free(q->task.items);
        free(q->params);
        free(q->edges);
        free(q->text);
        free(q);
}

/* ---- answers ---- */

static void send_envelope(struct mfl_link *link, const Mfl__Envelope *envelope)
{
        struct mfl_error err;
        if (link->stream_state &&
                mfl_stream_send(&link->stream, envelope, NULL, 0, NULL, NULL, NULL, &err) < 0)
                mfl_link_fatal(link, &err);
}

static void send_answer(struct mfl_link *link, uint64_t number, const struct link_inquiry *q,
        Mfl__InquiryStatus status, const char *reason)
{
        Mfl__InquiryAnswer body = MFL__INQUIRY_ANSWER__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_error err;
        body.inquiry = number;
        body.status = status;
        body.reason = (char *)(uintptr_t)reason;
        if (status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED) {
                body.samples = q->samples;
                body.loss_sum = q->loss_sum;
                body.correct = q->correct;
                body.few = q->few;
                if (q->kind == MFL__INQUIRY_KIND__INQUIRY_STATS &&
                        mfl_stats_to_wire(&q->stats, &body.stats, &err) < 0) {
                        mfl_link_fatal(link, &err);
                        return;
                }
        }
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_ANSWER;
        envelope.inquiry_answer = &body;
        send_envelope(link, &envelope);
        mfl_stats_wire_free(body.stats);
}

/* Sends the answer, or keeps it until the server asks again. */
static void finish(struct link_inquiry *q)
{
        struct mfl_link *link = q->link;
        if (q->dead || link->life != LINK_RUNS) {
                free_inquiry(q);
                return;
        }
        q->state = INQUIRY_DONE;
        if (!link->online)
                return;
        send_answer(link, q->number, q, q->result, q->reason);
        free_inquiry(q);
}

static void fail(struct link_inquiry *q, const char *reason)
{
        q->result = MFL__INQUIRY_STATUS__INQUIRY_FAILED;
        mfl_strcpy(q->reason, sizeof(q->reason), reason);
        finish(q);
}

/* ---- on the worker ---- */

static bool submit(struct link_inquiry *q, void (*run)(struct mfl_work *), void (*done)(struct mfl_work *))
{
        const struct mfl_compute_ops *ops = q->link->options.ops;
        q->state = INQUIRY_RUNS;
        q->work = (struct mfl_work){.run = run, .done = done};
        if (!ops->aside || !ops->aside(q->link->options.compute, &q->work)) {
                fail(q, "this daemon has too much work");
                return false;
        }
        q->link->pending++;
        return true;
}

/* True: the work was done, and its inquiry goes on. Everything else is over. */
static bool worked(struct link_inquiry *q)
{
        struct mfl_link *link = q->link;
        bool ok = !q->work.cancelled && !q->status && link->life == LINK_RUNS && !q->dead;
        if (!ok && q->status < 0 && link->life == LINK_RUNS)
                mfl_link_fatal(link, &q->err);
        if (!ok)
                fail(q, q->work.cancelled ? "this daemon is stopping" : q->err.text);
        return ok;
}

static void run_stats(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        q->status = mfl_stats_measure(q->dataset, &q->ask, &q->stats, &q->err);
}

static void on_stats(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        struct mfl_link *link = q->link;
        if (worked(q)) {
                q->samples = q->stats.samples;
                q->result = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
                finish(q);
        }
        mfl_link_pending_done(link);
}

static void run_predict(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        const struct mfl_link_site *site = q->link->options.site;
        const struct mfl_site_model model = {.text = q->text,
                .params = q->params,
                .n_params = q->n_params,
                .n_frozen = q->n_frozen,
                .digest = q->digest};
        q->status =
                site->predict(&model, q->dataset, site->backend, site->predictions_dir, &q->rows, &q->err);
}

static void on_predicted(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        struct mfl_link *link = q->link;
        if (worked(q)) {
                q->samples = q->rows;
                q->result = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
                finish(q);
        }
        mfl_link_pending_done(link);
}

/* ---- evaluations: the trainer does them as it does a round's ---- */

static void on_evaluated(struct mfl_compute_call *call)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(call, struct link_inquiry, call);
        struct mfl_link *link = q->link;
        const struct mfl_train_result *result = call->status ? NULL : call->result;
        for (uint32_t i = 0; result && i < result->n_eval; i++) {
                q->samples += result->eval[i].samples;
                q->correct += result->eval[i].correct;
                q->loss_sum = mfl_fixed_loss_add(q->loss_sum, result->eval[i].loss_sum);
        }
        q->few |= q->samples < q->ask.least; /* whatever the job evaluates on */
        if (result)
                link->options.ops->result_free(link->options.compute, call->result);
        link->options.ops->forget(link->options.compute, q->task.job);
        q->result = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        if (call->status < 0 && link->life == LINK_RUNS)
                mfl_link_fatal(link, &call->err);
        if (call->status)
                fail(q, call->err.text);
        else
                finish(q);
        mfl_link_pending_done(link);
}

/* What the task evaluates: the site as a client, or all shards of the test split. */
static int fill_items(struct link_inquiry *q, const struct mfl_job *spec, struct mfl_error *err)
{
        const struct mfl_daemon_info *info = &q->link->options.agent.info;
        uint32_t n = 1, per;
        if (spec->data.partition != MFL_PARTITION_LOCAL)
                n = mfl_eval_shards(q->dataset->test.n, spec->evaluation.batch, &per);
        q->task.items = mfl_calloc(n, sizeof(*q->task.items));
        if (!q->task.items)
                return mfl_fail_memory(err, n * sizeof(*q->task.items), "an evaluation");
        for (uint32_t i = 0; i < n; i++)
                q->task.items[i] = i;
        q->task.n_items = n;
        return spec->data.partition == MFL_PARTITION_LOCAL
                       ? mfl_partition_site_client(info->site, info->name, &q->task.items[0], err)
                       : 0;
}

static const char *unfit(const struct mfl_job *spec, const struct link_inquiry *q)
{
        if (strcmp(spec->data.name, q->data) != 0)
                return "the job file names another data set than the inquiry";
        if (spec->personal.layers.n)
                return "each client of the job has layers of its own, which the job's model lacks";
        if (mfl_privacy_withholds(&spec->privacy))
                return MFL_GATE_WITHHELD;
        if (spec->evaluation.on == MFL_EVALUATE_CLIENTS && mfl_job_has_own_models(spec))
                return "each client of the job has a model of its own, which is not at the server";
        if (spec->evaluation.on == MFL_EVALUATE_CLIENTS && spec->data.partition != MFL_PARTITION_LOCAL)
                return "the job evaluates clients of a simulated population, and not a site";
        return NULL;
}

static int prepare_task(struct link_inquiry *q, struct mfl_error *err)
{
        struct mfl_job *spec;
        struct mfl_task *task = &q->task;
        mfl_snprintf(task->job, sizeof(task->job), "i-%08x", (uint32_t)q->number);
        int r = mfl_job_parse(q->text, strlen(q->text), task->job, &spec, err);
        if (r)
                return r;
        const char *why = unfit(spec, q);
        if (why)
                r = mfl_fail(err, MFL_INVALID, "%s", why);
        else
                r = fill_items(q, spec, err);
        /* Then they are training samples; on_evaluated knows how many. */
        if (spec->evaluation.on == MFL_EVALUATE_CLIENTS && spec->evaluation.split > 0)
                q->few = false;
        task->n_method =
                (uint32_t)mfl_method_get(spec)->n_state; /* of trainings; evaluations don't read them */
        mfl_job_free(spec);
        task->kind = MFL_TASK_EVAL;
        task->task = q->number;
        task->n_params = q->n_params;
        task->n_frozen = q->n_frozen;
        task->fingerprint = q->fingerprint;
        task->arithmetic = MFL_ARITHMETIC_VERSION;
        memcpy(task->params_digest, q->digest, MFL_DIGEST_BYTES);
        return r;
}

static void start_evaluation(struct link_inquiry *q)
{
        struct mfl_link *link = q->link;
        struct mfl_error err = {{0}};
        int r = prepare_task(q, &err);
        if (!r) {
                q->call.task = &q->task;
                q->call.job_text = q->text;
                q->call.frozen = q->n_frozen ? q->params : NULL;
                q->call.params = q->params + q->n_frozen;
                q->call.done = on_evaluated;
                r = link->options.ops->start(link->options.compute, &q->call, &err);
        }
        if (r < 0)
                mfl_link_fatal(link, &err);
        if (r)
                fail(q, err.text);
        else
                link->pending++;
}

/* ---- params ---- */

static void run_digest(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        uint8_t digest[MFL_SHA256_BYTES];
        q->status = mfl_sha256(q->params, q->n_params * sizeof(float), digest, &q->err);
        if (!q->status && memcmp(digest, q->digest, sizeof(digest)) != 0)
                q->status =
                        mfl_fail(&q->err, MFL_INVALID, "the params that came do not have the model's digest");
}

static void on_digest(struct mfl_work *work)
{
        struct link_inquiry *q = MFL_CONTAINER_OF(work, struct link_inquiry, work);
        struct mfl_link *link = q->link;
        if (worked(q)) {
                if (q->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE)
                        start_evaluation(q);
                else
                        submit(q, run_predict, on_predicted);
        }
        mfl_link_pending_done(link);
}

static void ask_params(struct link_inquiry *q)
{
        Mfl__InquiryModelGet body = MFL__INQUIRY_MODEL_GET__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.inquiry = q->number;
        body.offset = q->have;
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_MODEL_GET;
        envelope.inquiry_model_get = &body;
        send_envelope(q->link, &envelope);
}

static struct link_inquiry *find(const struct mfl_link *link, uint64_t number)
{
        struct link_inquiry *q = link->inquiries;
        while (q && (q->number != number || q->dead))
                q = q->next;
        return q;
}

static void take_piece(struct mfl_link *link, const Mfl__InquiryModel *piece)
{
        struct link_inquiry *q = find(link, piece->inquiry);
        uint64_t n = piece->data.len / sizeof(float);
        if (!q || q->state != INQUIRY_FETCHES || piece->offset != q->have)
                return;
        if (!n) { /* it is over */
                free_inquiry(q);
                return;
        }
        if (n > q->n_params - q->have) {
                fail(q, "more params came than the model has");
                return;
        }
        memcpy(q->params + q->have, piece->data.data, n * sizeof(float));
        q->have += n;
        if (q->have < q->n_params)
                ask_params(q);
        else
                submit(q, run_digest, on_digest);
}

/* ---- questions ---- */

static int fetch(struct link_inquiry *q, const Mfl__Inquiry *m, struct mfl_error *err)
{
        struct mfl_budget *budget = q->link->options.budget;
        uint64_t bytes = m->n_params * sizeof(float);
        q->text = mfl_strdup(m->text);
        if (!q->text)
                return mfl_fail_memory(err, strlen(m->text), "an inquiry");
        int r = budget ? mfl_budget_reserve(budget, bytes, "the model of an inquiry", err) : 0;
        if (r)
                return r;
        q->charged = budget ? bytes : 0;
        q->n_params = m->n_params;
        q->n_frozen = m->n_frozen;
        memcpy(q->digest, m->digest.data, MFL_DIGEST_BYTES);
        q->params = mfl_malloc(bytes);
        return q->params ? 0 : mfl_fail_memory(err, bytes, "the model of an inquiry");
}

static int fill(struct link_inquiry *q, const Mfl__Inquiry *m, struct mfl_error *err)
{
        const struct mfl_link_site *site = q->link->options.site;
        const char *why = NULL;
        q->number = m->inquiry;
        q->kind = m->kind;
        mfl_strcpy(q->data, sizeof(q->data), m->data);
        mfl_strcpy(q->who, sizeof(q->who), m->who);
        for (uint32_t i = 0; site && i < site->n_data_sets; i++)
                if (!strcmp(site->data_sets[i]->name, m->data) &&
                        !strchr(m->data, ':')) { /* program:NAME has no samples */
                        q->dataset = site->data_sets[i];
                        q->fingerprint = site->fingerprints[i];
                }
        if (!q->dataset)
                why = "this daemon has no such data set";
        else if (q->fingerprint != m->fingerprint)
                why = "this daemon's data set is not the one that is asked about";
        if (why)
                return mfl_fail(err, MFL_INVALID, "%s", why);
        q->ask.bins = m->bins;
        q->ask.n_edges = (uint32_t)m->n_edges;
        q->edges = mfl_calloc(m->n_edges + 1, sizeof(*q->edges));
        if (!q->edges)
                return mfl_fail_memory(err, m->n_edges * sizeof(*q->edges), "an inquiry");
        for (size_t i = 0; i < m->n_edges; i++)
                q->edges[i] = m->edges[i];
        q->ask.edges = q->edges;
        return m->kind == MFL__INQUIRY_KIND__INQUIRY_STATS ? 0 : fetch(q, m, err);
}

/* What the site says. False: it was answered. */
static bool allowed(struct mfl_link *link, const Mfl__Inquiry *m, struct link_inquiry *q)
{
        static const enum mfl_policy_inquiry kinds[] = {[MFL__INQUIRY_KIND__INQUIRY_STATS] = MFL_POLICY_STATS,
                [MFL__INQUIRY_KIND__INQUIRY_EVALUATE] = MFL_POLICY_VALIDATE,
                [MFL__INQUIRY_KIND__INQUIRY_PREDICT] = MFL_POLICY_PREDICT};
        const struct mfl_gate_inquiry question = {.kind = m->foreign ? MFL_POLICY_FOREIGN : kinds[m->kind],
                .data = m->data,
                .who = m->who,
                .text = m->text};
        char reason[MFL_REASON_BYTES] = "";
        struct mfl_error err;
        bool ok = true;
        int r = link->options.gate ? mfl_gate_inquire(link->options.gate, &question, &ok, reason, &err) : 0;
        if (r < 0)
                mfl_link_fatal(link, &err);
        if (r < 0)
                return false;
        if (ok && m->kind == MFL__INQUIRY_KIND__INQUIRY_PREDICT &&
                !(link->options.site && *link->options.site->predictions_dir)) {
                ok = false;
                mfl_strcpy(reason, sizeof(reason),
                        "this daemon keeps no predictions: its configuration has no predictions_dir");
        }
        if (!ok)
                send_answer(link, m->inquiry, NULL, MFL__INQUIRY_STATUS__INQUIRY_REFUSED, reason);
        else
                mfl_policy_inquiry_limits(
                        mfl_gate_policy(link->options.gate), &q->ask.least, &q->ask.keeps_range);
        return ok;
}

/* Whether the site would work for a job: at once, whatever the daemon does. */
static void answer_job(struct mfl_link *link, const Mfl__Inquiry *m)
{
        const struct link_inquiry none = {.kind = m->kind};
        enum mfl_site_word word = MFL_SITE_TAKES;
        char reason[MFL_REASON_BYTES] = "";
        struct mfl_error err;
        int r = link->options.gate
                        ? mfl_gate_preview(link->options.gate, m->who, m->text, &word, reason, &err)
                        : 0;
        if (r)
                mfl_link_fatal(link, &err);
        else
                send_answer(link, m->inquiry, &none,
                        word == MFL_SITE_REFUSES ? MFL__INQUIRY_STATUS__INQUIRY_REFUSED
                                                 : MFL__INQUIRY_STATUS__INQUIRY_ANSWERED,
                        reason);
}

static void begin(struct mfl_link *link, const Mfl__Inquiry *m)
{
        struct mfl_error err = {{0}};
        struct link_inquiry *q = mfl_calloc(1, sizeof(*q));
        if (!q) {
                mfl_fail_memory(&err, sizeof(*q), "an inquiry");
                mfl_link_fatal(link, &err);
                return;
        }
        q->link = link;
        q->next = link->inquiries;
        link->inquiries = q;
        if (!allowed(link, m, q)) {
                free_inquiry(q);
                return;
        }
        int r = fill(q, m, &err);
        if (r < 0)
                mfl_link_fatal(link, &err);
        if (r) {
                fail(q, err.text);
                return;
        }
        mfl_log(MFL_LOG_INFO, "%s asks for %s of data set %s", *q->who ? q->who : "the server",
                m->kind == MFL__INQUIRY_KIND__INQUIRY_STATS      ? "statistics"
                : m->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE ? "an evaluation"
                                                                 : "predictions",
                q->data);
        q->few = q->dataset->test.n < q->ask.least;
        if (m->kind == MFL__INQUIRY_KIND__INQUIRY_STATS)
                submit(q, run_stats, on_stats);
        else
                ask_params(q);
}

static void take_inquiry(struct mfl_link *link, const Mfl__Inquiry *m)
{
        struct link_inquiry *q = find(link, m->inquiry);
        uint32_t n = 0;
        if (m->kind == MFL__INQUIRY_KIND__INQUIRY_JOB) {
                answer_job(link, m);
                return;
        }
        if (q && q->state == INQUIRY_DONE)
                finish(q);
        if (q)
                return;
        for (struct link_inquiry *at = link->inquiries, *next; at; at = next) {
                next = at->next;
                if (at->state == INQUIRY_DONE)
                        free_inquiry(at); /* the server that asked is gone */
                else
                        n++;
        }
        if (n < OPEN_MAX)
                begin(link, m);
        else
                send_answer(link, m->inquiry, NULL, MFL__INQUIRY_STATUS__INQUIRY_FAILED,
                        "this daemon answers other inquiries");
}

bool mfl_link_inquiry_frame(struct mfl_link *link, const Mfl__Envelope *envelope)
{
        const bool first = envelope->body_case == MFL__ENVELOPE__BODY_INQUIRY;
        if (!first && envelope->body_case != MFL__ENVELOPE__BODY_INQUIRY_MODEL)
                return false;
        struct mfl_agent_event heard = {.kind = MFL_AGENT_EV_HEARD};
        if (link->online && first)
                take_inquiry(link, envelope->inquiry);
        else if (link->online)
                take_piece(link, envelope->inquiry_model);
        mfl_link_post(link, &heard);
        return true;
}

/* ---- ends ---- */

void mfl_link_inquiry_cut(struct mfl_link *link)
{
        for (struct link_inquiry *q = link->inquiries, *next; q; q = next) {
                next = q->next;
                if (q->state == INQUIRY_FETCHES)
                        free_inquiry(q);
        }
}

void mfl_link_inquiry_stop(struct mfl_link *link)
{
        for (struct link_inquiry *q = link->inquiries, *next; q; q = next) {
                next = q->next;
                q->dead = true;
                if (q->call.task)
                        link->options.ops->cancel(link->options.compute, &q->call);
                if (q->state != INQUIRY_RUNS)
                        free_inquiry(q);
        }
}
