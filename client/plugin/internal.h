/* SPDX-License-Identifier: Apache-2.0 */
/* What the kinds of a daemon's plug-ins share. Private to this room. */
#ifndef MFL_CLIENT_PLUGIN_INTERNAL_H
#define MFL_CLIENT_PLUGIN_INTERNAL_H

#include "client/plugin/plugin.h"
#include "common/plugin/object.h"
#include "include/mfl/filter.h"
#include "include/mfl/format.h"

extern const struct mfl_plugin_kind mfl_filter_kind, mfl_format_kind; /* kinds.c */

/* Both kinds' tables begin so. */
struct mfl_client_plugin_table {
        uint32_t abi;
        const char *name, *version;
        uint32_t n_settings;
        const struct mfl_plugin_number *settings;
};
_Static_assert(
        offsetof(struct mfl_filter_plugin, settings) == offsetof(struct mfl_client_plugin_table, settings) &&
                offsetof(struct mfl_format_plugin, settings) ==
                        offsetof(struct mfl_client_plugin_table, settings),
        "they begin alike");

/* The plug-in of that name, with the numbers of a configuration. What jobs' logs say of it becomes part of the daemon's text, or, with ret_said,
 * a text of its own, to be freed. key: for messages. */
int mfl_client_plugin_find(struct mfl_client_plugins *plugins, const struct mfl_plugin_kind *kind,
        const char *key, const char *name, const struct mfl_plugin_numbers *numbers,
        const struct mfl_plugin_object **ret_object, double *ret_values, char **ret_said,
        struct mfl_error *err);

#endif
