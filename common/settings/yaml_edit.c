/* SPDX-License-Identifier: Apache-2.0 */
/* Values are replaced where the parser found them, and new keys are put before the first key of their mapping. */
#include "common/settings/yaml_edit.h"

#include <stdio.h>

#include "common/settings/yaml.h"

#define PATH_MAX_BYTES 256

struct edit {
        const char *text, *path, *value;
        struct mfl_yaml_doc *doc;
        const struct mfl_yaml_node *at; /* the deepest node of the path that exists */
        const char *missing;            /* the rest of the path; empty: `at` is what it names */
        struct mfl_error *err;
};

static const char *skip_mark(const char *text)
{
        return strncmp(text, "\xef\xbb\xbf", 3) ? text : text + 3;
}

/* Of a position in characters. */
static size_t byte_at(const char *text, uint32_t character)
{
        const char *at = skip_mark(text);
        for (uint32_t i = 0; i < character && *at; i++)
                for (at++; (*at & 0xc0) == 0x80; at++)
                        ;
        return (size_t)(at - text);
}

/* The length of the path's first part: a key, or a position in brackets. */
static size_t part_length(const char *path)
{
        if (*path != '[')
                return strcspn(path, ".[");
        const char *end = strchr(path, ']');
        return end ? (size_t)(end - path) + 1 : 0;
}

static const struct mfl_yaml_node *child_at(const struct mfl_yaml_node *node, const char *part, size_t length)
{
        char text[PATH_MAX_BYTES];
        if (node->type == MFL_YAML_MAPPING) {
                mfl_snprintf(text, sizeof text, "%.*s", (int)length, part);
                return mfl_yaml_find(node, text);
        }
        char *end;
        unsigned long i = strtoul(part + 1, &end, 10);
        const struct mfl_yaml_node *n = end == part + length - 1 && end > part + 1 ? node->first : NULL;
        while (n && i--)
                n = n->next;
        return n;
}

static int fail(const struct edit *e, const char *what)
{
        return mfl_fail(e->err, MFL_INVALID, "%s=%s: %s", e->path, e->value, what);
}

/* Walks along the path as far as the document goes. */
static int walk(struct edit *e)
{
        const char *rest = e->path;
        e->at = mfl_yaml_root(e->doc);
        for (;;) {
                size_t length = part_length(rest);
                if (!length || length >= PATH_MAX_BYTES)
                        return fail(e, "the part before '=' must name a key, as in training.lr=0.01 or "
                                       "model.layers[0].units=32");
                bool position = *rest == '[';
                if (e->at->type == MFL_YAML_SCALAR)
                        return mfl_yaml_fail(e->doc, e->at, e->err,
                                "is a single value, so --set can't reach '%.100s' below it", e->path);
                if (position != (e->at->type == MFL_YAML_SEQUENCE))
                        return mfl_yaml_fail(e->doc, e->at, e->err,
                                position ? "is no list, so --set can't reach %.100s"
                                         : "is a list: name an element of it, as in [0], not %.100s",
                                e->path);
                const struct mfl_yaml_node *child = child_at(e->at, rest, length);
                if (!child && position)
                        return mfl_yaml_fail(e->doc, e->at, e->err,
                                "has %u elements, from [0] on, so --set can't reach %.100s",
                                e->at->n_children, e->path);
                e->missing = rest;
                if (!child)
                        return strchr(rest, '[') ? fail(e, "there is no such list in the file") : 0;
                e->at = child;
                e->missing = rest + length;
                if (!*e->missing)
                        return 0;
                rest = e->missing + (*e->missing == '.');
        }
}

/* Replaces bytes [begin, end) of the text. */
static int splice(const struct edit *e, size_t begin, size_t end, const char *with, char **ret_text)
{
        size_t bytes = begin + strlen(with) + strlen(e->text + end) + 1;
        char *text = mfl_calloc(1, bytes);
        if (!text)
                return mfl_fail_memory(e->err, bytes, "a job file");
        mfl_snprintf(text, bytes, "%.*s%s%s", (int)begin, e->text, with, e->text + end);
        *ret_text = text;
        return 0;
}

static int replace(const struct edit *e, char **ret_text)
{
        size_t begin = byte_at(e->text, e->at->begin), end = byte_at(e->text, e->at->end);
        bool block =
                e->at->type == MFL_YAML_SCALAR ? e->at->quoted && strchr("|>", e->text[begin]) : !e->at->flow;
        if (block)
                return mfl_yaml_fail(e->doc, e->at, e->err,
                        "takes several lines of the file; --set only replaces values within a line");
        char with[PATH_MAX_BYTES + 2];
        bool glued = begin == end && begin && e->text[begin - 1] == ':';
        mfl_snprintf(with, sizeof with, "%s%s", glued ? " " : "", e->value);
        return splice(e, begin, end, with, ret_text);
}

/* missing "a.b" and value v: "a: {b: v}", and what stands after it. */
static int add(const struct edit *e, char **ret_text)
{
        char with[2 * PATH_MAX_BYTES + 64];
        size_t used = 0;
        int n_open = 0;
        for (const char *at = e->missing; *at; at += *at == '.') {
                size_t length = part_length(at);
                used += (size_t)mfl_snprintf(
                        with + used, sizeof with - used, "%s%.*s: ", n_open++ ? "{" : "", (int)length, at);
                at += length;
        }
        used += (size_t)mfl_snprintf(with + used, sizeof with - used, "%s", e->value);
        while (--n_open > 0)
                used += (size_t)mfl_snprintf(with + used, sizeof with - used, "}");
        size_t begin = byte_at(e->text, e->at->begin);
        if (e->at->flow)
                mfl_snprintf(with + used, sizeof with - used, "%s", e->at->n_children ? ", " : "");
        else
                mfl_snprintf(with + used, sizeof with - used, "\n%*s", (int)e->at->column - 1, "");
        return splice(e, begin + e->at->flow, begin + e->at->flow, with, ret_text);
}

static int check_value(const struct edit *e)
{
        char **values = NULL;
        int n = 0;
        struct mfl_error why;
        if (strlen(e->value) >= PATH_MAX_BYTES || strlen(e->path) >= PATH_MAX_BYTES)
                return mfl_fail(e->err, MFL_INVALID,
                        "%.60s=%.60s...: longer than %d bytes; write it into the file", e->path, e->value,
                        PATH_MAX_BYTES - 1);
        int r = mfl_yaml_values(e->value, 2, &values, &n, &why);
        bool one = !r && n == 1 && !strcmp(values[0], e->value);
        mfl_yaml_values_free(values, n);
        if (r < 0)
                *e->err = why;
        return r < 0 ? r
               : one ? 0
                     : fail(e, "expected one value after '=': a number, a word, or YAML such as 'a, b', [1, "
                               "2] or "
                               "{bits: 8}");
}

int mfl_yaml_set(const char *text, const char *file, const char *path, const char *value, char **ret_text,
        struct mfl_error *err)
{
        struct edit e = {.text = text, .path = path, .value = value, .err = err};
        struct mfl_yaml_doc *check = NULL;
        char *changed = NULL;
        int r = check_value(&e);
        if (!r)
                r = mfl_yaml_parse(text, strlen(text), file, NULL, &e.doc, err);
        if (!r)
                r = walk(&e);
        if (!r)
                r = *e.missing ? add(&e, &changed) : replace(&e, &changed);
        if (!r)
                r = mfl_yaml_parse(changed, strlen(changed), file, NULL, &check, err);
        mfl_yaml_free(check);
        mfl_yaml_free(e.doc);
        if (r)
                free(changed);
        else
                *ret_text = changed;
        return r;
}

void mfl_yaml_values_free(char **values, int n)
{
        for (int i = 0; values && i < n; i++)
                free(values[i]);
        free(values);
}

/* "1..4". */
static bool is_range(const char *text, long long *ret_first, long long *ret_last)
{
        int end = 0;
        return sscanf(text, "%18lld..%18lld%n", ret_first, ret_last, &end) == 2 && !text[end] &&
               *ret_first <= *ret_last;
}

struct values {
        char **text;
        int n, n_max;
        struct mfl_error *err;
};

static int take(struct values *v, const char *text, size_t bytes)
{
        if (v->n == v->n_max)
                return mfl_fail(v->err, MFL_INVALID, "more than %d values", v->n_max);
        v->text[v->n] = mfl_calloc(1, bytes + 1);
        if (!v->text[v->n])
                return mfl_fail_memory(v->err, bytes + 1, "a value");
        memcpy(v->text[v->n++], text, bytes);
        return 0;
}

static int take_child(struct values *v, const char *text, const struct mfl_yaml_node *node)
{
        size_t begin = byte_at(text, node->begin), end = byte_at(text, node->end);
        long long first, last;
        char number[24];
        int r = 0;
        /* In brackets, "a: b" is a mapping, too, but it is none elsewhere. */
        if (begin == end || (node->type == MFL_YAML_MAPPING && text[begin] != '{'))
                return mfl_fail(v->err, MFL_INVALID, "not a value: %.100s", text);
        if (node->quoted || node->type != MFL_YAML_SCALAR || !is_range(node->text, &first, &last))
                return take(v, text + begin, end - begin);
        for (long long i = first; !r && i <= last; i++) {
                int length = snprintf(number, sizeof number, "%lld", i);
                r = take(v, number, (size_t)length);
        }
        return r;
}

int mfl_yaml_values(const char *text, int n_max, char ***ret_values, int *ret_n, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc = NULL;
        struct values v = {.n_max = n_max, .err = err};
        size_t bytes = strlen(text) + 3;
        MFL_CLEANUP_FREE char *list = mfl_calloc(1, bytes);
        v.text = mfl_calloc((size_t)n_max, sizeof *v.text);
        int r = list && v.text ? 0 : mfl_fail_memory(err, bytes, "values");
        if (!r)
                mfl_snprintf(list, bytes, "[%s]", text);
        if (!r && strpbrk(text, "\r\n"))
                r = mfl_fail(err, MFL_INVALID, "not one line: %.100s", text);
        if (!r)
                r = mfl_yaml_parse(list, bytes - 1, "--set", NULL, &doc, err);
        if (!r && (mfl_yaml_root(doc)->type != MFL_YAML_SEQUENCE || !mfl_yaml_root(doc)->first))
                r = mfl_fail(err, MFL_INVALID, "no value; write '' for an empty text");
        for (const struct mfl_yaml_node *n = r ? NULL : mfl_yaml_root(doc)->first; !r && n; n = n->next)
                r = take_child(&v, list, n);
        mfl_yaml_free(doc);
        if (r) {
                mfl_yaml_values_free(v.text, v.n);
                return r;
        }
        *ret_values = v.text;
        *ret_n = v.n;
        return 0;
}
