/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that follow a job: watch, wait, logs. */
#include <time.h>

#include "cli/commands/commands.h"
#include "cli/view/watch.h"

int mfl_cmd_watch(struct mfl_cli *cli)
{
        return mfl_watch_command(cli, cli->argument[0], cli->json ? MFL_WATCH_JSON : MFL_WATCH_LINES);
}

int mfl_cmd_wait(struct mfl_cli *cli)
{
        return mfl_watch_command(cli, cli->argument[0], MFL_WATCH_SILENT);
}

/* ---- logs ---- */

struct logs {
        struct mfl_cli *cli;
        char job[MFL_JOB_ID_BYTES];
        uint64_t seq; /* last line shown; after a reconnect the server sends the earlier lines again */
        uint64_t lost_ms;
};

static int print_line(struct logs *logs, const Mfl__LogLine *line, struct mfl_error *err)
{
        char when[32] = "";
        time_t t = (time_t)(line->time_ms / 1000);
        struct tm tm;
        if (line->seq <= logs->seq && logs->seq)
                return 0;
        logs->seq = line->seq;
        if (logs->cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss sI sI ss}", "event", "log", "seq", (json_int_t)line->seq, "time_ms",
                                (json_int_t)line->time_ms, "text", line->text),
                        err);
        if (localtime_r(&t, &tm))
                strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
        printf("%s  %s\n", when, line->text);
        return logs->cli->options.follow ? mfl_cli_flush(err) : 0;
}

static int read_lines(struct logs *logs, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = logs->cli};
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Watch watch = MFL__WATCH__INIT;
        bool ended = false;
        watch.job = logs->job;
        watch.logs = true;
        watch.follow = logs->cli->options.follow;
        request.body_case = MFL__ENVELOPE__BODY_WATCH;
        request.watch = &watch;
        int r = mfl_client_open(&client, logs->cli, logs->cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r && !logs->job[0]) {
                r = mfl_client_resolve(&client, logs->cli->argument[0], logs->job, err);
                logs->seq = 0;
        }
        if (!r)
                r = mfl_client_ask(&client, &request, err);
        while (!r && !ended) {
                MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
                r = mfl_client_next(&client, MFL_CLIENT_FOREVER, &answer, err);
                if (r)
                        break;
                logs->lost_ms = 0;
                ended = answer->body_case == MFL__ENVELOPE__BODY_DONE;
                if (answer->body_case == MFL__ENVELOPE__BODY_EVENT &&
                        answer->event->what_case == MFL__EVENT__WHAT_LOG)
                        r = print_line(logs, answer->event->log, err);
        }
        return r;
}

int mfl_cmd_logs(struct mfl_cli *cli)
{
        struct mfl_error err;
        struct logs logs = {.cli = cli};
        uint64_t give_up_ms = cli->options.timeout >= 0 ? (uint64_t)cli->options.timeout * 1000 : 60000;
        int r = mfl_cli_signals_start(cli, &err);
        while (!r) {
                r = read_lines(&logs, &err);
                if (r != MFL_CLI_LOST || !cli->options.follow || !logs.job[0])
                        break;
                if (!logs.lost_ms) {
                        logs.lost_ms = mfl_now_ms();
                        mfl_cli_note(cli, "connection to the server lost, waiting (%s)", err.text);
                }
                if (mfl_now_ms() - logs.lost_ms >= give_up_ms)
                        break;
                r = mfl_client_sleep(cli, 1000, &err);
        }
        return mfl_cli_report(cli, r, &err);
}
