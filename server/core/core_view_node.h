/* SPDX-License-Identifier: Apache-2.0 */
/* What lists show about the node of a daemon. */
#ifndef MFL_SERVER_CORE_CORE_VIEW_NODE_H
#define MFL_SERVER_CORE_CORE_VIEW_NODE_H

#include "server/core/core.h"
#include "server/state/state.h"

/* Sets collective, leader and alone. */
void mfl_core_node_view(
        const struct mfl_core *core, const struct core_daemon *daemon, struct mfl_core_daemon_view *ret_view);

#endif
