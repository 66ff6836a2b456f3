/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of a job's teams (server/work/core_team.h), since the server's start. */
#ifndef MFL_SERVER_STATE_TEAM_TOTALS_H
#define MFL_SERVER_STATE_TEAM_TOTALS_H

#include "proto/message.h"

struct mfl_team_totals {
        uint32_t formed, broken, taken; /* as in JobTeams */
        struct mfl_task_times times;
};

#endif
