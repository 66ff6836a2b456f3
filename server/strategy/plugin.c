/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies that are plug-ins, and jobs' settings for them.
 *
 *   - the objects of the directory are loaded (common/plugin/object.h);
 *   - a job's settings become an array in the order of the plug-in's table.
 *
 * Fails: an object that the loader refuses; a job whose plug-in is not there, or does not take its settings. */
#include "server/strategy/plugin.h"

#include <math.h>

#include "common/plugin/object.h"
#include "include/mfl/strategy.h"
#include "server/strategy/metric.h"

_Static_assert(MFL_PLUGIN_NUMBERS_MAX == MFL_PLUGIN_SETTINGS_MAX, "a job can set all");
_Static_assert(MFL_STRATEGY_STATE_MAX == MFL_STRATEGY_STATES_MAX, "each state is kept");

struct plugin {
        struct mfl_strategy_ops ops; /* first: a job's ops are those of its plug-in */
        const struct mfl_strategy_plugin *table;
        const struct mfl_plugin_object *object;
};

struct mfl_plugins {
        struct mfl_plugin_objects objects;
        struct plugin *v; /* as many */
};

static const struct plugin *plugin_of(const struct mfl_job *job)
{
        return MFL_CONTAINER_OF(job->aggregation.plugin.ops, struct plugin, ops);
}

static float state_initial(const struct mfl_job *job, int i)
{
        return plugin_of(job)->table->state_initial[i];
}

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        const struct mfl_strategy_call call = {.size = sizeof call,
                .round = round->number,
                .count = count,
                .settings = job->aggregation.plugin.values,
                .params_in = params_in,
                .delta = d,
                .state = state,
                .params_out = params_out};
        plugin_of(job)->table->apply(&call);
}

/* ---- loading ---- */

static const char *fault_of(const void *table)
{
        const struct mfl_strategy_plugin *t = table;
        if (!t->apply || t->n_state > MFL_STRATEGY_STATE_MAX)
                return "it has no function apply, or more than 2 vectors of state";
        for (uint32_t i = 0; i < t->n_state; i++)
                if (!mfl_plugin_is_word(t->state_name[i], 32, true) || !isfinite(t->state_initial[i]))
                        return "a state's name is not 1 to 31 lower-case letters, digits and '_', or its "
                               "value is not finite";
        return mfl_plugin_fault_of_numbers(t->settings, t->n_settings);
}

static const struct mfl_plugin_kind kind = {.symbol = "mfl_strategy_plugin",
        .header = "mfl/strategy.h",
        .abi = MFL_STRATEGY_ABI,
        .fault = fault_of};

static void make_ops(struct plugin *plugin, const struct mfl_plugin_object *object)
{
        const struct mfl_strategy_plugin *table = (const void *)object->table;
        plugin->table = table;
        plugin->object = object;
        plugin->ops = (struct mfl_strategy_ops){.kind = MFL_STRATEGY_PLUGIN,
                .name = table->name,
                .n_state = (int)table->n_state,
                .state_initial = state_initial,
                .apply = apply};
        for (uint32_t i = 0; i < table->n_state; i++)
                plugin->ops.state_name[i] = table->state_name[i];
}

int mfl_plugins_open(const char *dir, struct mfl_plugins **ret_plugins, struct mfl_error *err)
{
        const struct mfl_plugin_kind *const kinds[] = {&kind, &mfl_metric_kind};
        struct mfl_plugins *plugins = mfl_calloc(1, sizeof *plugins);
        if (!plugins)
                return mfl_fail_memory(err, sizeof *plugins, "plug-ins");
        int r = mfl_plugin_objects_open(dir, "server", kinds, MFL_ARRAY_SIZE(kinds), &plugins->objects, err);
        uint32_t n = plugins->objects.n;
        if (!r && n && !(plugins->v = mfl_calloc(n, sizeof *plugins->v)))
                r = mfl_fail_memory(err, n * sizeof *plugins->v, "plug-ins");
        for (uint32_t i = 0; i < n && !r; i++)
                if (plugins->objects.v[i].kind == &kind)
                        make_ops(&plugins->v[i], &plugins->objects.v[i]);
        if (r)
                mfl_plugins_close(plugins);
        else
                *ret_plugins = plugins;
        return r;
}

void mfl_plugins_close(struct mfl_plugins *plugins)
{
        if (!plugins)
                return;
        mfl_plugin_objects_close(&plugins->objects);
        free(plugins->v);
        free(plugins);
}

/* ---- jobs ---- */

int mfl_plugins_resolve(const struct mfl_plugins *plugins, struct mfl_job *spec, struct mfl_error *err)
{
        struct mfl_plugin_spec *wanted = &spec->aggregation.plugin;
        char names[512];
        int r = mfl_metrics_resolve(&plugins->objects, spec, err);
        if (r || spec->aggregation.strategy != MFL_STRATEGY_PLUGIN)
                return r;
        const struct mfl_plugin_object *object =
                mfl_plugin_object_find(&plugins->objects, &kind, wanted->name);
        if (!object)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "aggregation.plugin: this server has no plug-in %s; it has %s (`plugins` in "
                        "server.yaml)",
                        wanted->name, mfl_plugin_object_names(&plugins->objects, &kind, names, sizeof names));
        const struct plugin *plugin = &plugins->v[object - plugins->objects.v];
        for (uint32_t i = 0; i < plugin->table->n_settings; i++)
                wanted->values[i] = plugin->table->settings[i].standard;
        for (uint32_t i = 0; i < wanted->settings.n; i++) {
                r = mfl_plugin_set_number(plugin->table->settings, plugin->table->n_settings,
                        plugin->table->name, "aggregation.plugin.settings", wanted->settings.v[i].name,
                        wanted->settings.v[i].value, wanted->values, err);
                if (r)
                        return r;
        }
        wanted->ops = &plugin->ops;
        return 0;
}

void mfl_plugins_describe(const struct mfl_job *spec, char *text, size_t bytes)
{
        const struct plugin *plugin = plugin_of(spec);
        mfl_snprintf(text, bytes, "plug-in %s %.40s, sha256 %s", plugin->table->name, plugin->table->version,
                plugin->object->digest);
}
