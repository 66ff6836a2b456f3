/* SPDX-License-Identifier: Apache-2.0 */
/* The knowledge of a watch, and how it is shown. Private to watch*.c. */
#ifndef MFL_CLI_VIEW_WATCH_STATE_H
#define MFL_CLI_VIEW_WATCH_STATE_H

#include "cli/view/watch.h"

/* Both take in an event and show it as lines or JSON. -ENOMEM; -errno of the output. */
/* Shows a state that was held back. */
int mfl_watch_show_held(struct mfl_watch *watch, struct mfl_error *err);
int mfl_watch_take_info(struct mfl_watch *watch, const Mfl__JobInfo *info, struct mfl_error *err);
int mfl_watch_take_round(struct mfl_watch *watch, const Mfl__RoundInfo *round, struct mfl_error *err);
/* Lines show the crew round by round, JSON from time to time. */
int mfl_watch_take_crew(struct mfl_watch *watch, const Mfl__Crew *crew, struct mfl_error *err);
/* Draws on a terminal; does nothing elsewhere. */
void mfl_watch_draw(struct mfl_watch *watch);

#endif
