/* SPDX-License-Identifier: Apache-2.0 */
/* Training speed of one network, and the peak that it could reach.
 *
 *     mfl-bench-train BACKEND MODEL BATCH THREADS STEPS [PRECISION]
 *                                                          median microseconds of a training step: by the
 *                                                          clock, and of processor time (of all threads)
 *                                                          MODEL: a preset, or an ONNX file
 *     mfl-bench-train peak THREADS                         measured GFLOP/s of fused multiply-adds
 *     mfl-bench-train flops MODEL                          operations of one sample's training step
 * The data, 60 random samples for each row of a batch, are resident; each step gathers a batch, computes loss
 * and gradients and takes a step of SGD (lr 0.05), as bench/train_torch.py does. A tenth of the steps, and at
 * least 3, come before those that count.
 */
#include <stdio.h>
#include <pthread.h>
#include <time.h>

#include "bench/samples.h"
#include "cli/onnx/onnx.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "kernels/backend.h"
#include "kernels/host.h"

#define BATCHES 60

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-train: %s\n", err->text);
        exit(1);
}

static int compare_times(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static uint64_t cpu_ns(clockid_t clock)
{
        struct timespec t;
        clock_gettime(clock, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct times {
        uint64_t *wall, *cpu; /* nanoseconds of each step */
};

static double median_us(uint64_t *times, uint32_t n)
{
        qsort(times, n, sizeof *times, compare_times);
        return (double)times[n / 2] * 1e-3;
}

/* Times single steps, over batches in a random order of samples; the first n_warm are not kept. */
static void time_steps(const struct mfl_backend_ops *ops, struct mfl_net *net,
        const struct mfl_device_data *data, uint32_t batch, uint32_t n_warm, uint32_t n_steps,
        struct times *times)
{
        struct mfl_error err;
        struct mfl_optimizer opt = {.lr = 0.05f};
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        uint32_t n = BATCHES * batch, *index = mfl_malloc(n * sizeof *index);
        mfl_assert(index);
        for (uint32_t i = 0; i < n; i++)
                index[i] = i;
        mfl_rng_shuffle(&rng, index, n);
        for (uint32_t t = 0; t < n_warm + n_steps; t++) {
                struct mfl_group_steps steps = {
                        .index = index + t % BATCHES * batch, .count = &batch, .step_first = t};
                uint64_t begin = mfl_now_ns(), cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
                must(ops->step(net, data, &steps, 1, &opt, &err), &err);
                if (t < n_warm)
                        continue;
                times->cpu[t - n_warm] = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
                times->wall[t - n_warm] = mfl_now_ns() - begin;
        }
        free(index);
}

/* A network and its data: of a preset, or of an ONNX file, as jobs have it. */
static void open_model(
        const char *model, uint32_t n, struct mfl_graph **ret_graph, struct mfl_dataset *ret_set)
{
        struct mfl_error err;
        struct mfl_onnx_model onnx;
        struct mfl_job *job;
        size_t end = strlen(model);
        if (end < 6 || strcmp(model + end - 5, ".onnx") != 0) {
                bench_samples_init(model, n, ret_set);
                must(mfl_graph_preset(model, &ret_set->shape, ret_set->classes, ret_graph, &err), &err);
                return;
        }
        MFL_CLEANUP_FREE char *bytes = NULL;
        must(mfl_fs_read(model, (size_t)1 << 30, &bytes, &end, &err), &err);
        must(mfl_onnx_convert((uint8_t *)bytes, end, model, NULL, &onnx, &err), &err);
        MFL_CLEANUP_FREE char *text = mfl_asprintf("name: bench\nrounds: 1\nmodel:\n  layers:\n%s"
                                                   "data: {name: d, partition: iid, clients: 1}\n"
                                                   "training: {lr: 0.05}\n",
                onnx.text);
        mfl_assert(text);
        must(mfl_job_parse(text, strlen(text), model, &job, &err), &err);
        must(mfl_job_graph(job, &onnx.input, onnx.classes, ret_graph, &err), &err);
        mfl_job_free(job);
        mfl_onnx_model_deinit(&onnx);
        bench_samples_of(*ret_graph, n, ret_set);
}

static int train(const char *backend, const char *model, int batch, int threads, uint32_t n_steps,
        enum mfl_precision precision)
{
        struct mfl_error err;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_data *data;
        struct mfl_graph *graph;
        struct mfl_net *net;
        struct mfl_dataset set;
        struct mfl_net_options options = {
                .batch = batch, .groups = 1, .threads = threads, .training = true, .precision = precision};
        open_model(model, BATCHES * (uint32_t)batch, &graph, &set);
        must(mfl_backend_open(backend, &ops, &err), &err);
        must(ops->device_open(&device, &err), &err);
        must(ops->net_new(device, graph, &options, &net, &err), &err);
        must(ops->data_new(device, &set, &set.train, true, &data, &err), &err);
        float *params = mfl_malloc((size_t)graph->n * sizeof *params);
        struct times times = {
                mfl_malloc(n_steps * sizeof *times.wall), mfl_malloc(n_steps * sizeof *times.cpu)};
        mfl_assert(params && times.wall && times.cpu);
        mfl_graph_init_params(graph, 1, params);
        must(mfl_backend_set(ops, net, graph, 0, params, &err), &err);
        time_steps(ops, net, data, (uint32_t)batch, MFL_MAX(3, n_steps / 10), n_steps, &times);
        printf("%.2f %.2f\n", median_us(times.wall, n_steps), median_us(times.cpu, n_steps));
        ops->data_free(data);
        ops->net_free(net);
        ops->device_close(device);
        mfl_graph_free(graph);
        bench_samples_deinit(&set);
        free(params);
        free(times.wall);
        free(times.cpu);
        return 0;
}

/* Chains of multiply-adds, more of them than the units' latency. */
#define PEAK_BODY(width)                                                                                     \
        typedef float vec __attribute__((vector_size(width)));                                               \
        vec a[12], b = (vec){0} + 0.999f, c = (vec){0} + 0.001f, sum = {0};                                  \
        for (int j = 0; j < 12; j++)                                                                         \
                a[j] = (vec){0} + (float)j;                                                                  \
        for (long i = 0; i < n; i++)                                                                         \
                for (int j = 0; j < 12; j++)                                                                 \
                        a[j] = a[j] * b + c;                                                                 \
        for (int j = 0; j < 12; j++)                                                                         \
                sum += a[j];                                                                                 \
        *ret = sum[0];                                                                                       \
        return (double)n * 12 * 2 * ((width) / 4)

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double peak_512(long n, volatile float *ret)
{
        PEAK_BODY(64);
}
__attribute__((target("avx2,fma"))) static double peak_256(long n, volatile float *ret)
{
        PEAK_BODY(32);
}
#endif
static double peak_128(long n, volatile float *ret)
{
        PEAK_BODY(16);
}

static double run_peak(long n)
{
        volatile float sink;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f"))
                return peak_512(n, &sink);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
                return peak_256(n, &sink);
#endif
        return peak_128(n, &sink);
}

/* The best of some rounds, in GFLOP/s; by this thread's time, since another program on the core must not make
 * the peak less. */
static void *measure_peak(void *arg)
{
        double best = 0;
        for (int round = 0; round < 10; round++) {
                uint64_t begin = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
                double flops = run_peak(5000000);
                double rate = flops / (double)(cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin);
                best = MFL_MAX(best, rate);
        }
        *(double *)arg = best;
        return NULL;
}

static int peak(int threads)
{
        pthread_t workers[64];
        double rates[64], sum = 0;
        mfl_assert(threads >= 1 && threads <= 64);
        for (int i = 0; i < threads; i++)
                mfl_assert(!pthread_create(&workers[i], NULL, measure_peak, &rates[i]));
        for (int i = 0; i < threads; i++) {
                pthread_join(workers[i], NULL);
                sum += rates[i];
        }
        printf("%.1f\n", sum);
        return 0;
}

static int flops(const char *model)
{
        struct mfl_error err;
        struct mfl_graph *graph;
        int classes;
        struct mfl_shape shape = bench_shape(model, &classes);
        uint64_t forward, training;
        must(mfl_graph_preset(model, &shape, classes, &graph, &err), &err);
        mfl_graph_flops(graph, &forward, &training);
        printf("%llu\n", (unsigned long long)training);
        mfl_graph_free(graph);
        return 0;
}

/* MFL_PRECISION_COUNT_ for no precision's name. */
static enum mfl_precision precision_of(const char *name)
{
        enum mfl_precision p = MFL_PRECISION_FP32;
        while (p < MFL_PRECISION_COUNT_ && strcmp(name, mfl_precision_name(p)))
                p++;
        return p;
}

int main(int argc, char **argv)
{
        enum mfl_precision precision = argc == 7 ? precision_of(argv[6]) : MFL_PRECISION_FP32;
        if (argc == 3 && !strcmp(argv[1], "peak"))
                return peak(atoi(argv[2]));
        if (argc == 3 && !strcmp(argv[1], "flops"))
                return flops(argv[2]);
        if ((argc == 6 || argc == 7) && atoi(argv[3]) > 0 && atoi(argv[4]) > 0 && atoi(argv[5]) > 0 &&
                precision < MFL_PRECISION_COUNT_)
                return train(
                        argv[1], argv[2], atoi(argv[3]), atoi(argv[4]), (uint32_t)atoi(argv[5]), precision);
        fprintf(stderr,
                "usage: mfl-bench-train BACKEND MODEL BATCH THREADS STEPS [PRECISION] | peak THREADS | flops "
                "MODEL\n");
        return 2;
}
