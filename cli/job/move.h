/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl move`. */
#ifndef MFL_CLI_JOB_MOVE_H
#define MFL_CLI_JOB_MOVE_H

#include "cli/base/cli.h"

/* Returns the exit code of the program. */
int mfl_move(struct mfl_cli *cli);

#endif
