/* SPDX-License-Identifier: Apache-2.0 */
/* A job in the shell: taken in, handed to the core, its state on disk, its end. What the core orders
 * meanwhile is with job_prepare.c, job_slot.c and job_round.c; each order that goes to a worker
 * (job_operation.c) ends in exactly one event, or in the end of the process when memory or the database are
 * broken.
 *
 *   prepare      graph, where to go on, memory, params     JOB_READY or JOB_PREPARE_FAILED
 *   slot_add     check and add an upload                   ADDED
 *   apply        the strategy                              APPLIED
 *   checkpoint   the file (disk worker)                    CHECKPOINTED; a full disk: ok = false
 *   commit       the database row (disk worker)            COMMITTED; likewise
 *   release      when nothing of it runs, its memory goes  none
 */
#include "common/log.h"
#include "server/job_internal.h"

struct mfl_server_job *mfl_server_job_find(struct mfl_server *server, const char *id)
{
        struct mfl_server_job *job = server->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        return job;
}

static void run_close(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        mfl_runtime_close(op->prepare.runtime);
        mfl_graph_free(op->prepare.graph);
}

void mfl_server_job_operation_done(struct mfl_server_job *job)
{
        job->operations--;
        if (!job->releasing || job->operations || job->server->stopping)
                return;
        job->releasing = false;
        job->in_core = false;
        if (!job->runtime)
                return;
        /* Giving back gigabytes takes time: the worker does it. */
        struct job_operation *op = job_operation_new(job, MFL_EV_TICK, run_close, job_operation_finish);
        if (!op)
                return;
        op->prepare.runtime = job->runtime;
        op->prepare.graph = job->graph;
        job->runtime = NULL;
        job->graph = NULL;
        free(job->slots);
        job->slots = NULL;
        job->n_slots = 0;
        mfl_server_job_cost_free(job);
        job_operation_start(op, &job->server->compute);
}

void mfl_server_job_release(struct mfl_server_job *job)
{
        for (uint32_t i = 0; i < job->n_slots; i++)
                mfl_server_job_slot_free(job, i);
        job->releasing = true;
        job->operations++;
        mfl_server_job_operation_done(job);
}

/* ---- taking a job in ---- */

static int take_row(struct mfl_server_job *job, const struct mfl_store_job *row, struct mfl_error *err)
{
        mfl_strcpy(job->id, sizeof job->id, row->id);
        mfl_strcpy(job->reason, sizeof job->reason, row->reason);
        job->state = row->state;
        mfl_strcpy(job->owner, sizeof job->owner, row->owner);
        job->created_unix_ms = row->created_ms;
        job->finished_unix_ms = row->finished_ms;
        job->committed = row->committed;
        job->n_params = row->n_params;
        job->n_frozen = row->n_frozen;
        job->data = row->data;
        job->stop_after = row->stop_after;
        mfl_strcpy(job->data_from, sizeof job->data_from, row->data_from);
        job->text = mfl_strdup(row->text ? row->text : "");
        if (!job->text)
                return mfl_fail_memory(err, strlen(row->text), "a job's text");
        int r = mfl_job_parse(job->text, strlen(job->text), row->id, &job->spec, err);
        struct mfl_graph *graph;
        if (r || !job->data.name[0]) /* not prepared so far */
                return r;
        job->spec->by_layers = !row->n_frozen; /* it goes on as it began, perhaps by an earlier release */
        r = mfl_job_graph(job->spec, &job->data.shape, (int)job->data.classes, &graph, err);
        if (r)
                return r < 0 ? r : 0; /* what does not fit any more is told when it is prepared */
        job->per_token = job_is_per_token(graph);
        mfl_graph_free(graph);
        return 0;
}

static int take_rounds(struct mfl_server_job *job, struct mfl_error *err)
{
        struct mfl_store *store = job->server->store;
        int r = mfl_store_round_get(store, job->id, MFL_STORE_NEWEST, false, &job->last, err);
        if (r == MFL_NOT_FOUND)
                return 0;
        job->has_last = !r;
        if (!r)
                r = mfl_store_round_get(store, job->id, MFL_STORE_EVALUATED, false, &job->evaluated, err);
        if (r == MFL_NOT_FOUND)
                return 0;
        job->has_evaluated = !r;
        if (!r) {
                job->observed.evaluated = true;
                job->observed.accuracy = job->evaluated.record.accuracy;
                job->observed.loss = job->evaluated.record.loss;
                r = mfl_store_round_get(store, job->id, MFL_STORE_BEST, false, &job->best, err);
        }
        job->has_best = !r && job->best.record.evaluated;
        return r == MFL_NOT_FOUND ? 0 : r;
}

int mfl_server_job_new(struct mfl_server *server, const struct mfl_store_job *row,
        struct mfl_server_job **ret_job, struct mfl_error *err)
{
        struct mfl_server_job *job = mfl_calloc(1, sizeof *job), **at = &server->jobs;
        if (!job)
                return mfl_fail_memory(err, sizeof *job, "a job");
        job->server = server;
        int r = take_row(job, row, err);
        if (!r)
                r = take_rounds(job, err);
        if (r) {
                mfl_job_free(job->spec);
                free(job->text);
                free(job);
                return r;
        }
        while (*at)
                at = &(*at)->next;
        *at = job;
        job->dirty = true;
        *ret_job = job;
        return 0;
}

int mfl_server_job_start(struct mfl_server_job *job, struct mfl_error *err)
{
        struct mfl_store_resume resume;
        int r = mfl_store_resume(job->server->store, job->id, &resume, err);
        if (r)
                return r;
        job->committed = resume.round;
        struct mfl_core_event event = {.kind = MFL_EV_JOB_ADD,
                .job_add = {.spec = job->spec,
                        .committed = resume.round,
                        .data = &job->data,
                        .data_from = job->data_from,
                        .stop_after = job->stop_after}};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        job->in_core = true;
        mfl_server_feed(job->server, &event);
        return 0;
}

void mfl_server_job_free(struct mfl_server_job *job)
{
        struct mfl_server_job **at = &job->server->jobs;
        while (*at != job)
                at = &(*at)->next;
        *at = job->next;
        mfl_graph_free(job->graph);
        mfl_job_free(job->spec);
        mfl_server_job_cost_free(job);
        free(job->slots);
        free(job->text);
        free(job);
}

static void run_state(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        op->status = mfl_store_job_set_state(
                op->job->server->store, op->job->id, op->state, op->event.reason, &op->err);
        if (!op->status && op->stop_after)
                op->status = mfl_store_job_stop_after(
                        op->job->server->store, op->job->id, op->stop_after, &op->err);
}

/* A disk that is full, say: memory knows the state, and it is written as soon as the disk takes it. */
static void done_state(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (!work->cancelled)
                mfl_observe_disk(job->server, MFL_DISK_STATE, op->status <= 0, op->err.text);
        if (op->status > 0) {
                if (!job->state_unwritten)
                        mfl_log_job(MFL_LOG_WARN, job->id, "%s: its state is not on disk, tried again: %s",
                                job->id, op->err.text);
                job->state_unwritten = true;
                op->status = 0;
        } else if (!op->status && op->state == job->state) {
                job->state_unwritten = false;
        }
        job_operation_end(op);
}

static void write_state(struct mfl_server_job *job)
{
        struct job_operation *op = job_operation_new(job, MFL_EV_TICK, run_state, done_state);
        if (!op)
                return;
        op->state = job->state;
        op->stop_after = job->stop_after;
        mfl_strcpy(op->event.reason, sizeof op->event.reason, job->reason);
        job_operation_start(op, &job->server->disk);
}

void mfl_server_job_retry_state(struct mfl_server_job *job)
{
        if (job->state_unwritten && !job->operations)
                write_state(job);
}

static const char *state_name(enum mfl_job_state state)
{
        static const char *const names[] = {"", "waiting", "running", "done", "failed", "stopped"};
        return names[state];
}

void mfl_server_job_set_state(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        enum mfl_job_state state = action->job_state.state;
        if (state != job->state || strcmp(job->reason, action->reason))
                mfl_log_job(state == MFL_JOB_FAILED ? MFL_LOG_WARN : MFL_LOG_INFO, job->id, "%s (%s): %s%s%s",
                        job->id, job->spec->name, state_name(state), action->reason[0] ? ": " : "",
                        action->reason);
        job->state = state;
        job->stop_after = action->job_state.stop_after;
        mfl_strcpy(job->reason, sizeof job->reason, action->reason);
        if (state >= MFL_JOB_DONE && !job->finished_unix_ms) {
                job->finished_unix_ms = mfl_unix_ms();
                job->server->observed.jobs_ended[state]++;
                mfl_session_job_over(job->server, job->id);
        }
        write_state(job);
}
