/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of NCCL's communicators, and how NCCL fared among the same daemons.
 *
 * A daemon holds one communicator at a time, so a new one ends those of all groups that it was in. One that
 * has not added yet can't be trusted after a member's connection broke: the member may have missed its id.
 */
#include "server/core_internal.h"

static bool has(const struct core_comm *comm, uint64_t instance)
{
        for (uint32_t i = 0; i < comm->n; i++)
                if (comm->instances[i] == instance)
                        return true;
        return false;
}

static bool is_of(const struct core_comm *comm, const struct core_group *group)
{
        if (comm->n != group->n_members)
                return false;
        for (uint32_t i = 0; i < comm->n; i++)
                if (comm->instances[i] != group->members[i].instance)
                        return false;
        return true;
}

static struct core_comm *find(const struct mfl_core *core, uint64_t number)
{
        for (struct core_comm *comm = core->comms; comm && number; comm = comm->next)
                if (comm->number == number)
                        return comm;
        return NULL;
}

static void remove_with(struct mfl_core *core, uint64_t instance)
{
        for (struct core_comm **at = &core->comms; *at;) {
                struct core_comm *comm = *at;
                if (!has(comm, instance)) {
                        at = &comm->next;
                        continue;
                }
                *at = comm->next;
                free(comm);
        }
}

static struct core_comm *add(
        struct mfl_core *core, const struct core_group *group, const struct core_node *node)
{
        struct core_comm *comm = mfl_calloc(1, sizeof *comm + group->n_members * sizeof *comm->instances);
        if (!comm) {
                core->error = -ENOMEM;
                return NULL;
        }
        comm->node = node;
        comm->n = group->n_members;
        for (uint32_t i = 0; i < comm->n; i++) {
                comm->instances[i] = group->members[i].instance;
                remove_with(core, comm->instances[i]);
        }
        comm->next = core->comms;
        core->comms = comm;
        return comm;
}

uint64_t mfl_core_comm_number(
        struct mfl_core *core, const struct core_group *group, const struct core_node *node)
{
        struct core_comm *comm = core->comms;
        while (comm && !is_of(comm, group))
                comm = comm->next;
        if (!comm)
                comm = add(core, group, node);
        if (!comm || comm->fails >= CORE_NCCL_FAILS_MAX)
                return 0;
        if (!comm->number) {
                comm->number = mfl_core_number(core);
                comm->passed = comm->proven = false;
        }
        return comm->number;
}

void mfl_core_comm_passed(struct mfl_core *core, uint64_t number)
{
        struct core_comm *comm = find(core, number);
        if (comm)
                comm->passed = true;
}

bool mfl_core_comm_is_passed(const struct mfl_core *core, uint64_t number)
{
        const struct core_comm *comm = find(core, number);
        return comm && comm->passed;
}

void mfl_core_comm_proven(struct mfl_core *core, uint64_t number)
{
        struct core_comm *comm = find(core, number);
        if (!comm)
                return;
        comm->proven = true;
        comm->fails = 0;
}

void mfl_core_comm_lost(struct mfl_core *core, uint64_t number, bool failed, const char *reason)
{
        struct core_comm *comm = find(core, number);
        if (!comm)
                return;
        comm->number = 0;
        if (!failed)
                return;
        comm->fails++;
        mfl_strcpy(comm->reason, sizeof comm->reason, reason);
}

void mfl_core_comm_broken(struct mfl_core *core, uint64_t number, uint64_t instance)
{
        struct core_comm *comm = find(core, number);
        if (comm && has(comm, instance))
                comm->number = 0;
}

void mfl_core_comm_cut(struct mfl_core *core, uint64_t instance)
{
        for (struct core_comm *comm = core->comms; comm; comm = comm->next)
                if (!comm->proven && has(comm, instance))
                        comm->number = 0;
}

void mfl_core_comm_change(struct mfl_core *core, const struct core_node *node, uint64_t instance)
{
        if (instance)
                remove_with(core, instance);
        for (struct core_comm *comm = core->comms; comm; comm = comm->next)
                if (comm->node == node)
                        comm->fails = 0;
}

const char *mfl_core_comm_reason(const struct mfl_core *core, uint64_t instance)
{
        for (const struct core_comm *comm = core->comms; comm; comm = comm->next)
                if (comm->fails >= CORE_NCCL_FAILS_MAX && has(comm, instance))
                        return comm->reason;
        return NULL;
}

void mfl_core_comm_free(struct mfl_core *core)
{
        while (core->comms) {
                struct core_comm *comm = core->comms;
                core->comms = comm->next;
                free(comm);
        }
}
