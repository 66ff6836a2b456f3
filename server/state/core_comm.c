/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers and states of NCCL's communicators. */
#include "server/state/state.h"

#include "common/base/states.h"

#define FAILS_MAX 2 /* in a row; then the members add by shm */

#define TO(state) MFL_TO(COMM_##state)
static const struct mfl_states states = {.thing = "communicator",
        .n = COMM_STATES_,
        .v = {
                [COMM_NONE] = {"NONE", TO(NEW)},
                [COMM_NEW] = {"NEW", TO(PASSED) | TO(NONE)},
                [COMM_PASSED] = {"PASSED", TO(PROVEN) | TO(NONE)},
                [COMM_PROVEN] = {"PROVEN", TO(PROVEN) | TO(NONE)},
        }};
#undef TO

static void move(struct core_comm *comm, enum comm_state to)
{
        comm->state = mfl_states_move(&states, comm->state, to);
}

/* The next group of these members needs a new number. */
static void forget(struct core_comm *comm)
{
        move(comm, COMM_NONE);
        comm->number = 0;
}

static bool has(const struct core_comm *comm, uint64_t instance)
{
        for (uint32_t i = 0; i < comm->n; i++)
                if (comm->instances[i] == instance)
                        return true;
        return false;
}

static bool is_of(const struct core_comm *comm, const uint64_t *instances, uint32_t n)
{
        return comm->n == n && memcmp(comm->instances, instances, n * sizeof *instances) == 0;
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
        struct mfl_core *core, const struct core_node *node, const uint64_t *instances, uint32_t n)
{
        struct core_comm *comm = mfl_calloc(1, sizeof *comm + n * sizeof *comm->instances);
        if (!comm) {
                core->error = -ENOMEM;
                return NULL;
        }
        comm->node = node;
        comm->n = n;
        memcpy(comm->instances, instances, n * sizeof *instances);
        for (uint32_t i = 0; i < n; i++)
                remove_with(core, instances[i]);
        comm->next = core->comms;
        core->comms = comm;
        return comm;
}

uint64_t mfl_core_comm_number(
        struct mfl_core *core, const struct core_node *node, const uint64_t *instances, uint32_t n)
{
        struct core_comm *comm = core->comms;
        while (comm && !is_of(comm, instances, n))
                comm = comm->next;
        if (!comm)
                comm = add(core, node, instances, n);
        if (!comm || comm->fails >= FAILS_MAX)
                return 0;
        if (comm->state == COMM_NONE) {
                comm->number = mfl_core_number(core);
                move(comm, COMM_NEW);
        }
        return comm->number;
}

void mfl_core_comm_passed(struct mfl_core *core, uint64_t number)
{
        struct core_comm *comm = find(core, number);
        if (comm)
                move(comm, COMM_PASSED);
}

bool mfl_core_comm_is_passed(const struct mfl_core *core, uint64_t number)
{
        const struct core_comm *comm = find(core, number);
        return comm && comm->state >= COMM_PASSED;
}

void mfl_core_comm_proven(struct mfl_core *core, uint64_t number)
{
        struct core_comm *comm = find(core, number);
        if (!comm)
                return;
        move(comm, COMM_PROVEN);
        comm->fails = 0;
}

void mfl_core_comm_lost(struct mfl_core *core, uint64_t number, bool failed, const char *reason)
{
        struct core_comm *comm = find(core, number);
        if (!comm)
                return;
        forget(comm);
        if (!failed)
                return;
        comm->fails++;
        mfl_strcpy(comm->reason, sizeof comm->reason, reason);
}

void mfl_core_comm_broken(struct mfl_core *core, uint64_t number, uint64_t instance)
{
        struct core_comm *comm = find(core, number);
        if (comm && has(comm, instance))
                forget(comm);
}

void mfl_core_comm_cut(struct mfl_core *core, uint64_t instance)
{
        for (struct core_comm *comm = core->comms; comm; comm = comm->next)
                if ((comm->state == COMM_NEW || comm->state == COMM_PASSED) && has(comm, instance))
                        forget(comm);
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
                if (comm->fails >= FAILS_MAX && has(comm, instance))
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
