/* SPDX-License-Identifier: Apache-2.0 */
/* Time of a training step by a team of threads, as jobs with `parallel` train.
 *
 *     mfl-bench-team BACKEND MODEL BATCH WORKERS GRAIN STEPS [BUCKET_BYTES] [float]
 *
 * prints the median microseconds of a step, and of rank 0 the shares of computing gradients, of exchange (waiting for
 * other ranks included) and of the optimizer, in microseconds a step, how often a gradient was computed again, and the
 * microseconds of processor time of a step, of all ranks. float: sums of floats. WORKERS 0: one network without grains, as jobs without `parallel` train. With BUCKET_BYTES (0: the default) traffic goes behind
 * backward. The data are those of mfl-bench-train. A tenth of the steps come before those that count. bench/team.py runs it
 * beside PyTorch's DistributedDataParallel. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "bench/samples.h"
#include "kernels/backend.h"
#include "kernels/team/team.h"

#define BATCHES 60
#define CHUNK 4 /* steps of a call; divides BATCHES */
#define WORKERS_MAX 16

struct bench {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_data *data;
        struct mfl_graph *graph;
        struct mfl_dataset set;
        struct mfl_loss loss;
        uint32_t batch, n_calls, n_warm;
        uint64_t bucket_bytes;
        bool overlap, floats;
        uint32_t *index, count[CHUNK];
        uint64_t *ns; /* of each call, of rank 0 */
        uint64_t cpu_ns;
};

struct rank {
        struct bench *bench;
        struct mfl_net *net;
        struct mfl_mesh *mesh;
        struct mfl_team *team; /* NULL: none */
        struct mfl_team_times before;
        uint32_t number;
};

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-team: %s\n", err->text);
        exit(1);
}

static uint64_t processor_ns(void)
{
        struct timespec now;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *run(void *arg)
{
        struct rank *rank = arg;
        struct bench *bench = rank->bench;
        struct mfl_optimizer opt = {.lr = 0.05f};
        struct mfl_error err;
        for (uint32_t c = 0; c < bench->n_warm + bench->n_calls; c++) {
                struct mfl_group_steps steps = {
                        .index = bench->index + (size_t)(c * CHUNK % BATCHES) * bench->batch,
                        .count = bench->count,
                        .step_first = c * CHUNK};
                if (rank->team && c == bench->n_warm)
                        rank->before = *mfl_team_times(rank->team);
                if (!rank->number && c == bench->n_warm)
                        bench->cpu_ns = processor_ns();
                uint64_t begin_ns = mfl_now_ns();
                must(rank->team ? mfl_team_step(rank->team, &bench->set, &bench->set.train, bench->data,
                                          &steps, CHUNK, &opt, NULL, &err)
                                : bench->ops->step(rank->net, bench->data, &steps, CHUNK, &opt, &err),
                        &err);
                if (!rank->number && c >= bench->n_warm)
                        bench->ns[c - bench->n_warm] = mfl_now_ns() - begin_ns;
        }
        if (!rank->number)
                bench->cpu_ns = processor_ns() - bench->cpu_ns;
        return NULL;
}

static void init(struct bench *bench, const char *backend, const char *model, uint32_t steps)
{
        struct mfl_error err;
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        uint32_t n = BATCHES * bench->batch;
        bench_samples_init(model, n, &bench->set);
        must(mfl_graph_preset(model, &bench->set.shape, bench->set.classes, &bench->graph, &err), &err);
        must(mfl_backend_open(backend, &bench->ops, &err), &err);
        must(bench->ops->device_open(&bench->device, &err), &err);
        must(bench->ops->data_new(bench->device, &bench->set, &bench->set.train, true, &bench->data, &err),
                &err);
        bench->n_calls = MFL_MAX(1u, steps / CHUNK);
        bench->n_warm = MFL_MAX(1u, bench->n_calls / 10);
        bench->index = mfl_malloc(n * sizeof *bench->index);
        bench->ns = mfl_malloc(bench->n_calls * sizeof *bench->ns);
        mfl_assert(bench->index && bench->ns);
        for (uint32_t i = 0; i < n; i++)
                bench->index[i] = i;
        mfl_rng_shuffle(&rng, bench->index, n);
        for (int t = 0; t < CHUNK; t++)
                bench->count[t] = bench->batch;
}

static void make_ranks(struct bench *bench, struct rank *ranks, uint32_t workers, uint32_t grain)
{
        struct mfl_error err;
        struct mfl_mesh *meshes[WORKERS_MAX];
        uint32_t n = MFL_MAX(workers, 1u);
        struct mfl_net_options options = {.batch = (int)(workers ? grain : bench->batch),
                .groups = 1,
                .threads = 1,
                .training = true,
                .worker = workers > 0,
                .moments = MFL_MOMENTS_NONE};
        struct mfl_team_options how = {.grain = grain,
                .step_rows = bench->batch,
                .shared = true,
                .zero = 1,
                .moments = MFL_MOMENTS_NONE,
                .floats = bench->floats,
                .overlap = bench->overlap,
                .bucket_bytes = bench->bucket_bytes,
                .deadline_ms = 60000};
        float *params = mfl_malloc((size_t)bench->graph->n * sizeof *params);
        mfl_assert(params);
        mfl_graph_init_params(bench->graph, 1, params);
        must(mfl_mesh_threads_new(n, meshes, &err), &err);
        for (uint32_t r = 0; r < n; r++) {
                ranks[r] = (struct rank){.bench = bench, .mesh = meshes[r], .number = r};
                options.sibling = r ? ranks[0].net : NULL;
                must(bench->ops->net_new(bench->device, bench->graph, &options, &ranks[r].net, &err), &err);
                if (!r)
                        must(mfl_backend_set(bench->ops, ranks[r].net, bench->graph, 0, params, &err), &err);
                if (workers)
                        must(mfl_team_new(bench->ops, ranks[r].net, &bench->loss, ranks[r].mesh, &how,
                                     &ranks[r].team, &err),
                                &err);
        }
        free(params);
}

static int compare_times(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static void print(struct bench *bench, const struct rank *first)
{
        double steps = (double)bench->n_calls * CHUNK * 1e3;
        qsort(bench->ns, bench->n_calls, sizeof *bench->ns, compare_times);
        printf("%.2f", (double)bench->ns[bench->n_calls / 2] / CHUNK * 1e-3);
        if (first->team) {
                const struct mfl_team_times *now = mfl_team_times(first->team), *then = &first->before;
                printf(" %.2f %.2f %.2f %u %.2f", (double)(now->compute - then->compute) / steps,
                        (double)(now->exchange - then->exchange) / steps,
                        (double)(now->apply - then->apply) / steps, now->repeats,
                        (double)bench->cpu_ns / steps);
        }
        printf("\n");
}

int main(int argc, char **argv)
{
        bool floats = argc > 7 && !strcmp(argv[argc - 1], "float");
        argc -= floats;
        if (argc != 7 && argc != 8) {
                fprintf(stderr, "usage: mfl-bench-team BACKEND MODEL BATCH WORKERS GRAIN STEPS "
                                "[BUCKET_BYTES] [float]\n");
                return 2;
        }
        struct bench bench = {.batch = (uint32_t)atoi(argv[3]),
                .overlap = argc == 8,
                .floats = floats,
                .bucket_bytes = argc == 8 ? (uint64_t)atoll(argv[7]) : 0};
        struct rank ranks[WORKERS_MAX];
        pthread_t threads[WORKERS_MAX];
        uint32_t workers = (uint32_t)atoi(argv[4]), n = MFL_MAX(workers, 1u);
        mfl_assert(bench.batch >= 1 && workers <= WORKERS_MAX);
        init(&bench, argv[1], argv[2], (uint32_t)atoi(argv[6]));
        make_ranks(&bench, ranks, workers, (uint32_t)atoi(argv[5]));
        for (uint32_t r = 0; r < n; r++)
                mfl_assert(!pthread_create(&threads[r], NULL, run, &ranks[r]));
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
        print(&bench, ranks);
        for (uint32_t r = n; r-- > 0;) {
                mfl_team_free(ranks[r].team);
                bench.ops->net_free(ranks[r].net);
                mfl_mesh_close(ranks[r].mesh);
        }
        bench.ops->data_free(bench.data);
        bench.ops->device_close(bench.device);
        mfl_graph_free(bench.graph);
        bench_samples_deinit(&bench.set);
        free(bench.index);
        free(bench.ns);
        return 0;
}
