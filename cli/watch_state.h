/* SPDX-License-Identifier: Apache-2.0 */
/* What a watch knows, and how it is shown. Private to watch*.c. */
#ifndef MFL_CLI_WATCH_STATE_H
#define MFL_CLI_WATCH_STATE_H

#include "cli/watch.h"

/* Both take the news in and show them as lines or JSON. -ENOMEM; -errno of the output. */
int mfl_watch_take_info(struct mfl_watch *watch, const Mfl__JobInfo *info, struct mfl_error *err);
int mfl_watch_take_round(struct mfl_watch *watch, const Mfl__RoundInfo *round, struct mfl_error *err);
/* Lines have it round by round; JSON now and then. */
int mfl_watch_take_crew(struct mfl_watch *watch, const Mfl__Crew *crew, struct mfl_error *err);
/* Draws on a terminal; nothing elsewhere. */
void mfl_watch_draw(struct mfl_watch *watch);
/* Seconds that the rounds to come will take, by the last ones; -1 when not known. */
double mfl_watch_left(const struct mfl_watch *watch);

#endif
