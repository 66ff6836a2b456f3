/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and times of a job's steps: a team of one worker, and two ranks of a mesh. */
#include "cli/job/plan_measure.h"

#include <pthread.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/data/dataset.h"
#include "common/job/losses.h"
#include "kernels/check.h"
#include "kernels/mesh/mesh_shm.h"
#include "kernels/team/team.h"

#define STEPS 3u      /* at least; the first one is not counted */
#define STEPS_MAX 24u /* of small models */
#define STEPS_NS 500000000u
#define EXCHANGES 8u
#define WAITS 64u
#define EXCHANGE_MAX ((uint64_t)2 << 20) /* elements */
#define DEADLINE_MS 60000u

struct subject {
        const struct mfl_backend_ops *ops;
        const struct mfl_job *job;
        const struct mfl_graph *graph;
        struct mfl_net_options net;
        struct mfl_team_options team;
        struct mfl_optimizer opt;
};

static int open_subject(const char *backend, const struct mfl_job *job, const struct mfl_graph *graph,
        struct subject *s, struct mfl_error *err)
{
        *s = (struct subject){.job = job, .graph = graph, .opt = mfl_optimizer_of_job(job)};
        int r = mfl_backend_open(backend, &s->ops, err);
        if (r)
                return r;
        if (!s->ops->grad)
                return mfl_fail(err, MFL_INVALID, "the %s backend does not do parallel; use --backend cpu",
                        s->ops->name);
        s->net = (struct mfl_net_options){.batch = (int)job->parallel.grain,
                .groups = 1,
                .threads = (int)MFL_MAX(1u, job->training.threads),
                .training = true,
                .worker = true,
                .lent = true,
                .precision = (enum mfl_precision)job->training.precision,
                .fast = job->training.fast,
                .loss = mfl_loss_of_job(job),
                .moments = mfl_optimizer_moments(&s->opt),
                .accumulate = 1,
                .segments = job->training.checkpointing};
        s->team = (struct mfl_team_options){.grain = job->parallel.grain,
                .step_rows = job->training.batch * job->training.accumulate,
                .zero = 1,
                .floats = !job->parallel.exact,
                .moments = s->net.moments,
                .start = job->aggregation.strategy == MFL_STRATEGY_FEDPROX,
                .bucket_bytes = job->parallel.bucket,
                .deadline_ms = DEADLINE_MS,
                .snapshot = job->parallel.snapshot,
                .keeps = 1};
        return 0;
}

static int has_own_memory(const struct subject *s, bool *ret_own, struct mfl_error *err)
{
        struct mfl_device *device;
        struct mfl_device_info info;
        int r = s->ops->device_open(&device, err);
        if (r)
                return r;
        s->ops->device_info(device, &info);
        s->ops->device_close(device);
        *ret_own = info.own_memory;
        return 0;
}

int mfl_plan_sizes(const char *backend, const struct mfl_job *job, const struct mfl_graph *graph,
        struct mfl_parallel_facts *ret_facts, struct mfl_error *err)
{
        struct subject s;
        bool own_memory = false;
        int r = open_subject(backend, job, graph, &s, err);
        if (!r)
                r = has_own_memory(&s, &own_memory, err);
        if (r)
                return r;
        *ret_facts = (struct mfl_parallel_facts){.moving = graph->n_moving,
                .network = own_memory ? 0 : s.ops->net_bytes(graph, &s.net),
                .own_memory = own_memory,
                .link = mfl_mesh_shm_bytes(0),
                .overlap = job->parallel.overlap};
        mfl_team_shape(s.ops, graph, &s.net, &s.team, &ret_facts->shape);
        ret_facts->cores = MFL_MAX(1u, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) / (uint32_t)s.net.threads);
        uint64_t bucket = MFL_MAX(ret_facts->shape.bucket, 1);
        ret_facts->n_buckets = (uint32_t)MFL_MIN(ret_facts->shape.n_tensors, ret_facts->shape.n / bucket + 1);
        return 0;
}

/* ---- a worker's steps ---- */

/* Class labels, of each position where there are several, or target values from 0 to 1, which any loss takes. */
static int random_answers(const struct subject *s, uint32_t n, struct mfl_rng *rng, struct mfl_dataset *set,
        struct mfl_error *err)
{
        const struct mfl_graph *graph = s->graph;
        size_t each = (size_t)MFL_MAX(1, graph->positions), count = n * each;
        if (mfl_loss_answers(s->net.loss.kind) == MFL_ANSWERS_TARGETS) {
                count *= (size_t)graph->classes;
                set->n_targets = graph->classes;
                set->classes = 0;
                set->train.targets = mfl_malloc(count * sizeof *set->train.targets);
                for (size_t i = 0; set->train.targets && i < count; i++)
                        set->train.targets[i] = (float)mfl_rng_below(rng, 1000) / 1000.0f;
                return set->train.targets ? 0 : mfl_fail_memory(err, count * sizeof(float), "targets");
        }
        set->labels_per_sample = each > 1 ? (int)each : 0;
        set->train.labels = mfl_malloc(count * sizeof *set->train.labels);
        for (size_t i = 0; set->train.labels && i < count; i++)
                set->train.labels[i] = (int32_t)mfl_rng_below(rng, (uint32_t)graph->classes);
        return set->train.labels ? 0 : mfl_fail_memory(err, count * sizeof(int32_t), "labels");
}

static int random_samples(const struct subject *s, uint32_t n, struct mfl_dataset *set, struct mfl_error *err)
{
        const struct mfl_graph *graph = s->graph;
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        size_t count = n * (size_t)mfl_shape_count(&graph->input);
        *set = (struct mfl_dataset){
                .shape = graph->input, .classes = graph->classes, .vocabulary = graph->vocabulary};
        int32_t *tokens = mfl_malloc(count * sizeof *tokens);
        set->train =
                (struct mfl_split){.n = n, .dtype = graph->vocabulary ? MFL_I32 : MFL_U8, .samples = tokens};
        if (!tokens)
                return mfl_fail_memory(err, count * sizeof *tokens, "samples");
        for (size_t i = 0; i < count && graph->vocabulary; i++)
                tokens[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)graph->vocabulary);
        for (size_t i = 0; i < count && !graph->vocabulary; i++)
                ((uint8_t *)tokens)[i] = (uint8_t)mfl_rng_u32(&rng);
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                set->scale[c] = 1.0f / 255.0f;
        return random_answers(s, n, &rng, set, err);
}

struct worker {
        struct mfl_device *device;
        struct mfl_device_data *data;
        struct mfl_net *net;
        float *params; /* of the network, then those of the graph */
        struct mfl_mesh *mesh;
        struct mfl_team *team;
        struct mfl_dataset set;
        uint32_t *index;
};

/* Of the worker's own, or in that memory, where they are already. */
static int make_params(const struct subject *s, float *shared, struct worker *w, struct mfl_error *err)
{
        uint64_t wide = s->ops->grad->elements(s->graph, &s->net);
        if (shared) {
                s->ops->grad->lend(w->net, shared);
                return mfl_backend_set(s->ops, w->net, s->graph, 0, shared + wide, err);
        }
        w->params = mfl_alloc_aligned((wide + s->graph->n) * sizeof(float));
        if (!w->params)
                return mfl_fail_memory(err, (wide + s->graph->n) * sizeof(float), "params");
        mfl_graph_init_params(s->graph, 1, w->params + wide);
        s->ops->grad->lend(w->net, w->params);
        return mfl_backend_set(s->ops, w->net, s->graph, 0, w->params + wide, err);
}

/* The mesh is the worker's from here on. */
static int worker_new(const struct subject *s, float *shared, struct mfl_mesh *mesh, struct worker *w,
        struct mfl_error *err)
{
        uint32_t rows = s->team.step_rows;
        w->mesh = mesh;
        int r = s->ops->device_open(&w->device, err);
        if (!r)
                r = random_samples(s, rows, &w->set, err);
        if (!r)
                r = s->ops->data_new(w->device, &w->set, &w->set.train, true, &w->data, err);
        if (!r)
                r = s->ops->net_new(w->device, s->graph, &s->net, &w->net, err);
        if (!r)
                r = make_params(s, shared, w, err);
        if (r)
                return r;
        w->index = mfl_malloc(rows * sizeof *w->index);
        if (!w->index)
                return mfl_fail_memory(err, rows * sizeof *w->index, "samples");
        for (uint32_t i = 0; i < rows; i++)
                w->index[i] = i;
        return mfl_team_new(s->ops, w->net, &s->net.loss, w->mesh, &s->team, &w->team, err);
}

static void worker_free(const struct subject *s, struct worker *w)
{
        mfl_team_free(w->team);
        mfl_mesh_close(w->mesh);
        if (w->net)
                s->ops->net_free(w->net);
        if (w->data)
                s->ops->data_free(w->data);
        if (w->device)
                s->ops->device_close(w->device);
        free(w->params);
        free(w->index);
        free(w->set.train.samples);
        free(w->set.train.labels);
        free(w->set.train.targets);
}

/* The first step, which also makes what the backend keeps, does not count. */
struct timed {
        double grain_s, apply_s; /* the fastest: other load only adds */
        double step_s[STEPS_MAX];
        uint32_t n_steps;
};

static double seconds_since(uint64_t start_ns)
{
        return (double)(mfl_now_ns() - start_ns) * 1e-9;
}

static int time_steps(const struct subject *s, struct worker *w, uint32_t n_steps, struct timed *timed,
        struct mfl_error *err)
{
        uint32_t all = mfl_job_grains(s->job), n = w->mesh->n_ranks, rank = w->mesh->rank;
        uint64_t each = mfl_mesh_slice(all, 1, n, rank + 1) - mfl_mesh_slice(all, 1, n, rank);
        int r = 0;
        timed->n_steps = 0;
        for (uint32_t t = 0; !r && t < n_steps; t++) {
                uint64_t start_ns = mfl_now_ns();
                struct mfl_team_times before = *mfl_team_times(w->team);
                const struct mfl_team_times *now = mfl_team_times(w->team);
                struct mfl_group_steps steps = {
                        .index = w->index, .count = &s->team.step_rows, .step_first = t};
                r = mfl_team_step(w->team, &w->set, &w->set.train, w->data, &steps, 1, &s->opt, NULL, err);
                double grains = (1.0 + (now->repeats - before.repeats)) * (double)each;
                double grain_s = (double)(now->compute - before.compute) * 1e-9 / grains;
                double apply_s = (double)(now->apply - before.apply) * 1e-9;
                timed->grain_s = t > 1 ? MFL_MIN(timed->grain_s, grain_s) : grain_s;
                timed->apply_s = t > 1 ? MFL_MIN(timed->apply_s, apply_s) : apply_s;
                if (t)
                        timed->step_s[timed->n_steps++] = seconds_since(start_ns);
        }
        return r;
}

/* One worker alone. *ret_steps: as many as are worth the time. */
static int time_alone(
        const struct subject *s, struct mfl_parallel_facts *facts, uint32_t *ret_steps, struct mfl_error *err)
{
        struct worker w = {0};
        struct timed timed = {0};
        struct mfl_mesh *mesh;
        int r = mfl_mesh_threads_new(1, &mesh, err);
        if (!r)
                r = worker_new(s, NULL, mesh, &w, err);
        if (!r)
                r = time_steps(s, &w, STEPS, &timed, err);
        double step_s = facts->shape.grains * timed.grain_s + timed.apply_s;
        *ret_steps = (uint32_t)MFL_MAX(STEPS, MFL_MIN(STEPS_MAX, STEPS_NS * 1e-9 / MFL_MAX(step_s, 1e-6)));
        if (!r)
                r = time_steps(s, &w, *ret_steps, &timed, err);
        facts->grain_s = timed.grain_s;
        facts->apply_s = timed.apply_s;
        worker_free(s, &w);
        return r;
}

struct side {
        const struct subject *s;
        struct worker w;
        struct mfl_mesh *mesh;
        uint32_t rank, n_steps;
        struct timed timed;
        struct mfl_error err;
        int rc;
};

static void *open_side(void *arg)
{
        struct side *side = arg;
        const struct mfl_mesh_shm_options options = {.team = (uint64_t)getpid() << 32 | 2,
                .rank = side->rank,
                .n_ranks = 2,
                .deadline_ms = DEADLINE_MS};
        side->rc = mfl_mesh_shm_open(&options, &side->mesh, &side->err);
        return NULL;
}

static void *take_side(void *arg)
{
        struct side *side = arg;
        side->rc = time_steps(side->s, &side->w, side->n_steps, &side->timed, &side->err);
        if (side->rc)
                side->mesh->ops->abort(side->mesh, side->err.text);
        return NULL;
}

/* Both sides at once. */
static int run_sides(struct side side[2], void *(*run)(void *), struct mfl_error *err)
{
        pthread_t other;
        int r = pthread_create(&other, NULL, run, &side[1]);
        if (r)
                return mfl_fail(err, -r, "cannot start a thread: %s", strerror(r));
        run(&side[0]);
        pthread_join(other, NULL);
        for (int i = 0; i < 2; i++)
                if (side[i].rc)
                        return mfl_fail(err, side[i].rc, "%s", side[i].err.text);
        return 0;
}

static int compare_seconds(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* What steps of two take besides what is known. The median, since that is in every step. */
static void learn_sync(struct timed *timed, uint32_t zero, struct mfl_parallel_facts *facts)
{
        struct mfl_parallel_plan plan;
        mfl_parallel_estimate(facts, 2, zero, &plan);
        qsort(timed->step_s, timed->n_steps, sizeof *timed->step_s, compare_seconds);
        facts->sync_s[zero] = timed->step_s[(timed->n_steps - 1) / 2] - plan.seconds;
}

/* Two members of a team in that stage, as daemons of a node. */
static int time_stage(struct subject pair, uint32_t zero, uint32_t n_steps, struct mfl_parallel_facts *facts,
        struct mfl_error *err)
{
        struct side side[2];
        pair.team.zero = zero;
        pair.team.shared = zero == 3;
        for (uint32_t i = 0; i < 2; i++)
                side[i] = (struct side){.s = &pair, .rank = i, .n_steps = n_steps};
        int r = run_sides(side, open_side, err);
        for (int i = 0; !r && i < 2; i++)
                r = worker_new(&pair, pair.team.shared && i ? side[0].w.params : NULL, side[i].mesh,
                        &side[i].w, err);
        if (!r)
                r = run_sides(side, take_side, err);
        if (!r && zero == 1) {
                facts->beside_s = MFL_MAX(facts->grain_s, side[0].timed.grain_s);
                facts->apply_beside_s = MFL_MAX(facts->apply_s, 2 * side[0].timed.apply_s);
        }
        if (!r)
                learn_sync(&side[0].timed, zero, facts);
        for (int i = 1; i >= 0; i--) {
                side[i].w.mesh = side[i].mesh;
                worker_free(&pair, &side[i].w);
        }
        return r;
}

/* They share caches, the memory's bandwidth and the processor's clock. */
static int time_beside(
        const struct subject *s, uint32_t n_steps, struct mfl_parallel_facts *facts, struct mfl_error *err)
{
        uint32_t last = s->team.floats ? 1 : MFL_TEAM_ZERO_MAX;
        struct subject pair = *s;
        int r = 0;
        pair.team.overlap = facts->overlap;
        pair.team.snapshot = 0;
        for (uint32_t zero = 1; !r && zero <= last; zero++)
                r = time_stage(pair, zero, n_steps, facts, err);
        facts->sync_s[0] = facts->sync_s[1];
        return r;
}

/* ---- two ranks ---- */

struct rank {
        struct mfl_mesh_shm_options options;
        uint64_t n;
        double exchange_s, wait_s;
        struct mfl_error err;
        int rc;
};

static void *exchange(void *arg)
{
        struct rank *rank = arg;
        struct mfl_mesh *mesh = NULL;
        int64_t *sums = mfl_alloc_aligned(rank->n * sizeof *sums);
        rank->rc = sums ? mfl_mesh_shm_open(&rank->options, &mesh, &rank->err)
                        : mfl_fail_memory(&rank->err, rank->n * sizeof *sums, "sums");
        if (sums)
                memset(sums, 0, rank->n * sizeof *sums);
        for (uint32_t i = 0; !rank->rc && i < EXCHANGES + WAITS; i++) {
                bool waits = i >= EXCHANGES;
                const struct mfl_mesh_op op = {.kind = MFL_MESH_ALL_REDUCE,
                        .type = MFL_MESH_I64,
                        .sequence = i,
                        .in = sums,
                        .out = sums,
                        .n = waits ? 1 : rank->n};
                uint64_t start_ns = mfl_now_ns();
                rank->rc = mfl_mesh_run(mesh, &op, DEADLINE_MS, NULL, &rank->err);
                double *best = waits ? &rank->wait_s : &rank->exchange_s, s = seconds_since(start_ns);
                *best = i && i != EXCHANGES ? MFL_MIN(*best, s) : s;
        }
        mfl_mesh_close(mesh);
        free(sums);
        return NULL;
}

static int time_exchange(struct mfl_parallel_facts *facts, struct mfl_error *err)
{
        struct rank ranks[2];
        pthread_t other;
        for (uint32_t i = 0; i < 2; i++)
                ranks[i] = (struct rank){.n = MFL_MAX(1024, MFL_MIN(facts->shape.n, EXCHANGE_MAX)),
                        .options = {.team = (uint64_t)getpid() << 32 | 1,
                                .rank = i,
                                .n_ranks = 2,
                                .deadline_ms = DEADLINE_MS}};
        int r = pthread_create(&other, NULL, exchange, &ranks[1]);
        if (r)
                return mfl_fail(err, -r, "cannot start a thread: %s", strerror(r));
        exchange(&ranks[0]);
        pthread_join(other, NULL);
        for (uint32_t i = 0; i < 2; i++)
                if (ranks[i].rc)
                        return mfl_fail(err, ranks[i].rc, "%s", ranks[i].err.text);
        /* Of 16 (W - 1) / W bytes per element, by two ranks. */
        facts->bytes_per_s = 8.0 * (double)ranks[0].n / ranks[0].exchange_s;
        facts->wait_s = ranks[0].wait_s;
        return 0;
}

int mfl_plan_measure(const char *backend, const struct mfl_job *job, const struct mfl_graph *graph,
        struct mfl_parallel_facts *facts, struct mfl_error *err)
{
        struct subject s;
        uint32_t n_steps = STEPS;
        int r = open_subject(backend, job, graph, &s, err);
        if (!r)
                r = time_alone(&s, facts, &n_steps, err);
        if (!r)
                r = time_exchange(facts, err);
        /* Members do not share a card. */
        if (!r && facts->shape.grains > 1 && facts->cores > 1 && !facts->own_memory)
                r = time_beside(&s, n_steps, facts, err);
        return r;
}
