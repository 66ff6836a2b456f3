/* SPDX-License-Identifier: Apache-2.0 */
/* `filters` and `plugin_data` of client.yaml. Whether there are such plug-ins, and which numbers they take, is known when they are loaded. */
#include "client/plugin/plugin.h"

#define CALL(type_, member_, read_)                                                                          \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct type_, member_), .read = read_
static const char *const when_names[] = {"always", "asked", NULL};
static const struct mfl_yaml_field filter_fields[] = {
        {.key = "name", CALL(mfl_filter_config, name, mfl_plugin_read_name), .required = true},
        {.key = "settings", CALL(mfl_filter_config, numbers, mfl_plugin_read_numbers)},
        {.key = "when", MFL_YAML_AT(ENUM, struct mfl_filter_config, when), .names = when_names}, {0}};
static const struct mfl_yaml_field data_fields[] = {
        {.key = "name", MFL_YAML_AT(STRING, struct mfl_plugin_data_config, name), .required = true},
        {.key = "format", CALL(mfl_plugin_data_config, format, mfl_plugin_read_name), .required = true},
        {.key = "path", MFL_YAML_AT(STRING, struct mfl_plugin_data_config, path), .required = true},
        {.key = "settings", CALL(mfl_plugin_data_config, numbers, mfl_plugin_read_numbers)}, {0}};

/* A job asks for a name, so that one must be enough. */
static int check_asked(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_filters_config *filters, struct mfl_error *err)
{
        const struct mfl_filter_config *last = &filters->v[filters->n - 1];
        if (last->when == MFL_FILTER_ASKED && strlen(last->name) >= MFL_FILTER_NAME_BYTES)
                return mfl_yaml_fail(doc, node, err,
                        "a filter with when: asked has a name of at most %d letters",
                        MFL_FILTER_NAME_BYTES - 1);
        for (uint32_t i = 0; i + 1 < filters->n; i++)
                if (!strcmp(filters->v[i].name, last->name) &&
                        (last->when == MFL_FILTER_ASKED || filters->v[i].when == MFL_FILTER_ASKED))
                        return mfl_yaml_fail(
                                doc, node, err, "%s appears twice, and once with when: asked", last->name);
        return 0;
}

int mfl_filters_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_filters_config *filters = value;
        int r = 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children > MFL_FILTERS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of at most %d {name, settings, when}",
                        MFL_FILTERS_MAX);
        *filters = (struct mfl_filters_config){0};
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next) {
                r = mfl_yaml_read(doc, n, filter_fields, &filters->v[filters->n++], err);
                r = r ? r : check_asked(doc, n, filters, err);
        }
        return r;
}

static int read_data(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_plugin_data_configs *sets, struct mfl_error *err)
{
        struct mfl_plugin_data_config *config = &sets->v[sets->n];
        int r = mfl_yaml_read(doc, node, data_fields, config, err);
        if (r)
                return r;
        size_t n = strspn(config->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
        if (!n || config->name[n])
                return mfl_yaml_fail(
                        doc, mfl_yaml_find(node, "name"), err, "expected letters, digits, '.', '_' and '-'");
        for (uint32_t i = 0; i < sets->n; i++)
                if (!strcmp(sets->v[i].name, config->name))
                        return mfl_yaml_fail(doc, mfl_yaml_find(node, "name"), err, "appears twice");
        sets->n++;
        return 0;
}

int mfl_plugin_data_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_plugin_data_configs *sets = value;
        int r = 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children > MFL_PLUGIN_DATA_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of at most %d {name, format, path, settings}", MFL_PLUGIN_DATA_MAX);
        *sets = (struct mfl_plugin_data_configs){0};
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = read_data(doc, n, sets, err);
        return r;
}
