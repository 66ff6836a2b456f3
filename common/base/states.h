/* SPDX-License-Identifier: Apache-2.0 */
/* Explicit states: a table of legal edges for one enum. An edge that the table lacks is a programmer error.
 *
 *      enum door { DOOR_OPEN, DOOR_SHUT, DOOR_LOCKED, DOORS_ };
 *      static const struct mfl_states doors = {.thing = "door", .n = DOORS_, .v = {
 *              [DOOR_OPEN] = {"OPEN", MFL_TO(DOOR_SHUT)},
 *              [DOOR_SHUT] = {"SHUT", MFL_TO(DOOR_OPEN) | MFL_TO(DOOR_LOCKED)},
 *              [DOOR_LOCKED] = {"LOCKED", MFL_TO(DOOR_SHUT)},
 *      }};
 *      door->state = mfl_states_move(&doors, door->state, DOOR_LOCKED);
 */
#ifndef MFL_COMMON_BASE_STATES_H
#define MFL_COMMON_BASE_STATES_H

#include "common/base/base.h"

#define MFL_STATES_MAX 16
#define MFL_TO(state) (1u << (state))

struct mfl_states {
        const char *thing; /* whose states they are */
        uint32_t n;
        struct {
                const char *name;
                uint32_t to; /* the states that may follow: MFL_TO(a) | MFL_TO(b) | ... */
        } v[MFL_STATES_MAX];
};

/* Returns `to` if the table has the edge; otherwise the assertion names the edge and the process aborts. */
unsigned mfl_states_move(const struct mfl_states *states, unsigned from, unsigned to);

#endif
