/* SPDX-License-Identifier: Apache-2.0 */
/* What a job says of a strategy that is a plug-in (include/mfl/strategy.h): its name, and numbers for it. */
#ifndef MFL_COMMON_JOB_PLUGIN_H
#define MFL_COMMON_JOB_PLUGIN_H

#include "common/base/base.h"

#define MFL_PLUGIN_NAME_BYTES 64
#define MFL_PLUGIN_SETTING_BYTES 32
#define MFL_PLUGIN_SETTINGS_MAX 16

struct mfl_plugin_setting {
        char name[MFL_PLUGIN_SETTING_BYTES];
        double value; /* finite */
};

struct mfl_plugin_spec {
        char name[MFL_PLUGIN_NAME_BYTES]; /* "": the strategy is no plug-in */
        uint32_t n_settings;
        struct mfl_plugin_setting
                settings[MFL_PLUGIN_SETTINGS_MAX]; /* as in the job; the server knows what they mean */
        /* The server's, once it has found it (server/strategy/plugin.h); else NULL. */
        const struct mfl_strategy_ops *ops;
        double values[MFL_PLUGIN_SETTINGS_MAX]; /* by the plug-in's own table */
};

#endif
