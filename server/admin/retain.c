/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes jobs that have ended, as keep_ended and keep_ended_max of server.yaml say.
 *
 * Happy path: pick the job that ended first -> the row, its files and a line of the audit go on the disk worker -> the object
 * goes -> the next one. One job at a time. A job that something still uses, or whose end the disk has not taken yet, waits. If
 * the disk is full or a row can't be deleted, the log says so once and the next second tries again.
 */
#include "common/base/log.h"
#include "server/access/book.h"
#include "server/admin/admin.h"
#include "server/transfer/params_down.h"

struct retain_op {
        struct mfl_work work;
        struct mfl_admin *admin;
        char name[MFL_NAME_BYTES];
        struct mfl_store_audit audit;
        int status;
        struct mfl_error err;
};

static void run_retain(struct mfl_work *work)
{
        struct retain_op *op = MFL_CONTAINER_OF(work, struct retain_op, work);
        struct mfl_error err;
        op->status = mfl_store_job_delete(op->admin->store, op->audit.object, &op->err);
        if (op->status)
                return;
        int r = mfl_book_write(op->admin->store, &op->audit, &err);
        if (r < 0) {
                op->status = r;
                op->err = err;
        }
}

static void done_retain(struct mfl_work *work)
{
        struct retain_op *op = MFL_CONTAINER_OF(work, struct retain_op, work);
        struct mfl_admin *admin = op->admin;
        struct mfl_server_job *job = mfl_server_job_find(admin->jobs, op->audit.object);
        admin->retaining = false;
        if (op->status < 0 && !work->cancelled)
                mfl_loop_fatal(admin->loop, op->status, &op->err);
        if (op->status > 0 && !work->cancelled && !admin->retain_failed)
                mfl_log(MFL_LOG_WARN, "%s is not deleted, and the server keeps trying: %s", op->audit.object,
                        op->err.text);
        if (!work->cancelled)
                admin->retain_failed = op->status > 0;
        if (!op->status && !work->cancelled) {
                mfl_log(MFL_LOG_INFO, "%s (%s): deleted: %s", op->audit.object, op->name, op->audit.text);
                if (job) {
                        mfl_transfer_stop_job(admin->sessions, job);
                        mfl_server_job_free(job);
                }
                mfl_admin_retain(admin);
        }
        free(op);
}

static void start(
        struct mfl_admin *admin, const struct mfl_server_job *job, enum mfl_retention_verdict verdict)
{
        struct retain_op *op = mfl_calloc(1, sizeof *op);
        if (!op) /* the next second tries again */
                return;
        op->admin = admin;
        op->work.run = run_retain;
        op->work.done = done_retain;
        mfl_strcpy(op->name, sizeof op->name, job->spec->name);
        mfl_strcpy(op->audit.who, sizeof op->audit.who, "server");
        mfl_strcpy(op->audit.action, sizeof op->audit.action, "delete");
        mfl_strcpy(op->audit.object, sizeof op->audit.object, job->id);
        mfl_strcpy(op->audit.result, sizeof op->audit.result, "done");
        mfl_retention_text(&admin->retention, verdict, op->audit.text, sizeof op->audit.text);
        admin->retaining = !mfl_worker_submit(&admin->loop->disk, &op->work);
        if (!admin->retaining)
                free(op);
}

void mfl_admin_retain(struct mfl_admin *admin)
{
        const struct mfl_server_job *first = NULL;
        size_t n = 0;
        if (admin->retaining || (!admin->retention.keep_ms && !admin->retention.keep_max))
                return;
        for (const struct mfl_server_job *job = admin->jobs->first; job; job = job->next) {
                if (!mfl_server_job_has_ended(job) || job->registered || job->unread)
                        continue;
                n++;
                if (!first || job->finished_unix_ms < first->finished_unix_ms)
                        first = job;
        }
        enum mfl_retention_verdict verdict =
                mfl_retention_check(&admin->retention, n, first ? first->finished_unix_ms : 0, mfl_unix_ms());
        /* One that is used is waited for: a later one is not deleted in its place. */
        if (verdict != MFL_RETENTION_KEEP && !mfl_server_job_in_core(first) && !first->operations &&
                !first->state_unwritten)
                start(admin, first, verdict);
}
