/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon's site says of a job, by its own policy. */
#ifndef MFL_SERVER_CORE_CORE_SAY_H
#define MFL_SERVER_CORE_CORE_SAY_H

#include "server/state/state.h"

/* A TaskFailed with `site`. */
void mfl_core_site_said(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);

#endif
