/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl`, the command line of operators: picks the command, and reports what became of it. */
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "common/log.h"

static const int signal_numbers[3] = {SIGINT, SIGTERM, SIGHUP};

static void on_signal(uv_signal_t *handle, int number)
{
        struct mfl_cli *cli = handle->data;
        cli->interrupted++;
}

int mfl_cli_signals_start(struct mfl_cli *cli, struct mfl_error *err)
{
        if (cli->signals_on)
                return 0;
        for (int i = 0; i < 3; i++) {
                int r = uv_signal_init(cli->loop, &cli->signals[i]);
                if (r)
                        return mfl_fail(err, r, "signals: %s", uv_strerror(r));
                cli->signals[i].data = cli;
                r = uv_signal_start(&cli->signals[i], on_signal, signal_numbers[i]);
                if (r)
                        return mfl_fail(err, r, "signals: %s", uv_strerror(r));
                uv_unref((uv_handle_t *)&cli->signals[i]);
        }
        cli->signals_on = true;
        return 0;
}

struct meaning {
        int code;
        enum mfl_exit exit;
        const char *name;
};
static const struct meaning meanings[] = {
        {MFL_INVALID, MFL_EXIT_INVALID, "invalid"},
        {MFL_NOT_FOUND, MFL_EXIT_NOT_FOUND, "not_found"},
        {MFL_CLI_CONFLICT, MFL_EXIT_CONFLICT, "conflict"},
        {MFL_EXISTS, MFL_EXIT_CONFLICT, "conflict"},
        {MFL_CLI_LIMIT, MFL_EXIT_CONFLICT, "limit"},
        {MFL_CLI_LOST, MFL_EXIT_UNREACHABLE, "unreachable"},
        {MFL_CLI_TIMEOUT, MFL_EXIT_UNREACHABLE, "unreachable"},
        {MFL_CLI_INTERRUPTED, MFL_EXIT_INTERRUPTED, "interrupted"},
        {MFL_CLI_FAILED, MFL_EXIT_FAILED, "failed"},
        {MFL_CLI_USAGE, MFL_EXIT_USAGE, "usage"},
};

int mfl_cli_report(struct mfl_cli *cli, int r, const struct mfl_error *err)
{
        static const struct meaning internal = {0, MFL_EXIT_FAILED, "internal"};
        const struct meaning *m = &internal;
        if (!r)
                return MFL_EXIT_OK;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(meanings); i++)
                if (meanings[i].code == r)
                        m = &meanings[i];
        fflush(stdout);
        fprintf(stderr, "mfl: %s\n", err->text);
        if (cli->json)
                mfl_json_print_error(stdout, m->name, err->text);
        fflush(stdout);
        return m->exit;
}

int mfl_cli_report_text(struct mfl_cli *cli, int r, const char *fmt, ...)
{
        struct mfl_error err;
        va_list args;
        va_start(args, fmt);
        vsnprintf(err.text, sizeof err.text, fmt, args);
        va_end(args);
        return mfl_cli_report(cli, r, &err);
}

void mfl_cli_note(struct mfl_cli *cli, const char *fmt, ...)
{
        va_list args;
        fflush(stdout);
        fputs("mfl: ", stderr);
        va_start(args, fmt);
        vfprintf(stderr, fmt, args);
        va_end(args);
        fputc('\n', stderr);
}

int mfl_cli_flush(struct mfl_error *err)
{
        if (fflush(stdout) || ferror(stdout))
                return mfl_fail_errno(err, "write to standard output");
        return 0;
}

static void look_at_stdout(struct mfl_cli *cli)
{
        const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
        cli->terminal = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
        cli->colour = cli->terminal && !(no_colour && *no_colour);
        setlocale(LC_CTYPE, "");
        cli->utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
}

static int run_command(struct mfl_cli *cli)
{
        struct mfl_error err;
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
        int code = cli->command->run(cli);
        int r = mfl_cli_flush(&err);
        return r && !code ? mfl_cli_report(cli, r, &err) : code;
}

int main(int argc, char **argv)
{
        struct mfl_cli cli = {.loop = NULL};
        struct mfl_error err;
        uv_loop_t loop;
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
        for (int i = 0; cli.signals_on && i < 3; i++)
                uv_close((uv_handle_t *)&cli.signals[i], NULL);
        /* Bounded: what is still open then has no effect that anybody would miss. */
        for (int i = 0; i < 100 && uv_run(&loop, UV_RUN_NOWAIT); i++)
                ;
        uv_loop_close(&loop);
        return code;
}
