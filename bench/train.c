/* SPDX-License-Identifier: Apache-2.0 */
/* Training speed of one network, and the peak that it could reach.
 *
 *     mfl-bench-train BACKEND MODEL BATCH THREADS STEPS    median microseconds of a training step
 *     mfl-bench-train peak THREADS                         measured GFLOP/s of fused multiply-adds
 *     mfl-bench-train flops MODEL                          operations of one sample's training step
 * The data, 60 random images for each row of a batch, are resident as bytes; each step gathers a batch,
 * computes loss and gradients and takes a step of SGD (lr 0.05), as bench/train_torch.py does.
 */
#include <stdio.h>
#include <pthread.h>
#include <time.h>

#include "kernels/backend.h"

#define BATCHES 60

static struct mfl_shape input_of(const char *model)
{
        bool cifar = !strcmp(model, "pfl-cnn") || !strncmp(model, "resnet", 6);
        return cifar ? (struct mfl_shape){3, {3, 32, 32}} : (struct mfl_shape){3, {1, 28, 28}};
}

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

static void make_set(struct mfl_dataset *set, const struct mfl_shape *shape, uint32_t n)
{
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        size_t count = (size_t)mfl_shape_count(shape);
        uint8_t *pixels = mfl_malloc(n * count);
        int32_t *labels = mfl_malloc(n * sizeof *labels);
        mfl_assert(pixels && labels);
        for (size_t i = 0; i < n * count; i++)
                pixels[i] = (uint8_t)mfl_rng_u32(&rng);
        for (uint32_t i = 0; i < n; i++)
                labels[i] = (int32_t)mfl_rng_below(&rng, 10);
        *set = (struct mfl_dataset){.shape = *shape, .classes = 10, .train = {n, MFL_U8, pixels, labels}};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                set->scale[c] = 1.0f / 255.0f;
}

/* Times single steps, over batches in a random order of samples. */
static void time_steps(const struct mfl_backend_ops *ops, struct mfl_net *net,
        const struct mfl_device_data *data, uint32_t batch, uint32_t n_steps, uint64_t *times)
{
        struct mfl_error err;
        struct mfl_optimizer opt = {.lr = 0.05f};
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        uint32_t n = BATCHES * batch, *index = mfl_malloc(n * sizeof *index);
        mfl_assert(index);
        for (uint32_t i = 0; i < n; i++)
                index[i] = i;
        mfl_rng_shuffle(&rng, index, n);
        for (uint32_t t = 0; t < n_steps; t++) {
                struct mfl_group_steps steps = {
                        .index = index + t % BATCHES * batch, .count = &batch, .step_first = t};
                uint64_t begin = mfl_now_ns();
                must(ops->step(net, data, &steps, 1, &opt, &err), &err);
                times[t] = mfl_now_ns() - begin;
        }
        free(index);
}

static int train(const char *backend, const char *model, int batch, int threads, uint32_t n_steps)
{
        struct mfl_error err;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_data *data;
        struct mfl_graph *graph;
        struct mfl_net *net;
        struct mfl_dataset set;
        struct mfl_shape shape = input_of(model);
        struct mfl_net_options options = {.batch = batch, .groups = 1, .threads = threads, .training = true};
        must(mfl_backend_open(backend, &ops, &err), &err);
        must(ops->device_open(&device, &err), &err);
        must(mfl_graph_preset(model, &shape, 10, &graph, &err), &err);
        must(ops->net_new(device, graph, &options, &net, &err), &err);
        make_set(&set, &shape, BATCHES * (uint32_t)batch);
        must(ops->data_new(device, &set, &set.train, true, &data, &err), &err);
        float *params = mfl_malloc((size_t)graph->n * sizeof *params);
        uint64_t *times = mfl_malloc(n_steps * sizeof *times);
        mfl_assert(params && times);
        mfl_graph_init_params(graph, 1, params);
        must(mfl_backend_set(ops, net, graph, 0, params, &err), &err);
        time_steps(ops, net, data, (uint32_t)batch, n_steps, times);
        qsort(times, n_steps, sizeof *times, compare_times);
        printf("%.2f\n", (double)times[n_steps / 2] * 1e-3);
        ops->data_free(data);
        ops->net_free(net);
        ops->device_close(device);
        mfl_graph_free(graph);
        free(set.train.samples);
        free(set.train.labels);
        free(params);
        free(times);
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

/* Of this thread: another program on the core must not make the peak less. */
static uint64_t cpu_ns(void)
{
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The best of some rounds, in GFLOP/s. */
static void *measure_peak(void *arg)
{
        double best = 0;
        for (int round = 0; round < 10; round++) {
                uint64_t begin = cpu_ns();
                double flops = run_peak(5000000);
                double rate = flops / (double)(cpu_ns() - begin);
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
        struct mfl_shape shape = input_of(model);
        uint64_t forward, training;
        must(mfl_graph_preset(model, &shape, 10, &graph, &err), &err);
        mfl_graph_flops(graph, &forward, &training);
        printf("%llu\n", (unsigned long long)training);
        mfl_graph_free(graph);
        return 0;
}

int main(int argc, char **argv)
{
        if (argc == 3 && !strcmp(argv[1], "peak"))
                return peak(atoi(argv[2]));
        if (argc == 3 && !strcmp(argv[1], "flops"))
                return flops(argv[2]);
        if (argc == 6 && atoi(argv[3]) > 0 && atoi(argv[4]) > 0 && atoi(argv[5]) > 0)
                return train(argv[1], argv[2], atoi(argv[3]), atoi(argv[4]), (uint32_t)atoi(argv[5]));
        fprintf(stderr,
                "usage: mfl-bench-train BACKEND MODEL BATCH THREADS STEPS | peak THREADS | flops MODEL\n");
        return 2;
}
