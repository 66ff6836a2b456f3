/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that `mfl run` starts. */
#include "cli/run/children.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define TAIL_BYTES 2000
#define TAIL_LINES 8

int mfl_children_init(struct mfl_children *set, uv_loop_t *loop, int n, const struct mfl_children_ops *ops,
        void *owner, struct mfl_error *err)
{
        struct mfl_child *child = mfl_calloc((size_t)n, sizeof *child);
        if (!child)
                return mfl_fail_memory(err, (size_t)n * sizeof *child, "child processes");
        *set = (struct mfl_children){.loop = loop, .ops = ops, .owner = owner, .child = child, .n = n};
        for (int i = 0; i < n; i++)
                child[i].set = set;
        return 0;
}

int mfl_child_argument(struct mfl_child *child, struct mfl_error *err, const char *fmt, ...)
{
        char text[4352];
        va_list args;
        mfl_assert(child->n_arguments + 1 < MFL_CHILD_ARGUMENTS_MAX);
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        char *copy = mfl_strdup(text);
        if (!copy)
                return mfl_fail_memory(err, strlen(text), "an argument");
        child->arguments[child->n_arguments++] = copy;
        return 0;
}

int mfl_child_setup(struct mfl_child *child, const char *name, const char *dir, const char *program,
        struct mfl_error *err)
{
        mfl_strcpy(child->name, sizeof child->name, name);
        child->log = mfl_asprintf("%s/%s.log", dir, name);
        if (!child->log)
                return mfl_fail_memory(err, strlen(dir), "a path");
        return mfl_child_argument(child, err, "%s", program);
}

/* The last lines of the log: what a child said before it ended; "" if there are none. */
static void read_tail(const char *path, char *buf)
{
        buf[0] = '\0';
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return;
        off_t end = lseek(fd, 0, SEEK_END);
        ssize_t n = pread(fd, buf, TAIL_BYTES, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
        close(fd);
        n = n > 0 ? n : 0;
        while (n && buf[n - 1] == '\n')
                n--;
        buf[n] = '\0';
        int lines = 0;
        for (char *c = buf + n; c > buf; c--)
                if (c[-1] == '\n' && ++lines == TAIL_LINES) {
                        memmove(buf, c, strlen(c) + 1);
                        break;
                }
}

static void start_again(struct mfl_child *child)
{
        struct mfl_error err;
        if (!mfl_child_start(child, -1, &err))
                return;
        child->given_up = true;
        child->set->ops->on_given_up(child, err.text);
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct mfl_child *child = handle->data;
        if (--child->handles || child->given_up || child->set->stopping)
                return;
        start_again(child);
}

static void on_exit_of_child(uv_process_t *process, int64_t status, int signal_number)
{
        struct mfl_child *child = process->data;
        char text[160], tail[TAIL_BYTES + 1];
        child->running = false;
        child->status = signal_number ? -1 : status;
        if (signal_number)
                snprintf(text, sizeof text, "%s was killed by signal %d (%s)", child->name, signal_number,
                        strsignal(signal_number));
        else
                snprintf(text, sizeof text, "%s exited with status %d", child->name, (int)status);
        read_tail(child->log, tail);
        if (!child->set->stopping)
                child->given_up = !child->set->ops->on_ended(child, text, tail);
        uv_close((uv_handle_t *)&child->process, on_handle_closed);
        if (!uv_is_closing((uv_handle_t *)&child->input))
                uv_close((uv_handle_t *)&child->input, on_handle_closed);
}

static int spawn(struct mfl_child *child, int log_fd, int ready_fd, struct mfl_error *err)
{
        uv_stdio_container_t stdio[4] = {
                {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&child->input},
                {.flags = UV_INHERIT_FD, .data.fd = log_fd},
                {.flags = UV_INHERIT_FD, .data.fd = log_fd},
                {.flags = UV_INHERIT_FD, .data.fd = ready_fd},
        };
        uv_process_options_t options = {.file = child->arguments[0],
                .args = child->arguments,
                .exit_cb = on_exit_of_child,
                .flags = UV_PROCESS_DETACHED,
                .stdio = stdio,
                .stdio_count = ready_fd >= 0 ? 4 : 3};
        uv_pipe_init(child->set->loop, &child->input, 0);
        child->input.data = child->process.data = child;
        child->handles = 2;
        int r = uv_spawn(child->set->loop, &child->process, &options);
        if (!r) {
                child->running = true;
                child->starts++;
                return 0;
        }
        child->given_up = true; /* the handles close, and the child is not started again */
        uv_close((uv_handle_t *)&child->process, on_handle_closed);
        uv_close((uv_handle_t *)&child->input, on_handle_closed);
        return mfl_fail(err, MFL_CLI_FAILED, "start %s: %s", child->arguments[0], uv_strerror(r));
}

int mfl_child_start(struct mfl_child *child, int ready_fd, struct mfl_error *err)
{
        int log_fd = open(child->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log_fd < 0)
                return mfl_fail_errno(err, "open %s", child->log);
        int r = spawn(child, log_fd, ready_fd, err);
        close(log_fd);
        return r;
}

static void end_all(struct mfl_children *set, int signal_number)
{
        for (int i = 0; i < set->n; i++) {
                struct mfl_child *child = &set->child[i];
                if (!child->running)
                        continue;
                if (!uv_is_closing((uv_handle_t *)&child->input))
                        uv_close((uv_handle_t *)&child->input, on_handle_closed);
                uv_process_kill(&child->process, signal_number);
        }
}

static bool all_closed(const struct mfl_children *set)
{
        for (int i = 0; i < set->n; i++)
                if (set->child[i].handles)
                        return false;
        return true;
}

static void on_grace_over(uv_timer_t *timer)
{
        end_all(timer->data, SIGKILL);
}

void mfl_children_stop(struct mfl_children *set, struct mfl_cli *cli, uint64_t grace_ms)
{
        uv_timer_t timer;
        bool killed = false;
        if (!set->child || all_closed(set)) {
                set->stopping = true;
                return;
        }
        set->stopping = true;
        uv_timer_init(set->loop, &timer);
        timer.data = set;
        uv_update_time(set->loop);
        uv_timer_start(&timer, on_grace_over, grace_ms, 0);
        end_all(set, SIGTERM);
        while (!all_closed(set)) {
                if (!killed && (cli->interrupted > cli->acknowledged || cli->interrupted > 1)) {
                        killed = true;
                        end_all(set, SIGKILL);
                }
                uv_run(set->loop, UV_RUN_ONCE);
        }
        uv_close((uv_handle_t *)&timer, NULL);
        while (uv_is_active((uv_handle_t *)&timer))
                uv_run(set->loop, UV_RUN_NOWAIT);
        uv_run(set->loop, UV_RUN_NOWAIT); /* closes the timer, which is on this stack */
}

void mfl_children_deinit(struct mfl_children *set)
{
        for (int i = 0; i < set->n; i++) {
                struct mfl_child *child = &set->child[i];
                mfl_assert(!child->handles);
                free(child->log);
                for (int k = 0; k < child->n_arguments; k++)
                        free(child->arguments[k]);
        }
        free(set->child);
        set->child = NULL;
        set->n = 0;
}

int mfl_child_find_program(const char *env, const char *part, const char *name, char *ret_path,
        size_t path_bytes, struct mfl_error *err)
{
        char self[2048], path[4096];
        const char *given = getenv(env);
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        if (given && *given) {
                mfl_strcpy(path, sizeof path, given);
        } else {
                self[n > 0 ? n : 0] = '\0';
                char *slash = strrchr(self, '/');
                if (slash)
                        *slash = '\0';
                snprintf(path, sizeof path, "%s/../%s/%s", self, part, name);
                if (access(path, X_OK))
                        snprintf(path, sizeof path, "%s/%s", self, name);
        }
        if (access(path, X_OK))
                return mfl_fail(err, MFL_CLI_FAILED, "%s: %s; set %s to the path of %s", path,
                        strerror(errno), env, name);
        mfl_strcpy(ret_path, path_bytes, path);
        return 0;
}
