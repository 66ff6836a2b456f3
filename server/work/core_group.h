/* SPDX-License-Identifier: Apache-2.0 */
/* A group: daemons of one node whose updates are added before one of them uploads the sum.
 *
 * Daemons of a node that get exactly one training task in the same deal form a group, in the node's order, at
 * most 64 members, each with its own instance. Jobs that need single updates form no groups. Which clients a
 * daemon trains does not depend on groups. A group adds by nccl if each member has its own GPU, which is no
 * MIG instance, and all members have the same version of NCCL. Otherwise it adds by shm.
 *
 * Daemons below one relay form groups in the same way, whatever their nodes: the relay adds for them (mfl.proto, RELAYS).
 *
 *   GATHER --all are ready, or the rest is late--> COMBINE --the sum is here--> ADDING --ADDED--> counted
 *     |                                               |                            |
 *     +-- fewer than two, or nccl and one left --> ended: members upload alone <---+ refused
 *
 * GATHER: members announce their updates with the group's number. A member leaves if it announces without
 *   the number, or is lost. Once one member is ready, the rest has as long as that member took, at least 2 s,
 *   at most half of the time left to the deadline. Members that are late are dropped.
 * COMBINE: at least two members are ready and no others are left; for nccl, every member has the id of the
 *   communicator. Combine goes to the leader, the first member that is ready; for nccl, to all. The leader's
 *   update waits for a slot on behalf of all. The slot's actions name the group as task, with update 0 and
 *   the sum of the weights. Combining has a time limit, at most half of the time left to the deadline. A
 *   leader with a slot has this limit plus the time of an upload at 1 MiB/s.
 * ADDING: the whole sum is here. It counts, whatever happens to the members now. Then each member's update
 *   counts under its own task.
 *
 * In a job with secure_sum each node is one participant, if there are three or more: its leader masks the sum. From Combine on the leader's
 * update is HELD, until the leader's keys have come and its sum is masked; then it waits for a slot. A group that ends before the secure
 * sum begins leaves its members as participants of their own; one that ends later leaves the sum, and its clients are missing.
 *
 * A member's update is GROUPED while it waits. A task that leaves its group never returns to it. If a member
 * leaves before ADDING, the whole group ends if it is combining, or adds by nccl. CombineFailed, a time limit
 * and a refused sum also end the group, and so does having fewer than two members. Connected members are
 * told so (Alone); an update that was ready waits for a slot of its own. Alone also goes to a daemon that has
 * announced nothing yet, and whose params were to come from a lost daemon. A task that is sent again after a
 * reconnect is alone.
 */
#ifndef MFL_SERVER_WORK_CORE_GROUP_H
#define MFL_SERVER_WORK_CORE_GROUP_H

#include "server/work/core_member.h"

/* For new tasks that are not sent: sets params_from, and forms groups. */
void mfl_core_groups_form(struct mfl_core *core, struct core_job *job, struct core_task **tasks, uint32_t n);
/* Whether an update with this announce waits for its task's group. */
bool mfl_core_group_takes(const struct core_task *task, const struct mfl_announce *announce);
void mfl_core_group_ready(struct mfl_core *core, struct core_update *update);
/* The task leaves its group, if it has one. If its update waits for the group, it is dropped. */
void mfl_core_group_lose(struct mfl_core *core, struct core_task *task, const char *reason);
/* As above, but the daemon is told, and its update waits for a slot of its own. */
void mfl_core_group_alone(struct mfl_core *core, struct core_task *task, const char *reason);
/* Daemons that were to get params from the lost daemon are alone. */
void mfl_core_group_fetcher_lost(struct mfl_core *core, struct core_daemon *daemon);
/* Its sum got a slot. Returns when the first bytes are due at the latest. */
uint64_t mfl_core_group_granted(struct mfl_core *core, struct core_group *group);
/* A secure sum: the leader's keys have come. */
void mfl_core_group_combined(struct core_group *group);
/* Its leader sends nothing. */
void mfl_core_group_stalled(struct mfl_core *core, struct core_group *group);
/* Its leader waits for a slot again. */
void mfl_core_group_ungranted(struct core_group *group);
void mfl_core_group_adding(struct core_group *group);
void mfl_core_group_added(struct mfl_core *core, struct core_group *group, bool ok, const char *reason);
/* CombineFailed and CommunicatorId from a member. */
void mfl_core_group_failed(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);
void mfl_core_group_communicator(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);
void mfl_core_group_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);
/* The round is decided: only sums that the worker has still count. */
void mfl_core_groups_end(struct mfl_core *core, struct core_job *job, const char *reason);
void mfl_core_group_check(const struct mfl_core *core, const struct core_job *job);

#endif
