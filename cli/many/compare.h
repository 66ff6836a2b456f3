/* SPDX-License-Identifier: Apache-2.0 */
/* Several jobs side by side: the settings in which their job files differ, their results, and their curves in one plot. Pure.
 */
#ifndef MFL_CLI_MANY_COMPARE_H
#define MFL_CLI_MANY_COMPARE_H

#include <jansson.h>

#include "cli/base/display.h"
#include "proto/wire.h"

#define MFL_COMPARE_MAX 256

/* A setting that is not the same in all of the jobs. */
struct mfl_setting {
        char *path;   /* "training.lr" */
        char **value; /* of each job, as in its file; NULL: not in it */
};
struct mfl_settings {
        struct mfl_setting *setting;
        size_t n, room, n_jobs;
};

/* In the order in which the files have them, without `name`. -ENOMEM; the files were parsed before. */
int mfl_settings_find(
        Mfl__JobDetail *const *jobs, size_t n_jobs, struct mfl_settings *ret_settings, struct mfl_error *err);
void mfl_settings_deinit(struct mfl_settings *settings);

/* Rows of the jobs, each with the letter of its curve. NULL: out of memory; the caller frees, here and below. */
char *mfl_view_compare(
        Mfl__JobDetail *const *jobs, size_t n_jobs, const struct mfl_settings *settings, int columns);
/* The curves of the first 52 jobs over the newest 1,000 rounds. "": no job has two evaluated rounds. */
char *mfl_view_plot(Mfl__JobDetail *const *jobs, size_t n_jobs, int columns);
json_t *mfl_json_compare(Mfl__JobDetail *const *jobs, size_t n_jobs, const struct mfl_settings *settings);

#endif
