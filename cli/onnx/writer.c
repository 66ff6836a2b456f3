/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the nodes, attributes and tensors of an ONNX graph. */
#include "cli/onnx/write.h"

#include <stdio.h>

enum {
        ATTRIBUTE_FLOAT = 1,
        ATTRIBUTE_INT = 2,
        ATTRIBUTE_STRING = 3,
        ATTRIBUTE_INTS = 7,
        ATTRIBUTE_STRINGS = 8
}; /* AttributeProto.AttributeType */

void *mfl_onnx_writer_alloc(struct onnx_writer *w, size_t n, size_t size)
{
        if (w->n_blocks == w->blocks_max) {
                size_t more = w->blocks_max * 2 + 256;
                void **blocks = mfl_realloc(w->blocks, more * sizeof *blocks);
                if (!blocks) {
                        w->failed = true;
                        return NULL;
                }
                w->blocks = blocks;
                w->blocks_max = more;
        }
        void *p = w->failed ? NULL : mfl_calloc(n, size);
        if (p)
                w->blocks[w->n_blocks++] = p;
        w->failed = !p;
        return p;
}

char *mfl_onnx_writer_copy(struct onnx_writer *w, const char *text)
{
        char *p = mfl_onnx_writer_alloc(w, strlen(text) + 1, 1);
        return p ? strcpy(p, text) : NULL;
}

const char *mfl_onnx_writer_name(struct onnx_writer *w, const char *what)
{
        char text[WRITER_NAME_BYTES + 64];
        snprintf(text, sizeof text, "/%s%s%s", w->at, *what ? "/" : "", what);
        return mfl_onnx_writer_copy(w, text);
}

/* Grows a repeated field by one; the array has room up to the next power of two. */
void *mfl_onnx_writer_append(struct onnx_writer *w, size_t *n, void ***list, size_t size)
{
        if ((*n & (*n - 1)) == 0) {
                void **more = mfl_onnx_writer_alloc(w, *n ? *n * 2 : 1, sizeof *more);
                if (!more)
                        return NULL;
                if (*n)
                        memcpy(more, *list, *n * sizeof *more);
                *list = more;
        }
        void *item = mfl_onnx_writer_alloc(w, 1, size);
        if (item)
                (*list)[(*n)++] = item;
        return item;
}

const char *mfl_onnx_writer_node(
        struct onnx_writer *w, const char *op, const char *output, int n, const char *const *inputs)
{
        Onnx__NodeProto *node =
                mfl_onnx_writer_append(w, &w->proto.n_node, (void ***)&w->proto.node, sizeof *node);
        char **names = mfl_onnx_writer_alloc(w, (size_t)n + 1, sizeof *names);
        if (!node || !names)
                return NULL;
        onnx__node_proto__init(node);
        for (int i = 0; i < n; i++)
                names[i] = mfl_onnx_writer_copy(w, inputs[i] ? inputs[i] : "");
        node->n_input = (size_t)n;
        node->input = names;
        node->op_type = mfl_onnx_writer_copy(w, op);
        node->name = mfl_onnx_writer_copy(w, output ? output : "");
        mfl_onnx_writer_output(w, output);
        return output;
}

void mfl_onnx_writer_output(struct onnx_writer *w, const char *name)
{
        if (w->failed)
                return;
        Onnx__NodeProto *node = w->proto.node[w->proto.n_node - 1];
        char **more = mfl_onnx_writer_alloc(w, node->n_output + 1, sizeof *more);
        char *text = mfl_onnx_writer_copy(w, name ? name : "");
        if (!more || !text)
                return;
        if (node->n_output)
                memcpy(more, node->output, node->n_output * sizeof *more);
        more[node->n_output++] = text;
        node->output = more;
}

static Onnx__AttributeProto *attribute(struct onnx_writer *w, const char *name, int type)
{
        if (w->failed)
                return NULL;
        Onnx__NodeProto *node = w->proto.node[w->proto.n_node - 1];
        Onnx__AttributeProto *a =
                mfl_onnx_writer_append(w, &node->n_attribute, (void ***)&node->attribute, sizeof *a);
        if (!a)
                return NULL;
        onnx__attribute_proto__init(a);
        a->name = mfl_onnx_writer_copy(w, name);
        a->has_type = true;
        a->type = type;
        return a;
}

void mfl_onnx_writer_int(struct onnx_writer *w, const char *name, int64_t v)
{
        Onnx__AttributeProto *a = attribute(w, name, ATTRIBUTE_INT);
        if (!a)
                return;
        a->has_i = true;
        a->i = v;
}

void mfl_onnx_writer_float(struct onnx_writer *w, const char *name, float v)
{
        Onnx__AttributeProto *a = attribute(w, name, ATTRIBUTE_FLOAT);
        if (!a)
                return;
        a->has_f = true;
        a->f = v;
}

void mfl_onnx_writer_ints(struct onnx_writer *w, const char *name, const int64_t *v, int n)
{
        Onnx__AttributeProto *a = attribute(w, name, ATTRIBUTE_INTS);
        int64_t *own = a ? mfl_onnx_writer_alloc(w, (size_t)n + 1, sizeof *own) : NULL;
        if (!own)
                return;
        memcpy(own, v, (size_t)n * sizeof *own);
        a->n_ints = (size_t)n;
        a->ints = own;
}

void mfl_onnx_writer_string(struct onnx_writer *w, const char *name, const char *v)
{
        Onnx__AttributeProto *a = attribute(w, name, ATTRIBUTE_STRING);
        char *own = a ? mfl_onnx_writer_copy(w, v) : NULL;
        if (!own)
                return;
        a->has_s = true;
        a->s.data = (uint8_t *)own;
        a->s.len = strlen(own);
}

void mfl_onnx_writer_strings(struct onnx_writer *w, const char *name, const char *v)
{
        Onnx__AttributeProto *a = attribute(w, name, ATTRIBUTE_STRINGS);
        char *own = a ? mfl_onnx_writer_copy(w, v) : NULL;
        ProtobufCBinaryData *list = own ? mfl_onnx_writer_alloc(w, 1, sizeof *list) : NULL;
        if (!list)
                return;
        *list = (ProtobufCBinaryData){.data = (uint8_t *)own, .len = strlen(own)};
        a->n_strings = 1;
        a->strings = list;
}

static Onnx__TensorProto *tensor(struct onnx_writer *w, const char *name, int type, const int64_t *dims,
        int n_dims, const void *data, size_t bytes)
{
        Onnx__TensorProto *t = mfl_onnx_writer_append(
                w, &w->proto.n_initializer, (void ***)&w->proto.initializer, sizeof *t);
        int64_t *own = t ? mfl_onnx_writer_alloc(w, (size_t)n_dims + 1, sizeof *own) : NULL;
        if (!own)
                return NULL;
        onnx__tensor_proto__init(t);
        if (n_dims)
                memcpy(own, dims, (size_t)n_dims * sizeof *own);
        t->n_dims = (size_t)n_dims;
        t->dims = own;
        t->has_data_type = true;
        t->data_type = type;
        t->name = mfl_onnx_writer_copy(w, name);
        t->has_raw_data = true;
        t->raw_data.data = (uint8_t *)(uintptr_t)data;
        t->raw_data.len = bytes;
        return t;
}

const char *mfl_onnx_writer_tensor(struct onnx_writer *w, const char *name, const int64_t *dims, int n_dims,
        const float *data, uint64_t count)
{
        for (size_t i = 0; i < w->proto.n_initializer; i++) /* shared tensors stand there once */
                if (w->proto.initializer[i]->name && !strcmp(w->proto.initializer[i]->name, name))
                        return w->proto.initializer[i]->name;
        const Onnx__TensorProto *t =
                tensor(w, name, WRITER_TYPE_FLOAT, dims, n_dims, data, (size_t)count * sizeof *data);
        return t ? t->name : NULL;
}

/* A tensor in a Constant node, as PyTorch's exporters write it. Initializers are for trained params. */
static const char *constant(struct onnx_writer *w, const char *what, int type, const void *data, size_t bytes,
        const int64_t *dims, int n_dims)
{
        const char *name = mfl_onnx_writer_node(w, "Constant", mfl_onnx_writer_name(w, what), 0, NULL);
        void *own = mfl_onnx_writer_alloc(w, 1, bytes);
        Onnx__AttributeProto *a = attribute(w, "value", 4);
        if (!own || !a)
                return NULL;
        memcpy(own, data, bytes);
        size_t n = w->proto.n_initializer;
        a->t = tensor(w, "", type, dims, n_dims, own, bytes);
        w->proto.n_initializer = n;
        return name;
}

const char *mfl_onnx_writer_whole(struct onnx_writer *w, const char *what, const int64_t *v, int n)
{
        int64_t dim = n < 0 ? 1 : n;
        return constant(w, what, WRITER_TYPE_INT64, v, (size_t)dim * sizeof *v, &dim, n < 0 ? 0 : 1);
}

static size_t count_of(const int64_t *dims, int n_dims)
{
        int64_t n = 1;
        for (int d = 0; d < n_dims; d++)
                n *= dims[d];
        return (size_t)n;
}

const char *mfl_onnx_writer_indices(
        struct onnx_writer *w, const char *what, const int64_t *v, const int64_t *dims, int n_dims)
{
        return constant(w, what, WRITER_TYPE_INT64, v, count_of(dims, n_dims) * sizeof *v, dims, n_dims);
}

const char *mfl_onnx_writer_numbers(
        struct onnx_writer *w, const char *what, const float *v, const int64_t *dims, int n_dims)
{
        return constant(w, what, WRITER_TYPE_FLOAT, v, count_of(dims, n_dims) * sizeof *v, dims, n_dims);
}

const char *mfl_onnx_writer_scalar(struct onnx_writer *w, const char *what, float v)
{
        return constant(w, what, WRITER_TYPE_FLOAT, &v, sizeof v, NULL, 0);
}

const char *mfl_onnx_writer_repeated(struct onnx_writer *w, const char *what, float v, int64_t n)
{
        float *all = mfl_onnx_writer_alloc(w, (size_t)n, sizeof *all);
        if (!all)
                return NULL;
        for (int64_t i = 0; i < n; i++)
                all[i] = v;
        return constant(w, what, WRITER_TYPE_FLOAT, all, (size_t)n * sizeof *all, &n, 1);
}

/* When the file is read back, an initializer is trained and a constant is not. */
const char *mfl_onnx_writer_shaped(struct onnx_writer *w, int param, const int64_t *dims, int n_dims)
{
        const struct mfl_param *p = &w->graph->params[param];
        const struct mfl_layer *l = &w->graph->layers[p->layer];
        const float *data = w->params + p->offset;
        bool may_freeze = l->op == MFL_OP_WEIGHT || l->op == MFL_OP_GROUPNORM || l->op == MFL_OP_LAYERNORM ||
                          l->op == MFL_OP_RMSNORM;
        if (l->frozen && may_freeze)
                return constant(w, strrchr(p->name, '.') ? strrchr(p->name, '.') + 1 : "value",
                        WRITER_TYPE_FLOAT, data, (size_t)p->count * sizeof *data, dims, n_dims);
        if (p->n_uses == 1)
                return mfl_onnx_writer_tensor(w, p->name, dims, n_dims, data, p->count);
        const char *shared = mfl_onnx_writer_tensor(w, p->name, p->shape.dim, p->shape.rank, data, p->count);
        if (n_dims == p->shape.rank && !memcmp(dims, p->shape.dim, (size_t)n_dims * sizeof *dims))
                return shared;
        char what[WRITER_NAME_BYTES];
        const char *own = strrchr(p->name, '.') ? strrchr(p->name, '.') + 1 : "value";
        snprintf(what, sizeof what, "%s_shape", own); /* a layer may have several shared tensors */
        const char *inputs[] = {shared, mfl_onnx_writer_whole(w, what, dims, n_dims)};
        snprintf(what, sizeof what, "%s_shaped", own);
        return mfl_onnx_writer_node(w, "Reshape", mfl_onnx_writer_name(w, what), 2, inputs);
}

const char *mfl_onnx_writer_param(struct onnx_writer *w, int param)
{
        const struct mfl_param *p = &w->graph->params[param];
        return mfl_onnx_writer_shaped(w, param, p->shape.dim, p->shape.rank);
}
