/* SPDX-License-Identifier: Apache-2.0 */
/* The memory budget, the bounded allocator, and the reading of cgroups below a made-up root. */
#include "tests/lib/test.h"
#include "common/base/bounded.h"
#include "common/base/budget.h"
#include "common/base/fs.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)

static void reservations_end_at_the_limit(void **state)
{
        struct mfl_budget budget;
        struct mfl_error err;
        mfl_budget_init(&budget, 4 * GIB);
        assert_int_equal(mfl_budget_reserve(&budget, 3 * GIB, "slots", &err), 0);
        assert_int_equal(mfl_budget_reserve(&budget, GIB + 1, "params of job 7", &err), MFL_BUSY);
        assert_string_equal(
                err.text, "memory: 1.0 GiB for params of job 7: only 1.0 GiB of 4.0 GiB are free");
        assert_int_equal(mfl_budget_reserve(&budget, UINT64_MAX, "all", &err), MFL_BUSY);
        assert_int_equal(mfl_budget_reserve(&budget, GIB, "params", &err), 0);
        assert_true(mfl_budget_used(&budget) == 4 * GIB);
        mfl_budget_release(&budget, 3 * GIB);
        assert_true(mfl_budget_used(&budget) == GIB);
        mfl_budget_init(&budget, 0);
        assert_int_equal(mfl_budget_reserve(&budget, UINT64_MAX - 1, "all", &err), 0);
        assert_int_equal(mfl_budget_reserve(&budget, 2, "more", &err), MFL_BUSY);
}

static void blocks_are_bounded_by_what_is_there_at_a_time(void **state)
{
        struct mfl_bounded bounded = {.left = 4096};
        assert_null(mfl_bounded_alloc(&bounded, 4096)); /* its prefix does not fit */
        assert_true(bounded.spent);
        assert_null(mfl_bounded_alloc(&bounded, SIZE_MAX));
        bounded.spent = false;
        for (int i = 0; i < 100; i++) {
                char *block = mfl_bounded_alloc(&bounded, 3000);
                assert_non_null(block);
                assert_int_equal((uintptr_t)block % _Alignof(max_align_t), 0);
                assert_int_equal(mfl_bounded_size(block), 3000);
                memset(block, 1, 3000);
                assert_null(mfl_bounded_alloc(&bounded, 3000));
                mfl_bounded_free(&bounded, block);
                assert_true(bounded.left == 4096);
        }
        assert_true(bounded.spent && !bounded.out_of_memory);
        void *last = mfl_bounded_alloc(&bounded, 0);
        assert_true(last && bounded.left < 4096);
        mfl_bounded_free(&bounded, NULL);
        mfl_bounded_free(NULL, last);
        mfl_alloc_fail_at(0);
        assert_null(mfl_bounded_alloc(&bounded, 8));
        mfl_alloc_fail_at(-1);
        assert_true(bounded.out_of_memory);
}

static void bytes_are_written_short(void **state)
{
        char text[16];
        assert_string_equal(mfl_format_bytes(0, text), "0 B");
        assert_string_equal(mfl_format_bytes(1023, text), "1023 B");
        assert_string_equal(mfl_format_bytes(1024, text), "1.0 KiB");
        assert_string_equal(mfl_format_bytes(1024 * 1024 - 1, text), "1.0 MiB");
        assert_string_equal(mfl_format_bytes(UINT64_MAX, text), "16.0 EiB");
}

static char root[64];

static void put(const char *name, const char *text)
{
        char path[256], dir[256];
        snprintf(path, sizeof path, "%s/%s", root, name);
        strcpy(dir, path);
        *strrchr(dir, '/') = '\0';
        assert_int_equal(mfl_fs_mkdirs(dir, 0700, NULL), 0);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

static int setup(void **state)
{
        strcpy(root, "/tmp/mfl-test-budget-XXXXXX");
        assert_non_null(mkdtemp(root));
        put("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n");
        return 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
        return remove(path);
}

static int teardown(void **state)
{
        return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void assert_memory(uint64_t want)
{
        uint64_t total;
        assert_int_equal(mfl_memory_read(root, &total, NULL), 0);
        assert_true(total == want);
}

static void the_lowest_cgroup_counts(void **state)
{
        assert_memory(8 * GIB);
        put("proc/self/cgroup", "0::/a.slice/b.service\n");
        assert_memory(8 * GIB);
        put("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
        assert_memory(8 * GIB);
        put("sys/fs/cgroup/a.slice/memory.max", "4294967296\n");
        assert_memory(4 * GIB);
        put("sys/fs/cgroup/a.slice/b.service/memory.max", "1073741824\n");
        assert_memory(GIB);
}

static void the_container_root_and_version_1_count(void **state)
{
        put("proc/self/cgroup", "5:cpu:/x\n4:memory:/y\n");
        put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
        assert_memory(2 * GIB);
        put("proc/self/cgroup", "0::/\n");
        put("sys/fs/cgroup/memory.max", "3221225472\n");
        assert_memory(3 * GIB);
}

static void this_machine_has_memory(void **state)
{
        uint64_t total, none;
        assert_int_equal(mfl_memory_total(&total, NULL), 0);
        assert_true(total > 1 << 20);
        assert_int_equal(mfl_memory_read("/nowhere", &none, NULL), -ENOENT);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(reservations_end_at_the_limit),
                cmocka_unit_test(blocks_are_bounded_by_what_is_there_at_a_time),
                cmocka_unit_test(bytes_are_written_short),
                cmocka_unit_test_setup_teardown(the_lowest_cgroup_counts, setup, teardown),
                cmocka_unit_test_setup_teardown(the_container_root_and_version_1_count, setup, teardown),
                cmocka_unit_test(this_machine_has_memory),
        };
        return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
