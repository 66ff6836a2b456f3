/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a training program may open, with Landlock (https://docs.kernel.org/userspace-api/landlock.html), as far as the kernel has it:
 * from ABI 1 on files, 3 truncation, 4 TCP ports, 6 signals to processes outside and abstract sockets of others. The kernel's header may be older
 * than the kernel, so that numbers are written out here.
 *
 * Writing is allowed below the program's directory, /tmp, /var/tmp, $TMPDIR, and what `write` names, and to devices without a memory, those
 * of GPUs, and /dev/shm if it is the program's own: in that of the machine, daemons of one node add their updates. Reading is not limited, unless `read`
 * names something: then to that, to what may be written, and to the system's own directories. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/program/internal.h"

#define READS (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITES                                                                                               \
        (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |    \
                LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |   \
                LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |                                \
                LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM)
#define REFER (1ull << 13)    /* ABI 2: renaming between directories; without a rule for it, it is refused */
#define TRUNCATE (1ull << 14) /* ABI 3 */
#define FILES                                                                                                \
        (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE | TRUNCATE)
#define TCP 3ull    /* ABI 4: bind, connect */
#define SCOPES 3ull /* ABI 6: abstract sockets, signals */

struct ruleset_attr {
        uint64_t files, tcp, scoped;
};

int mfl_program_landlock(void)
{
        long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
        return abi < 0 ? 0 : (int)abi;
}

/* A path that is not there needs no rule. */
static bool allow(int ruleset, const char *path, uint64_t access)
{
        struct stat st;
        int fd = open(path, O_PATH | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT || errno == ENOTDIR || errno == EACCES;
        struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
        bool known = !fstat(fd, &st);
        if (known && !S_ISDIR(st.st_mode))
                rule.allowed_access &= FILES;
        bool done = known && !syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
        close(fd);
        return done;
}

/* The cards and the driver's other devices have names that begin so. */
static bool allow_nvidia(int ruleset, uint64_t access)
{
        char path[300];
        bool done = true;
        DIR *dir = opendir("/dev");
        for (struct dirent *one; dir && (one = readdir(dir));)
                if (!strncmp(one->d_name, "nvidia", 6)) {
                        mfl_snprintf(path, sizeof(path), "/dev/%s", one->d_name);
                        done &= allow(ruleset, path, access);
                }
        if (dir)
                closedir(dir);
        return done;
}

static bool allow_all(int ruleset, const struct program_files *files, uint64_t handled)
{
        static const char *const writable[] = {"/tmp", "/var/tmp", "/dev/null", "/dev/zero", "/dev/full",
                "/dev/random", "/dev/urandom", "/dev/dri", "/dev/kfd", "/dev/dxg"};
        static const char *const readable[] = {
                "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/run/systemd/resolve"};
        const char *tmp = getenv("TMPDIR");
        uint64_t reads = handled & READS, writes = handled;
        bool done = allow_nvidia(ruleset, writes) && (!files->own_shm || allow(ruleset, "/dev/shm", writes));
        for (size_t i = 0; i < MFL_ARRAY_SIZE(writable); i++)
                done &= allow(ruleset, writable[i], writes);
        if (tmp && *tmp == '/')
                done &= allow(ruleset, tmp, writes);
        if (*files->dir)
                done &= allow(ruleset, files->dir, writes);
        for (int i = 0; i < files->n_write; i++)
                done &= allow(ruleset, files->write[i], writes);
        for (size_t i = 0; reads && i < MFL_ARRAY_SIZE(readable); i++)
                done &= allow(ruleset, readable[i], reads);
        for (int i = 0; reads && i < files->n_read; i++)
                done &= allow(ruleset, files->read[i], reads);
        return done && (!reads || allow(ruleset, files->command, reads));
}

bool mfl_program_hold_files(const struct program_files *files, bool network)
{
        int abi = mfl_program_landlock();
        if (!abi)
                return !files->n_read && !files->n_write;
        struct ruleset_attr attr = {.files = WRITES | (files->n_read ? READS : 0) | (abi >= 2 ? REFER : 0) |
                                             (abi >= 3 ? TRUNCATE : 0),
                .tcp = abi >= 4 && !network ? TCP : 0,
                .scoped = abi >= 6 ? SCOPES : 0};
        size_t size = abi >= 6   ? sizeof(attr)
                      : abi >= 4 ? offsetof(struct ruleset_attr, scoped)
                                 : offsetof(struct ruleset_attr, tcp);
        int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
        if (ruleset < 0)
                return false;
        bool done = allow_all(ruleset, files, attr.files) && !syscall(SYS_landlock_restrict_self, ruleset, 0);
        close(ruleset);
        return done;
}
