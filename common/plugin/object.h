/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that an administrator adds to a program: opened, asked for their tables, checked, and named by the SHA-256 of their
 * files. Each kind has a public header (include/mfl/) with an ABI of its own; all tables begin as struct mfl_plugin_head.
 *
 * They are loaded once, when the program starts, and stay. A file that others than root and the program's user may write, that is of no
 * kind that the program takes, that has another ABI, or whose table is wrong, ends the start with its name. They run with the program's
 * rights. Before any thread; afterwards nothing changes, and any thread may read. */
#ifndef MFL_COMMON_PLUGIN_OBJECT_H
#define MFL_COMMON_PLUGIN_OBJECT_H

#include "common/base/digest.h"
#include "common/plugin/words.h"
#include "include/mfl/plugin.h"

struct mfl_plugin_head {
        uint32_t abi;
        const char *name, *version;
};

struct mfl_plugin_kind {
        const char *symbol, *header; /* "mfl_filter_plugin", "mfl/filter.h" */
        uint32_t abi;
        /* What is wrong with a table of this ABI, beside its head; NULL: nothing. */
        const char *(*fault)(const void *table);
};

struct mfl_plugin_object {
        const struct mfl_plugin_kind *kind;
        const struct mfl_plugin_head *table;
        void *handle;
        char digest[MFL_SHA256_HEX_BYTES];
};

struct mfl_plugin_objects {
        uint32_t n;
        struct mfl_plugin_object *v; /* by file name */
};

/* The objects *.so of the directory; "": none. program: "server" or "daemon", for texts. MFL_INVALID with text. */
int mfl_plugin_objects_open(const char *dir, const char *program, const struct mfl_plugin_kind *const *kinds,
        size_t n_kinds, struct mfl_plugin_objects *ret_objects, struct mfl_error *err);
void mfl_plugin_objects_close(struct mfl_plugin_objects *objects); /* zeroed is fine */
/* NULL: there is none of that kind. */
const struct mfl_plugin_object *mfl_plugin_object_find(
        const struct mfl_plugin_objects *objects, const struct mfl_plugin_kind *kind, const char *name);
/* "a, b", or "none". Returns buf. */
const char *mfl_plugin_object_names(const struct mfl_plugin_objects *objects,
        const struct mfl_plugin_kind *kind, char *buf, size_t bytes);

/* Numbers of a table. */
const char *mfl_plugin_fault_of_numbers(const struct mfl_plugin_number *rows, uint32_t n);
/* values[i] of the number with that name. MFL_INVALID; key: "aggregation.plugin.settings", plugin: its name. */
int mfl_plugin_set_number(const struct mfl_plugin_number *rows, uint32_t n, const char *plugin,
        const char *key, const char *name, double value, double *values, struct mfl_error *err);

#endif
