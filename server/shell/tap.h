/* SPDX-License-Identifier: Apache-2.0 */
/* Counts events and actions as they pass between the loop and the core, so that counting touches no decision.
 * On the hot path it costs an addition. */
#ifndef MFL_SERVER_SHELL_TAP_H
#define MFL_SERVER_SHELL_TAP_H

#include "server/shell/server.h"

/* Before the core takes the event; after the action was carried out. */
void mfl_tap_event(struct mfl_server *server, const struct mfl_core_event *event);
void mfl_tap_action(struct mfl_server *server, const struct mfl_core_action *action);

#endif
