/* SPDX-License-Identifier: Apache-2.0 */
/* What the completions of the three shells share. Private to this room: cli/commands/manual.h declares what it prints. */
#ifndef MFL_CLI_COMPLETION_COMPLETION_H
#define MFL_CLI_COMPLETION_COMPLETION_H

#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/commands/options.h"

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
