/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an ONNX file in a child process that may only compute.
 *
 * Happy path: open the file -> socket pair -> fork, exec of this program with a hidden argument -> the child
 * limits its time, memory and files, gives up all other system calls, maps the file, converts it, asks for
 * files beside it by name and gets their descriptors -> answer: layers and params -> the child ends. The
 * parent never parses ONNX; what comes back is a job's text, which the ordinary parser reads, and floats.
 * Failures: no such file; what the child says is wrong; the child is killed (a limit, or a fault of the
 * parser).
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/onnx/onnx.h"
#include "cli/onnx/sandbox.h"
#include "common/job.h"

#define CPU_SECONDS 60
#define WAIT_SECONDS 300
#define MEMORY_BASE ((uint64_t)8 << 30) /* room for files beside it, too */
#define MEMORY_FACTOR 12                /* of the file */
#define FD_SOCKET 3
#define FD_FILE 4

enum { SAY_FILE = 1, SAY_DONE, SAY_FAILED };

/* Both ends are this program. */
struct message {
        uint32_t kind;
        int32_t code, classes;
        struct mfl_shape input;
        uint64_t text_bytes, n;
        char text[1024]; /* SAY_FILE: a name; SAY_FAILED: the error; SAY_DONE: notes */
};

static int send_all(int fd, const void *data, size_t n)
{
        const char *p = data;
        while (n) {
                ssize_t done = send(fd, p, n, MSG_NOSIGNAL);
                if (done < 0 && errno == EINTR)
                        continue;
                if (done <= 0)
                        return -1;
                p += done;
                n -= (size_t)done;
        }
        return 0;
}

static int read_all(int fd, void *data, size_t n)
{
        char *p = data;
        while (n) {
                ssize_t done = read(fd, p, n);
                if (done < 0 && errno == EINTR)
                        continue;
                if (done <= 0)
                        return -1;
                p += done;
                n -= (size_t)done;
        }
        return 0;
}

/* ---- the child ---- */

#define CHILD_FILES_MAX 64

struct child {
        int socket, n_files;
        struct {
                char name[256];
                const uint8_t *bytes;
                size_t n;
        } file[CHILD_FILES_MAX];
};

static int map_fd(int fd, const char *name, const uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct stat st;
        if (fstat(fd, &st) || st.st_size <= 0)
                return mfl_fail(err, MFL_INVALID, "%.200s: the file is empty", name);
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
                return mfl_fail_errno(err, "map %.200s", name);
        *ret_bytes = p;
        *ret_n = (size_t)st.st_size;
        return 0;
}

static int receive_fd(int socket, int *ret_fd)
{
        char byte;
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = sizeof control};
        if (recvmsg(socket, &m, 0) != 1 || !byte)
                return -1;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
                return -1;
        memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
        return 0;
}

static int ask_file(
        void *user, const char *name, const uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct child *c = user;
        struct message m = {.kind = SAY_FILE};
        int fd;
        for (int i = 0; i < c->n_files; i++) {
                if (strcmp(c->file[i].name, name))
                        continue;
                *ret_bytes = c->file[i].bytes;
                *ret_n = c->file[i].n;
                return 0;
        }
        if (c->n_files == CHILD_FILES_MAX || !mfl_strcpy(m.text, sizeof c->file[0].name, name))
                return mfl_fail(err, MFL_INVALID,
                        "external data in more than %d files, or in one of too long a name", CHILD_FILES_MAX);
        if (send_all(c->socket, &m, sizeof m) || receive_fd(c->socket, &fd))
                return mfl_fail(err, MFL_INVALID,
                        "external data: there is no readable file %.100s beside the model", name);
        int r = map_fd(fd, name, ret_bytes, ret_n, err);
        close(fd);
        if (r)
                return r;
        mfl_strcpy(c->file[c->n_files].name, sizeof c->file[0].name, name);
        c->file[c->n_files].bytes = *ret_bytes;
        c->file[c->n_files++].n = *ret_n;
        return 0;
}

static int limit(int what, uint64_t value, struct mfl_error *err)
{
        struct rlimit limits = {value, value};
        return setrlimit((__rlimit_resource_t)what, &limits) ? mfl_fail_errno(err, "limit %d", what) : 0;
}

static int give_up_rights(uint64_t memory, struct mfl_error *err)
{
        int r = limit(RLIMIT_CPU, CPU_SECONDS, err);
        if (!r)
                r = limit(RLIMIT_CORE, 0, err);
        if (!r)
                r = limit(RLIMIT_FSIZE, 0, err);
        if (!r)
                r = limit(RLIMIT_NOFILE, 16, err);
        if (!r && mfl_sandbox_limits_memory)
                r = limit(RLIMIT_AS, memory, err);
        if (!r && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
                r = mfl_fail_errno(err, "a process that can't be read");
        return r ? r : mfl_sandbox_enter(err);
}

static int answer(int socket, int r, const struct mfl_onnx_model *model, const struct mfl_error *err)
{
        struct message m = {.kind = r ? SAY_FAILED : SAY_DONE, .code = r};
        mfl_strcpy(m.text, sizeof m.text, r ? err->text : model->notes);
        if (r)
                return send_all(socket, &m, sizeof m);
        m.classes = model->classes;
        m.input = model->input;
        m.text_bytes = strlen(model->text);
        m.n = model->n;
        r = send_all(socket, &m, sizeof m);
        if (!r)
                r = send_all(socket, model->text, m.text_bytes);
        return r ? r : send_all(socket, model->params, m.n * sizeof *model->params);
}

int mfl_onnx_child(int socket)
{
        static struct child c;
        struct mfl_onnx_files files = {ask_file, &c};
        struct mfl_onnx_model model = {.n = 0};
        struct mfl_error err;
        const uint8_t *bytes = NULL;
        size_t n = 0;
        uint64_t memory;
        c.socket = socket;
        char name[512] = "";
        /* What the parent says first: how much memory, and the name for messages. */
        if (read_all(socket, &memory, sizeof memory) || read_all(socket, name, sizeof name))
                return 1;
        name[sizeof name - 1] = '\0';
        int r = map_fd(FD_FILE, name, &bytes, &n, &err);
        if (!r)
                r = give_up_rights(memory, &err);
        if (!r)
                r = mfl_onnx_convert(bytes, n, name, &files, &model, &err);
        return answer(socket, r, &model, &err) ? 1 : 0;
}

/* ---- the parent ---- */

struct parent {
        const char *path;
        pid_t pid;
        int socket, dir;
};

static int start(struct parent *p, int file, struct mfl_error *err)
{
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
                return mfl_fail_errno(err, "a socket pair");
        p->pid = fork();
        if (p->pid < 0) {
                close(pair[0]);
                close(pair[1]);
                return mfl_fail_errno(err, "fork");
        }
        if (!p->pid) {
                /* Numbers above both goals first, so that neither is overwritten. */
                int s = fcntl(pair[1], F_DUPFD, 10), f = fcntl(file, F_DUPFD, 10);
                char *const arguments[] = {(char[]){"mfl"}, (char[]){MFL_ONNX_CHILD}, NULL};
                char *const environment[] = {NULL};
                if (s >= 0 && f >= 0 && dup2(s, FD_SOCKET) >= 0 && dup2(f, FD_FILE) >= 0)
                        execve("/proc/self/exe", arguments, environment);
                _exit(127);
        }
        close(pair[1]);
        p->socket = pair[0];
        struct timeval wait = {.tv_sec = WAIT_SECONDS};
        setsockopt(p->socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
        return 0;
}

/* Only a plain name, a plain file, in the model's own folder. */
static void give_file(const struct parent *p, const char *name)
{
        struct stat st;
        bool plain = *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
        int fd = plain ? openat(p->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
        char byte = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = {.bytes = {0}};
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (byte) {
                m.msg_control = control.bytes;
                m.msg_controllen = sizeof control;
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof fd);
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        (void)!sendmsg(p->socket, &m, MSG_NOSIGNAL); /* a child that is gone is found out next */
        if (fd >= 0)
                close(fd);
}

static int take(const struct parent *p, const struct message *m, struct mfl_onnx_model *ret_model,
        struct mfl_error *err)
{
        struct mfl_onnx_model model = {.input = m->input, .classes = m->classes, .n = m->n};
        if (m->text_bytes > MFL_JOB_TEXT_MAX || m->n > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its list of layers has %llu bytes; a job file has at most %d", p->path,
                        (unsigned long long)m->text_bytes, MFL_JOB_TEXT_MAX);
        memcpy(model.notes, m->text, sizeof model.notes);
        model.notes[sizeof model.notes - 1] = '\0';
        model.text = mfl_calloc(1, m->text_bytes + 1);
        model.params = mfl_alloc_aligned(MFL_MAX(m->n, (uint64_t)1) * sizeof(float));
        int r = 0;
        if (!model.text || !model.params)
                r = mfl_fail_memory(err, m->n * sizeof(float), p->path);
        else if (read_all(p->socket, model.text, m->text_bytes) ||
                 read_all(p->socket, model.params, m->n * sizeof(float)))
                r = MFL_NOT_FOUND;
        if (r)
                mfl_onnx_model_deinit(&model);
        else
                *ret_model = model;
        return r;
}

/* MFL_NOT_FOUND: the child has gone without an answer. */
static int listen_to(const struct parent *p, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct message m;
        while (!read_all(p->socket, &m, sizeof m)) {
                m.text[sizeof m.text - 1] = '\0';
                if (m.kind == SAY_FILE)
                        give_file(p, m.text);
                else if (m.kind == SAY_FAILED)
                        return mfl_fail(err, m.code == -ENOMEM ? -ENOMEM : MFL_INVALID, "%.500s", m.text);
                else
                        return m.kind == SAY_DONE ? take(p, &m, ret_model, err) : MFL_NOT_FOUND;
        }
        return MFL_NOT_FOUND;
}

static int why_gone(const struct parent *p, int status, struct mfl_error *err)
{
        const char *why = "the reader ended without an answer";
        if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL))
                why = "reading it took longer than a minute, or more memory than there is";
        else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
                why = "the reader made a system call that it may not make, and was stopped";
        else if (WIFSIGNALED(status))
                why = "the reader crashed in its sandbox; the file is damaged, or made to do this";
        return mfl_fail(err, MFL_INVALID, "%.300s: not read: %s", p->path, why);
}

static uint64_t memory_limit(uint64_t own)
{
        struct rlimit now;
        uint64_t want = MEMORY_BASE + own * MEMORY_FACTOR;
        return getrlimit(RLIMIT_AS, &now) || now.rlim_max == RLIM_INFINITY
                       ? want
                       : MFL_MIN(want, (uint64_t)now.rlim_max);
}

static int converse(struct parent *p, int file, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct stat st;
        char name[512];
        int status = 0, r;
        if (fstat(file, &st) || !S_ISREG(st.st_mode))
                return mfl_fail(err, MFL_INVALID, "%.300s: is no file", p->path);
        if (st.st_size == 0)
                return mfl_fail(err, MFL_INVALID, "%.300s: the file is empty", p->path);
        if ((r = start(p, file, err)))
                return r;
        uint64_t memory = memory_limit((uint64_t)st.st_size);
        memset(name, 0, sizeof name);
        mfl_strcpy(name, sizeof name, p->path);
        r = send_all(p->socket, &memory, sizeof memory) || send_all(p->socket, name, sizeof name)
                    ? MFL_NOT_FOUND
                    : listen_to(p, ret_model, err);
        close(p->socket);
        if (r == MFL_NOT_FOUND)
                kill(p->pid, SIGTERM);
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
                continue;
        return r == MFL_NOT_FOUND ? why_gone(p, status, err) : r;
}

int mfl_onnx_open(const char *path, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct parent p = {.path = path, .socket = -1, .dir = -1};
        const char *slash = strrchr(path, '/');
        MFL_CLEANUP_FREE char *folder =
                slash ? mfl_asprintf("%.*s", (int)(slash - path + 1), path) : mfl_strdup(".");
        if (!folder)
                return mfl_fail_memory(err, strlen(path), "a path");
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (file < 0 && errno == ENOENT)
                return mfl_fail(err, MFL_NOT_FOUND, "%.300s: no such file", path);
        if (file < 0)
                return mfl_fail(err, MFL_INVALID, "%.300s: %s", path, strerror(errno));
        p.dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = converse(&p, file, ret_model, err);
        close(file);
        if (p.dir >= 0)
                close(p.dir);
        return r;
}
