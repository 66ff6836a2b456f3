/* SPDX-License-Identifier: Apache-2.0 */
/* mfl login issue, mfl login end. */
#include "cli/login/login.h"

#include <inttypes.h>

#include "cli/base/client.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/base/period.h"

static int print_login(struct mfl_cli *cli, const Mfl__Login *login, struct mfl_error *err)
{
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss ss sI sI}", "url", login->url, "code", login->code, "code_seconds",
                                (json_int_t)login->code_seconds, "seconds", (json_int_t)login->seconds),
                        err);
        printf("%s\n", login->url);
        fprintf(stderr,
                "Open this within %" PRIu32
                " minutes; it works once, and whoever opens it acts in your name. The browser then "
                "stays logged in for %.3g hours, or until 'mfl login end'.\n",
                login->code_seconds / 60, login->seconds / 3600.0);
        return 0;
}

static int print_done(struct mfl_cli *cli, const Mfl__Done *done, struct mfl_error *err)
{
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{ss}", "text", done->text), err);
        puts(done->text);
        return 0;
}

int mfl_cmd_login(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__IssueLogin issue = MFL__ISSUE_LOGIN__INIT;
        issue.end = !strcmp(cli->argument[0], "end");
        if (!issue.end && strcmp(cli->argument[0], "issue") != 0)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "mfl login knows no '%.60s'; it knows issue and end", cli->argument[0]);
        if (issue.end && cli->options.period)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE, "mfl login end takes no --for");
        if (cli->options.period && !mfl_period_parse(cli->options.period, 1, &issue.seconds))
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "--for: '%.60s' is not a time such as 30m or 8h, at most 1d", cli->options.period);
        request.body_case = MFL__ENVELOPE__BODY_ISSUE_LOGIN;
        request.issue_login = &issue;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request,
                        issue.end ? MFL__ENVELOPE__BODY_DONE : MFL__ENVELOPE__BODY_LOGIN, &answer, &err);
        if (!r)
                r = issue.end ? print_done(cli, answer->done, &err) : print_login(cli, answer->login, &err);
        return mfl_cli_report(cli, r, &err);
}
