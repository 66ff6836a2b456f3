/* SPDX-License-Identifier: Apache-2.0 */
/* The files in which rows lie: what a disk answers that has no room, how little of them is in memory, and sums of buckets. */
#include "tests/unit/server/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/runtime/spill.h"

/* ---- a disk that answers as it is told ---- */

static int answer, calls_until; /* that call and later ones give the answer; 0: none does */
static int n_calls;

/* In the place of the C library's. */
int posix_fallocate(int fd, off_t offset, off_t n)
{
        n_calls++;
        if (answer && n_calls >= calls_until)
                return answer;
        return ftruncate(fd, offset + n) ? errno : 0;
}

static void answer_with(int code, int call)
{
        answer = code;
        calls_until = call;
        n_calls = 0;
}

static int count_files(const char *path)
{
        DIR *dir = opendir(path);
        int n = 0;
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
                n += entry->d_name[0] != '.';
        closedir(dir);
        return n;
}

static void a_disk_without_room(void **state)
{
        const struct {
                int code, want;
                const char *text;
        } cases[] = {{ENOSPC, MFL_STORE_FULL, "No space left on device"},
                {EDQUOT, MFL_STORE_FULL, "Disk quota exceeded"}, {EFBIG, MFL_INVALID, "File too large"},
                {EIO, -EIO, "Input/output error"}};
        struct fixture f;
        fixture_init(&f, MFL_STRATEGY_MEDIAN, 4);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_spill *spill = NULL;
                struct mfl_error err = {{0}};
                answer_with(cases[i].code, 1);
                assert_int_equal(mfl_spill_new(f.dir, "j-000001", 100, 3000, &spill, &err), cases[i].want);
                assert_non_null(strstr(err.text, cases[i].text));
                assert_non_null(strstr(err.text, "spill-j-000001"));
                assert_true(!spill && !count_files(f.dir));
                answer_with(0, 0);
                assert_int_equal(mfl_spill_new(f.dir, "j-000001", 100, 3000, &spill, &err), 0);
                assert_int_equal(count_files(f.dir), 0); /* no name: a crash leaves nothing behind */
                mfl_spill_free(spill);
        }
        fixture_deinit(&f);
}

static struct mfl_runtime_options options_of(const struct fixture *f, uint32_t cohort)
{
        return (struct mfl_runtime_options){.job = "j-000001",
                .spec = &f->spec,
                .graph = f->graph,
                .fixed = f->fixed,
                .n_slots = 1,
                .cohort = cohort,
                .n_threads = 2,
                .state_dir = f->dir};
}

/* foolsgold has a second file, and so have buckets' secure sums: the job waits for room for both, and keeps neither meanwhile. */
static void the_second_file_has_no_room(void **state)
{
        for (int buckets = 0; buckets < 2; buckets++) {
                struct fixture f;
                struct mfl_error err = {{0}};
                struct mfl_budget budget;
                struct mfl_runtime *rt = NULL;
                fixture_init(&f, buckets ? MFL_STRATEGY_MEDIAN : MFL_STRATEGY_FOOLSGOLD, 4);
                if (buckets) {
                        f.spec.secure.bits = 64;
                        f.spec.aggregation.robust.unit = MFL_ROWS_BUCKET;
                        f.spec.aggregation.robust.bucket = 3;
                }
                mfl_budget_init(&budget, 0);
                struct mfl_runtime_options options = options_of(&f, 8);
                options.budget = &budget;
                char path[96];
                snprintf(path, sizeof path, "%s/states", f.dir);
                options.states_path = path; /* foolsgold's */
                options.population = 8;
                for (int call = 1; call <= 2; call++) {
                        answer_with(EDQUOT, call);
                        assert_int_equal(mfl_runtime_open(&options, &rt, &err), MFL_STORE_FULL);
                        assert_int_equal(n_calls, call);
                        assert_non_null(strstr(err.text, "Disk quota exceeded"));
                        assert_true(!rt && !count_files(f.dir) && !mfl_budget_used(&budget));
                }
                answer_with(0, 0);
                assert_int_equal(mfl_runtime_open(&options, &rt, &err), 0);
                mfl_runtime_close(rt);
                assert_int_equal(mfl_budget_used(&budget), 0);
                fixture_deinit(&f);
        }
}

/* ---- memory ---- */

/* Bytes: the most that was resident since the last call of forget_peak. */
static uint64_t peak(void)
{
        char line[256];
        unsigned long long kilobytes = 0;
        FILE *f = fopen("/proc/self/status", "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f))
                if (sscanf(line, "VmHWM: %llu", &kilobytes) == 1)
                        break;
        fclose(f);
        return kilobytes * 1024;
}

static bool forget_peak(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        return false; /* its shadow of the rows would be counted as memory */
#endif
        int fd = open("/proc/self/clear_refs", O_WRONLY);
        bool done = fd >= 0 && write(fd, "5", 1) == 1;
        if (fd >= 0)
                close(fd);
        return done;
}

/* Rows of 80 MB in all: neither taking them in nor any pass over them has more than a part of them in memory. */
static void rows_are_not_in_memory(void **state)
{
        enum { ROWS = 200 };
        const enum mfl_strategy_kind kinds[] = {MFL_STRATEGY_MULTI_KRUM, MFL_STRATEGY_BULYAN,
                MFL_STRATEGY_MEDIAN, MFL_STRATEGY_CENTERED_CLIP, MFL_STRATEGY_FOOLSGOLD};
        if (!forget_peak()) {
                print_message("# memory can't be measured here\n");
                return;
        }
        for (size_t k = 0; k < 2 * MFL_ARRAY_SIZE(kinds) - 1; k++) { /* foolsgold has no buckets */
                struct fixture f;
                struct mfl_error err = {{0}};
                struct mfl_runtime *rt;
                uint8_t digest[MFL_DIGEST_BYTES];
                double method[MFL_METHOD_STATES_MAX];
                fixture_init(&f, kinds[k / 2], 100);
                f.spec.data.clients = ROWS;
                f.spec.aggregation.robust.f = 10;
                f.spec.aggregation.robust.unit = k % 2 ? MFL_ROWS_BUCKET : MFL_ROWS_CLIENT;
                f.spec.aggregation.robust.bucket = 2;
                struct mfl_runtime_options options = options_of(&f, ROWS);
                char path[96];
                snprintf(path, sizeof path, "%s/states", f.dir);
                options.states_path = path; /* foolsgold's */
                options.population = ROWS;
                uint64_t all = ROWS * f.n * sizeof(float);
                assert_true(all > 80000000);
                assert_int_equal(mfl_runtime_open(&options, &rt, &err), 0);
                assert_true(forget_peak());
                uint64_t before = peak();
                mfl_runtime_round_open(rt, 1);
                for (uint64_t i = 0; i < ROWS; i++)
                        fixture_add_f32(&f, rt, i, 1, 1);
                if (mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = ROWS}, digest, method, &err))
                        fail_msg("%s", err.text);
                uint64_t more = peak() - before;
                if (more > all / 2)
                        fail_msg("case %zu: %llu of %llu bytes of rows were in memory", k,
                                (unsigned long long)more, (unsigned long long)all);
                mfl_runtime_close(rt);
                fixture_deinit(&f);
        }
}

/* ---- sums of buckets ---- */

static void add_sum(struct fixture *f, struct mfl_runtime *rt, uint32_t bucket, uint64_t client, int64_t more)
{
        static uint64_t grants = 1000;
        struct mfl_error err;
        struct mfl_upload upload = {.grant = ++grants,
                .conn = 1,
                .task = client,
                .item = client,
                .bucket = bucket,
                .encoding = MFL_ENCODING_I64};
        int64_t *sum = mfl_calloc(f->n, sizeof *sum);
        float *delta = mfl_calloc(f->n, sizeof *delta);
        assert_true(sum && delta);
        for (uint64_t i = 0; i < f->n; i++)
                delta[i] = fixture_delta(client, 1, i);
        assert_int_equal(mfl_fixed_add_f32(&f->fixed, 1, delta, f->n, sum, &err), 0);
        sum[f->n / 2] += more;
        assert_true(mfl_slot_open(rt, 0, &upload));
        fixture_put(rt, 0, sum, 0, f->n * sizeof *sum);
        assert_int_equal(mfl_slot_add(rt, 0, &err), 0);
        mfl_slot_free(rt, 0);
        free(sum);
        free(delta);
}

/* Of clients 0 to 8 in three buckets, as nobody would draw them, with no masks left. */
static int unmask(struct mfl_runtime *rt, uint32_t bucket, uint64_t weight, struct mfl_error *err)
{
        struct mfl_leader_opening opening = {.figures = {[MFL_FIGURE_WEIGHT] = weight}};
        uint64_t clients[3] = {bucket, bucket + 3, bucket + 6};
        return mfl_runtime_unmask_bucket(rt, &opening, bucket, clients, 3, err);
}

/* A row is the exact mean of its clients, rounded once; what can't be a sum of such updates is no row, and harms no other. */
static void buckets_are_exact_means(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_runtime *rt;
        uint8_t digest[MFL_DIGEST_BYTES];
        double method[MFL_METHOD_STATES_MAX];
        struct mfl_checkpoint before, after;
        fixture_init(&f, MFL_STRATEGY_MEDIAN, 60);
        f.spec.secure.bits = 64;
        f.spec.aggregation.robust.unit = MFL_ROWS_BUCKET;
        f.spec.aggregation.robust.bucket = 3;
        struct mfl_runtime_options options = options_of(&f, 9);
        assert_int_equal(mfl_runtime_open(&options, &rt, &err), 0);
        float *start = mfl_calloc(f.n, sizeof *start);
        mfl_runtime_checkpoint(rt, &before);
        memcpy(start, before.params, f.n * sizeof *start);
        mfl_runtime_round_open(rt, 1);
        for (uint64_t k = 0; k < 9;
                k++) /* the second bucket has an element of more than three times delta_max */
                add_sum(&f, rt, (uint32_t)(k % 3), k, k == 4 ? (int64_t)ldexp(49, f.fixed.scale_bits) : 0);
        assert_int_equal(unmask(rt, 0, 3, &err), 0);
        assert_int_equal(unmask(rt, 1, 3, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "not one of valid updates"));
        assert_int_equal(unmask(rt, 2, 4, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "counts as another number than 1"));
        assert_int_equal(unmask(rt, 2, 3, &err), 0);
        if (mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 6}, digest, method, &err))
                fail_msg("%s", err.text);
        assert_int_equal(mfl_runtime_report(rt)->n_rows, 2);
        mfl_runtime_checkpoint(rt, &after);
        double scale = ldexp(1, f.fixed.scale_bits);
        for (uint64_t i = 0; i < f.n; i++) {
                float row[2];
                for (uint64_t b = 0; b < 2; b++) {
                        double sum = 0;
                        for (uint64_t k = 2 * b; k < 9; k += 3)
                                sum += rint((double)fixture_delta(k, 1, i) * scale);
                        row[b] = (float)(sum / 3 / scale);
                }
                double mean = ((double)row[0] + (double)row[1]) / 2;
                assert_true(after.params[i] == (float)((double)start[i] + mean));
        }
        /* A skipped round: what was opened of it has no effect. */
        memcpy(start, after.params, f.n * sizeof *start);
        mfl_runtime_round_open(rt, 2);
        for (uint64_t k = 0; k < 9; k++)
                add_sum(&f, rt, (uint32_t)(k % 3), k, 0);
        assert_int_equal(unmask(rt, 0, 3, &err), 0);
        assert_int_equal(
                mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 0}, digest, method, &err), 0);
        mfl_runtime_checkpoint(rt, &after);
        assert_memory_equal(after.params, start, f.n * sizeof *start);
        free(start);
        mfl_runtime_close(rt);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_not_in_memory),
                cmocka_unit_test(a_disk_without_room), cmocka_unit_test(the_second_file_has_no_room),
                cmocka_unit_test(buckets_are_exact_means)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
