/* SPDX-License-Identifier: Apache-2.0 */
/* A control group for each training program, where systemd has delegated the daemon's own (Delegate=memory pids).
 *
 *      the unit's group   memory and pids for its children
 *        daemon/          the daemon's processes: a group with children has none of its own
 *        program-PID/     a program with all that it starts; PID: of its supervisor
 *
 * Fails: no cgroup v2, a group that is not delegated, one without these controllers. Then programs run without, and the log says so. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "client/program/internal.h"

#define OWN "/daemon"
#define PROGRAM "program-"

static bool put(const char *group, const char *file, const char *text)
{
        char path[CGROUP_BYTES + 64];
        mfl_snprintf(path, sizeof(path), "%s/%s", group, file);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
        if (fd >= 0)
                close(fd);
        return done;
}

static bool get(const char *path, char *text, size_t bytes)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, bytes - 1);
        if (fd >= 0)
                close(fd);
        text[n > 0 ? n : 0] = '\0';
        return n > 0;
}

/* Where cgroup v2 is mounted, and this process's group in it. */
static bool find_group(char group[CGROUP_BYTES])
{
        char line[CGROUP_BYTES], at[CGROUP_BYTES / 2] = "", type[32];
        FILE *file = fopen("/proc/self/mounts", "re");
        while (file && !*at && fgets(line, sizeof(line), file))
                if (sscanf(line, "%*s %511s %31s", at, type) != 2 || strcmp(type, "cgroup2") != 0)
                        *at = '\0';
        if (file)
                fclose(file);
        file = *at ? fopen("/proc/self/cgroup", "re") : NULL;
        bool found = false;
        while (file && !found && fgets(line, sizeof(line), file)) {
                line[strcspn(line, "\n")] = '\0';
                found = !strncmp(line, "0::/", 4) && strlen(at) + strlen(line + 3) < CGROUP_BYTES;
                if (found)
                        mfl_snprintf(group, CGROUP_BYTES, "%s%s", at, line[4] ? line + 3 : "");
        }
        if (file)
                fclose(file);
        return found;
}

static bool is_delegated(const char *group)
{
        char value[4] = "";
        return getxattr(group, "user.delegate", value, sizeof(value)) == 1 && value[0] == '1';
}

/* Those of supervisors that were killed. One that is in use stays: rmdir refuses it. */
static void remove_left(const char *group)
{
        char path[CGROUP_BYTES + 300];
        DIR *dir = opendir(group);
        for (struct dirent *one; dir && (one = readdir(dir));)
                if (!strncmp(one->d_name, PROGRAM, sizeof(PROGRAM) - 1)) {
                        mfl_snprintf(path, sizeof(path), "%s/%s", group, one->d_name);
                        rmdir(path);
                }
        if (dir)
                closedir(dir);
}

const char *mfl_program_cgroups(char group[CGROUP_BYTES])
{
        char text[512], path[CGROUP_BYTES + 64], own[CGROUP_BYTES + 16];
        size_t n;
        if (!find_group(group)) {
                *group = '\0';
                return "no control groups: there is no cgroup v2";
        }
        n = strlen(group);
        bool moved = n > sizeof(OWN) - 1 && !strcmp(group + n - (sizeof(OWN) - 1), OWN);
        if (moved)
                group[n - (sizeof(OWN) - 1)] = '\0';
        mfl_snprintf(own, sizeof(own), "%s" OWN, group);
        mfl_snprintf(path, sizeof(path), "%s/cgroup.controllers", group);
        const char *why = NULL;
        if (!is_delegated(group))
                why = "no control groups: the daemon's is not delegated (Delegate=memory pids)";
        else if (!get(path, text, sizeof(text)) || !strstr(text, "memory") || !strstr(text, "pids"))
                why = "no control groups: the daemon's lacks memory or pids (Delegate=memory pids)";
        else if (!moved && ((mkdir(own, 0755) && errno != EEXIST) || !put(own, "cgroup.procs", "0")))
                why = "no control groups: the daemon's is not writable (ProtectControlGroups=no)";
        else if (!put(group, "cgroup.subtree_control", "+memory +pids"))
                why = "no control groups: other processes are in the daemon's";
        if (why)
                *group = '\0';
        else
                remove_left(group);
        return why ? why : "control groups for memory and processes";
}

bool mfl_program_cgroup_new(
        const char *parent, pid_t pid, uint64_t memory, uint32_t processes, char group[CGROUP_BYTES])
{
        char text[32];
        mfl_snprintf(group, CGROUP_BYTES, "%s/" PROGRAM "%d", parent, (int)pid);
        bool done = !mkdir(group, 0755);
        if (!done && errno == EEXIST) { /* an earlier supervisor of that number was killed */
                mfl_program_cgroup_free(group);
                done = !mkdir(group, 0755);
        }
        mfl_snprintf(text, sizeof(text), "%llu", (unsigned long long)memory);
        if (done && memory)
                done = put(group, "memory.max", text) && put(group, "memory.oom.group", "1");
        if (done && memory)
                put(group, "memory.swap.max", "0");            /* a kernel may have no swap accounting */
        mfl_snprintf(text, sizeof(text), "%u", processes + 1); /* and process 1, which starts it */
        return done && put(group, "pids.max", text);
}

bool mfl_program_cgroup_enter(const char *group)
{
        return put(group, "cgroup.procs", "0");
}

/* memory.events has lines such as "oom_kill 2". */
bool mfl_program_cgroup_is_full(const char *group)
{
        char path[CGROUP_BYTES + 64], text[512];
        unsigned long long n = 0;
        mfl_snprintf(path, sizeof(path), "%s/memory.events", group);
        const char *at = get(path, text, sizeof(text)) ? strstr(text, "oom_kill ") : NULL;
        return at && sscanf(at, "oom_kill %llu", &n) == 1 && n > 0;
}

/* The processes are killed already; the kernel may need a moment until none is left. */
void mfl_program_cgroup_free(const char *group)
{
        put(group, "cgroup.kill", "1");
        for (int i = 0; i < 100 && rmdir(group) && errno == EBUSY; i++)
                usleep(10000);
}
