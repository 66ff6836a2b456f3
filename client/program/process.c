/* SPDX-License-Identifier: Apache-2.0 */
/* A program's process as the daemon sees it: its start, frames to and from it, its output, its end. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/program/internal.h"
#include "common/base/log.h"
#include "common/base/plain.h"

#define LOOK_MS 50         /* how often a call looks whether it is stopped */
#define ENDS_MS 3000       /* how long a supervisor may take to end */
#define OUTPUT_TURNS 64    /* KiB of output that are read before anything else is looked at */
#define FD_FREE 16         /* descriptors from here on are not those that a child gets */
#define ARGUMENTS_MAX 192  /* of the supervisor */
#define ARGUMENTS_PATHS 72 /* where its paths end */
#define PATH_BYTES (1 + MFL_PROGRAM_PATH_BYTES) /* and a letter */
#define LAST_LINES "; last lines: "
#define TAIL_LEAST 60    /* bytes of them in a reason */
#define REASON_BYTES 165 /* of a reason that people see: the server puts its own words before it */

/* ---- start ---- */

/* Between fork and exec, beside other threads: only calls that are allowed there. */
static void become_supervisor(int socket, int output, int life, char **argv)
{
        int null = open("/dev/null", O_RDONLY);
        sigset_t none;
        sigemptyset(&none);
        if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
                dup2(output, STDERR_FILENO) >= 0 && dup2(socket, PROGRAM_FD) >= 0 &&
                dup2(life, LIFE_FD) >= 0 && !sigprocmask(SIG_SETMASK, &none, NULL))
                execv("/proc/self/exe", argv);
        _exit(127);
}

struct ends {
        int socket[2], output[2], life[2]; /* the daemon's, and the child's */
};

static void close_fd(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static int move_up(int *fd)
{
        int up = fcntl(*fd, F_DUPFD_CLOEXEC, FD_FREE);
        close(*fd);
        *fd = up;
        return up < 0;
}

static int open_ends(struct ends *e, struct mfl_error *err)
{
        int out[2], life[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e->socket))
                return mfl_fail_errno(err, "a program's socket");
        if (pipe2(out, O_CLOEXEC))
                return mfl_fail_errno(err, "a program's output");
        e->output[0] = out[0];
        e->output[1] = out[1];
        if (pipe2(life, O_CLOEXEC))
                return mfl_fail_errno(err, "a program's pipe");
        e->life[0] = life[1]; /* the daemon has the writing end, and writes nothing */
        e->life[1] = life[0];
        int failed = 0;
        for (int i = 0; i < 2; i++)
                failed |= move_up(&e->socket[i]) | move_up(&e->output[i]) | move_up(&e->life[i]);
        failed |= fcntl(e->socket[0], F_SETFL, O_NONBLOCK) || fcntl(e->output[0], F_SETFL, O_NONBLOCK);
        return failed ? mfl_fail_errno(err, "a program's descriptors") : 0;
}

/* What they are is in their first letter (child.c). */
static int add_paths(char **argv, int n, char letter, const char *const *paths, char *store)
{
        for (; paths && *paths && n < ARGUMENTS_PATHS; paths++) {
                char *text = store + (size_t)n * PATH_BYTES;
                mfl_snprintf(text, PATH_BYTES, "%c%s", letter, *paths);
                argv[n++] = text;
        }
        return n;
}

static void make_arguments(const struct mfl_program_options *options, char numbers[3][24], char *store,
        char *argv[ARGUMENTS_MAX])
{
        const struct mfl_program_config *config = options->config;
        int n = 0;
        snprintf(numbers[0], 24, "%llu", (unsigned long long)config->memory_bytes);
        snprintf(numbers[1], 24, "%u", config->threads);
        snprintf(numbers[2], 24, "%u", config->processes);
        const char *const first[] = {"mfl-client", "run-program", numbers[0], config->network ? "1" : "0",
                numbers[1], numbers[2], options->group ? options->group : "", config->dir ? config->dir : ""};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(first); i++)
                argv[n++] = (char *)(uintptr_t)first[i];
        n = add_paths(argv, n, 'h', options->hidden, store);
        n = add_paths(argv, n, 'r', (const char *const *)config->read, store);
        n = add_paths(argv, n, 'w', (const char *const *)config->write, store);
        argv[n++] = (char *)(uintptr_t) "--";
        for (uint32_t i = 0; i < config->n_command && n + 1 < ARGUMENTS_MAX; i++)
                argv[n++] = config->command[i];
        argv[n] = NULL;
}

int mfl_program_start(
        struct program_process *process, const struct mfl_program_options *options, struct mfl_error *err)
{
        struct ends e = {{-1, -1}, {-1, -1}, {-1, -1}};
        char numbers[3][24], *argv[ARGUMENTS_MAX];
        *process = (struct program_process){.socket = -1, .output = -1, .life = -1, .job = options->job};
        MFL_CLEANUP_FREE char *store = mfl_malloc((size_t)ARGUMENTS_PATHS * PATH_BYTES);
        int r = store ? open_ends(&e, err)
                      : mfl_fail_memory(err, (size_t)ARGUMENTS_PATHS * PATH_BYTES, "a program's arguments");
        if (store)
                make_arguments(options, numbers, store, argv);
        pid_t pid = r ? -1 : fork();
        if (!r && !pid)
                become_supervisor(e.socket[1], e.output[1], e.life[1], argv);
        if (!r && pid < 0)
                r = mfl_fail_errno(err, "start the program %s", options->config->name);
        close_fd(&e.socket[1]);
        close_fd(&e.output[1]);
        close_fd(&e.life[1]);
        if (r) {
                close_fd(&e.socket[0]);
                close_fd(&e.output[0]);
                close_fd(&e.life[0]);
                return MFL_PROGRAM_FAILED;
        }
        process->pid = pid;
        process->socket = e.socket[0];
        process->output = e.output[0];
        process->life = e.life[0];
        mfl_log_job(MFL_LOG_INFO, options->job, "%s: the program %s starts: %s", options->job,
                options->config->name, options->config->command[0]);
        return 0;
}

/* ---- output ---- */

/* Returns whether the supervisor has written it, about itself. */
static bool tell_line(struct program_process *process, const char *line, size_t n)
{
        static const char last[] = SANDBOX_LINE SANDBOX_END;
        bool own = !process->begun && n >= sizeof(SANDBOX_LINE) - 1 &&
                   !memcmp(line, SANDBOX_LINE, sizeof(SANDBOX_LINE) - 1);
        if (own && n == sizeof(last) - 1 && !memcmp(line, last, n)) {
                process->begun = true;
                return true;
        }
        if (n)
                mfl_log_job(own ? MFL_LOG_INFO : MFL_LOG_DEBUG, process->job, "%s: program: %.*s",
                        process->job, (int)MFL_MIN(n, (size_t)400), line);
        return own;
}

/* Keeps the end of what there is, and logs whole lines. Several processes may write faster than this one reads: the rest waits. */
static void take_output(struct program_process *process)
{
        char piece[1024];
        ssize_t n;
        for (int turn = 0; turn < OUTPUT_TURNS && process->output >= 0 &&
                           (n = read(process->output, piece, sizeof(piece))) != 0;
                turn++) {
                if (n < 0)
                        return; /* nothing now */
                for (ssize_t i = 0; i < n; i++) {
                        if (process->n_tail == TAIL_BYTES) {
                                memmove(process->tail, process->tail + TAIL_BYTES / 2, TAIL_BYTES / 2);
                                process->n_tail = TAIL_BYTES / 2;
                        }
                        process->tail[process->n_tail++] = piece[i] ? piece[i] : ' ';
                        if (piece[i] != '\n')
                                continue;
                        size_t end = process->n_tail - 1, start = end;
                        while (start && process->tail[start - 1] != '\n')
                                start--;
                        if (tell_line(process, process->tail + start, end - start))
                                process->n_tail = start; /* no words of the program */
                }
        }
}

/* In one line: " / " between lines. */
static void show_tail(const struct program_process *process, char text[TAIL_SHOWN + 1])
{
        size_t end = process->n_tail, start, n = 0;
        while (end && strchr("\n\r\t ", process->tail[end - 1]))
                end--;
        start = end > TAIL_SHOWN - 60 ? end - (TAIL_SHOWN - 60) : 0;
        while (start && start < end && ((unsigned char)process->tail[start] & 0xc0) == 0x80)
                start++; /* a cut character */
        for (size_t i = start; i < end && n + 4 < TAIL_SHOWN; i++) {
                char c = process->tail[i];
                if (c == '\n' && n > 2 && text[n - 2] != '/') {
                        memcpy(text + n, " / ", 3);
                        n += 3;
                } else if (c != '\n' && c != '\r')
                        text[n++] = c == '\t' ? ' ' : c;
        }
        text[n] = 0;
}

int mfl_program_fail(struct program_process *process, struct mfl_error *err, const char *fmt, ...)
{
        char why[256], tail[TAIL_SHOWN + 1], *end = tail;
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(why, sizeof(why), fmt, ap);
        va_end(ap);
        take_output(process);
        show_tail(process, tail);
        if (*tail)
                mfl_log_job(MFL_LOG_WARN, process->job, "%s: %s; last lines: %s", process->job, why, tail);
        /* A reason is short, and the end of the last line says most. */
        size_t n = strlen(tail), used = strlen(why) + sizeof(LAST_LINES);
        size_t room = used + TAIL_LEAST < REASON_BYTES ? REASON_BYTES - used : TAIL_LEAST;
        if (n > room)
                end += n - room;
        while (((unsigned char)*end & 0xc0) == 0x80)
                end++; /* a cut character */
        return mfl_fail(err, MFL_PROGRAM_FAILED, "%s%s%s", why, *end ? LAST_LINES : "", end);
}

/* ---- frames ---- */

/* Waits until the socket is ready for `events`. */
static int wait_for(
        struct program_process *process, short events, const struct program_wait *wait, struct mfl_error *err)
{
        for (;;) {
                struct pollfd fds[2] = {
                        {.fd = process->socket, .events = events}, {.fd = process->output, .events = POLLIN}};
                if (poll(fds, 2, LOOK_MS) < 0 && errno != EINTR)
                        return mfl_fail_errno(err, "wait for a program");
                if (fds[1].revents & POLLIN)
                        take_output(process);
                else if (fds[1].revents)
                        close_fd(&process->output);
                /* First, since a program that sends one byte after the other is always ready. */
                if (wait->stopped && wait->stopped(wait->user))
                        return mfl_fail(err, MFL_PROGRAM_STOPPED, "stopped");
                if (mfl_now_ms() >= wait->until_ms)
                        return mfl_fail(err, MFL_PROGRAM_FAILED, "does not answer in time");
                if (fds[0].revents)
                        return 0;
        }
}

static ssize_t send_piece(int socket, const char *at, size_t n, const int *fds, int n_fds)
{
        union {
                char bytes[CMSG_SPACE(3 * sizeof(int))];
                struct cmsghdr align;
        } control = {{0}};
        struct iovec v = {(void *)(uintptr_t)at, n};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (n_fds) {
                mfl_assert(n_fds <= 3);
                m.msg_control = control.bytes;
                m.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
        }
        return sendmsg(socket, &m, MSG_NOSIGNAL);
}

static int send_all(struct program_process *process, const void *data, size_t n, const int *fds, int n_fds,
        const struct program_wait *wait, struct mfl_error *err)
{
        for (const char *at = data; n;) {
                int r = wait_for(process, POLLOUT, wait, err);
                if (r)
                        return r;
                ssize_t done = send_piece(process->socket, at, n, fds, n_fds);
                if (done < 0 && (errno == EAGAIN || errno == EINTR))
                        continue;
                if (done <= 0)
                        return mfl_fail(err, MFL_PROGRAM_FAILED, "has ended");
                at += done;
                n -= (size_t)done;
                n_fds = 0;
        }
        return 0;
}

int mfl_program_send(struct program_process *process, const void *message, size_t n, const int *fds,
        int n_fds, const struct program_wait *wait, struct mfl_error *err)
{
        uint8_t head[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
        mfl_assert(n <= PROGRAM_MESSAGE_MAX);
        int r = send_all(process, head, sizeof(head), fds, n_fds, wait, err);
        return r ? r : send_all(process, message, n, NULL, 0, wait, err);
}

static int read_all(struct program_process *process, void *data, size_t n, const struct program_wait *wait,
        struct mfl_error *err)
{
        for (char *at = data; n;) {
                int r = wait_for(process, POLLIN, wait, err);
                if (r)
                        return r;
                ssize_t done = recv(process->socket, at, n, 0); /* descriptors of the program's are dropped */
                if (done < 0 && (errno == EAGAIN || errno == EINTR))
                        continue;
                if (done <= 0)
                        return mfl_fail(err, MFL_PROGRAM_FAILED, "has ended");
                at += done;
                n -= (size_t)done;
        }
        return 0;
}

int mfl_program_receive(struct program_process *process, const struct program_wait *wait, void **ret_message,
        size_t *ret_n, struct mfl_error *err)
{
        uint8_t head[4];
        int r = read_all(process, head, sizeof(head), wait, err);
        if (r)
                return r;
        size_t n = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        if (n > PROGRAM_ANSWER_MAX)
                return mfl_fail(err, MFL_PROGRAM_FAILED, "its answer has %zu bytes, and %u are allowed", n,
                        PROGRAM_ANSWER_MAX);
        char *message = mfl_malloc(n);
        if (!message)
                return mfl_fail_memory(err, n, "a program's answer");
        r = read_all(process, message, n, wait, err);
        if (r) {
                free(message);
                return r;
        }
        *ret_message = message;
        *ret_n = n;
        return 0;
}

/* ---- the end ---- */

static bool wait_end(pid_t pid, uint64_t ms, int *ret_status)
{
        for (uint64_t until = mfl_now_ms() + ms;;) {
                pid_t done = waitpid(pid, ret_status, WNOHANG);
                if (done == pid || (done < 0 && errno != EINTR))
                        return true;
                if (mfl_now_ms() >= until)
                        return false;
                poll(NULL, 0, 2);
        }
}

void mfl_program_kill(struct program_process *process, char *ret_text, size_t text_bytes)
{
        int status = 0;
        *ret_text = 0;
        if (!process->pid)
                return;
        /* If the program has ended by itself, its supervisor is about to, and tells how. */
        struct pollfd fd = {.fd = process->socket, .events = POLLIN};
        bool over = poll(&fd, 1, 0) > 0 && fd.revents & (POLLHUP | POLLERR);
        bool ended = wait_end(process->pid, over ? ENDS_MS : 0, &status);
        if (ended && WIFEXITED(status) && WEXITSTATUS(status) >= 128)
                mfl_snprintf(ret_text, text_bytes, "killed by signal %d", WEXITSTATUS(status) - 128);
        else if (ended && WIFEXITED(status))
                mfl_snprintf(ret_text, text_bytes, "ended with status %d", WEXITSTATUS(status));
        else if (ended)
                mfl_snprintf(ret_text, text_bytes, "its supervisor was killed");
        close_fd(&process->life);
        if (!ended && !wait_end(process->pid, ENDS_MS, &status)) {
                kill(process->pid, SIGKILL);
                waitpid(process->pid, &status, 0);
        }
        process->pid = 0;
        take_output(process);
        close_fd(&process->socket);
        close_fd(&process->output);
}
