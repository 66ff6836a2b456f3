/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `mfl`: the table that help, manual, completion and the parser read, and the functions that
 * only main.c calls. */
#ifndef MFL_CLI_COMMANDS_COMMANDS_H
#define MFL_CLI_COMMANDS_COMMANDS_H

#include "cli/base/cli.h"

struct mfl_cli_command {
        const char *name;
        const char *arguments; /* for the usage line */
        const char *summary;   /* one line */
        int n_min, n_max;      /* number of positional arguments */
        const char *options;   /* names, separated by blanks, without those that every command takes and those
                                  that every command takes that asks a server */
        const char *text;      /* the body of --help, with examples */
        const char *words;     /* possible first arguments, for completion; NULL: see completion.c */
        bool local;            /* asks no server, so it takes no option about one */
};
extern const struct mfl_cli_command mfl_cli_commands[]; /* ends with a NULL name */
const struct mfl_cli_command *mfl_cli_command_find(const char *name);

/* options.c. Fills options, command and arguments from argv. MFL_CLI_USAGE with a suggestion in err. The
 * command stays NULL when the line was only `mfl --help` or `mfl --version`. */
int mfl_cli_parse(struct mfl_cli *cli, int argc, char **argv, struct mfl_error *err);
/* Prints "  --token T   text" lines for options of the command. */
void mfl_cli_print_options(FILE *out, const char *names, const char *command);
/* The command that an unknown word probably means: by what other programs call it (kill, ls, rm), or by its
 * spelling. NULL: none. */
const char *mfl_cli_command_meant(const char *word);

/* topics.c. NULL if there is no such topic ("json", "exit", "tls", "job"). */
const char *mfl_help_topic_text(const char *topic);

/* help.c */
void mfl_help_overview(FILE *out);
void mfl_help_command(FILE *out, const struct mfl_cli_command *command);

/* Each returns the exit code of the program. */
int mfl_cmd_submit(struct mfl_cli *cli);
int mfl_cmd_check(struct mfl_cli *cli);
int mfl_cmd_plan(struct mfl_cli *cli);
int mfl_cmd_new(struct mfl_cli *cli);
int mfl_cmd_sweep(struct mfl_cli *cli);
int mfl_cmd_compare(struct mfl_cli *cli);
int mfl_cmd_privacy(struct mfl_cli *cli);
int mfl_cmd_ledger(struct mfl_cli *cli); /* of `privacy` */
int mfl_cmd_clone(struct mfl_cli *cli);
int mfl_cmd_forget(struct mfl_cli *cli);
int mfl_cmd_replay(struct mfl_cli *cli);
int mfl_cmd_list(struct mfl_cli *cli);
int mfl_cmd_show(struct mfl_cli *cli);
int mfl_cmd_models(struct mfl_cli *cli);
int mfl_cmd_stop(struct mfl_cli *cli);
int mfl_cmd_delete(struct mfl_cli *cli);
int mfl_cmd_archive(struct mfl_cli *cli);      /* unarchive, too */
int mfl_cmd_stop_many(struct mfl_cli *cli);    /* stop --all */
int mfl_cmd_delete_many(struct mfl_cli *cli);  /* delete without a job */
int mfl_cmd_archive_many(struct mfl_cli *cli); /* archive and unarchive without a job */
bool mfl_cmd_archive_undoes(const struct mfl_cli *cli);
int mfl_cmd_daemons(struct mfl_cli *cli);
int mfl_cmd_access(struct mfl_cli *cli); /* daemons with a verb */
int mfl_cmd_drain(struct mfl_cli *cli);
int mfl_cmd_audit(struct mfl_cli *cli);
int mfl_cmd_watch(struct mfl_cli *cli);
int mfl_cmd_wait(struct mfl_cli *cli);
int mfl_cmd_logs(struct mfl_cli *cli);
int mfl_cmd_pull(struct mfl_cli *cli);
int mfl_cmd_data(struct mfl_cli *cli); /* data show */
int mfl_cmd_probe(struct mfl_cli *cli);
int mfl_cmd_presets(struct mfl_cli *cli);
int mfl_cmd_run(struct mfl_cli *cli);
int mfl_cmd_pki(struct mfl_cli *cli);
int mfl_cmd_help(struct mfl_cli *cli);

#endif
