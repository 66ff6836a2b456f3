/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to the port of another daemon, and greets it. Inside client/peer. */
#ifndef MFL_CLIENT_PEER_DIAL_H
#define MFL_CLIENT_PEER_DIAL_H

#include <stdatomic.h>

#include "client/peer/greeting.h"

/* Blocks for at most some seconds. *greeting says who meets whom; context NULL: plain. Errors: PEER_OVER: it can't be reached;
 * PEER_LATER: not now; PEER_REFUSED; MFL_BUSY: cancelled; negative: memory, file handles. */
int mfl_peer_dial(const char *address, struct mfl_tls_context *context, struct peer_greeting *greeting,
        const atomic_bool *cancel, struct peer_link **ret_link, struct mfl_error *err);
/* What every connection of a mesh is set to. */
void mfl_peer_set_socket(int fd);

#endif
