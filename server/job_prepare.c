/* SPDX-License-Identifier: Apache-2.0 */
/* A job is made ready: graph, where to go on, memory, params. And what is known of its data goes on disk. */
#include "common/log.h"
#include "server/job_internal.h"

#define CHEAP_SLOTS_BYTES ((uint64_t)4 << 20)
#define LARGE_SLOT_BYTES (64u << 20)
#define CHEAP_SLOTS_MAX 64

/* With a small model slots cost next to nothing and uploads are short, so that waiting for one is most of the
 * time. With a large one a slot for sums (8 bytes an element) is two copies of the model, and such uploads
 * are few, one a daemon: one slot. Two for single clients' updates, so that one is received while the other
 * is added. */
static uint32_t slots_for(const struct mfl_server_job *job, uint64_t n)
{
        uint32_t configured = job->server->config.slots;
        uint64_t cheap = CHEAP_SLOTS_BYTES / (MFL_MAX(n, (uint64_t)1) * sizeof(int64_t));
        if (configured)
                return configured;
        if (n * sizeof(int64_t) > LARGE_SLOT_BYTES)
                return mfl_runtime_f32_only(job->spec) ? 2 : 1;
        return (uint32_t)MFL_MAX(2, MFL_MIN(cheap, (uint64_t)CHEAP_SLOTS_MAX));
}

static void run_prepare(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        struct mfl_store *store = job->server->store;
        struct mfl_data_info *data = &op->prepare.data;
        struct mfl_store_resume resume;
        struct mfl_runtime_options options = {
                .job = job->id,
                .spec = job->spec,
                .n_slots = job->server->config.slots,
                .cohort = op->prepare.population ? mfl_job_cohort_size(job->spec, op->prepare.population)
                                                 : 4096,
                .state_dir = mfl_store_dir(store),
                .budget = &job->server->budget,
        };
        op->status = mfl_job_graph(job->spec, &data->shape, (int)data->classes, &op->prepare.graph, &op->err);
        if (!op->status)
                options.n_slots = slots_for(job, op->prepare.graph->n_moving);
        if (!op->status)
                op->status = mfl_core_fixed(
                        job->spec, data->train_samples, op->prepare.population, &options.fixed, &op->err);
        if (!op->status)
                op->status = mfl_store_resume(store, job->id, &resume, &op->err);
        if (!op->status && resume.round != job->committed)
                op->status =
                        mfl_fail(&op->err, -EIO, "%s: the checkpoint of round %u was damaged since the start",
                                job->id, job->committed);
        if (op->status)
                return;
        options.graph = op->prepare.graph;
        options.checkpoint_path = resume.checkpoint_path[0] ? resume.checkpoint_path : NULL;
        options.frozen_path = resume.frozen_path[0] ? resume.frozen_path : NULL;
        options.initial_path = resume.initial_path[0] ? resume.initial_path : NULL;
        options.round = resume.round;
        op->status = mfl_runtime_open(&options, &op->prepare.runtime, &op->err);
        if (op->status)
                return;
        int r = mfl_store_job_prepared(store, job->id, data, op->prepare.data_from, op->prepare.graph->n,
                op->prepare.graph->n_frozen, &op->err);
        job->prepared_stored = !r;
        if (r > 0) /* the disk is full, say: nothing needs the row before the first commit, which writes it
                      then */
                mfl_log_job(MFL_LOG_WARN, job->id, "%s", op->err.text);
        else
                op->status = r;
}

static void done_prepare(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (op->status || work->cancelled) {
                mfl_runtime_close(op->prepare.runtime);
                mfl_graph_free(op->prepare.graph);
                op->event.kind = MFL_EV_JOB_PREPARE_FAILED;
                op->event.later = op->status == MFL_STORE_FULL || op->status == MFL_STORE_AGAIN;
                job_operation_end(op);
                return;
        }
        struct mfl_error err;
        uint32_t n_slots = mfl_runtime_slots(op->prepare.runtime);
        job->runtime = op->prepare.runtime;
        job->graph = op->prepare.graph;
        job->data = op->prepare.data;
        mfl_strcpy(job->data_from, sizeof job->data_from, op->prepare.data_from);
        job->n_params = job->graph->n;
        job->n_frozen = job->graph->n_frozen;
        job->per_token = job_is_per_token(job->graph);
        job->slots = mfl_calloc(n_slots, sizeof *job->slots);
        if (!job->slots) {
                op->status = mfl_fail_memory(&err, n_slots * sizeof *job->slots, "slots");
                op->err = err;
                job_operation_end(op);
                return;
        }
        job->n_slots = n_slots;
        struct mfl_params *params = mfl_runtime_params(job->runtime, NULL);
        op->event.job_ready.n_params = job->n_params;
        op->event.job_ready.n_frozen = job->n_frozen;
        if (job->n_frozen)
                memcpy(op->event.job_ready.frozen_digest, mfl_runtime_frozen(job->runtime)->digest,
                        MFL_DIGEST_BYTES);
        op->event.job_ready.n_slots = n_slots;
        memcpy(op->event.job_ready.digest, params->digest, MFL_DIGEST_BYTES);
        mfl_params_unref(params);
        job_operation_end(op);
}

void mfl_server_job_prepare(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct job_operation *op = job_operation_new(job, MFL_EV_JOB_READY, run_prepare, done_prepare);
        if (!op)
                return;
        op->prepare.data = action->prepare.data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, action->prepare.data_from);
        op->prepare.population = action->prepare.population;
        job_operation_start(op, &job->server->compute);
}

static void run_data(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        int r = mfl_store_job_prepared(job->server->store, job->id, &op->prepare.data, op->prepare.data_from,
                job->n_params, job->n_frozen, &op->err);
        job->prepared_stored = !r; /* a disk that is full now is asked again with the next commit */
        op->status = r < 0 ? r : 0;
}

void mfl_server_job_set_data(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        job->data = action->prepare.data;
        mfl_strcpy(job->data_from, sizeof job->data_from, action->prepare.data_from);
        struct job_operation *op = job_operation_new(job, MFL_EV_TICK, run_data, job_operation_finish);
        if (!op)
                return;
        op->prepare.data = job->data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, job->data_from);
        job_operation_start(op, &job->server->disk);
}
