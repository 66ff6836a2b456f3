/* SPDX-License-Identifier: Apache-2.0 */
/* aggregation.plugin: which plug-in, and its numbers. Whether there is one, and what it takes, only a server knows. */
#include "common/job/job_keys.h"

static bool is_name(const char *text, size_t bytes, bool setting)
{
        size_t n = strspn(text,
                setting ? "abcdefghijklmnopqrstuvwxyz0123456789_" : "abcdefghijklmnopqrstuvwxyz0123456789-");
        return n && n < bytes && !text[n];
}

static int read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SCALAR || !is_name(node->text, MFL_PLUGIN_NAME_BYTES, false))
                return mfl_yaml_fail(doc, node, err,
                        "must be the name of a plug-in: 1 to 63 lower-case letters, digits and '-'");
        mfl_strcpy(value, MFL_PLUGIN_NAME_BYTES, node->text);
        return 0;
}

static int read_settings(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = -1e300, .max = 1e300};
        struct mfl_plugin_spec *spec = value;
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err, "takes names with numbers, such as {beta: 0.9}");
        if (node->n_children > MFL_PLUGIN_SETTINGS_MAX)
                return mfl_yaml_fail(doc, node, err, "has %u numbers, and a plug-in takes %u at most",
                        (unsigned)node->n_children, MFL_PLUGIN_SETTINGS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_plugin_setting *setting = &spec->settings[spec->n_settings];
                if (!is_name(n->key, MFL_PLUGIN_SETTING_BYTES, true))
                        return mfl_yaml_fail(
                                doc, n, err, "must be 1 to 31 lower-case letters, digits and '_'");
                int r = mfl_yaml_read_value(doc, n, &field, &setting->value, err);
                if (r)
                        return r;
                mfl_strcpy(setting->name, sizeof setting->name, n->key);
                spec->n_settings++;
        }
        return 0;
}

#define AT(member, read_)                                                                                    \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, aggregation.plugin member), .read = read_
const struct mfl_yaml_field mfl_job_plugin_fields[] = {
        {.key = "name", AT(.name, read_name), .required = true}, {.key = "settings", AT(, read_settings)},
        {0}};

int mfl_job_check_plugin(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(mfl_yaml_root(doc), "aggregation");
        const struct mfl_yaml_node *plugin = mfl_job_find_key(aggregation, "plugin");
        bool wants = job->aggregation.strategy == MFL_STRATEGY_PLUGIN;
        if (wants && !plugin)
                return mfl_yaml_fail(doc, aggregation, err,
                        "strategy: plugin needs plugin: {name: NAME}, one of those that the server has "
                        "(docs/plugins.md)");
        if (!wants && plugin)
                return mfl_yaml_fail(doc, plugin, err, "goes with strategy: plugin, and the strategy is %s",
                        mfl_strategy_name(job->aggregation.strategy));
        return 0;
}
