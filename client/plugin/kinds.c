/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of a daemon's plug-ins, and what is wrong with their tables. */
#include "client/plugin/internal.h"

static const char *fault_of_filter(const void *table)
{
        const struct mfl_filter_plugin *t = table;
        return t->apply ? mfl_plugin_fault_of_numbers(t->settings, t->n_settings)
                        : "it has no function apply";
}

const struct mfl_plugin_kind mfl_filter_kind = {.symbol = "mfl_filter_plugin",
        .header = "mfl/filter.h",
        .abi = MFL_FILTER_ABI,
        .fault = fault_of_filter};

static const char *fault_of_format(const void *table)
{
        const struct mfl_format_plugin *t = table;
        return t->open && t->read && t->close ? mfl_plugin_fault_of_numbers(t->settings, t->n_settings)
                                              : "it lacks one of the functions open, read and close";
}

const struct mfl_plugin_kind mfl_format_kind = {.symbol = "mfl_format_plugin",
        .header = "mfl/format.h",
        .abi = MFL_FORMAT_ABI,
        .fault = fault_of_format};
