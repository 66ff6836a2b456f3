/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about daemons: daemons (cmd_access.c has its verbs) and drain. */
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/base/client.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/view/views.h"

static int print_daemons(struct mfl_cli *cli, const Mfl__DaemonList *list, struct mfl_error *err)
{
        if (!list->n_daemons) {
                puts("no daemons are connected; 'mfl-client --server HOST:PORT' starts one");
                return 0;
        }
        MFL_CLEANUP_FREE char *text =
                mfl_view_daemons(list, cli->terminal ? mfl_screen_columns(STDOUT_FILENO) : 0);
        if (!text)
                return mfl_fail_memory(err, 0, "the list of daemons");
        fputs(text, stdout);
        return 0;
}

static int print_json(const Mfl__DaemonList *list, struct mfl_error *err)
{
        json_t *daemons = json_array();
        for (size_t i = 0; i < list->n_daemons; i++)
                json_array_append_new(daemons, mfl_json_daemon(list->daemons[i]));
        return mfl_json_print(stdout, json_pack("{so}", "daemons", daemons), err);
}

int mfl_cmd_daemons(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_CLIENT_DAEMONS struct mfl_client_daemons daemons = {.list = MFL__DAEMON_LIST__INIT};
        struct mfl_error err;
        if (cli->argument[0])
                return mfl_cmd_access(cli);
        if (cli->options.reason || cli->options.period)
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "--reason and --for go with 'mfl daemons disable'");
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_daemons(&client, &daemons, &err);
        if (!r)
                mfl_view_sort_daemons(&daemons.list);
        if (!r && cli->json)
                r = print_json(&daemons.list, &err);
        else if (!r)
                r = print_daemons(cli, &daemons.list, &err);
        return mfl_cli_report(cli, r, &err);
}

int mfl_cmd_drain(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Drain drain = MFL__DRAIN__INIT;
        const char *name = cli->argument[0];
        if (cli->options.all == (name != NULL))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "mfl drain needs the name of a daemon, or --all");
        if (name && strlen(name) >= MFL_NAME_BYTES)
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "a daemon's name has at most %d bytes", MFL_NAME_BYTES - 1);
        if (name)
                drain.daemon = (char *)(uintptr_t)name;
        drain.all = cli->options.all;
        drain.undo = cli->options.undo;
        drain.wait = cli->options.wait;
        request.body_case = MFL__ENVELOPE__BODY_DRAIN;
        request.drain = &drain;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_DONE, &answer, &err);
        if (!r && cli->json)
                r = mfl_json_print(
                        stdout, json_pack("{ss? ss}", "daemon", name, "text", answer->done->text), &err);
        else if (!r)
                printf("%s%s%s\n", name ? name : "", name ? ": " : "",
                        *answer->done->text ? answer->done->text : "done");
        return mfl_cli_report(cli, r, &err);
}
