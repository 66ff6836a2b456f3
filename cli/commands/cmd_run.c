/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl run job.yaml`: a server and daemons on this machine, one job, and its model.
 *
 * Happy path: read the job -> make the folder -> start the children -> submit -> watch -> pull -> stop the
 * children -> write -> result. If a step fails, the children are stopped, and the rounds so far are written.
 */
#include "cli/commands/commands.h"
#include "cli/run/run.h"

#define WAITING_MAX_MS 20000
#define QUIET_MS 3000
#define GIVE_UP_MS 60000
#define STOP_WITHIN_MS 3000
#define GRACE_MS 5000

/* The server may be restarting, so a lost connection is retried for a while. */
static int with_server(struct mfl_run *run,
        int (*fn)(struct mfl_run *, struct mfl_client *, struct mfl_error *), struct mfl_error *err)
{
        uint64_t until = mfl_now_ms() + 20000;
        for (;;) {
                struct mfl_client client;
                int r = mfl_client_open(&client, run->cli, run->address, MFL_CLIENT_TIMEOUT_MS, err);
                if (!r)
                        r = fn(run, &client, err);
                mfl_client_close(&client);
                if (r != MFL_CLI_LOST || run->watch.abort[0] || mfl_now_ms() > until)
                        return r;
                r = mfl_client_sleep(run->cli, 300, err);
                if (r)
                        return r;
        }
}

/* With the token, sending the job twice is harmless. */
static int submit(struct mfl_run *run, struct mfl_client *client, struct mfl_error *err)
{
        bool existed;
        return mfl_submission_send(&run->submission, client, "mfl-run", run->watch.job, &existed, err);
}

static int pull(struct mfl_run *run, struct mfl_client *client, struct mfl_error *err)
{
        char path[4096];
        snprintf(path, sizeof path, "%s/model.safetensors", run->out);
        int r = mfl_pull(client, run->watch.job, MFL_PULL_LAST, path, MFL_PULL_SAFETENSORS, NULL, false,
                &run->pulled, err);
        run->has_model = !r;
        return r;
}

/* Best effort: the children are stopped next in any case. */
static void stop_job(struct mfl_run *run)
{
        struct mfl_client client;
        struct mfl_error err;
        Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__StopJob stop = MFL__STOP_JOB__INIT;
        stop.job = run->watch.job;
        request.body_case = MFL__ENVELOPE__BODY_STOP_JOB;
        request.stop_job = &stop;
        int r = mfl_client_open(&client, run->cli, run->address, STOP_WITHIN_MS, &err);
        if (!r)
                r = mfl_client_ask(&client, &request, &err);
        if (!r && !mfl_client_next(&client, STOP_WITHIN_MS, &answer, &err)) {
                mfl_wire_free(answer);
                run->watch.state = MFL__JOB_STATE__JOB_STOPPED;
        }
        mfl_client_close(&client);
}

static int train(struct mfl_run *run, struct mfl_error *err)
{
        struct mfl_watch *w = &run->watch;
        uint64_t started = mfl_now_ms();
        int r = with_server(run, submit, err);
        if (r)
                return r;
        w->address = run->address;
        r = mfl_watch_run(w, err);
        run->seconds = (double)(mfl_now_ms() - started) / 1000;
        if (r == MFL_CLI_TIMEOUT) {
                struct mfl_error why = *err;
                r = mfl_fail(err, MFL_CLI_FAILED, "%.400s (--data NAME=FORMAT:DIR names a data set's folder)",
                        why.text);
        }
        return r;
}

static void say_where(struct mfl_run *run)
{
        mfl_cli_note(run->cli, "the server's state, the logs and the rounds so far are in %s", run->out);
}

/* An interruption during the last steps loses nothing: the state directory is kept. */
static int finish(struct mfl_run *run, int r, struct mfl_error *err)
{
        struct mfl_error late;
        int w = 0;
        if (r && run->watch.job[0] && !mfl_state_is_final(run->watch.state) && run->cli->interrupted < 2)
                stop_job(run);
        if (run->watch.n && run->cli->interrupted < 2) {
                w = with_server(run, pull, r ? &late : err);
                if (!r)
                        r = w;
        }
        mfl_children_stop(&run->children, run->cli, GRACE_MS);
        if (run->watch.job[0]) {
                w = mfl_run_write_rounds(run, r ? &late : err);
                r = r ? r : w;
        }
        if (!r && !run->cli->options.keep_state)
                r = mfl_run_remove_state(run, err);
        return r;
}

static int run_all(struct mfl_run *run, struct mfl_error *err)
{
        const struct mfl_sets sets = {run->cli->options.set, run->cli->options.n_set};
        int r = mfl_submission_read(run->cli->argument[0], &sets, "auto", &run->submission, err);
        if (!r) {
                mfl_submission_tell(&run->submission, run->cli);
                r = mfl_run_check_data(run, err);
        }
        if (!r)
                r = mfl_run_make_out(run, run->cli->options.out, err);
        if (!r)
                r = mfl_run_write_job(run, err);
        if (!r)
                r = mfl_cli_signals_start(run->cli, err);
        if (r)
                return r;
        r = mfl_run_start(run, err);
        if (!r) {
                mfl_watch_note(&run->watch, "server on %s, %d daemon%s, results in %s", run->address,
                        run->children.n - 1, run->children.n == 2 ? "" : "s", run->out);
                r = train(run, err);
        }
        return finish(run, r, err);
}

static void close_run(struct mfl_run *run)
{
        if (run->ready_open && !uv_is_closing((uv_handle_t *)&run->ready))
                uv_close((uv_handle_t *)&run->ready, NULL);
        uv_run(run->cli->loop, UV_RUN_NOWAIT);
        mfl_children_deinit(&run->children);
        mfl_submission_deinit(&run->submission);
        mfl_watch_deinit(&run->watch);
        free(run);
}

int mfl_cmd_run(struct mfl_cli *cli)
{
        struct mfl_error err, late;
        struct mfl_run *run = mfl_calloc(1, sizeof *run);
        if (!run)
                return mfl_cli_report(cli, mfl_fail_memory(&err, sizeof *run, "a run"), &err);
        run->cli = cli;
        run->watch = (struct mfl_watch){.cli = cli,
                .output = cli->json ? MFL_WATCH_JSON : MFL_WATCH_LINES,
                .give_up_ms = GIVE_UP_MS,
                .waiting_max_ms = WAITING_MAX_MS,
                .quiet_ms = QUIET_MS};
        cli->server = run->address; /* the name in messages */
        /* Everything is on this machine's loopback and ends with this program. */
        cli->options.plain = true;
        cli->options.tls_ca = cli->options.tls_cert = cli->options.tls_key = NULL;
        unsetenv("MFL_TLS_CA");
        unsetenv("MFL_TLS_CERT");
        unsetenv("MFL_TLS_KEY");
        int r = run_all(run, &err);
        if (r && run->out[0] && !run->watch.n && !run->watch.in_round && !run->logs_named)
                mfl_run_discard_out(run);
        int code = mfl_cli_report(cli, r, &err);
        if (run->watch.job[0])
                mfl_run_print_result(run, &late);
        if (r && run->out[0] && run->address[0])
                say_where(run);
        close_run(run);
        return code;
}
