/* SPDX-License-Identifier: Apache-2.0 */
/* A native graph as an ONNX file. */
#include "cli/onnx/write.h"

#include "common/base/fs.h"
#include "common/contract/contract.h"

#define OPSET 17
#define IR_VERSION 8
#define FILE_MAX ((uint64_t)INT32_MAX - (64 << 20)) /* protobuf's limit minus room for the graph */

/* The batch dimension has no fixed size. */
static void put_info(
        struct onnx_writer *w, bool output, const char *name, const struct mfl_shape *shape, int type)
{
        Onnx__ValueInfoProto *info =
                mfl_onnx_writer_append(w, output ? &w->proto.n_output : &w->proto.n_input,
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
        info->name = mfl_onnx_writer_copy(w, name);
        info->type = t;
        t->tensor_type = of;
        of->has_elem_type = true;
        of->elem_type = type;
        of->shape = dims;
        for (int d = -1; d < shape->rank; d++) {
                Onnx__TensorShapeProto__Dimension *dim =
                        mfl_onnx_writer_append(w, &dims->n_dim, (void ***)&dims->dim, sizeof *dim);
                if (!dim)
                        return;
                onnx__tensor_shape_proto__dimension__init(dim);
                if (d < 0) {
                        dim->dim_param = mfl_onnx_writer_copy(w, "batch");
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
        put_info(w, false, "input", w->contract ? &w->contract->shape : &g->input,
                g->vocabulary                                 ? WRITER_TYPE_INT64
                : w->contract && w->contract->dtype == MFL_U8 ? WRITER_TYPE_UINT8
                                                              : WRITER_TYPE_FLOAT);
        const char *input = w->contract ? mfl_onnx_write_input(w) : NULL;
        if (w->names && input)
                mfl_strcpy(w->names[0], sizeof w->names[0], input);
        for (int i = 1; !w->failed && i < g->n_layers; i++) {
                int r = mfl_onnx_write_layer(w, i, err);
                if (r)
                        return r;
        }
        if (!w->failed)
                put_info(w, true, w->names[g->n_layers - 1], &g->layers[g->n_layers - 1].out,
                        WRITER_TYPE_FLOAT);
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
        return mfl_onnx_write_with(path, graph, params, &(struct mfl_onnx_contract){NULL}, err);
}

int mfl_onnx_write_with(const char *path, const struct mfl_graph *graph, const float *params,
        const struct mfl_onnx_contract *contract, struct mfl_error *err)
{
        struct onnx_writer w = {.graph = graph,
                .params = params,
                .contract = contract->contract,
                .proto = ONNX__GRAPH_PROTO__INIT};
        Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT, *entries[] = {&entry};
        Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
        Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};
        char name[] = "mfl", version[] = MFL_VERSION, domain[] = "", key[] = "contract";
        if (w.contract && w.contract->normalised)
                return mfl_fail(err, MFL_INVALID,
                        "%s: its first layers can't scale the input: sites scale differently, or keep how "
                        "(`mfl model show`); leave "
                        "out --with-input",
                        path);
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
        entry.key = key;
        entry.value = (char *)(uintptr_t)contract->text;
        model.n_metadata_props = contract->text && *contract->text;
        model.metadata_props = entries;
        int r = write_graph(&w, err);
        if (!r)
                r = write_file(path, &model, err);
        for (size_t i = 0; i < w.n_blocks; i++)
                free(w.blocks[i]);
        free(w.blocks);
        return r;
}
