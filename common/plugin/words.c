/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers of plug-ins in files. Whether there is such a plug-in, and what it takes, is known where it is loaded. */
#include "common/plugin/words.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyz0123456789"

bool mfl_plugin_is_word(const char *text, size_t bytes, bool underscores)
{
        size_t n = text ? strspn(text, underscores ? LETTERS "_" : LETTERS "-") : 0;
        return n && n < bytes && !text[n];
}

int mfl_plugin_read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SCALAR || !mfl_plugin_is_word(node->text, MFL_PLUGIN_NAME_BYTES, false))
                return mfl_yaml_fail(doc, node, err,
                        "must be the name of a plug-in: 1 to 63 lower-case letters, digits and '-'");
        mfl_strcpy(value, MFL_PLUGIN_NAME_BYTES, node->text);
        return 0;
}

int mfl_plugin_read_numbers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = -1e300, .max = 1e300};
        struct mfl_plugin_numbers *numbers = value;
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err, "takes names with numbers, such as {beta: 0.9}");
        if (node->n_children > MFL_PLUGIN_SETTINGS_MAX)
                return mfl_yaml_fail(doc, node, err, "has %u numbers, and a plug-in takes %u at most",
                        (unsigned)node->n_children, MFL_PLUGIN_SETTINGS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_plugin_setting *setting = &numbers->v[numbers->n];
                if (!mfl_plugin_is_word(n->key, MFL_PLUGIN_SETTING_BYTES, true))
                        return mfl_yaml_fail(
                                doc, n, err, "must be 1 to 31 lower-case letters, digits and '_'");
                int r = mfl_yaml_read_value(doc, n, &field, &setting->value, err);
                if (r)
                        return r;
                mfl_strcpy(setting->name, sizeof setting->name, n->key);
                numbers->n++;
        }
        return 0;
}
