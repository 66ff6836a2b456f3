/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the children of a run, and what happens when one of them ends. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/data_option.h"
#include "cli/run.h"

#define READY_WITHIN_MS 20000
#define EXIT_CONFIG 78 /* of both programs: a wrong configuration */

static void print_tail(const char *tail)
{
        while (*tail) {
                size_t n = strcspn(tail, "\n");
                fprintf(stderr, "     | %.*s\n", (int)n, tail);
                tail += n + (tail[n] == '\n');
        }
}

/* Its last line, without the time and the program's name. */
static const char *last_words(const char *tail)
{
        const char *line = strrchr(tail, '\n');
        line = line ? line + 1 : tail;
        const char *error = strstr(line, "error: ");
        return error ? error + strlen("error: ") : line;
}

/* What is wrong with its arguments, files or data now is wrong the next time, too, and with the others, which
 * have the same ones. */
static bool is_hopeless(const struct mfl_child *child)
{
        return child->status == EXIT_CONFIG || child->status == MFL_EXIT_USAGE;
}

static bool on_ended(struct mfl_child *child, const char *text, const char *tail)
{
        struct mfl_run *run = child->set->owner;
        bool is_server = child == &run->children.child[0];
        if (is_server && !run->address[0]) {
                snprintf(run->failure, sizeof run->failure, "%s; its log is %s", text, child->log);
                print_tail(tail);
                return false;
        }
        if (is_hopeless(child)) {
                if (!run->watch.abort[0])
                        snprintf(run->watch.abort, sizeof run->watch.abort, "%s: %.200s", child->name,
                                last_words(tail));
                return false;
        }
        bool again = child->starts <= MFL_CHILD_RESTARTS;
        mfl_screen_clear(&run->watch.screen);
        mfl_watch_note(&run->watch, "%s; %s; its log is %s%s", text,
                again ? "it is started again" : "it was started often enough", child->log,
                *tail ? ", the end:" : "");
        mfl_screen_clear(&run->watch.screen);
        print_tail(tail);
        if (!again)
                child->set->ops->on_given_up(child, text);
        return again;
}

static void on_given_up(struct mfl_child *child, const char *text)
{
        struct mfl_run *run = child->set->owner;
        struct mfl_children *set = child->set;
        int left = 0;
        child->given_up = true;
        for (int i = 1; i < set->n; i++)
                left += !set->child[i].given_up;
        if (child == &set->child[0] || !left)
                snprintf(run->watch.abort, sizeof run->watch.abort,
                        "%s, again and again; the logs are in %.120s", text, run->out);
}

static const struct mfl_children_ops children_ops = {
        .on_ended = on_ended,
        .on_given_up = on_given_up,
};

static int setup_server(struct mfl_run *run, struct mfl_error *err)
{
        struct mfl_child *c = &run->children.child[0];
        char program[4096];
        int r = mfl_child_find_program(
                "MFL_SERVER_PROGRAM", "server", "mfl-server", program, sizeof program, err);
        if (!r)
                r = mfl_child_setup(c, "server", run->out, program, err);
        if (!r)
                r = mfl_child_argument(c, err, "--listen");
        if (!r)
                r = mfl_child_argument(
                        c, err, "127.0.0.1:0"); /* replaced by the address when that is known */
        if (!r)
                r = mfl_child_argument(c, err, "--state-dir");
        if (!r)
                r = mfl_child_argument(c, err, "%s/state", run->out);
        if (!r)
                r = mfl_child_argument(c, err, "--exit-with-stdin");
        if (!r)
                r = mfl_child_argument(c, err, "--ready-fd");
        return r ? r : mfl_child_argument(c, err, "3");
}

/* "--name value" */
static int add_pair(struct mfl_child *c, const char *name, const char *value, struct mfl_error *err)
{
        int r = mfl_child_argument(c, err, "%s", name);
        return r ? r : mfl_child_argument(c, err, "%s", value);
}

static int setup_daemon(
        struct mfl_run *run, int i, const char *program, int64_t workers, struct mfl_error *err)
{
        struct mfl_child *c = &run->children.child[i];
        const struct mfl_cli_options *o = &run->cli->options;
        char name[32], count[24];
        snprintf(name, sizeof name, "local-%d", i);
        snprintf(count, sizeof count, "%lld", (long long)workers);
        int r = mfl_child_setup(c, name, run->out, program, err);
        if (!r)
                r = add_pair(c, "--server", run->address, err);
        if (!r)
                r = add_pair(c, "--name", name, err);
        if (!r)
                r = add_pair(c, "--workers", count, err);
        if (!r && o->backend)
                r = add_pair(c, "--backend", o->backend, err);
        for (int k = 0; !r && k < o->n_data; k++)
                r = add_pair(c, "--data", o->data[k], err);
        /* All of them are on this machine; on one GPU they would refuse each other. */
        if (!r && run->children.n > 2)
                r = mfl_child_argument(c, err, "--share-gpu");
        return r ? r : mfl_child_argument(c, err, "--exit-with-stdin");
}

static void alloc_ready(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
        struct mfl_run *run = handle->data;
        *buf = uv_buf_init(run->ready_text + run->ready_bytes,
                (unsigned)(sizeof run->ready_text - 1 - run->ready_bytes));
}

static void on_ready_closed(uv_handle_t *handle)
{
        ((struct mfl_run *)handle->data)->ready_open = false;
}

static void on_ready(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct mfl_run *run = stream->data;
        if (n == 0)
                return;
        run->ready_bytes += n > 0 ? (size_t)n : 0;
        run->ready_text[run->ready_bytes] = '\0';
        char *end = strchr(run->ready_text, '\n');
        if (end) {
                *end = '\0';
                mfl_strcpy(run->address, sizeof run->address, run->ready_text);
        } else if (n > 0) {
                return;
        }
        uv_close((uv_handle_t *)stream, on_ready_closed);
}

static int open_ready(struct mfl_run *run, int *ret_child_fd, struct mfl_error *err)
{
        int fd[2];
        if (pipe2(fd, O_CLOEXEC))
                return mfl_fail_errno(err, "make a pipe");
        uv_pipe_init(run->cli->loop, &run->ready, 0);
        run->ready.data = run;
        run->ready_open = true;
        int r = uv_pipe_open(&run->ready, fd[0]);
        if (!r)
                r = uv_read_start((uv_stream_t *)&run->ready, alloc_ready, on_ready);
        if (r) {
                close(fd[1]);
                uv_close((uv_handle_t *)&run->ready, on_ready_closed);
                return mfl_fail(err, r, "read from a pipe: %s", uv_strerror(r));
        }
        *ret_child_fd = fd[1];
        return 0;
}

/* A restarted server listens where its daemons look for it; nobody waits for its word then. */
static int fix_address(struct mfl_run *run, struct mfl_error *err)
{
        struct mfl_child *c = &run->children.child[0];
        char *address = mfl_strdup(run->address);
        if (!address)
                return mfl_fail_memory(err, strlen(run->address), "an address");
        for (int i = 0; i < c->n_arguments; i++)
                if (!strcmp(c->arguments[i], "127.0.0.1:0")) {
                        free(c->arguments[i]);
                        c->arguments[i] = address;
                }
        for (int k = 0; k < 2; k++) { /* "--ready-fd 3" are the last two */
                free(c->arguments[--c->n_arguments]);
                c->arguments[c->n_arguments] = NULL;
        }
        return 0;
}

static int start_server(struct mfl_run *run, struct mfl_error *err)
{
        int fd = -1;
        int r = setup_server(run, err);
        if (!r)
                r = open_ready(run, &fd, err);
        if (r)
                return r;
        r = mfl_child_start(&run->children.child[0], fd, err);
        close(fd);
        uint64_t until = mfl_now_ms() + READY_WITHIN_MS;
        while (!r && !run->address[0] && !run->failure[0] && mfl_now_ms() < until)
                r = mfl_client_sleep(run->cli, 5, err);
        if (r)
                return r;
        if (run->failure[0])
                return mfl_fail(err, MFL_CLI_FAILED, "%s", run->failure);
        if (!run->address[0])
                return mfl_fail(err, MFL_CLI_FAILED, "the server did not listen within %d s; its log is %s",
                        READY_WITHIN_MS / 1000, run->children.child[0].log);
        return fix_address(run, err);
}

static int check_data(const struct mfl_cli_options *o, struct mfl_error *err)
{
        for (int i = 0; i < o->n_data; i++) {
                struct mfl_dataset_config c;
                int r = mfl_data_option_parse(o->data[i], &c, err);
                if (r)
                        return r;
                mfl_dataset_config_deinit(&c);
        }
        return 0;
}

int mfl_run_start(struct mfl_run *run, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &run->cli->options;
        char program[4096];
        long cores = uv_available_parallelism();
        int n = o->daemons > 0 ? (int)o->daemons : (int)MFL_MIN(2, cores);
        int64_t workers = o->threads > 0 ? o->threads : MFL_MAX(1, cores / n);
        int r = check_data(o, err);
        if (!r)
                r = mfl_children_init(&run->children, run->cli->loop, n + 1, &children_ops, run, err);
        if (!r)
                r = mfl_child_find_program(
                        "MFL_CLIENT_PROGRAM", "client", "mfl-client", program, sizeof program, err);
        if (!r)
                r = start_server(run, err);
        for (int i = 1; !r && i <= n; i++) {
                r = setup_daemon(run, i, program, workers, err);
                if (!r)
                        r = mfl_child_start(&run->children.child[i], -1, err);
        }
        return r;
}
