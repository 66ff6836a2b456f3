/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl help`: the overview, the commands, and the topics. */
#include "cli/base/wrap.h"
#include "cli/commands/commands.h"
#include "cli/commands/manual.h"
#include "cli/commands/options.h"
#include "common/settings/yaml.h"

/* Files that the build makes. Only the completions are listed as topics. */
static bool print_file(FILE *out, const char *name)
{
        if (!strcmp(name, "completion"))
                mfl_completion_print(out);
        else if (!strcmp(name, "completion-zsh"))
                mfl_completion_print_zsh(out);
        else if (!strcmp(name, "completion-fish"))
                mfl_completion_print_fish(out);
        else if (!strcmp(name, "man"))
                mfl_manual_print(out);
        else if (!strcmp(name, "man-job") || !strcmp(name, "markdown-job"))
                mfl_manual_print_job(out, !strcmp(name, "man-job") ? MFL_PAGE_MAN : MFL_PAGE_MARKDOWN);
        else
                return false;
        return true;
}

/* What a function prints, with lines of 80 columns. */
static void print_wrapped(FILE *out, void (*print)(FILE *out, const void *what), const void *what)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        FILE *memory = open_memstream(&text, &bytes);
        if (!memory) {
                print(out, what);
                return;
        }
        print(memory, what);
        if (!fclose(memory))
                mfl_wrap_print(out, text);
}

/* False if there is no such topic. */
static bool print_topic(FILE *out, const char *name)
{
        const char *text = mfl_help_topic_text(name);
        if (!strcmp(name, "job"))
                mfl_manual_print_reference(out); /* YAML, whose lines stay */
        else if (text)
                mfl_wrap_print(out, text);
        return text || print_file(out, name);
}

static void print_overview(FILE *out, const void *what)
{
        fputs("mfl " MFL_VERSION ": federated learning from the command line\n"
              "\n"
              "usage: mfl COMMAND [arguments] [options]\n"
              "\n",
                out);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                char left[64];
                snprintf(left, sizeof left, "%s%s%s", c->name, *c->arguments ? " " : "", c->arguments);
                fprintf(out, strlen(left) > 26 ? "  %s\n%29s%s\n" : "  %-26s%s %s\n", left, "", c->summary);
        }
        fputs("\nEvery command takes:\n", out);
        mfl_cli_print_options(out, mfl_cli_common_options, "");
        fputs("\nCommands that ask a server take:\n", out);
        mfl_cli_print_options(out, mfl_cli_server_options, "");
        fputs("\nFirst steps:\n"
              "  mfl new demo -o job.yaml      a job file to begin from\n"
              "  mfl run job.yaml              train it here\n"
              "  mfl submit job.yaml --watch   train it on $MFL_SERVER\n"
              "  mfl help submit               a command; also: json, exit, tls, job\n"
              "\nNO_COLOR turns colours off. A JOB is an id, a name that only one job has, or 'last'.\n",
                out);
}

void mfl_help_overview(FILE *out)
{
        print_wrapped(out, print_overview, NULL);
}

static void print_command(FILE *out, const void *what)
{
        const struct mfl_cli_command *c = what;
        fprintf(out, "mfl %s: %s\n\nusage: mfl %s%s%s [options]\n", c->name, c->summary, c->name,
                *c->arguments ? " " : "", c->arguments);
        fprintf(out, "%s%s\nOptions:\n", *c->text && *c->text != '\n' ? "\n" : "", c->text);
        mfl_cli_print_options(out, c->options, c->name);
        if (!c->local)
                mfl_cli_print_options(out, mfl_cli_server_options, c->name);
        mfl_cli_print_options(out, mfl_cli_common_options, c->name);
}

void mfl_help_command(FILE *out, const struct mfl_cli_command *c)
{
        print_wrapped(out, print_command, c);
}

int mfl_cmd_help(struct mfl_cli *cli)
{
        const char *name = cli->argument[0];
        if (!name) {
                mfl_help_overview(stdout);
                return MFL_EXIT_OK;
        }
        const struct mfl_cli_command *c = mfl_cli_command_find(name);
        if (c)
                mfl_help_command(stdout, c);
        if (c || print_topic(stdout, name))
                return MFL_EXIT_OK;
        const char *const topics[] = {"json", "exit", "tls", "job", "completion", NULL};
        const char *meant = mfl_yaml_nearest(name, topics);
        meant = meant ? meant : mfl_cli_command_meant(name);
        return meant ? mfl_cli_report_text(cli, MFL_CLI_USAGE,
                               "there is no help on '%.60s'; did you mean '%s'?", name, meant)
                     : mfl_cli_report_text(cli, MFL_CLI_USAGE,
                               "there is no help on '%.60s'; 'mfl help' lists the commands", name);
}
