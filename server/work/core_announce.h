/* SPDX-License-Identifier: Apache-2.0 */
/* Announces: whether an update is well formed, valid, wanted, and its daemon's own. */
#ifndef MFL_SERVER_WORK_CORE_ANNOUNCE_H
#define MFL_SERVER_WORK_CORE_ANNOUNCE_H

#include "server/state/state.h"

void mfl_core_announced(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *announce);

#endif
