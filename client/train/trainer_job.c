/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that the trainer keeps ready: the parsed file, graph, partition and, per worker, networks and
 * scratch. */
#include "common/codec/grid.h"
#include "client/train/trainer_internal.h"
#include "client/train/trainer_poison.h"
#include "common/base/log.h"
#include "kernels/check.h"

static void free_lanes(struct mfl_trainer *trainer, struct trainer_slot *slot)
{
        mfl_trainer_team_free(trainer, slot->team);
        if (slot->train)
                trainer->ops->net_free(slot->train);
        for (uint32_t i = 0; slot->lanes && i < slot->n_lanes; i++)
                free(slot->lanes[i].order);
        free(slot->lanes);
        free(slot->groups);
        free(slot->weight);
        free(slot->after);
        free(slot->lr_scale);
        free(slot->index);
        free(slot->count);
}

static void free_slot(struct mfl_trainer *trainer, struct trainer_slot *slot)
{
        free_lanes(trainer, slot);
        if (slot->eval)
                trainer->ops->net_free(slot->eval);
}

void mfl_trainer_job_empty(struct mfl_trainer *trainer, struct trainer_job *job)
{
        for (uint32_t i = 0; job->slots && i < job->n_slots; i++) {
                free_slot(trainer, &job->slots[i]);
                job->slots[i] = (struct trainer_slot){0};
        }
        mfl_trainer_memory_release(&trainer->memory, job->bytes);
        mfl_trainer_memory_release(&trainer->device_memory, job->device_bytes);
        job->bytes = job->device_bytes = 0;
}

void mfl_trainer_job_free(struct mfl_trainer *trainer, struct trainer_job *job)
{
        if (!job)
                return;
        mfl_trainer_job_empty(trainer, job);
        mfl_communicator_close_of(&trainer->comm, job->id, false);
        mfl_trainer_kept_drop(trainer, job);
        mfl_trainer_poison_free(trainer, job);
        mfl_program_free(job->program);
        mfl_trainer_scale_free(trainer, job);
        mfl_trainer_memory_release(&trainer->memory, job->population_bytes);
        free(job->slots);
        free(job->test_index);
        mfl_partition_free(job->partition);
        mfl_graph_free(job->graph);
        mfl_job_free(job->spec);
        free(job->text);
        free(job);
}

/* The budget that networks are charged to. */
static struct trainer_memory *network_memory(struct mfl_trainer *trainer)
{
        return trainer->info.own_memory ? &trainer->device_memory : &trainer->memory;
}

/* Reserves memory for the current job; other jobs' networks make room, the least recently used first. */
static int reserve(struct mfl_trainer *trainer, struct trainer_job *job, bool device, uint64_t bytes,
        const char *what, struct mfl_error *err)
{
        struct trainer_memory *memory = device ? &trainer->device_memory : &trainer->memory;
        int r;
        while ((r = mfl_trainer_memory_reserve(memory, bytes, what, err)) == MFL_INVALID) {
                struct trainer_job **last = &trainer->jobs;
                while (*last && (*last)->next)
                        last = &(*last)->next;
                struct trainer_job *victim = *last;
                if (!victim || victim == job) {
                        trainer->no_room = true;
                        return r;
                }
                *last = NULL;
                mfl_trainer_kept_yield(trainer, victim);
                mfl_trainer_job_free(trainer, victim);
        }
        if (!r)
                *(device ? &job->device_bytes : &job->bytes) += bytes;
        return r;
}

/* Where each client's samples begin, the samples, and the counts that the server is told. A population that
 * the data can't have is refused before its memory is requested. */
static int reserve_population(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_dataset *dataset = job->data->dataset;
        uint64_t clients = MFL_MAX(job->spec->data.clients, 1u);
        uint64_t bytes = (2 * clients + 1 + dataset->train.n + dataset->test.n) * sizeof(uint32_t);
        int r = mfl_partition_check(job->spec, dataset->train.n, err);
        if (!r)
                r = reserve(trainer, job, false, bytes, "the clients of the population", err);
        if (r)
                return r;
        job->bytes -= bytes; /* it stays when networks make room */
        job->population_bytes += bytes;
        return 0;
}

static int make_partition(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        bool own = mfl_job_owns_data(job->spec);
        int r = own ? 0 : reserve_population(trainer, job, err);
        if (!r && !own)
                r = mfl_partition_dataset(job->spec, job->data->dataset, &job->partition, err);
        if (r)
                return r;
        for (uint32_t k = 0; !own && k < job->partition->n_clients; k++) {
                uint32_t n = job->partition->start[k + 1] - job->partition->start[k];
                job->samples_max = MFL_MAX(job->samples_max, n);
        }
        uint32_t n_test = job->data->dataset->test.n;
        job->test_index = mfl_malloc(n_test * sizeof(uint32_t));
        if (!job->test_index)
                return mfl_fail_memory(err, n_test * sizeof(uint32_t), "test samples");
        for (uint32_t i = 0; i < n_test; i++)
                job->test_index[i] = i;
        return 0;
}

/* Its memory stays as long as the job. */
static int make_program(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_dataset *data = mfl_job_owns_data(job->spec) ? NULL : job->data->dataset;
        uint64_t bytes = mfl_program_bytes(job->graph, data);
        int r = reserve(trainer, job, false, bytes, "the memory that a program shares", err);
        if (r)
                return r;
        job->bytes -= bytes;
        job->population_bytes += bytes;
        return mfl_trainer_program_new(trainer, job, err);
}

static int fill_job(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job *job, struct mfl_error *err)
{
        mfl_strcpy(job->id, sizeof(job->id), request->task->job);
        job->text = mfl_strdup(request->job_text);
        if (!job->text)
                return mfl_fail_memory(err, strlen(request->job_text), "a job file");
        int r = mfl_job_parse(job->text, strlen(job->text), job->id, &job->spec, err);
        if (r)
                return r;
        job->spec->by_layers = !request->task->n_frozen;
        job->spec->arithmetic = request->task->arithmetic;
        const char *backend = job->spec->training.backend;
        if (*backend && strcmp(backend, "auto") && strcmp(backend, trainer->ops->name))
                return mfl_fail(err, MFL_INVALID, "the job asks for backend %s, this daemon has %s", backend,
                        trainer->ops->name);
        if (!(r = mfl_filters_check(trainer->filters, job->spec, err)))
                r = mfl_trainer_find_data(trainer, job->spec, request->task, &job->data, err);
        if (!r)
                r = mfl_trainer_scale(trainer, job, err);
        if (r)
                return r;
        if (job->spec->client_state == MFL_CLIENT_STATE_DAEMON && !trainer->state_dir)
                return mfl_fail(err, MFL_INVALID,
                        "the job's sites keep their clients' states, and this daemon has no place for them: "
                        "set "
                        "state_dir "
                        "in its configuration, or write client_state: server in the job");
        bool has_program = mfl_job_has_program(job->spec);
        const struct mfl_dataset *dataset = job->data->dataset;
        r = has_program ? mfl_job_graph(job->spec, &dataset->shape, dataset->classes, &job->graph, err)
                        : mfl_check_job(job->spec, dataset, &job->graph, err);
        job->work = has_program ? &mfl_trainer_program : &mfl_trainer_networks;
        if (!r && has_program)
                r = make_program(trainer, job, err);
        if (r)
                return r;
        if (mfl_job_tally(job->spec, job->graph) == MFL_TALLY_TARGETS && !strcmp(trainer->ops->name, "cuda"))
                return mfl_fail(err, MFL_INVALID,
                        "evaluation.detailed of target values is not supported on the cuda backend yet: use "
                        "training.backend: cpu, or remove it");
        r = make_partition(trainer, job, err);
        if (!r)
                r = mfl_trainer_poison_new(trainer, job, err);
        if (!r && request->population && job->partition)
                r = mfl_trainer_tell_population(trainer, request, job, err);
        if (r)
                return r;
        uint32_t threads = MFL_MAX(1u, job->spec->training.threads);
        job->n_slots = has_program ? 1 : MFL_MAX(1u, trainer->workers / threads);
        job->slots = mfl_calloc(job->n_slots, sizeof(*job->slots));
        return job->slots ? 0 : mfl_fail_memory(err, job->n_slots * sizeof(*job->slots), "workers");
}

static int new_job(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err)
{
        struct trainer_job *job = mfl_calloc(1, sizeof(*job));
        if (!job)
                return mfl_fail_memory(err, sizeof(*job), "a job");
        int r = fill_job(trainer, request, job, err);
        if (r) {
                mfl_trainer_job_free(trainer, job);
                return r;
        }
        job->next = trainer->jobs;
        trainer->jobs = job;
        *ret_job = job;
        return 0;
}

static struct trainer_job *find_job(struct mfl_trainer *trainer, const char *id)
{
        for (struct trainer_job **at = &trainer->jobs; *at; at = &(*at)->next) {
                struct trainer_job *job = *at;
                if (strcmp(job->id, id))
                        continue;
                *at = job->next; /* to the front: most recently used first */
                job->next = trainer->jobs;
                trainer->jobs = job;
                return job;
        }
        return NULL;
}

void mfl_trainer_forget(struct mfl_trainer *trainer, const char *id)
{
        struct trainer_job *job = find_job(trainer, id);
        if (job)
                trainer->jobs = job->next;
        mfl_trainer_job_free(trainer, job);
        mfl_trainer_memory_trim(&trainer->memory);
        mfl_trainer_memory_trim(&trainer->device_memory);
}

void mfl_trainer_trim(struct mfl_trainer *trainer)
{
        for (struct trainer_job *job = trainer->jobs; job; job = job->next)
                mfl_trainer_job_empty(trainer, job);
        mfl_trainer_memory_trim(&trainer->memory);
        mfl_trainer_memory_trim(&trainer->device_memory);
}

int mfl_trainer_job_get(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err)
{
        struct trainer_job *job = find_job(trainer, request->task->job);
        /* A server that lost its state may reuse a number. */
        if (job &&
                (strcmp(job->text, request->job_text) || job->graph->n_frozen != request->task->n_frozen)) {
                mfl_trainer_forget(trainer, job->id);
                job = NULL;
        }
        int r = job ? 0 : new_job(trainer, request, &job, err);
        if (r)
                return r;
        if (request->task->n_params != job->graph->n)
                return mfl_fail(err, MFL_INVALID, "the server sends %llu params, the model has %llu here",
                        (unsigned long long)request->task->n_params, (unsigned long long)job->graph->n);
        if (request->task->n_frozen != job->graph->n_frozen)
                return mfl_fail(err, MFL_INVALID, "the server freezes %llu params, %llu are frozen here",
                        (unsigned long long)request->task->n_frozen,
                        (unsigned long long)job->graph->n_frozen);
        int n_method = mfl_method_get(job->spec)->n_state;
        if (request->task->n_method != (uint32_t)n_method)
                return mfl_fail(err, MFL_INVALID, "the server sends %u numbers of its strategy, not %d",
                        request->task->n_method, n_method);
        uint32_t n_grid = job->spec->compression.bits ? mfl_grid_tensors(job->graph) : 0;
        if (request->task->n_grid && request->task->n_grid != n_grid)
                return mfl_fail(err, MFL_INVALID, "the server sends a grid for %u tensors, not %u",
                        request->task->n_grid, n_grid);
        *ret_job = job;
        return 0;
}

/* For a slot whose number of lanes is chosen. */
static uint64_t scratch_bytes(const struct trainer_job *job, const struct trainer_slot *slot)
{
        uint64_t step_bytes = (uint64_t)slot->n_lanes * trainer_step_rows(job->spec) * sizeof(uint32_t);
        uint64_t lane = sizeof(*slot->lanes) + sizeof(*slot->groups) + job->samples_max * sizeof(uint32_t) +
                        slot->steps_max * (sizeof(uint32_t) + sizeof(float));
        return slot->n_lanes * lane + slot->steps_max * step_bytes;
}

/* A delta that is uploaded alone is made in its upload's buffer, so many tasks never need it. */
static uint64_t after_bytes(const struct trainer_job *job)
{
        uint64_t n = mfl_method_state_floats(job->spec, job->graph->n_moving);
        return job->sums || trainer_evaluates_own(job->spec) ? n * sizeof(float) : 0;
}

static int prepare_floats(struct mfl_trainer *trainer, struct trainer_job *job, bool wanted, const char *what,
        float **floats, struct mfl_error *err)
{
        uint64_t bytes = mfl_method_state_floats(job->spec, job->graph->n_moving) * sizeof **floats;
        if (!wanted || *floats)
                return 0;
        int r = reserve(trainer, job, false, bytes, what, err);
        if (!r && !(*floats = mfl_alloc_aligned(bytes)))
                r = mfl_fail_memory(err, bytes, what);
        return r;
}

/* What each worker's training network may take if all have one of the same size, and this one's scratch. */
static uint64_t room_of(struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t bytes)
{
        uint64_t made = 0, left = mfl_trainer_memory_left(network_memory(trainer)), scratch = 0;
        while (made + 1 < job->n_slots && job->slots[made].train)
                made++;
        if (!trainer->info.own_memory)
                scratch = (job->n_slots - made - 1) *
                          (scratch_bytes(job, &job->slots[made]) + after_bytes(job));
        left += made * bytes;
        return left > scratch ? (left - scratch) / job->n_slots : 0;
}

static int make_net(struct mfl_trainer *trainer, struct trainer_job *job,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        uint64_t bytes = trainer->ops->net_bytes(job->graph, options);
        int r = reserve(trainer, job, trainer->info.own_memory, bytes,
                options->training ? "a training network" : "an evaluation network", err);
        if (r == MFL_INVALID && options->training)
                mfl_trainer_advise(trainer, job, options, room_of(trainer, job, bytes), err);
        if (r)
                return r;
        struct mfl_error why = {{0}};
        r = trainer->ops->net_new(trainer->device, job->graph, options, ret_net, &why);
        /* If a backend lacks a feature, that is not the job's fault: name the backend. */
        return r > 0 ? mfl_fail(err, r, "backend %s: %.480s", trainer->ops->name, why.text)
               : r   ? mfl_fail(err, r, "%s", why.text)
                     : 0;
}

static struct mfl_net_options net_options(
        const struct mfl_trainer *trainer, const struct trainer_job *job, bool training)
{
        const struct mfl_job *spec = job->spec;
        struct mfl_net_options options = {
                .batch = (int)(training ? spec->training.batch : spec->evaluation.batch),
                .groups = 1,
                .threads = (int)MFL_MAX(1u, spec->training.threads),
                .training = training,
                .precision = (enum mfl_precision)spec->training.precision,
                .fast = spec->training.fast,
                .shared_start = trainer->ops->params_base && trainer_shares_start(spec),
                /* An evaluation before training reads the clients' samples, too, whichever of both are resident. */
                .streamed = training ? job->data->train_streamed
                                     : job->data->test_streamed || mfl_method_get(spec)->needs_loss ||
                                               trainer_evaluates_held(spec)};
        options.loss = mfl_loss_of_job(spec);
        enum mfl_tally tally = mfl_job_tally(spec, job->graph);
        options.tally = training || tally == MFL_TALLY_BACKDOOR ? MFL_TALLY_NONE : tally;
        if (training) {
                struct mfl_optimizer opt = mfl_optimizer_of_job(spec);
                options.moments = mfl_optimizer_moments(&opt);
                options.corrects = trainer_corrects(spec);
                options.holds = spec->personal.epochs > 0;
                options.accumulate = (int)spec->training.accumulate;
                if (spec->parallel.grain) { /* a step's rows are cut into grains, not batches */
                        options.batch = (int)spec->parallel.grain;
                        options.accumulate = 1;
                        options.worker = trainer->ops->grad != NULL;
                        options.shared_start &= !options.worker;
                        options.lent = options.worker && job->apart;
                }
                options.segments = spec->training.checkpointing;
                options.augment = (struct mfl_augment){
                        .crop = (int)spec->data.augment.crop, .flip = spec->data.augment.flip};
        }
        return options;
}

/* How many clients a worker's network can train at once: the job's `fuse`, or the backend's choice. */
static int find_lanes(struct mfl_trainer *trainer, struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t wanted, uint32_t *ret_lanes, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = trainer->ops;
        uint32_t fuse = job->spec->parallel.grain ? 1 : job->spec->training.fuse;
        int lanes = 1;
        if (fuse || !ops->fuse) {
                *ret_lanes = fuse ? MFL_MIN(fuse, wanted) : 1;
                return 0;
        }
        uint64_t left = mfl_trainer_memory_left(network_memory(trainer)) / job->n_slots;
        int r = ops->fuse(trainer->device, job->graph, options, (int)wanted, left, &lanes, err);
        if (!r)
                *ret_lanes = (uint32_t)lanes;
        else if (r == MFL_INVALID && ops->net_bytes(job->graph, options) > left)
                mfl_trainer_advise(trainer, job, options, left, err);
        return r;
}

/* Index tables of one call use at most this much of the host's memory. */
#define INDEX_BYTES_MAX (8u << 20)

static int allocate_lanes(struct trainer_job *job, struct trainer_slot *slot)
{
        slot->lanes = mfl_calloc(slot->n_lanes, sizeof(*slot->lanes));
        slot->groups = mfl_calloc(slot->n_lanes, sizeof(*slot->groups));
        slot->weight = mfl_calloc(2 * (size_t)slot->n_lanes, sizeof(*slot->weight));
        size_t n_steps = (size_t)slot->n_lanes * slot->steps_max;
        slot->index = mfl_malloc(n_steps * trainer_step_rows(job->spec) * sizeof(uint32_t));
        slot->count = mfl_malloc(n_steps * sizeof(uint32_t));
        if (mfl_job_has_schedule(job->spec) &&
                !(slot->lr_scale = mfl_malloc(n_steps * sizeof(*slot->lr_scale))))
                return -ENOMEM;
        if (!slot->lanes || !slot->groups || !slot->weight || !slot->index || !slot->count)
                return -ENOMEM;
        slot->n_bad = slot->weight + slot->n_lanes;
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                slot->lanes[i].order = mfl_malloc((size_t)job->samples_max * sizeof(uint32_t));
                if (!slot->lanes[i].order)
                        return -ENOMEM;
        }
        return 0;
}

static int prepare_lanes(struct mfl_trainer *trainer, struct trainer_job *job, struct trainer_slot *slot,
        struct mfl_error *err)
{
        uint64_t step_bytes = (uint64_t)slot->n_lanes * trainer_step_rows(job->spec) * sizeof(uint32_t);
        slot->steps_max = (uint32_t)MFL_MAX(1u, MFL_MIN(INDEX_BYTES_MAX / step_bytes, MFL_STEPS_MAX));
        slot->chunk_steps = 1;
        uint64_t bytes = scratch_bytes(job, slot);
        int r = reserve(trainer, job, false, bytes, "a worker's scratch", err);
        if (r)
                return r;
        r = allocate_lanes(job, slot);
        return r ? mfl_fail_memory(err, bytes, "a worker's scratch") : 0;
}

/* The rest of a slot whose client is trained by a team; the first network is there. */
static int prepare_team(struct mfl_trainer *trainer, struct trainer_job *job, struct trainer_slot *slot,
        const struct mfl_net_options *options, uint32_t width, struct mfl_error *err)
{
        uint64_t room = mfl_trainer_memory_left(&trainer->memory);
        uint32_t zero = mfl_trainer_team_zero(trainer, job, options, width, room);
        uint64_t bytes = mfl_trainer_team_bytes(trainer, job, options, width, zero);
        uint64_t nets = mfl_trainer_team_net_bytes(trainer, job, options, width);
        int r = trainer->info.own_memory ? reserve(trainer, job, true, nets, "networks of a worker", err) : 0;
        if (!r)
                r = reserve(trainer, job, false, bytes,
                        options->lent ? "a worker's params, gradients and optimizer"
                                      : "a worker's gradients and optimizer",
                        err);
        if (r == MFL_INVALID)
                mfl_trainer_team_advise(trainer, job, options, width, err);
        return r ? r
                 : mfl_trainer_team_new(
                           trainer, job, slot->train, options, width, zero, bytes, &slot->team, err);
}

static int prepare_eval(struct mfl_trainer *trainer, struct trainer_job *job, struct trainer_slot *slot,
        struct mfl_error *err)
{
        struct mfl_net_options options = net_options(trainer, job, false);
        return slot->eval ? 0 : make_net(trainer, job, &options, &slot->eval, err);
}

static int prepare_training(struct mfl_trainer *trainer, struct trainer_job *job, struct trainer_slot *slot,
        const struct trainer_clients *clients, uint32_t workers, struct mfl_error *err)
{
        struct mfl_net_options options = net_options(trainer, job, true);
        uint32_t wanted = (clients->n + workers - 1) / workers;
        int r = prepare_floats(trainer, job, job->sums, "a client's update", &slot->after, err);
        if (r || slot->train)
                return r;
        r = find_lanes(trainer, job, &options, wanted, &slot->n_fit, err);
        slot->n_lanes = r || job->wide ? slot->n_fit : mfl_trainer_lanes(job, clients, workers, slot->n_fit);
        if (!r)
                r = prepare_lanes(trainer, job, slot, err);
        options.groups = (int)slot->n_lanes;
        if (!r)
                r = make_net(trainer, job, &options, &slot->train, err);
        if (!r && slot == job->slots)
                mfl_trainer_log_network(trainer, job, &options, slot->train);
        if (!r && mfl_method_get(job->spec)->needs_loss)
                r = prepare_eval(trainer, job, slot, err);
        uint32_t width = mfl_trainer_team_width(trainer, job, workers);
        if (!r && width)
                r = prepare_team(trainer, job, slot, &options, width, err);
        slot->n_wanted = wanted;
        return r;
}

void mfl_trainer_job_advise(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        struct mfl_net_options options = net_options(trainer, job, true);
        uint32_t width = mfl_trainer_team_width(trainer, job, 1);
        if (width)
                mfl_trainer_team_advise(trainer, job, &options, width, err);
}

static int prepare_data(
        struct mfl_trainer *trainer, struct trainer_data *data, bool train, struct mfl_error *err)
{
        bool *streamed = train ? &data->train_streamed : &data->test_streamed;
        const struct mfl_split *split = train ? &data->dataset->train : &data->dataset->test;
        struct mfl_device_data **at = train ? &data->train : &data->test;
        if (*at)
                return 0;
        uint64_t bytes = trainer->ops->data_bytes ? trainer->ops->data_bytes(data->dataset, split) : 0;
        *streamed = bytes > mfl_trainer_memory_left(&trainer->device_memory) / 2;
        if (bytes && !*streamed) {
                int r = mfl_trainer_memory_reserve(&trainer->device_memory, bytes, "a data set", err);
                trainer->no_room = r != 0;
                if (r)
                        return r;
                data->device_bytes += bytes;
        }
        int r = trainer->ops->data_new(trainer->device, data->dataset, split, !*streamed, at, err);
        if (r && bytes && !*streamed) {
                mfl_trainer_memory_release(&trainer->device_memory, bytes);
                data->device_bytes -= bytes;
        }
        return r;
}

/* Teams of a task of few clients are wider than those of one of many; a broken one has no use. */
static bool misfits(const struct mfl_trainer *trainer, const struct trainer_job *job, uint32_t workers)
{
        uint32_t width = mfl_trainer_team_width(trainer, job, workers);
        for (uint32_t i = 0; width && i < job->n_slots; i++)
                if (!mfl_trainer_team_fits(job->slots[i].team, job, width))
                        return true;
        return false;
}

static int prepare_slots(struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind,
        uint32_t n, const struct trainer_clients *clients, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; !r && i < n; i++) {
                r = kind == MFL_TASK_TRAIN ? prepare_training(trainer, job, &job->slots[i], clients, n, err)
                                           : prepare_eval(trainer, job, &job->slots[i], err);
                bool own = kind == MFL_TASK_EVAL && trainer_evaluates_own(job->spec);
                if (!r)
                        r = prepare_floats(trainer, job, own, "a client's model", &job->slots[i].after, err);
        }
        if (r || kind != MFL_TASK_TRAIN)
                return r;
        uint32_t most = job->slots[0].n_lanes;
        for (uint32_t i = 1; i < n; i++)
                most = MFL_MIN(most, job->slots[i].n_lanes);
        uint32_t used = mfl_trainer_lanes(job, clients, n, most);
        for (uint32_t i = 0; i < n; i++)
                job->slots[i].n_used = job->spec->training.fuse ? job->slots[i].n_lanes : used;
        return 0;
}

static int prepare_networks(struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind,
        uint32_t n, const struct trainer_clients *clients, struct mfl_error *err)
{
        if (kind == MFL_TASK_TRAIN)
                mfl_trainer_team_learn(job);
        if (kind == MFL_TASK_TRAIN && (job->spec->training.fuse || trainer->ops->fuse) &&
                mfl_trainer_outgrown(job, clients, n))
                mfl_trainer_job_empty(trainer, job);
        if (kind == MFL_TASK_TRAIN && misfits(trainer, job, n))
                mfl_trainer_job_empty(trainer, job);
        trainer_turn(trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_READS);
        int r = prepare_data(
                trainer, job->data, kind == MFL_TASK_TRAIN || trainer_evaluates_held(job->spec), err);
        if (!r)
                r = mfl_trainer_poison_prepare(trainer, job, kind, err);
        trainer_turn(trainer, 1, MFL_ACTIVITY_READS, MFL_ACTIVITY_COMPUTES);
        bool others = job->bytes || job->device_bytes || job->kept;
        if (!r)
                r = prepare_slots(trainer, job, kind, n, clients, err);
        /* Networks for training and for evaluation may not fit side by side. */
        if (r == MFL_INVALID && trainer->no_room && others) {
                trainer->no_room = false;
                mfl_trainer_kept_yield(trainer, job);
                mfl_trainer_job_empty(trainer, job);
                r = prepare_slots(trainer, job, kind, n, clients, err);
        }
        return r;
}

const struct trainer_work mfl_trainer_networks = {
        .train = mfl_trainer_train_worker, .eval = mfl_trainer_eval_worker};

int mfl_trainer_job_prepare(struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind,
        uint32_t n, const struct trainer_clients *clients, struct mfl_error *err)
{
        trainer->no_room = false;
        bool after = kind == MFL_TASK_TRAIN && job->sums;
        int r = job->program
                        ? prepare_floats(trainer, job, after, "a client's update", &job->slots[0].after, err)
                        : prepare_networks(trainer, job, kind, n, clients, err);
        /* Half-made memory is not kept: the next try starts over. */
        if (r)
                mfl_trainer_forget(trainer, job->id);
        return r;
}
