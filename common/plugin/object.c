/* SPDX-License-Identifier: Apache-2.0 */
/* Loading plug-ins.
 *
 *   - each *.so of the directory is opened, asked for a table of each kind, and the table is checked;
 *   - the SHA-256 of its file is kept for jobs' logs.
 * Fails: the directory or an object can't be read; it is not the administrator's alone; it has no table, or one of another ABI; a
 * wrong table; a name twice. */
#include "common/plugin/object.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"

#define OBJECT_BYTES_MAX ((size_t)256 << 20)
#define VERSION_BYTES 41

const char *mfl_plugin_fault_of_numbers(const struct mfl_plugin_number *rows, uint32_t n)
{
        if (n > MFL_PLUGIN_NUMBERS_MAX || (n && !rows))
                return "it has more than 16 settings";
        for (uint32_t i = 0; i < n; i++) {
                if (!mfl_plugin_is_word(rows[i].name, 32, true))
                        return "a setting's name is not 1 to 31 lower-case letters, digits and '_'";
                if (!isfinite(rows[i].standard) ||
                        !(rows[i].min <= rows[i].standard && rows[i].standard <= rows[i].max))
                        return "a setting's standard value is outside its limits";
        }
        return NULL;
}

int mfl_plugin_set_number(const struct mfl_plugin_number *rows, uint32_t n, const char *plugin,
        const char *key, const char *name, double value, double *values, struct mfl_error *err)
{
        char names[600] = "none";
        size_t at = 0;
        for (uint32_t i = 0; i < n; i++) {
                at += (size_t)mfl_snprintf(
                        names + at, sizeof names - at, "%s%s", i ? ", " : "", rows[i].name);
                if (strcmp(rows[i].name, name) != 0)
                        continue;
                if (!(value >= rows[i].min && value <= rows[i].max))
                        return mfl_fail(err, MFL_INVALID, "%s.%s: %g is not from %g to %g, which %s takes",
                                key, name, value, rows[i].min, rows[i].max, plugin);
                values[i] = value;
                return 0;
        }
        return mfl_fail(err, MFL_INVALID, "%s: %s has no setting %s; it has %s", key, plugin, name, names);
}

/* ---- loading ---- */

/* Whoever may write it, or the directory, is the program. */
static int check_owner(const char *path, const char *program, struct mfl_error *err)
{
        struct stat st;
        if (stat(path, &st))
                return mfl_fail(err, MFL_INVALID, "plugins: %s: %s", path, strerror(errno));
        if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & (S_IWGRP | S_IWOTH))
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s: others can write it, and it would run with the %s's rights: chown "
                        "root, chmod go-w",
                        path, program);
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

/* The first kind whose symbol the object has. */
static int take_table(const char *path, const char *program, const struct mfl_plugin_kind *const *kinds,
        size_t n_kinds, struct mfl_plugin_object *object, struct mfl_error *err)
{
        const struct mfl_plugin_head *(*table)(void) = NULL;
        char symbols[200] = "";
        size_t at = 0;
        for (size_t i = 0; i < n_kinds && !table; i++) {
                at += (size_t)mfl_snprintf(
                        symbols + at, sizeof symbols - at, "%s%s", i ? " or " : "", kinds[i]->symbol);
                *(void **)&table = dlsym(object->handle, kinds[i]->symbol);
                object->kind = kinds[i];
        }
        if (!table || !(object->table = table()))
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s has no %s: it is no plug-in of a %s, or hides its symbols", path,
                        symbols, program);
        if (object->table->abi != object->kind->abi)
                return mfl_fail(err, MFL_INVALID,
                        "plugins: %s is of ABI %u, and this %s takes %u: build it against this release's %s",
                        path, object->table->abi, program, object->kind->abi, object->kind->header);
        return 0;
}

static const char *fault_of(const struct mfl_plugin_object *object)
{
        if (!mfl_plugin_is_word(object->table->name, MFL_PLUGIN_NAME_BYTES, false))
                return "its name is not 1 to 63 lower-case letters, digits and '-'";
        if (!object->table->version || !*object->table->version ||
                strlen(object->table->version) >= VERSION_BYTES)
                return "its version is not 1 to 40 bytes";
        return object->kind->fault(object->table);
}

static int load(const char *path, const char *program, const struct mfl_plugin_kind *const *kinds,
        size_t n_kinds, struct mfl_plugin_object *object, struct mfl_error *err)
{
        int r = check_owner(path, program, err);
        if (!r)
                r = take_digest(path, object->digest, err);
        if (r)
                return r;
        object->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!object->handle)
                return mfl_fail(err, MFL_INVALID, "plugins: %s", dlerror());
        r = take_table(path, program, kinds, n_kinds, object, err);
        const char *fault = r ? NULL : fault_of(object);
        return fault ? mfl_fail(err, MFL_INVALID, "plugins: %s: %s", path, fault) : r;
}

static int add(struct mfl_plugin_objects *objects, const char *path, const char *program,
        const struct mfl_plugin_kind *const *kinds, size_t n_kinds, struct mfl_error *err)
{
        struct mfl_plugin_object *v = realloc(objects->v, (objects->n + 1) * sizeof *v), *object;
        if (!v)
                return mfl_fail_memory(err, (objects->n + 1) * sizeof *v, "plug-ins");
        objects->v = v;
        object = &v[objects->n];
        *object = (struct mfl_plugin_object){0};
        int r = load(path, program, kinds, n_kinds, object, err);
        if (!r && mfl_plugin_object_find(objects, object->kind, object->table->name))
                r = mfl_fail(err, MFL_INVALID, "plugins: %s: another file has a plug-in of the name %s, too",
                        path, object->table->name);
        if (!r)
                objects->n++;
        else if (object->handle)
                dlclose(object->handle);
        return r;
}

static int is_object(const struct dirent *entry)
{
        size_t n = strlen(entry->d_name);
        return n > 3 && entry->d_name[0] != '.' && !strcmp(entry->d_name + n - 3, ".so");
}

int mfl_plugin_objects_open(const char *dir, const char *program, const struct mfl_plugin_kind *const *kinds,
        size_t n_kinds, struct mfl_plugin_objects *ret_objects, struct mfl_error *err)
{
        struct mfl_plugin_objects objects = {0};
        struct dirent **entries = NULL;
        int n = 0, r = *dir ? check_owner(dir, program, err) : 0;
        if (!r && *dir && (n = scandir(dir, &entries, is_object, alphasort)) < 0)
                r = mfl_fail(err, MFL_INVALID, "plugins: %s: %s", dir, strerror(errno));
        for (int i = 0; i < n; i++) {
                MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, entries[i]->d_name);
                if (!r)
                        r = path ? add(&objects, path, program, kinds, n_kinds, err)
                                 : mfl_fail_memory(err, 1, "a path");
                free(entries[i]);
        }
        free(entries);
        if (r)
                mfl_plugin_objects_close(&objects);
        else
                *ret_objects = objects;
        return r;
}

void mfl_plugin_objects_close(struct mfl_plugin_objects *objects)
{
        for (uint32_t i = 0; i < objects->n; i++)
                dlclose(objects->v[i].handle);
        free(objects->v);
        *objects = (struct mfl_plugin_objects){0};
}

const struct mfl_plugin_object *mfl_plugin_object_find(
        const struct mfl_plugin_objects *objects, const struct mfl_plugin_kind *kind, const char *name)
{
        for (uint32_t i = 0; i < objects->n; i++)
                if (objects->v[i].kind == kind && !strcmp(objects->v[i].table->name, name))
                        return &objects->v[i];
        return NULL;
}

const char *mfl_plugin_object_names(
        const struct mfl_plugin_objects *objects, const struct mfl_plugin_kind *kind, char *buf, size_t bytes)
{
        size_t n = 0;
        mfl_strcpy(buf, bytes, "none");
        for (uint32_t i = 0; i < objects->n && n + MFL_PLUGIN_NAME_BYTES + 3 < bytes; i++)
                if (objects->v[i].kind == kind)
                        n += (size_t)mfl_snprintf(
                                buf + n, bytes - n, "%s%s", n ? ", " : "", objects->v[i].table->name);
        return buf;
}
