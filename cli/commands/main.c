/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl`, the command line of operators: parses the line, runs the command, and reports a failure. */
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <unistd.h>

#include "cli/job/move.h"
#include "cli/commands/commands.h"
#include "cli/login/login.h"
#include "cli/onnx/onnx.h"
#include "cli/predict/predict.h"
#include "cli/sites/sites.h"
#include "common/base/fs.h"
#include "common/base/log.h"

static int run_predict(struct mfl_cli *cli)
{
        return cli->options.at ? mfl_cmd_predict_at(cli) : mfl_cmd_predict(cli);
}

static int run_model(struct mfl_cli *cli)
{
        if (!strcmp(cli->argument[0], "import"))
                return mfl_cmd_import(cli);
        return strcmp(cli->argument[0], "show") ? mfl_cmd_registry(cli) : mfl_cmd_model(cli);
}

/* In the order of mfl_cli_commands. */
static const struct {
        const char *name;
        int (*run)(struct mfl_cli *cli);
} runs[] = {{"run", mfl_cmd_run}, {"new", mfl_cmd_new}, {"submit", mfl_cmd_submit}, {"check", mfl_cmd_check},
        {"plan", mfl_cmd_plan}, {"sweep", mfl_cmd_sweep}, {"compare", mfl_cmd_compare},
        {"list", mfl_cmd_list}, {"show", mfl_cmd_show}, {"watch", mfl_cmd_watch}, {"wait", mfl_cmd_wait},
        {"logs", mfl_cmd_logs}, {"stop", mfl_cmd_stop}, {"clone", mfl_cmd_clone}, {"move", mfl_move},
        {"forget", mfl_cmd_forget}, {"replay", mfl_cmd_replay}, {"archive", mfl_cmd_archive},
        {"unarchive", mfl_cmd_archive}, {"delete", mfl_cmd_delete}, {"models", mfl_cmd_models},
        {"pull", mfl_cmd_pull}, {"predict", run_predict}, {"evaluate", mfl_cmd_evaluate},
        {"validate", mfl_cmd_validate}, {"model", run_model}, {"daemons", mfl_cmd_daemons},
        {"drain", mfl_cmd_drain}, {"probe", mfl_cmd_probe}, {"audit", mfl_cmd_audit},
        {"login", mfl_cmd_login}, {"data", mfl_cmd_data}, {"presets", mfl_cmd_presets}, {"pki", mfl_cmd_pki},
        {"privacy", mfl_cmd_privacy}, {"help", mfl_cmd_help}};

/* Every start checks that each command of the table has its function. */
static void check_commands(void)
{
        size_t i = 0;
        for (; i < MFL_ARRAY_SIZE(runs); i++)
                mfl_assert(mfl_cli_commands[i].name && !strcmp(mfl_cli_commands[i].name, runs[i].name));
        mfl_assert(!mfl_cli_commands[i].name);
}

static void look_at_stdout(struct mfl_cli *cli)
{
        const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
        cli->terminal = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
        cli->colour = cli->terminal && !(no_colour && *no_colour);
        setlocale(LC_CTYPE, "");
        cli->utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
}

static int act(struct mfl_cli *cli)
{
        const char *server = getenv("MFL_SERVER");
        if (cli->options.version) {
                puts("mfl " MFL_VERSION);
                return MFL_EXIT_OK;
        }
        if (!cli->command || cli->options.help) {
                cli->command ? mfl_help_command(stdout, cli->command) : mfl_help_overview(stdout);
                return cli->options.help ? MFL_EXIT_OK : MFL_EXIT_USAGE;
        }
        cli->server = cli->options.server ? cli->options.server
                      : server && *server ? server
                                          : "127.0.0.1:7433";
        return runs[cli->command - mfl_cli_commands].run(cli);
}

/* Output that could not be written is a failure. */
static int run_command(struct mfl_cli *cli)
{
        struct mfl_error err;
        int code = act(cli);
        int r = mfl_cli_flush(&err);
        return r && !code ? mfl_cli_report(cli, r, &err) : code;
}

static void on_late(uv_timer_t *timer)
{
        *(bool *)timer->data = true;
}

/* Closes the connections. There is a time limit: a name lookup that is still running, for example, no longer
 * matters. */
static void close_loop(struct mfl_cli *cli)
{
        uv_timer_t timer;
        bool late = false;
        for (int i = 0; cli->signals_on && i < 3; i++)
                uv_close((uv_handle_t *)&cli->signals[i], NULL);
        uv_timer_init(cli->loop, &timer);
        timer.data = &late;
        uv_update_time(cli->loop);
        uv_timer_start(&timer, on_late, 500, 0);
        uv_unref((uv_handle_t *)&timer);
        while (!late && uv_loop_alive(cli->loop))
                uv_run(cli->loop, UV_RUN_ONCE);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_run(cli->loop, UV_RUN_NOWAIT);
        uv_loop_close(cli->loop);
}

int main(int argc, char **argv)
{
        struct mfl_cli cli = {.loop = NULL};
        struct mfl_error err;
        uv_loop_t loop;
        if (!mfl_fs_open_standard())
                return MFL_EXIT_FAILED;
        if (argc == 2 && !strcmp(argv[1], MFL_ONNX_CHILD))
                return mfl_onnx_child(3);
        check_commands();
        signal(SIGPIPE, SIG_IGN);
        mfl_log_init("mfl", MFL_LOG_WARN);
        look_at_stdout(&cli);
        int r = mfl_cli_parse(&cli, argc, argv, &err);
        if (r)
                return mfl_cli_report(&cli, r, &err);
        r = uv_loop_init(&loop);
        if (r)
                return mfl_cli_report_text(&cli, r, "event loop: %s", uv_strerror(r));
        cli.loop = &loop;
        int code = run_command(&cli);
        close_loop(&cli);
        return code;
}
