/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of each operator's forward and backward, and of whole training steps of the presets. */
#include "kernels/conformance/conformance.h"

#include <stdio.h>

#define SAMPLES 512
#define CLIENTS_MAX 64     /* at once */
#define TIME_NS 300000000u /* of each measurement by the host's clock */
#define RUNS_MAX 10000     /* of each */

/* Bytes that must move at least once: activations and params in, activations out, and their gradients. */
static double bytes_of(const struct mfl_graph *graph, int batch)
{
        double io = (double)mfl_shape_count(&graph->input) + (double)graph->classes * graph->positions;
        return (io * batch + (double)graph->n) * 2 * sizeof(float);
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
        qsort(v, n, sizeof *v, compare_doubles);
        return v[n / 2];
}

/* Where host and device are the same: the median of calls. Otherwise the device's own clock, over the data
 * that lies there; calls would also time the tensors' way through pageable memory. */
static void time_by_host(const struct conf_backend *b, struct mfl_net *net, const float *x,
        const struct mfl_rng_key *keys, float *y, const float *dy, float *dx, float *dparams, double *ret_ns)
{
        double forward[RUNS_MAX], both[RUNS_MAX];
        struct mfl_error err;
        size_t n = 0;
        for (uint64_t begin = mfl_now_ns(); n < RUNS_MAX && (n < 3 || mfl_now_ns() - begin < TIME_NS); n++) {
                uint64_t t0 = mfl_now_ns();
                mfl_conf_must(b->ops->forward(net, x, keys, y, &err), &err);
                uint64_t t1 = mfl_now_ns();
                mfl_conf_must(b->ops->backward(net, dy, dx, dparams, &err), &err);
                forward[n] = (double)(t1 - t0);
                /* On the CPU, backward repeats the forward pass, because the arena holds one group. */
                both[n] = (double)(mfl_now_ns() - t1);
        }
        ret_ns[0] = median(forward, n);
        ret_ns[1] = median(both, n);
}

static void time_passes(const struct conf_backend *b, const struct conf_case *kase, struct mfl_net *net,
        const struct mfl_graph *graph, size_t groups, double *ret_ns)
{
        struct mfl_error err;
        struct mfl_rng_key keys[CLIENTS_MAX];
        size_t rows = (size_t)kase->batch * groups, n = (size_t)graph->n;
        size_t in = (size_t)mfl_shape_count(&graph->input) * rows;
        size_t out = (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * rows;
        float *x = mfl_conf_alloc(in * 2 * sizeof(float)), *y = mfl_conf_alloc(out * 2 * sizeof(float));
        float *p = mfl_conf_alloc(n * (groups + 1) * sizeof(float));
        mfl_conf_fill(x, in, 1, 1, false);
        mfl_conf_fill(y, out, 1, 2, false);
        mfl_conf_fill(p, n, 1, 3, false);
        for (size_t g = 0; g < groups; g++) {
                keys[g] = mfl_rng_derive(1, MFL_RNG_DROPOUT, g, 0);
                mfl_conf_must(mfl_backend_set(b->ops, net, graph, (int)g, p, &err), &err);
        }
        if (b->ops->time) {
                mfl_conf_must(b->ops->forward(net, x, keys, y + out, &err), &err);
                mfl_conf_must(b->ops->backward(net, y, x + in, p + n, &err), &err);
                mfl_conf_must(b->ops->time(net, MFL_TIMED_FORWARD, &ret_ns[0], &err), &err);
                mfl_conf_must(b->ops->time(net, MFL_TIMED_BACKWARD, &ret_ns[1], &err), &err);
        } else {
                time_by_host(b, net, x, keys, y + out, y, x + in, p + n, ret_ns);
        }
        free(x);
        free(y);
        free(p);
}

static void perf_case(const struct conf_backend *b, const struct conf_case *kase, int groups)
{
        struct mfl_error err;
        struct mfl_net_options options = {.batch = kase->batch,
                .groups = groups,
                .threads = 1,
                .training = true,
                .input_grad = true,
                .precision = b->precision};
        struct mfl_net *net = NULL;
        uint64_t flops_forward, flops;
        double ns[2], rows = (double)kase->batch * groups;
        if (!mfl_conf_begin("%s: %s, %d clients", b->label, kase->name, groups))
                return;
        struct mfl_graph *graph = mfl_conf_graph_new(kase);
        int rc = b->ops->net_new(b->device, graph, &options, &net, &err);
        if (rc == MFL_INVALID) {
                mfl_conf_say("%-12s %-24s refused: %s", b->label, kase->name, err.text);
        } else {
                mfl_conf_must(rc, &err);
                time_passes(b, kase, net, graph, (size_t)groups, ns);
                mfl_graph_flops(graph, &flops_forward, &flops);
                mfl_conf_say(
                        "%-12s %-24s clients %2d forward %9.1f us %7.1f GFLOP/s   forward+backward %9.1f us "
                        "%7.1f GFLOP/s %6.1f GB/s",
                        b->label, kase->name, groups, ns[0] * 1e-3, (double)flops_forward * rows / ns[0],
                        ns[1] * 1e-3, (double)flops * rows / ns[1],
                        bytes_of(graph, kase->batch) * groups / ns[1]);
                b->ops->net_free(net);
        }
        mfl_graph_free(graph);
}

static void perf_steps(
        const struct conf_backend *b, const char *preset, const struct mfl_shape *shape, int batch)
{
        struct mfl_error err;
        if (!mfl_conf_begin("%s: steps of %s, batch %d", b->label, preset, batch))
                return;
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_net_options options = {
                .batch = batch, .groups = 1, .threads = 1, .training = true, .precision = b->precision};
        struct mfl_optimizer opt = {.lr = 0.05f};
        size_t count = (size_t)mfl_shape_count(shape);
        uint32_t index[SAMPLES], counts[SAMPLES], n_steps = SAMPLES / (uint32_t)batch;
        uint64_t flops_forward, flops;
        double times[RUNS_MAX], device = 0;
        size_t n = 0;
        struct mfl_dataset set = {
                .shape = *shape, .classes = 10, .scale = {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}};
        uint8_t *pixels = mfl_conf_alloc(SAMPLES * count);
        int32_t labels[SAMPLES];
        for (uint32_t i = 0; i < SAMPLES; i++) {
                index[i] = i;
                counts[i] = (uint32_t)batch;
                labels[i] = (int32_t)(i % 10);
                memset(pixels + i * count, (int)i, count);
        }
        set.train = (struct mfl_split){SAMPLES, MFL_U8, pixels, labels};
        mfl_conf_must(mfl_graph_preset(preset, shape, 10, &graph, &err), &err);
        float *params = mfl_conf_alloc((size_t)graph->n * sizeof(float));
        mfl_graph_init_params(graph, 1, params);
        mfl_conf_must(b->ops->net_new(b->device, graph, &options, &net, &err), &err);
        mfl_conf_must(b->ops->data_new(b->device, &set, &set.train, true, &data, &err), &err);
        mfl_conf_must(mfl_backend_set(b->ops, net, graph, 0, params, &err), &err);
        for (uint64_t begin = mfl_now_ns(); n < RUNS_MAX && (n < 3 || mfl_now_ns() - begin < 2 * TIME_NS);
                n++) {
                struct mfl_group_steps steps = {.index = index, .count = counts};
                uint64_t t0 = mfl_now_ns();
                mfl_conf_must(b->ops->step(net, data, &steps, n_steps, &opt, &err), &err);
                times[n] = (double)(mfl_now_ns() - t0) / n_steps;
        }
        int rc = b->ops->time ? b->ops->time(net, MFL_TIMED_STEP, &device, &err) : MFL_INVALID;
        if (rc != MFL_INVALID)
                mfl_conf_must(rc, &err);
        mfl_graph_flops(graph, &flops_forward, &flops);
        double ns = median(times, n);
        mfl_conf_say("%-12s %-12s batch %2d: step %9.1f us %7.1f GFLOP/s", b->label, preset, batch, ns * 1e-3,
                (double)flops * batch / ns);
        if (!rc)
                mfl_conf_say("%-12s %-12s batch %2d: of the device alone %9.1f us", b->label, preset, batch,
                        device * 1e-3);
        b->ops->data_free(data);
        b->ops->net_free(net);
        free(params);
        free(pixels);
        mfl_graph_free(graph);
}

void mfl_conf_perf(const struct conf_backend *backend, const char *filter)
{
        static const char *const presets[] = {"logistic", "mlp", "lenet5", "fedavg-cnn"};
        static const char *const residual[] = {"resnet20", "resnet20-gn", "resnet18"};
        struct mfl_shape mnist = {3, {1, 28, 28}}, cifar = {3, {3, 32, 32}};
        for (int i = 0; i < mfl_conf_n_perf_cases; i++)
                for (int groups = 1; groups <= CLIENTS_MAX && strstr(mfl_conf_perf_cases[i].name, filter);
                        groups *= 8)
                        if (groups == 1 || mfl_conf_perf_cases[i].many)
                                perf_case(backend, &mfl_conf_perf_cases[i], groups);
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
