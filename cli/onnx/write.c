/* SPDX-License-Identifier: Apache-2.0 */
/* A native graph as an ONNX file. */
#include "cli/onnx/write.h"

#include <stdio.h>

#include "common/base/fs.h"

#define OPSET 17
#define IR_VERSION 8
#define FILE_MAX ((uint64_t)INT32_MAX - (64 << 20)) /* protobuf's limit minus room for the graph */

enum { TYPE_FLOAT = 1, TYPE_INT64 = 7 };                             /* TensorProto.DataType */
enum { ATTRIBUTE_FLOAT = 1, ATTRIBUTE_INT = 2, ATTRIBUTE_INTS = 7 }; /* AttributeProto.AttributeType */

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

static char *copy(struct onnx_writer *w, const char *text)
{
        char *p = mfl_onnx_writer_alloc(w, strlen(text) + 1, 1);
        return p ? strcpy(p, text) : NULL;
}

const char *mfl_onnx_writer_name(struct onnx_writer *w, const char *what)
{
        char text[WRITER_NAME_BYTES + 64];
        snprintf(text, sizeof text, "/%s%s%s", w->at, *what ? "/" : "", what);
        return copy(w, text);
}

/* Grows a repeated field by one; the array has room up to the next power of two. */
static void *append(struct onnx_writer *w, size_t *n, void ***list, size_t size)
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
        Onnx__NodeProto *node = append(w, &w->proto.n_node, (void ***)&w->proto.node, sizeof *node);
        char **names = mfl_onnx_writer_alloc(w, (size_t)n + 1, sizeof *names);
        if (!node || !names)
                return NULL;
        onnx__node_proto__init(node);
        for (int i = 0; i < n; i++)
                names[i] = copy(w, inputs[i] ? inputs[i] : "");
        node->n_input = (size_t)n;
        node->input = names;
        node->op_type = copy(w, op);
        node->name = copy(w, output ? output : "");
        mfl_onnx_writer_output(w, output);
        return output;
}

void mfl_onnx_writer_output(struct onnx_writer *w, const char *name)
{
        if (w->failed)
                return;
        Onnx__NodeProto *node = w->proto.node[w->proto.n_node - 1];
        char **more = mfl_onnx_writer_alloc(w, node->n_output + 1, sizeof *more);
        char *text = copy(w, name ? name : "");
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
        Onnx__AttributeProto *a = append(w, &node->n_attribute, (void ***)&node->attribute, sizeof *a);
        if (!a)
                return NULL;
        onnx__attribute_proto__init(a);
        a->name = copy(w, name);
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

static Onnx__TensorProto *tensor(struct onnx_writer *w, const char *name, int type, const int64_t *dims,
        int n_dims, const void *data, size_t bytes)
{
        Onnx__TensorProto *t = append(w, &w->proto.n_initializer, (void ***)&w->proto.initializer, sizeof *t);
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
        t->name = copy(w, name);
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
                tensor(w, name, TYPE_FLOAT, dims, n_dims, data, (size_t)count * sizeof *data);
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
        return constant(w, what, TYPE_INT64, v, (size_t)dim * sizeof *v, &dim, n < 0 ? 0 : 1);
}

const char *mfl_onnx_writer_scalar(struct onnx_writer *w, const char *what, float v)
{
        return constant(w, what, TYPE_FLOAT, &v, sizeof v, NULL, 0);
}

const char *mfl_onnx_writer_repeated(struct onnx_writer *w, const char *what, float v, int64_t n)
{
        float *all = mfl_onnx_writer_alloc(w, (size_t)n, sizeof *all);
        if (!all)
                return NULL;
        for (int64_t i = 0; i < n; i++)
                all[i] = v;
        return constant(w, what, TYPE_FLOAT, all, (size_t)n * sizeof *all, &n, 1);
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
                return constant(w, strrchr(p->name, '.') ? strrchr(p->name, '.') + 1 : "value", TYPE_FLOAT,
                        data, (size_t)p->count * sizeof *data, dims, n_dims);
        if (p->n_uses == 1)
                return mfl_onnx_writer_tensor(w, p->name, dims, n_dims, data, p->count);
        const char *shared = mfl_onnx_writer_tensor(w, p->name, p->shape.dim, p->shape.rank, data, p->count);
        if (n_dims == p->shape.rank)
                return shared;
        const char *inputs[] = {shared, mfl_onnx_writer_whole(w, "shape", dims, n_dims)};
        return mfl_onnx_writer_node(w, "Reshape", mfl_onnx_writer_name(w, "shaped"), 2, inputs);
}

const char *mfl_onnx_writer_param(struct onnx_writer *w, int param)
{
        const struct mfl_param *p = &w->graph->params[param];
        return mfl_onnx_writer_shaped(w, param, p->shape.dim, p->shape.rank);
}

/* The batch dimension has no fixed size. */
static void put_info(
        struct onnx_writer *w, bool output, const char *name, const struct mfl_shape *shape, int type)
{
        Onnx__ValueInfoProto *info = append(w, output ? &w->proto.n_output : &w->proto.n_input,
                (void ***)(output ? &w->proto.output : &w->proto.input), sizeof *info);
        Onnx__TypeProto *t = mfl_onnx_writer_alloc(w, 1, sizeof *t);
        Onnx__TypeProto__Tensor *of = mfl_onnx_writer_alloc(w, 1, sizeof *of);
        Onnx__TensorShapeProto *dims = mfl_onnx_writer_alloc(w, 1, sizeof *dims);
        if (!info || !t || !of || !dims)
                return;
        onnx__value_info_proto__init(info);
        onnx__type_proto__init(t);
        onnx__type_proto__tensor__init(of);
        onnx__tensor_shape_proto__init(dims);
        info->name = copy(w, name);
        info->type = t;
        t->tensor_type = of;
        of->has_elem_type = true;
        of->elem_type = type;
        of->shape = dims;
        for (int d = -1; d < shape->rank; d++) {
                Onnx__TensorShapeProto__Dimension *dim =
                        append(w, &dims->n_dim, (void ***)&dims->dim, sizeof *dim);
                if (!dim)
                        return;
                onnx__tensor_shape_proto__dimension__init(dim);
                if (d < 0) {
                        dim->dim_param = copy(w, "batch");
                } else {
                        dim->has_dim_value = true;
                        dim->dim_value = shape->dim[d];
                }
        }
}

static int write_graph(struct onnx_writer *w, struct mfl_error *err)
{
        const struct mfl_graph *g = w->graph;
        w->names = mfl_onnx_writer_alloc(w, (size_t)g->n_layers, sizeof *w->names);
        if (w->names)
                mfl_strcpy(w->names[0], sizeof w->names[0], "input");
        put_info(w, false, "input", &g->input, g->vocabulary ? TYPE_INT64 : TYPE_FLOAT);
        for (int i = 1; !w->failed && i < g->n_layers; i++) {
                int r = mfl_onnx_write_layer(w, i, err);
                if (r)
                        return r;
        }
        if (!w->failed)
                put_info(w, true, w->names[g->n_layers - 1], &g->layers[g->n_layers - 1].out, TYPE_FLOAT);
        return w->failed ? mfl_fail_memory(err, w->n_blocks, "an ONNX graph") : 0;
}

static int write_file(const char *path, const Onnx__ModelProto *model, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        size_t n = onnx__model_proto__get_packed_size(model);
        MFL_CLEANUP_FREE uint8_t *bytes = mfl_malloc(n);
        if (!bytes)
                return mfl_fail_memory(err, n, path);
        onnx__model_proto__pack(model, bytes);
        int r = mfl_fs_begin(&file, path, err);
        if (r)
                return r;
        r = mfl_fs_write(&file, bytes, n, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_onnx_write(
        const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err)
{
        struct onnx_writer w = {.graph = graph, .params = params, .proto = ONNX__GRAPH_PROTO__INIT};
        Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
        Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};
        char name[] = "mfl", version[] = MFL_VERSION, domain[] = "";
        if (graph->n * sizeof *params > FILE_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%s: %llu parameters don't fit into an ONNX file, whose limit is 2 GiB; use --format "
                        "safetensors",
                        path, (unsigned long long)graph->n);
        opset.domain = domain;
        opset.has_version = true;
        opset.version = OPSET;
        model.has_ir_version = true;
        model.ir_version = IR_VERSION;
        model.producer_name = name;
        model.producer_version = version;
        model.graph = &w.proto;
        model.n_opset_import = 1;
        model.opset_import = opsets;
        w.proto.name = name;
        int r = write_graph(&w, err);
        if (!r)
                r = write_file(path, &model, err);
        for (size_t i = 0; i < w.n_blocks; i++)
                free(w.blocks[i]);
        free(w.blocks);
        return r;
}
