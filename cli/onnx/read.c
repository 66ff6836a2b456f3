/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a node: attributes, inputs, constants. Also the memory and the messages of a conversion. */
#include <stdio.h>

#include "cli/onnx/internal.h"

void *mfl_onnx_alloc(struct onnx *o, size_t n, size_t size)
{
        uint64_t bytes;
        if (o->out_of_memory)
                return NULL;
        if (__builtin_mul_overflow((uint64_t)n, (uint64_t)size, &bytes) || bytes > o->budget) {
                mfl_fail(o->err, MFL_INVALID,
                        "%.200s: node %d needs too much memory for the size of the file", o->path, o->node);
                return NULL;
        }
        struct onnx_block *block = mfl_calloc(1, sizeof *block + sizeof(max_align_t) + bytes);
        if (!block) {
                o->out_of_memory = true;
                mfl_fail_memory(o->err, bytes, "an ONNX graph");
                return NULL;
        }
        o->budget -= bytes;
        block->next = o->blocks;
        o->blocks = block;
        return (char *)block + sizeof(max_align_t);
}

const Onnx__NodeProto *mfl_onnx_node(const struct onnx *o)
{
        return o->graph->node[o->node];
}

static const char *metadata_of(const Onnx__NodeProto *node, const char *key)
{
        for (size_t k = 0; k < node->n_metadata_props; k++)
                if (node->metadata_props[k]->key && !strcmp(node->metadata_props[k]->key, key))
                        return node->metadata_props[k]->value;
        return NULL;
}

/* The module's name: "encoder.layers.0" of the node "/encoder/layers.0/MatMul", where the child of a Sequential repeats
 * its parent's name ("/layers/layers.0/Relu"), or of what current exporters write beside the node, a list of the nested
 * modules that ends with the node's own name. */
static void module_of(const Onnx__NodeProto *node, char *name, size_t room)
{
        const char *scopes = metadata_of(node, "pkg.torch.onnx.name_scopes");
        const char *from = node->name ? node->name : "", *end = strrchr(from, '/');
        size_t n = 0;
        name[0] = '\0';
        if (scopes && (end = strrchr(scopes, ',')) && end > scopes + 1) {
                for (from = --end; from > scopes && from[-1] != '\'';)
                        from--;
                mfl_snprintf(name, room, "%.*s", (int)(end - from), from);
                return;
        }
        while (*from == '/' && from < end) {
                size_t length = strcspn(++from, "/"), own = n;
                while (own && name[own - 1] != '/')
                        own--;
                bool child = n > own && n - own < length && !strncmp(name + own, from, n - own) &&
                             from[n - own] == '.';
                n = child ? own : n;
                n += (size_t)mfl_snprintf(
                        name + n, room - n, "%s%.*s", n && !child ? "/" : "", (int)length, from);
                n = MFL_MIN(n, room - 1);
                from += length;
        }
        for (char *p = name; *p; p++)
                *p = *p == '/' ? '.' : *p;
}

/* "the model's own forward(), net.py line 12", from the last of the lines that current exporters write beside the node:
 * "File "/home/a/net.py", line 12, in forward". */
static void own_forward(const Onnx__NodeProto *node, char *text, size_t room)
{
        const char *trace = metadata_of(node, "pkg.torch.onnx.stack_trace"), *last = NULL;
        for (const char *at = trace; at && (at = strstr(at, "File \"")); at++)
                last = at + 6;
        const char *end = last ? strchr(last, '"') : NULL, *file = end,
                   *line = end ? strstr(end, ", line ") : NULL;
        while (file && file > last && file[-1] != '/')
                file--;
        mfl_snprintf(text, room, "the model's own forward()");
        size_t n = strlen(text), digits = line ? strspn(line + 7, "0123456789") : 0;
        if (digits && digits < 9)
                mfl_snprintf(text + n, room - n, ", %.*s line %.*s", (int)MFL_MIN(end - file, (ptrdiff_t)60),
                        file, (int)digits, line + 7);
}

int mfl_onnx_fail(struct onnx *o, const char *fmt, ...)
{
        char text[sizeof o->err->text], module[80], own[120] = "";
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        if (o->node < 0)
                return mfl_fail(o->err, MFL_INVALID, "%.160s: %s", o->path, text);
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        const char *name = node->name && *node->name            ? node->name
                           : node->n_output && *node->output[0] ? node->output[0]
                                                                : "?";
        module_of(node, module, sizeof module);
        if (!*module && !o->own && (name[0] == '/' || metadata_of(node, "pkg.torch.onnx.name_scopes")))
                own_forward(node, own, sizeof own);
        /* What to do instead stands at the end: the name of the node gives way to it. */
        size_t others = strlen(text) + MFL_MIN(strlen(o->path), (size_t)120) + strlen(module) + strlen(own) +
                        sizeof "module : node  (): : " + 30;
        size_t room = others < sizeof text ? sizeof text - others : 0;
        return mfl_fail(o->err, MFL_INVALID, "%.120s: %s%s%s%snode %.*s (%.30s): %s", o->path,
                *module ? "module " : "", module, own, *module || *own ? ": " : "",
                (int)MFL_MIN(MFL_MAX(room, (size_t)16), (size_t)120), name,
                node->op_type ? node->op_type : "?", text);
}

void mfl_onnx_note(struct onnx *o, const char *fmt, ...)
{
        size_t n = strlen(o->notes), room = sizeof((struct mfl_onnx_model *)0)->notes;
        va_list ap;
        va_start(ap, fmt);
        if (n + 80 < room) {
                mfl_vsnprintf(o->notes + n, room - n - 1, fmt, ap);
                strcat(o->notes, "\n");
        }
        va_end(ap);
}

/* ---- values by name ---- */

static size_t slot_of(const struct onnx *o, const char *name)
{
        uint64_t h = 14695981039346656037u; /* FNV-1a */
        for (const char *p = name; *p; p++)
                h = (h ^ (unsigned char)*p) * 1099511628211u;
        size_t i = h & (o->n_table - 1);
        while (o->table[i].name && strcmp(o->table[i].name, name))
                i = (i + 1) & (o->n_table - 1);
        return i;
}

struct onnx_value *mfl_onnx_find(const struct onnx *o, const char *name)
{
        return o->table[slot_of(o, name)].value;
}

int mfl_onnx_set(struct onnx *o, const char *name, struct onnx_value *value)
{
        struct onnx_entry *entry = &o->table[slot_of(o, name)];
        if (entry->value && entry->value->shape.rank >= 0)
                return mfl_onnx_fail(o, "value '%.120s' is computed twice", name);
        if (entry->value)
                value->uses = entry->value->uses;
        *entry = (struct onnx_entry){name, value};
        return 0;
}

/* ---- a node's attributes and inputs ---- */

const Onnx__AttributeProto *mfl_onnx_attribute(const struct onnx *o, const char *name)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        for (size_t i = 0; i < node->n_attribute; i++)
                if (node->attribute[i]->name && !strcmp(node->attribute[i]->name, name))
                        return node->attribute[i];
        return NULL;
}

int64_t mfl_onnx_int(const struct onnx *o, const char *name, int64_t otherwise)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, name);
        return a && a->has_i ? a->i : otherwise;
}

float mfl_onnx_float(const struct onnx *o, const char *name, float otherwise)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, name);
        return a && a->has_f ? a->f : otherwise;
}

bool mfl_onnx_string_is(const struct onnx *o, const char *name, const char *otherwise, const char *value)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, name);
        if (!a || !a->has_s)
                return !strcmp(otherwise, value);
        return a->s.len == strlen(value) && !memcmp(a->s.data, value, a->s.len);
}

struct onnx_value *mfl_onnx_input(const struct onnx *o, size_t i)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        struct onnx_value *v = i < node->n_input && *node->input[i] ? mfl_onnx_find(o, node->input[i]) : NULL;
        return v && v->lifted && o->lifts[o->node] ? v->lifted : v;
}

/* A view layer of mfl is a Gather with an index for each element. */
#define INTS_MAX (1 << 24)

int mfl_onnx_ints(struct onnx *o, const char *attribute, size_t input, const int64_t **ret_v, int *ret_n)
{
        const Onnx__AttributeProto *a = attribute ? mfl_onnx_attribute(o, attribute) : NULL;
        const struct onnx_value *v = mfl_onnx_input(o, input);
        *ret_n = -1;
        if (a) {
                *ret_v = a->ints;
                *ret_n = (int)a->n_ints;
        } else if (v) {
                if (!v->tensor || !v->tensor->i)
                        return mfl_onnx_fail(o, "input %zu must be a constant of whole numbers", input);
                if (v->tensor->count > INTS_MAX)
                        return mfl_onnx_fail(
                                o, "input %zu has %lld numbers", input, (long long)v->tensor->count);
                *ret_v = v->tensor->i;
                *ret_n = (int)v->tensor->count;
        }
        return 0;
}

const char *mfl_onnx_note_of(const Onnx__NodeProto *node)
{
        return metadata_of(node, "pkg.torch.onnx.fx_node");
}

bool mfl_onnx_of_params(const struct onnx *o, const struct onnx_value *v)
{
        return v->tensor || (v->pending == ONNX_NONE ? o->layers[v->layer].of_params
                                                     : v->base && mfl_onnx_of_params(o, v->base));
}

int mfl_onnx_check_batch(struct onnx *o, const struct onnx_value *x, int64_t axis)
{
        if (axis || x->shape.rank < 2 || x->shape.dim[0] != 1 || mfl_onnx_of_params(o, x))
                return 0;
        return mfl_onnx_fail(o, "is over the batch, but the loss of a sample can't depend on other samples: "
                                "name dimensions of the sample, as in dim=1 or dim=(2, 3)");
}

/* Whether the node puts another dimension first than its first input has there. */
static bool moves_first(const struct onnx *o)
{
        const Onnx__AttributeProto *perm = mfl_onnx_attribute(o, "perm"),
                                   *equation = mfl_onnx_attribute(o, "equation");
        if (!strcmp(mfl_onnx_node(o)->op_type, "Transpose"))
                return !perm || !perm->n_ints || perm->ints[0] != 0;
        if (strcmp(mfl_onnx_node(o)->op_type, "Einsum"))
                return false;
        const char *text = equation && equation->has_s ? (const char *)equation->s.data : "";
        const size_t n = *text ? equation->s.len : 0;
        size_t from = 0, to = 0;
        while (from < n && text[from] == ' ')
                from++;
        while (to < n && text[to] != '>')
                to++;
        for (to++; to < n && text[to] == ' ';)
                to++;
        return from >= n || to >= n || text[from] != text[to];
}

/* The batch is in front where the first dimension is 1. */
static bool is_aside(const struct onnx *o, const struct onnx_value *value)
{
        bool aside = false, samples = false;
        if (o->batch <= 1 || value->tensor || !value->shape.rank || value->shape.dim[0] == 1)
                return false;
        for (size_t k = 0; k < mfl_onnx_node(o)->n_input; k++) {
                const struct onnx_value *v = mfl_onnx_input(o, k);
                const bool computed = v && !v->tensor && !mfl_onnx_of_params(o, v);
                samples = samples || computed;
                aside = aside || (computed && v->aside);
        }
        return aside || (samples && moves_first(o));
}

int mfl_onnx_output(struct onnx *o, size_t i, struct onnx_value *value)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        if (i >= node->n_output || !*node->output[i])
                return 0;
        value->node = o->node;
        value->aside = is_aside(o, value);
        return mfl_onnx_set(o, node->output[i], value);
}

double mfl_onnx_number(const struct onnx_tensor *t, int64_t i)
{
        return t->f ? (double)t->f[i] : (double)t->i[i];
}

bool mfl_onnx_scalar(const struct onnx_value *value, double *ret_v)
{
        if (!value || !value->tensor || value->tensor->count != 1 || value->tensor->param ||
                value->tensor->folded)
                return false;
        *ret_v = mfl_onnx_number(value->tensor, 0);
        return true;
}

/* ---- types ---- */

enum {
        FLOAT = 1,
        UINT8,
        INT8,
        UINT16,
        INT16,
        INT32,
        INT64,
        BOOL = 9,
        FLOAT16,
        DOUBLE,
        UINT32,
        UINT64,
        BFLOAT16 = 16
}; /* TensorProto.DataType */

enum onnx_kind onnx_kind_of(const struct onnx *o, const struct onnx_value *v)
{
        if (v->tensor)
                return v->tensor->f ? ONNX_KIND_FLOAT : v->tensor->is_bool ? ONNX_KIND_BOOL : ONNX_KIND_WHOLE;
        bool plain = !v->pending && !v->samples && v->layer == 0;
        int64_t first = plain && v->map ? v->map[0] : 0;
        for (int k = 0; plain && k < o->n_inputs; k++)
                if (first >= o->inputs[k].offset && first - o->inputs[k].offset < o->inputs[k].count)
                        return o->inputs[k].whole ? ONNX_KIND_WHOLE : ONNX_KIND_FLOAT;
        return ONNX_KIND_FLOAT;
}

int mfl_onnx_cast_kind(struct onnx *o, enum onnx_kind *ret_kind)
{
        const struct onnx_value *like = mfl_onnx_input(o, 1);
        if (!strcmp(mfl_onnx_node(o)->op_type, "CastLike")) {
                if (!like)
                        return mfl_onnx_fail(o, "input 1 is missing");
                *ret_kind = onnx_kind_of(o, like);
                return 0;
        }
        int64_t to = mfl_onnx_int(o, "to", 0);
        *ret_kind = to == FLOAT || to == FLOAT16 || to == DOUBLE || to == BFLOAT16 ? ONNX_KIND_FLOAT
                    : to == BOOL                                                   ? ONNX_KIND_BOOL
                    : (to >= UINT8 && to <= INT64) || to == UINT32 || to == UINT64 ? ONNX_KIND_WHOLE
                                                                                   : ONNX_KIND_OTHER;
        return 0;
}

/* ---- constants ---- */

static size_t element_bytes(int type)
{
        switch (type) {
        case UINT8:
        case INT8:
        case BOOL:
                return 1;
        case UINT16:
        case INT16:
                return 2;
        case FLOAT:
        case INT32:
                return 4;
        case INT64:
        case DOUBLE:
                return 8;
        default:
                return 0;
        }
}

static int64_t read_int(const uint8_t *p, int type)
{
        int16_t s;
        uint16_t u;
        int32_t w;
        int64_t l;
        switch (type) {
        case INT8:
                return (int8_t)*p;
        case UINT16:
                memcpy(&u, p, sizeof u);
                return u;
        case INT16:
                memcpy(&s, p, sizeof s);
                return s;
        case INT32:
                memcpy(&w, p, sizeof w);
                return w;
        case INT64:
                memcpy(&l, p, sizeof l);
                return l;
        default:
                return *p;
        }
}

static bool parse_u64(const char *text, uint64_t *ret_v)
{
        uint64_t v = 0;
        for (const char *p = text; *p; p++)
                if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, 10, &v) ||
                        __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
                        return false;
        *ret_v = v;
        return *text;
}

/* Whether path stays below the model's folder: no step is empty, "." or "..". */
static bool is_below(const char *path)
{
        for (const char *p = path;; p++) {
                size_t n = strcspn(p, "/");
                if (!n || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
                        return false;
                p += n;
                if (!*p)
                        return true;
        }
}

struct external {
        const char *file;
        uint64_t offset, length; /* length 0: absent; the shape gives it */
};

/* Other keys (such as a checksum) are ignored. */
static int describe_external(
        struct onnx *o, const Onnx__TensorProto *proto, const char *name, struct external *ret_external)
{
        struct external e = {.file = NULL};
        for (size_t i = 0; i < proto->n_external_data; i++) {
                const char *key = proto->external_data[i]->key, *value = proto->external_data[i]->value;
                bool offset = key && !strcmp(key, "offset"), length = key && !strcmp(key, "length");
                if (!key || !value)
                        return mfl_onnx_fail(
                                o, "tensor %.120s: a key of its external data has no value", name);
                if (!strcmp(key, "location"))
                        e.file = value;
                if ((offset || length) && !parse_u64(value, offset ? &e.offset : &e.length))
                        return mfl_onnx_fail(o,
                                "tensor %.120s: the %s of its external data is '%.30s', which is not a "
                                "number "
                                "of bytes",
                                name, key, value);
        }
        if (!e.file)
                return mfl_onnx_fail(o, "tensor %.120s: its external data have no location", name);
        if (!is_below(e.file))
                return mfl_onnx_fail(o,
                        "tensor %.120s: its external data are in '%.100s', but must be in a file in or below "
                        "the model's folder",
                        name, e.file);
        *ret_external = e;
        return 0;
}

/* Finds the tensor's data in a file beside the model. */
static int find_external(struct onnx *o, const Onnx__TensorProto *proto, const char *name, uint64_t need,
        const uint8_t **ret_data, size_t *ret_n)
{
        struct external e = {.file = NULL};
        const uint8_t *bytes;
        size_t n;
        int r = describe_external(o, proto, name, &e);
        if (r)
                return r;
        if (!o->files)
                return mfl_onnx_fail(o, "tensor %.120s: its data are in another file, %.120s", name, e.file);
        if ((r = o->files->map(o->files->user, e.file, &bytes, &n, o->err)))
                return r;
        if (!e.length)
                e.length = need;
        if (e.length != need)
                return mfl_onnx_fail(o,
                        "tensor %.120s: has %llu bytes of data in %.120s, but its shape needs %llu", name,
                        (unsigned long long)e.length, e.file, (unsigned long long)need);
        if (e.offset > n || e.length > n - e.offset)
                return mfl_onnx_fail(o,
                        "tensor %.120s: its data are %llu bytes from byte %llu of %.120s, which has only "
                        "%zu: "
                        "the file is truncated or from another model",
                        name, (unsigned long long)e.length, (unsigned long long)e.offset, e.file, n);
        *ret_data = bytes + e.offset;
        *ret_n = (size_t)e.length;
        return 0;
}

static int fill_raw(struct onnx *o, const uint8_t *raw, int type, float *f, int64_t *v, int64_t count)
{
        double d;
        size_t each = element_bytes(type);
        for (int64_t i = 0; i < count; i++) {
                const uint8_t *p = raw + (size_t)i * each;
                if (type == DOUBLE) {
                        memcpy(&d, p, sizeof d);
                        f[i] = (float)d;
                } else if (type == FLOAT) {
                        memcpy(&f[i], p, sizeof *f);
                } else {
                        v[i] = read_int(p, type);
                }
        }
        return 0;
}

static bool fill_typed(const Onnx__TensorProto *proto, int type, float *f, int64_t *v, int64_t count)
{
        size_t n = type == FLOAT    ? proto->n_float_data
                   : type == DOUBLE ? proto->n_double_data
                   : type == INT64  ? proto->n_int64_data
                                    : proto->n_int32_data;
        if ((int64_t)n != count)
                return false;
        for (int64_t i = 0; i < count; i++) {
                if (type == FLOAT)
                        f[i] = proto->float_data[i];
                else if (type == DOUBLE)
                        f[i] = (float)proto->double_data[i];
                else
                        v[i] = type == INT64 ? proto->int64_data[i] : proto->int32_data[i];
        }
        return true;
}

static int read_shape(struct onnx *o, const Onnx__TensorProto *proto, const char *name, struct onnx_tensor *t)
{
        t->count = 1;
        if (proto->n_dims > ONNX_RANK_MAX)
                return mfl_onnx_fail(o, "tensor %.120s has %zu dimensions; the limit is %d", name,
                        proto->n_dims, ONNX_RANK_MAX);
        for (size_t d = 0; d < proto->n_dims; d++) {
                t->shape.dim[d] = proto->dims[d];
                if (proto->dims[d] < 0 || proto->dims[d] > ONNX_ELEMENTS_MAX ||
                        (t->count *= proto->dims[d]) > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "tensor %.120s: dimension %zu is %lld", name, d,
                                (long long)proto->dims[d]);
        }
        t->shape.rank = (int)proto->n_dims;
        return 0;
}

int mfl_onnx_read_tensor(struct onnx *o, const Onnx__TensorProto *proto, struct onnx_tensor **ret_tensor)
{
        const char *name = proto->name ? proto->name : "";
        int type = proto->data_type;
        size_t each = element_bytes(type), n = proto->raw_data.len;
        const uint8_t *raw = proto->has_raw_data ? proto->raw_data.data : NULL;
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        if (!t)
                return onnx_memory(o);
        if (!each)
                return mfl_onnx_fail(o,
                        "tensor %.120s has element type %d; only float32 (1) and whole numbers are "
                        "supported: "
                        "export the model in float32 with model.float()",
                        name, type);
        int r = read_shape(o, proto, name, t);
        if (!r && proto->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL)
                r = find_external(o, proto, name, (uint64_t)t->count * each, &raw, &n);
        if (r)
                return r;
        if (raw && n != (size_t)t->count * each)
                return mfl_onnx_fail(o, "tensor %.120s: has %zu bytes of data, but its shape needs %lld",
                        name, n, (long long)t->count * (long long)each);
        bool is_float = type == FLOAT || type == DOUBLE;
        float *f = is_float ? mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *f) : NULL;
        int64_t *v = is_float ? NULL : mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *v);
        if (!f && !v)
                return onnx_memory(o);
        t->f = f;
        t->i = v;
        t->is_bool = type == BOOL;
        *ret_tensor = t;
        if (raw)
                return fill_raw(o, raw, type, f, v, t->count);
        if (!fill_typed(proto, type, f, v, t->count))
                return mfl_onnx_fail(o,
                        "tensor %.120s: the number of values differs from what its shape needs (%lld)", name,
                        (long long)t->count);
        return 0;
}
