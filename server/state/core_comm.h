/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's communicators: their numbers, and how NCCL fared among the same daemons.
 *
 * The number stays the same for the same members in the same ranks, until a sum with it has failed, it
 * broke at a member, or a member's connection broke before the first sum: that member may have missed its
 * id. A daemon holds one communicator at a time, so a new one ends those of all groups that the daemon was
 * in. After two failures in a row the same members add by shm until the daemons of their node change.
 *
 *   NONE --a group needs it--> NEW --every member has the id--> PASSED --it has added--> PROVEN
 *     ^                         |                                 |                        |
 *     +-------------------------+----- failed, or broken ---------+------------------------+
 */
#ifndef MFL_SERVER_STATE_CORE_COMM_H
#define MFL_SERVER_STATE_CORE_COMM_H

#include "proto/message.h"

struct core_node;
struct mfl_core;

enum comm_state {
        COMM_NONE, /* the next group needs a new number */
        COMM_NEW,
        COMM_PASSED,
        COMM_PROVEN,
        COMM_STATES_,
};

/* What NCCL did among the same members in the same ranks. */
struct core_comm {
        struct core_comm *next;
        const struct core_node *node;
        enum comm_state state;
        uint64_t number; /* NONE: 0 */
        uint32_t fails;  /* in a row */
        char reason[MFL_REASON_BYTES];
        uint32_t n;
        uint64_t instances[];
};

/* The communicator of these members, by rank. 0: NCCL has failed too often among them, or memory is out. */
uint64_t mfl_core_comm_number(
        struct mfl_core *core, const struct core_node *node, const uint64_t *instances, uint32_t n);
/* Every member was sent its id. */
void mfl_core_comm_passed(struct mfl_core *core, uint64_t number);
bool mfl_core_comm_is_passed(const struct mfl_core *core, uint64_t number);
/* It has added a sum. */
void mfl_core_comm_proven(struct mfl_core *core, uint64_t number);
/* It can't be used again. failed: because of NCCL, for this reason. */
void mfl_core_comm_lost(struct mfl_core *core, uint64_t number, bool failed, const char *reason);
/* A member no longer has it. */
void mfl_core_comm_broken(struct mfl_core *core, uint64_t number, uint64_t instance);
/* A member's connection broke. */
void mfl_core_comm_cut(struct mfl_core *core, uint64_t instance);
/* The node's daemons changed; instance, if not 0, is gone. */
void mfl_core_comm_change(struct mfl_core *core, const struct core_node *node, uint64_t instance);
/* Why NCCL is no longer tried with that daemon; NULL: it is tried. */
const char *mfl_core_comm_reason(const struct mfl_core *core, uint64_t instance);
void mfl_core_comm_free(struct mfl_core *core);

#endif
