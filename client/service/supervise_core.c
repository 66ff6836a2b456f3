/* SPDX-License-Identifier: Apache-2.0 */
/* Whether and when to restart a child: pure. */
#include "client/service/supervise_core.h"

#include "common/base/states.h"

#include <signal.h>

#define STATUS_USAGE 2
#define STATUS_CONFIG 78

static const struct mfl_states child_states = {
        .thing = "child process",
        .n = MFL_CHILD_STATES_,
        .v = {[MFL_CHILD_WAITING] = {"WAITING", MFL_TO(MFL_CHILD_RUNNING) | MFL_TO(MFL_CHILD_ENDED)},
                [MFL_CHILD_RUNNING] = {"RUNNING", MFL_TO(MFL_CHILD_WAITING) | MFL_TO(MFL_CHILD_ENDED)},
                [MFL_CHILD_ENDED] = {"ENDED", 0}},
};

static void enter(struct mfl_child *child, enum mfl_child_state state)
{
        child->state = mfl_states_move(&child_states, child->state, state);
}

void mfl_child_started(struct mfl_child *child, uint64_t now_ms)
{
        enter(child, MFL_CHILD_RUNNING);
        child->started_ms = now_ms;
}

static bool final(int status)
{
        return status == 0 || status == STATUS_USAGE || status == STATUS_CONFIG;
}

void mfl_child_exited(struct mfl_child *child, int status, int signal, bool stopping, uint64_t now_ms)
{
        mfl_assert(child->state == MFL_CHILD_RUNNING);
        child->status = signal ? 128 + signal : status;
        /* A child that has not installed its handlers yet dies of the signal that asks it to end. */
        if (stopping && (signal == SIGTERM || signal == SIGINT))
                child->status = 0;
        if (stopping || final(child->status)) {
                enter(child, MFL_CHILD_ENDED);
                return;
        }
        bool healthy = now_ms - child->started_ms >= MFL_CHILD_HEALTHY_MS;
        if (healthy || !child->backoff_ms)
                child->backoff_ms = MFL_CHILD_BACKOFF_MIN_MS;
        else
                child->backoff_ms = MFL_MIN(2 * child->backoff_ms, MFL_CHILD_BACKOFF_MAX_MS);
        enter(child, MFL_CHILD_WAITING);
        child->due_ms = now_ms + child->backoff_ms;
        child->n_restarts++;
}

void mfl_child_stop(struct mfl_child *child)
{
        if (child->state == MFL_CHILD_WAITING)
                enter(child, MFL_CHILD_ENDED);
}

int mfl_children_status(const struct mfl_child *const *children, uint32_t n)
{
        int common = 0;
        for (uint32_t i = 0; i < n; i++) {
                int status = children[i]->status;
                if (status && common && status != common)
                        return 1;
                common = status ? status : common;
        }
        /* A signal is not one of our exit statuses. */
        return common >= 128 ? 1 : common;
}
