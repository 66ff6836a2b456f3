/* SPDX-License-Identifier: Apache-2.0 */
/* The crew: the daemons that work for a job, as last reported to a watch, and their activity as text. */
#ifndef MFL_CLI_VIEW_CREW_H
#define MFL_CLI_VIEW_CREW_H

#include "cli/base/display.h"
#include "cli/base/json.h"
#include "proto/wire.h"

struct mfl_crew_member {
        char daemon[MFL_NAME_BYTES], state[MFL_NAME_BYTES];
        uint32_t items_done, items_total;
        bool known; /* the activity; daemons of older releases do not report it */
        Mfl__Activity activity;
};

/* A zeroed crew has no members. */
struct mfl_crew {
        size_t n;
        uint32_t more; /* number of daemons that the server did not name */
        struct mfl_crew_member member[MFL_CREW_MAX];
};

void mfl_crew_take(struct mfl_crew *crew, const Mfl__Crew *wire);
/* All of them as one: samples are added, shares weighted by workers. False: no activity is known. */
bool mfl_crew_sum(const struct mfl_crew *crew, Mfl__Activity *ret_sum);
json_t *mfl_crew_json(const struct mfl_crew *crew);

/* view_crew.c. The four states as whole numbers that add up to `of` (100: percent). */
void mfl_crew_apportion(const Mfl__Activity *activity, int of, int ret_parts[MFL_ACTIVITY_STATES]);
/* "5120 samples/s  compute 91%  data 1%  network 2%  wait 6%". Returns buf. */
const char *mfl_crew_line(const Mfl__Activity *activity, char *buf, size_t buf_bytes);
/* A table of at most lines_max lines, none wider than the style's columns. If there are more daemons, the
 * last line says how many. "" if there is no room or no daemon. NULL: out of memory; the caller frees. */
char *mfl_view_crew(const struct mfl_crew *crew, int lines_max, const struct mfl_style *style);

#endif
