/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the bytes of an ONNX file to a list of layers and params: parses them, converts the nodes in
 * order, drops what the output does not need, and builds the native graph, which checks everything again. */
#include <stdio.h>

#include "cli/onnx/internal.h"
#include "common/base/bounded.h"

#define BUDGET_FACTOR 48
#define BUDGET_BASE ((uint64_t)64 << 20)

static int unpack(const uint8_t *bytes, size_t n, const char *path, ProtobufCAllocator *allocator,
        Onnx__ModelProto **ret_model, struct mfl_error *err)
{
        const struct mfl_bounded *bounded = allocator->allocator_data;
        *ret_model = onnx__model_proto__unpack(allocator, n, bytes);
        if (*ret_model)
                return 0;
        if (bounded->out_of_memory)
                return mfl_fail_memory(err, n, path);
        return mfl_fail(
                err, MFL_INVALID, "%.200s: is not an ONNX file, or is truncated (%zu bytes)", path, n);
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
        o->table = mfl_onnx_alloc(o, n, sizeof *o->table);
        o->layers = mfl_onnx_alloc(o, MFL_LAYERS_MAX, sizeof *o->layers);
        o->lifts = mfl_onnx_alloc(o, o->graph->n_node, sizeof *o->lifts);
        return o->table && o->layers && o->lifts ? 0 : onnx_memory(o);
}

/* In place of a parameter's numbers. */
static int put_tags(struct onnx *o, struct onnx_tensor *t)
{
        if (!t->f || !mfl_described_has(o->described, t->origin))
                return 0;
        float *f = mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *f);
        if (!f)
                return onnx_memory(o);
        mfl_described_tag(o->described, t->origin, f, (uint64_t)t->count);
        t->f = f;
        return 0;
}

static int read_initializers(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const Onnx__TensorProto *proto = o->graph->initializer[i];
                struct onnx_tensor *t;
                struct onnx_value *v;
                int r = mfl_onnx_read_tensor(o, proto, &t);
                if (!r)
                        r = mfl_onnx_new_value(o, &t->shape, &v);
                if (r)
                        return r;
                t->origin = proto->name ? proto->name : "";
                if (o->tagging && (r = put_tags(o, t)))
                        return r;
                v->tensor = t;
                v->node = -1;
                if ((r = mfl_onnx_set(o, t->origin, v)) || (r = mfl_onnx_mark_param(o, t)))
                        return r;
        }
        return 0;
}

/* The number of inputs whose values count. Only the shape or the type of the others is used. */
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
                        if (*o->graph->node[i]->input[k] && mfl_onnx_find(o, o->graph->node[i]->input[k]))
                                mfl_onnx_find(o, o->graph->node[i]->input[k])->uses++;
        for (size_t i = 0; i < o->graph->n_output; i++)
                if (o->graph->output[i]->name && mfl_onnx_find(o, o->graph->output[i]->name))
                        mfl_onnx_find(o, o->graph->output[i]->name)->uses++;
}

/* A placeholder with a rank below 0 counts the uses of a value that is not made yet. */
static int prepare_uses(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                if (!node->op_type)
                        return mfl_onnx_fail(o, "node %zu has no operator", i);
                for (size_t k = 0; k < node->n_output; k++) {
                        struct onnx_shape none = {.rank = -1};
                        struct onnx_value *v;
                        int r;
                        if (!*node->output[k] || mfl_onnx_find(o, node->output[k]))
                                continue;
                        if ((r = mfl_onnx_new_value(o, &none, &v)) ||
                                (r = mfl_onnx_set(o, node->output[k], v)))
                                return r;
                }
        }
        count_uses(o);
        return 0;
}

/* ---- after the nodes ---- */

static bool *needed_layers(struct onnx *o, int last)
{
        bool *needed = mfl_onnx_alloc(o, (size_t)o->n_layers, sizeof *needed);
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

/* Keeps the layers that the output needs, in the order of the nodes. Sorted by counting the layers of each
 * node, because qsort with more than 1 KiB asks the system for its memory size. */
static int order_layers(struct onnx *o, int last)
{
        int n_nodes = (int)o->graph->n_node, n = 0;
        int *start = mfl_onnx_alloc(o, (size_t)n_nodes + 2, sizeof *start);
        int *number = mfl_onnx_alloc(o, (size_t)o->n_layers, sizeof *number);
        struct onnx_layer *sorted = mfl_onnx_alloc(o, (size_t)o->n_layers, sizeof *sorted);
        const bool *needed = needed_layers(o, last);
        if (!start || !number || !sorted || !needed)
                return onnx_memory(o);
        /* The input comes before all nodes: its node is -1. */
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

/* Fills the tensors that are the layer's own, not an earlier layer's. */
static int fill_layer(struct onnx *o, const struct mfl_graph *graph, int i, float *params)
{
        const struct mfl_layer *l = &graph->layers[i];
        bool recurrent = mfl_op_is_recurrent(l->op);
        const int in_norm[] = {l->param_weight, l->param_bias, l->param_mean, l->param_var};
        const int in_recurrent[] = {l->param_weight, l->param_weight2, l->param_bias, l->param_bias2};
        for (int k = 0; k < ONNX_TENSORS_PER_LAYER; k++) {
                int p = recurrent ? in_recurrent[k] : in_norm[k];
                const struct mfl_param *param = p < 0 ? NULL : &graph->params[p];
                const struct onnx_tensor *t = o->layers[i].tensors[k];
                if (!param || param->layer != i)
                        continue;
                if (!t || (uint64_t)t->count != param->count)
                        return mfl_onnx_fail(o, "tensor %s has %lld numbers, but its layer needs %llu",
                                param->name, t ? (long long)t->count : 0, (unsigned long long)param->count);
                memcpy(params + param->offset, t->f, param->count * sizeof *params);
        }
        return 0;
}

static int fill_params(struct onnx *o, const struct mfl_graph *graph, float *params)
{
        int r = 0;
        for (int i = 1; !r && i < graph->n_layers; i++)
                r = fill_layer(o, graph, i, params);
        return r;
}

/* Whether the tensor is neighbours in a larger one, from *ret_first on. */
static bool is_part(const struct onnx *o, const struct onnx_tensor *t, int64_t *ret_first,
        const struct onnx_shape **ret_whole)
{
        const struct onnx_value *whole = t && t->param && t->origin ? mfl_onnx_find(o, t->origin) : NULL;
        if (!whole || !whole->tensor || whole->tensor->count <= t->count)
                return false;
        int64_t first = mfl_onnx_element(t, 0) - mfl_onnx_element(whole->tensor, 0);
        for (int64_t i = 1; i < t->count; i++)
                if (mfl_onnx_element(t, i) != mfl_onnx_element(t, 0) + i)
                        return false;
        *ret_first = first;
        *ret_whole = &whole->shape;
        return first >= 0 && first + t->count <= whole->tensor->count;
}

static int list_parts(struct onnx *o, const struct mfl_graph *graph, char **ret_parts)
{
        char *text = NULL;
        int64_t first;
        const struct onnx_shape *whole;
        for (int i = 0; i < o->n_layers && !o->tagging; i++) {
                const struct mfl_layer *l = &graph->layers[i];
                if (l->op != MFL_OP_WEIGHT || l->param_weight < 0 || l->shares ||
                        !is_part(o, o->layers[i].tensors[0], &first, &whole))
                        continue;
                char dims[ONNX_RANK_MAX * 22] = "";
                for (int d = 0; d < whole->rank; d++)
                        mfl_snprintf(dims + strlen(dims), sizeof dims - strlen(dims), " %lld",
                                (long long)whole->dim[d]);
                char *longer = mfl_asprintf("%s%s %lld%s\n", text ? text : "",
                        graph->params[l->param_weight].name, (long long)first, dims);
                free(text);
                if (!longer)
                        return onnx_memory(o);
                text = longer;
        }
        *ret_parts = text;
        return 0;
}

static int build(struct onnx *o, int classes, struct mfl_onnx_model *model)
{
        struct mfl_layer *layers = mfl_onnx_alloc(o, (size_t)o->n_layers, sizeof *layers);
        struct mfl_graph *graph = NULL;
        struct mfl_error why;
        if (!layers)
                return onnx_memory(o);
        for (int i = 0; i < o->n_layers; i++)
                layers[i] = o->layers[i].layer;
        if (o->described && !o->tagging)
                for (int i = 0; i < o->n_layers; i++) {
                        int64_t row = mfl_described_padding(o->described, i);
                        layers[i].frozen = mfl_described_frozen(o->described, i);
                        layers[i].has_padding = layers[i].has_padding || row >= 0;
                        layers[i].padding_idx = row >= 0 ? (int)row : layers[i].padding_idx;
                }
        int r = mfl_onnx_check_params(o);
        if (r)
                return r;
        r = mfl_graph_build("onnx", layers, o->n_layers, classes, &graph, &why);
        if (r > 0)
                return mfl_onnx_fail(o, "%.300s", why.text);
        if (!r)
                r = mfl_graph_by_layers(graph, &why);
        if (r) {
                mfl_graph_free(graph);
                return mfl_fail(o->err, r, "%s", why.text);
        }
        for (int i = 0; !r && i < o->n_layers; i++)
                if (!mfl_shape_equal(&graph->layers[i].out, &layers[i].out))
                        r = mfl_onnx_fail(o, "layer %s has a shape that differs from the graph's",
                                graph->layers[i].name);
        model->n = graph->n;
        model->params = r ? NULL : mfl_alloc_aligned(MFL_MAX(graph->n, (uint64_t)1) * sizeof(float));
        if (!r && !model->params)
                r = mfl_fail_memory(o->err, graph->n * sizeof(float), "params");
        if (!r)
                r = fill_params(o, graph, model->params);
        if (!r && o->tagging)
                r = mfl_described_locate(o->described, graph, model->params, o->err);
        if (!r)
                r = list_parts(o, graph, &model->parts);
        if (!r)
                r = mfl_onnx_text(o, graph, &model->text);
        mfl_graph_free(graph);
        return r;
}

/* The layer that gives output i, and its shape: {classes}, {positions, classes} or {classes, H, W}. */
/* Of a file with a fixed batch: whether the output of one sample has the declared shape, with 1 in place of the batch. */
static bool fits_declared(const struct onnx *o, const Onnx__ValueInfoProto *info, const struct onnx_shape *is)
{
        const Onnx__TypeProto__Tensor *type = info->type ? info->type->tensor_type : NULL;
        const Onnx__TensorShapeProto *dims = o->batch > 1 && type ? type->shape : NULL;
        bool fits = !dims || (int)dims->n_dim == is->rank;
        for (int d = 0; dims && fits && d < is->rank; d++)
                fits = !dims->dim[d]->has_dim_value ||
                       is->dim[d] == (d ? dims->dim[d]->dim_value : dims->dim[d]->dim_value / o->batch);
        return fits;
}

static int output_layer(struct onnx *o, size_t i, struct mfl_shape *ret_shape, int *ret_layer)
{
        const char *name = o->graph->output[i]->name;
        struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL, *view;
        struct mfl_shape shape;
        int r;
        if (!v || v->shape.rank < 1 || v->tensor || o->node < 0)
                return mfl_onnx_fail(o, "the output %.120s does not depend on the input", name ? name : "?");
        if (!fits_declared(o, o->graph->output[i], &v->shape))
                return mfl_onnx_fail(o,
                        "the output %.120s has another shape for one sample than for the %lld of the file; "
                        "export the model with a batch of 1, with dynamic_axes, or by mfl_export.save(net, "
                        "example, file)",
                        name, (long long)o->batch);
        if ((r = mfl_onnx_resolve(o, v, &view)))
                return r;
        const int64_t *dim = view->shape.dim;
        mfl_onnx_rows_shape(view, &shape);
        if (view->shape.rank == 3 && dim[0] == 1)
                shape = (struct mfl_shape){2, {dim[1], dim[2]}};
        else if (view->shape.rank == 4 && dim[0] == 1)
                shape = (struct mfl_shape){3, {dim[1], dim[2], dim[3]}};
        else if (view->shape.rank > 3 || (view->shape.rank == 1))
                return mfl_onnx_fail(o,
                        "the output must be {batch, classes}, {batch, positions, classes} or "
                        "{batch, classes, height, "
                        "width}%s",
                        view->shape.rank == 5
                                ? "; of volumes, return y.flatten(2, 3), an image of depth * height "
                                  "rows, as the labels then are"
                                : "");
        *ret_shape = shape;
        return mfl_onnx_layer_of(o, view, &shape, ret_layer);
}

/* Appends an auxiliary output to the main one (and those before): along positions, or the rows of images. */
static int append_output(struct onnx *o, size_t i, const struct mfl_shape *shape, int *last)
{
        struct mfl_shape other, row = {2, {1, shape->dim[0]}};
        int layer, r = output_layer(o, i, &other, &layer);
        struct mfl_layer flat = {.op = MFL_OP_RESHAPE, .out = row, .shape = row, .input2 = -1};
        if (!r && !mfl_shape_equal(&other, shape))
                return mfl_onnx_fail(o,
                        "the output %.120s has another shape than the first; auxiliary outputs are for the "
                        "same labels",
                        o->graph->output[i]->name);
        if (!r && shape->rank == 1) {
                flat.input = layer;
                r = mfl_onnx_derive(o, &flat, o->node, &layer);
        }
        if (!r && shape->rank == 1 && i == 1) {
                flat.input = *last;
                r = mfl_onnx_derive(o, &flat, o->node, last);
        }
        int axis = shape->rank == 3 ? 1 : 0;
        struct mfl_shape out = shape->rank == 1 ? row : *shape;
        out.dim[axis] *= (int64_t)i + 1;
        struct mfl_layer join = {
                .op = MFL_OP_CONCAT, .out = out, .input = *last, .input2 = layer, .axis = axis};
        return r ? r : mfl_onnx_derive(o, &join, o->node, last);
}

static int finish(struct onnx *o, struct mfl_onnx_model *model)
{
        struct mfl_shape shape;
        int last;
        o->node = (int)o->graph->n_node - 1;
        int r = output_layer(o, 0, &shape, &last);
        for (size_t i = 1; !r && o->files && i < 1 + (size_t)o->files->auxiliary; i++)
                r = append_output(o, i, &shape, &last);
        if (r || (r = mfl_onnx_number_tokens(o, &last)) || (r = order_layers(o, last)) ||
                (r = mfl_onnx_share(o)))
                return r;
        o->node = -1;
        int64_t classes = shape.rank == 3 ? shape.dim[0] : shape.dim[shape.rank - 1];
        model->classes = (int)classes;
        return classes > MFL_WIDTH_MAX ? mfl_onnx_fail(o, "more than %d classes", MFL_WIDTH_MAX)
                                       : build(o, model->classes, model);
}

static int convert(struct onnx *o, struct mfl_onnx_model *model)
{
        int r = set_up(o);
        if (!r && (o->own || o->described))
                r = mfl_onnx_tie(o, NULL, 0);
        const char *const *names;
        size_t n_names;
        for (uint32_t i = 0; !r && o->described && mfl_described_tied(o->described, i, &names, &n_names); i++)
                r = mfl_onnx_tie(o, names, n_names);
        if (!r)
                r = mfl_onnx_read_infos(o);
        if (!r)
                r = mfl_onnx_read_signature(o);
        if (!r)
                r = read_initializers(o);
        if (!r)
                r = mfl_onnx_read_copies(o);
        if (!r)
                r = mfl_onnx_read_turned(o);
        if (!r)
                r = mfl_onnx_read_inputs(o, &model->input);
        if (!r)
                r = prepare_uses(o);
        if (!r)
                r = mfl_onnx_check_export(o);
        for (o->node = 0; !r && o->node < (int)o->graph->n_node; o->node++)
                r = mfl_onnx_convert_node(o);
        return r ? r : finish(o, model);
}

/* Exporters write some modules in ways that mfl does not read, or compute what is trained. */
static void add_remedy(const struct onnx *o, struct mfl_error *err)
{
        static const char remedy[] =
                ". mfl_export.save(net, example, file) writes more modules in a way that mfl reads";
        size_t n = strlen(err->text);
        if (!o->own && !o->described && !strstr(err->text, "mfl_export") &&
                n + sizeof remedy <= sizeof err->text)
                memcpy(err->text + n, remedy, sizeof remedy);
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

static const char *metadata(const Onnx__ModelProto *proto, const char *key)
{
        for (size_t i = 0; i < proto->n_metadata_props; i++) {
                const Onnx__StringStringEntryProto *entry = proto->metadata_props[i];
                if (entry->key && entry->value && !strcmp(entry->key, key))
                        return entry->value;
        }
        return NULL;
}

/* With `tagging`, only finds the places of the parameters. */
static int convert_model(const Onnx__ModelProto *proto, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_described *described, bool tagging,
        struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct mfl_onnx_model model = {.described = described};
        struct onnx o = {.path = path,
                .file = proto,
                .graph = proto->graph,
                .opset = opset_of(proto),
                .files = files,
                .described = described,
                .tagging = tagging,
                .budget = files ? UINT64_MAX / 4 : (uint64_t)n_bytes * BUDGET_FACTOR + BUDGET_BASE,
                .node = -1,
                .notes = model.notes,
                .own = proto->producer_name && !strcmp(proto->producer_name, "mfl"),
                .err = err};
        int r;
        o.exact = o.own;
        if (!proto->graph || !proto->graph->n_node)
                r = mfl_onnx_fail(&o, "is not an ONNX model: it has no graph with nodes");
        else if (o.opset < 9 || o.opset > 25)
                r = mfl_onnx_fail(&o, "has opset %lld; 9 to 25 are read (opset_version=17 is a good choice)",
                        (long long)o.opset);
        else if ((r = convert(&o, &model)) == MFL_INVALID && o.node >= 0)
                add_remedy(&o, err);
        model.own = o.own;
        model.said = o.said && !described;
        model.log_softmax = o.log_softmax || (described && mfl_described_log_softmax(described));
        while (o.blocks) {
                struct onnx_block *next = o.blocks->next;
                free(o.blocks);
                o.blocks = next;
        }
        if (r || tagging)
                mfl_onnx_model_deinit(&model);
        else
                *ret_model = model;
        return r;
}

/* What the file says about its parameters: which are trained, and where they are in mfl's model. */
static int describe(const Onnx__ModelProto *proto, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_described **ret_described, struct mfl_error *err)
{
        const char *model = metadata(proto, "mfl.model");
        int r = model ? mfl_described_read(model, metadata(proto, "mfl.proof"), path, ret_described, err) : 0;
        if (r || !model)
                return r;
        r = convert_model(proto, n_bytes, path, files, *ret_described, true, NULL, err);
        if (r)
                mfl_described_free(*ret_described);
        return r;
}

static int take_proof(
        const struct mfl_described *described, struct mfl_onnx_model *model, struct mfl_error *err)
{
        const char *why = NULL;
        int r = mfl_described_proof(described, &model->proof, &why, err);
        if (r)
                return r;
        if (model->proof)
                memcpy(&model->proof_bytes, model->proof, sizeof model->proof_bytes);
        mfl_strcpy(model->no_proof, sizeof model->no_proof, why ? why : "");
        return 0;
}

static int take_contract(
        const Onnx__ModelProto *proto, const char *path, struct mfl_onnx_model *model, struct mfl_error *err)
{
        const char *text = metadata(proto, "contract");
        model->contract = text ? mfl_strdup(text) : NULL;
        return text && !model->contract ? mfl_fail_memory(err, strlen(text), path) : 0;
}

int mfl_onnx_convert(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_onnx_model *ret_model, struct mfl_error *err)
{
        struct mfl_bounded bounded = {.left = (uint64_t)n_bytes * BUDGET_FACTOR + BUDGET_BASE};
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, &bounded};
        struct mfl_onnx_model model = {.n = 0};
        struct mfl_described *described = NULL;
        Onnx__ModelProto *proto;
        int r = unpack(bytes, n_bytes, path, &allocator, &proto, err);
        if (r)
                return r;
        r = describe(proto, n_bytes, path, files, &described, err);
        if (!r) {
                r = convert_model(proto, n_bytes, path, files, described, false, &model, err);
                if (!r && described)
                        r = take_proof(described, &model, err);
                if (!r && model.own)
                        r = take_contract(proto, path, &model, err);
                mfl_described_free(described);
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
        free(model->proof);
        free(model->parts);
        free(model->contract);
        model->text = model->parts = model->contract = NULL;
        model->proof = NULL;
        model->params = NULL;
}
