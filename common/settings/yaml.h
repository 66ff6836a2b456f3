/* SPDX-License-Identifier: Apache-2.0 */
/* YAML documents as a small, safe tree, and tables that fill structs from it. For job files and the
 * programs' configuration. yaml.c is the only file that includes libyaml.
 *
 * The parser takes a safe subset and refuses the rest: more bytes, nodes or depth than the limits, aliases,
 * anchors, tags, duplicate keys, keys that are not plain text, more than one document, NUL bytes and invalid
 * UTF-8. Every message starts with "FILE:LINE: " and, where there is one, "key.path: ":
 *     demo.yaml:3: model.prset: unknown key; did you mean 'preset'?
 *     demo.yaml:9: training.batch: expected a whole number from 1 to 65536, got 'abc'
 *
 * Errors of all functions: MFL_INVALID for a wrong document, -ENOMEM.
 * Ownership: a document owns all of its nodes and texts, and is immutable. Any thread.
 */
#ifndef MFL_COMMON_SETTINGS_YAML_H
#define MFL_COMMON_SETTINGS_YAML_H

#include "common/base/base.h"

enum mfl_yaml_type {
        MFL_YAML_SCALAR,
        MFL_YAML_SEQUENCE,
        MFL_YAML_MAPPING,
};

/* Children of a sequence or mapping are a list: for (n = node->first; n; n = n->next). */
struct mfl_yaml_node {
        enum mfl_yaml_type type;
        uint32_t line, column; /* from 1; of the value */
        uint32_t key_line;     /* of the key, where the parent is a mapping */
        uint32_t index;        /* position within the parent, from 0 */
        uint32_t n_children;
        uint32_t begin,
                end;      /* where it stands in the text, in characters; a byte order mark does not count */
        bool flow;        /* a sequence or mapping in brackets */
        bool quoted;      /* a scalar in quotes or a block scalar: never a number */
        const char *key;  /* where the parent is a mapping; else NULL */
        const char *text; /* a scalar's text without quotes, without NUL inside; else NULL */
        const struct mfl_yaml_node *parent, *first, *next;
};

struct mfl_yaml_limits {
        size_t bytes_max;
        uint32_t depth_max; /* the top mapping has depth 1 */
        uint32_t nodes_max;
};

struct mfl_yaml_doc; /* the text's tree */

/* Parses one document. file is for messages and is copied; limits may be NULL: 256 KiB, 16 deep, 16384 nodes.
 * An empty text is MFL_INVALID. */
int mfl_yaml_parse(const char *text, size_t text_bytes, const char *file,
        const struct mfl_yaml_limits *limits, struct mfl_yaml_doc **ret_doc,
        struct mfl_error *err) MFL_MUST_CHECK;
void mfl_yaml_free(struct mfl_yaml_doc *doc); /* NULL is fine */

/* The top node; of any type. */
const struct mfl_yaml_node *mfl_yaml_root(const struct mfl_yaml_doc *doc);
/* The value of a key of a mapping; NULL when there is no such key or node is not a mapping. */
const struct mfl_yaml_node *mfl_yaml_find(const struct mfl_yaml_node *node, const char *key);

/* Makes "FILE:LINE: key.path: TEXT" for a node and returns MFL_INVALID. The path is found from the node
 * ("model.layers[2].units"); LINE is the key's line when the node has a key. NULL, where what is wrong is a default: "FILE: TEXT". */
int mfl_yaml_fail(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, struct mfl_error *err,
        const char *fmt, ...) MFL_PRINTF(4, 5);
/* The same for an unknown key of a mapping: "unknown key; did you mean 'preset'?". The suggestion is the one of
 * `names` (ends with NULL) that is near enough, that is one of the key's words (batch_size), or that has its initials
 * (learning_rate). Without a suggestion the message lists all names. */
int mfl_yaml_fail_unknown_key(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const char *const *names, struct mfl_error *err);

/* The type of a struct's field, and which texts it accepts. */
enum mfl_yaml_kind {
        MFL_YAML_STRING, /* char[size], terminated; longer text is refused, and empty text unless it is quoted */
        MFL_YAML_TEXT,     /* char *, on the heap, freed by the owner of the struct; an old value is freed */
        MFL_YAML_U32,      /* uint32_t; "12", "1_000" is not a number */
        MFL_YAML_U64,      /* uint64_t */
        MFL_YAML_I64,      /* int64_t */
        MFL_YAML_F32,      /* float, finite; 1, 0.1, 1e-3 */
        MFL_YAML_F64,      /* double, finite */
        MFL_YAML_BOOL,     /* bool; true, false, yes, no, on, off */
        MFL_YAML_ENUM,     /* int (or an enum): the position of the text in names */
        MFL_YAML_DURATION, /* uint64_t milliseconds; "500ms", "600s", "10m", "1h", "2d"; a unit is required */
        MFL_YAML_SIZE,     /* uint64_t bytes; "4GiB", "512 MiB", "64KiB", "100MB", "4096" */
        MFL_YAML_FIELDS,   /* a nested mapping: its own table, with base at target + offset */
        MFL_YAML_CALL,     /* read(doc, node, (char *)target + offset, err) reads it */
};

/* One key of a mapping. Tables are static const arrays that end with {0}. Fields of the target that the
 * document does not mention stay as they are, so defaults are set before reading.
 *
 *     static const struct mfl_yaml_field training_fields[] = {
 *             {.key = "lr", MFL_YAML_AT(F32, struct mfl_job, training.lr), .required = true,
 *                     .min = 0, .max = 1000, .min_open = true},
 *             {.key = "batch", MFL_YAML_AT(U32, struct mfl_job, training.batch), .min = 1, .max = 65536},
 *             {0}};
 *     static const struct mfl_yaml_field job_fields[] = {
 *             {.key = "training", .kind = MFL_YAML_FIELDS, .fields = training_fields, .required = true},
 *             {.key = "layers", .kind = MFL_YAML_CALL, .read = read_layers},
 *             {0}};
 *     r = mfl_yaml_read(doc, mfl_yaml_root(doc), job_fields, job, err);
 */
struct mfl_yaml_field {
        const char *key;
        enum mfl_yaml_kind kind;
        size_t offset; /* of the value, from the target (FIELDS: of the nested target, often 0) */
        size_t size;   /* STRING: of the array */
        bool required;
        /* Limits of numbers, durations (ms) and sizes (bytes). Both 0: the limits of the type. INFINITY as max and
         * -INFINITY as min are no limit. Exact for integers up to 2^53. */
        double min, max;
        bool min_open, max_open;  /* the limit itself is outside */
        const char *const *names; /* ENUM: ends with NULL */
        const char *const
                *instead; /* ENUM: values that others have, each with what to write instead; ends with NULL */
        const struct mfl_yaml_field *fields; /* FIELDS */
        int (*read)(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value,
                struct mfl_error *err); /* CALL */
        /* Offset of a bool in the target that becomes true when the key is present; 0: none (so the bool cannot be
         * the target's first member). */
        size_t seen;
};

/* kind, offset and size of one member: MFL_YAML_AT(U32, struct mfl_job, training.batch). */
#define MFL_YAML_AT(kind_, type, member)                                                                     \
        .kind = MFL_YAML_##kind_, .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* Fills the target from a mapping. Unknown and missing keys, wrong types and values outside the limits are
 * MFL_INVALID; the target may then be filled in part. */
int mfl_yaml_read(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *fields, void *target, struct mfl_error *err) MFL_MUST_CHECK;
/* Reads one value: what mfl_yaml_read does for one key, for elements of a sequence. field->key is unused. */
int mfl_yaml_read_value(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *field, void *target, struct mfl_error *err) MFL_MUST_CHECK;

/* Reads one scalar from outside a document, such as an option's value: value is the field's place itself, and the
 * kind is not STRING, TEXT or CALL. False: the text is not what mfl_yaml_describe says. */
bool mfl_yaml_parse_value(const char *text, const struct mfl_yaml_field *field, void *value) MFL_MUST_CHECK;
/* For the `read` of a CALL field: one text, or a sequence of texts, which are joined with commas. value: char[bytes]. */
int mfl_yaml_read_words(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, char *value,
        size_t bytes, struct mfl_error *err) MFL_MUST_CHECK;
/* What a field accepts, for messages: "a whole number from 1 to 65536", "a number above 0 and at most 1", "one of
 * 'a', 'b'". */
void mfl_yaml_describe(const struct mfl_yaml_field *field, char *text, size_t bytes);

/* "500ms", "600s", "10m", "1h", "2d" to milliseconds; "4GiB", "512 MiB", "100MB", "10" to bytes. For command-line
 * options. False when the text is neither, or too large. */
bool mfl_yaml_parse_duration(const char *text, uint64_t *ret_ms) MFL_MUST_CHECK;
bool mfl_yaml_parse_size(const char *text, uint64_t *ret_bytes) MFL_MUST_CHECK;

/* The nearest of names (ends with NULL) by edit distance, if it is near enough for a typing mistake; otherwise NULL.
 */
const char *mfl_yaml_nearest(const char *text, const char *const *names);

/* A node and what is in it as JSON, in one line, on the heap. NULL: out of memory. */
char *mfl_yaml_json(const struct mfl_yaml_node *node) MFL_MUST_CHECK;

#endif
