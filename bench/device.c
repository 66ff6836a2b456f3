/* SPDX-License-Identifier: Apache-2.0 */
/* What one device does with local training: steps, fused clients, repeats.
 *
 *     mfl-bench-device step      microseconds of a step of --groups clients; those of the device alone, back
 * to back, and the rest as the host's share mfl-bench-device fusion    clients a second for 1, 2, 4, ..
 * --groups clients at once mfl-bench-device five      5 clients of --steps steps: one after another, in 5
 * threads, fused mfl-bench-device process   one process of several: the wall time of --steps steps, from
 * --start-at on mfl-bench-device sum       exact sums on the device, beside filling as much of its memory
 *     mfl-bench-device reduce    one rank of --ranks: adds the ranks' sums, and compares (device_sum.c)
 *     mfl-bench-device repeat    trains --repeats times the same; one digest, or exit status 1
 *
 * Options: --backend NAME (cuda) --model PRESET (lenet5) --batch N (10) --groups G (1) --precision P (fp32)
 * --fast --steps N (0: as many as --seconds need) --seconds S (1) --repeats N (100) --start-at UNIX_SECONDS
 * (so that several processes begin at once). reduce: --rank R --ranks N --id-file PATH (by which rank 0 tells
 * the others the communicator) --deadline MS --die (this rank is killed before the second reduction). Output:
 * one line of JSON for each measurement.
 *
 * Data: random byte images, or tokens, in the device's memory, 60 batches of them. A measurement takes whole
 * calls of the backend, as long as those of the trainer, after one that is not counted.
 */
#include "bench/device.h"

#include <getopt.h>
#include <stdio.h>
#include <time.h>

#include "bench/samples.h"
#include "common/base/digest.h"

#define BATCHES 60
#define GROUPS_MAX 4096

static const char *const precisions[] = {"fp32", "tf32", "bf16", "fp16"};

void bench_must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-device: %s\n", err->text);
        exit(rc == MFL_NOT_FOUND ? 77 : 1);
}

static void open_bench(struct bench *b)
{
        struct mfl_error err;
        bench_samples_init(b->model, BATCHES * (uint32_t)b->batch, &b->set);
        bench_must(mfl_backend_open(b->backend, &b->ops, &err), &err);
        bench_must(b->ops->device_open(&b->device, &err), &err);
        bench_must(mfl_graph_preset(b->model, &b->set.shape, b->set.classes, &b->graph, &err), &err);
        bench_must(b->ops->data_new(b->device, &b->set, &b->set.train, true, &b->data, &err), &err);
        b->params = mfl_malloc((size_t)b->graph->n * sizeof *b->params);
        mfl_assert(b->params);
        mfl_graph_init_params(b->graph, 1, b->params);
}

static void close_bench(struct bench *b)
{
        b->ops->data_free(b->data);
        b->ops->device_close(b->device);
        mfl_graph_free(b->graph);
        bench_samples_deinit(&b->set);
        free(b->params);
}

static struct mfl_net_options options_of(const struct bench *b, int groups)
{
        return (struct mfl_net_options){.batch = b->batch,
                .groups = groups,
                .threads = 1,
                .training = true,
                .precision = (enum mfl_precision)b->precision,
                .fast = b->fast,
                .shared_start = b->ops->params_base != NULL};
}

void bench_cohort_start(struct cohort *c)
{
        struct bench *b = c->bench;
        struct mfl_error err;
        if (b->ops->params_base)
                bench_must(
                        b->ops->params_base(c->net, b->params, b->params + b->graph->n_frozen, &err), &err);
        for (int g = 0; g < c->groups; g++)
                bench_must(mfl_backend_set(
                                   b->ops, c->net, b->graph, g, b->ops->params_base ? NULL : b->params, &err),
                        &err);
}

void bench_cohort_init(struct cohort *c, struct bench *b, int groups, uint32_t n_steps)
{
        struct mfl_error err;
        struct mfl_net_options options = options_of(b, groups);
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        size_t rows = (size_t)n_steps * (size_t)b->batch;
        *c = (struct cohort){.bench = b, .groups = groups, .n_steps = n_steps};
        bench_must(b->ops->net_new(b->device, b->graph, &options, &c->net, &err), &err);
        c->index = mfl_malloc((size_t)groups * rows * sizeof *c->index);
        c->count = mfl_malloc(n_steps * sizeof *c->count);
        c->steps = mfl_calloc((size_t)groups, sizeof *c->steps);
        mfl_assert(c->index && c->count && c->steps);
        for (size_t i = 0; i < (size_t)groups * rows; i++)
                c->index[i] = mfl_rng_below(&rng, b->set.train.n);
        for (uint32_t t = 0; t < n_steps; t++)
                c->count[t] = (uint32_t)b->batch;
        for (int g = 0; g < groups; g++)
                c->steps[g] = (struct mfl_group_steps){.index = c->index + (size_t)g * rows,
                        .count = c->count,
                        .dropout = mfl_rng_derive(3, MFL_RNG_DROPOUT, (uint64_t)g, 1)};
        bench_cohort_start(c);
}

void bench_cohort_deinit(struct cohort *c)
{
        c->bench->ops->net_free(c->net);
        free(c->index);
        free(c->count);
        free(c->steps);
}

void bench_cohort_step(struct cohort *c)
{
        struct mfl_error err;
        struct mfl_optimizer opt = {.lr = 0.01f};
        bench_must(c->bench->ops->step(c->net, c->bench->data, c->steps, c->n_steps, &opt, &err), &err);
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

/* Index tables of a call, at most. */
#define INDEX_BYTES_MAX ((size_t)256 << 20)

static uint32_t steps_at_most(const struct bench *b, int groups)
{
        size_t n = INDEX_BYTES_MAX / ((size_t)groups * (size_t)b->batch * sizeof(uint32_t));
        return b->steps ? b->steps : (uint32_t)MFL_MAX(1u, MFL_MIN(n, MFL_STEPS_MAX));
}

/* Makes calls of about 30 ms, as the trainer's are, unless --steps says how long they are. */
static void fit_call(struct cohort *c)
{
        uint32_t most = c->n_steps;
        for (c->n_steps = c->bench->steps ? most : 1;; c->n_steps = MFL_MIN(2 * c->n_steps, most)) {
                bench_cohort_step(c);
                uint64_t begin = mfl_now_ns();
                bench_cohort_step(c);
                if (mfl_now_ns() - begin > 15000000 || c->n_steps == most)
                        return;
        }
}

/* Median nanoseconds of a step; and those that the device takes when it need not wait for the host (negative:
 * not known), what is missing being the host's share. */
static double time_cohort(struct bench *b, int groups, double *ret_device)
{
        struct cohort c;
        struct mfl_error err;
        double times[10000], total = 0;
        size_t n = 0;
        bench_cohort_init(&c, b, groups, steps_at_most(b, groups));
        fit_call(&c);
        do {
                uint64_t begin = mfl_now_ns();
                bench_cohort_step(&c);
                double ns = (double)(mfl_now_ns() - begin);
                times[n++] = ns / c.n_steps;
                total += ns;
        } while ((total < b->seconds * 1e9 || n < 5) && n < MFL_ARRAY_SIZE(times));
        int rc = b->ops->time ? b->ops->time(c.net, MFL_TIMED_STEP, ret_device, &err) : MFL_INVALID;
        if (rc == MFL_INVALID)
                *ret_device = -1;
        else
                bench_must(rc, &err);
        bench_cohort_deinit(&c);
        qsort(times, n, sizeof *times, compare_doubles);
        return times[n / 2];
}

void bench_print_head(const struct bench *b, const char *what, int groups)
{
        struct mfl_device_info info;
        b->ops->device_info(b->device, &info);
        printf("{\"bench\": \"%s\", \"device\": \"%s\", \"model\": \"%s\", \"batch\": %d, \"precision\": "
               "\"%s\", "
               "\"fast\": %s, \"groups\": %d",
                what, info.name, b->model, b->batch, precisions[b->precision], b->fast ? "true" : "false",
                groups);
}

static int bench_step(struct bench *b)
{
        double device, ns = time_cohort(b, b->groups, &device);
        double host = device < 0 ? -1 : MFL_MAX(0.0, 1 - device / ns);
        uint64_t forward, training;
        mfl_graph_flops(b->graph, &forward, &training);
        bench_print_head(b, "step", b->groups);
        printf(", \"us\": %.3f, \"device_us\": %.3f, \"tflops\": %.4f, \"host_share\": %.4f}\n", ns * 1e-3,
                device < 0 ? -1 : device * 1e-3, (double)training * b->batch * b->groups / ns * 1e-3, host);
        return 0;
}

static int bench_fusion(struct bench *b)
{
        double one = 0, device;
        for (int g = 1; g <= b->groups; g *= 2) {
                double ns = time_cohort(b, g, &device);
                one = g == 1 ? ns : one;
                bench_print_head(b, "fusion", g);
                printf(", \"us\": %.3f, \"client_steps_per_s\": %.1f, \"gain\": %.2f}\n", ns * 1e-3,
                        g / ns * 1e9, one * g / ns);
                fflush(stdout);
        }
        return 0;
}

/* ---- five clients ---- */

#define FIVE 5

static void *run_thread(void *arg)
{
        bench_cohort_step(arg);
        return NULL;
}

/* Median milliseconds for all five; n cohorts of `groups` clients, in threads of their own or in turn. */
static double time_five(struct bench *b, int n, int groups, bool threads)
{
        struct cohort c[FIVE];
        double times[31];
        for (int i = 0; i < n; i++) {
                bench_cohort_init(&c[i], b, groups, b->steps);
                bench_cohort_step(&c[i]);
        }
        for (size_t t = 0; t < MFL_ARRAY_SIZE(times); t++) {
                uint64_t begin = mfl_now_ns();
                for (int i = 0; i < n; i++) {
                        if (threads)
                                mfl_assert(!pthread_create(&c[i].thread, NULL, run_thread, &c[i]));
                        else
                                bench_cohort_step(&c[i]);
                }
                for (int i = 0; threads && i < n; i++)
                        pthread_join(c[i].thread, NULL);
                times[t] = (double)(mfl_now_ns() - begin) * 1e-6;
        }
        for (int i = 0; i < n; i++)
                bench_cohort_deinit(&c[i]);
        qsort(times, MFL_ARRAY_SIZE(times), sizeof *times, compare_doubles);
        return times[MFL_ARRAY_SIZE(times) / 2];
}

static int bench_five(struct bench *b)
{
        const struct {
                const char *way;
                int n, groups;
                bool threads;
        } ways[] = {{"one after another", FIVE, 1, false}, {"5 threads", FIVE, 1, true},
                {"fused", 1, FIVE, false}};
        b->steps = b->steps ? b->steps : 10;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(ways); i++) {
                double ms = time_five(b, ways[i].n, ways[i].groups, ways[i].threads);
                bench_print_head(b, "five", ways[i].groups);
                printf(", \"way\": \"%s\", \"steps\": %u, \"ms\": %.4f}\n", ways[i].way, b->steps, ms);
        }
        return 0;
}

/* ---- repeats ---- */

static void digest_of(struct bench *b, struct cohort *c, uint8_t digest[MFL_SHA256_BYTES])
{
        struct mfl_error err;
        size_t n = (size_t)b->graph->n;
        float *all = mfl_malloc((size_t)c->groups * n * sizeof *all);
        mfl_assert(all);
        bench_cohort_start(c);
        bench_cohort_step(c);
        for (int g = 0; g < c->groups; g++)
                bench_must(b->ops->params_get(c->net, g, 0, all + (size_t)g * n, &err), &err);
        bench_must(mfl_sha256(all, (size_t)c->groups * n * sizeof *all, digest, &err), &err);
        free(all);
}

static void print_digest(const uint8_t digest[MFL_SHA256_BYTES])
{
        for (int i = 0; i < MFL_SHA256_BYTES; i++)
                printf("%02x", digest[i]);
}

static int bench_repeat(struct bench *b)
{
        struct cohort c;
        uint8_t first[MFL_SHA256_BYTES], again[MFL_SHA256_BYTES];
        int n_other = 0;
        bench_cohort_init(&c, b, b->groups, b->steps ? b->steps : 20);
        digest_of(b, &c, first);
        for (int i = 1; i < b->repeats; i++) {
                digest_of(b, &c, again);
                n_other += memcmp(first, again, sizeof first) != 0;
        }
        bench_cohort_deinit(&c);
        bench_print_head(b, "repeat", b->groups);
        printf(", \"repeats\": %d, \"differ\": %d, \"digest\": \"", b->repeats, n_other);
        print_digest(first);
        printf("\"}\n");
        return n_other != 0;
}

static void wait_for_start(const struct bench *b)
{
        struct timespec now;
        if (b->start_at <= 0)
                return;
        do
                clock_gettime(CLOCK_REALTIME, &now);
        while ((double)now.tv_sec + (double)now.tv_nsec * 1e-9 < b->start_at);
}

/* One of several processes: the wall time of --steps steps from a common start. */
static int bench_process(struct bench *b)
{
        struct cohort c;
        b->steps = b->steps ? b->steps : 10;
        bench_cohort_init(&c, b, b->groups, b->steps);
        bench_cohort_step(&c);
        wait_for_start(b);
        uint64_t begin = mfl_now_ns();
        for (int i = 0; i < 31; i++)
                bench_cohort_step(&c);
        bench_print_head(b, "process", b->groups);
        printf(", \"steps\": %u, \"ms\": %.4f}\n", b->steps, (double)(mfl_now_ns() - begin) * 1e-6 / 31);
        bench_cohort_deinit(&c);
        return 0;
}

static int usage(void)
{
        fprintf(stderr,
                "usage: mfl-bench-device step|fusion|five|process|repeat|sum|reduce [--backend NAME] "
                "[--model PRESET]\n"
                "       [--batch N] [--groups G] [--precision fp32|tf32|bf16|fp16] [--fast] [--steps N]\n"
                "       [--seconds S] [--repeats N] [--start-at UNIX_SECONDS]\n"
                "       [--rank R --ranks N --id-file PATH] [--deadline MS] [--die]\n");
        return 2;
}

static bool parse(struct bench *b, int argc, char **argv)
{
        static const struct option options[] = {{"backend", 1, 0, 'b'}, {"model", 1, 0, 'm'},
                {"batch", 1, 0, 'n'}, {"groups", 1, 0, 'g'}, {"precision", 1, 0, 'p'}, {"fast", 0, 0, 'f'},
                {"steps", 1, 0, 's'}, {"seconds", 1, 0, 't'}, {"repeats", 1, 0, 'r'}, {"start-at", 1, 0, 'a'},
                {"rank", 1, 0, 'R'}, {"ranks", 1, 0, 'N'}, {"id-file", 1, 0, 'i'}, {"deadline", 1, 0, 'd'},
                {"die", 0, 0, 'x'}, {0}};
        for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
                switch (o) {
                case 'b':
                        b->backend = optarg;
                        break;
                case 'm':
                        b->model = optarg;
                        break;
                case 'n':
                        b->batch = atoi(optarg);
                        break;
                case 'g':
                        b->groups = atoi(optarg);
                        break;
                case 'p':
                        for (b->precision = 0; b->precision < 4; b->precision++)
                                if (!strcmp(precisions[b->precision], optarg))
                                        break;
                        break;
                case 'f':
                        b->fast = true;
                        break;
                case 's':
                        b->steps = (uint32_t)atoi(optarg);
                        break;
                case 't':
                        b->seconds = atof(optarg);
                        break;
                case 'r':
                        b->repeats = atoi(optarg);
                        break;
                case 'a':
                        b->start_at = atof(optarg);
                        break;
                case 'R':
                        b->rank = (uint32_t)atoi(optarg);
                        break;
                case 'N':
                        b->n_ranks = (uint32_t)atoi(optarg);
                        break;
                case 'i':
                        b->id_file = optarg;
                        break;
                case 'd':
                        b->deadline_ms = (uint32_t)atoi(optarg);
                        break;
                case 'x':
                        b->die = true;
                        break;
                default:
                        return false;
                }
        }
        return b->batch > 0 && b->groups > 0 && b->groups <= GROUPS_MAX && b->precision < 4 &&
               b->repeats > 0 && b->steps <= MFL_STEPS_MAX && b->rank < b->n_ranks && optind + 1 == argc;
}

int main(int argc, char **argv)
{
        static const struct {
                const char *name;
                int (*run)(struct bench *b);
        } modes[] = {{"step", bench_step}, {"fusion", bench_fusion}, {"five", bench_five},
                {"process", bench_process}, {"repeat", bench_repeat}, {"sum", bench_sum},
                {"reduce", bench_reduce}};
        struct bench b = {.backend = "cuda",
                .model = "lenet5",
                .batch = 10,
                .groups = 1,
                .repeats = 100,
                .seconds = 1,
                .n_ranks = 1,
                .deadline_ms = 60000};
        if (!parse(&b, argc, argv))
                return usage();
        for (size_t i = 0; i < MFL_ARRAY_SIZE(modes); i++) {
                if (strcmp(argv[optind], modes[i].name))
                        continue;
                open_bench(&b);
                int r = modes[i].run(&b);
                close_bench(&b);
                return r;
        }
        return usage();
}
