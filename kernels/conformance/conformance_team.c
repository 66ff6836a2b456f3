/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: each training case by 1 to 8 workers, with params of their own and with one network's, in every stage of ZeRO. All have
 * the same bits, and are near what one network gives with the grains as batches that it accumulates; so are sums of floats. */
#include <math.h>
#include <pthread.h>

#include "kernels/conformance/conformance_lost.h"

static void *work(void *arg)
{
        struct worker *w = arg;
        struct team_run *run = w->run;
        w->rc = mfl_team_step(w->team, &run->t->set, &run->t->set.train, run->data, &w->steps, CONF_STEPS,
                &run->kase->opt, NULL, &w->err);
        if (w->rc)
                w->mesh->ops->abort(w->mesh, "a rank has failed");
        return NULL;
}

/* Lent memory ends as the flat vector. */
static void check_flat(struct team_run *run, struct mfl_net *net, uint32_t n)
{
        const struct mfl_graph *graph = run->t->graph;
        struct mfl_error err;
        mfl_conf_must(run->b->ops->grad->flatten(net, &err), &err);
        bool same = !memcmp(run->lent[run->how.shared ? 0 : run->n_lent - 1], run->params + graph->n_frozen,
                (size_t)graph->n_moving * sizeof(float));
        mfl_conf_report(same, "%s: team %s: the params of %u workers become the flat vector", run->b->label,
                run->kase->name, n);
}

/* The params after the steps, by `n` workers. */
static void train_by(struct team_run *run, uint32_t n)
{
        bool shared = run->how.shared;
        struct mfl_mesh *ranks[RANKS_MAX];
        struct worker workers[RANKS_MAX] = {0};
        pthread_t threads[RANKS_MAX];
        struct mfl_error err;
        mfl_conf_must(mfl_mesh_threads_new(n, ranks, &err), &err);
        for (uint32_t r = 0; r < n; r++)
                mfl_conf_worker_init(
                        run, ranks[r], shared && r && !run->n_lent ? workers[0].net : NULL, &workers[r]);
        for (uint32_t r = 0; r < n; r++)
                mfl_assert(!pthread_create(&threads[r], NULL, work, &workers[r]));
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < n; r++)
                mfl_conf_must(workers[r].rc, &workers[r].err);
        uint32_t from = shared ? 0 : n - 1; /* a sibling's params are read through the first network */
        mfl_conf_must(run->b->ops->params_get(workers[from].net, 0, 0, run->params, &err), &err);
        run->score = workers[n - 1].steps.score;
        if (run->n_lent)
                check_flat(run, workers[from].net, n);
        for (uint32_t r = n; r-- > 0;)
                mfl_conf_worker_deinit(&workers[r]);
}

/* By one network, with the grains as batches. */
static void train_plain(const struct team_run *run, float *params)
{
        struct mfl_error err;
        struct mfl_net *net;
        struct mfl_group_steps steps;
        struct mfl_net_options options = run->options;
        options.accumulate = ROWS / GRAIN;
        mfl_conf_team_steps(run, &steps);
        mfl_conf_must(run->b->ops->net_new(run->b->device, run->t->graph, &options, &net, &err), &err);
        mfl_conf_must(mfl_backend_set(run->b->ops, net, run->t->graph, 0, run->t->first, &err), &err);
        mfl_conf_must(run->b->ops->step(net, run->data, &steps, CONF_STEPS, &run->kase->opt, &err), &err);
        mfl_conf_must(run->b->ops->params_get(net, 0, 0, params, &err), &err);
        run->b->ops->net_free(net);
}

struct placement {
        uint32_t n;
        bool shared;
        uint32_t zero;
        bool overlap;
        uint64_t bucket_bytes; /* 1: a bucket for each tensor */
        uint32_t n_lent;
};

static bool has_own_memory(const struct conf_backend *b)
{
        struct mfl_device_info info;
        b->ops->device_info(b->device, &info);
        return info.own_memory;
}

/* The first ones also on devices with their own memory: what a team does with sums, shards and losses is the host's. */
#define ON_DEVICES 4u
static const struct placement placements[] = {{2, true, 1, true, 1}, {2, false, 2, true, 1},
        {3, false, 3, true, 1, 2}, {3, false, 1, true, 0}, {2, false, 0, false, 1}, {2, true, 2, false, 0},
        {3, false, 2, false, 1}, {4, false, 0, true, 1}, {4, true, 2, true, 1}, {5, true, 0, true, 1},
        {8, false, 1, true, 1}, {8, false, 2, true, 0}, {1, false, 3, false, 0, 1}, {1, true, 1, false, 0},
        {2, true, 3, true, 1, 1}, {3, true, 3, false, 0, 1}, {4, true, 3, true, 1, 1},
        {4, false, 3, false, 0, 2}, {8, false, 3, true, 1, 3}};

/* Whether a tensor has a block that can be deferred. */
static bool has_products(const struct team_run *run)
{
        const struct mfl_grad_ops *ops = run->b->ops->grad;
        struct mfl_net_options options = run->options;
        options.worker = true;
        for (int i = 0; ops->operands && i < run->t->graph->n_params; i++)
                if (run->t->graph->params[i].count >= 2 * MFL_GRAD_BLOCK &&
                        ops->operands(run->t->graph, &options, i))
                        return true;
        return false;
}

static void place(struct team_run *run, const struct placement *p, bool floats)
{
        run->n_lent = p->n_lent;
        run->how = (struct mfl_team_options){.products = MFL_TEAM_PRODUCTS_NONE,
                .shared = p->shared,
                .zero = p->zero,
                .floats = floats,
                .overlap = p->overlap,
                .bucket_bytes = p->bucket_bytes};
}

/* With samples that come to the device when a grain needs them. */
static void compare_streamed(struct team_run *run, const float *expected)
{
        const struct mfl_device_data *resident = run->data;
        struct mfl_device_data *data;
        struct mfl_error err;
        mfl_conf_must(
                run->b->ops->data_new(run->b->device, &run->t->set, &run->t->set.train, false, &data, &err),
                &err);
        run->data = data;
        run->options.streamed = true;
        place(run, &placements[0], false);
        train_by(run, placements[0].n);
        mfl_conf_report(!memcmp(expected, run->params, (size_t)run->t->graph->n * sizeof *expected),
                "%s: team %s: samples that stream give the same bits", run->b->label, run->kase->name);
        run->options.streamed = false;
        run->data = resident;
        run->b->ops->data_free(data);
}

/* With all vectors on the device: one worker, since several need as many devices. */
static void compare_resident(struct team_run *run, const float *expected, const struct mfl_score *score)
{
        if (!run->b->ops->grad->device)
                return;
        place(run, &(struct placement){.n = 1, .zero = 1}, false);
        run->how.resident = true;
        train_by(run, 1);
        mfl_conf_report(!memcmp(expected, run->params, (size_t)run->t->graph->n * sizeof *expected) &&
                                mfl_conf_same_score(score, &run->score),
                "%s: team %s: vectors on the device give the same bits", run->b->label, run->kase->name);
}

/* Gives the bits and the score of one worker: with all sums, and with totals by operands. */
static void compare_placement(
        struct team_run *run, const struct placement *p, const float *expected, const struct mfl_score *score)
{
        for (int products = 0; products <= has_products(run); products++) {
                place(run, p, false);
                run->how.products = products ? MFL_TEAM_PRODUCTS_ALL : MFL_TEAM_PRODUCTS_NONE;
                train_by(run, p->n);
                bool same = !memcmp(expected, run->params, (size_t)run->t->graph->n * sizeof *expected) &&
                            mfl_conf_same_score(score, &run->score);
                mfl_conf_report(same, "%s: team %s: %u workers%s, zero %u%s, give the bits of one",
                        run->b->label, run->kase->name, p->n, p->shared ? " with one memory" : "", p->zero,
                        products ? ", by operands" : "");
        }
}

static void compare(struct team_run *run)
{
        size_t n = (size_t)run->t->graph->n;
        bool plain = (run->b->precision == MFL_PRECISION_FP32 || run->b->precision == MFL_PRECISION_FP16) &&
                     !run->kase->deep;
        double bound = plain ? 1e-4 : run->kase->deep && run->b->precision == MFL_PRECISION_FP32 ? 0.1 : 2;
        bool own_memory = has_own_memory(run->b);
        size_t n_placements = own_memory ? ON_DEVICES : MFL_ARRAY_SIZE(placements);
        MFL_CLEANUP_FREE float *one = mfl_calloc(n, sizeof *one),
                               *accumulated = mfl_calloc(n, sizeof *accumulated);
        mfl_assert(one && accumulated);
        place(run, &(struct placement){.n = 1}, false);
        train_by(run, 1);
        struct mfl_score score = run->score;
        memcpy(one, run->params, n * sizeof *one);
        for (size_t i = 0; i < n_placements; i++)
                compare_placement(run, &placements[i], one, &score);
        compare_resident(run, one, &score);
        if (own_memory)
                compare_streamed(run, one);
        else
                mfl_conf_test_lost(run, one, &score);
        if (!own_memory && mfl_conf_is_smoke(run->kase->name)) {
                mfl_conf_test_lost_shard(run, one, &score);
                mfl_conf_test_lost_again(run, one, &score);
        }
        train_plain(run, accumulated);
        double distance = mfl_conf_params_distance(one, accumulated, run->t->first, n);
        mfl_conf_report(distance < bound,
                "%s: team %s: workers are near one that accumulates: %.1e (bound %.0e)", run->b->label,
                run->kase->name, distance, bound);
        float *floats = one;
        if (run->b->precision == MFL_PRECISION_FP16) /* sums of floats have no loss scale */
                return;
        for (uint32_t zero = 0; zero < 2; zero++) {
                place(run, &(struct placement){3, false, zero, zero > 0, 1}, true);
                train_by(run, 3);
                if (zero)
                        mfl_conf_report(!memcmp(floats, run->params, n * sizeof *floats),
                                "%s: team %s: sums of floats have one order in stages 0 and 1", run->b->label,
                                run->kase->name);
                memcpy(floats, run->params, n * sizeof *floats);
        }
        distance = mfl_conf_params_distance(floats, accumulated, run->t->first, n);
        mfl_conf_report(distance < bound,
                "%s: team %s: sums of floats are near one that accumulates: %.1e (bound %.0e)", run->b->label,
                run->kase->name, distance, bound);
}

/* Whether the backend has such workers; says why not. */
static bool has_workers(const struct team_run *run)
{
        struct mfl_error err;
        struct mfl_net *net = NULL;
        struct mfl_net_options options = run->options;
        options.worker = true;
        int rc = run->b->ops->net_new(run->b->device, run->t->graph, &options, &net, &err);
        run->b->ops->net_free(net);
        if (rc == MFL_INVALID)
                mfl_conf_skip(run->kase->name, err.text);
        else
                mfl_conf_must(rc, &err);
        return !rc;
}

static void test_team(const struct conf_backend *b, const struct conf_train_case *kase)
{
        struct mfl_error err;
        struct conf_training t;
        struct mfl_device_data *data;
        struct team_run run = {.b = b, .kase = kase, .t = &t};
        mfl_conf_training_init(&t, kase);
        run.options = mfl_conf_train_options(b, &t, kase, run.weights);
        run.options.worker = run.options.lent = true;
        for (int i = 0; i < HOSTS_MAX; i++) {
                run.lent[i] =
                        mfl_alloc_aligned(b->ops->grad->elements(t.graph, &run.options) * sizeof(float));
                mfl_assert(run.lent[i]);
        }
        MFL_CLEANUP_FREE float *params = mfl_calloc((size_t)t.graph->n, sizeof *params);
        mfl_assert(params);
        mfl_conf_must(b->ops->data_new(b->device, &t.set, &t.set.train, true, &data, &err), &err);
        run.options = mfl_conf_train_options(b, &t, kase, run.weights);
        run.options.batch = GRAIN;
        run.options.accumulate = 0;
        run.data = data;
        run.params = params;
        for (uint32_t i = 0; i < CONF_STEPS * ROWS; i++)
                run.index[i] = i * 17 % CONF_SAMPLES;
        if (has_workers(&run))
                compare(&run);
        for (int i = 0; i < HOSTS_MAX; i++)
                free(run.lent[i]);
        b->ops->data_free(data);
        mfl_conf_training_deinit(&t);
}

/* Besides those of --smoke: with batch norm and augmentation, shared tensors, all optimizer's terms, frozen layers. */
static bool is_quick(const char *name)
{
        static const char *const more[] = {"depthwise accumulated", "tied plain", "siamese momentum",
                "residual momentum prox decay", "lora and frozen"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(more); i++)
                if (!strcmp(more[i], name))
                        return true;
        return mfl_conf_is_smoke(name);
}

void mfl_conf_test_teams(const struct conf_backend *backend, const char *filter)
{
        bool quick = conf_quick || conf_smoke || !strcmp(backend->ops->name, "reference");
        bool own_memory = has_own_memory(backend), has_teams = backend->ops->grad != NULL;
        for (int i = 0; has_teams && i < mfl_conf_n_train_cases; i++) {
                const struct conf_train_case *kase = &mfl_conf_train_cases[i];
                if (strstr(kase->name, filter) && !kase->held && !(quick && kase->deep) &&
                        (!conf_smoke || mfl_conf_is_smoke(kase->name)) &&
                        (!(conf_quick && own_memory) || is_quick(kase->name)) &&
                        mfl_conf_begin("%s: team %s", backend->label, kase->name))
                        test_team(backend, kase);
        }
}
