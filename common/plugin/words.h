/* SPDX-License-Identifier: Apache-2.0 */
/* What files say of a plug-in: its name, and numbers for it by their names. Pure; any thread. */
#ifndef MFL_COMMON_PLUGIN_WORDS_H
#define MFL_COMMON_PLUGIN_WORDS_H

#include "common/settings/yaml.h"

#define MFL_PLUGIN_NAME_BYTES 64
#define MFL_PLUGIN_SETTING_BYTES 32
#define MFL_PLUGIN_SETTINGS_MAX 16

struct mfl_plugin_setting {
        char name[MFL_PLUGIN_SETTING_BYTES];
        double value; /* finite */
};

struct mfl_plugin_numbers {
        uint32_t n;
        struct mfl_plugin_setting v[MFL_PLUGIN_SETTINGS_MAX];
};

/* 1 to bytes - 1 lower-case letters, digits, and '-' or '_'. NULL is none. */
bool mfl_plugin_is_word(const char *text, size_t bytes, bool underscores);
/* Read by mfl_yaml_read (MFL_YAML_CALL): value is a char[MFL_PLUGIN_NAME_BYTES], or a struct mfl_plugin_numbers. */
int mfl_plugin_read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_plugin_read_numbers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

#endif
