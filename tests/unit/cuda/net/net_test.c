/* SPDX-License-Identifier: Apache-2.0 */
/* See net_test.h. */
#include "tests/unit/cuda/net/net_test.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static char cache_dir[] = "/tmp/mfl-test-cuda-XXXXXX";
static struct mfl_device *the_device;

static void close_device(void)
{
        char command[128];
        mfl_backend_module.device_close(the_device);
        snprintf(command, sizeof command, "rm -r %s", cache_dir);
        assert_int_equal(system(command), 0);
}

struct mfl_device *net_device(void)
{
        if (the_device)
                return the_device;
        assert_non_null(mkdtemp(cache_dir));
        setenv("MFL_CACHE_DIR", cache_dir, 1);
        assert_int_equal(mfl_backend_module.device_open(&the_device, NULL), 0);
        atexit(close_device);
        return the_device;
}

static struct mfl_graph *make_graph(enum net_model model)
{
        const struct mfl_layer dense[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {1, {6}}},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 8, .bias = true},
                {.op = MFL_OP_RELU, .input = 1},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 3, .bias = true},
        };
        const struct mfl_layer residual[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {3, {2, 4, 4}}},
                {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 4, .kernel = {3, 3}, .padding = {1, 1}},
                {.op = MFL_OP_BATCHNORM, .input = 1},
                {.op = MFL_OP_RELU, .input = 2},
                {.op = MFL_OP_CONV2D, .input = 3, .out_channels = 4, .kernel = {3, 3}, .padding = {1, 1}},
                {.op = MFL_OP_BATCHNORM, .input = 4},
                {.op = MFL_OP_ADD, .input = 5, .input2 = 3},
                {.op = MFL_OP_RELU, .input = 6},
                {.op = MFL_OP_MAXPOOL2D, .input = 7, .kernel = {2, 2}, .stride = {2, 2}},
                {.op = MFL_OP_DROPOUT, .input = 8, .rate = 0.25f},
                {.op = MFL_OP_DENSE, .input = 9, .out_channels = 3, .bias = true},
        };
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        int rc = model == NET_DENSE
                         ? mfl_graph_build("dense", dense, MFL_ARRAY_SIZE(dense), 3, &graph, &err)
                         : mfl_graph_build("residual", residual, MFL_ARRAY_SIZE(residual), 3, &graph, &err);
        if (rc)
                fail_msg("%s", err.text);
        return graph;
}

void net_case_init(struct net_case *c, enum net_model model)
{
        struct mfl_rng rng = mfl_rng_new(31, MFL_RNG_TEST, model, 0);
        *c = (struct net_case){.device = net_device(), .graph = make_graph(model)};
        size_t n = (size_t)c->graph->n, count = (size_t)mfl_shape_count(&c->graph->input);
        uint8_t *pixels = mfl_malloc(NET_SAMPLES * count);
        int32_t *labels = mfl_malloc(NET_SAMPLES * sizeof *labels);
        c->first = mfl_malloc(NET_GROUPS * n * sizeof(float));
        assert_true(pixels && labels && c->first);
        for (size_t i = 0; i < NET_SAMPLES * count; i++)
                pixels[i] = (uint8_t)mfl_rng_below(&rng, 256);
        for (size_t i = 0; i < NET_SAMPLES; i++)
                labels[i] = (int32_t)mfl_rng_below(&rng, 3);
        c->set = (struct mfl_dataset){.name = "test", .shape = c->graph->input, .classes = 3};
        for (int k = 0; k < MFL_CHANNELS_MAX; k++) {
                c->set.scale[k] = 1.0f / (64.0f + (float)k);
                c->set.shift[k] = -2.0f;
        }
        c->set.train = (struct mfl_split){NET_SAMPLES, MFL_U8, pixels, labels};
        for (uint32_t g = 0; g < NET_GROUPS; g++) {
                mfl_graph_init_params(c->graph, g, c->first + g * n);
                for (uint32_t t = 0; t < NET_STEPS; t++)
                        c->count[g][t] = (t + g) % 4 == 2 ? 0 : (t + g) % 3 == 1 ? 2 + g % 2 : NET_BATCH;
                for (uint32_t i = 0; i < NET_STEPS * NET_BATCH; i++)
                        c->index[g][i] = mfl_rng_below(&rng, NET_SAMPLES);
        }
}

void net_case_deinit(struct net_case *c)
{
        mfl_graph_free(c->graph);
        free(c->set.train.samples);
        free(c->set.train.labels);
        free(c->first);
}

struct net_run net_run_of(enum mfl_precision precision, int groups, uint32_t first)
{
        return (struct net_run){.options = {.batch = NET_BATCH,
                                        .groups = groups,
                                        .threads = 1,
                                        .training = true,
                                        .precision = precision},
                .opt = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .prox_mu = 0.1f},
                .first = first};
}

static void must(int rc, const struct mfl_error *err)
{
        if (rc)
                fail_msg("%d: %s", rc, err->text);
}

static void start_groups(
        const struct mfl_backend_ops *ops, struct mfl_net *net, struct net_case *c, struct net_run *run)
{
        struct mfl_error err = {""};
        size_t n = (size_t)c->graph->n;
        if (run->shared_start)
                must(ops->params_base(net, c->first, c->first + c->graph->n_frozen, &err), &err);
        for (int g = 0; g < run->options.groups; g++) {
                const float *own = c->first + (run->first + (uint32_t)g) * n;
                must(mfl_backend_set(ops, net, c->graph, g, run->shared_start ? NULL : own, &err), &err);
        }
}

static void run_steps(const struct mfl_backend_ops *ops, struct mfl_net *net, struct mfl_device_data *data,
        struct net_case *c, struct net_run *run)
{
        struct mfl_group_steps steps[NET_GROUPS];
        struct mfl_error err = {""};
        uint32_t chunk = run->chunk ? run->chunk : NET_STEPS;
        for (uint32_t at = 0, n; at < NET_STEPS; at += n) {
                n = MFL_MIN(chunk, NET_STEPS - at);
                for (int g = 0; g < run->options.groups; g++) {
                        uint32_t who = run->first + (uint32_t)g;
                        steps[g] = (struct mfl_group_steps){.index = c->index[who] + at * NET_BATCH,
                                .count = c->count[who] + at,
                                .dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, who, 3),
                                .augment = mfl_rng_derive(21, MFL_RNG_AUGMENT, who, 3),
                                .step_first = 2 + at,
                                .score = run->score[g],
                                .n_samples = run->n_samples[g]};
                }
                must(ops->step(net, data, steps, n, &run->opt, &err), &err);
                for (int g = 0; g < run->options.groups; g++) {
                        run->score[g] = steps[g].score;
                        run->n_samples[g] = steps[g].n_samples;
                }
        }
}

static void take_results(const struct mfl_backend_ops *ops, struct mfl_net *net, struct mfl_device_data *data,
        struct net_case *c, struct net_run *run)
{
        struct mfl_error err = {""};
        struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 64};
        uint64_t weight[NET_GROUPS], n_bad[NET_GROUPS];
        uint32_t all[NET_SAMPLES];
        size_t n = (size_t)c->graph->n;
        run->params = mfl_malloc((size_t)run->options.groups * n * sizeof(float));
        run->sum = mfl_calloc(n, sizeof *run->sum);
        assert_true(run->params && run->sum);
        for (uint32_t i = 0; i < NET_SAMPLES; i++)
                all[i] = NET_SAMPLES - 1 - i;
        for (int g = 0; g < run->options.groups; g++) {
                must(ops->params_get(net, g, 0, run->params + (size_t)g * n, &err), &err);
                must(ops->eval(net, g, data, all, NET_SAMPLES, &run->eval[g], &err), &err);
                weight[g] = (uint64_t)g + 1;
        }
        must(ops->sum_add(net, &fixed, weight, n_bad, &err), &err);
        for (int g = 0; g < run->options.groups; g++)
                assert_int_equal(n_bad[g], 0);
        must(ops->sum_take(net, run->sum, true, NULL, &err), &err);
}

void net_train(
        const struct mfl_backend_ops *ops, struct mfl_device *device, struct net_case *c, struct net_run *run)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        run->options.streamed = run->not_resident;
        run->options.shared_start = run->shared_start;
        must(ops->net_new(device, c->graph, &run->options, &net, &err), &err);
        must(ops->data_new(device, &c->set, &c->set.train, !run->not_resident, &data, &err), &err);
        start_groups(ops, net, c, run);
        run_steps(ops, net, data, c, run);
        take_results(ops, net, data, c, run);
        ops->data_free(data);
        ops->net_free(net);
}

void net_run_deinit(struct net_run *run)
{
        free(run->params);
        free(run->sum);
}

void net_assert_same(const struct net_case *c, const struct net_run *x, int a, const struct net_run *y, int b)
{
        size_t n = (size_t)c->graph->n;
        assert_memory_equal(x->params + (size_t)a * n, y->params + (size_t)b * n, n * sizeof(float));
        assert_int_equal(x->score[a].loss_sum, y->score[b].loss_sum);
        assert_int_equal(x->score[a].n_correct, y->score[b].n_correct);
        assert_int_equal(x->n_samples[a], y->n_samples[b]);
        assert_int_equal(x->eval[a].loss_sum, y->eval[b].loss_sum);
        assert_int_equal(x->eval[a].n_correct, y->eval[b].n_correct);
}
