/* SPDX-License-Identifier: Apache-2.0 */
/* Who else can be reached: when one daemon can't, it says whose fault that is. Inside client/peer. */
#ifndef MFL_CLIENT_PEER_REACH_H
#define MFL_CLIENT_PEER_REACH_H

#include <stdatomic.h>

#include "common/base/base.h"

/* Whether two addresses have the same host, written alike. */
bool mfl_peer_same_host(const char *a, const char *b);

/* Connects to all addresses at the same time, says nothing, and closes. Blocks until one has accepted, all have failed, some seconds are
 * over, or it is cancelled. address: n, "HOST:PORT"; NULL, empty and repeated ones, and those that equal `without`, are left out.
 * Returns the first that has accepted, or n; *ret_tried: at how many hosts but that of `without` they are. */
uint32_t mfl_peer_reach(const char *const *address, uint32_t n, const char *without,
        const atomic_bool *cancel, uint32_t *ret_tried);

#endif
