/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums on the device and between devices: what they cost, beside what moving as many bytes costs.
 *
 * sum: `fill` (a sum is zeroed: 8 n bytes are written) is the floor; `move` reads 4 n + 8 n, reads and writes
 * 16 n and zeroes 8 n; `add` reads 8 n for each client and reads and writes 16 n; `read` is the way of 8 n
 * bytes to the host.
 *
 * reduce: a process for each rank. Rank r's sum is the same client's update with weight r + 1, so rank 0 can
 * work out the total by itself: the comparison is exact. With --die the named rank is killed before its
 * second reduction; the others then say how long they took to notice and to close.
 */
#include "bench/device.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 1 << 20};

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

/* A network after one call of training, and a sum. */
struct summing {
        struct bench *b;
        struct cohort cohort;
        struct mfl_sum *sum;
        uint64_t n, *weight, *n_bad;
        int64_t *host;
};

static void summing_init(struct summing *s, struct bench *b)
{
        struct mfl_error err;
        size_t groups = (size_t)b->groups;
        *s = (struct summing){.b = b, .n = b->graph->n_moving};
        bench_cohort_init(&s->cohort, b, b->groups, 4);
        bench_cohort_step(&s->cohort);
        bench_must(b->ops->sum_new(b->device, s->n, &s->sum, &err), &err);
        s->weight = mfl_calloc(groups, sizeof *s->weight);
        s->n_bad = mfl_calloc(groups, sizeof *s->n_bad);
        s->host = mfl_calloc((size_t)s->n, sizeof *s->host);
        mfl_assert(s->weight && s->n_bad && s->host);
}

static void summing_deinit(struct summing *s)
{
        s->b->ops->sum_free(s->sum);
        bench_cohort_deinit(&s->cohort);
        free(s->weight);
        free(s->n_bad);
        free(s->host);
}

enum what { FILL, ADD, MOVE, READ };

static void do_once(struct summing *s, enum what what)
{
        const struct mfl_backend_ops *ops = s->b->ops;
        struct mfl_error err;
        int rc = what == FILL   ? ops->sum_clear(s->sum, &err)
                 : what == ADD  ? ops->sum_add(s->cohort.net, &fixed, s->weight, s->n_bad, &err)
                 : what == MOVE ? ops->sum_move(s->cohort.net, s->sum, &err)
                                : ops->sum_read(s->sum, s->host, NULL, &err);
        bench_must(rc, &err);
}

static double time_once(struct summing *s, enum what what)
{
        double times[51];
        do_once(s, what);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(times); i++) {
                uint64_t begin = mfl_now_ns();
                do_once(s, what);
                times[i] = (double)(mfl_now_ns() - begin);
        }
        qsort(times, MFL_ARRAY_SIZE(times), sizeof *times, compare_doubles);
        return times[MFL_ARRAY_SIZE(times) / 2];
}

int bench_sum(struct bench *b)
{
        static const char *const names[] = {"fill", "add", "move", "read"};
        if (!b->ops->sum_new) {
                fprintf(stderr, "mfl-bench-device: the backend %s has no sums that outlive a task\n",
                        b->ops->name);
                return 77;
        }
        struct summing s;
        summing_init(&s, b);
        const double bytes[] = {8, 8.0 * b->groups + 16, 36, 8};
        for (int g = 0; g < b->groups; g++)
                s.weight[g] = 1;
        for (int what = FILL; what <= READ; what++) {
                double ns = time_once(&s, (enum what)what);
                bench_print_head(b, "sum", b->groups);
                printf(", \"way\": \"%s\", \"params\": %llu, \"us\": %.1f, \"gb_per_s\": %.2f}\n",
                        names[what], (unsigned long long)s.n, ns * 1e-3, bytes[what] * (double)s.n / ns);
        }
        summing_deinit(&s);
        return 0;
}

/* ---- between devices ---- */

static void sum_of_rank(struct summing *s, uint32_t rank)
{
        struct mfl_error err;
        for (int g = 0; g < s->b->groups; g++)
                s->weight[g] = rank + 1;
        bench_must(s->b->ops->sum_clear(s->sum, &err), &err);
        do_once(s, ADD);
        do_once(s, MOVE);
}

/* By a file that appears whole. */
static bool share_id(const struct bench *b, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err)
{
        char part[4096];
        struct timespec nap = {.tv_nsec = 2000000};
        snprintf(part, sizeof part, "%s.part", b->id_file);
        if (b->rank == 0) {
                bench_must(b->ops->comm->id(b->device, id, err), err);
                FILE *f = fopen(part, "wb");
                bool ok = f && fwrite(id, MFL_COMM_ID_BYTES, 1, f) == 1;
                return f && !fclose(f) && ok && !rename(part, b->id_file);
        }
        for (uint64_t end = mfl_now_ms() + b->deadline_ms; mfl_now_ms() < end; nanosleep(&nap, NULL)) {
                FILE *f = fopen(b->id_file, "rb");
                bool ok = f && fread(id, MFL_COMM_ID_BYTES, 1, f) == 1;
                if (f)
                        fclose(f);
                if (ok)
                        return true;
        }
        return false;
}

static bool is_total(struct summing *s, const int64_t *out)
{
        uint64_t *total = mfl_calloc((size_t)s->n, sizeof *total);
        mfl_assert(total);
        for (uint32_t r = 0; r < s->b->n_ranks; r++) {
                sum_of_rank(s, r);
                do_once(s, READ);
                for (uint64_t i = 0; i < s->n; i++)
                        total[i] += (uint64_t)s->host[i];
        }
        bool same = !memcmp(total, out, (size_t)s->n * sizeof *total);
        free(total);
        return same;
}

static void print_rank(const struct bench *b, uint64_t n)
{
        bench_print_head(b, "reduce", b->groups);
        printf(", \"rank\": %u, \"ranks\": %u, \"params\": %llu", b->rank, b->n_ranks, (unsigned long long)n);
}

/* The others of a rank that was killed. */
static int report_broken(
        const struct bench *b, struct mfl_comm *comm, uint64_t n, double ms, const char *text)
{
        uint64_t begin = mfl_now_ns();
        b->ops->comm->close(comm);
        print_rank(b, n);
        printf(", \"broken_ms\": %.1f, \"close_ms\": %.1f, \"text\": \"", ms,
                (double)(mfl_now_ns() - begin) * 1e-6);
        for (; *text; text++)
                putchar(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? ' ' : *text);
        printf("\"}\n");
        return 3;
}

static int run_rank(struct summing *s, const uint8_t *id)
{
        struct bench *b = s->b;
        struct mfl_comm_control control = {0};
        struct mfl_comm *comm = NULL;
        struct mfl_error err = {""};
        double *times = mfl_calloc((size_t)b->repeats, sizeof *times);
        int64_t *out = b->rank == 0 ? mfl_calloc((size_t)s->n, sizeof *out) : NULL;
        mfl_assert(times && (out || b->rank > 0));
        uint64_t begin = mfl_now_ns();
        bench_must(
                b->ops->comm->open(b->device, id, b->rank, b->n_ranks, b->deadline_ms, &control, &comm, &err),
                &err);
        double open_ms = (double)(mfl_now_ns() - begin) * 1e-6;
        int rc = 0;
        for (int i = 0; !rc && i < b->repeats; i++) {
                if (b->die && i == 1)
                        kill(getpid(), SIGKILL);
                begin = mfl_now_ns();
                rc = b->ops->comm->reduce(comm, s->sum, 0, out, b->deadline_ms, &control, &err);
                times[i] = (double)(mfl_now_ns() - begin) * 1e-6;
                if (rc)
                        rc = report_broken(b, comm, s->n, times[i], err.text);
        }
        if (!rc) {
                double first = times[0];
                b->ops->comm->close(comm);
                qsort(times, (size_t)b->repeats, sizeof *times, compare_doubles);
                double ms = times[b->repeats / 2], read_ms = time_once(s, READ) * 1e-6;
                bool exact = !out || is_total(s, out);
                print_rank(b, s->n);
                printf(", \"open_ms\": %.1f, \"first_ms\": %.2f, \"ms\": %.3f, \"gb_per_s\": %.2f, "
                       "\"read_ms\": %.3f%s}\n",
                        open_ms, first, ms, 8e-6 * (double)s->n / ms, read_ms,
                        !out    ? ""
                        : exact ? ", \"exact\": true"
                                : ", \"exact\": false");
                rc = !exact;
        }
        free(times);
        free(out);
        return rc;
}

int bench_reduce(struct bench *b)
{
        char text[64];
        uint32_t version;
        uint8_t id[MFL_COMM_ID_BYTES];
        struct mfl_error err = {""};
        int rc = b->ops->comm
                         ? b->ops->comm->version(b->device, text, &version, &err)
                         : mfl_fail(&err, MFL_INVALID, "the backend %s has no communicators", b->ops->name);
        if (!rc && !b->id_file)
                rc = mfl_fail(&err, MFL_INVALID, "reduce needs --id-file");
        if (rc) {
                fprintf(stderr, "mfl-bench-device: %s\n", err.text);
                return 77;
        }
        if (!share_id(b, id, &err)) {
                fprintf(stderr, "mfl-bench-device: no id in %s\n", b->id_file);
                return 1;
        }
        struct summing s;
        summing_init(&s, b);
        sum_of_rank(&s, b->rank);
        rc = run_rank(&s, id);
        summing_deinit(&s);
        return rc;
}
