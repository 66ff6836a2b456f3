/* SPDX-License-Identifier: Apache-2.0 */
/* A memory budget, and how much memory there is. */
#include "common/base/budget.h"
#include "common/base/fs.h"

#include <limits.h>
#include <stdio.h>
#include <sys/sysinfo.h>

#define SMALL_FILE_BYTES 65536

void mfl_budget_init(struct mfl_budget *budget, uint64_t limit_bytes)
{
        budget->limit_bytes = limit_bytes;
        atomic_init(&budget->used_bytes, 0);
}

int mfl_budget_reserve(struct mfl_budget *budget, uint64_t bytes, const char *what, struct mfl_error *err)
{
        uint64_t limit = budget->limit_bytes ? budget->limit_bytes : UINT64_MAX;
        uint64_t used = atomic_load(&budget->used_bytes);
        do {
                if (used > limit || bytes > limit - used) {
                        char need[16], left[16], all[16];
                        return mfl_fail(err, MFL_BUSY, "memory: %s for %s: only %s of %s are free",
                                mfl_format_bytes(bytes, need), what,
                                mfl_format_bytes(used > limit ? 0 : limit - used, left),
                                mfl_format_bytes(limit, all));
                }
        } while (!atomic_compare_exchange_weak(&budget->used_bytes, &used, used + bytes));
        return 0;
}

void mfl_budget_release(struct mfl_budget *budget, uint64_t bytes)
{
        uint64_t before = atomic_fetch_sub(&budget->used_bytes, bytes);
        mfl_assert(before >= bytes);
}

uint64_t mfl_budget_used(const struct mfl_budget *budget)
{
        return atomic_load(&budget->used_bytes);
}

char *mfl_format_bytes(uint64_t bytes, char text[16])
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        double value = (double)bytes;
        size_t unit = 0;
        while (value >= 1023.95 && unit + 1 < MFL_ARRAY_SIZE(units)) {
                value /= 1024;
                unit++;
        }
        snprintf(text, 16, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
        return text;
}

/* "Key:   123 kB" of /proc/meminfo, in bytes. */
static bool find_meminfo(const char *text, const char *key, uint64_t *ret_bytes)
{
        const char *line = strstr(text, key);
        unsigned long long kib;
        if (!line || sscanf(line + strlen(key), " %llu kB", &kib) != 1)
                return false;
        *ret_bytes = (uint64_t)kib * 1024;
        return true;
}

/* A file that holds one number, or UINT64_MAX for "max", or for no such file. */
static uint64_t read_number(const char *path)
{
        char *text;
        size_t bytes;
        unsigned long long number = ULLONG_MAX;
        if (mfl_fs_read(path, SMALL_FILE_BYTES, &text, &bytes, NULL))
                return UINT64_MAX;
        if (sscanf(text, "%llu", &number) != 1)
                number = ULLONG_MAX;
        free(text);
        return (uint64_t)number;
}

/* What a cgroup's memory controller calls its files. */
struct cgroup_files {
        const char *mount, *limit;
};
static const struct cgroup_files v2 = {"sys/fs/cgroup", "memory.max"};
static const struct cgroup_files v1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes"};

/* Lowers the total to the limits of a group and of all groups above it. */
static void apply_cgroup(
        const char *root, const struct cgroup_files *files, const char *group, uint64_t *total)
{
        char dir[PATH_MAX], path[PATH_MAX + 64];
        int base = snprintf(dir, sizeof dir, "%s/%s", root, files->mount);
        if (base < 0 || (size_t)base + strlen(group) >= sizeof dir)
                return;
        strcpy(dir + base, group);
        for (;;) {
                snprintf(path, sizeof path, "%s/%s", dir, files->limit);
                *total = MFL_MIN(*total, read_number(path));
                char *slash = strrchr(dir, '/');
                if (slash < dir + base)
                        break;
                *slash = '\0';
        }
}

/* Lines of /proc/self/cgroup: "0::/path" (v2) and "4:memory:/path" (v1). */
static void apply_cgroups(const char *root, char *lines, uint64_t *total)
{
        char *save, *line;
        for (line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                char *controllers = strchr(line, ':');
                char *group = controllers ? strchr(controllers + 1, ':') : NULL;
                if (!group)
                        continue;
                *group++ = '\0';
                if (controllers[1] == '\0')
                        apply_cgroup(root, &v2, group, total);
                else if (!strcmp(controllers + 1, "memory"))
                        apply_cgroup(root, &v1, group, total);
        }
}

/* From ROOT/proc/meminfo. Where a sandbox shows processes alone in /proc (ProcSubset=pid of systemd), sysinfo(2)
 * answers. */
static int read_machine(const char *root, uint64_t *ret_total, struct mfl_error *err)
{
        char path[PATH_MAX];
        MFL_CLEANUP_FREE char *meminfo = NULL;
        size_t bytes;
        struct sysinfo info;
        snprintf(path, sizeof path, "%s/proc/meminfo", root);
        int r = mfl_fs_read(path, SMALL_FILE_BYTES, &meminfo, &bytes, err);
        if (r && !*root && !sysinfo(&info)) {
                *ret_total = (uint64_t)info.totalram * info.mem_unit;
                return 0;
        }
        if (r)
                return r < 0 ? r : -ENOENT;
        if (!find_meminfo(meminfo, "MemTotal:", ret_total))
                return mfl_fail(err, -EIO, "%s: no MemTotal", path);
        return 0;
}

int mfl_memory_read(const char *root, uint64_t *ret_bytes, struct mfl_error *err)
{
        char path[PATH_MAX];
        MFL_CLEANUP_FREE char *groups = NULL;
        size_t bytes;
        uint64_t total;
        int r = read_machine(root, &total, err);
        if (r)
                return r;
        snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
        if (!mfl_fs_read(path, SMALL_FILE_BYTES, &groups, &bytes, NULL))
                apply_cgroups(root, groups, &total);
        *ret_bytes = total;
        return 0;
}

int mfl_memory_total(uint64_t *ret_bytes, struct mfl_error *err)
{
        return mfl_memory_read("", ret_bytes, err);
}
