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

/* By position, which is also the order in help; NULL after the last one. */
const struct mfl_cli_option *mfl_cli_option_at(size_t i);
/* Whether a name is one of names, which are separated by blanks. */
bool mfl_cli_name_in(const char *names, const char *name);
/* Names of the options that every command takes, and of those that every command takes that asks a server. */
extern const char mfl_cli_common_options[], mfl_cli_server_options[];

#endif
