/* SPDX-License-Identifier: Apache-2.0 */
/* What a team's worker holds and takes, by stage of ZeRO.
 *
 *     mfl-bench-zero BACKEND DEPTH WIDTH WORKERS ZERO exact|float STEPS
 *
 * trains DEPTH dense layers of WIDTH by AdamW with WORKERS threads that have params of their own, as daemons of a team have (in stage
 * 3 they have them once, as daemons of a host), and eight grains of one row in a step. It prints the number of params, the resident bytes per param and worker above those of the
 * process before, and the median microseconds of a step. bench/zero.py makes a table of it. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "bench/samples.h"
#include "kernels/backend.h"
#include "kernels/team/team.h"

#define GRAINS 8
#define WORKERS_MAX 8
#define DEPTH_MAX 512

struct bench {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_data *data;
        struct mfl_graph *graph;
        struct mfl_dataset set;
        uint32_t n_steps;
        float *lent;  /* stage 3: the params of all */
        uint64_t *ns; /* of each step, of rank 0 */
};

struct rank {
        struct bench *bench;
        struct mfl_net *net;
        struct mfl_mesh *mesh;
        struct mfl_team *team;
};

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-zero: %s\n", err->text);
        exit(1);
}

static struct mfl_graph *deep_graph(int depth, int width)
{
        static struct mfl_layer layers[DEPTH_MAX + 2];
        struct mfl_graph *graph;
        struct mfl_error err;
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {1, {width}}};
        for (int i = 1; i <= depth; i++)
                layers[i] = (struct mfl_layer){
                        .op = MFL_OP_DENSE, .input = i - 1, .out_channels = width, .bias = true};
        layers[depth + 1] =
                (struct mfl_layer){.op = MFL_OP_DENSE, .input = depth, .out_channels = 10, .bias = true};
        must(mfl_graph_build("deep", layers, depth + 2, 10, &graph, &err), &err);
        return graph;
}

static uint64_t resident_bytes(void)
{
        unsigned long long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        mfl_assert(file && fscanf(file, "%*u %llu", &pages) == 1);
        fclose(file);
        return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void *run(void *arg)
{
        struct rank *rank = arg;
        struct bench *bench = rank->bench;
        const struct mfl_optimizer opt = {
                .kind = MFL_OPTIMIZER_ADAMW, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
        static const uint32_t index[GRAINS] = {0, 1, 2, 3, 4, 5, 6, 7}, count[1] = {GRAINS};
        struct mfl_error err;
        for (uint32_t t = 0; t < bench->n_steps; t++) {
                struct mfl_group_steps steps = {.index = index, .count = count, .step_first = t};
                uint64_t begin_ns = mfl_now_ns();
                must(mfl_team_step(rank->team, &bench->set, &bench->set.train, bench->data, &steps, 1, &opt,
                             NULL, &err),
                        &err);
                if (!rank->mesh->rank)
                        bench->ns[t] = mfl_now_ns() - begin_ns;
        }
        return NULL;
}

static void make_rank(struct bench *bench, struct mfl_mesh *mesh, const struct mfl_team_options *how,
        const float *params, struct rank *rank)
{
        const struct mfl_net_options options = {.batch = 1,
                .groups = 1,
                .threads = 1,
                .training = true,
                .worker = true,
                .lent = how->zero == 3,
                .moments = MFL_MOMENTS_ANY};
        uint64_t elements = bench->ops->grad->elements(bench->graph, &options);
        struct mfl_error err;
        *rank = (struct rank){.bench = bench, .mesh = mesh};
        must(bench->ops->net_new(bench->device, bench->graph, &options, &rank->net, &err), &err);
        if (options.lent && !bench->lent)
                bench->lent = mfl_alloc_aligned(elements * sizeof *bench->lent);
        if (options.lent)
                bench->ops->grad->lend(rank->net, bench->lent);
        must(mfl_backend_set(bench->ops, rank->net, bench->graph, 0, params, &err), &err);
        must(mfl_team_new(bench->ops, rank->net, &options.loss, mesh, how, &rank->team, &err), &err);
}

static int compare_times(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static void run_all(struct bench *bench, uint32_t workers, const struct mfl_team_options *how)
{
        struct mfl_mesh *meshes[WORKERS_MAX];
        struct rank ranks[WORKERS_MAX];
        pthread_t threads[WORKERS_MAX];
        struct mfl_error err;
        float *params = mfl_malloc((size_t)bench->graph->n * sizeof *params);
        mfl_assert(params);
        mfl_graph_init_params(bench->graph, 1, params);
        uint64_t before = resident_bytes();
        must(mfl_mesh_threads_new(workers, meshes, &err), &err);
        for (uint32_t r = 0; r < workers; r++)
                make_rank(bench, meshes[r], how, params, &ranks[r]);
        for (uint32_t r = 0; r < workers; r++)
                mfl_assert(!pthread_create(&threads[r], NULL, run, &ranks[r]));
        for (uint32_t r = 0; r < workers; r++)
                pthread_join(threads[r], NULL);
        double bytes = (double)(resident_bytes() - before) / workers / (double)bench->graph->n;
        qsort(bench->ns, bench->n_steps, sizeof *bench->ns, compare_times);
        printf("%llu %.2f %.0f\n", (unsigned long long)bench->graph->n, bytes,
                (double)bench->ns[bench->n_steps / 2] * 1e-3);
        for (uint32_t r = workers; r-- > 0;) {
                mfl_team_free(ranks[r].team);
                bench->ops->net_free(ranks[r].net);
                mfl_mesh_close(meshes[r]);
        }
        free(bench->lent);
        free(params);
}

int main(int argc, char **argv)
{
        struct mfl_error err;
        if (argc != 8) {
                fprintf(stderr, "usage: mfl-bench-zero BACKEND DEPTH WIDTH WORKERS ZERO exact|float STEPS\n");
                return 2;
        }
        int depth = atoi(argv[2]), width = atoi(argv[3]);
        uint32_t workers = (uint32_t)atoi(argv[4]);
        struct bench bench = {.n_steps = (uint32_t)MFL_MAX(1, atoi(argv[7]))};
        const struct mfl_team_options how = {.grain = 1,
                .step_rows = GRAINS,
                .zero = (uint32_t)atoi(argv[5]),
                .shared = atoi(argv[5]) == 3,
                .floats = !strcmp(argv[6], "float"),
                .moments = MFL_MOMENTS_ANY,
                .deadline_ms = 600000};
        mfl_assert(depth >= 1 && depth <= DEPTH_MAX && width >= 1 && workers >= 1 && workers <= WORKERS_MAX &&
                   how.zero <= MFL_TEAM_ZERO_MAX);
        bench.graph = deep_graph(depth, width);
        bench_samples_of(bench.graph, GRAINS, &bench.set);
        bench.ns = mfl_malloc(bench.n_steps * sizeof *bench.ns);
        mfl_assert(bench.ns);
        must(mfl_backend_open(argv[1], &bench.ops, &err), &err);
        must(bench.ops->device_open(&bench.device, &err), &err);
        must(bench.ops->data_new(bench.device, &bench.set, &bench.set.train, true, &bench.data, &err), &err);
        run_all(&bench, workers, &how);
        bench.ops->data_free(bench.data);
        bench.ops->device_close(bench.device);
        mfl_graph_free(bench.graph);
        bench_samples_deinit(&bench.set);
        free(bench.ns);
        return 0;
}
