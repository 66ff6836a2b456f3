/* SPDX-License-Identifier: Apache-2.0 */
/* The daemons that work for a job, as a watch has heard of them last, and what they do as text. */
#ifndef MFL_CLI_CREW_H
#define MFL_CLI_CREW_H

#include "cli/display.h"
#include "cli/json.h"
#include "proto/wire.h"

struct mfl_crew_member {
        char daemon[MFL_NAME_BYTES], state[MFL_NAME_BYTES];
        uint32_t items_done, items_total;
        bool known; /* activity; a daemon of before tells none */
        Mfl__Activity activity;
};

/* A zeroed one is nobody. */
struct mfl_crew {
        size_t n;
        uint32_t more; /* that the server did not name */
        struct mfl_crew_member member[MFL_CREW_MAX];
};

void mfl_crew_take(struct mfl_crew *crew, const Mfl__Crew *wire);
/* All of them as one: samples are added, shares weighed by workers. False: nothing is known of anybody. */
bool mfl_crew_sum(const struct mfl_crew *crew, Mfl__Activity *ret_sum);
json_t *mfl_crew_json(const struct mfl_crew *crew);

/* view_crew.c. Whole percents of the four states, together 100; unless they are what `of` says. */
void mfl_crew_apportion(const Mfl__Activity *activity, int of, int ret_parts[MFL_ACTIVITY_STATES]);
/* "5120 samples/s  compute 91%  data 1%  network 2%  wait 6%". Returns buf. */
const char *mfl_crew_line(const Mfl__Activity *activity, char *buf, size_t buf_bytes);
/* A table of at most lines_max lines, those that it has no room for counted in its last one; none of them
 * wider than the style's columns. "" where it has no room at all or there is nobody. NULL: out of memory; the
 * caller frees. */
char *mfl_view_crew(const struct mfl_crew *crew, int lines_max, const struct mfl_style *style);

#endif
