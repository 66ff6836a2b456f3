/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a group: its members by rank, and their updates. How a group lives is in core_group.h. */
#ifndef MFL_SERVER_WORK_CORE_MEMBER_H
#define MFL_SERVER_WORK_CORE_MEMBER_H

#include "server/state/state.h"

enum group_state {
        GROUP_GATHER,  /* members train, or wait for the others */
        GROUP_COMBINE, /* Combine is sent; the leader's update is in the queue or a slot, for all */
        GROUP_ADDING,  /* the worker has the sum */
        GROUP_STATES_,
};

struct core_member {
        uint64_t instance;
        struct core_task *task; /* NULL: it left the group */
};

struct core_group {
        uint64_t number;
        struct core_job *job;
        struct core_group *next; /* of its job */
        enum group_state state;
        enum mfl_collective_kind collective;
        uint64_t communicator;
        /* GATHER: when members that are not ready are late; CORE_NEVER while no member is ready.
         * COMBINE: when a sum that has a slot is late. */
        uint64_t limit_ms;
        uint32_t leader; /* rank, from COMBINE on */
        uint32_t workers, n_members;
        struct core_member members[]; /* by rank */
};

/* Asserts that the change is legal. */
void mfl_core_group_move(struct core_group *group, enum group_state to);
/* The member's update, which covers its whole task; NULL: it is not ready. */
struct core_update *mfl_core_member_update(const struct core_group *group, uint32_t rank);
uint32_t mfl_core_member_rank(const struct core_task *task);
/* The sum of the weights of the updates that are ready. */
uint64_t mfl_core_group_weight(const struct core_group *group);
void mfl_core_group_describe(const struct core_task *task, struct mfl_group *ret_group);
void mfl_core_group_free(struct core_group *group);
void mfl_core_groups_free(struct core_job *job);

#endif
