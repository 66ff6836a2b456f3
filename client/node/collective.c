/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all collectives: the key of a member's sum, and closing. */
#include "client/node/collective.h"

/* Readable in a directory listing, and different from every SHA-256 of params, which are published under
 * theirs. */
void mfl_collective_key(uint64_t group, uint8_t key[MFL_SHARE_KEY_BYTES])
{
        static const uint8_t tag[MFL_SHARE_KEY_BYTES - 8] = "mfl: sum for the group";
        memcpy(key, tag, sizeof(tag));
        for (size_t i = 0; i < 8; i++)
                key[sizeof(tag) + i] = (uint8_t)(group >> (56 - 8 * i));
}

void mfl_collective_close(struct mfl_collective *collective)
{
        if (collective)
                collective->ops->close(collective);
}
