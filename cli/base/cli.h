/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of `mfl` share: exit codes, the values of the options, and reporting.
 *
 * Functions below a command return the codes of common/base/base.h and those listed here. The command calls
 * mfl_cli_report once, which turns a code into a message and an exit code.
 */
#ifndef MFL_CLI_BASE_CLI_H
#define MFL_CLI_BASE_CLI_H

#include <stdio.h>
#include <uv.h>

#include "common/base/base.h"
#include "proto/tls/tls.h"

/* Exit codes, documented in `mfl help exit`. */
enum mfl_exit {
        MFL_EXIT_OK = 0,
        MFL_EXIT_FAILED = 1,      /* the job failed or was stopped; or this machine refused (disk, memory) */
        MFL_EXIT_USAGE = 2,       /* the command line */
        MFL_EXIT_UNREACHABLE = 3, /* no server, or the connection is lost for good */
        MFL_EXIT_NOT_FOUND = 4,
        MFL_EXIT_INVALID = 5,  /* the job file is wrong, or the server does not accept or allow it */
        MFL_EXIT_CONFLICT = 6, /* conflict or limit */
        MFL_EXIT_INTERRUPTED = 130,
};

/* Positive codes besides MFL_INVALID and MFL_NOT_FOUND. */
enum {
        MFL_CLI_CONFLICT = 16,
        MFL_CLI_LIMIT,
        MFL_CLI_LOST,        /* no connection, or it broke */
        MFL_CLI_INTERRUPTED, /* SIGINT or SIGTERM */
        MFL_CLI_TIMEOUT,     /* the time limit that the caller gave has passed */
        MFL_CLI_FAILED,      /* the job failed or was stopped */
        MFL_CLI_USAGE,
        MFL_CLI_REFUSED, /* the server refuses this client, and trying again will not help */
};

#define MFL_CLI_DATA_MAX 16
#define MFL_CLI_POSITIONAL_MAX 16

/* The values of all options; the table of commands says which command takes which. */
struct mfl_cli_options {
        const char *tls_ca, *tls_cert, *tls_key;
        const char *server, *token, *out, *round, *backend, *input, *format, *base, *precision;
        const char *data[MFL_CLI_DATA_MAX];
        int n_data;
        const char *dir, *csr, *tar, *ca_pass_file, *site;
        const char *reason, *period, *memory;
        const char *sigma, *q, *rounds, *delta, *calibrate, *mechanism, *separation;
        const char *host[MFL_CLI_DATA_MAX], *role[MFL_CLI_DATA_MAX];
        int n_host, n_role;
        const char *set[MFL_CLI_DATA_MAX]; /* changes of a job file, KEY=VALUE */
        int n_set;
        const char *state, *name, *since, *before; /* which jobs */
        const char *at, *as, *accuracy, *worse;    /* sites, models */
        const char *to;                            /* move: the other server */
        const char *plugins, *config;              /* run */
        int64_t bins, deadline, sites;
        int64_t days, crl_days, top; /* -1: not given */
        bool new_key, revoke_old;
        int64_t daemons, threads, members, rows, classes, timeout, last; /* -1: not given */
        bool json, watch, follow, partition, sizes, undo, wait, all, keep_state, nodes, teams, plain, help,
                version, after_round, done, archived, probabilities, logits, with_input, deltas, back, anyway;
};

struct mfl_cli {
        struct mfl_cli_options options;
        const struct mfl_cli_command *command;        /* cli/commands/commands.h */
        const char *word;                             /* what was typed for it */
        const char *argument[MFL_CLI_POSITIONAL_MAX]; /* NULL where not given */
        const char *server;                           /* address */
        struct mfl_tls_files tls;                     /* ca NULL: plain TCP */
        char tls_paths[3][1024];
        bool json;                   /* --json */
        bool terminal, colour, utf8; /* of stdout */
        uv_loop_t *loop;
        uv_signal_t signals[3];
        bool signals_on;
        int interrupted;  /* number of signals that ask to end */
        int acknowledged; /* how many of these have ended a wait */
};

/* report.c. From here on, Ctrl-C, SIGTERM and SIGHUP are counted in cli->interrupted and end waits on the
 * loop. */
int mfl_cli_signals_start(struct mfl_cli *cli, struct mfl_error *err);

/* Prints the one message of a command that fails: text on stderr, and with --json the error object on stdout.
 * Returns the exit code for code r. Prints nothing for 0. */
int mfl_cli_report(struct mfl_cli *cli, int r, const struct mfl_error *err);
int mfl_cli_report_text(struct mfl_cli *cli, int r, const char *fmt, ...) MFL_PRINTF(3, 4);
/* Prints "mfl: text" on stderr, with and without --json. */
void mfl_cli_note(struct mfl_cli *cli, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Flushes stdout. A full disk is an error. */
int mfl_cli_flush(struct mfl_error *err);

/* tls.c. Finds the certificates to use: options, the environment, ~/.config/mfl. MFL_CLI_USAGE if some are
 * missing. */
int mfl_cli_tls_find(struct mfl_cli *cli, struct mfl_error *err);

#endif
