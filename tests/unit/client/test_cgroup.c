/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups of programs, on a tree of plain files: what is written where, what is refused, what is left behind. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "client/program/internal.h"
#include "tests/lib/test.h"

static struct {
        char root[64], mounts[512], own[256];
        bool delegated;
        int busy; /* how often rmdir still finds processes */
} kernel;

static FILE *fake_fopen(const char *path, const char *mode)
{
        char *text = strcmp(path, "/proc/self/mounts") ? kernel.own : kernel.mounts;
        return fmemopen(text, strlen(text), "r");
}

static ssize_t fake_getxattr(const char *path, const char *name, void *value, size_t bytes)
{
        struct stat st;
        if (!kernel.delegated || strcmp(name, "user.delegate") || stat(path, &st))
                return -1;
        *(char *)value = '1';
        return 1;
}

static void put_file(const char *dir, const char *file, const char *text)
{
        char path[1500];
        mfl_snprintf(path, sizeof path, "%s/%s", dir, file);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

static const char *const files[] = {"cgroup.procs", "cgroup.kill", "cgroup.controllers",
        "cgroup.subtree_control", "memory.max", "memory.swap.max", "memory.oom.group", "memory.events",
        "pids.max"};

static int fake_mkdir(const char *path, mode_t mode)
{
        int r = mkdir(path, mode);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(files); i++)
                put_file(path, files[i], strcmp(files[i], "memory.events") ? "" : "oom 0\noom_kill 0\n");
        return r;
}

static int fake_rmdir(const char *path)
{
        char file[1400];
        if (kernel.busy && kernel.busy--) {
                errno = EBUSY;
                return -1;
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(files); i++) {
                mfl_snprintf(file, sizeof file, "%s/%s", path, files[i]);
                unlink(file);
        }
        return rmdir(path);
}

#define fopen fake_fopen
#define getxattr fake_getxattr
#define mkdir fake_mkdir
#define rmdir fake_rmdir
#include "client/program/cgroup.c"
#undef fopen
#undef mkdir
#undef rmdir

static void assert_file(const char *dir, const char *file, const char *want)
{
        char path[1500], text[64];
        mfl_snprintf(path, sizeof path, "%s/%s", dir, file);
        get(path, text, sizeof text);
        assert_string_equal(text, want);
}

static bool is_there(const char *dir, const char *name)
{
        char path[1500];
        struct stat st;
        mfl_snprintf(path, sizeof path, "%s/%s", dir, name);
        return !stat(path, &st);
}

/* The group of a unit that systemd has delegated. */
static void begin(char unit[300])
{
        kernel.delegated = true;
        kernel.busy = 0;
        mfl_snprintf(kernel.root, sizeof kernel.root, "/tmp/mfl-cgroup-XXXXXX");
        assert_non_null(mkdtemp(kernel.root));
        mfl_snprintf(kernel.mounts, sizeof kernel.mounts, "proc /proc proc rw 0 0\ncg %s cgroup2 rw 0 0\n",
                kernel.root);
        mfl_snprintf(kernel.own, sizeof kernel.own, "4:memory:/x\n0::/unit\n");
        mfl_snprintf(unit, 300, "%s/unit", kernel.root);
        assert_int_equal(fake_mkdir(unit, 0755), 0);
        put_file(unit, "cgroup.controllers", "cpu memory pids\n");
}

static int end(void **state)
{
        char path[1500];
        static const char *const groups[] = {"unit/daemon", "unit/program-12", "unit"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(groups); i++) {
                mfl_snprintf(path, sizeof path, "%s/%s", kernel.root, groups[i]);
                fake_rmdir(path);
        }
        return rmdir(kernel.root);
}

static void a_unit_makes_room(void **state)
{
        char unit[300], group[CGROUP_BYTES], left[CGROUP_BYTES];
        begin(unit);
        assert_string_equal(mfl_program_cgroups(group), "control groups for memory and processes");
        assert_string_equal(group, unit);
        assert_file(unit, "daemon/cgroup.procs", "0");
        assert_file(unit, "cgroup.subtree_control", "+memory +pids");
        /* A daemon that starts again is in its group already, and removes what a killed supervisor has left. */
        assert_true(mfl_program_cgroup_new(unit, 77, 0, 5, left));
        mfl_snprintf(kernel.own, sizeof kernel.own, "0::/unit/daemon\n");
        assert_string_equal(mfl_program_cgroups(group), "control groups for memory and processes");
        assert_string_equal(group, unit);
        assert_false(is_there(unit, "program-77"));
        assert_false(is_there(unit, "daemon/daemon"));
}

static void what_is_missing_is_said(void **state)
{
        char unit[300], group[CGROUP_BYTES];
        begin(unit);
        kernel.delegated = false;
        assert_non_null(strstr(mfl_program_cgroups(group), "is not delegated"));
        assert_string_equal(group, "");
        assert_false(is_there(unit, "daemon"));
        kernel.delegated = true;
        put_file(unit, "cgroup.controllers", "cpu memory\n");
        assert_non_null(strstr(mfl_program_cgroups(group), "lacks memory or pids"));
        assert_string_equal(group, "");
        put_file(unit, "cgroup.controllers", "memory pids\n");
        mfl_snprintf(group, sizeof group, "%s/cgroup.subtree_control", unit);
        assert_int_equal(unlink(group), 0);
        assert_non_null(strstr(mfl_program_cgroups(group), "other processes are in"));
        assert_string_equal(group, "");
        mfl_snprintf(kernel.mounts, sizeof kernel.mounts, "proc /proc proc rw 0 0\n");
        assert_non_null(strstr(mfl_program_cgroups(group), "there is no cgroup v2"));
        assert_string_equal(group, "");
}

static void a_program_has_its_limits(void **state)
{
        char unit[300], group[CGROUP_BYTES];
        begin(unit);
        assert_true(mfl_program_cgroup_new(unit, 12, 1 << 20, 100, group));
        assert_file(group, "memory.max", "1048576");
        assert_file(group, "memory.oom.group", "1");
        assert_file(group, "memory.swap.max", "0");
        assert_file(group, "pids.max", "101");
        assert_true(mfl_program_cgroup_enter(group));
        assert_file(group, "cgroup.procs", "0");
        assert_false(mfl_program_cgroup_is_full(group));
        put_file(group, "memory.events", "low 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n");
        assert_true(mfl_program_cgroup_is_full(group));
        /* Another supervisor gets the number of one that was killed. */
        assert_true(mfl_program_cgroup_new(unit, 12, 0, 7, group));
        assert_file(group, "memory.max", "");
        assert_file(group, "pids.max", "8");
        kernel.busy = 3;
        mfl_program_cgroup_free(group);
        assert_int_equal(kernel.busy, 0);
        assert_false(is_there(unit, "program-12"));
        assert_false(mfl_program_cgroup_new("/nowhere", 12, 0, 7, group));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(a_unit_makes_room, end),
                cmocka_unit_test_teardown(what_is_missing_is_said, end),
                cmocka_unit_test_teardown(a_program_has_its_limits, end),
        };
        return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
