/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of `mfl` share: exit codes, the options, reporting, and the prototypes of the commands.
 *
 * A command is `int mfl_cmd_X(struct mfl_cli *cli)` and returns the exit code of the program. Functions below
 * a command return the codes of common/base.h and those listed here; mfl_cli_report turns one into a message
 * and an exit code, once, in the command.
 */
#ifndef MFL_CLI_CLI_H
#define MFL_CLI_CLI_H

#include <stdio.h>
#include <uv.h>

#include "common/base.h"
#include "proto/tls.h"

/* Exit codes, documented in `mfl help exit`. */
enum mfl_exit {
        MFL_EXIT_OK = 0,
        MFL_EXIT_FAILED = 1,      /* the job failed or was stopped; or this machine refused (disk, memory) */
        MFL_EXIT_USAGE = 2,       /* the command line */
        MFL_EXIT_UNREACHABLE = 3, /* no server, or the connection is lost for good */
        MFL_EXIT_NOT_FOUND = 4,
        MFL_EXIT_INVALID = 5,  /* the job file, or what the server would not take or allow */
        MFL_EXIT_CONFLICT = 6, /* conflict or limit */
        MFL_EXIT_INTERRUPTED = 130,
};

/* Positive codes besides MFL_INVALID and MFL_NOT_FOUND. */
enum {
        MFL_CLI_CONFLICT = 16,
        MFL_CLI_LIMIT,
        MFL_CLI_LOST,        /* no connection, or not any more */
        MFL_CLI_INTERRUPTED, /* SIGINT or SIGTERM */
        MFL_CLI_TIMEOUT,     /* the time that the caller gave is over */
        MFL_CLI_FAILED,      /* the job failed or was stopped */
        MFL_CLI_USAGE,
        MFL_CLI_REFUSED, /* the server does not let us in, and trying again will not help */
};

#define MFL_CLI_DATA_MAX 16
#define MFL_CLI_POSITIONAL_MAX 4

/* Every option of every command; which command takes which is in the table of commands. */
struct mfl_cli_options {
        const char *tls_ca, *tls_cert, *tls_key;
        const char *server, *token, *out, *round, *backend, *input, *format;
        const char *data[MFL_CLI_DATA_MAX];
        int n_data;
        const char *dir, *csr, *tar, *ca_pass_file;
        const char *reason, *period;
        const char *host[MFL_CLI_DATA_MAX], *role[MFL_CLI_DATA_MAX];
        int n_host, n_role;
        int64_t days, crl_days; /* -1: not given */
        bool new_key, revoke_old;
        int64_t daemons, threads, rows, classes, timeout, last; /* -1: not given */
        bool json, watch, follow, partition, undo, wait, all, keep_state, nodes, plain, help, version,
                after_round;
};

struct mfl_cli;
struct mfl_cli_command {
        const char *name;
        const char *arguments; /* of the usage line */
        const char *summary;   /* one line */
        int n_min, n_max;      /* positional arguments */
        const char
                *options; /* names, separated by blanks; those that every command takes go without saying */
        int (*run)(struct mfl_cli *cli);
        const char *text; /* what --help teaches, with examples */
        const char
                *words; /* what the first argument may be, for completion; NULL: it follows from arguments */
};
extern const struct mfl_cli_command mfl_cli_commands[]; /* ends with a NULL name */
const struct mfl_cli_command *mfl_cli_command_find(const char *name);

struct mfl_cli {
        struct mfl_cli_options options;
        const struct mfl_cli_command *command;
        const char *argument[MFL_CLI_POSITIONAL_MAX]; /* NULL where not given */
        const char *server;                           /* address */
        struct mfl_tls_files tls;                     /* ca NULL: plain TCP */
        char tls_paths[3][1024];
        bool json;                   /* --json */
        bool terminal, colour, utf8; /* of stdout */
        uv_loop_t *loop;
        uv_signal_t signals[3];
        bool signals_on;
        int interrupted;  /* how many signals to end came */
        int acknowledged; /* how many of them have ended a wait */
};

/* report.c. Ctrl-C and SIGTERM (SIGHUP too) are counted in cli->interrupted from here on, and end waits on
 * the loop. */
int mfl_cli_signals_start(struct mfl_cli *cli, struct mfl_error *err);

/* The one message of a command that fails: text on stderr, and with --json the error object on stdout.
 * Returns the exit code for code r; 0 stays 0 and silent. */
int mfl_cli_report(struct mfl_cli *cli, int r, const struct mfl_error *err);
int mfl_cli_report_text(struct mfl_cli *cli, int r, const char *fmt, ...) MFL_PRINTF(3, 4);
/* A note for people on stderr, "mfl: text"; without --json or with it. */
void mfl_cli_note(struct mfl_cli *cli, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Writes what is in stdout's buffer; a full disk is an error, not silence. */
int mfl_cli_flush(struct mfl_error *err);

/* tls.c. Which certificates to show: options, the environment, ~/.config/mfl. MFL_CLI_USAGE when some are
 * missing. */
int mfl_cli_tls_find(struct mfl_cli *cli, struct mfl_error *err);

/* options.c. Fills options, command and arguments from argv. MFL_CLI_USAGE with a suggestion in err. A
 * command is left NULL when only `mfl --help` or `--version` was asked for. */
int mfl_cli_parse(struct mfl_cli *cli, int argc, char **argv, struct mfl_error *err);
/* "  --token T   text" lines for the options of a command (NULL: of all that every command takes). */
void mfl_cli_print_options(FILE *out, const char *names);

/* help.c */
void mfl_help_overview(FILE *out);
void mfl_help_command(FILE *out, const struct mfl_cli_command *command);
/* False when there is no such topic ("json", "exit"). */
bool mfl_help_topic(FILE *out, const char *topic);
const char *mfl_help_topic_text(const char *topic); /* NULL when there is no such text */

int mfl_cmd_submit(struct mfl_cli *cli);
int mfl_cmd_check(struct mfl_cli *cli);
int mfl_cmd_clone(struct mfl_cli *cli);
int mfl_cmd_list(struct mfl_cli *cli);
int mfl_cmd_show(struct mfl_cli *cli);
int mfl_cmd_models(struct mfl_cli *cli);
int mfl_cmd_stop(struct mfl_cli *cli);
int mfl_cmd_delete(struct mfl_cli *cli);
int mfl_cmd_daemons(struct mfl_cli *cli);
int mfl_cmd_access(struct mfl_cli *cli); /* daemons with a verb */
int mfl_cmd_drain(struct mfl_cli *cli);
int mfl_cmd_audit(struct mfl_cli *cli);
int mfl_cmd_watch(struct mfl_cli *cli);
int mfl_cmd_wait(struct mfl_cli *cli);
int mfl_cmd_logs(struct mfl_cli *cli);
int mfl_cmd_pull(struct mfl_cli *cli);
int mfl_cmd_data(struct mfl_cli *cli);
int mfl_cmd_probe(struct mfl_cli *cli);
int mfl_cmd_presets(struct mfl_cli *cli);
int mfl_cmd_run(struct mfl_cli *cli);
int mfl_cmd_pki(struct mfl_cli *cli);
int mfl_cmd_help(struct mfl_cli *cli);

#endif
