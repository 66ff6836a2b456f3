/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor of a training program: this executable, run by the daemon as `mfl-client run-program ...`.
 *
 *   - it leaves the daemon's session and, where the system lets users do so, its user, process, mount, IPC and network
 *     namespaces;
 *   - a first child, process 1 of the new namespace, hides the daemon's keys, starts the program and reaps what it leaves
 *     behind; where it is gone, the kernel kills everything in its namespace;
 *   - the program gives up rights, system calls, files and memory beyond its limits, and becomes the command;
 *   - the supervisor waits: for the program's end, for the daemon's (its pipe is closed), or until the program and its
 *     children together hold more memory, or are more, than they may. Where there are control groups, the kernel looks, too. Then it kills all of them, and ends.
 *
 * Without namespaces the supervisor adopts orphans (PR_SET_CHILD_SUBREAPER), and kills children until there are none. Errors go to standard
 * error, which the daemon reads; status 126: the limits can't be set, 127: the command can't be run. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/program/internal.h"
#include "common/base/budget.h"

#define STATUS_LIMITS 126
#define STATUS_EXEC 127
#define CAPABILITIES 64
#define PATHS_MAX 32 /* of a kind */
#define LOOK_MS 250  /* how often memory is looked at */
#define FILES_EACH 256
#define FILES_MAX 65536

struct child {
        uint64_t memory;
        uint32_t processes;
        bool network, spaces, own_shm;
        const char *threads, *dir;
        char *hidden[PATHS_MAX], *read[PATHS_MAX], *write[PATHS_MAX], **command;
        int n_hidden, n_read, n_write;
        char group[CGROUP_BYTES]; /* "": none */
};

static void say(const char *fmt, ...) MFL_PRINTF(1, 2);
static void say(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        vdprintf(STDERR_FILENO, fmt, ap);
        va_end(ap);
}

/* ---- descendants ---- */

/* Calls fn for all processes below pid, the lower ones first. */
static void walk(pid_t pid, int depth, void (*fn)(pid_t pid, void *user), void *user)
{
        char path[64];
        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        DIR *tasks = depth < 64 ? opendir(path) : NULL;
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
                snprintf(path, sizeof(path), "/proc/%d/task/%.16s/children", (int)pid, task->d_name);
                FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "re");
                for (int child; file && fscanf(file, "%d", &child) == 1;) {
                        walk(child, depth + 1, fn, user);
                        fn(child, user);
                }
                if (file)
                        fclose(file);
        }
        if (tasks)
                closedir(tasks);
}

static void kill_one(pid_t pid, void *user)
{
        kill(pid, SIGKILL);
}

/* Returns when no child is left: those of a killed one become this process's, and are killed in turn. */
static void kill_all(void)
{
        for (;;) {
                walk(getpid(), 0, kill_one, NULL);
                if (waitpid(-1, NULL, 0) < 0 && errno == ECHILD)
                        return;
        }
}

struct use {
        uint64_t memory;
        uint32_t processes; /* and threads */
        uint64_t files;     /* places for open files beyond FILES_EACH of each process */
        bool exact; /* memory that several of them have counts once; takes milliseconds per gigabyte */
};

/* Of a process: its anonymous memory, and that of memory files, each page divided among the processes that have it. False: this kernel does
 * not tell, or not this process. */
static bool read_share(pid_t pid, uint64_t *ret_bytes)
{
        char path[64], line[128];
        unsigned long long kib;
        int n = 0;
        *ret_bytes = 0;
        snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "Pss_Anon: %llu", &kib) == 1 || sscanf(line, "Pss_Shmem: %llu", &kib) == 1) {
                        *ret_bytes += kib << 10;
                        n++;
                }
        if (file)
                fclose(file);
        return n == 2;
}

/* What a process has in memory, with pages that it shares with others. */
static void add_use(pid_t pid, void *user)
{
        struct use *use = user;
        char path[64], line[128];
        unsigned long long kib;
        unsigned threads, files;
        uint64_t share, memory = 0;
        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "RssAnon: %llu", &kib) == 1 || sscanf(line, "RssShmem: %llu", &kib) == 1)
                        memory += kib << 10;
                else if (sscanf(line, "Threads: %u", &threads) == 1)
                        use->processes += threads;
                else if (sscanf(line, "FDSize: %u", &files) == 1 && files > FILES_EACH)
                        use->files += files - FILES_EACH;
        if (file)
                fclose(file);
        use->memory += use->exact && read_share(pid, &share) ? share : memory;
}

/* ---- namespaces ---- */

static bool write_file(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
        if (fd >= 0)
                close(fd);
        return done;
}

/* The same user inside. False: half a namespace, in which nothing can be run. */
static bool enter_spaces(struct child *c)
{
        char uid[64], gid[64];
        snprintf(uid, sizeof(uid), "%u %u 1", geteuid(), geteuid());
        snprintf(gid, sizeof(gid), "%u %u 1", getegid(), getegid());
        int flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC;
        if (unshare(flags | (c->network ? 0 : CLONE_NEWNET))) {
                say(SANDBOX_LINE "no namespaces: %s\n", strerror(errno));
                return true;
        }
        c->spaces = true;
        return write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", uid) &&
               write_file("/proc/self/gid_map", gid);
}

/* Shared memory of the machine is where daemons of one node add their updates. */
static void change_shm(struct child *c)
{
        char how[64];
        mfl_snprintf(how, sizeof(how), "mode=1777,size=%llu", (unsigned long long)c->memory);
        if (!c->memory)
                how[strcspn(how, ",")] = '\0'; /* as large as the kernel finds right */
        c->own_shm = !mount("mfl-shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, how);
        if (!c->own_shm && errno != ENOENT)
                say(SANDBOX_LINE "no /dev/shm of its own: %s\n", strerror(errno));
}

/* A mount namespace of its own, not the supervisor's, which looks at /proc: its own processes alone in /proc, its own /dev/shm, and nothing
 * where the daemon's secrets are. */
static void change_mounts(struct child *c)
{
        struct stat st;
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
                say(SANDBOX_LINE "mounts stay as they are: %s\n", strerror(errno));
                return;
        }
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL); /* containers may forbid it */
        change_shm(c);
        for (int i = 0; i < c->n_hidden; i++) {
                if (stat(c->hidden[i], &st))
                        continue;
                bool dir = S_ISDIR(st.st_mode);
                if (dir ? mount("none", c->hidden[i], "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=0555")
                        : mount("/dev/null", c->hidden[i], NULL, MS_BIND, NULL))
                        say(SANDBOX_LINE "%s is not hidden: %s\n", c->hidden[i], strerror(errno));
        }
}

/* ---- the program ---- */

static bool limit(int what, uint64_t value)
{
        struct rlimit limits = {value, value};
        return !setrlimit((__rlimit_resource_t)what, &limits);
}

/* Variables of the daemon's service manager and of mfl itself are not for the program. */
static void change_environment(const struct child *c)
{
        static const char *const services[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_PID", "CREDENTIALS_DIRECTORY"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(services); i++)
                unsetenv(services[i]);
        for (char **at = environ; *at;) {
                char name[128];
                snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
                if (strncmp(name, "MFL_", 4) || unsetenv(name))
                        at++;
        }
        char fd[16];
        snprintf(fd, sizeof(fd), "%d", PROGRAM_FD);
        setenv("MFL_PROGRAM_FD", fd, 1);
        setenv("MFL_PROGRAM_VERSION", "1", 1);
        setenv("OMP_NUM_THREADS", c->threads, 1);
}

static void run_program(const struct child *c)
{
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(LIFE_FD);
        change_environment(c);
        const struct program_files files = {.dir = c->dir,
                .command = c->command[0],
                .read = (char **)c->read,
                .n_read = c->n_read,
                .write = (char **)c->write,
                .n_write = c->n_write,
                .own_shm = c->own_shm};
        bool limited = limit(RLIMIT_CORE, 0) && (!c->memory || limit(RLIMIT_DATA, c->memory));
        if (c->spaces) /* counted in its own user namespace alone, with its two parents; root is not held by it */
                limit(RLIMIT_NPROC, (uint64_t)c->processes + 2);
        for (int i = 0; i < CAPABILITIES; i++)
                prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
        if (*c->dir && chdir(c->dir)) {
                say("can't go to %s: %s\n", c->dir, strerror(errno));
                _exit(STATUS_EXEC);
        }
        if (!limited || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
                !mfl_program_hold_files(&files, c->network) ||
                !mfl_program_filter(c->network, !access("/dev/nvidiactl", F_OK))) {
                say("can't limit the program: %s\n", strerror(errno));
                _exit(STATUS_LIMITS);
        }
        say(SANDBOX_LINE SANDBOX_END "\n");
        execv(c->command[0], c->command);
        say("can't run %s: %s\n", c->command[0], strerror(errno));
        _exit(STATUS_EXEC);
}

static int status_of(int status)
{
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Process 1 of the program's namespace. */
static int run_first(struct child *c)
{
        int status = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        if (*c->group && !mfl_program_cgroup_enter(c->group)) {
                say("can't enter the control group %s: %s\n", c->group, strerror(errno));
                return STATUS_LIMITS;
        }
        if (c->spaces)
                change_mounts(c);
        pid_t pid = fork();
        if (!pid)
                run_program(c);
        close(PROGRAM_FD); /* the daemon finds the end when the program has ended */
        close(LIFE_FD);
        for (pid_t done; pid > 0 && (done = waitpid(-1, &status, 0)) != pid;)
                if (done < 0 && errno != EINTR)
                        return STATUS_LIMITS;
        if (!c->spaces) /* else the kernel does that when this process ends */
                kill_all();
        return pid < 0 ? STATUS_LIMITS : status_of(status);
}

/* ---- the supervisor ---- */

static bool has_too_much(pid_t first, const struct child *c)
{
        struct use use = {0};
        char have[16], most[16];
        walk(first, 0, add_use, &use);
        if (use.processes > c->processes) {
                say("too many processes and threads: %u, and its limit is %u\n", use.processes, c->processes);
                return true;
        }
        if (use.files > FILES_MAX) {
                say("too many open files: its processes have room for %llu beyond %d each, and the limit is "
                    "%d\n",
                        (unsigned long long)use.files, FILES_EACH, FILES_MAX);
                return true;
        }
        if (c->memory && use.memory > c->memory) { /* children share what their parent had before them */
                use = (struct use){.exact = true};
                walk(first, 0, add_use, &use);
        }
        if (!c->memory || use.memory <= c->memory)
                return false;
        say("too much memory: %s with its children, and its limit is %s\n",
                mfl_format_bytes(use.memory, have), mfl_format_bytes(c->memory, most));
        return true;
}

/* The kernel kills without a word. */
static void tell_end(const struct child *c)
{
        char most[16];
        if (*c->group && mfl_program_cgroup_is_full(c->group))
                say("too much memory for its control group: its limit is %s\n",
                        mfl_format_bytes(c->memory, most));
}

static int supervise(pid_t first, int signals, const struct child *c)
{
        struct pollfd fds[2] = {{.fd = LIFE_FD, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        struct signalfd_siginfo info;
        int status = 0;
        while (poll(fds, 2, LOOK_MS) >= 0 || errno == EINTR) {
                if (fds[0].revents || has_too_much(first, c))
                        break;
                if (fds[1].revents && read(signals, &info, sizeof(info)) < 0)
                        break;
                if (waitpid(first, &status, WNOHANG) == first) {
                        tell_end(c);
                        return status_of(status); /* and nothing is left of it: run_first, or the kernel */
                }
        }
        kill(first, SIGKILL);
        kill_all();
        return 128 + SIGKILL;
}

static void tell_limits(const struct child *c)
{
        char most[16], files[64] = "not limited (this kernel has no Landlock)";
        if (mfl_program_landlock())
                mfl_snprintf(files, sizeof(files), "%s limited (Landlock %d)",
                        c->n_read ? "reading and writing are" : "writing is", mfl_program_landlock());
        say(SANDBOX_LINE "%s; system calls %s; network %s; files: %s; memory %s; processes %u%s\n",
                c->spaces ? "own user, process, mount and IPC namespaces" : "no namespaces of its own",
                mfl_program_filters ? "filtered" : "not filtered (a build without libseccomp)",
                c->network                         ? "allowed"
                : c->spaces || mfl_program_filters ? "forbidden"
                                                   : "not limited",
                files, c->memory ? mfl_format_bytes(c->memory, most) : "not limited", c->processes,
                *c->group ? "; in a control group" : "");
}

/* What is not there when the program starts stays closed to it, also when somebody makes it later. */
static void tell_missing(char *const *paths, int n)
{
        for (int i = 0; i < n; i++)
                if (access(paths[i], F_OK))
                        say(SANDBOX_LINE "%s can't be opened to the program: %s\n", paths[i],
                                strerror(errno));
}

/* A group that can't be made is no reason to train without one: the daemon has said that there are groups. */
static bool make_group(struct child *c, const char *parent)
{
        if (!*parent || mfl_program_cgroup_new(parent, getpid(), c->memory, c->processes, c->group))
                return true;
        say("can't make the control group %s: %s\n", c->group, strerror(errno));
        return false;
}

static int run(struct child *c, const char *parent)
{
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGCHLD);
        syscall(SYS_close_range, LIFE_FD + 1, ~0u, 0);
        setsid();
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        signal(SIGCHLD, SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        if ((c->n_read || c->n_write) && !mfl_program_landlock()) {
                say("can't limit its files: this kernel has no Landlock; remove `read` and `write` of the "
                    "program from "
                    "client.yaml to let it run without\n");
                return STATUS_LIMITS;
        }
        if (!make_group(c, parent))
                return STATUS_LIMITS;
        if (sigprocmask(SIG_SETMASK, &set, NULL) || !enter_spaces(c)) {
                say("can't make the program's namespaces: %s\n", strerror(errno));
                return STATUS_LIMITS;
        }
        /* The program must not reach into what is not filtered, through /proc/PID/mem; exec opens its own again. */
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        tell_limits(c);
        tell_missing(c->read, c->n_read);
        tell_missing(c->write, c->n_write);
        pid_t first = signals < 0 ? -1 : fork();
        if (!first)
                _exit(run_first(c));
        if (first < 0) {
                say("can't start the program: %s\n", strerror(errno));
                return STATUS_LIMITS;
        }
        close(PROGRAM_FD);
        return supervise(first, signals, c);
}

/* run-program MEMORY NETWORK THREADS PROCESSES GROUP DIR PATH... -- COMMAND...; a PATH begins with h (hidden), r (read) or w (write). */
int mfl_program_child(int argc, char **argv)
{
        if (argc < 2 || strcmp(argv[1], "run-program"))
                return -1;
        int at = 8;
        while (at < argc && strcmp(argv[at], "--"))
                at++;
        if (at + 1 >= argc) {
                say("mfl-client run-program: for the daemon's own use\n");
                return 2;
        }
        struct child c = {.memory = strtoull(argv[2], NULL, 10),
                .network = argv[3][0] == '1',
                .threads = argv[4],
                .processes = (uint32_t)strtoul(argv[5], NULL, 10),
                .dir = argv[7],
                .command = argv + at + 1};
        for (int i = 8; i < at; i++) {
                if (argv[i][0] == 'h' && c.n_hidden < PATHS_MAX)
                        c.hidden[c.n_hidden++] = argv[i] + 1;
                else if (argv[i][0] == 'r' && c.n_read < PATHS_MAX)
                        c.read[c.n_read++] = argv[i] + 1;
                else if (argv[i][0] == 'w' && c.n_write < PATHS_MAX)
                        c.write[c.n_write++] = argv[i] + 1;
        }
        int status = run(&c, argv[6]);
        if (*c.group)
                mfl_program_cgroup_free(c.group);
        /* What the daemon's libraries do at an end is not this process's. */
        _exit(status);
}

const char *mfl_program_holds(char *text, size_t bytes)
{
        char files[32] = "no Landlock for files";
        if (mfl_program_landlock())
                mfl_snprintf(files, sizeof(files), "Landlock %d for files", mfl_program_landlock());
        mfl_snprintf(text, bytes, "%s; system calls are %s", files,
                mfl_program_filters ? "filtered" : "not filtered (a build without libseccomp)");
        return text;
}
