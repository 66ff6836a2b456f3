/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a protocol version, and explains when there is none. */
#include "proto/version.h"

#include <stdio.h>

/* "2", or "2 to 5". */
static const char *range_text(struct mfl_protocol_range range, char buf[32])
{
        if (range.min == range.max)
                snprintf(buf, 32, "%u", range.min);
        else
                snprintf(buf, 32, "%u to %u", range.min, range.max);
        return buf;
}

int mfl_protocol_choose(struct mfl_protocol_range server, struct mfl_protocol_range peer,
        const char *peer_software, uint32_t *ret_version, struct mfl_error *err)
{
        char own_text[32], peer_text[32];
        const char *peer_name = peer_software && *peer_software ? peer_software : "the peer";
        bool server_is_old = server.max < peer.min;
        if (!server_is_old && peer.max >= server.min) {
                *ret_version = MFL_MIN(server.max, peer.max);
                return 0;
        }
        return mfl_fail(err, MFL_INVALID,
                "no protocol version in common: mfl-server %s speaks protocol %s, %.63s speaks %s: upgrade "
                "%s",
                MFL_VERSION, range_text(server, own_text), peer_name, range_text(peer, peer_text),
                server_is_old ? "the server" : "the client");
}

int mfl_protocol_check_chosen(struct mfl_protocol_range own, uint32_t chosen, const char *own_software,
        const char *software, struct mfl_error *err)
{
        char own_text[32];
        if (chosen >= own.min && chosen <= own.max)
                return 0;
        return mfl_fail(err, MFL_INVALID, "%.63s chose protocol %u, %s speaks %s: upgrade the %s",
                software && *software ? software : "the server", chosen, own_software,
                range_text(own, own_text), chosen > own.max ? "client" : "server");
}
