/* SPDX-License-Identifier: Apache-2.0 */
/* Many clients on one daemon: what a client costs, in all and in parts, and what it would cost at least.
 *
 *     mfl-bench-clients rate MODEL WORKERS CLIENTS SECONDS   microseconds of a client: whole tasks of the
 * trainer mfl-bench-clients parts MODEL                          microseconds of a client's parts, one line
 * each mfl-bench-clients count MODEL                          operations and bytes of a step and of a client
 *     mfl-bench-clients copy KIB                             GB/s, read and write together, of copying KIB
 * Times are microseconds. The work is that of pfl-research's CIFAR-10 benchmark: clients of 50 images of
 * 3x32x32 bytes, one epoch in batches of 10, plain SGD, updates added unweighted. Arithmetic: the module
 * `cpu`, one thread a client. bench/pfl_clients.py drives it beside PyTorch.
 */
#include <stdio.h>
#include <time.h>

#include "client/train/trainer.h"
#include "common/base/crc32c.h"
#include "common/job/job.h"

#define SAMPLES_PER_CLIENT 50
#define BATCH 10
#define STEPS (SAMPLES_PER_CLIENT / BATCH)
#define LR 0.1f

struct world {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_dataset *dataset;
        struct mfl_graph *graph;
        float *params;
        struct mfl_fixed fixed;
};

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-clients: %s\n", err->text);
        exit(1);
}

static void world_init(struct world *w, const char *model, uint32_t n_clients)
{
        struct mfl_error err;
        struct mfl_dataset_config config = {.name = "made-up",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 10,
                .shape = {3, {3, 32, 32}},
                .n_train = n_clients * SAMPLES_PER_CLIENT,
                .n_test = 10,
                .seed = 1};
        must(mfl_backend_open("cpu", &w->ops, &err), &err);
        must(w->ops->device_open(&w->device, &err), &err);
        must(mfl_dataset_load(&config, &w->dataset, &err), &err);
        must(mfl_graph_preset(model, &config.shape, config.classes, &w->graph, &err), &err);
        must(mfl_fixed_choose(16, n_clients, &w->fixed, &err), &err);
        w->params = mfl_malloc((size_t)w->graph->n * sizeof *w->params);
        mfl_assert(w->params);
        mfl_graph_init_params(w->graph, 1, w->params);
}

static void world_deinit(struct world *w)
{
        free(w->params);
        mfl_graph_free(w->graph);
        mfl_dataset_free(w->dataset);
        w->ops->device_close(w->device);
}

/* ---- rate ---- */

static struct mfl_trainer *trainer_of(const struct world *w, uint32_t workers)
{
        struct mfl_error err;
        uint64_t fingerprint = 1;
        const struct mfl_dataset *data_sets[] = {w->dataset};
        struct mfl_trainer *trainer;
        struct mfl_trainer_options options = {.ops = w->ops,
                .device = w->device,
                .workers = workers,
                .name = "bench",
                .n_data_sets = 1,
                .data_sets = data_sets,
                .fingerprints = &fingerprint};
        must(mfl_trainer_new(&options, &trainer, &err), &err);
        return trainer;
}

/* Of all threads: what else the machine does hardly counts. */
static uint64_t cpu_ns(void)
{
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One round's task: all clients, their updates added. */
static uint64_t run_task(const struct world *w, struct mfl_trainer *trainer, const char *text,
        uint64_t *items, uint32_t n_clients, uint32_t round, uint32_t *ret_digest)
{
        struct mfl_error err;
        struct mfl_train_control control = {0};
        struct mfl_train_result *result;
        struct mfl_task task = {.task = round,
                .job = "j-000001",
                .round = round,
                .kind = MFL_TASK_TRAIN,
                .n_items = n_clients,
                .items = items,
                .n_params = w->graph->n,
                .fixed = w->fixed,
                .fingerprint = 1};
        struct mfl_train_request request = {
                .task = &task, .job_text = text, .params = w->params, .control = &control};
        uint64_t begin = cpu_ns();
        must(mfl_trainer_run(trainer, &request, &result, &err), &err);
        uint64_t ns = cpu_ns() - begin;
        for (uint32_t i = 0; i < result->n_updates; i++)
                mfl_assert(!result->updates[i].n_rejected);
        *ret_digest = mfl_crc32c(0, result->data[0], (size_t)result->updates[0].bytes);
        mfl_trainer_result_free(trainer, result);
        return ns;
}

static int compare_times(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

static double median_of(double *times, uint32_t n)
{
        qsort(times, n, sizeof *times, compare_times);
        return times[n / 2];
}

/* seconds 0: the digest of the first task instead. */
static int rate(const char *model, uint32_t workers, uint32_t n_clients, double seconds)
{
        struct world w;
        char text[512];
        uint32_t digest, ignored;
        double *times = mfl_malloc(100000 * sizeof *times);
        uint64_t *items = mfl_malloc(n_clients * sizeof *items);
        mfl_assert(times && items);
        world_init(&w, model, n_clients);
        struct mfl_trainer *trainer = trainer_of(&w, workers);
        for (uint32_t i = 0; i < n_clients; i++)
                items[i] = i;
        snprintf(text, sizeof text,
                "name: bench\nrounds: 1\nseed: 1\nmodel: %s\n"
                "data: {name: made-up, partition: iid, clients: %u}\n"
                "training: {lr: 0.1, epochs: 1, batch: %d}\naggregation: {weighting: uniform}\n",
                model, n_clients, BATCH);
        /* The first task makes networks and buffers. */
        run_task(&w, trainer, text, items, n_clients, 1, &digest);
        uint64_t end = mfl_now_ns() + (uint64_t)(seconds * 1e9);
        uint32_t n = 0;
        for (; (n < 3 && seconds > 0) || (n < 100000 && mfl_now_ns() < end); n++)
                times[n] = (double)run_task(&w, trainer, text, items, n_clients, n + 2, &ignored) * 1e-3 /
                           n_clients;
        if (seconds > 0)
                printf("%.2f\n", median_of(times, n));
        else
                printf("%08x\n", digest);
        mfl_trainer_free(trainer);
        world_deinit(&w);
        free(items);
        free(times);
        return 0;
}

/* ---- parts ---- */

#define PARTS_ROUNDS 400

struct parts {
        double start[PARTS_ROUNDS], steps[PARTS_ROUNDS], end[PARTS_ROUNDS], forward[PARTS_ROUNDS];
};

static double since(uint64_t begin)
{
        return (double)(cpu_ns() - begin) * 1e-3;
}

/* The end of a client where the backend has no sum: what the trainer does then. */
static void add_on_host(const struct world *w, struct mfl_net *net, float *after, int64_t *sum)
{
        struct mfl_error err;
        must(w->ops->params_get(net, 0, 0, after, &err), &err);
        for (uint64_t i = 0; i < w->graph->n; i++)
                after[i] -= w->params[i];
        must(mfl_fixed_add_f32(&w->fixed, 1, after, w->graph->n, sum, &err), &err);
}

/* One client, part by part; forward: a step's gathering, forward and loss, which eval does. */
static void time_client(const struct world *w, struct mfl_net *net, struct mfl_device_data *data,
        const uint32_t *index, float *after, int64_t *sum, struct parts *parts, int i)
{
        struct mfl_error err;
        struct mfl_optimizer opt = {.lr = LR};
        uint32_t count[STEPS];
        uint64_t weight = 1, n_bad;
        struct mfl_score score = {0};
        for (int t = 0; t < STEPS; t++)
                count[t] = BATCH;
        struct mfl_group_steps steps = {.index = index, .count = count};
        uint64_t begin = cpu_ns();
        must(mfl_backend_set(w->ops, net, w->graph, 0, w->ops->params_base ? NULL : w->params, &err), &err);
        parts->start[i] = since(begin);
        begin = cpu_ns();
        must(w->ops->step(net, data, &steps, STEPS, &opt, &err), &err);
        parts->steps[i] = since(begin);
        begin = cpu_ns();
        if (w->ops->sum_add)
                must(w->ops->sum_add(net, &w->fixed, &weight, &n_bad, &err), &err);
        else
                add_on_host(w, net, after, sum);
        parts->end[i] = since(begin);
        begin = cpu_ns();
        must(w->ops->eval(net, 0, data, index, SAMPLES_PER_CLIENT, &score, &err), &err);
        parts->forward[i] = since(begin);
}

static int measure_parts(const char *model)
{
        struct mfl_error err;
        struct world w;
        struct mfl_net *net;
        struct mfl_device_data *data;
        static struct parts parts;
        const uint32_t n_clients = 100, n = n_clients * SAMPLES_PER_CLIENT;
        world_init(&w, model, n_clients);
        struct mfl_net_options options = {.batch = BATCH,
                .groups = 1,
                .threads = 1,
                .training = true,
                .shared_start = w.ops->params_base != NULL};
        float *after = mfl_alloc_aligned((size_t)w.graph->n * sizeof *after);
        int64_t *sum = mfl_calloc((size_t)w.graph->n, sizeof *sum);
        uint32_t *index = mfl_malloc(n * sizeof *index);
        mfl_assert(after && sum && index);
        must(w.ops->net_new(w.device, w.graph, &options, &net, &err), &err);
        must(w.ops->data_new(w.device, w.dataset, &w.dataset->train, true, &data, &err), &err);
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        for (uint32_t i = 0; i < n; i++)
                index[i] = i;
        mfl_rng_shuffle(&rng, index, n);
        if (w.ops->params_base)
                must(w.ops->params_base(net, w.params, w.params + w.graph->n_frozen, &err), &err);
        for (int i = 0; i < PARTS_ROUNDS; i++)
                time_client(&w, net, data, index + (uint32_t)i % n_clients * SAMPLES_PER_CLIENT, after, sum,
                        &parts, i);
        printf("start %.2f\n", median_of(parts.start, PARTS_ROUNDS));
        printf("steps %.2f\n", median_of(parts.steps, PARTS_ROUNDS));
        printf("forward %.2f\n", median_of(parts.forward, PARTS_ROUNDS));
        printf("end %.2f\n", median_of(parts.end, PARTS_ROUNDS));
        w.ops->data_free(data);
        w.ops->net_free(net);
        world_deinit(&w);
        free(after);
        free(sum);
        free(index);
        return 0;
}

/* ---- count, copy ---- */

/* What has to move through the caches at least, each array once per pass: in a step the images in,
 * activations written and read by forward and backward (4 times), weights read twice and written once; for a
 * client besides, params copied once (8 bytes each), and at its end params and start read, the sum read and
 * written (24 bytes). */
static int count(const char *model)
{
        struct mfl_error err;
        struct mfl_graph *graph;
        struct mfl_shape shape = {3, {3, 32, 32}};
        uint64_t forward, training, activations = 0;
        must(mfl_graph_preset(model, &shape, 10, &graph, &err), &err);
        mfl_graph_flops(graph, &forward, &training);
        for (int i = 1; i < graph->n_layers; i++) {
                enum mfl_op op = graph->layers[i].op;
                if (op != MFL_OP_FLATTEN && op != MFL_OP_RELU && op != MFL_OP_DROPOUT)
                        activations += (uint64_t)mfl_shape_count(&graph->layers[i].out);
        }
        uint64_t images = (uint64_t)mfl_shape_count(&shape) * (1 + 4 + 4);
        uint64_t step_bytes = BATCH * (images + 16 * activations) + 12 * graph->n;
        printf("params %llu\nstep_flops %llu\nstep_bytes %llu\nclient_flops %llu\nclient_bytes %llu\n",
                (unsigned long long)graph->n, (unsigned long long)(BATCH * training),
                (unsigned long long)step_bytes, (unsigned long long)(STEPS * BATCH * training),
                (unsigned long long)(STEPS * step_bytes + 32 * graph->n));
        mfl_graph_free(graph);
        return 0;
}

static int copy(size_t kib)
{
        size_t bytes = kib << 10, times = MFL_MAX((size_t)20, ((size_t)1 << 30) / bytes);
        char *from = mfl_alloc_aligned(bytes), *to = mfl_alloc_aligned(bytes);
        mfl_assert(from && to);
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        double best = 0;
        for (int round = 0; round < 5; round++) {
                uint64_t begin = cpu_ns();
                for (size_t i = 0; i < times; i++) {
                        memcpy(to, from, bytes);
                        __asm__ volatile("" : : "r"(to) : "memory");
                }
                best = MFL_MAX(best, 2.0 * (double)bytes * (double)times / (double)(cpu_ns() - begin));
        }
        printf("%.1f\n", best);
        free(from);
        free(to);
        return 0;
}

int main(int argc, char **argv)
{
        if (argc == 6 && !strcmp(argv[1], "rate") && atoi(argv[3]) > 0 && atoi(argv[4]) > 0)
                return rate(argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), atof(argv[5]));
        if (argc == 5 && !strcmp(argv[1], "digest") && atoi(argv[3]) > 0 && atoi(argv[4]) > 0)
                return rate(argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), 0);
        if (argc == 3 && !strcmp(argv[1], "parts"))
                return measure_parts(argv[2]);
        if (argc == 3 && !strcmp(argv[1], "count"))
                return count(argv[2]);
        if (argc == 3 && !strcmp(argv[1], "copy") && atoi(argv[2]) > 0)
                return copy((size_t)atoi(argv[2]));
        fprintf(stderr, "usage: mfl-bench-clients rate MODEL WORKERS CLIENTS SECONDS | digest MODEL WORKERS "
                        "CLIENTS | parts MODEL | count MODEL | "
                        "copy KIB\n");
        return 2;
}
