/* SPDX-License-Identifier: Apache-2.0 */
/* Small params that came inside a Task (mfl.proto, SMALL MODELS), kept until the agent asks for them. */
#ifndef MFL_CLIENT_LINK_INSIDE_H
#define MFL_CLIENT_LINK_INSIDE_H

#include "proto/wire.h"

struct link_inside {
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        size_t bytes;
        uint8_t data[];
};

/* The params of a Task take the place of those before; a Task without params changes nothing. Without memory for them
 * they are fetched. Freed by free. */
void mfl_link_inside_keep(struct link_inside **inside, const Mfl__Task *task);
/* Whether they are what a ParamsGet asks for. */
bool mfl_link_inside_answers(const struct link_inside *inside, const struct mfl_msg *get);

#endif
