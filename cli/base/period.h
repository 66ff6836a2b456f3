/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of time in options: "90s", "30m", "12h", "7d". */
#ifndef MFL_CLI_BASE_PERIOD_H
#define MFL_CLI_BASE_PERIOD_H

#include "common/base/base.h"

/* At least a second, and at most max_days. False: anything else. */
bool mfl_period_parse(const char *text, uint32_t max_days, uint32_t *ret_seconds);

#endif
