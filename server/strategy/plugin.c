/* SPDX-License-Identifier: Apache-2.0 */
/* Loading plug-ins, and jobs' settings for them.
 *
 *   - each *.so of the directory is opened, asked for its table, and the table is checked; its SHA-256 is kept for jobs' logs;
 *   - a job's settings become an array in the order of the plug-in's table;
 *   - a mark beside a job's files counts the rounds in which the server ended.
 *
 * Fails: the directory or an object can't be read; it is not the administrator's alone; the wrong ABI; a wrong table; a name twice. */
#include "server/strategy/plugin.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "include/mfl/strategy.h"

#define OBJECT_BYTES_MAX ((size_t)256 << 20)

_Static_assert(MFL_STRATEGY_SETTINGS_MAX == MFL_PLUGIN_SETTINGS_MAX, "a job can set all");
_Static_assert(MFL_STRATEGY_STATE_MAX == MFL_STRATEGY_STATES_MAX, "each state is kept");

struct plugin {
        struct mfl_strategy_ops ops; /* first: a job's ops are those of its plug-in */
        const struct mfl_strategy_plugin *table;
        void *object;
        char digest[MFL_SHA256_HEX_BYTES];
};

struct mfl_plugins {
        uint32_t n;
        struct plugin **v;
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

static bool is_word(const char *text, size_t max, const char *characters)
{
        size_t n = text ? strspn(text, characters) : 0;
        return n && n <= max && !text[n];
}

#define LETTERS "abcdefghijklmnopqrstuvwxyz0123456789"

static const char *fault_of_setting(const struct mfl_strategy_setting *s)
{
        if (!is_word(s->name, MFL_PLUGIN_SETTING_BYTES - 1, LETTERS "_"))
                return "a setting's name is not 1 to 31 lower-case letters, digits and '_'";
        if (!isfinite(s->standard) || !(s->min <= s->standard && s->standard <= s->max))
                return "a setting's standard value is outside its limits";
        return NULL;
}

static const char *fault_of(const struct mfl_strategy_plugin *t)
{
        if (!is_word(t->name, MFL_PLUGIN_NAME_BYTES - 1, LETTERS "-"))
                return "its name is not 1 to 63 lower-case letters, digits and '-'";
        if (!t->version || !t->apply)
                return "it has no version, or no function apply";
        if (t->n_settings > MFL_STRATEGY_SETTINGS_MAX || (t->n_settings && !t->settings) ||
                t->n_state > MFL_STRATEGY_STATE_MAX)
                return "it has more than 16 settings, or more than 2 vectors of state";
        for (uint32_t i = 0; i < t->n_state; i++)
                if (!is_word(t->state_name[i], 31, LETTERS "_") || !isfinite(t->state_initial[i]))
                        return "a state's name is not 1 to 31 lower-case letters, digits and '_', or its "
                               "value is "
                               "not finite";
        for (uint32_t i = 0; i < t->n_settings; i++)
                if (fault_of_setting(&t->settings[i]))
                        return fault_of_setting(&t->settings[i]);
        return NULL;
}

/* Whoever may write it, or the directory, is the server. */
static int check_owner(const char *path, struct mfl_error *err)
{
        struct stat st;
        if (stat(path, &st))
                return mfl_fail(err, MFL_INVALID, "plugins: %s: %s", path, strerror(errno));
        if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & (S_IWGRP | S_IWOTH))
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s: others can write it, and it would run with the server's rights: chown "
                        "root, "
                        "chmod go-w",
                        path);
        return 0;
}

static int take_digest(const char *path, char ret_digest[MFL_SHA256_HEX_BYTES], struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *data = NULL;
        uint8_t digest[MFL_SHA256_BYTES];
        size_t bytes;
        int r = mfl_fs_read(path, OBJECT_BYTES_MAX, &data, &bytes, err);
        if (!r)
                r = mfl_sha256(data, bytes, digest, err);
        if (!r)
                mfl_hex(digest, sizeof digest, ret_digest);
        return r;
}

static int load(const char *path, struct plugin *plugin, struct mfl_error *err)
{
        int r = check_owner(path, err);
        if (!r)
                r = take_digest(path, plugin->digest, err);
        if (r)
                return r;
        plugin->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!plugin->object)
                return mfl_fail(err, MFL_INVALID, "plugins: %s", dlerror());
        const struct mfl_strategy_plugin *(*table)(void);
        *(void **)&table = dlsym(plugin->object, "mfl_strategy_plugin");
        if (!table || !(plugin->table = table()))
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s has no mfl_strategy_plugin: it is no plug-in, or hides its symbols",
                        path);
        if (plugin->table->abi != MFL_STRATEGY_ABI)
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s is of ABI %u, and this server takes %u: build it against this release's "
                        "mfl/strategy.h",
                        path, plugin->table->abi, MFL_STRATEGY_ABI);
        const char *fault = fault_of(plugin->table);
        if (fault)
                return mfl_fail(err, MFL_INVALID, "plugins: %s: %s", path, fault);
        plugin->ops = (struct mfl_strategy_ops){.kind = MFL_STRATEGY_PLUGIN,
                .name = plugin->table->name,
                .n_state = (int)plugin->table->n_state,
                .state_initial = state_initial,
                .apply = apply};
        for (uint32_t i = 0; i < plugin->table->n_state; i++)
                plugin->ops.state_name[i] = plugin->table->state_name[i];
        return 0;
}

static const struct plugin *find(const struct mfl_plugins *plugins, const char *name)
{
        for (uint32_t i = 0; i < plugins->n; i++)
                if (!strcmp(plugins->v[i]->table->name, name))
                        return plugins->v[i];
        return NULL;
}

static int add(struct mfl_plugins *plugins, const char *path, struct mfl_error *err)
{
        struct plugin *plugin = mfl_calloc(1, sizeof *plugin);
        if (!plugin)
                return mfl_fail_memory(err, sizeof *plugin, "a plug-in");
        int r = load(path, plugin, err);
        if (!r && find(plugins, plugin->table->name))
                r = mfl_fail(err, MFL_INVALID, "plugins: %s: another file has a plug-in of the name %s, too",
                        path, plugin->table->name);
        struct plugin **v = r ? NULL : realloc(plugins->v, (plugins->n + 1) * sizeof(struct plugin *));
        if (!r && !v)
                r = mfl_fail_memory(err, (plugins->n + 1) * sizeof(struct plugin *), "plug-ins");
        if (r) {
                if (plugin->object)
                        dlclose(plugin->object);
                free(plugin);
                return r;
        }
        plugins->v = v;
        plugins->v[plugins->n++] = plugin;
        return 0;
}

static int is_object(const struct dirent *entry)
{
        size_t n = strlen(entry->d_name);
        return n > 3 && entry->d_name[0] != '.' && !strcmp(entry->d_name + n - 3, ".so");
}

int mfl_plugins_open(const char *dir, struct mfl_plugins **ret_plugins, struct mfl_error *err)
{
        struct mfl_plugins *plugins = mfl_calloc(1, sizeof *plugins);
        struct dirent **entries = NULL;
        if (!plugins)
                return mfl_fail_memory(err, sizeof *plugins, "plug-ins");
        int n = 0, r = *dir ? check_owner(dir, err) : 0;
        if (!r && *dir && (n = scandir(dir, &entries, is_object, alphasort)) < 0)
                r = mfl_fail(err, MFL_INVALID, "plugins: %s: %s", dir, strerror(errno));
        for (int i = 0; i < n; i++) {
                MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, entries[i]->d_name);
                if (!r)
                        r = path ? add(plugins, path, err) : mfl_fail_memory(err, 1, "a path");
                free(entries[i]);
        }
        free(entries);
        if (r)
                mfl_plugins_close(plugins);
        else
                *ret_plugins = plugins;
        return r;
}

void mfl_plugins_close(struct mfl_plugins *plugins)
{
        for (uint32_t i = 0; plugins && i < plugins->n; i++) {
                dlclose(plugins->v[i]->object);
                free(plugins->v[i]);
        }
        free(plugins ? plugins->v : NULL);
        free(plugins);
}

/* ---- jobs ---- */

static int fail_missing(const struct mfl_plugins *plugins, const char *name, struct mfl_error *err)
{
        char names[512] = "none";
        size_t n = 0;
        for (uint32_t i = 0; i < plugins->n && n + MFL_PLUGIN_NAME_BYTES + 3 < sizeof names; i++)
                n += (size_t)mfl_snprintf(
                        names + n, sizeof names - n, "%s%s", i ? ", " : "", plugins->v[i]->table->name);
        return mfl_fail(err, MFL_NOT_FOUND,
                "aggregation.plugin: this server has no plug-in %s; it has %s (`plugins` in server.yaml)",
                name, names);
}

static int set_value(const struct mfl_strategy_plugin *table, const struct mfl_plugin_setting *setting,
        double *values, struct mfl_error *err)
{
        char names[512] = "none";
        size_t n = 0;
        for (uint32_t i = 0; i < table->n_settings; i++) {
                const struct mfl_strategy_setting *s = &table->settings[i];
                n += (size_t)mfl_snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", s->name);
                if (strcmp(s->name, setting->name))
                        continue;
                if (!(setting->value >= s->min && setting->value <= s->max))
                        return mfl_fail(err, MFL_INVALID,
                                "aggregation.plugin.settings.%s: %g is not from %g to %g, which %s takes",
                                s->name, setting->value, s->min, s->max, table->name);
                values[i] = setting->value;
                return 0;
        }
        return mfl_fail(err, MFL_INVALID, "aggregation.plugin.settings: %s has no setting %s; it has %s",
                table->name, setting->name, names);
}

int mfl_plugins_resolve(const struct mfl_plugins *plugins, struct mfl_job *spec, struct mfl_error *err)
{
        struct mfl_plugin_spec *wanted = &spec->aggregation.plugin;
        if (spec->aggregation.strategy != MFL_STRATEGY_PLUGIN)
                return 0;
        const struct plugin *plugin = find(plugins, wanted->name);
        if (!plugin)
                return fail_missing(plugins, wanted->name, err);
        for (uint32_t i = 0; i < plugin->table->n_settings; i++)
                wanted->values[i] = plugin->table->settings[i].standard;
        for (uint32_t i = 0; i < wanted->n_settings; i++) {
                int r = set_value(plugin->table, &wanted->settings[i], wanted->values, err);
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
                plugin->digest);
}

/* ---- crashes ---- */

int mfl_plugin_mark(const char *path, uint32_t round, const char *name, struct mfl_error *err)
{
        uint32_t before = 0, crashes = 0;
        FILE *file = fopen(path, "re");
        if (file && (fscanf(file, "%u %u", &before, &crashes) != 2 || before != round))
                crashes = 0;
        if (file)
                fclose(file);
        if (crashes >= MFL_PLUGIN_CRASHES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "plug-in %s: the server ended %u times in it; mend the plug-in and clone the job",
                        name, crashes);
        /* Where the disk is full, a crash is not counted, and the round goes on. */
        file = fopen(path, "we");
        if (!file || fprintf(file, "%u %u\n", round, crashes + 1) < 0)
                mfl_log(MFL_LOG_WARN, "plug-in %s: %s can't be written: %s", name, path, strerror(errno));
        if (file)
                fclose(file);
        return 0;
}

void mfl_plugin_unmark(const char *path)
{
        unlink(path);
}
