/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: a daemon works for one job at a time, for one phase. */
#ifndef MFL_SERVER_STATE_CORE_LEASE_H
#define MFL_SERVER_STATE_CORE_LEASE_H

#include "common/base/base.h"

struct core_daemon;
struct core_job;
struct mfl_core;

void mfl_core_lease(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job);
void mfl_core_unlease(struct mfl_core *core, struct core_daemon *daemon); /* if it has a job */
/* Ends the lease of a daemon that may get no more work and has no task left. */
void mfl_core_daemon_idle(struct mfl_core *core, struct core_daemon *daemon);

#endif
