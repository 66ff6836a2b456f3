/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of the control socket. One connection at a time is read; a client that stalls is closed when the next
 * one comes.
 *
 * Ways to fail: the socket can't be made (the start fails); a garbled line (answered); no memory for an answer (closed). */
#include "client/policy/control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"

#define LINE_BYTES 256

struct control_talk {
        uv_pipe_t pipe;
        struct mfl_control *control;
        char line[LINE_BYTES];
        size_t n;
        char *answer;
        uv_write_t write;
};

struct mfl_control {
        uv_pipe_t listener;
        struct mfl_gate *gate;
        struct control_talk *talk; /* NULL: none */
        char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

static void on_talk_closed(uv_handle_t *handle)
{
        struct control_talk *talk = handle->data;
        free(talk->answer);
        free(talk);
}

static void end_talk(struct control_talk *talk)
{
        if (talk->control && talk->control->talk == talk)
                talk->control->talk = NULL;
        talk->control = NULL;
        if (!uv_is_closing((uv_handle_t *)&talk->pipe))
                uv_close((uv_handle_t *)&talk->pipe, on_talk_closed);
}

static void on_written(uv_write_t *write, int status)
{
        end_talk(write->data);
}

static void reply(struct control_talk *talk)
{
        struct mfl_error err;
        if (mfl_gate_command(talk->control->gate, talk->line, &talk->answer, &err)) {
                end_talk(talk);
                return;
        }
        uv_buf_t buf = uv_buf_init(talk->answer, (unsigned)strlen(talk->answer));
        talk->write.data = talk;
        uv_read_stop((uv_stream_t *)&talk->pipe);
        if (uv_write(&talk->write, (uv_stream_t *)&talk->pipe, &buf, 1, on_written))
                end_talk(talk);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
        struct control_talk *talk = handle->data;
        *ret_buf = uv_buf_init(talk->line + talk->n, (unsigned)(LINE_BYTES - 1 - talk->n));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct control_talk *talk = stream->data;
        if (n < 0) { /* also a line that is too long: no room is left, which is UV_ENOBUFS */
                end_talk(talk);
                return;
        }
        talk->n += (size_t)n;
        char *end = memchr(talk->line, '\n', talk->n);
        if (!end)
                return;
        *end = '\0';
        reply(talk);
}

static void on_connection(uv_stream_t *listener, int status)
{
        struct mfl_control *control = listener->data;
        struct control_talk *talk = status ? NULL : mfl_calloc(1, sizeof(*talk));
        if (!talk)
                return;
        if (control->talk)
                end_talk(control->talk);
        uv_pipe_init(listener->loop, &talk->pipe, 0);
        talk->pipe.data = talk;
        talk->control = control;
        control->talk = talk;
        if (uv_accept(listener, (uv_stream_t *)&talk->pipe) ||
                uv_read_start((uv_stream_t *)&talk->pipe, on_alloc, on_read))
                end_talk(talk);
}

/* A socket that a killed daemon has left behind is removed; one that somebody listens on is not. */
static int free_path(const char *path, struct mfl_error *err)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        mfl_strcpy(address.sun_path, sizeof(address.sun_path), path);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return mfl_fail_errno(err, "policy: a socket");
        bool heard = !connect(fd, (const struct sockaddr *)&address, sizeof(address));
        close(fd);
        if (heard)
                return mfl_fail(err, MFL_INVALID,
                        "policy: another daemon of this name listens on %s: give each its own name or dir",
                        path);
        if (unlink(path) && errno != ENOENT)
                return mfl_fail_errno(err, "policy: remove %s", path);
        return 0;
}

int mfl_control_open(uv_loop_t *loop, const char *dir, const char *name, struct mfl_gate *gate,
        struct mfl_control **ret_control, struct mfl_error *err)
{
        struct mfl_control *control = mfl_calloc(1, sizeof(*control));
        if (!control)
                return mfl_fail_memory(err, sizeof(*control), "a control socket");
        control->gate = gate;
        int n = mfl_snprintf(control->path, sizeof(control->path), "%s/%s.sock", dir, name);
        int r = n >= (int)sizeof(control->path)
                        ? mfl_fail(err, MFL_INVALID, "policy.dir: %s is too long for a socket's path", dir)
                        : free_path(control->path, err);
        if (r) {
                free(control);
                return r;
        }
        uv_pipe_init(loop, &control->listener, 0);
        control->listener.data = control;
        r = uv_pipe_bind(&control->listener, control->path);
        /* Nobody can connect before listen. */
        if (!r && chmod(control->path, 0600))
                r = -errno;
        if (!r)
                r = uv_listen((uv_stream_t *)&control->listener, 8, on_connection);
        *ret_control = control;
        return r ? mfl_fail(err, r, "policy: listen on %s: %s", control->path, uv_strerror(r)) : 0;
}

static void on_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void mfl_control_close(struct mfl_control *control)
{
        if (!control)
                return;
        if (control->talk)
                end_talk(control->talk);
        uv_close((uv_handle_t *)&control->listener, on_closed); /* libuv removes the socket */
}
