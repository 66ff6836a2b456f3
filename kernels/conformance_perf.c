/* SPDX-License-Identifier: Apache-2.0 */
/* How fast: each operator's forward and backward, and whole training steps of the presets. */
#include "kernels/conformance.h"

#include <stdio.h>

#define SAMPLES 512
#define CLIENTS_MAX 64     /* at once */
#define TIME_NS 300000000u /* of each measurement */

/* Bytes that must move at least once: activations and params in, out, and their gradients. */
static double bytes_of(const struct mfl_graph *graph, int batch)
{
        double io = (double)mfl_shape_count(&graph->input) + (double)graph->classes * graph->positions;
        return (io * batch + (double)graph->n) * 2 * sizeof(float);
}

static void perf_case(const struct conf_backend *b, const struct conf_case *kase, int groups)
{
        struct mfl_error err;
        struct mfl_graph *graph = conf_graph_new(kase);
        struct mfl_net_options options = {.batch = kase->batch,
                .groups = groups,
                .threads = 1,
                .training = true,
                .input_grad = true,
                .precision = b->precision};
        struct mfl_net *net = NULL;
        struct mfl_rng_key keys[CLIENTS_MAX];
        size_t rows = (size_t)kase->batch * (size_t)groups, n = (size_t)graph->n;
        size_t in = (size_t)mfl_shape_count(&graph->input) * rows;
        size_t out = (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * rows;
        float *x = conf_alloc(in * 2 * sizeof(float)), *y = conf_alloc(out * 2 * sizeof(float));
        float *p = conf_alloc(n * (size_t)(groups + 1) * sizeof(float));
        uint64_t flops_forward, flops, forward = UINT64_MAX, both = UINT64_MAX;
        conf_fill(x, in, 1, 1, false);
        conf_fill(y, out, 1, 2, false);
        conf_fill(p, n, 1, 3, false);
        for (int g = 0; g < groups; g++)
                keys[g] = mfl_rng_derive(1, MFL_RNG_DROPOUT, (uint64_t)g, 0);
        int rc = b->ops->net_new(b->device, graph, &options, &net, &err);
        if (rc == MFL_INVALID) {
                printf("%-12s %-24s refused: %s\n", b->label, kase->name, err.text);
                goto out;
        }
        conf_must(rc, &err);
        for (int g = 0; g < groups; g++)
                conf_must(mfl_backend_set(b->ops, net, graph, g, p, &err), &err);
        for (uint64_t begin = mfl_now_ns(); mfl_now_ns() - begin < TIME_NS;) {
                uint64_t t0 = mfl_now_ns();
                conf_must(b->ops->forward(net, x, keys, y + out, &err), &err);
                uint64_t t1 = mfl_now_ns();
                conf_must(b->ops->backward(net, y, x + in, p + n, &err), &err);
                forward = MFL_MIN(forward, t1 - t0);
                both = MFL_MIN(both, mfl_now_ns() - t1);
        }
        mfl_graph_flops(graph, &flops_forward, &flops);
        /* backward repeats the forward pass, because the arena holds one group. */
        printf("%-12s %-24s clients %2d forward %9.1f us %7.1f GFLOP/s   forward+backward %9.1f us %7.1f "
               "GFLOP/s %6.1f "
               "GB/s\n",
                b->label, kase->name, groups, (double)forward * 1e-3,
                (double)flops_forward * (double)rows / (double)forward, (double)both * 1e-3,
                (double)flops * (double)rows / (double)both,
                bytes_of(graph, kase->batch) * groups / (double)both);
        b->ops->net_free(net);
out:
        free(x);
        free(y);
        free(p);
        mfl_graph_free(graph);
}

static void perf_steps(
        const struct conf_backend *b, const char *preset, const struct mfl_shape *shape, int batch)
{
        struct mfl_error err;
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_net_options options = {
                .batch = batch, .groups = 1, .threads = 1, .training = true, .precision = b->precision};
        struct mfl_optimizer opt = {.lr = 0.05f};
        size_t count = (size_t)mfl_shape_count(shape);
        uint32_t index[SAMPLES], counts[SAMPLES], n_steps = SAMPLES / (uint32_t)batch;
        uint64_t best = UINT64_MAX, flops_forward, flops;
        struct mfl_dataset set = {
                .shape = *shape, .classes = 10, .scale = {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}};
        uint8_t *pixels = conf_alloc(SAMPLES * count);
        int32_t labels[SAMPLES];
        for (uint32_t i = 0; i < SAMPLES; i++) {
                index[i] = i;
                counts[i] = (uint32_t)batch;
                labels[i] = (int32_t)(i % 10);
                memset(pixels + i * count, (int)i, count);
        }
        set.train = (struct mfl_split){SAMPLES, MFL_U8, pixels, labels};
        conf_must(mfl_graph_preset(preset, shape, 10, &graph, &err), &err);
        float *params = conf_alloc((size_t)graph->n * sizeof(float));
        mfl_graph_init_params(graph, 1, params);
        conf_must(b->ops->net_new(b->device, graph, &options, &net, &err), &err);
        conf_must(b->ops->data_new(b->device, &set, &set.train, true, &data, &err), &err);
        conf_must(mfl_backend_set(b->ops, net, graph, 0, params, &err), &err);
        for (uint64_t begin = mfl_now_ns(); mfl_now_ns() - begin < 2 * TIME_NS;) {
                struct mfl_group_steps steps = {.index = index, .count = counts};
                uint64_t t0 = mfl_now_ns();
                conf_must(b->ops->step(net, data, &steps, n_steps, &opt, &err), &err);
                best = MFL_MIN(best, mfl_now_ns() - t0);
        }
        mfl_graph_flops(graph, &flops_forward, &flops);
        double ns = (double)best / n_steps;
        printf("%-12s %-12s batch %2d: step %9.1f us %7.1f GFLOP/s\n", b->label, preset, batch, ns * 1e-3,
                (double)flops * batch / ns);
        b->ops->data_free(data);
        b->ops->net_free(net);
        free(params);
        free(pixels);
        mfl_graph_free(graph);
}

void conf_perf(const struct conf_backend *backend, const char *filter)
{
        static const char *const presets[] = {"logistic", "mlp", "lenet5", "fedavg-cnn"};
        static const char *const residual[] = {"resnet20", "resnet20-gn", "resnet18"};
        struct mfl_shape mnist = {3, {1, 28, 28}}, cifar = {3, {3, 32, 32}};
        for (int i = 0; i < conf_n_perf_cases; i++)
                for (int groups = 1; groups <= CLIENTS_MAX && strstr(conf_perf_cases[i].name, filter);
                        groups *= 8)
                        if (groups == 1 || conf_perf_cases[i].many)
                                perf_case(backend, &conf_perf_cases[i], groups);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(presets); i++)
                if (strstr(presets[i], filter)) {
                        perf_steps(backend, presets[i], &mnist, 10);
                        perf_steps(backend, presets[i], &mnist, 32);
                }
        if (strstr("pfl-cnn", filter))
                perf_steps(backend, "pfl-cnn", &cifar, 10);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(residual); i++)
                if (strstr(residual[i], filter))
                        perf_steps(backend, residual[i], &cifar, 32);
}
