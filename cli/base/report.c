/* SPDX-License-Identifier: Apache-2.0 */
/* How a command ended: messages, exit codes, and the signals that end it. */
#include <signal.h>

#include "cli/base/cli.h"
#include "cli/base/json.h"
#include "common/base/plain.h"

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
        {MFL_CLI_REFUSED, MFL_EXIT_UNREACHABLE, "refused"},
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
        struct mfl_error plain = *err; /* it quotes job files and arguments, which may come from strangers */
        mfl_plain_clean(plain.text, true);
        fflush(stdout);
        fprintf(stderr, "mfl: %s\n", plain.text);
        if (cli->json)
                mfl_json_print_error(stdout, m->name, plain.text);
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
        char text[2048];
        va_list args;
        va_start(args, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        mfl_plain_clean(text, true);
        fflush(stdout);
        fprintf(stderr, "mfl: %s\n", text);
}

int mfl_cli_flush(struct mfl_error *err)
{
        /* It is no failure if the reader closes the pipe (mfl list | head). */
        if ((fflush(stdout) || ferror(stdout)) && errno != EPIPE)
                return mfl_fail_errno(err, "write to standard output");
        return 0;
}
