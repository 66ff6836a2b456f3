/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies that an administrator adds: shared objects in one directory (include/mfl/strategy.h is their interface).
 *
 * They are loaded once, when the server starts, and stay. A file that others than root and the server's user may write, that has
 * another ABI, or whose table is wrong, ends the start with its name: a server that ran without a plug-in would let its jobs wait.
 */
#ifndef MFL_SERVER_STRATEGY_PLUGIN_H
#define MFL_SERVER_STRATEGY_PLUGIN_H

#include "server/strategy/strategy.h"

struct mfl_plugins;

/* The objects *.so of the directory, by name; "": none. MFL_INVALID with text. Once, before any thread. */
int mfl_plugins_open(const char *dir, struct mfl_plugins **ret_plugins, struct mfl_error *err);
void mfl_plugins_close(struct mfl_plugins *plugins); /* NULL is fine */
/* Sets spec->aggregation.plugin.ops and values, if the job's strategy is a plug-in, and what its metrics need (metric.h). MFL_NOT_FOUND: one
 * is not loaded, and the text has the names of those that are. MFL_INVALID: its settings are wrong. */
int mfl_plugins_resolve(const struct mfl_plugins *plugins, struct mfl_job *spec, struct mfl_error *err);
/* "sign-momentum 1.0, sha256 0123...", of a resolved job. */
void mfl_plugins_describe(const struct mfl_job *spec, char *text, size_t bytes);

#endif
