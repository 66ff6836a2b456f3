/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl login`: codes with which browsers log in to the dashboard. The command's thread. */
#ifndef MFL_CLI_LOGIN_LOGIN_H
#define MFL_CLI_LOGIN_LOGIN_H

#include "cli/base/cli.h"

/* Returns the exit code of the program. */
int mfl_cmd_login(struct mfl_cli *cli);

#endif
