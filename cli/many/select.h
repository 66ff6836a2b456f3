/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the server's jobs a command is about: --state, --name, --since, --before, --archived. Pure, but for the clock. */
#ifndef MFL_CLI_MANY_SELECT_H
#define MFL_CLI_MANY_SELECT_H

#include "cli/base/cli.h"
#include "proto/wire.h"

enum mfl_select_archived {
        MFL_SELECT_CURRENT, /* not archived */
        MFL_SELECT_ARCHIVED,
        MFL_SELECT_BOTH,
};

struct mfl_select {
        unsigned states;    /* bits of Mfl__JobState; 0: any */
        const char *name;   /* pattern with '*' and '?'; NULL: any */
        uint64_t since_ms;  /* created then or later, Unix time; 0: any */
        uint64_t before_ms; /* ended before then, Unix time; 0: any */
        enum mfl_select_archived archived;
};

/* From the options. MFL_CLI_USAGE. */
int mfl_select_read(const struct mfl_cli *cli, struct mfl_select *ret_select, struct mfl_error *err);
/* Whether any option limits it, or says which of the archived. */
bool mfl_select_given(const struct mfl_cli *cli);
bool mfl_select_has(const struct mfl_select *select, const Mfl__JobInfo *job);
/* A list of those that it has, of these the newest `n` (0: all), in their order. The caller frees ret_list->jobs; the jobs
 * still are those of `list`. -ENOMEM. */
int mfl_select_jobs(const struct mfl_select *select, size_t n, const Mfl__JobList *list,
        Mfl__JobList *ret_list, struct mfl_error *err);

#endif
