/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of plug-ins, noted in a file. A plug-in's crash is the server's. So that one job can't keep the server from starting, each call is noted in
 * a file of the job's (its mark), which is removed afterwards: whoever finds the mark counts a crash. */
#ifndef MFL_SERVER_STRATEGY_MARK_H
#define MFL_SERVER_STRATEGY_MARK_H

#include "common/base/base.h"

#define MFL_PLUGIN_CRASHES_MAX 3u

/* Before and after a round is applied. begin: MFL_INVALID if the server has ended in this round so many times already. */
int mfl_plugin_mark(const char *path, uint32_t round, const char *name, struct mfl_error *err);
/* Another plug-in follows in the same round: of crashes from here on, it is the one that is blamed. */
void mfl_plugin_mark_next(const char *path, uint32_t round, const char *name);
void mfl_plugin_unmark(const char *path);

#endif
