/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of daemons: each goes to the part that decides about it. */
#ifndef MFL_SERVER_CORE_CORE_MESSAGE_H
#define MFL_SERVER_CORE_CORE_MESSAGE_H

#include "server/core/core.h"
#include "server/state/state.h"

void mfl_core_message(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);

#endif
