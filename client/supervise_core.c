/* SPDX-License-Identifier: Apache-2.0 */
/* Restart or not, and when: pure. */
#include "client/supervise_core.h"

#include <signal.h>

#define STATUS_USAGE 2
#define STATUS_CONFIG 78

void mfl_child_started(struct mfl_child *child, uint64_t now_ms)
{
        mfl_assert(child->state == MFL_CHILD_WAITING);
        child->state = MFL_CHILD_RUNNING;
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
        /* One that has not come to its handlers yet dies of the signal that asks it to end. */
        if (stopping && (signal == SIGTERM || signal == SIGINT))
                child->status = 0;
        if (stopping || final(child->status)) {
                child->state = MFL_CHILD_ENDED;
                return;
        }
        bool healthy = now_ms - child->started_ms >= MFL_CHILD_HEALTHY_MS;
        if (healthy || !child->backoff_ms)
                child->backoff_ms = MFL_CHILD_BACKOFF_MIN_MS;
        else
                child->backoff_ms = MFL_MIN(2 * child->backoff_ms, MFL_CHILD_BACKOFF_MAX_MS);
        child->state = MFL_CHILD_WAITING;
        child->due_ms = now_ms + child->backoff_ms;
        child->n_restarts++;
}

void mfl_child_stop(struct mfl_child *child)
{
        if (child->state == MFL_CHILD_WAITING)
                child->state = MFL_CHILD_ENDED;
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
        /* A signal is no status of our own. */
        return common >= 128 ? 1 : common;
}
