/* SPDX-License-Identifier: Apache-2.0 */
/* Which versions of the protocol this program speaks, and which one is spoken with a peer (mfl.proto,
 * VERSIONS). The frame's layout has a number of its own (frame.h). Pure; any thread. */
#ifndef MFL_PROTO_VERSION_H
#define MFL_PROTO_VERSION_H

#include "common/base.h"

/* Inclusive. Raised together with the table in docs/upgrade.md: MAX by a release that adds a message which
 * the other side must know, MIN by the release after the last one that spoke it alone. */
#define MFL_PROTOCOL_MIN 1
#define MFL_PROTOCOL_MAX 3

#define MFL_PROTOCOL_FROZEN 2 /* the first that knows frozen params, which travel once */
#define MFL_PROTOCOL_LAYERS 3 /* the first of jobs with the layers from leaky_relu on, and with ceil_mode */

struct mfl_protocol_range {
        uint32_t min, max;
};

/* The server's choice: the largest version in both ranges. MFL_INVALID when there is none; the text names
 * both programs, both ranges and the one to be upgraded, and is for both sides' logs. */
int mfl_protocol_choose(struct mfl_protocol_range server, struct mfl_protocol_range peer,
        const char *peer_software, uint32_t *ret_version, struct mfl_error *err);

/* The peer's check of a Welcome: a version that it has not offered is MFL_INVALID. software: the server's. */
int mfl_protocol_check_chosen(struct mfl_protocol_range own, uint32_t chosen, const char *own_software,
        const char *software, struct mfl_error *err);

#endif
