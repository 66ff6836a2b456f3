/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a secure sum: their memory. */
#include "common/secure/packet.h"

int mfl_secure_msg_add(struct mfl_secure_msg *msg, uint32_t member, const void *data, uint32_t n)
{
        mfl_assert(msg->n_parts < MFL_SECURE_MEMBERS_MAX && n <= MFL_SECURE_KEYS_MAX);
        struct mfl_secure_part *parts = mfl_realloc(msg->parts, (msg->n_parts + 1) * sizeof *parts);
        if (!parts)
                return -ENOMEM;
        msg->parts = parts;
        uint8_t *bytes = mfl_realloc(msg->bytes, (size_t)msg->n_bytes + n);
        if (!bytes && msg->n_bytes + n)
                return -ENOMEM;
        msg->bytes = bytes;
        memcpy(bytes + msg->n_bytes, data, n);
        parts[msg->n_parts++] = (struct mfl_secure_part){member, msg->n_bytes, n};
        msg->n_bytes += n;
        return 0;
}

void mfl_secure_msg_deinit(struct mfl_secure_msg *msg)
{
        free(msg->parts);
        free(msg->bytes);
        memset(msg, 0, sizeof *msg);
}

const struct mfl_secure_part *mfl_secure_msg_find(const struct mfl_secure_msg *msg, uint32_t member)
{
        for (uint32_t i = 0; i < msg->n_parts; i++)
                if (msg->parts[i].member == member)
                        return &msg->parts[i];
        return NULL;
}
