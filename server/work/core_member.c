/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and their members: what is in them. */
#include "server/work/core_member.h"

#include "common/base/states.h"

#define TO(state) MFL_TO(GROUP_##state)
static const struct mfl_states states = {.thing = "group",
        .n = GROUP_STATES_,
        .v = {
                [GROUP_GATHER] = {"GATHER", TO(COMBINE)},
                [GROUP_COMBINE] = {"COMBINE", TO(ADDING)},
                [GROUP_ADDING] = {"ADDING", 0},
        }};
#undef TO

void mfl_core_group_move(struct core_group *group, enum group_state to)
{
        group->state = mfl_states_move(&states, group->state, to);
}

/* In a group, one update covers the whole task. */
struct core_update *mfl_core_member_update(const struct core_group *group, uint32_t rank)
{
        const struct core_task *task = group->members[rank].task;
        struct core_update *update = task && task->cover[0] ? task->updates[task->cover[0] - 1] : NULL;
        return update && update->group == group ? update : NULL;
}

uint32_t mfl_core_member_rank(const struct core_task *task)
{
        uint32_t rank = 0;
        while (task->group->members[rank].task != task)
                rank++;
        return rank;
}

uint64_t mfl_core_group_weight(const struct core_group *group)
{
        uint64_t weight = 0;
        for (uint32_t r = 0; r < group->n_members; r++) {
                const struct core_update *update = mfl_core_member_update(group, r);
                weight += update ? update->announce.weight : 0;
        }
        return weight;
}

void mfl_core_group_describe(const struct core_task *task, struct mfl_group *ret_group)
{
        const struct core_group *group = task->group;
        *ret_group = (struct mfl_group){.group = group->number,
                .collective = group->collective,
                .rank = mfl_core_member_rank(task),
                .n_members = group->n_members,
                .workers = group->workers,
                .communicator = group->communicator};
        for (uint32_t r = 0; r < group->n_members; r++)
                ret_group->members[r] = group->members[r].instance;
}

void mfl_core_group_free(struct core_group *group)
{
        struct core_group **at = &group->job->groups;
        while (*at != group)
                at = &(*at)->next;
        *at = group->next;
        free(group);
}

void mfl_core_groups_free(struct core_job *job)
{
        while (job->groups)
                mfl_core_group_free(job->groups);
}
