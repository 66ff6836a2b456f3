/* SPDX-License-Identifier: Apache-2.0 */
/* `filters` of client.yaml. Whether there are such plug-ins, and which numbers they take, is known when they are loaded. */
#include "client/plugin/plugin.h"
#include "common/plugin/object.h"

static int read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SCALAR || !mfl_plugin_is_word(node->text, MFL_PLUGIN_NAME_BYTES, false))
                return mfl_yaml_fail(
                        doc, node, err, "must be the name of a plug-in: 1 to 63 lower-case letters, digits and '-'");
        mfl_strcpy(value, MFL_PLUGIN_NAME_BYTES, node->text);
        return 0;
}

static int read_settings(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = -1e300, .max = 1e300};
        struct mfl_filter_config *config = value;
        if (node->type != MFL_YAML_MAPPING || node->n_children > MFL_FILTER_NUMBERS_MAX)
                return mfl_yaml_fail(doc, node, err, "takes names with numbers, such as {norm: 0.5}, and %d at most",
                        MFL_FILTER_NUMBERS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_plugin_setting *setting = &config->settings[config->n_settings];
                if (!mfl_plugin_is_word(n->key, MFL_PLUGIN_SETTING_BYTES, true))
                        return mfl_yaml_fail(doc, n, err, "must be 1 to 31 lower-case letters, digits and '_'");
                int r = mfl_yaml_read_value(doc, n, &field, &setting->value, err);
                if (r)
                        return r;
                mfl_strcpy(setting->name, sizeof(setting->name), n->key);
                config->n_settings++;
        }
        return 0;
}

static const struct mfl_yaml_field fields[] = {
        {.key = "name", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_filter_config, name), .read = read_name, .required = true},
        {.key = "settings", .kind = MFL_YAML_CALL, .read = read_settings}, {0}};

int mfl_filters_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_filters_config *filters = value;
        int r = 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children > MFL_FILTERS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of at most %d {name, settings}", MFL_FILTERS_MAX);
        *filters = (struct mfl_filters_config){0};
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = mfl_yaml_read(doc, n, fields, &filters->v[filters->n++], err);
        return r;
}
