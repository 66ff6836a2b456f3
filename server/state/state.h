/* SPDX-License-Identifier: Apache-2.0 */
/* All that the core knows. Rooms above change it: server/work (tasks, uploads, groups, coming and going of
 * daemons), server/round (rounds, scheduler) and server/core (events in, actions out).
 *
 * If memory runs out, core->error remembers it, and mfl_core_step returns it. Until then every function
 * leaves the structures in a state that mfl_core_free can take.
 */
#ifndef MFL_SERVER_STATE_STATE_H
#define MFL_SERVER_STATE_STATE_H

#include "server/state/core_comm.h"
#include "server/state/core_cut.h"
#include "server/state/core_daemon.h"
#include "server/state/core_fit.h"
#include "server/state/core_job.h"
#include "server/state/core_lease.h"
#include "server/state/core_map.h"
#include "server/state/core_node.h"
#include "server/state/core_out.h"
#include "server/state/core_refused.h"
#include "server/state/core_site.h"
#include "server/state/core_task.h"
#include "server/state/core_update.h"
#include "server/state/event.h"

/* With more daemons than this, a job that lacks daemons doesn't look at each one to tell why. */
#define CORE_COUNT_MAX 256
#define MFL_CORE_TURN "waits for its turn"

struct core_rival;

struct mfl_core {
        struct mfl_core_options options;
        uint64_t now_ms;
        struct mfl_core_actions *out;
        int error;

        struct core_daemon **daemons;
        uint32_t n_daemons, daemons_capacity;
        struct core_refused *refused;
        uint32_t n_refused;
        struct core_map by_conn, by_key, tasks, nodes, hosts, sites;
        struct core_comm *comms;
        struct core_rival *rivals; /* processes that wait to learn whether they may have a daemon's name */
        uint64_t rival_serial;
        uint64_t deal;
        uint64_t changes; /* rises whenever a daemon comes or goes */

        struct core_job *jobs, **jobs_end;
        uint32_t job_serial;
        uint32_t task_serial; /* of tasks, groups and communicators; may wrap */
        uint64_t grant_serial;
        uint64_t stamp, turn, pass, lease_turn;
        uint64_t again_ms;            /* when the scheduler looks again; CORE_NEVER: when something changes */
        uint64_t arrival_ms;          /* when a daemon last came */
        bool dirty;                   /* some job is */
        bool sched_dirty;             /* the scheduler must run: daemons or wishes changed */
        uint64_t scan_ms;             /* no timer is due before */
        struct mfl_core_action scrap; /* written to when memory is out */
};

#endif
