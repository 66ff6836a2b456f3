/* SPDX-License-Identifier: Apache-2.0 */
/* What leader.c (stages) and opening.c (masks) share. */
#ifndef MFL_SERVER_SECURE_LEADER_INTERNAL_H
#define MFL_SERVER_SECURE_LEADER_INTERNAL_H

#include "server/secure/leader.h"

struct leader_member {
        uint32_t caller;
        struct mfl_secure_key mask; /* public */
        bool in, answered, added;
        struct mfl_secure_msg shares, signature, opened;
        uint64_t figures[MFL_SECURE_FIGURES];
};

struct mfl_leader {
        enum mfl_leader_stage stage;
        bool opens;
        uint32_t n, least; /* least: of them that a sum needs */
        struct leader_member *v;
        struct mfl_secure_msg peers;
        struct mfl_secure_graph graph;
        uint8_t transcript[MFL_SHA256_BYTES];
        struct mfl_secure_set shared, survivors; /* once settled */
};

#endif
