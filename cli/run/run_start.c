/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the children of a run, and reacts when one of them ends. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/job/data_check.h"
#include "cli/job/data_option.h"
#include "cli/run/run.h"

#define READY_WITHIN_MS 20000
#define EXIT_CONFIG 78 /* exit status of both programs for a wrong configuration */

static void print_tail(const char *tail)
{
        while (*tail) {
                size_t n = strcspn(tail, "\n");
                fprintf(stderr, "     | %.*s\n", (int)n, tail);
                tail += n + (tail[n] == '\n');
        }
}

/* The last line of a log, without the time and the program's name. */
static const char *last_words(const char *tail)
{
        const char *line = strrchr(tail, '\n');
        line = line ? line + 1 : tail;
        const char *error = strstr(line, "error: ");
        return error ? error + strlen("error: ") : line;
}

/* An error in the arguments, files or data of a child would come back at every start, and in the other
 * children, which have the same arguments. */
static bool is_hopeless(const struct mfl_child *child)
{
        return child->status == EXIT_CONFIG || child->status == MFL_EXIT_USAGE;
}

static bool on_ended(struct mfl_child *child, const char *text, const char *tail)
{
        struct mfl_run *run = child->set->owner;
        bool is_server = child == &run->children.child[0];
        if (is_server && !run->address[0]) {
                run->logs_named = true;
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
        run->logs_named = true;
        mfl_screen_clear(&run->watch.screen);
        mfl_watch_note(&run->watch, "%s; %s; its log is %s%s", text,
                again ? "it is started again" : "it is not started again", child->log,
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
                snprintf(run->watch.abort, sizeof run->watch.abort, "%s, repeatedly; the logs are in %.120s",
                        text, run->out);
}

static const struct mfl_children_ops children_ops = {
        .on_ended = on_ended,
        .on_given_up = on_given_up,
};

/* "--name value" */
static int add_pair(struct mfl_child *c, const char *name, const char *value, struct mfl_error *err)
{
        int r = mfl_child_argument(c, err, "%s", name);
        return r ? r : mfl_child_argument(c, err, "%s", value);
}

/* The same with a path, which the child sees from another directory. */
static int add_path(struct mfl_child *c, const char *name, const char *path, struct mfl_error *err)
{
        char whole[PATH_MAX];
        return realpath(path, whole) ? add_pair(c, name, whole, err)
                                     : mfl_fail(err, MFL_NOT_FOUND, "%s %s: %s", name, path, strerror(errno));
}

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
                r = mfl_child_argument(c, err, "127.0.0.1:0"); /* replaced once the address is known */
        if (!r)
                r = mfl_child_argument(c, err, "--state-dir");
        if (!r)
                r = mfl_child_argument(c, err, "%s/state", run->out);
        if (!r)
                r = mfl_child_argument(c, err, "--exit-with-stdin");
        if (!r && run->cli->options.plugins)
                r = add_path(c, "--plugins", run->cli->options.plugins, err);
        if (!r) /* this server is for one job, which its author may attack */
                r = mfl_child_argument(c, err, "--allow-simulation");
        if (!r)
                r = mfl_child_argument(c, err, "--ready-fd");
        return r ? r : mfl_child_argument(c, err, "3");
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
        if (!r)
                r = mfl_child_argument(c, err, "--state-dir");
        if (!r)
                r = mfl_child_argument(c, err, "%s/sites/%s", run->out, name);
        if (!r && o->backend)
                r = add_pair(c, "--backend", o->backend, err);
        for (int k = 0; !r && k < o->n_data; k++)
                r = add_pair(c, "--data", o->data[k], err);
        if (!r && o->config)
                r = add_path(c, "--config", o->config, err);
        /* All daemons are on this machine; without this option, daemons on one GPU would refuse to share it.
         */
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

/* A restarted server listens where its daemons look for it, and nobody waits for it to report. */
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
        for (int k = 0; k < 2; k++) { /* "--ready-fd 3" are the last two arguments */
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
        run->logs_named = !run->address[0];
        if (!run->address[0])
                return mfl_fail(err, MFL_CLI_FAILED, "the server did not listen within %d s; its log is %s",
                        READY_WITHIN_MS / 1000, run->children.child[0].log);
        return fix_address(run, err);
}

/* The daemons have the data sets of the options, or the default; any other data set will never come. A table
 * is also read here, which takes little time: a table that does not fit is reported before anything starts.
 */
int mfl_run_check_data(struct mfl_run *run, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &run->cli->options;
        const struct mfl_job *job = run->submission.job;
        const bool own_config = o->config != NULL;
        struct mfl_dataset_config config;
        struct mfl_data_facts facts;
        struct mfl_graph *graph;
        if (mfl_job_has_program(job) && !own_config)
                return mfl_fail(err, MFL_INVALID,
                        "training.program: write --config FILE, where FILE has programs as client.yaml has "
                        "them "
                        "(docs/programs.md)");
        if (job->n_filters && !own_config)
                return mfl_fail(err, MFL_INVALID,
                        "filters: write --config FILE, where FILE has plugins and filters as client.yaml has "
                        "them "
                        "(docs/plugins.md)");
        if ((job->evaluation.n_metrics || job->aggregation.strategy == MFL_STRATEGY_PLUGIN) && !o->plugins)
                return mfl_fail(err, MFL_INVALID,
                        "%s: write --plugins DIR, where DIR has that plug-in of the server (docs/plugins.md)",
                        job->evaluation.n_metrics ? "evaluation.metrics" : "aggregation.plugin");
        int r = own_config && !o->n_data
                        ? MFL_INVALID
                        : mfl_data_option_find(o->data, o->n_data, job->data.name, &config, err);
        if (r) /* of the file's data sets, and of those of programs there, a daemon says what is wrong */
                return own_config ? 0 : r;
        if (config.format == MFL_FORMAT_CSV) {
                r = mfl_data_check(job, run->submission.initial, &config, &graph, &facts, err);
                if (!r) {
                        mfl_graph_free(graph);
                        if (facts.note[0])
                                mfl_watch_note(&run->watch, "%s", facts.note);
                }
        }
        mfl_dataset_config_deinit(&config);
        return r;
}

int mfl_run_start(struct mfl_run *run, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &run->cli->options;
        char program[4096];
        long cores = uv_available_parallelism();
        int n = o->daemons > 0 ? (int)o->daemons : (int)MFL_MIN(2, cores);
        int64_t workers = o->threads > 0 ? o->threads : MFL_MAX(1, cores / n);
        int r = mfl_children_init(&run->children, run->cli->loop, n + 1, &children_ops, run, err);
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
