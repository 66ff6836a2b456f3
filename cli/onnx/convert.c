/* SPDX-License-Identifier: Apache-2.0 */
/* From the bytes of an ONNX file to a list of layers and params: parse, take the nodes in order, drop what
 * the output does not need, and build the native graph, which checks everything once more. */
#include <stdio.h>

#include "cli/onnx/internal.h"
#include "common/bounded.h"

#define BUDGET_FACTOR 48
#define BUDGET_BASE ((uint64_t)64 << 20)

#define EXPORT_CALL                                                                                          \
        "torch.onnx.export(model, x, file, training=torch.onnx.TrainingMode.TRAINING, "                      \
        "do_constant_folding=False, "                                                                        \
        "opset_version=17, dynamo=False)"

static int unpack(const uint8_t *bytes, size_t n, const char *path, ProtobufCAllocator *allocator,
        Onnx__ModelProto **ret_model, struct mfl_error *err)
{
        const struct mfl_bounded *bounded = allocator->allocator_data;
        *ret_model = onnx__model_proto__unpack(allocator, n, bytes);
        if (*ret_model)
                return 0;
        if (bounded->out_of_memory)
                return mfl_fail_memory(err, n, path);
        return mfl_fail(err, MFL_INVALID, "%.200s: is no ONNX file, or a truncated one (%zu bytes)", path, n);
}

/* ---- before the nodes ---- */

static int set_up(struct onnx *o)
{
        size_t n = 16, values = o->graph->n_initializer + o->graph->n_input;
        for (size_t i = 0; i < o->graph->n_node; i++)
                values += o->graph->node[i]->n_output;
        while (n < 2 * values + 2)
                n *= 2;
        o->n_table = n;
        o->table = onnx_alloc(o, n, sizeof *o->table);
        o->layers = onnx_alloc(o, MFL_LAYERS_MAX, sizeof *o->layers);
        return o->table && o->layers ? 0 : onnx_memory(o);
}

static int read_initializers(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const Onnx__TensorProto *proto = o->graph->initializer[i];
                struct onnx_tensor *t;
                struct onnx_value *v;
                int r = onnx_read_tensor(o, proto, &t);
                if (!r)
                        r = onnx_new_value(o, &t->shape, &v);
                if (r)
                        return r;
                t->origin = proto->name ? proto->name : "";
                v->tensor = t;
                v->node = -1;
                if ((r = onnx_set(o, t->origin, v)))
                        return r;
        }
        return 0;
}

static int read_input(struct onnx *o, const Onnx__ValueInfoProto *info, struct mfl_shape *ret_input)
{
        const Onnx__TypeProto__Tensor *type = info->type ? info->type->tensor_type : NULL;
        const Onnx__TensorShapeProto *dims = type ? type->shape : NULL;
        struct onnx_shape shape = {0};
        struct mfl_shape in = {0};
        struct onnx_value *v;
        int layer;
        if (!dims || dims->n_dim < 2 || dims->n_dim > 4)
                return onnx_fail(o,
                        "input %.60s has %zu dimensions; expected are the batch and 1 to 3 of a sample",
                        info->name, dims ? dims->n_dim : 0);
        for (size_t d = 0; d < dims->n_dim; d++) {
                int64_t size = dims->dim[d]->has_dim_value ? dims->dim[d]->dim_value : 0;
                if (d && (size < 1 || size > 65536))
                        return onnx_fail(o,
                                "input %.60s: dimension %zu must be a number from 1 to 65536 (only the batch "
                                "may "
                                "be dynamic)",
                                info->name, d);
                shape.dim[d] = d ? size : 1;
                if (d)
                        in.dim[in.rank++] = size;
        }
        shape.rank = (int)dims->n_dim;
        bool whole = type->elem_type == 7 || type->elem_type == 6;
        if ((!whole && type->elem_type != 1) || (whole && in.rank != 1))
                return onnx_fail(o,
                        "input %.60s: float32 numbers, or {batch, positions} tokens as int64, are expected",
                        info->name);
        struct mfl_layer l = {.op = MFL_OP_INPUT, .input = -1, .out = in};
        o->tokens = whole;
        int r = onnx_add_layer(o, &l, NULL, -1, &layer);
        if (!r)
                r = onnx_layer_value(o, layer, &shape, &v);
        if (r)
                return r;
        *ret_input = in;
        return onnx_set(o, info->name, v);
}

static int read_inputs(struct onnx *o, struct mfl_shape *ret_input)
{
        int n = 0, r = 0;
        for (size_t i = 0; !r && i < o->graph->n_input; i++) {
                const Onnx__ValueInfoProto *info = o->graph->input[i];
                if (!info->name || onnx_find(o, info->name))
                        continue; /* initializers are inputs too in old files */
                if (n++)
                        return onnx_fail(o, "has a second input, %.60s; mfl takes models of one", info->name);
                r = read_input(o, info, ret_input);
        }
        if (!r && !n)
                return onnx_fail(o, "the graph has no input");
        if (!r && o->graph->n_output != 1)
                onnx_note(o, "of %zu outputs the first is trained", o->graph->n_output);
        return !r && !o->graph->n_output ? onnx_fail(o, "the graph has no output") : r;
}

/* What an export for inference has done can't be undone: batch norm is inside of the weights of convolutions.
 */
static int check_folded(struct onnx *o)
{
        bool has_norm = false, has_conv = false;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                has_norm = has_norm || strstr(node->op_type, "Normalization");
                if (strcmp(node->op_type, "Conv"))
                        continue;
                has_conv = true;
                if (node->n_input > 1 && !strncmp(node->input[1], "onnx::Conv_", 11)) {
                        o->node = (int)i;
                        return onnx_fail(o,
                                "its weights are %.40s, which no module of PyTorch has: batch norm was "
                                "folded into them by an "
                                "export for inference. Export for training: " EXPORT_CALL,
                                node->input[1]);
                }
                for (size_t k = 0; k < node->n_metadata_props; k++) {
                        const char *value = node->metadata_props[k]->value;
                        if (value && strstr(value, "atch_norm")) {
                                o->node = (int)i;
                                return onnx_fail(o,
                                        "batch norm was folded into it. Export for training: " EXPORT_CALL);
                        }
                }
        }
        if (has_conv && !has_norm)
                onnx_note(o,
                        "the graph has convolutions and no norm; if the model has batch norm, the export "
                        "lost it: use " EXPORT_CALL);
        o->node = -1;
        return 0;
}

/* Of some inputs only shape or type count: that is no use of the value. */
static size_t n_data_inputs(const Onnx__NodeProto *node)
{
        if (!strcmp(node->op_type, "Shape") || !strcmp(node->op_type, "Size"))
                return 0;
        return strcmp(node->op_type, "CastLike") ? node->n_input : MFL_MIN(node->n_input, (size_t)1);
}

static void count_uses(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++)
                for (size_t k = 0; k < n_data_inputs(o->graph->node[i]); k++)
                        if (*o->graph->node[i]->input[k] && onnx_find(o, o->graph->node[i]->input[k]))
                                onnx_find(o, o->graph->node[i]->input[k])->uses++;
        for (size_t i = 0; i < o->graph->n_output; i++)
                if (o->graph->output[i]->name && onnx_find(o, o->graph->output[i]->name))
                        onnx_find(o, o->graph->output[i]->name)->uses++;
}

/* Placeholders of a rank below 0 hold how often a value is read until it is made. */
static int prepare_uses(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                if (!node->op_type)
                        return onnx_fail(o, "node %zu has no operator", i);
                for (size_t k = 0; k < node->n_output; k++) {
                        struct onnx_shape none = {.rank = -1};
                        struct onnx_value *v;
                        int r;
                        if (!*node->output[k] || onnx_find(o, node->output[k]))
                                continue;
                        if ((r = onnx_new_value(o, &none, &v)) || (r = onnx_set(o, node->output[k], v)))
                                return r;
                }
        }
        count_uses(o);
        return 0;
}

/* ---- nodes ---- */

static int check_node(struct onnx *o)
{
        const Onnx__NodeProto *node = onnx_node(o);
        bool own = !node->domain || !*node->domain || !strcmp(node->domain, "ai.onnx");
        if (!own && !strncmp(node->domain, "pkg.", 4))
                return onnx_fail(o,
                        "calls a function of %.60s that the export did not write out: "
                        "torch.onnx.export(..., dynamo=True, optimize=True) does",
                        node->domain);
        if (!own)
                return onnx_fail(
                        o, "an operator of domain %.60s; only ONNX's own are supported", node->domain);
        for (size_t i = 0; i < node->n_input; i++) {
                const struct onnx_value *v = onnx_input(o, i);
                if (*node->input[i] && (!v || v->shape.rank < 0))
                        return onnx_fail(o, "reads %.60s, which no earlier node makes", node->input[i]);
        }
        return 0;
}

/* What PyTorch's optimiser always takes away. */
static bool is_unoptimised(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++)
                if (!strcmp(o->graph->node[i]->op_type, "CastLike"))
                        return true;
        return false;
}

static int convert_node(struct onnx *o)
{
        bool taken = false;
        int r = check_node(o);
        if (r)
                return r;
        if (onnx_is_fold(o))
                return onnx_fold(o);
        if ((r = onnx_noise_step(o, &taken)) || taken)
                return r;
        if ((r = onnx_attention_step(o, &taken)) || taken)
                return r;
        if ((r = onnx_norm_step(o, &taken)) || taken)
                return r;
        if ((r = onnx_groupnorm_step(o, &taken)) || taken)
                return r;
        if (onnx_is_elementwise(o))
                return onnx_elementwise(o);
        if (onnx_is_move(o))
                return onnx_move(o);
        if ((r = onnx_operator(o, &taken)) || taken)
                return r;
        if (is_unoptimised(o))
                return onnx_fail(o,
                        "this operator is not supported, and the file was exported with optimize=False: "
                        "torch.onnx.export(..., dynamo=True, optimize=True) may write it in another way");
        return onnx_fail(o,
                "this operator is not supported. Supported are Conv, ConvTranspose, Gemm, MatMul, "
                "BatchNormalization, LayerNormalization, InstanceNormalization, GroupNormalization, Relu, "
                "LeakyRelu, Elu, Clip, Sigmoid, Tanh, HardSigmoid, HardSwish, Gelu, Softplus, pools, "
                "ReduceMean, Reshape, Transpose, Slice, Concat, Add, Mul, Dropout, Softmax, LSTM, GRU, "
                "embeddings and attention");
}

/* ---- after the nodes ---- */

static bool *needed_layers(struct onnx *o, int last)
{
        bool *needed = onnx_alloc(o, (size_t)o->n_layers, sizeof *needed);
        if (!needed)
                return NULL;
        needed[0] = needed[last] = true;
        for (int i = o->n_layers - 1; i > 0; i--) {
                const struct mfl_layer *l = &o->layers[i].layer;
                if (needed[i] && l->input >= 0)
                        needed[l->input] = true;
                if (needed[i] && l->input2 >= 0)
                        needed[l->input2] = true;
        }
        return needed;
}

/* Layers that the output needs, in the order of the nodes: by counting those of each node, since qsort of
 * more than 1 KiB asks the system how much memory there is. */
static int order_layers(struct onnx *o, int last)
{
        int n_nodes = (int)o->graph->n_node, n = 0;
        int *start = onnx_alloc(o, (size_t)n_nodes + 2, sizeof *start);
        int *number = onnx_alloc(o, (size_t)o->n_layers, sizeof *number);
        struct onnx_layer *sorted = onnx_alloc(o, (size_t)o->n_layers, sizeof *sorted);
        const bool *needed = needed_layers(o, last);
        if (!start || !number || !sorted || !needed)
                return onnx_memory(o);
        /* The input, made before all nodes, is of node -1. */
        for (int i = 0; i < o->n_layers; i++)
                start[o->layers[i].at + 2] += needed[i];
        for (int k = 1; k < n_nodes + 2; k++)
                start[k] += start[k - 1];
        for (int i = 0; i < o->n_layers; i++)
                if (needed[i])
                        number[i] = start[o->layers[i].at + 1]++;
        for (int i = 0; i < o->n_layers; i++) {
                if (!needed[i])
                        continue;
                struct mfl_layer *l = &sorted[number[i]].layer;
                sorted[number[i]] = o->layers[i];
                l->input = l->input < 0 ? -1 : number[l->input];
                l->input2 = l->input2 < 0 ? -1 : number[l->input2];
                n++;
        }
        o->layers = sorted;
        o->n_layers = n;
        return 0;
}

static int fill_params(struct onnx *o, const struct mfl_graph *graph, float *params)
{
        int k = 0;
        for (int p = 0; p < graph->n_params; p++) {
                const struct mfl_param *param = &graph->params[p];
                k = p && graph->params[p - 1].layer == param->layer ? k + 1 : 0;
                const struct onnx_tensor *t =
                        k < ONNX_TENSORS_PER_LAYER ? o->layers[param->layer].tensors[k] : NULL;
                if (!t || (uint64_t)t->count != param->count)
                        return onnx_fail(o, "tensor %s has %lld numbers, its layer takes %llu", param->name,
                                t ? (long long)t->count : 0, (unsigned long long)param->count);
                memcpy(params + param->offset, t->f, param->count * sizeof *params);
        }
        return 0;
}

static int build(struct onnx *o, int classes, struct mfl_onnx_model *model)
{
        struct mfl_layer *layers = onnx_alloc(o, (size_t)o->n_layers, sizeof *layers);
        struct mfl_graph *graph = NULL;
        struct mfl_error why;
        if (!layers)
                return onnx_memory(o);
        for (int i = 0; i < o->n_layers; i++)
                layers[i] = o->layers[i].layer;
        int r = mfl_graph_build("onnx", layers, o->n_layers, classes, &graph, &why);
        if (r > 0)
                return onnx_fail(o, "%.300s", why.text);
        if (!r)
                r = mfl_graph_by_layers(graph, &why);
        if (r) {
                mfl_graph_free(graph);
                return mfl_fail(o->err, r, "%s", why.text);
        }
        for (int i = 0; !r && i < o->n_layers; i++)
                if (!mfl_shape_equal(&graph->layers[i].out, &layers[i].out))
                        r = onnx_fail(
                                o, "layer %s has another shape than the graph says", graph->layers[i].name);
        model->n = graph->n;
        model->params = r ? NULL : mfl_alloc_aligned(MFL_MAX(graph->n, (uint64_t)1) * sizeof(float));
        if (!r && !model->params)
                r = mfl_fail_memory(o->err, graph->n * sizeof(float), "params");
        if (!r)
                r = fill_params(o, graph, model->params);
        if (!r)
                r = onnx_text(o, graph, &model->text);
        mfl_graph_free(graph);
        return r;
}

static int finish(struct onnx *o, struct mfl_onnx_model *model)
{
        const char *name = o->graph->output[0]->name;
        struct onnx_value *v = name ? onnx_find(o, name) : NULL, *view;
        struct mfl_shape shape;
        int last, r;
        o->node = (int)o->graph->n_node - 1;
        if (!v || v->shape.rank < 1 || v->tensor || o->node < 0)
                return onnx_fail(o, "the output %.60s does not depend on the input", name ? name : "?");
        if ((r = onnx_resolve(o, v, &view)))
                return r;
        onnx_rows_shape(view, &shape);
        if (view->shape.rank == 3 && view->shape.dim[0] == 1)
                shape = (struct mfl_shape){2, {view->shape.dim[1], view->shape.dim[2]}};
        else if (view->shape.rank > 3 || (view->shape.rank == 1))
                return onnx_fail(o, "the output must be {batch, classes} or {batch, positions, classes}");
        if ((r = onnx_layer_of(o, view, &shape, &last)) || (r = order_layers(o, last)))
                return r;
        o->node = -1;
        model->classes = (int)shape.dim[shape.rank - 1];
        return shape.dim[shape.rank - 1] > 65536 ? onnx_fail(o, "more than 65536 classes")
                                                 : build(o, model->classes, model);
}

static int convert(struct onnx *o, struct mfl_onnx_model *model)
{
        int r = set_up(o);
        if (!r)
                r = read_initializers(o);
        if (!r)
                r = read_inputs(o, &model->input);
        if (!r)
                r = prepare_uses(o);
        if (!r)
                r = check_folded(o);
        for (o->node = 0; !r && o->node < (int)o->graph->n_node; o->node++)
                r = convert_node(o);
        return r ? r : finish(o, model);
}

static int64_t opset_of(const Onnx__ModelProto *proto)
{
        for (size_t i = 0; i < proto->n_opset_import; i++) {
                const char *domain = proto->opset_import[i]->domain;
                if (!domain || !*domain || !strcmp(domain, "ai.onnx"))
                        return proto->opset_import[i]->version;
        }
        return 0;
}

int mfl_onnx_convert(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct mfl_bounded bounded = {.left = (uint64_t)n_bytes * BUDGET_FACTOR + BUDGET_BASE};
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, &bounded};
        struct mfl_onnx_model model = {.n = 0};
        Onnx__ModelProto *proto;
        int r = unpack(bytes, n_bytes, path, &allocator, &proto, err);
        if (r)
                return r;
        struct onnx o = {.path = path,
                .graph = proto->graph,
                .opset = opset_of(proto),
                .files = files,
                .budget = files ? UINT64_MAX / 4 : (uint64_t)n_bytes * BUDGET_FACTOR + BUDGET_BASE,
                .node = -1,
                .notes = model.notes,
                .err = err};
        if (!proto->graph || !proto->graph->n_node)
                r = onnx_fail(&o, "is no ONNX model: it has no graph with nodes");
        else if (o.opset < 9 || o.opset > 25)
                r = onnx_fail(&o, "has opset %lld; 9 to 25 are read (opset_version=17 is a good choice)",
                        (long long)o.opset);
        else
                r = convert(&o, &model);
        while (o.blocks) {
                struct onnx_block *next = o.blocks->next;
                free(o.blocks);
                o.blocks = next;
        }
        onnx__model_proto__free_unpacked(proto, &allocator);
        if (r)
                mfl_onnx_model_deinit(&model);
        else
                *ret_model = model;
        return r;
}

void mfl_onnx_model_deinit(struct mfl_onnx_model *model)
{
        free(model->text);
        free(model->params);
        model->text = NULL;
        model->params = NULL;
}
