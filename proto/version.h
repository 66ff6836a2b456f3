/* SPDX-License-Identifier: Apache-2.0 */
/* Which versions of the protocol this program supports, and which one it uses with a peer (mfl.proto, VERSIONS). The
 * frame's layout has a version of its own (frame.h). Pure; any thread. */
#ifndef MFL_PROTO_VERSION_H
#define MFL_PROTO_VERSION_H

#include "common/base/base.h"

/* Inclusive. Change them together with the table in docs/upgrade.md. MAX rises with a release that adds a message
 * which the other side must know, MIN with the release after the last one that supported only the old version. */
#define MFL_PROTOCOL_MIN 1
#define MFL_PROTOCOL_MAX 8

#define MFL_PROTOCOL_FROZEN 2 /* the first with frozen params, which are sent once */
#define MFL_PROTOCOL_LAYERS 3 /* the first for jobs with the layers from leaky_relu on, and with ceil_mode */
#define MFL_PROTOCOL_RECALL 4 /* the first with Recall: clients that have not begun move to other daemons */
#define MFL_PROTOCOL_STATISTICS 5 /* the first with Task.statistics_max and Task.arithmetic */
#define MFL_PROTOCOL_PARALLEL 5   /* the first for jobs with `parallel` */
#define MFL_PROTOCOL_METHODS 7    /* the first with Task.method and Announce.scalars */
#define MFL_PROTOCOL_SHARDS 8 /* the first for tasks with a team whose members agree on where state lies */
#define MFL_PROTOCOL_STATES 8 /* the first for jobs whose clients keep a state */
#define MFL_PROTOCOL_PACKED 8 /* the first with Task.grid and Chunk.bytes */
#define MFL_PROTOCOL_PRIVACY                                                                                 \
        8 /* the first for jobs with noise, for which daemons clip, and with secure sums */
#define MFL_PROTOCOL_COHORTS                                                                                 \
        8 /* the first for jobs in virtual time or with losses of clients: Announce.losses */
#define MFL_PROTOCOL_PEERS 8      /* the first for teams over several nodes */
#define MFL_PROTOCOL_RELAYS 8     /* the first with relays */
#define MFL_PROTOCOL_EVALUATION 8 /* the first for evaluations on clients */
#define MFL_PROTOCOL_INQUIRIES 8  /* the first with Inquiry */
#define MFL_PROTOCOL_WIDTHS 8     /* the first for layers wider than MFL_WIDTH_OLD */
#define MFL_PROTOCOL_NAMES 8      /* the first for names of layers above MFL_LAYER_NAME_OLD bytes */
#define MFL_PROTOCOL_LAST_CELL 8  /* the first for jobs with lstm layers with last_cell */
#define MFL_PROTOCOL_ROBUST                                                                                  \
        8 /* the first for jobs with the robust strategies beside median, and with `simulation` */
#define MFL_PROTOCOL_FUNCTIONS                                                                               \
        5 /* the first for jobs with the functions from exp on (common/model/unary.def) */

struct mfl_protocol_range {
        uint32_t min, max;
};

/* The server's choice: the largest version in both ranges. MFL_INVALID when there is none; the text, for the logs of
 * both sides, names both programs, both ranges and the program to upgrade. */
int mfl_protocol_choose(struct mfl_protocol_range server, struct mfl_protocol_range peer,
        const char *peer_software, uint32_t *ret_version, struct mfl_error *err);

/* The peer's check of a Welcome: MFL_INVALID for a version that it has not offered. software: the server's. */
int mfl_protocol_check_chosen(struct mfl_protocol_range own, uint32_t chosen, const char *own_software,
        const char *software, struct mfl_error *err);

#endif
