/* SPDX-License-Identifier: Apache-2.0 */
/* Turns YAML text into a tree, with libyaml's event parser; the only file that includes libyaml. The tables that read
 * the tree are in yaml_read.c.
 */
#include "common/settings/yaml.h"

#include <stdio.h>
#include <yaml.h>

static const struct mfl_yaml_limits default_limits = {
        .bytes_max = 256 * 1024, .depth_max = 16, .nodes_max = 16384};

/* A node and its text in one allocation; all are on one list for freeing. */
struct owned_node {
        struct mfl_yaml_node node; /* first */
        struct owned_node *older;
        struct mfl_yaml_node *last; /* child */
        char *key;
        char text[];
};

struct mfl_yaml_doc {
        char *file;
        struct owned_node *newest;
        const struct mfl_yaml_node *root;
};

struct parse {
        yaml_parser_t parser;
        struct mfl_yaml_doc *doc;
        const struct mfl_yaml_limits *limits;
        struct owned_node *open; /* the sequence or mapping that is being filled; NULL at the top */
        char *key;               /* read, its value is next */
        uint32_t key_line;
        uint32_t depth, n_nodes;
        bool ended; /* the first document did */
        const char *text;
        size_t text_bytes;
        struct mfl_error *err;
};

void mfl_yaml_free(struct mfl_yaml_doc *doc)
{
        if (!doc)
                return;
        while (doc->newest) {
                struct owned_node *n = doc->newest;
                doc->newest = n->older;
                free(n->key);
                free(n);
        }
        free(doc->file);
        free(doc);
}

const struct mfl_yaml_node *mfl_yaml_root(const struct mfl_yaml_doc *doc)
{
        return doc->root;
}

const struct mfl_yaml_node *mfl_yaml_find(const struct mfl_yaml_node *node, const char *key)
{
        if (node->type != MFL_YAML_MAPPING)
                return NULL;
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next)
                if (!strcmp(n->key, key))
                        return n;
        return NULL;
}

/* Built from the end, where the node itself is; a path too long for the buffer loses its beginning. */
static const char *path_of(const struct mfl_yaml_node *node, char *buffer, size_t bytes)
{
        char *at = buffer + bytes - 1;
        *at = '\0';
        for (; node && node->parent; node = node->parent) {
                char index[16];
                const char *part = node->key;
                if (!part) {
                        snprintf(index, sizeof index, "[%u]", node->index);
                        part = index;
                }
                size_t len = strlen(part);
                bool dot = node->key && node->parent->parent;
                if (len + dot > (size_t)(at - buffer))
                        break;
                at -= len;
                memcpy(at, part, len);
                if (dot)
                        *--at = '.';
        }
        return at;
}

int mfl_yaml_fail(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, struct mfl_error *err,
        const char *fmt, ...)
{
        char what[512], path[256];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        if (!node)
                return mfl_fail(err, MFL_INVALID, "%s: %s", doc->file, what);
        const char *at = path_of(node, path, sizeof path);
        return mfl_fail(err, MFL_INVALID, "%s:%u: %s%s%s", doc->file, node->key ? node->key_line : node->line,
                at, *at ? ": " : "", what);
}

static int fail_at(struct parse *p, size_t line, const char *fmt, ...) MFL_PRINTF(3, 4);
static int fail_at(struct parse *p, size_t line, const char *fmt, ...)
{
        char what[384];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        return mfl_fail(p->err, MFL_INVALID, "%s:%zu: %s", p->doc->file, line, what);
}

/* libyaml counts characters. */
static bool is_ascii(const struct parse *p)
{
        for (size_t i = 0; i < p->text_bytes; i++)
                if (p->text[i] & 0x80)
                        return false;
        return true;
}

/* For bytes that are not text only the offset is known. */
static int fail_reader(struct parse *p)
{
        size_t line = 1;
        for (size_t i = 0; i < p->parser.problem_offset && i < p->text_bytes; i++)
                line += p->text[i] == '\n';
        return fail_at(p, line, "this is not UTF-8 text: %s", p->parser.problem);
}

static int fail_parser(struct parse *p)
{
        const yaml_parser_t *y = &p->parser;
        if (y->error == YAML_MEMORY_ERROR)
                return mfl_fail(p->err, -ENOMEM, "out of memory (parsing %s)", p->doc->file);
        if (y->error == YAML_READER_ERROR && y->problem)
                return fail_reader(p);
        if (y->problem_mark.index < p->text_bytes && p->text[y->problem_mark.index] == '\t' && is_ascii(p))
                return fail_at(
                        p, y->problem_mark.line + 1, "a tab where YAML requires spaces: indent with spaces");
        if (y->problem && !strcmp(y->problem, "mapping values are not allowed in this context"))
                return fail_at(p, y->problem_mark.line + 1,
                        "a key where none can be: keys of one mapping begin in the same column, and a text "
                        "with ': ' needs quotes");
        char begun[48] = "";
        if (y->context && y->context_mark.line < y->problem_mark.line)
                snprintf(begun, sizeof begun, " that begins on line %zu", y->context_mark.line + 1);
        return fail_at(p, y->problem_mark.line + 1, "%s%s%s%s", y->problem ? y->problem : "not YAML",
                y->context ? " " : "", y->context ? y->context : "", begun);
}

/* A scalar in the position of a key. */
static int take_key(struct parse *p, const yaml_event_t *event)
{
        size_t line = event->start_mark.line + 1;
        const char *text = (const char *)event->data.scalar.value;
        if (strlen(text) != event->data.scalar.length)
                return fail_at(p, line, "a key contains a NUL character");
        const struct mfl_yaml_node *old = mfl_yaml_find(&p->open->node, text);
        if (old)
                return fail_at(p, line, "duplicate key '%.64s' (first on line %u)", text, old->key_line);
        p->key = mfl_strdup(text);
        if (!p->key)
                return mfl_fail_memory(p->err, strlen(text), "a YAML key");
        p->key_line = (uint32_t)line;
        return 0;
}

/* Appends a value to the open node, or makes it the root. */
static int add_node(struct parse *p, const yaml_event_t *event, enum mfl_yaml_type type, const char *text,
        size_t text_bytes, struct owned_node **ret_node)
{
        size_t line = event->start_mark.line + 1;
        if (++p->n_nodes > p->limits->nodes_max)
                return fail_at(p, line, "more than %u values", p->limits->nodes_max);
        if (p->depth >= p->limits->depth_max && type != MFL_YAML_SCALAR)
                return fail_at(p, line, "nested more than %u deep", p->limits->depth_max);
        if (text_bytes && memchr(text, 0, text_bytes))
                return fail_at(p, line, "a text contains a NUL character");
        struct owned_node *n = mfl_calloc(1, sizeof *n + text_bytes + 1);
        if (!n)
                return mfl_fail_memory(p->err, sizeof *n + text_bytes + 1, "a YAML value");
        if (text_bytes)
                memcpy(n->text, text, text_bytes);
        n->older = p->doc->newest;
        p->doc->newest = n;
        n->node.type = type;
        n->node.text = type == MFL_YAML_SCALAR ? n->text : NULL;
        n->node.line = (uint32_t)line;
        n->node.column = (uint32_t)event->start_mark.column + 1;
        n->node.begin = (uint32_t)event->start_mark.index;
        n->node.end = (uint32_t)event->end_mark.index;
        n->node.key = n->key = p->key;
        n->node.key_line = p->key_line;
        p->key = NULL;
        p->key_line = 0;
        if (!p->open) {
                p->doc->root = &n->node;
        } else {
                n->node.parent = &p->open->node;
                n->node.index = p->open->node.n_children++;
                if (p->open->last)
                        p->open->last->next = &n->node;
                else
                        p->open->node.first = &n->node;
                p->open->last = &n->node;
        }
        *ret_node = n;
        return 0;
}

static bool expects_key(const struct parse *p)
{
        return p->open && p->open->node.type == MFL_YAML_MAPPING && !p->key;
}

static int on_scalar(struct parse *p, const yaml_event_t *event)
{
        struct owned_node *n = NULL;
        size_t line = event->start_mark.line + 1;
        if (event->data.scalar.anchor)
                return fail_at(p, line, "anchors (&%.64s) are not allowed", event->data.scalar.anchor);
        if (event->data.scalar.tag)
                return fail_at(p, line, "tags (%.64s) are not allowed", event->data.scalar.tag);
        if (expects_key(p))
                return take_key(p, event);
        int r = add_node(p, event, MFL_YAML_SCALAR, (const char *)event->data.scalar.value,
                event->data.scalar.length, &n);
        if (!r)
                n->node.quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        return r;
}

static int on_open(struct parse *p, const yaml_event_t *event, enum mfl_yaml_type type)
{
        bool sequence = type == MFL_YAML_SEQUENCE;
        const yaml_char_t *anchor =
                sequence ? event->data.sequence_start.anchor : event->data.mapping_start.anchor;
        const yaml_char_t *tag = sequence ? event->data.sequence_start.tag : event->data.mapping_start.tag;
        size_t line = event->start_mark.line + 1;
        if (anchor)
                return fail_at(p, line, "anchors (&%.64s) are not allowed", anchor);
        if (tag)
                return fail_at(p, line, "tags (%.64s) are not allowed", tag);
        if (expects_key(p))
                return fail_at(p, line, "a key must be plain text");
        struct owned_node *n = NULL;
        int r = add_node(p, event, type, NULL, 0, &n);
        if (r)
                return r;
        n->node.flow = sequence ? event->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE
                                : event->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE;
        p->open = n;
        p->depth++;
        return 0;
}

static void on_close(struct parse *p, const yaml_event_t *event)
{
        p->open->node.end = (uint32_t)event->end_mark.index;
        p->open = (struct owned_node *)(uintptr_t)p->open->node.parent;
        p->depth--;
}

static int on_event(struct parse *p, const yaml_event_t *event)
{
        size_t line = event->start_mark.line + 1;
        switch (event->type) {
        case YAML_DOCUMENT_START_EVENT:
                if (p->ended)
                        return fail_at(p, line, "a second document");
                return 0;
        case YAML_DOCUMENT_END_EVENT:
                p->ended = true;
                return 0;
        case YAML_ALIAS_EVENT:
                return fail_at(p, line, "aliases (*%.64s) are not allowed", event->data.alias.anchor);
        case YAML_SCALAR_EVENT:
                return on_scalar(p, event);
        case YAML_SEQUENCE_START_EVENT:
                return on_open(p, event, MFL_YAML_SEQUENCE);
        case YAML_MAPPING_START_EVENT:
                return on_open(p, event, MFL_YAML_MAPPING);
        case YAML_SEQUENCE_END_EVENT:
        case YAML_MAPPING_END_EVENT:
                on_close(p, event);
                return 0;
        default:
                return 0;
        }
}

static int parse_events(struct parse *p)
{
        for (bool more = true; more;) {
                yaml_event_t event;
                if (!yaml_parser_parse(&p->parser, &event))
                        return fail_parser(p);
                more = event.type != YAML_STREAM_END_EVENT;
                int r = on_event(p, &event);
                yaml_event_delete(&event);
                if (r)
                        return r;
        }
        if (!p->doc->root || (p->doc->root->type == MFL_YAML_SCALAR && !*p->doc->root->text))
                return fail_at(p, 1, "the document is empty");
        return 0;
}

int mfl_yaml_parse(const char *text, size_t text_bytes, const char *file,
        const struct mfl_yaml_limits *limits, struct mfl_yaml_doc **ret_doc, struct mfl_error *err)
{
        struct parse p = {.limits = limits ? limits : &default_limits, .err = err};
        if (text_bytes > p.limits->bytes_max)
                return mfl_fail(err, MFL_INVALID, "%s:1: %zu bytes; the limit is %zu", file, text_bytes,
                        p.limits->bytes_max);
        /* A byte order mark, which some editors write, is not part of the text. */
        bool marked = text_bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3);
        p.text = marked ? text + 3 : text;
        p.text_bytes = marked ? text_bytes - 3 : text_bytes;
        p.doc = mfl_calloc(1, sizeof *p.doc);
        if (!p.doc)
                return mfl_fail_memory(err, sizeof *p.doc, "a YAML document");
        int r;
        p.doc->file = mfl_strdup(file);
        if (!p.doc->file) {
                r = mfl_fail_memory(err, strlen(file) + 1, "a file name");
        } else if (!yaml_parser_initialize(&p.parser)) {
                r = mfl_fail(err, -ENOMEM, "out of memory (parsing %s)", file);
        } else {
                /* Rejects UTF-16, which libyaml would detect by a byte order mark. */
                yaml_parser_set_encoding(&p.parser, YAML_UTF8_ENCODING);
                yaml_parser_set_input_string(&p.parser, (const unsigned char *)p.text, p.text_bytes);
                r = parse_events(&p);
                yaml_parser_delete(&p.parser);
        }
        free(p.key);
        if (r) {
                mfl_yaml_free(p.doc);
                return r;
        }
        *ret_doc = p.doc;
        return 0;
}
