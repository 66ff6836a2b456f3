/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a job: graph, last committed round, memory, params; and stores what is known about its data. */
#include <stdio.h>
#include <stdlib.h>

#include "common/cohort/calendar.h"
#include "common/cohort/memory.h"
#include "common/partition/partition.h"
#include "common/method/method.h"
#include "common/base/log.h"
#include "kernels/backend.h"
#include "server/jobs/job_internal.h"
#include "server/strategy/metric.h"
#include "server/strategy/plugin.h"

#define CHEAP_SLOTS_BYTES ((uint64_t)4 << 20)
#define LARGE_SLOT_BYTES (64u << 20)
#define CHEAP_SLOTS_MAX 64

/* With a small model, slots cost next to nothing, and uploads are so short that daemons would spend most of
 * their time waiting for a slot. With a large model, a slot for sums (8 bytes per element) is as large as two
 * copies of the model, and uploads are few, one per daemon: one slot. Updates of single clients get two, so
 * that one is received while the other is added. */
static uint32_t slots_for(const struct mfl_server_job *job, uint64_t n)
{
        uint32_t configured = job->jobs->slots;
        uint64_t cheap = CHEAP_SLOTS_BYTES / (MFL_MAX(n, (uint64_t)1) * sizeof(int64_t));
        if (configured)
                return configured;
        if (n * sizeof(int64_t) > LARGE_SLOT_BYTES)
                return mfl_runtime_f32_only(job->spec) ? 2 : 1;
        return (uint32_t)MFL_MAX(2, MFL_MIN(cheap, (uint64_t)CHEAP_SLOTS_MAX));
}

/* A job waits for a plug-in that an earlier start of the server had, and says so. */
static int find_plugin(struct mfl_server_job *job, struct mfl_error *err)
{
        char text[1024];
        uint64_t seq;
        int r = mfl_plugins_resolve(job->jobs->plugins, job->spec, err);
        if (r)
                return r == MFL_NOT_FOUND ? MFL_STORE_AGAIN : r;
        for (uint32_t k = 0; k < job->spec->evaluation.n_metrics; k++) {
                mfl_metrics_describe(job->spec, k, text, sizeof text);
                mfl_store_log(job->jobs->store, job->id, text, &seq);
        }
        if (!job->spec->aggregation.plugin.ops)
                return 0;
        mfl_plugins_describe(job->spec, text, sizeof text);
        mfl_store_log(job->jobs->store, job->id, text, &seq);
        return 0;
}

/* Rejects what every daemon would refuse, or what would take the loop too long. */
static int check_population(struct mfl_server_job *job, uint32_t population, const struct mfl_data_info *data,
        struct mfl_error *err)
{
        if (mfl_simulation_is_on(&job->spec->simulation) && !job->jobs->allow_simulation)
                return mfl_fail(err, MFL_INVALID, "simulation: %s", MFL_SIMULATION_REFUSED);
        if (job->spec->secure.bits && !job->jobs->tls)
                return mfl_fail(err, MFL_INVALID, "secure_sum: " MFL_SECURE_NEEDS_TLS);
        int r = mfl_server_job_measure_store(job, err);
        if (!r)
                r = find_plugin(job, err);
        if (!r)
                r = mfl_job_check_cohort(job->spec, err);
        return r || !population || mfl_job_owns_data(job->spec)
                       ? r
                       : mfl_partition_check(job->spec, data->train_samples, err);
}

/* "simulation: noise by 2 of 10 servers: 3, 7". */
static int tell_which(const struct mfl_server_job *job, const char *attack, const char *what, const bool *bad,
        uint32_t n_bad, uint32_t n, struct mfl_error *err)
{
        char text[256];
        size_t at = 0;
        uint64_t seq;
        for (uint32_t k = 0; k < n && at + 20 < sizeof text; k++)
                if (bad[k])
                        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", at ? ", " : "", k);
        MFL_CLEANUP_FREE char *line = mfl_asprintf("simulation: %s by %u of %u %s: %s%s", attack, n_bad, n,
                what, text, at + 20 < sizeof text ? "" : ", ...");
        if (!line)
                return mfl_fail_memory(err, sizeof text, "a line of the log");
        mfl_store_log(job->jobs->store, job->id, line, &seq);
        return 0;
}

/* Who is bad belongs to what is known of a run. */
static int tell_bad(const struct mfl_server_job *job, struct mfl_error *err)
{
        const struct mfl_job *spec = job->spec;
        bool *bad, bad_server[MFL_REGIONS_MAX];
        int r = 0;
        if (spec->simulation.attack) {
                if (mfl_simulation_draw(spec, &bad))
                        return mfl_fail_memory(err, spec->data.clients, "a simulated attack");
                r = tell_which(job, mfl_attack_name(spec->simulation.attack), "clients", bad,
                        mfl_simulation_bad(spec), spec->data.clients, err);
                free(bad);
        }
        if (r || !spec->simulation.servers.attack)
                return r;
        uint32_t n_bad = mfl_simulation_servers(spec, bad_server);
        return tell_which(job, mfl_server_attack_name(spec->simulation.servers.attack), "servers", bad_server,
                n_bad, spec->edges.count, err);
}

static void tell_lost(const struct mfl_server_job *job, struct mfl_runtime *runtime)
{
        const struct mfl_states *states = mfl_runtime_states(runtime);
        if (states && mfl_states_lost(states))
                mfl_log_job(MFL_LOG_WARN, job->id,
                        "%s: the states of %u clients, of %u that had one, are missing or damaged: these "
                        "clients begin "
                        "anew",
                        job->id, mfl_states_lost(states), mfl_states_lost(states) + mfl_states_seen(states));
}

/* The most single updates of a round. How many sites there will be is not known: there is room for 4,096. */
static uint32_t cohort_of(const struct mfl_job *spec, uint32_t population)
{
        const uint32_t most = 4096, drawn = spec->selection.clients;
        return population ? mfl_job_cohort_size(spec, population) : drawn ? MFL_MIN(drawn, most) : most;
}

/* The checkpoints of an asynchronous job's older versions, as far as they are kept, and its initial params. */
static int list_versions(const struct mfl_server_job *job, struct mfl_store_resume *resume,
        struct mfl_runtime_options *options, struct mfl_runtime_version **ret_v, struct mfl_error *err)
{
        struct mfl_store *store = job->jobs->store;
        uint32_t n = MFL_MIN(mfl_job_versions(job->spec), resume->round);
        struct mfl_store_job row;
        if (job->spec->model.tensors && !resume->round && !resume->initial_path[0])
                return mfl_fail(err, MFL_INVALID,
                        "model.tensors: the job came without its start values: write model.initial, and "
                        "submit "
                        "it with mfl");
        if (!n)
                return 0;
        struct mfl_runtime_version *v = mfl_calloc(n, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, n * sizeof *v, "versions");
        *ret_v = v;
        options->versions = v;
        for (uint32_t i = 1; i <= n && i < resume->round; i++) {
                struct mfl_store_round round;
                int r = mfl_store_round_get(store, job->id, resume->round - i, true, &round, err);
                if (r == MFL_NOT_FOUND)
                        continue;
                if (r)
                        return r;
                struct mfl_runtime_version *to = &v[options->n_versions++];
                to->version = resume->round - i;
                memcpy(to->digest, round.record.digest, MFL_DIGEST_BYTES);
                mfl_store_path(store, job->id, round.file.name, to->path);
        }
        int r = mfl_store_job_get(store, job->id, &row, err);
        if (r)
                return r;
        if (row.has_initial)
                mfl_store_path(store, job->id, "initial.f32", resume->initial_path);
        mfl_store_job_deinit(&row);
        return 0;
}

/* What is recorded of an asynchronous job's versions in real time, after the newest one. */
static int list_arrivals(
        const struct mfl_server_job *job, uint32_t newest, struct job_operation *op, struct mfl_error *err)
{
        int r = mfl_job_is_live(job->spec) ? mfl_store_arrivals_get(job->jobs->store, job->id, newest,
                                                     &op->prepare.arrivals, &op->prepare.n_arrivals, err)
                                           : 0;
        for (uint32_t i = 0; !r && i < op->prepare.n_arrivals; i++)
                if (!mfl_calendar_arrival_valid(job->spec, &op->prepare.arrivals[i]))
                        r = mfl_fail(err, MFL_INVALID, "%s: what is recorded of version %u is impossible",
                                job->id, op->prepare.arrivals[i].version);
        return r;
}

static int list_past(struct job_operation *op, struct mfl_store_resume *resume,
        struct mfl_runtime_options *options, struct mfl_runtime_version **ret_v, struct mfl_error *err)
{
        int r = list_versions(op->job, resume, options, ret_v, err);
        return r ? r : list_arrivals(op->job, resume->round, op, err);
}

static void store_prepared(struct job_operation *op)
{
        struct mfl_server_job *job = op->job;
        int r = mfl_store_job_prepared(job->jobs->store, job->id, &op->prepare.data, op->prepare.data_from,
                op->prepare.graph->n, op->prepare.graph->n_frozen, &op->err);
        job->prepared_stored = !r;
        if (r > 0) /* the disk may be full: the first commit needs the row, and writes it again */
                mfl_log_job(MFL_LOG_WARN, job->id, "%s", op->err.text);
        else
                op->status = r;
}

static void run_prepare(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        struct mfl_store *store = job->jobs->store;
        struct mfl_data_info *data = &op->prepare.data;
        struct mfl_store_resume resume;
        struct mfl_store_states states = {0};
        MFL_CLEANUP_FREE struct mfl_runtime_version *versions = NULL;
        char paths[3][MFL_STORE_PATH_BYTES];
        struct mfl_runtime_options options = {
                .job = job->id,
                .spec = job->spec,
                .n_slots = job->jobs->slots,
                .cohort = cohort_of(job->spec, op->prepare.population),
                .n_memory = mfl_memory_is_needed(job->spec) ? (uint64_t)op->prepare.population + 1
                                                            : mfl_calendar_rows(job->spec),
                .states_path = mfl_store_path(store, job->id, MFL_STORE_STATES_FILE, paths[0]),
                .states = &states,
                .mark_path = mfl_store_path(store, job->id, MFL_STORE_PLUGIN_FILE, paths[1]),
                .changes_path = mfl_store_path(store, job->id, MFL_STORE_CHANGES_FILE, paths[2]),
                .population = op->prepare.population,
                .clients_bytes = mfl_core_clients_bytes(job->spec, op->prepare.population),
                .state_dir = mfl_store_dir(store),
                .budget = job->jobs->budget,
        };
        op->status = check_population(job, op->prepare.population, data, &op->err);
        if (!op->status)
                op->status = mfl_job_graph(
                        job->spec, &data->shape, (int)data->classes, &op->prepare.graph, &op->err);
        if (!op->status)
                options.n_slots = slots_for(job, op->prepare.graph->n_moving);
        if (!op->status)
                op->status = mfl_job_fixed(
                        job->spec, data->train_samples, op->prepare.population, &options.fixed, &op->err);
        if (!op->status)
                op->status = mfl_store_resume(store, job->id, &resume, &op->err);
        if (!op->status && resume.round != job->committed)
                op->status =
                        mfl_fail(&op->err, -EIO, "%s: the checkpoint of round %u was damaged since the start",
                                job->id, job->committed);
        if (!op->status)
                op->status = list_past(op, &resume, &options, &versions, &op->err);
        if (!op->status && resume.initial_path[0])
                op->status = mfl_store_initial_check(store, job->id, &op->err);
        if (!op->status && !(op->status = tell_bad(job, &op->err)))
                op->status = mfl_method_check_states(
                        job->spec, op->prepare.population, op->prepare.graph->n_moving, &op->err);
        if (!op->status && mfl_job_keeps_state(job->spec))
                op->status = mfl_store_state_list(store, job->id, &states, &op->err);
        if (op->status)
                return;
        options.graph = op->prepare.graph;
        options.checkpoint_path = resume.checkpoint_path[0] ? resume.checkpoint_path : NULL;
        options.frozen_path = resume.frozen_path[0] ? resume.frozen_path : NULL;
        options.initial_path = resume.initial_path[0] ? resume.initial_path : NULL;
        options.round = resume.round;
        op->prepare.virtual_us = resume.virtual_us;
        op->status = mfl_runtime_open(&options, &op->prepare.runtime, &op->err);
        mfl_store_states_deinit(&states);
        if (op->status)
                return;
        tell_lost(job, op->prepare.runtime);
        op->status = mfl_job_private_prepare(
                job, &options.fixed, op->prepare.graph->n_moving, &op->prepare.private, &op->err);
        if (!op->status)
                op->status = mfl_job_secure_prepare(job, &op->prepare.opened, &op->err);
        if (!op->status)
                store_prepared(op);
}

static void done_prepare(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (op->status || work->cancelled) {
                mfl_runtime_close(op->prepare.runtime);
                mfl_graph_free(op->prepare.graph);
                free(op->prepare.arrivals);
                op->event.kind = MFL_EV_JOB_PREPARE_FAILED;
                op->event.later = op->status == MFL_STORE_FULL || op->status == MFL_STORE_AGAIN;
                mfl_job_operation_end(op);
                return;
        }
        mfl_assert(!job->runtime && !job->graph && mfl_server_job_in_core(job));
        job->runtime = op->prepare.runtime;
        job->graph = op->prepare.graph;
        job->data = op->prepare.data;
        mfl_strcpy(job->data_from, sizeof job->data_from, op->prepare.data_from);
        job->n_params = job->graph->n;
        job->n_frozen = job->graph->n_frozen;
        job->per_token = job_is_per_token(job->graph);
        if (job->stage == MFL_STAGE_ADDED) /* the core may have released the job meanwhile */
                mfl_server_job_move(job, MFL_STAGE_READY);
        struct mfl_params *params = mfl_runtime_params(job->runtime, NULL);
        mfl_assert(params && mfl_runtime_slots(job->runtime) > 0);
        op->event.job_ready.n_params = job->n_params;
        op->event.job_ready.n_frozen = job->n_frozen;
        op->event.job_ready.statistics = job->graph->statistics.n > 0;
        if (job->n_frozen)
                memcpy(op->event.job_ready.frozen_digest, mfl_runtime_frozen(job->runtime)->digest,
                        MFL_DIGEST_BYTES);
        op->event.job_ready.n_slots = mfl_runtime_slots(job->runtime);
        bool classes = mfl_loss_answers(job->spec->training.loss) == MFL_ANSWERS_LABELS;
        int heads = 1 + (int)job->spec->training.auxiliary.n;
        bool known = !mfl_job_has_program(job->spec); /* only a program knows what it scores */
        op->event.job_ready.scored =
                known ? (uint32_t)(classes ? job->graph->positions / heads : job->graph->classes) : 0;
        op->event.job_ready.scored_all =
                known && (!classes || (!job->graph->vocabulary && job->graph->positions == heads &&
                                              !job->spec->training.has_ignore_index));
        op->event.job_ready.tally = mfl_job_tally(job->spec, job->graph);
        op->event.job_ready.answers = (uint32_t)job->graph->classes;
        memcpy(op->event.job_ready.digest, params->digest, MFL_DIGEST_BYTES);
        op->event.job_ready.memory = mfl_runtime_memory(job->runtime);
        op->event.bases = mfl_runtime_digests(job->runtime);
        op->event.job_ready.virtual_us = op->prepare.virtual_us;
        op->event.job_ready.select_seed = op->prepare.private.select_seed;
        op->event.job_ready.last_round = op->prepare.private.last_round;
        op->event.job_ready.opened = op->prepare.opened;
        op->event.job_ready.arrivals = op->prepare.arrivals;
        op->event.job_ready.n_arrivals = op->prepare.n_arrivals;
        memcpy(op->event.method, mfl_runtime_method(job->runtime), sizeof op->event.method);
        mfl_params_unref(params);
        struct mfl_arrival *arrivals = op->prepare.arrivals;
        mfl_job_operation_end(op);
        free(arrivals);
}

void mfl_server_job_prepare(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        mfl_assert(job->stage == MFL_STAGE_ADDED && !job->runtime);
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_JOB_READY, run_prepare, done_prepare);
        if (!op)
                return;
        op->prepare.data = action->prepare.data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, action->prepare.data_from);
        op->prepare.population = action->prepare.population;
        if (!mfl_server_job_measures(job, op))
                mfl_job_operation_start(op, &job->jobs->loop->compute);
}

static void run_data(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        int r = mfl_store_job_prepared(job->jobs->store, job->id, &op->prepare.data, op->prepare.data_from,
                job->n_params, job->n_frozen, &op->err);
        job->prepared_stored = !r; /* a full disk is asked again with the next commit */
        op->status = r < 0 ? r : 0;
}

void mfl_server_job_set_data(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        mfl_assert(*action->prepare.data.name);
        job->data = action->prepare.data;
        mfl_strcpy(job->data_from, sizeof job->data_from, action->prepare.data_from);
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_NONE, run_data, mfl_job_operation_finish);
        if (!op)
                return;
        op->prepare.data = job->data;
        mfl_strcpy(op->prepare.data_from, sizeof op->prepare.data_from, job->data_from);
        mfl_job_operation_start(op, &job->jobs->loop->disk);
}
