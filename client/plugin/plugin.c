/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's plug-ins: loaded, found by name, described. */
#include "client/plugin/internal.h"

_Static_assert(MFL_PLUGIN_SETTINGS_MAX == MFL_PLUGIN_NUMBERS_MAX, "a configuration can set all");

#define DESCRIPTION_BYTES 1200 /* the longest name, version and numbers take less */

struct mfl_client_plugins {
        struct mfl_plugin_objects objects;
        char text[MFL_PLUGINS_TEXT_BYTES];
};

int mfl_client_plugins_open(const char *dir, struct mfl_client_plugins **ret_plugins, struct mfl_error *err)
{
        const struct mfl_plugin_kind *const kinds[] = {&mfl_filter_kind, &mfl_format_kind};
        struct mfl_client_plugins *plugins = mfl_calloc(1, sizeof(*plugins));
        if (!plugins)
                return mfl_fail_memory(err, sizeof(*plugins), "plug-ins");
        int r = mfl_plugin_objects_open(dir, "daemon", kinds, MFL_ARRAY_SIZE(kinds), &plugins->objects, err);
        if (r)
                mfl_client_plugins_close(plugins);
        else
                *ret_plugins = plugins;
        return r;
}

void mfl_client_plugins_close(struct mfl_client_plugins *plugins)
{
        if (!plugins)
                return;
        mfl_plugin_objects_close(&plugins->objects);
        free(plugins);
}

const char *mfl_client_plugins_text(const struct mfl_client_plugins *plugins)
{
        return plugins->text;
}

/* A format that reads several sets alike is said once. */
static int describe(struct mfl_client_plugins *plugins, const struct mfl_plugin_object *object,
        const double *values, char **ret_said, struct mfl_error *err)
{
        const struct mfl_client_plugin_table *table = (const void *)object->table;
        char text[DESCRIPTION_BYTES];
        bool filter = object->kind == &mfl_filter_kind;
        size_t n = (size_t)mfl_snprintf(
                text, sizeof(text), "%s %s %s", filter ? "filter" : "format", table->name, table->version);
        for (uint32_t i = 0; i < table->n_settings; i++)
                n += (size_t)mfl_snprintf(text + n, sizeof(text) - n, "%s%s %g", i ? ", " : " (",
                        table->settings[i].name, values[i]);
        n += (size_t)mfl_snprintf(
                text + n, sizeof(text) - n, "%s, sha256 %s", table->n_settings ? ")" : "", object->digest);
        mfl_assert(n < sizeof(text));
        if (ret_said)
                return (*ret_said = mfl_strdup(text)) ? 0
                                                      : mfl_fail_memory(err, n, "a plug-in's description");
        size_t at = strlen(plugins->text);
        if (!filter && strstr(plugins->text, text))
                return 0;
        if (at + n + 2 >= sizeof(plugins->text))
                return mfl_fail(err, MFL_INVALID,
                        "plug-ins: what jobs' logs have to say of those that are used takes more than %d "
                        "bytes: use fewer",
                        MFL_PLUGINS_TEXT_BYTES - 1);
        mfl_snprintf(plugins->text + at, sizeof(plugins->text) - at, "%s%s", at ? "; " : "", text);
        return 0;
}

int mfl_client_plugin_find(struct mfl_client_plugins *plugins, const struct mfl_plugin_kind *kind,
        const char *key, const char *name, const struct mfl_plugin_numbers *numbers,
        const struct mfl_plugin_object **ret_object, double *ret_values, char **ret_said,
        struct mfl_error *err)
{
        const struct mfl_plugin_object *object = mfl_plugin_object_find(&plugins->objects, kind, name);
        char names[512], settings[64];
        if (!object)
                return mfl_fail(err, MFL_INVALID,
                        "%s: there is no %s %s in the directory of `plugins`; it has %s", key,
                        kind == &mfl_filter_kind ? "filter" : "format", name,
                        mfl_plugin_object_names(&plugins->objects, kind, names, sizeof(names)));
        const struct mfl_client_plugin_table *table = (const void *)object->table;
        mfl_snprintf(settings, sizeof(settings), "%s.settings", key);
        for (uint32_t i = 0; i < table->n_settings; i++)
                ret_values[i] = table->settings[i].standard;
        for (uint32_t i = 0; i < numbers->n; i++) {
                int r = mfl_plugin_set_number(table->settings, table->n_settings, name, settings,
                        numbers->v[i].name, numbers->v[i].value, ret_values, err);
                if (r)
                        return r;
        }
        *ret_object = object;
        return describe(plugins, object, ret_values, ret_said, err);
}
