/* SPDX-License-Identifier: Apache-2.0 */
/* What computing activations again saves and costs: bench_checkpoint [--steps N] [--backend NAME] [--batch N]
 * [MODEL ...].
 *
 * For each model one line with everything kept and one for each number of segments: bytes of a step's tensors
 * as planned, the whole network as budgets count it, and the median time of a training step on one thread,
 * all over random data. Steps of the variants alternate, so that what else the machine does falls on all
 * alike. A MODEL is a preset, or PRESET:KEYS with more keys of a job's model, such as
 * "resnet18:freeze: [conv1, bn1, 'layer1*']".
 */
#include <stdio.h>

#include "bench/samples.h"
#include "common/job/job.h"
#include "kernels/backend.h"

#define ROWS 8 /* batches of data */
#define VARIANTS 4
#define STEPS_MAX 10000

struct options {
        const char *backend;
        int batch;
        uint32_t steps;
};

struct variant {
        int segments; /* as in mfl_net_options */
        struct mfl_net *net;
        struct mfl_net_plan plan;
        uint64_t net_bytes;
        uint64_t *times;
};

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "bench_checkpoint: %s\n", err->text);
        exit(1);
}

static int compare_times(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static void make_variant(const struct mfl_backend_ops *ops, struct mfl_device *device,
        const struct mfl_graph *graph, const struct options *o, const float *params, struct variant *v)
{
        struct mfl_error err;
        struct mfl_net_options options = {
                .batch = o->batch, .groups = 1, .threads = 1, .training = true, .segments = v->segments};
        must(ops->net_new(device, graph, &options, &v->net, &err), &err);
        must(mfl_backend_set(ops, v->net, graph, 0, params, &err), &err);
        ops->net_plan(v->net, &v->plan);
        v->net_bytes = ops->net_bytes(graph, &options);
        v->times = mfl_malloc(o->steps * sizeof *v->times);
        mfl_assert(v->times);
}

static void time_steps(const struct mfl_backend_ops *ops, const struct mfl_device_data *data,
        const struct options *o, struct variant *variants)
{
        struct mfl_error err;
        struct mfl_optimizer opt = {.lr = 0.05f};
        uint32_t batch = (uint32_t)o->batch, index[ROWS * 1024];
        mfl_assert(batch <= 1024);
        for (uint32_t i = 0; i < ROWS * batch; i++)
                index[i] = i;
        for (uint32_t t = 0; t < o->steps; t++)
                for (int k = 0; k < VARIANTS; k++) {
                        struct mfl_group_steps steps = {
                                .index = index + t % ROWS * batch, .count = &batch, .step_first = t};
                        uint64_t begin = mfl_now_ns();
                        must(ops->step(variants[k].net, data, &steps, 1, &opt, &err), &err);
                        variants[k].times[t] = mfl_now_ns() - begin;
                }
}

/* The graph of PRESET:KEYS, as a job that says so has it; *ret_preset has room for MFL_NAME_BYTES. */
static void read_model(const char *model, char *ret_preset, struct mfl_dataset *ret_set,
        const struct options *o, struct mfl_graph **ret_graph)
{
        struct mfl_error err;
        struct mfl_job *job;
        char text[1024];
        const char *keys = strchr(model, ':');
        size_t length = keys ? (size_t)(keys - model) : strlen(model);
        mfl_snprintf(ret_preset, MFL_NAME_BYTES, "%.*s", (int)MFL_MIN(length, MFL_NAME_BYTES - 1), model);
        mfl_snprintf(text, sizeof text,
                "name: bench\nrounds: 1\ndata: {name: x, partition: local}\ntraining: {lr: 0.1, epochs: 1}\n"
                "model: {preset: %s%s%s}\n",
                ret_preset, keys ? ", " : "", keys ? keys + 1 : "");
        must(mfl_job_parse(text, strlen(text), model, &job, &err), &err);
        bench_samples_init(ret_preset, ROWS * (uint32_t)o->batch, ret_set);
        must(mfl_job_graph(job, &ret_set->shape, ret_set->classes, ret_graph, &err), &err);
        mfl_job_free(job);
}

static void measure(const struct mfl_backend_ops *ops, struct mfl_device *device, const struct options *o,
        const char *model)
{
        struct mfl_error err;
        struct mfl_dataset set;
        struct mfl_device_data *data;
        struct mfl_graph *graph;
        char preset[MFL_NAME_BYTES];
        struct variant variants[VARIANTS] = {{0}, {MFL_SEGMENTS_AUTO}, {2}, {3}};
        read_model(model, preset, &set, o, &graph);
        must(ops->data_new(device, &set, &set.train, true, &data, &err), &err);
        float *params = mfl_malloc((size_t)graph->n * sizeof *params);
        mfl_assert(params);
        mfl_graph_init_params(graph, 1, params);
        for (int k = 0; k < VARIANTS; k++)
                make_variant(ops, device, graph, o, params, &variants[k]);
        time_steps(ops, data, o, variants);
        for (int k = 0; k < VARIANTS; k++) {
                struct variant *v = &variants[k];
                char what[16];
                qsort(v->times, o->steps, sizeof *v->times, compare_times);
                double us = (double)v->times[o->steps / 2] * 1e-3;
                if (v->segments > 0)
                        mfl_snprintf(what, sizeof what, "%d", v->segments);
                else
                        mfl_strcpy(what, sizeof what, v->segments ? "auto" : "off");
                printf("%-12s %6d %-14s %8d %12.1f %12.1f %10.0f %6.2f\n", preset, o->batch, what,
                        v->plan.segments, (double)v->plan.tensor_bytes * 1e-6, (double)v->net_bytes * 1e-6,
                        us, us / ((double)variants[0].times[o->steps / 2] * 1e-3));
                ops->net_free(v->net);
        }
        for (int k = 0; k < VARIANTS; k++)
                free(variants[k].times);
        ops->data_free(data);
        mfl_graph_free(graph);
        bench_samples_deinit(&set);
        free(params);
}

int main(int argc, char **argv)
{
        static const char *const models[] = {"resnet20", "vit-tiny", "char-gpt"};
        struct options o = {.backend = "cpu", .batch = 32, .steps = 20};
        struct mfl_error err;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        int i = 1;
        for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
                if (!strcmp(argv[i], "--backend"))
                        o.backend = argv[i + 1];
                else if (!strcmp(argv[i], "--batch"))
                        o.batch = atoi(argv[i + 1]);
                else if (!strcmp(argv[i], "--steps"))
                        o.steps = (uint32_t)atoi(argv[i + 1]);
        }
        if (o.batch < 1 || o.batch > 1024 || o.steps < 1 || o.steps > STEPS_MAX) {
                fprintf(stderr, "bench_checkpoint: --batch 1 to 1024, --steps 1 to %d\n", STEPS_MAX);
                return 2;
        }
        must(mfl_backend_open(o.backend, &ops, &err), &err);
        must(ops->device_open(&device, &err), &err);
        printf("%-12s %6s %-14s %8s %12s %12s %10s %6s\n", "model", "batch", "checkpointing", "segments",
                "tensors MB", "network MB", "us / step", "ratio");
        if (i == argc)
                for (size_t k = 0; k < MFL_ARRAY_SIZE(models); k++)
                        measure(ops, device, &o, models[k]);
        for (; i < argc; i++)
                measure(ops, device, &o, argv[i]);
        ops->device_close(device);
        return 0;
}
