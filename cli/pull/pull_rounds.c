/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches the rounds of a job into a sink (cli/pull/export.h).
 *
 * Happy path: the job's detail -> the sink, which knows which rounds it has -> a watch of the later rounds,
 * which go into the sink; with --follow until the job ends, otherwise until the existing rounds have arrived.
 * Failures: those of watch.h; those of the sink.
 */
#include "cli/pull/export.h"
#include "cli/pull/pull.h"
#include "cli/view/views.h"
#include "cli/view/watch.h"

struct sink {
        enum mfl_pull_format format;
        struct mfl_rows rows;
        struct mfl_events events;
        struct mfl_pulled_rounds *pulled;
};

static int add(void *user, const Mfl__RoundInfo *round, struct mfl_error *err)
{
        struct sink *s = user;
        int r = s->format == MFL_PULL_TENSORBOARD ? mfl_events_add(&s->events, round, err)
                                                  : mfl_rows_add(&s->rows, round, err);
        if (r)
                return r;
        s->pulled->n++;
        s->pulled->last = round->round;
        return 0;
}

static int open_sink(
        struct sink *s, const struct mfl_cli *cli, const Mfl__JobDetail *job, struct mfl_error *err)
{
        struct mfl_pulled_rounds *p = s->pulled;
        const char *out = cli->options.out;
        int r;
        if (s->format == MFL_PULL_TENSORBOARD) {
                r = mfl_events_open(&s->events, out ? out : "runs", job, err);
                mfl_strcpy(p->path, sizeof p->path, s->events.path);
                p->last = s->events.last;
                return r;
        }
        if (out)
                mfl_strcpy(p->path, sizeof p->path, out);
        else
                snprintf(p->path, sizeof p->path, "%s.%s", p->job,
                        s->format == MFL_PULL_CSV ? "csv" : "jsonl");
        return mfl_rows_open(&s->rows, p->path, s->format == MFL_PULL_CSV, err);
}

/* Asks for the job's id and detail through a separate connection; the watch opens its own. */
static int ask_detail(struct mfl_cli *cli, char *ret_job, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ShowJob show = MFL__SHOW_JOB__INIT;
        show.job = ret_job;
        request.body_case = MFL__ENVELOPE__BODY_SHOW_JOB;
        request.show_job = &show;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve(&client, cli->argument[0], ret_job, err);
        return r ? r : mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_JOB_DETAIL, ret_answer, err);
}

static int watch_rounds(struct sink *s, struct mfl_cli *cli, struct mfl_error *err)
{
        struct mfl_watch watch = {.cli = cli,
                .address = cli->server,
                .output = MFL_WATCH_SILENT,
                .once = !cli->options.follow,
                .after = s->events.last,
                .all_rounds = true,
                .on_round = add,
                .user = s};
        mfl_strcpy(watch.job, sizeof watch.job, s->pulled->job);
        if (cli->options.follow)
                watch.give_up_ms = cli->options.timeout >= 0 ? (uint64_t)cli->options.timeout * 1000 : 60000;
        int r = mfl_watch_run(&watch, err);
        mfl_watch_deinit(&watch);
        return r;
}

int mfl_pull_rounds(struct mfl_cli *cli, enum mfl_pull_format format, struct mfl_pulled_rounds *pulled,
        struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct sink s = {.format = format, .events = {.fd = -1}, .pulled = pulled};
        int r = mfl_cli_signals_start(cli, err);
        if (!r)
                r = ask_detail(cli, pulled->job, &answer, err);
        if (!r)
                pulled->open = mfl_view_open_figures(answer->job_detail->info);
        if (!r)
                r = open_sink(&s, cli, answer->job_detail, err);
        if (!r)
                r = watch_rounds(&s, cli, err);
        if ((!r || r == MFL_CLI_FAILED) && format != MFL_PULL_TENSORBOARD) {
                struct mfl_error finish_err;
                int finished = mfl_rows_finish(&s.rows, &finish_err);
                if (finished) {
                        *err = finish_err;
                        r = finished;
                }
        }
        mfl_rows_deinit(&s.rows);
        mfl_events_close(&s.events);
        return r;
}
