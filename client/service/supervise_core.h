/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about a child process that has ended: pure decisions of `mfl-client --all-gpus`.
 *
 *              started                   exited: by a signal, or a status that is not final
 *   WAITING ------------> RUNNING ----------------------------------------------> WAITING (until due_ms)
 *      |                     |  exited: 0, 2 or 78, or while stopping
 *      +-- stop --> ENDED <--+
 *
 * Statuses 2 and 78 (wrong arguments, wrong configuration or no such device) would come again at every start;
 * the service's unit does not restart after them either. The delay starts at 1 s and doubles up to 60 s;
 * after a run of a minute, the next failure counts as the first. */
#ifndef MFL_CLIENT_SERVICE_SUPERVISE_CORE_H
#define MFL_CLIENT_SERVICE_SUPERVISE_CORE_H

#include "common/base/base.h"

#define MFL_CHILD_BACKOFF_MIN_MS 1000u
#define MFL_CHILD_BACKOFF_MAX_MS 60000u
#define MFL_CHILD_HEALTHY_MS 60000u

enum mfl_child_state {
        MFL_CHILD_WAITING, /* start it at due_ms; a zeroed child is started at once */
        MFL_CHILD_RUNNING,
        MFL_CHILD_ENDED,
        MFL_CHILD_STATES_,
};

struct mfl_child {
        enum mfl_child_state state;
        uint64_t started_ms, due_ms;
        uint32_t backoff_ms; /* of the last failure; 0: none */
        uint32_t n_restarts;
        int status; /* of the last run: its exit status, or 128 + the signal's number */
};

void mfl_child_started(struct mfl_child *child, uint64_t now_ms);
/* signal 0: it exited with status. `stopping`: it was told to end, so SIGTERM and SIGINT are expected. */
void mfl_child_exited(struct mfl_child *child, int status, int signal, bool stopping, uint64_t now_ms);
/* A stop while it waits: it will not be restarted. */
void mfl_child_stop(struct mfl_child *child);
/* Of all children, when every one has ended: 0 if all ended well; their status if they have the same;
 * otherwise 1. */
int mfl_children_status(const struct mfl_child *const *children, uint32_t n);

#endif
