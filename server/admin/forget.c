/* SPDX-License-Identifier: Apache-2.0 */
/* Exact unlearning: a job runs again as if one of its clients had never been there. The rounds before the client's first turn have the
 * same models again.
 *
 * Happy path: the job's file with one more tombstone -> a new job, which has the rounds before the client's first turn, up to the newest one
 * whose checkpoint is kept -> the old one and its models go -> the new one goes on after that round, or starts with round 1.
 *
 * The client's first turn is found by drawing the committed rounds again. That needs nothing but the job's file where every round draws
 * from the whole population (selection uniform, separated or poisson, in real time) and clients keep no state and evaluate nothing; other jobs start with round 1.
 *
 * A crash between the two leaves both jobs, and the old one can be deleted, or the request repeated. A request that is repeated with its
 * token after the old job has gone is answered with the new one. A file whose list can't be changed in place is refused, with what to
 * write. */
#include <inttypes.h>
#include <stdio.h>

#include "common/cohort/cohort.h"
#include "common/method/method.h"
#include "common/settings/yaml_edit.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/transfer/params_down.h"

/* "[3, 7]": the clients that the job lacks, and this one. */
static int list_of(const struct mfl_job *spec, uint32_t client, char **ret_list, struct mfl_error *err)
{
        size_t bytes = 0;
        FILE *f = open_memstream(ret_list, &bytes);
        if (!f)
                return mfl_fail_memory(err, 64, "a list of clients");
        fprintf(f, "[");
        for (uint32_t i = 0; i < spec->selection.n_without; i++)
                fprintf(f, "%" PRIu32 ", ", spec->selection.without[i]);
        fprintf(f, "%" PRIu32 "]", client);
        return fclose(f) ? mfl_fail_memory(err, bytes, "a list of clients") : 0;
}

/* The job's file, in which the client is a tombstone, too. */
static int text_of(const char *id, const char *text, uint32_t client, char **ret_text, struct mfl_error *err)
{
        struct mfl_job *spec;
        MFL_CLEANUP_FREE char *list = NULL;
        int r = mfl_job_parse(text, strlen(text), id, &spec, err);
        if (r)
                return r;
        if (spec->data.partition == MFL_PARTITION_LOCAL)
                r = mfl_fail(err, MFL_INVALID,
                        "%s has partition local: its clients are sites, which have no numbers to forget them "
                        "by; "
                        "submit the job again without the site's daemons",
                        id);
        else if (mfl_job_is_without(spec, client))
                r = mfl_fail(err, MFL_INVALID, "%s is without client %" PRIu32 " already", id, client);
        if (!r)
                r = list_of(spec, client, &list, err);
        mfl_job_free(spec);
        if (!r)
                r = mfl_yaml_set(text, id, "selection.without", list, ret_text, err);
        if (r)
                return r;
        r = mfl_job_parse(*ret_text, strlen(*ret_text), id, &spec, err);
        if (!r)
                mfl_job_free(spec);
        return r;
}

/* ---- where to begin ---- */

static bool draws_alone(const struct mfl_job *spec)
{
        return spec->data.partition != MFL_PARTITION_LOCAL && spec->time == MFL_TIME_REAL &&
               spec->selection.kind <= MFL_SELECT_POISSON && !mfl_job_is_async(spec) &&
               !mfl_job_keeps_state(spec) && !mfl_memory_is_needed(spec) &&
               !mfl_method_get(spec)->turn_rounds && spec->evaluation.on != MFL_EVALUATE_CLIENTS;
}

static int has_turn(const struct mfl_job *spec, const struct mfl_round_record *record, uint32_t client,
        bool *ret_has, struct mfl_error *err)
{
        struct mfl_cohort cohort;
        const struct mfl_cohort_ask ask = {.job = spec,
                .population = spec->data.clients,
                .round = record->round,
                .attempt = record->attempt};
        int r = mfl_cohort_draw(&ask, &cohort, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < cohort.n; i++)
                *ret_has |= cohort.client[i] == client;
        free(cohort.client);
        return 0;
}

/* The newest round before the client's first turn whose checkpoint is whole; *ret_found false: there is none. */
static int find_round(struct mfl_store *store, const char *id, const struct mfl_job *spec, uint32_t client,
        struct mfl_store_round *ret_round, bool *ret_found, struct mfl_error *err)
{
        bool has = false;
        uint32_t after = 0, n = 1;
        int r = 0;
        while (!r && n && !has && draws_alone(spec)) {
                struct mfl_store_rounds page = {0};
                r = mfl_store_round_page(store, id, after, 256, &page, err);
                n = r ? 0 : page.n;
                for (uint32_t i = 0; !r && i < n && !has; i++) {
                        const struct mfl_store_round *round = &page.v[i];
                        r = has_turn(spec, &round->record, client, &has, err);
                        after = round->record.round;
                        if (r || has || !round->kept || mfl_store_round_verify(store, id, round, err))
                                continue;
                        *ret_round = *round;
                        *ret_found = true;
                }
                mfl_store_rounds_deinit(&page);
        }
        return r;
}

static int begin_anew(struct mfl_request *op, const struct mfl_store_job *row, struct mfl_error *err)
{
        struct mfl_job *spec;
        struct mfl_store_round at;
        bool found = false;
        const char *owner = *row->owner ? row->owner : op->audit.who; /* it stays its owner's, whoever asks */
        int r = mfl_job_parse(row->text, strlen(row->text), op->job, &spec, err);
        if (r)
                return r;
        const uint32_t client = (uint32_t)op->which;
        r = find_round(op->admin->store, op->job, spec, client, &at, &found, err);
        mfl_job_free(spec);
        const struct mfl_store_forget forget = {op->text, client, found ? &at : NULL, op->audit.who};
        return r ? r
                 : mfl_store_job_forget(
                           op->admin->store, op->job, &forget, op->token, owner, op->new_job, err);
}

static void run_forget(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_store *store = op->admin->store;
        struct mfl_store_job row = {{0}};
        op->status = mfl_store_job_get(store, op->job, &row, &op->err);
        if (op->status == MFL_NOT_FOUND) {
                op->status = mfl_store_job_forgotten(
                        store, op->job, (uint32_t)op->which, op->token, op->audit.who, op->new_job, &op->err);
                return;
        }
        if (!op->status)
                op->status = text_of(op->job, row.text, (uint32_t)op->which, &op->text, &op->err);
        if (!op->status)
                op->status = begin_anew(op, &row, &op->err);
        mfl_store_job_deinit(&row);
        if (op->status == MFL_EXISTS) /* the same request, repeated before the old job was deleted */
                op->status = 0;
        if (!op->status)
                op->status = mfl_store_job_get(store, op->new_job, &op->row, &op->err);
        if (!op->status)
                op->status = mfl_store_job_delete(store, op->job, &op->err);
}

static void answer_forget(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        if (job && !job->operations) {
                mfl_transfer_stop_job(op->admin->sessions, job);
                mfl_server_job_free(job);
        }
        if (mfl_server_job_find(op->admin->jobs, op->new_job)) /* it has begun already */
                op->status = MFL_EXISTS;
        mfl_submit_answer(op, session);
}

/* The job may have gone by the same request, whose answer was lost. */
static bool may_begin(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone)
{
        if (*clone->token && !mfl_server_job_find(mfl_admin_of(session)->jobs, clone->job))
                return true;
        struct mfl_server_job *job = mfl_operator_job(session, request, clone->job);
        if (!job || !mfl_operator_may_touch(session, request, job, "forget a client of"))
                return false;
        if (mfl_server_job_has_ended(job) && !mfl_server_job_in_core(job) && !job->operations)
                return true;
        mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                "%s is still running; stop it first (mfl stop %s)", job->id, job->id);
        return false;
}

void mfl_operator_forget(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone)
{
        if (!may_begin(session, request, clone))
                return;
        struct mfl_request *op = mfl_request_new(session, request, clone->job, run_forget, answer_forget);
        if (!op)
                return;
        op->which = clone->client;
        mfl_strcpy(op->token, sizeof op->token, clone->token);
        mfl_request_audit(op, "forget", clone->job);
        mfl_snprintf(op->audit.text, sizeof op->audit.text, "client %" PRIu32, clone->client);
        mfl_request_start(op, session);
}
