/* SPDX-License-Identifier: Apache-2.0 */
/* A job in the shell: its file and memory, and the operations on the workers that the core orders. Each of
 * them ends in exactly one event, or in the end of the process when memory or the database are broken.
 *
 *   prepare     graph, where to go on, memory, params                      -> JOB_READY or JOB_PREPARE_FAILED
 *   slot_add    check and add an upload                                    -> ADDED
 *   apply       the strategy                                               -> APPLIED
 *   checkpoint  the file (disk worker)                                     -> CHECKPOINTED; a full disk: ok =
 * false commit      the database row (disk worker)                             -> COMMITTED; likewise release
 * after the core let go of it and nothing of it runs, the memory goes
 */
#include "server/server.h"

#include <math.h>

#include "common/log.h"

#define CHEAP_SLOTS_BYTES ((uint64_t)4 << 20)
#define LARGE_SLOT_BYTES (64u << 20)
#define CHEAP_SLOTS_MAX 64

struct operation {
        struct mfl_work work;
        struct mfl_server_job *job;
        struct mfl_core_event event; /* what it ends in */
        int status;
        struct mfl_error err;
        union {
                struct {
                        struct mfl_data_info data;
                        char data_from[MFL_NAME_BYTES];
                        struct mfl_graph *graph;
                        struct mfl_runtime *runtime;
                        uint32_t population;
                } prepare;
                struct {
                        uint32_t slot;
                        uint64_t weight, item;
                } add;
                uint64_t weight; /* apply */
                uint32_t round;  /* checkpoint */
                struct {
                        struct mfl_store_round commit;
                        struct mfl_store_nodes nodes;
                };
                struct {
                        enum mfl_job_state state;
                        uint32_t stop_after;
                };
        };
        struct mfl_store_file file;
};

struct mfl_server_job *mfl_server_job_find(struct mfl_server *server, const char *id)
{
        struct mfl_server_job *job = server->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        return job;
}

static void fatal(struct mfl_server_job *job, int code, const struct mfl_error *err)
{
        mfl_server_fatal(job->server, code, err);
}

/* ---- operations ---- */

static struct operation *operation_new(struct mfl_server_job *job, enum mfl_core_event_kind ends_in,
        void (*run)(struct mfl_work *), void (*done)(struct mfl_work *))
{
        struct mfl_error err;
        struct operation *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                fatal(job, mfl_fail_memory(&err, sizeof *op, "an operation"), &err);
                return NULL;
        }
        op->job = job;
        op->event.kind = ends_in;
        mfl_strcpy(op->event.job, sizeof op->event.job, job->id);
        op->work.run = run;
        op->work.done = done;
        return op;
}

static void operation_start(struct operation *op, struct mfl_worker *worker)
{
        struct mfl_error err;
        op->job->operations++;
        if (mfl_worker_submit(worker, &op->work)) {
                mfl_fail(&err, -EAGAIN, "%s: the worker's queue is full", op->job->id);
                fatal(op->job, -EAGAIN, &err);
                op->job->operations--;
                free(op);
        }
}

/* The common end: tells the core, unless the worker was closed or something broke. */
static void operation_end(struct operation *op)
{
        struct mfl_server_job *job = op->job;
        if (!op->work.cancelled) {
                if (op->status < 0) {
                        fatal(job, op->status, &op->err);
                } else {
                        op->event.ok = op->status == 0;
                        if (op->status)
                                mfl_strcpy(op->event.reason, sizeof op->event.reason, op->err.text);
                        if (op->event.kind != MFL_EV_TICK)
                                mfl_server_feed(job->server, &op->event);
                }
        }
        free(op);
        mfl_server_job_operation_done(job);
}

static struct operation *operation_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct operation, work);
}

static void done_simple(struct mfl_work *work)
{
        operation_end(operation_of(work));
}

static void run_close(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
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
        struct operation *op = operation_new(job, MFL_EV_TICK, run_close, done_simple);
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
        operation_start(op, &job->server->compute);
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

static bool is_per_token(const struct mfl_graph *graph)
{
        return graph->vocabulary && graph->positions > 1;
}

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
        job->per_token = is_per_token(graph);
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

/* ---- what the core orders ---- */

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
        struct operation *op = operation_of(work);
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
        struct operation *op = operation_of(work);
        struct mfl_server_job *job = op->job;
        if (op->status || work->cancelled) {
                mfl_runtime_close(op->prepare.runtime);
                mfl_graph_free(op->prepare.graph);
                op->event.kind = MFL_EV_JOB_PREPARE_FAILED;
                op->event.later = op->status == MFL_STORE_FULL || op->status == MFL_STORE_AGAIN;
                operation_end(op);
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
        job->per_token = is_per_token(job->graph);
        job->slots = mfl_calloc(n_slots, sizeof *job->slots);
        if (!job->slots) {
                op->status = mfl_fail_memory(&err, n_slots * sizeof *job->slots, "slots");
                op->err = err;
                operation_end(op);
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
        operation_end(op);
}

void mfl_server_job_prepare(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct operation *op = operation_new(job, MFL_EV_JOB_READY, run_prepare, done_prepare);
        if (!op)
                return;
        op->prepare.data = action->prepare.data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, action->prepare.data_from);
        op->prepare.population = action->prepare.population;
        operation_start(op, &job->server->compute);
}

static void run_data(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
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
        struct operation *op = operation_new(job, MFL_EV_TICK, run_data, done_simple);
        if (!op)
                return;
        op->prepare.data = job->data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, job->data_from);
        operation_start(op, &job->server->disk);
}

static void run_state(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        op->status = mfl_store_job_set_state(
                op->job->server->store, op->job->id, op->state, op->event.reason, &op->err);
        if (!op->status && op->stop_after)
                op->status = mfl_store_job_stop_after(
                        op->job->server->store, op->job->id, op->stop_after, &op->err);
}

/* A disk that is full, say: memory knows the state, and it is written as soon as the disk takes it. */
static void done_state(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
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
        operation_end(op);
}

static void write_state(struct mfl_server_job *job)
{
        struct operation *op = operation_new(job, MFL_EV_TICK, run_state, done_state);
        if (!op)
                return;
        op->state = job->state;
        op->stop_after = job->stop_after;
        mfl_strcpy(op->event.reason, sizeof op->event.reason, job->reason);
        operation_start(op, &job->server->disk);
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

static void run_round_open(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        mfl_runtime_round_open(op->job->runtime, op->round);
}

void mfl_server_job_round_open(struct mfl_server_job *job, uint32_t round)
{
        mfl_server_job_cost_open(job, round);
        struct operation *op = operation_new(job, MFL_EV_TICK, run_round_open, done_simple);
        if (!op)
                return;
        op->round = round;
        operation_start(op, &job->server->compute);
}

void mfl_server_job_slot_open(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct mfl_slot_use *use = &job->slots[action->slot.slot];
        *use = (struct mfl_slot_use){.open = true,
                .conn = action->conn,
                .task = action->slot.task,
                .update = action->slot.update,
                .bytes = action->slot.bytes,
                .encoding = action->slot.encoding};
        int r = mfl_slot_open(job->runtime, action->slot.slot, use->bytes, use->encoding, &use->err);
        use->refused = r;
        if (r < 0)
                fatal(job, r, &use->err);
}

static void refuse_slot(struct mfl_server_job *job, uint32_t slot)
{
        struct mfl_core_event event = {.kind = MFL_EV_ADDED, .slot = slot, .ok = false};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_strcpy(event.reason, sizeof event.reason, job->slots[slot].err.text);
        mfl_server_feed(job->server, &event);
}

/* Every block of the job is held by downloads that end soon: asks again in a moment. */
static bool slot_is_open(struct mfl_server_job *job, uint32_t slot)
{
        struct mfl_slot_use *use = &job->slots[slot];
        if (use->refused == MFL_BUSY)
                use->refused = mfl_slot_open(job->runtime, slot, use->bytes, use->encoding, &use->err);
        return !use->refused;
}

void mfl_server_job_grant(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        uint32_t slot = action->slot.slot;
        struct mfl_slot_use *use = &job->slots[slot];
        struct mfl_session *session = mfl_session_find(job->server, action->conn);
        struct mfl_error err;
        use->conn = action->conn;
        use->task = action->slot.task;
        use->update = action->slot.update;
        if (!slot_is_open(job, slot)) {
                if (use->refused == MFL_BUSY)
                        use->grant_pending = true;
                else
                        refuse_slot(job, slot);
                return;
        }
        use->grant_pending = false;
        struct mfl_range ranges[MFL_RANGES_MAX];
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT,
                .update = {.task = use->task, .update = use->update, .ranges = ranges}};
        msg.update.n_ranges = mfl_slot_missing(job->runtime, slot, ranges);
        if (!msg.update.n_ranges) {
                struct mfl_core_event event = {.kind = MFL_EV_UPLOAD_COMPLETE, .slot = slot};
                mfl_strcpy(event.job, sizeof event.job, job->id);
                mfl_server_feed(job->server, &event);
                return;
        }
        if (!session)
                return;
        int r = mfl_stream_send_msg(&session->stream, &msg, NULL, &err);
        if (r < 0)
                fatal(job, r, &err);
}

void mfl_server_job_retry_grants(struct mfl_server_job *job)
{
        for (uint32_t i = 0; i < job->n_slots; i++) {
                struct mfl_slot_use *use = &job->slots[i];
                if (!use->open || !use->grant_pending)
                        continue;
                struct mfl_core_action action = {.kind = MFL_ACT_GRANT,
                        .conn = use->conn,
                        .slot = {.slot = i, .task = use->task, .update = use->update}};
                mfl_server_job_grant(job, &action);
        }
}

static void run_add(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        op->status = mfl_slot_add(op->job->runtime, op->add.slot, op->add.weight, op->add.item, &op->err);
}

void mfl_server_job_slot_add(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct operation *op = operation_new(job, MFL_EV_ADDED, run_add, done_simple);
        if (!op)
                return;
        job->slots[action->slot.slot].adding = true;
        op->event.slot = action->slot.slot;
        op->add.slot = action->slot.slot;
        op->add.weight = action->slot.weight;
        op->add.item = action->slot.item;
        operation_start(op, &job->server->compute);
}

void mfl_server_job_slot_free(struct mfl_server_job *job, uint32_t slot)
{
        if (job->slots[slot].open)
                mfl_slot_free(job->runtime, slot);
        job->slots[slot] = (struct mfl_slot_use){.open = false};
}

static void run_apply(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        op->status = mfl_runtime_apply(op->job->runtime, op->weight, op->event.digest, &op->err);
}

static void done_apply(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        /* A download still holds the block: it ends soon, try again. */
        if (op->status == MFL_BUSY && !work->cancelled && !op->job->server->stopping) {
                struct mfl_worker *worker = &op->job->server->compute;
                if (mfl_worker_submit(worker, work) == 0)
                        return;
        }
        operation_end(op);
}

void mfl_server_job_apply(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct operation *op = operation_new(job, MFL_EV_APPLIED, run_apply, done_apply);
        if (!op)
                return;
        op->weight = action->weight;
        operation_start(op, &job->server->compute);
}

static void run_checkpoint(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        struct mfl_checkpoint checkpoint;
        mfl_runtime_checkpoint(op->job->runtime, &checkpoint);
        op->status = mfl_store_checkpoint(
                op->job->server->store, op->job->id, op->round, &checkpoint, &op->file, &op->err);
}

static void done_checkpoint(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        if (!op->status) {
                op->job->file = op->file;
                op->job->checkpointed = op->round;
        }
        operation_end(op);
}

void mfl_server_job_checkpoint(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct operation *op = operation_new(job, MFL_EV_CHECKPOINTED, run_checkpoint, done_checkpoint);
        if (!op)
                return;
        op->round = action->round;
        operation_start(op, &job->server->disk);
}

static void run_commit(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        struct mfl_server_job *job = op->job;
        struct mfl_store *store = job->server->store;
        if (!job->prepared_stored)
                op->status = mfl_store_job_prepared(
                        store, job->id, &job->data, job->data_from, job->n_params, job->n_frozen, &op->err);
        if (op->status)
                return;
        job->prepared_stored = true;
        op->status = mfl_store_commit(
                store, job->id, &op->commit, &op->nodes, job->spec->checkpoints.keep, &op->err);
}

static bool is_better(const struct mfl_round_record *a, const struct mfl_round_record *b)
{
        if (isnan(a->accuracy) || isnan(b->accuracy)) /* the loss has none */
                return a->loss <= b->loss;
        return a->accuracy > b->accuracy || (a->accuracy == b->accuracy && a->loss <= b->loss);
}

static void done_commit(struct mfl_work *work)
{
        struct operation *op = operation_of(work);
        struct mfl_server_job *job = op->job;
        if (!op->status && !work->cancelled) {
                job->last = op->commit;
                job->has_last = true;
                job->committed = op->commit.record.round;
                if (op->commit.record.evaluated) {
                        job->evaluated = op->commit;
                        job->has_evaluated = true;
                }
                if (op->commit.record.evaluated &&
                        (!job->has_best || is_better(&op->commit.record, &job->best.record))) {
                        job->best = op->commit;
                        job->has_best = true;
                }
                job->dirty = true;
                mfl_watch_round(job, &op->commit);
        }
        mfl_store_nodes_deinit(&op->nodes);
        operation_end(op);
}

void mfl_server_job_commit(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct operation *op = operation_new(job, MFL_EV_COMMITTED, run_commit, done_commit);
        if (!op)
                return;
        mfl_assert(job->checkpointed == action->record.round);
        op->commit.record = action->record;
        op->commit.file = job->file;
        op->status = mfl_server_job_cost_take(job, &op->commit, &op->nodes, &op->err);
        if (op->status) {
                fatal(job, op->status, &op->err);
                free(op);
                return;
        }
        operation_start(op, &job->server->disk);
}
