/* SPDX-License-Identifier: Apache-2.0 */
/* How long a robust round's aggregation takes on the server, by rule: bench_rows [CLIENTS [THREADS]]
 *
 * A runtime as the server's, fedavg-cnn with 1,663,370 parameters, one row per client in the spill file below TMPDIR. The time
 * is of mfl_runtime_apply: pass 1, decision, pass 2, SHA-256. The peak of resident memory includes the slots' blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "server/runtime/runtime.h"

static double now(void)
{
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int r, const struct mfl_error *err)
{
        if (!r)
                return;
        fprintf(stderr, "%s\n", err->text);
        exit(1);
}

static void add_row(struct mfl_runtime *rt, uint32_t client, uint64_t n)
{
        struct mfl_error err;
        struct mfl_slot_write write;
        struct mfl_upload upload = {.grant = client + 1,
                .conn = 1,
                .task = 1,
                .weight = 1,
                .item = client,
                .encoding = MFL_ENCODING_F32};
        if (!mfl_slot_open(rt, 0, &upload))
                exit(1);
        must(mfl_slot_write_begin(rt, 0, 0, n * sizeof(float), &write, &err), &err);
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, client, 0);
        float *v = write.dst;
        for (uint64_t i = 0; i < n; i++)
                v[i] = mfl_u32_to_unit(mfl_rng_u32(&rng)) - 0.5f;
        mfl_slot_write_end(rt, &write, true);
        must(mfl_slot_add(rt, 0, &err), &err);
        mfl_slot_free(rt, 0);
}

static void run(const char *aggregation, uint32_t clients, uint32_t n_threads)
{
        char text[512];
        struct mfl_job *job;
        struct mfl_graph *graph;
        struct mfl_error err;
        const struct mfl_shape input = {3, {1, 28, 28}};
        snprintf(text, sizeof text,
                "name: bench\nrounds: 1\nmodel: fedavg-cnn\ndata: {name: d, partition: iid, clients: %u}\n"
                "training: {lr: 0.1}\naggregation: %s\n",
                clients, aggregation);
        must(mfl_job_parse(text, strlen(text), "bench", &job, &err), &err);
        must(mfl_job_graph(job, &input, 10, &graph, &err), &err);
        struct mfl_runtime_options options = {.job = "j-bench",
                .spec = job,
                .graph = graph,
                .n_slots = 2,
                .cohort = clients,
                .n_threads = n_threads,
                .state_dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp"};
        must(mfl_job_fixed(job, 60000, clients, &options.fixed, &err), &err);
        struct mfl_runtime *rt;
        must(mfl_runtime_open(&options, &rt, &err), &err);
        mfl_runtime_round_open(rt, 1);
        for (uint32_t k = 0; k < clients; k++)
                add_row(rt, k, graph->n_moving);
        uint8_t digest[MFL_DIGEST_BYTES];
        double method[MFL_METHOD_STATES_MAX], from = now(), processor = (double)clock() / CLOCKS_PER_SEC;
        must(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = clients}, digest, method, &err),
                &err);
        double seconds = now() - from;
        processor = (double)clock() / CLOCKS_PER_SEC - processor;
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        printf("%-62s %7.2f s  %7.2f s of CPU time  peak so far %4ld MB\n", aggregation, seconds, processor,
                usage.ru_maxrss / 1024);
        fflush(stdout);
        mfl_runtime_close(rt);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

int main(int argc, char **argv)
{
        static const char *const rules[] = {"{strategy: krum, f: 10}", "{strategy: multi-krum, f: 10}",
                "{strategy: rfa}", "{strategy: centered-clip, clip_radius: median}",
                "{strategy: bulyan, f: 10}", "{strategy: median}", "{strategy: trimmed-mean, f: 10}",
                "{strategy: mean-around-median, f: 10}", "{strategy: trimmed-mean, f: 10, before: nnm}"};
        uint32_t clients = argc > 1 ? (uint32_t)atoi(argv[1]) : 100,
                 n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 2;
        printf("%u clients, %u threads\n", clients, n_threads);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++)
                run(rules[i], clients, n_threads);
        return 0;
}
