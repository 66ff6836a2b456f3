/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker of a team holds for each param, as the table in kernels/team/team.h says: by the allocator's own count. */
#include "tests/lib/test.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>

#include "kernels/team/team.h"

#define WIDTH 256
#define DEPTH 72
#define DEPTH_LESS 8
#define HUGE_PAGE (2 << 20)
#define ROWS 8
#define GRAIN 1
#define RANKS_MAX 8
#define STEPS 2

static const struct mfl_backend_ops *cpu;
static struct mfl_device *cpu_device;

/* Many layers, each small beside the whole. */
static struct mfl_graph *deep_graph(int depth)
{
        static struct mfl_layer layers[DEPTH + 2];
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {1, {WIDTH}}};
        for (int i = 1; i <= depth; i++)
                layers[i] = (struct mfl_layer){.op = MFL_OP_DENSE,
                        .input = i - 1,
                        .out_channels = i < depth ? WIDTH : 10,
                        .bias = true};
        if (mfl_graph_build("deep", layers, depth + 1, 10, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

struct bed {
        struct mfl_graph *graph;
        struct mfl_dataset set;
        struct mfl_device_data *data;
        float *params;
        struct mfl_team_options how;
        struct mfl_net_options options;
};

struct rank {
        const struct bed *bed;
        struct mfl_mesh *mesh;
        struct mfl_net *net;
        struct mfl_team *team;
        struct mfl_error err;
        int rc;
};

static void *work(void *arg)
{
        struct rank *rank = arg;
        static const uint32_t index[STEPS * ROWS], count[STEPS] = {ROWS, ROWS};
        const struct mfl_optimizer opt = {
                .kind = MFL_OPTIMIZER_ADAMW, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
        struct mfl_group_steps steps = {.index = index, .count = count};
        rank->rc = mfl_team_step(rank->team, &rank->bed->set, &rank->bed->set.train, rank->bed->data, &steps,
                STEPS, &opt, NULL, &rank->err);
        if (rank->rc)
                rank->mesh->ops->abort(rank->mesh, rank->err.text);
        return NULL;
}

static uint64_t allocated(void)
{
        struct mallinfo2 info = mallinfo2();
        return info.uordblks + info.hblkhd;
}

/* Bytes of each of n ranks with params of its own, after some steps, which are no more than net_bytes and mfl_team_bytes say. */
static double measure(const struct bed *bed, uint32_t n)
{
        struct mfl_mesh *mesh[RANKS_MAX];
        struct rank ranks[RANKS_MAX];
        pthread_t threads[RANKS_MAX];
        struct mfl_error err = {""};
        assert_int_equal(mfl_mesh_threads_new(n, mesh, NULL), 0);
        uint64_t before = allocated();
        for (uint32_t r = 0; r < n; r++) {
                ranks[r] = (struct rank){.bed = bed, .mesh = mesh[r]};
                assert_int_equal(cpu->net_new(cpu_device, bed->graph, &bed->options, &ranks[r].net, &err), 0);
                assert_int_equal(mfl_backend_set(cpu, ranks[r].net, bed->graph, 0, bed->params, &err), 0);
                assert_int_equal(mfl_team_new(cpu, ranks[r].net, &bed->options.loss, mesh[r], &bed->how,
                                         &ranks[r].team, &err),
                        0);
        }
        for (uint32_t r = 0; r < n; r++)
                assert_int_equal(pthread_create(&threads[r], NULL, work, &ranks[r]), 0);
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
        double bytes = (double)(allocated() - before) / n;
        assert_true(bytes <= (double)(cpu->net_bytes(bed->graph, &bed->options) +
                                      mfl_team_bytes(cpu, bed->graph, &bed->options, &bed->how, n)));
        for (uint32_t r = 0; r < n; r++) {
                if (ranks[r].rc)
                        fail_msg("%s", ranks[r].err.text);
                mfl_team_free(ranks[r].team);
                cpu->net_free(ranks[r].net);
                mfl_mesh_close(mesh[r]);
        }
        return bytes;
}

static void new_bed(int depth, struct bed *bed)
{
        static float x[ROWS * WIDTH];
        static int32_t labels[ROWS];
        struct mfl_error err = {""};
        *bed = (struct bed){.graph = deep_graph(depth),
                .set = {.shape = {1, {WIDTH}},
                        .classes = 10,
                        .train = {.n = ROWS, .dtype = MFL_F32, .samples = x, .labels = labels}},
                .options = {.batch = GRAIN,
                        .groups = 1,
                        .threads = 1,
                        .training = true,
                        .worker = true,
                        .moments = MFL_MOMENTS_ANY}};
        bed->params = mfl_malloc((size_t)bed->graph->n * sizeof *bed->params);
        assert_non_null(bed->params);
        mfl_graph_init_params(bed->graph, 1, bed->params);
        assert_int_equal(cpu->data_new(cpu_device, &bed->set, &bed->set.train, true, &bed->data, &err), 0);
}

static void free_bed(struct bed *bed)
{
        cpu->data_free(bed->data);
        mfl_graph_free(bed->graph);
        free(bed->params);
}

/* The four vectors of a rank, and in *ret_slack what the allocator may add: a large vector begins at a huge page. */
static double expected(const struct bed *bed, uint32_t zero, uint32_t ranks, double size, double *ret_slack)
{
        double n = (double)bed->graph->n, own = zero > 0 && ranks > 1 ? n / ranks : n, sum = 0;
        const double vectors[] = {4 * n, size * (zero == 2 ? own : n), 4 * own, 4 * own};
        *ret_slack = HUGE_PAGE;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(vectors); i++) {
                sum += vectors[i];
                *ret_slack += vectors[i] >= 4 * HUGE_PAGE ? HUGE_PAGE : 0; /* common/base/base.c */
        }
        return sum;
}

/* Between a small and a large network, so that what does not grow with the params is left out. */
static void a_rank_holds_what_its_stage_says(void **state)
{
        static const struct {
                uint32_t zero, n;
                bool floats, overlap;
        } cases[] = {{0, 1, false, false}, {0, 2, false, true}, {1, 2, false, true}, {1, 4, false, false},
                {2, 2, false, false}, {2, 4, false, true}, {2, 8, false, false}, {0, 2, true, false},
                {1, 4, true, false}};
        struct bed small, large;
        new_bed(DEPTH_LESS, &small);
        new_bed(DEPTH, &large);
        double params = (double)(large.graph->n - small.graph->n);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                double size = cases[i].floats ? 4 : 8;
                double slack, none,
                        want = expected(&large, cases[i].zero, cases[i].n, size, &slack) -
                               expected(&small, cases[i].zero, cases[i].n, size, &none);
                small.how = large.how = (struct mfl_team_options){.grain = GRAIN,
                        .step_rows = ROWS,
                        .zero = cases[i].zero,
                        .floats = cases[i].floats,
                        .overlap = cases[i].overlap,
                        .moments = MFL_MOMENTS_ANY,
                        .bucket_bytes = 65536,
                        .deadline_ms = 60000};
                double bytes = measure(&large, cases[i].n) - measure(&small, cases[i].n);
                print_message("# zero %u, %u ranks%s: %.2f bytes a param, the table says %.2f\n",
                        cases[i].zero, cases[i].n, cases[i].floats ? ", floats" : "", bytes / params,
                        want / params);
                assert_true(bytes > 0.95 * want - slack && bytes < 1.05 * want + slack);
        }
        free_bed(&small);
        free_bed(&large);
}

static int open_device(void **state)
{
        return cpu->device_open(&cpu_device, NULL);
}

static int close_device(void **state)
{
        cpu->device_close(cpu_device);
        return 0;
}

/* A sanitizer's allocator does not tell mallinfo2. */
static bool allocator_counts(void)
{
        void *volatile probe = mfl_malloc(1 << 20);
        bool counts = allocated() >= 1 << 20;
        free(probe);
        return counts;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_rank_holds_what_its_stage_says),
        };
        const char *lacks = !allocator_counts() ? "the allocator does not count what it has given"
                            : mfl_backend_open("cpu", &cpu, NULL)
                                    ? "this build has no CPU backend (Debian: libdnnl-dev)"
                                    : NULL;
        if (lacks) {
                printf("1..0 # SKIP %s\n", lacks);
                return 0;
        }
        return cmocka_run_group_tests(tests, open_device, close_device);
}
