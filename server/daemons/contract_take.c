/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a job's contract.
 *
 * Happy path: text -> contract -> worker: stored one -> compare -> store. Fails when: the text is no contract (the log says
 * so); the job is deleted meanwhile; the disk or the memory is broken (the server ends).
 */
#include "server/daemons/contract_take.h"

#include "common/base/log.h"
#include "common/contract/contract.h"

struct told {
        struct mfl_work work;
        struct mfl_jobs *jobs;
        struct mfl_sessions *sessions;
        uint32_t conn;
        char job[MFL_JOB_ID_BYTES], site[MFL_NAME_BYTES];
        struct mfl_contract *contract;
        bool differs;
        int status;
        struct mfl_error err;
};

static int store(struct told *told, const struct mfl_contract *contract)
{
        char *text;
        int r = mfl_contract_text(contract, &text, &told->err);
        if (r)
                return r;
        r = mfl_store_contract_put(told->jobs->store, told->job, text, &told->err);
        free(text);
        return r;
}

static void run_told(struct mfl_work *work)
{
        struct told *told = MFL_CONTAINER_OF(work, struct told, work);
        struct mfl_contract *first = NULL;
        char *text = NULL;
        told->status = mfl_store_contract_get(told->jobs->store, told->job, &text, &told->err);
        if (!told->status && !text) {
                mfl_strcpy(told->contract->from, sizeof told->contract->from, told->site);
                told->status = store(told, told->contract);
        } else if (!told->status) {
                told->status = mfl_contract_parse(text, told->job, &first, &told->err);
                if (!told->status)
                        told->status = mfl_contract_compare(
                                first, told->contract, told->site, &told->differs, &told->err);
                if (!told->status && told->differs)
                        told->status = store(told, first);
        }
        mfl_contract_free(first);
        free(text);
}

static void free_told(struct told *told)
{
        mfl_contract_free(told->contract);
        free(told);
}

static void done_told(struct mfl_work *work)
{
        struct told *told = MFL_CONTAINER_OF(work, struct told, work);
        mfl_session_worked(told->sessions, told->conn);
        if (told->status < 0 && !work->cancelled)
                mfl_loop_fatal(told->jobs->loop, told->status, &told->err);
        else if (told->status > 0)
                mfl_log(MFL_LOG_WARN, "%s: the contract of its input was not stored: %s", told->job,
                        told->err.text);
        else if (told->differs)
                mfl_log(MFL_LOG_WARN,
                        "%s: site %s scales its data differently: the model will want input that is scaled "
                        "already",
                        told->job, told->site);
        free_told(told);
}

void mfl_job_contract_take(
        struct mfl_session *session, struct mfl_server_job *job, const char *site, const char *text)
{
        struct mfl_contract *contract;
        struct mfl_error err;
        int r = mfl_contract_parse(text, site, &contract, &err);
        struct told *told = r ? NULL : mfl_calloc(1, sizeof *told);
        if (r > 0) {
                mfl_log(MFL_LOG_WARN, "%s: %s: ignored", job->id, err.text);
                return;
        }
        if (!told) {
                if (!r)
                        mfl_contract_free(contract);
                mfl_loop_no_memory(job->jobs->loop, sizeof *told, "a contract");
                return;
        }
        *told = (struct told){.work = {.run = run_told, .done = done_told},
                .jobs = job->jobs,
                .sessions = session->all,
                .conn = session->conn,
                .contract = contract};
        contract->n_sites = 0; /* the server's to say */
        mfl_strcpy(told->job, sizeof told->job, job->id);
        mfl_strcpy(told->site, sizeof told->site, site);
        if (!mfl_session_submit(session, &told->work))
                free_told(told);
}
