/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an ONNX file in a child process that may only compute.
 *
 *   - open the file, make a socket pair, fork, exec this program with a hidden argument;
 *   - the parent limits the child's time and memory by the size of the file, and raises the limits with each
 *     file that it hands over later;
 *   - the child limits its files and gives up all other system calls, maps the file, converts it, and asks for
 *     files beside it by name: it gets their descriptors;
 *   - the child answers with layers and params, and ends.
 *
 * The parent never parses ONNX: it gets the text of a job, which the ordinary parser reads, and floats.
 * Failures: no such file; a file of external data that is outside the model's folder, a link, not an ordinary
 * file, or too large; an error that the child reports; the child is killed (by a limit, or by a fault of the
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
#include "cli/onnx/open/child.h"
#include "cli/onnx/open/sandbox.h"
#include "cli/proof/proof.h"
#include "common/contract/contract.h"
#include "common/job/job.h"

/* Limits for reading: a fixed part, and a part per byte of all files together. Weights are mapped, copied
 * once or twice and sent; 8-bit whole-number weights need 8 times their size. */
#define CPU_SECONDS 60
#define CPU_SECONDS_PER_GIB 30
#define MEMORY_BASE ((uint64_t)4 << 30)
#define MEMORY_FACTOR 12
#define WAIT_SECONDS 300
#define FILES_BYTES_MAX ((uint64_t)MFL_ONNX_FILES_GIB_MAX << 30)

/* The parent's answer to SAY_FILE, in one byte; GIVEN comes with the file. */
enum { GIVEN = 1, NOT_THERE, OUTSIDE, A_LINK, NOT_PLAIN, TOO_LARGE };

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

#define CHILD_FILES_MAX 2048 /* some exporters write one file per weight */

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

/* Sets *ret_answer to GIVEN and *ret_fd to the file, or *ret_answer to the reason why not. */
static int receive_fd(int socket, char *ret_answer, int *ret_fd)
{
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec v = {ret_answer, 1};
        struct msghdr m = {.msg_iov = &v,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = sizeof control};
        if (recvmsg(socket, &m, 0) != 1)
                return -1;
        if (*ret_answer != GIVEN)
                return 0;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
                return -1;
        memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
        return 0;
}

static int refuse_file(char answer, const char *name, struct mfl_error *err)
{
        if (answer == TOO_LARGE)
                return mfl_fail(err, MFL_INVALID,
                        "external data: with %.150s, the model's files exceed the limit of %d GiB", name,
                        MFL_ONNX_FILES_GIB_MAX);
        return mfl_fail(err, MFL_INVALID, "external data: %.150s %s", name,
                answer == OUTSIDE     ? "is not below the model's folder, where it must be"
                : answer == A_LINK    ? "is a symbolic link, or is reached through one; put the file itself "
                                        "into the model's folder"
                : answer == NOT_PLAIN ? "is not an ordinary file"
                                      : "is missing or can't be read: put it into the model's folder");
}

static int ask_file(
        void *user, const char *name, const uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct child *c = user;
        struct mfl_onnx_message m = {.kind = MFL_ONNX_SAY_FILE};
        char given = 0;
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
                        "external data are in more than %d files, or a file name is too long",
                        CHILD_FILES_MAX);
        if (send_all(c->socket, &m, sizeof m) || receive_fd(c->socket, &given, &fd))
                return mfl_fail(err, MFL_INVALID, "external data: %.100s: no answer", name);
        if (given != GIVEN)
                return refuse_file(given, name, err);
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

static int give_up_rights(struct mfl_error *err)
{
        int r = limit(RLIMIT_CORE, 0, err);
        if (!r)
                r = limit(RLIMIT_FSIZE, 0, err);
        if (!r)
                r = limit(RLIMIT_NOFILE, 16, err);
        if (!r && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
                r = mfl_fail_errno(err, "a process that can't be read");
        return r ? r : mfl_sandbox_enter(err);
}

static int answer(int socket, int r, const struct mfl_onnx_model *model, const struct mfl_error *err)
{
        struct mfl_onnx_message m = {.kind = r ? MFL_ONNX_SAY_FAILED : MFL_ONNX_SAY_DONE, .code = r};
        mfl_strcpy(m.text, sizeof m.text, r ? err->text : model->notes);
        if (r)
                return send_all(socket, &m, sizeof m);
        m.classes = model->classes;
        m.input = model->input;
        m.text_bytes = strlen(model->text);
        m.n = model->n;
        m.proof_bytes = model->proof_bytes;
        m.parts_bytes = model->parts ? strlen(model->parts) : 0;
        m.contract_bytes = model->contract ? strlen(model->contract) : 0;
        m.own = model->own;
        m.described = model->described;
        m.said = model->said;
        m.log_softmax = model->log_softmax;
        mfl_strcpy(m.no_proof, sizeof m.no_proof, model->no_proof);
        r = send_all(socket, &m, sizeof m);
        if (!r)
                r = send_all(socket, model->text, m.text_bytes);
        if (!r)
                r = send_all(socket, model->params, m.n * sizeof *model->params);
        if (!r)
                r = send_all(socket, model->proof, m.proof_bytes);
        if (!r)
                r = send_all(socket, model->parts, m.parts_bytes);
        return r ? r : send_all(socket, model->contract, m.contract_bytes);
}

int mfl_onnx_child(int socket)
{
        static struct child c;
        struct mfl_onnx_files files = {ask_file, &c, 0};
        struct mfl_onnx_model model = {.n = 0};
        struct mfl_error err;
        const uint8_t *bytes = NULL;
        size_t n = 0;
        c.socket = socket;
        struct mfl_onnx_opening opening;
        /* When the parent sends the file's name (for messages), it has set the limits. */
        if (read_all(socket, &opening, sizeof opening))
                return 1;
        opening.name[sizeof opening.name - 1] = '\0';
        files.auxiliary = opening.auxiliary;
        files.inference = opening.inference;
        int r = map_fd(MFL_ONNX_FD_FILE, opening.name, &bytes, &n, &err);
        if (!r)
                r = give_up_rights(&err);
        if (!r)
                r = mfl_onnx_convert(bytes, n, opening.name, &files, &model, &err);
        int gone = answer(socket, r, &model, &err);
        mfl_onnx_model_deinit(&model);
        return gone ? 1 : 0;
}

/* ---- the parent ---- */

struct parent {
        const char *path;
        uint32_t auxiliary;
        bool inference;
        pid_t pid;
        int socket, dir;
        uint64_t bytes; /* bytes of all files that the child received */
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
                /* Moves the descriptors above both targets first, so that neither is overwritten. */
                int s = fcntl(pair[1], F_DUPFD, 10), f = fcntl(file, F_DUPFD, 10);
                char *const arguments[] = {(char[]){"mfl"}, (char[]){MFL_ONNX_CHILD}, NULL};
                char *const environment[] = {NULL};
                if (s >= 0 && f >= 0 && dup2(s, MFL_ONNX_FD_SOCKET) >= 0 && dup2(f, MFL_ONNX_FD_FILE) >= 0)
                        execve("/proc/self/exe", arguments, environment);
                _exit(127);
        }
        close(pair[1]);
        p->socket = pair[0];
        struct timeval wait = {.tv_sec = WAIT_SECONDS};
        setsockopt(p->socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
        return 0;
}

static int set_limit(
        const struct parent *p, __rlimit_resource_t what, uint64_t now, uint64_t most, struct mfl_error *err)
{
        struct rlimit own, limits;
        if (getrlimit(what, &own))
                return mfl_fail_errno(err, "limits");
        limits.rlim_max = own.rlim_max == RLIM_INFINITY ? most : MFL_MIN((rlim_t)most, own.rlim_max);
        limits.rlim_cur = MFL_MIN((rlim_t)now, limits.rlim_max);
        return prlimit(p->pid, what, &limits, NULL) ? mfl_fail_errno(err, "limit the reader of %s", p->path)
                                                    : 0;
}

static uint64_t memory_for(uint64_t bytes)
{
        return MEMORY_BASE + bytes * MEMORY_FACTOR;
}

static uint64_t seconds_for(uint64_t bytes)
{
        return CPU_SECONDS + (bytes >> 30) * CPU_SECONDS_PER_GIB;
}

/* The child can't raise the limits itself: it may not make that system call. */
static int set_limits(const struct parent *p, struct mfl_error *err)
{
        int r = set_limit(p, RLIMIT_CPU, seconds_for(p->bytes), seconds_for(FILES_BYTES_MAX), err);
        if (!r && mfl_sandbox_limits_memory)
                r = set_limit(p, RLIMIT_AS, memory_for(p->bytes), memory_for(FILES_BYTES_MAX), err);
        return r;
}

/* Opens a file below the model's folder, one path step at a time, following no link: GIVEN, or why not. */
static char open_below(int dir, const char *name, int *ret_fd)
{
        char part[256];
        struct stat st;
        int at = dup(dir), fd;
        for (;;) {
                size_t n = strcspn(name, "/");
                bool last = !name[n];
                mfl_snprintf(part, sizeof part, "%.*s", (int)MFL_MIN(n, sizeof part - 1), name);
                if (!n || n >= sizeof part || !strcmp(part, ".") || !strcmp(part, "..")) {
                        close(at);
                        return OUTSIDE;
                }
                fd = openat(
                        at, part, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (last ? 0 : O_DIRECTORY));
                bool link = fd < 0 && !fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
                close(at);
                if (fd < 0)
                        return link ? A_LINK : NOT_THERE;
                if (last)
                        break;
                at = fd;
                name += n + 1;
        }
        if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
                close(fd);
                return NOT_PLAIN;
        }
        *ret_fd = fd;
        return GIVEN;
}

static int give_file(struct parent *p, const char *name, struct mfl_error *err)
{
        struct stat st;
        int fd = -1, r = 0;
        char byte = open_below(p->dir, name, &fd);
        if (byte == GIVEN && !fstat(fd, &st)) {
                if ((uint64_t)st.st_size > FILES_BYTES_MAX - p->bytes)
                        byte = TOO_LARGE;
                else
                        p->bytes += (uint64_t)st.st_size;
        }
        if (byte == GIVEN)
                r = set_limits(p, err);
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = {.bytes = {0}};
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (byte == GIVEN) {
                m.msg_control = control.bytes;
                m.msg_controllen = sizeof control;
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof fd);
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        if (!r)
                (void)!sendmsg(p->socket, &m, MSG_NOSIGNAL); /* the next read finds out if the child is gone
                                                              */
        if (fd >= 0)
                close(fd);
        return r;
}

static int check_sizes(const char *path, const struct mfl_onnx_message *m, struct mfl_error *err)
{
        if (m->text_bytes > MFL_JOB_TEXT_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its list of layers needs %llu bytes; a job file may have %d", path,
                        (unsigned long long)m->text_bytes, MFL_JOB_TEXT_MAX);
        if (m->parts_bytes > MFL_JOB_TEXT_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: the list of its parameters that are a part of a tensor needs %llu bytes; "
                        "the limit is %d",
                        path, (unsigned long long)m->parts_bytes, MFL_JOB_TEXT_MAX);
        if (m->contract_bytes > MFL_CONTRACT_TEXT_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its input contract needs %llu bytes; the limit is %u", path,
                        (unsigned long long)m->contract_bytes, MFL_CONTRACT_TEXT_MAX);
        if (m->n > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID, "%.200s: it has %llu params; the limit is %llu", path,
                        (unsigned long long)m->n, (unsigned long long)MFL_PARAMS_MAX);
        if (m->proof_bytes > MFL_PROOF_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%.200s: its proof is larger than %llu MiB", path,
                        (unsigned long long)(MFL_PROOF_BYTES_MAX >> 20));
        return 0;
}

static int take(const struct parent *p, const struct mfl_onnx_message *m, struct mfl_onnx_model *ret_model,
        struct mfl_error *err)
{
        struct mfl_onnx_model model = {.input = m->input,
                .classes = m->classes,
                .n = m->n,
                .described = m->described,
                .said = m->said,
                .log_softmax = m->log_softmax,
                .proof_bytes = m->proof_bytes,
                .own = m->own};
        int r = check_sizes(p->path, m, err);
        if (r)
                return r;
        memcpy(model.notes, m->text, sizeof model.notes);
        model.notes[sizeof model.notes - 1] = '\0';
        memcpy(model.no_proof, m->no_proof, sizeof model.no_proof);
        model.no_proof[sizeof model.no_proof - 1] = '\0';
        model.proof = m->proof_bytes ? mfl_calloc(1, m->proof_bytes) : NULL;
        model.text = mfl_calloc(1, m->text_bytes + 1);
        model.parts = mfl_calloc(1, m->parts_bytes + 1);
        model.contract = m->contract_bytes ? mfl_calloc(1, m->contract_bytes + 1) : NULL;
        model.params = mfl_alloc_aligned(MFL_MAX(m->n, (uint64_t)1) * sizeof(float));
        if (!model.text || !model.parts || !model.params || (m->proof_bytes && !model.proof) ||
                (m->contract_bytes && !model.contract))
                r = mfl_fail_memory(err, m->n * sizeof(float), p->path);
        else if (read_all(p->socket, model.text, m->text_bytes) ||
                 read_all(p->socket, model.params, m->n * sizeof(float)) ||
                 read_all(p->socket, model.proof, m->proof_bytes) ||
                 read_all(p->socket, model.parts, m->parts_bytes) ||
                 read_all(p->socket, model.contract, m->contract_bytes))
                r = MFL_NOT_FOUND;
        else if (model.proof)
                r = mfl_proof_check(model.proof, model.proof_bytes, model.n, err);
        if (r)
                mfl_onnx_model_deinit(&model);
        else
                *ret_model = model;
        return r;
}

/* MFL_NOT_FOUND: the child ended without an answer. */
static int listen_to(struct parent *p, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct mfl_onnx_message m;
        int r;
        while (!read_all(p->socket, &m, sizeof m)) {
                m.text[sizeof m.text - 1] = '\0';
                if (m.kind == MFL_ONNX_SAY_FILE && (r = give_file(p, m.text, err)))
                        return r;
                if (m.kind == MFL_ONNX_SAY_FILE)
                        continue;
                if (m.kind == MFL_ONNX_SAY_FAILED && m.code == -ENOMEM)
                        return mfl_fail(err, MFL_INVALID,
                                "%.200s: not read: it needs more memory than this machine has, or more than "
                                "the limit of %llu MiB for files of this size",
                                p->path, (unsigned long long)(memory_for(p->bytes) >> 20));
                if (m.kind == MFL_ONNX_SAY_FAILED)
                        return mfl_fail(err, MFL_INVALID, "%.500s", m.text);
                return m.kind == MFL_ONNX_SAY_DONE ? take(p, &m, ret_model, err) : MFL_NOT_FOUND;
        }
        return MFL_NOT_FOUND;
}

static int why_gone(const struct parent *p, int status, struct mfl_error *err)
{
        const char *why = "the sandboxed reader ended without an answer";
        if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL))
                why = "it exceeded the limit of time or memory for files of this size";
        else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
                why = "the sandboxed reader made a forbidden system call and was stopped";
        else if (WIFSIGNALED(status))
                why = "the reader crashed in its sandbox; the file is damaged or malicious";
        return mfl_fail(err, MFL_INVALID, "%.300s: not read: %s", p->path, why);
}

static int converse(struct parent *p, int file, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct stat st;
        struct mfl_onnx_opening opening = {.auxiliary = p->auxiliary, .inference = p->inference};
        int status = 0, r;
        if (fstat(file, &st) || !S_ISREG(st.st_mode))
                return mfl_fail(err, MFL_INVALID, "%.300s: is not a file", p->path);
        if (st.st_size == 0)
                return mfl_fail(err, MFL_INVALID, "%.300s: the file is empty", p->path);
        if ((uint64_t)st.st_size > FILES_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%.300s: exceeds the limit of %d GiB", p->path,
                        MFL_ONNX_FILES_GIB_MAX);
        if ((r = start(p, file, err)))
                return r;
        p->bytes = (uint64_t)st.st_size;
        mfl_strcpy(opening.name, sizeof opening.name, p->path);
        r = set_limits(p, err);
        if (!r)
                r = send_all(p->socket, &opening, sizeof opening) ? MFL_NOT_FOUND
                                                                  : listen_to(p, ret_model, err);
        close(p->socket);
        if (r)
                kill(p->pid, SIGTERM); /* if it has not ended by itself */
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
                continue;
        return r == MFL_NOT_FOUND ? why_gone(p, status, err) : r;
}

int mfl_onnx_open(const char *path, uint32_t auxiliary, bool inference, struct mfl_onnx_model *ret_model,
        struct mfl_error *err)
{
        struct parent p = {
                .path = path, .auxiliary = auxiliary, .inference = inference, .socket = -1, .dir = -1};
        const char *slash = strrchr(path, '/');
        MFL_CLEANUP_FREE char *folder =
                slash ? mfl_asprintf("%.*s", (int)(slash - path + 1), path) : mfl_strdup(".");
        if (!folder)
                return mfl_fail_memory(err, strlen(path), "a path");
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (file < 0 && errno == ENOENT)
                return mfl_fail(err, MFL_NOT_FOUND, "%.300s: no such file%s", path,
                        *path == '/' ? "" : " below the folder in which mfl was started");
        if (file < 0)
                return mfl_fail(err, MFL_INVALID, "%.300s: %s", path, strerror(errno));
        p.dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = converse(&p, file, ret_model, err);
        close(file);
        if (p.dir >= 0)
                close(p.dir);
        return r;
}
