/* SPDX-License-Identifier: Apache-2.0 */
/* Updates: their states and their memory. */
#include "server/state/state.h"

#include "common/base/states.h"

#define TO(state) MFL_TO(UPDATE_##state)
static const struct mfl_states states = {.thing = "update",
        .n = UPDATE_STATES_,
        .v = {
                [UPDATE_NEW] = {"NEW", TO(HELD) | TO(GROUPED) | TO(QUEUED) | TO(COUNTED) | TO(REFUSED)},
                [UPDATE_HELD] = {"HELD", TO(QUEUED) | TO(GROUPED)},
                [UPDATE_GROUPED] = {"GROUPED", TO(QUEUED) | TO(ADDING) | TO(HELD)},
                [UPDATE_QUEUED] = {"QUEUED", TO(FILLING) | TO(GROUPED)},
                [UPDATE_FILLING] = {"FILLING", TO(ADDING) | TO(QUEUED) | TO(GROUPED)},
                [UPDATE_ADDING] = {"ADDING", TO(COUNTED) | TO(REFUSED) | TO(GROUPED)},
                [UPDATE_COUNTED] = {"COUNTED", 0},
                [UPDATE_REFUSED] = {"REFUSED", 0},
        }};
#undef TO

void mfl_core_update_move(struct core_update *update, enum update_state to)
{
        update->state = mfl_states_move(&states, update->state, to);
}

void mfl_core_update_free(struct core_update *update)
{
        if (!update)
                return;
        free(update->announce.rejected);
        free(update->announce.losses);
        free(update->keys);
        free(update);
}
