/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons report about the evaluation of a round. */
#ifndef MFL_SERVER_ROUND_ROUND_EVAL_H
#define MFL_SERVER_ROUND_ROUND_EVAL_H

#include "server/state/state.h"

void mfl_round_eval_result(
        struct mfl_core *core, struct core_daemon *daemon, struct core_task *task, const struct mfl_msg *msg);

#endif
