/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a state's change against its table. */
#include "common/base/states.h"

unsigned mfl_states_move(const struct mfl_states *states, unsigned from, unsigned to)
{
        char text[128];
        mfl_assert(from < states->n && to < states->n && states->n <= MFL_STATES_MAX);
        if (states->v[from].to & MFL_TO(to))
                return to;
        mfl_snprintf(text, sizeof text, "%s: %s -> %s is legal", states->thing, states->v[from].name,
                states->v[to].name);
        mfl_assert_fail(text, __FILE__, __LINE__);
}
