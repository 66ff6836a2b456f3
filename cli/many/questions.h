/* SPDX-License-Identifier: Apache-2.0 */
/* The questions of `mfl new` on a terminal: which example, and the values that people change first. */
#ifndef MFL_CLI_MANY_QUESTIONS_H
#define MFL_CLI_MANY_QUESTIONS_H

#include <stdio.h>

#include "cli/many/templates.h"
#include "common/base/base.h"

struct mfl_questions {
        FILE *in, *out;
        /* An example's name: 0, or MFL_NOT_FOUND with what to say. */
        int (*find)(const char *name, const struct mfl_template **ret_template, struct mfl_error *err);
        void (*list)(void);
};

/* Asks, and gives the job file's text, on the heap. An empty answer takes the value in brackets; a wrong one is explained and asked for again.
 * MFL_CLI_INTERRUPTED: the input has ended. Reads and writes the streams alone, so that a signal leaves nothing behind. */
int mfl_questions_job(const struct mfl_questions *questions, const struct mfl_template **ret_template,
        char **ret_text, struct mfl_error *err);
/* The path of a file that is not there yet, on the heap; `proposed`.yaml is the default. */
int mfl_questions_file(
        const struct mfl_questions *questions, const char *proposed, char **ret_path, struct mfl_error *err);

#endif
