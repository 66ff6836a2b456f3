/* SPDX-License-Identifier: Apache-2.0 */
/* Why a running job makes no progress, for people. It decides nothing. */
#ifndef MFL_SERVER_CORE_CORE_WAIT_H
#define MFL_SERVER_CORE_CORE_WAIT_H

#include "server/core/core.h"
#include "server/state/state.h"

/* Empty text: the job makes progress. */
void mfl_core_wait_reason(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES]);

#endif
