/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options, for the parser, help, the manual and completion. */
#ifndef MFL_CLI_COMMANDS_OPTIONS_H
#define MFL_CLI_COMMANDS_OPTIONS_H

#include "common/base/base.h"

enum mfl_cli_option_kind {
        KIND_FLAG,
        KIND_TEXT,
        KIND_NUMBER,
        KIND_LIST,
};

struct mfl_cli_option {
        const char *name;
        char letter; /* 0: none */
        enum mfl_cli_option_kind kind;
        size_t offset;
        const char *value; /* its name in help; the completion completes FILE and DIR */
        const char *help;
        int64_t min, max;
        size_t count;        /* KIND_LIST: offset of the number of items */
        const char *choices; /* possible values, separated by blanks; NULL: anything */
};

/* The lines of an option's help that are a command's. Lines that begin with commands' names, as in "predict, evaluate: threads", are for
 * these commands alone, which then have none of the lines before the first such line. Returns buf, of MFL_CLI_HELP_BYTES. */
enum { MFL_CLI_HELP_BYTES = 512 };
const char *mfl_cli_option_help(
        const struct mfl_cli_option *o, const char *command, char *buf, size_t buf_bytes);

/* By position, which is also the order in help; NULL after the last one. */
const struct mfl_cli_option *mfl_cli_option_at(size_t i);
/* Whether a name is one of names, which are separated by blanks. */
bool mfl_cli_name_in(const char *names, const char *name);
/* Names of the options that every command takes, and of those that every command takes that asks a server. */
extern const char mfl_cli_common_options[], mfl_cli_server_options[];

/* ---- what the completions of the three shells share ---- */

struct mfl_cli_command;

/* What a command's arguments name, after the word that the table's `words` list. */
enum mfl_completes {
        MFL_COMPLETES_NOTHING,
        MFL_COMPLETES_TOPICS,  /* commands and topics of help */
        MFL_COMPLETES_PRESETS, /* the answer of `mfl presets` */
        MFL_COMPLETES_RULES,   /* daemons or rules, depending on the word */
        MFL_COMPLETES_JOBS,
        MFL_COMPLETES_DAEMONS,
        MFL_COMPLETES_FILE, /* a job file */
};
enum mfl_completes mfl_completion_of(const struct mfl_cli_command *command);

/* Whether an option's value is a file (*ret_folder false) or a folder. */
bool mfl_completion_is_path(const struct mfl_cli_option *option, bool *ret_folder);
/* Whether a command takes an option, of its own or one of those that many take. */
bool mfl_completion_takes(const struct mfl_cli_command *command, const struct mfl_cli_option *option);
/* Patterns for grep -oE over JSON whose match has a name between its third and fourth quotation mark. They match only
 * plain names: shells expand words. */
#define MFL_COMPLETION_JOB "\"job\": ?\"[A-Za-z0-9._-]*\""
#define MFL_COMPLETION_DAEMON "\"name\": ?\"[A-Za-z0-9._-]*\", ?\"node\""
#define MFL_COMPLETION_PRESET "\"name\": ?\"[A-Za-z0-9._-]*\""
#define MFL_COMPLETION_RULE "\"pattern\": ?\"[A-Za-z0-9._:*?-]*\", ?\"rule\": ?"
/* The topics of `mfl help` that are offered beside commands. */
#define MFL_COMPLETION_TOPICS "json exit tls job completion completion-zsh completion-fish"

#endif
