/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options of `mfl`, for what explains them: help, the manual, completion. */
#ifndef MFL_CLI_OPTIONS_H
#define MFL_CLI_OPTIONS_H

#include "common/base.h"

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
        const char *value; /* its name in help; FILE and DIR are completed */
        const char *help;
        int64_t min, max;
        size_t count;        /* KIND_LIST: where the number of items is */
        const char *choices; /* what it may be, separated by blanks; NULL: not a few words */
};

/* By position, which is also their order in help; NULL behind the last. */
const struct mfl_cli_option *mfl_cli_option_at(size_t i);
/* Whether a name is one of names, which are separated by blanks. */
bool mfl_cli_name_in(const char *names, const char *name);
/* Names of the options that every command takes. */
extern const char mfl_cli_common_options[];

#endif
