/* SPDX-License-Identifier: Apache-2.0 */
/* States with a table of legal edges. The table stands beside the enum's comment or its only user; a move
 * that the table does not list is a programmer's error and ends the process:
 *
 *     static const unsigned edges[] = {
 *             [IDLE] = MFL_TO(BUSY),
 *             [BUSY] = MFL_TO(IDLE) | MFL_TO(BROKEN),
 *     };
 *     mfl_state_move(object->state, edges, BUSY);
 */
#ifndef MFL_SERVER_LOOP_STATES_H
#define MFL_SERVER_LOOP_STATES_H

#include "common/base/base.h"

#define MFL_TO(state) (1u << (state))
#define mfl_state_may(at, edges, next)                                                                       \
        ((size_t)(at) < MFL_ARRAY_SIZE(edges) && ((edges)[(at)] & MFL_TO(next)) != 0)
#define mfl_state_move(at, edges, next)                                                                      \
        do {                                                                                                 \
                mfl_assert(mfl_state_may(at, edges, next));                                                  \
                (at) = (next);                                                                               \
        } while (0)

#endif
