/* SPDX-License-Identifier: Apache-2.0 */
/* The shell of --all-gpus: processes, pipes, signals and timers around supervise_core.
 *
 *   - list the GPUs, start a child for each;
 *   - pass on what children write, line by line, with "gpu3| " in front;
 *   - restart a child that dies, after its delay;
 *   - SIGTERM, SIGINT or the end of standard input: pass it on as that signal, then wait for all children;
 *     a second signal kills them;
 *   - pass SIGHUP on: children read their configuration again.
 * Fails by: no GPU is found; a child that can't be started (tried again as if it had died). */
#include "client/service/supervise.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <uv.h>

#include "client/gpu/gpu_pin.h"
#include "client/service/service.h"
#include "client/service/supervise_core.h"
#include "common/base/budget.h"
#include "common/base/log.h"
#include "common/base/states.h"
#include "common/base/systemd.h"

#define LINE_BYTES 4096

struct child;
struct supervisor;

/* One of a child's output streams. */
struct output {
        struct child *child;
        uv_pipe_t pipe;
        FILE *to;
        size_t have;
        char line[LINE_BYTES];
        char read[LINE_BYTES];
};

struct child {
        struct supervisor *supervisor;
        struct mfl_child core;
        char label[MFL_NAME_BYTES];
        char **argv;
        char gpu[MFL_GPU_TEXT_BYTES], name[MFL_NAME_BYTES], memory[32];
        uv_process_t process;
        uv_pipe_t in;
        struct output out, err;
        uv_timer_t timer;
        /* Of one run of the process: handles that are still open. The run is over when there are none. */
        uint32_t n_open;
        int64_t status;
        int signal;
};

enum phase {
        PHASE_RUNS,
        PHASE_STOPS, /* the children were asked to end */
        PHASE_KILLS, /* asked twice: they are killed */
        PHASES_,
};
static const struct mfl_states phases = {
        .thing = "supervisor",
        .n = PHASES_,
        .v = {[PHASE_RUNS] = {"RUNS", MFL_TO(PHASE_STOPS)},
                [PHASE_STOPS] = {"STOPS", MFL_TO(PHASE_KILLS)},
                [PHASE_KILLS] = {"KILLS", 0}},
};

struct supervisor {
        uv_loop_t loop;
        uv_signal_t sigterm, sigint;
        struct mfl_client_service service;
        char **environment; /* of children */
        uv_pipe_t stdin_pipe;
        char stdin_ignored[256];
        char program[4096];
        enum phase phase;
        bool watches_stdin;
        uint64_t leave_ms; /* SIGTERM lets children finish their work for this long; 0: it does not */
        uint32_t n;
        struct child *children;
};

static void start_child(struct child *child);

/* ---- output ---- */

static void write_line(struct output *o)
{
        if (!o->have)
                return;
        fprintf(o->to, "%s| %.*s\n", o->child->label, (int)o->have, o->line);
        fflush(o->to);
        o->have = 0;
}

static void on_output_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
        struct output *o = handle->data;
        *ret_buf = uv_buf_init(o->read, sizeof(o->read));
}

static void part_closed(struct child *child);

static void on_output_closed(uv_handle_t *handle)
{
        struct output *o = handle->data;
        part_closed(o->child);
}

static void on_output(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct output *o = stream->data;
        for (ssize_t i = 0; i < n; i++) {
                if (buf->base[i] == '\n' || o->have == sizeof(o->line))
                        write_line(o);
                if (buf->base[i] != '\n')
                        o->line[o->have++] = buf->base[i];
        }
        if (n >= 0)
                return;
        write_line(o);
        uv_close((uv_handle_t *)&o->pipe, on_output_closed);
}

/* ---- the end of a run ---- */

static void close_timers(struct supervisor *s)
{
        for (uint32_t i = 0; i < s->n; i++) {
                if (s->children[i].core.state != MFL_CHILD_ENDED)
                        return;
        }
        for (uint32_t i = 0; i < s->n; i++)
                uv_close((uv_handle_t *)&s->children[i].timer, NULL);
        uv_close((uv_handle_t *)&s->sigterm, NULL);
        uv_close((uv_handle_t *)&s->sigint, NULL);
        mfl_client_service_close(&s->service);
        if (s->watches_stdin)
                uv_close((uv_handle_t *)&s->stdin_pipe, NULL);
}

static void on_due(uv_timer_t *timer)
{
        start_child(timer->data);
}

static void tell_end(const struct child *child)
{
        char how[64];
        enum mfl_log_level level = child->core.status ? MFL_LOG_WARN : MFL_LOG_INFO;
        if (child->signal)
                snprintf(how, sizeof(how), "was ended by signal %d (%s)", child->signal,
                        strsignal(child->signal));
        else
                snprintf(how, sizeof(how), "ended with status %d", (int)child->status);
        if (child->core.state == MFL_CHILD_WAITING)
                mfl_log(level, "%s %s; restarting it in %u s", child->name, how,
                        child->core.backoff_ms / 1000);
        else
                mfl_log(level, "%s %s%s", child->name, how,
                        child->core.status && child->supervisor->phase == PHASE_RUNS ? "; not restarting it"
                                                                                     : "");
}

static void end_life(struct child *child)
{
        struct supervisor *s = child->supervisor;
        mfl_child_exited(
                &child->core, (int)child->status, child->signal, s->phase != PHASE_RUNS, mfl_now_ms());
        tell_end(child);
        if (child->core.state == MFL_CHILD_WAITING)
                uv_timer_start(&child->timer, on_due, child->core.backoff_ms, 0);
        else
                close_timers(s);
}

/* Its last output is passed on before its end is reported. */
static void part_closed(struct child *child)
{
        if (--child->n_open == 0)
                end_life(child);
}

static void on_closed(uv_handle_t *handle)
{
        part_closed(handle->data);
}

static void on_child_exit(uv_process_t *process, int64_t status, int signal)
{
        struct child *child = process->data;
        child->status = status;
        child->signal = signal;
        uv_close((uv_handle_t *)process, on_closed);
        uv_close((uv_handle_t *)&child->in, on_closed);
}

/* ---- a run ---- */

static void init_output(struct child *child, struct output *o, FILE *to)
{
        uv_pipe_init(&child->supervisor->loop, &o->pipe, 0);
        o->pipe.data = o;
        o->child = child;
        o->to = to;
        o->have = 0;
}

static int spawn(struct child *child)
{
        uv_stdio_container_t stdio[3] = {
                {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&child->in},
                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&child->out.pipe},
                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&child->err.pipe},
        };
        uv_process_options_t options = {.exit_cb = on_child_exit,
                .file = child->supervisor->program,
                .args = child->argv,
                .env = child->supervisor->environment,
                .flags = UV_PROCESS_DETACHED,
                .stdio = stdio,
                .stdio_count = 3};
        int r = uv_spawn(&child->supervisor->loop, &child->process, &options);
        if (!r)
                r = uv_read_start((uv_stream_t *)&child->out.pipe, on_output_alloc, on_output);
        return r ? r : uv_read_start((uv_stream_t *)&child->err.pipe, on_output_alloc, on_output);
}

static void start_child(struct child *child)
{
        uv_loop_t *loop = &child->supervisor->loop;
        mfl_child_started(&child->core, mfl_now_ms());
        uv_pipe_init(loop, &child->in, 0);
        child->in.data = child->process.data = child;
        init_output(child, &child->out, stdout);
        init_output(child, &child->err, stderr);
        child->n_open = 4;
        int r = spawn(child);
        if (!r) {
                mfl_log(MFL_LOG_INFO, "%s: process %d on GPU %s", child->name, (int)child->process.pid,
                        child->gpu);
                return;
        }
        mfl_log(MFL_LOG_ERROR, "start %s: %s", child->name, uv_strerror(r));
        child->status = 1;
        child->signal = 0;
        uv_close((uv_handle_t *)&child->process, on_closed);
        uv_close((uv_handle_t *)&child->in, on_closed);
        uv_close((uv_handle_t *)&child->out.pipe, on_output_closed);
        uv_close((uv_handle_t *)&child->err.pipe, on_output_closed);
}

/* ---- stopping ---- */

static void signal_children(struct supervisor *s, int number)
{
        for (uint32_t i = 0; i < s->n; i++) {
                struct child *child = &s->children[i];
                if (child->core.state == MFL_CHILD_RUNNING && !uv_is_closing((uv_handle_t *)&child->process))
                        uv_process_kill(&child->process, number);
                uv_timer_stop(&child->timer);
                mfl_child_stop(&child->core);
        }
}

static void stop(struct supervisor *s, int number, const char *why)
{
        if (s->phase == PHASE_KILLS)
                return;
        if (s->phase == PHASE_STOPS) {
                s->phase = mfl_states_move(&phases, s->phase, PHASE_KILLS);
                mfl_log(MFL_LOG_WARN, "stopping at once: %s", why);
                signal_children(s, SIGKILL);
                return;
        }
        s->phase = mfl_states_move(&phases, s->phase, PHASE_STOPS);
        if (number == SIGTERM && s->leave_ms)
                mfl_client_service_stopping(s->leave_ms);
        else
                mfl_systemd_notify("STOPPING=1");
        mfl_log(MFL_LOG_INFO, "stopping %u daemons: %s", s->n, why);
        signal_children(s, number);
        close_timers(s);
}

static void on_signal(uv_signal_t *handle, int number)
{
        stop(handle->data, number, strsignal(number));
}

static void on_reload(void *user)
{
        struct supervisor *s = user;
        for (uint32_t i = 0; i < s->n; i++) {
                struct child *child = &s->children[i];
                if (child->core.state == MFL_CHILD_RUNNING && !uv_is_closing((uv_handle_t *)&child->process))
                        uv_process_kill(&child->process, SIGHUP);
        }
}

static void on_stdin_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
        struct supervisor *s = handle->data;
        *ret_buf = uv_buf_init(s->stdin_ignored, sizeof(s->stdin_ignored));
}

static void on_stdin(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        if (n >= 0)
                return;
        uv_read_stop(stream);
        stop(stream->data, SIGTERM, "standard input ended");
}

/* ---- start ---- */

void mfl_supervise_name(const char *name, const struct mfl_gpu *gpu, char ret_name[MFL_NAME_BYTES])
{
        char tail[32];
        int n = gpu->mig < 0 ? snprintf(tail, sizeof(tail), "-gpu%u", gpu->index)
                             : snprintf(tail, sizeof(tail), "-gpu%u-mig%d", gpu->index, gpu->mig);
        snprintf(ret_name, MFL_NAME_BYTES, "%.*s%s", MFL_NAME_BYTES - 1 - n, name, tail);
}

/* The parent's arguments, then those of a child: of two equal options the later one counts. After "--" they
 * would not be options. */
static int make_argv(struct child *child, const struct mfl_client_config *config, int argc,
        char *const argv[], struct mfl_error *err)
{
        char *more[] = {(char *)"--gpu", child->gpu, (char *)"--name", child->name,
                (char *)"--exit-with-stdin", (char *)"--memory", child->memory};
        uint32_t n = 0, n_more = MFL_ARRAY_SIZE(more) - (config->memory_bytes ? 2 : 0);
        child->argv = mfl_calloc((size_t)argc + n_more + 1, sizeof(char *));
        if (!child->argv)
                return mfl_fail_memory(err, ((size_t)argc + n_more) * sizeof(char *), "arguments");
        for (int i = 0; i < argc; i++) {
                if (strcmp(argv[i], "--"))
                        child->argv[n++] = argv[i];
        }
        memcpy(child->argv + n, more, n_more * sizeof(*more));
        return 0;
}

/* Without a limit, each daemon would use four fifths of the machine. */
static int share_memory(struct supervisor *s, const struct mfl_client_config *config, struct mfl_error *err)
{
        uint64_t total = 0;
        int r = config->memory_bytes ? 0 : mfl_memory_total(&total, err);
        for (uint32_t i = 0; !r && i < s->n; i++)
                snprintf(s->children[i].memory, sizeof(s->children[i].memory), "%llu",
                        (unsigned long long)MFL_MAX(total / 5 * 4 / s->n, 1048576u));
        return r;
}

static int init_children(struct supervisor *s, const struct mfl_client_config *config,
        const struct mfl_gpus *gpus, int argc, char *const argv[], struct mfl_error *err)
{
        s->children = mfl_calloc(gpus->n, sizeof(*s->children));
        if (!s->children)
                return mfl_fail_memory(err, gpus->n * sizeof(*s->children), "children");
        s->n = gpus->n;
        int r = share_memory(s, config, err);
        for (uint32_t i = 0; !r && i < s->n; i++) {
                struct child *child = &s->children[i];
                const struct mfl_gpu *gpu = &gpus->v[i];
                child->supervisor = s;
                mfl_strcpy(child->gpu, sizeof(child->gpu), gpu->uuid);
                mfl_supervise_name(config->name, gpu, child->name);
                mfl_supervise_name("", gpu, child->label);
                memmove(child->label, child->label + 1, strlen(child->label));
                r = make_argv(child, config, argc, argv, err);
        }
        return r;
}

static int find_gpus(
        const struct mfl_client_config *config, struct mfl_gpus *ret_chosen, struct mfl_error *err)
{
        struct mfl_gpu_id ids[MFL_GPUS_MAX] = {0};
        struct mfl_gpus *gpus;
        struct mfl_error reason;
        uint32_t n_ids = 0;
        if (strcmp(config->gpu, "all") && !mfl_gpu_ids_parse(config->gpu, ids, &n_ids))
                return mfl_fail(err, MFL_INVALID, "gpus %s: expected a list such as 0,2", config->gpu);
        int r = mfl_gpu_list(NULL, &gpus, &reason);
        if (r)
                return mfl_fail(err, r < 0 ? r : MFL_INVALID, "one daemon per GPU: %s", reason.text);
        r = mfl_gpu_select(gpus, ids, n_ids, getenv("CUDA_VISIBLE_DEVICES"), ret_chosen, err);
        free(gpus);
        return r;
}

/* If a child told the manager that it is ready, or stops, the manager would take it for this process. */
static int make_environment(struct supervisor *s, struct mfl_error *err)
{
        static const char *const own[] = {"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID=",
                /* Children find their device by --gpu; the parent's setting would contradict it. */
                "CUDA_VISIBLE_DEVICES="};
        size_t n = 0, n_kept = 0;
        while (environ[n])
                n++;
        s->environment = mfl_calloc(n + 1, sizeof(char *));
        if (!s->environment)
                return mfl_fail_memory(err, (n + 1) * sizeof(char *), "the environment of children");
        for (size_t i = 0; i < n; i++) {
                bool keep = true;
                for (size_t k = 0; k < MFL_ARRAY_SIZE(own); k++)
                        keep = keep && strncmp(environ[i], own[k], strlen(own[k])) != 0;
                if (keep)
                        s->environment[n_kept++] = environ[i];
        }
        return 0;
}

static int open_loop(struct supervisor *s, struct mfl_error *err)
{
        size_t bytes = sizeof(s->program);
        int r = uv_exepath(s->program, &bytes);
        r = r ? r : uv_loop_init(&s->loop);
        if (r)
                return mfl_fail(err, r, "event loop: %s", uv_strerror(r));
        uv_signal_init(&s->loop, &s->sigterm);
        uv_signal_init(&s->loop, &s->sigint);
        s->sigterm.data = s->sigint.data = s->stdin_pipe.data = s;
        uv_signal_start(&s->sigterm, on_signal, SIGTERM);
        uv_signal_start(&s->sigint, on_signal, SIGINT);
        s->service.on_reload = on_reload;
        s->service.user = s;
        mfl_client_service_open(&s->service, &s->loop);
        for (uint32_t i = 0; i < s->n; i++) {
                uv_timer_init(&s->loop, &s->children[i].timer);
                s->children[i].timer.data = &s->children[i];
        }
        return 0;
}

/* A regular file or /dev/null ends at once; on a terminal there is Ctrl-C. */
static void watch_stdin(struct supervisor *s)
{
        uv_handle_type type = uv_guess_handle(STDIN_FILENO);
        if (type == UV_TTY)
                return;
        uv_pipe_init(&s->loop, &s->stdin_pipe, 0);
        s->watches_stdin = true;
        if (type != UV_NAMED_PIPE || uv_pipe_open(&s->stdin_pipe, STDIN_FILENO) ||
                uv_read_start((uv_stream_t *)&s->stdin_pipe, on_stdin_alloc, on_stdin))
                stop(s, SIGTERM, "standard input is at its end");
}

static void run_children(struct supervisor *s, bool exit_with_stdin, int *ret_status)
{
        const struct mfl_child *cores[MFL_GPUS_MAX];
        for (uint32_t i = 0; i < s->n; i++) {
                cores[i] = &s->children[i].core;
                start_child(&s->children[i]);
        }
        char text[64];
        snprintf(text, sizeof(text), "watching over %u daemons", s->n);
        mfl_client_service_ready(text);
        if (exit_with_stdin)
                watch_stdin(s);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->loop);
        *ret_status = mfl_children_status(cores, s->n);
        mfl_log(*ret_status ? MFL_LOG_ERROR : MFL_LOG_INFO, "all %u daemons have ended", s->n);
}

bool mfl_supervise_wanted(const struct mfl_client_config *config)
{
        return !strcmp(config->gpu, "all") || strchr(config->gpu, ',');
}

int mfl_supervise_run(const struct mfl_client_config *config, int argc, char *const argv[], int *ret_status,
        struct mfl_error *err)
{
        struct supervisor *s = mfl_calloc(1, sizeof(*s));
        struct mfl_gpus *gpus = mfl_calloc(1, sizeof(*gpus));
        int r = s && gpus ? find_gpus(config, gpus, err) : mfl_fail_memory(err, sizeof(*gpus), "GPUs");
        if (!r)
                r = init_children(s, config, gpus, argc, argv, err);
        if (!r)
                r = make_environment(s, err);
        if (!r) {
                s->leave_ms = config->stop == MFL_CLIENT_STOP_TASK ? config->stop_ms : 0;
                s->service.argc = argc;
                s->service.argv = argv;
                r = open_loop(s, err);
        }
        if (!r)
                run_children(s, config->exit_with_stdin, ret_status);
        for (uint32_t i = 0; s && i < s->n; i++)
                free(s->children[i].argv);
        if (s) {
                free(s->children);
                free(s->environment);
        }
        free(s);
        free(gpus);
        return r;
}
