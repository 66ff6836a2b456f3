/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's inputs. One is the model's input; of several, a sample has one after the other in a row. */
#include "cli/onnx/internal.h"

/* {1, sample}; the batch may be dynamic, in old files and in those of PyTorch's current exporter. */
static int read_shape(struct onnx *o, const Onnx__ValueInfoProto *info, struct onnx_shape *ret_shape)
{
        const Onnx__TypeProto__Tensor *type = info->type ? info->type->tensor_type : NULL;
        const Onnx__TensorShapeProto *dims = type ? type->shape : NULL;
        struct onnx_shape shape = {0};
        if (!dims || dims->n_dim < 2 || dims->n_dim > 5)
                return mfl_onnx_fail(o,
                        "input %.120s has %zu dimensions; expected the batch and 1 to 4 dimensions of a "
                        "sample",
                        info->name, dims ? dims->n_dim : 0);
        for (size_t d = 0; d < dims->n_dim; d++) {
                int64_t size = dims->dim[d]->has_dim_value ? dims->dim[d]->dim_value : 0;
                if (d && (size < 1 || size > MFL_WIDTH_MAX))
                        return mfl_onnx_fail(o,
                                "input %.120s: dimension %zu must be a number from 1 to %d (only the batch "
                                "may be "
                                "dynamic)",
                                info->name, d, MFL_WIDTH_MAX);
                shape.dim[d] = d ? size : 1;
                if (!d && !o->n_layers)
                        o->batch = size;
        }
        shape.rank = (int)dims->n_dim;
        if (mfl_onnx_count(&shape) > INT32_MAX)
                return mfl_onnx_fail(o, "input %.120s is larger than mfl's limits", info->name);
        if (type->elem_type == 2 && o->own)
                return mfl_onnx_fail(o,
                        "input %.120s is bytes, which the first layers scale: `mfl pull --format onnx` "
                        "without --with-input writes the network alone",
                        info->name);
        if (type->elem_type != 1 && type->elem_type != 6 && type->elem_type != 7 && type->elem_type != 9)
                return mfl_onnx_fail(o,
                        "input %.120s: expected float32 numbers, or int64 tokens of shape {batch, positions}",
                        info->name);
        *ret_shape = shape;
        return 0;
}

/* Input k of n: the model's input, or its part of a row that has one input after the other. */
static int set_input(struct onnx *o, int k, const Onnx__ValueInfoProto *info, const struct onnx_shape *shape)
{
        const struct onnx_input *in = &o->inputs[k];
        struct onnx_value *v;
        struct onnx_value row = {.layer = 0};
        int32_t *map = NULL;
        int r = 0;
        if (o->n_inputs == 1) {
                r = mfl_onnx_layer_value(o, 0, shape, &v);
                return r ? r : mfl_onnx_set(o, info->name, v);
        }
        if (!(map = mfl_onnx_alloc(o, (size_t)in->count, sizeof *map)))
                return onnx_memory(o);
        for (int64_t i = 0; i < in->count; i++)
                map[i] = (int32_t)(in->offset + i);
        if ((r = mfl_onnx_view(o, &row, shape, map, &v)))
                return r;
        v->node = -1;
        return mfl_onnx_set(o, info->name, v);
}

/* One input keeps its shape; the depth of a volume goes into its height. */
static struct mfl_shape sample_of(const struct onnx_shape *shape)
{
        struct mfl_shape in = {.rank = MFL_MIN(shape->rank - 1, 3)};
        for (int d = 0; d < in.rank; d++)
                in.dim[in.rank - 1 - d] = shape->dim[shape->rank - 1 - d];
        if (shape->rank == 5)
                in = (struct mfl_shape){3, {shape->dim[1], shape->dim[2] * shape->dim[3], shape->dim[4]}};
        return in;
}

static int add_inputs(struct onnx *o, const Onnx__ValueInfoProto *const *infos, struct mfl_shape *ret_input)
{
        struct onnx_shape shape[ONNX_INPUTS_MAX];
        struct mfl_layer l = {.op = MFL_OP_INPUT, .input = -1};
        int64_t total = 0;
        int layer, r = 0;
        for (int k = 0; k < o->n_inputs; k++) {
                if ((r = read_shape(o, infos[k], &shape[k])))
                        return r;
                o->inputs[k] = (struct onnx_input){.offset = total,
                        .count = mfl_onnx_count(&shape[k]),
                        .whole = infos[k]->type->tensor_type->elem_type != 1};
                total += o->inputs[k].count;
        }
        if (total > INT32_MAX)
                return mfl_onnx_fail(
                        o, "the inputs have %lld numbers together, more than mfl's limits", (long long)total);
        l.out = o->n_inputs == 1 ? sample_of(&shape[0]) : (struct mfl_shape){1, {total}};
        if (o->n_inputs == 1 && o->inputs[0].whole && l.out.rank != 1)
                return mfl_onnx_fail(o,
                        "input %.120s: expected float32 numbers, or int64 tokens of shape {batch, positions}",
                        infos[0]->name);
        r = mfl_onnx_add_layer(o, &l, NULL, -1, &layer);
        for (int k = 0; !r && k < o->n_inputs; k++)
                r = set_input(o, k, infos[k], &shape[k]);
        *ret_input = l.out;
        return r;
}

/* Whether PyTorch's current exporter says that it is an argument of forward(). */
static bool is_argument(const Onnx__ValueInfoProto *info)
{
        for (size_t k = 0; k < info->n_metadata_props; k++) {
                const Onnx__StringStringEntryProto *entry = info->metadata_props[k];
                if (entry->key && entry->value &&
                        !strcmp(entry->key, "pkg.torch.export.graph_signature.InputSpec.kind"))
                        return !strcmp(entry->value, "USER_INPUT");
        }
        return false;
}

/* In old files, and where the exporter was asked for it, initializers are inputs, too: all of them. One that is an argument of
 * forward(), or one alone, is a parameter with the argument's name. PyTorch's current exporter, which says what initializers are,
 * writes such files. */
static int check_names(struct onnx *o)
{
        const char *twin = NULL, *argument = NULL;
        size_t n = 0, n_known = 0;
        for (size_t i = 0; i < o->graph->n_input; i++) {
                const char *name = o->graph->input[i]->name;
                if (!name || !mfl_onnx_find(o, name))
                        continue;
                twin = name;
                argument = is_argument(o->graph->input[i]) ? name : argument;
                n++;
        }
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
                n_known += v && v->tensor && v->tensor->known;
        }
        if (!argument && (!twin || n >= n_known))
                return 0;
        return mfl_onnx_fail(o,
                "an input and a parameter both have the name %.120s: give the argument of forward() another "
                "name, and export again",
                argument ? argument : twin);
}

int mfl_onnx_read_inputs(struct onnx *o, struct mfl_shape *ret_input)
{
        const Onnx__ValueInfoProto *infos[ONNX_INPUTS_MAX];
        int r = check_names(o);
        for (size_t i = 0; !r && i < o->graph->n_input; i++) {
                const Onnx__ValueInfoProto *info = o->graph->input[i];
                if (!info->name || mfl_onnx_find(o, info->name))
                        continue; /* in old files, initializers are inputs, too */
                if (o->n_inputs == ONNX_INPUTS_MAX)
                        return mfl_onnx_fail(o, "has more than %d inputs, the limit", ONNX_INPUTS_MAX);
                infos[o->n_inputs++] = info;
        }
        if (!r && !o->n_inputs)
                r = mfl_onnx_fail(o, "the graph has no input");
        if (r)
                return r;
        r = add_inputs(o, infos, ret_input);
        uint32_t auxiliary = o->files ? o->files->auxiliary : 0;
        if (!r && auxiliary && o->graph->n_output != 1 + auxiliary)
                return mfl_onnx_fail(o,
                        "the model has %zu outputs, but training.auxiliary has %u numbers: write one for "
                        "each output after "
                        "the first",
                        o->graph->n_output, auxiliary);
        if (!r && !auxiliary && o->graph->n_output != 1)
                mfl_onnx_note(o,
                        "the model has %zu outputs; only the first is trained (training.auxiliary, with the "
                        "weights of "
                        "the others' losses, trains all)",
                        o->graph->n_output);
        if (!r && o->n_inputs > 1)
                mfl_onnx_note(o,
                        "the model has %d inputs: each sample of the data is a row of %lld numbers, one "
                        "input after the other",
                        o->n_inputs, (long long)ret_input->dim[0]);
        return !r && !o->graph->n_output ? mfl_onnx_fail(o, "the graph has no output") : r;
}
