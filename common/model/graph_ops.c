/* SPDX-License-Identifier: Apache-2.0 */
/* What every file of a graph needs to know about operators and shapes: names, numbers of inputs, limits. */
#include "common/model/graph_internal.h"

#include <stdio.h>

int64_t mfl_shape_count(const struct mfl_shape *shape)
{
        int64_t count = 1;
        for (int i = 0; i < shape->rank; i++)
                count *= shape->dim[i];
        return count;
}

bool mfl_shape_equal(const struct mfl_shape *a, const struct mfl_shape *b)
{
        if (a->rank != b->rank)
                return false;
        for (int i = 0; i < a->rank; i++) {
                if (a->dim[i] != b->dim[i])
                        return false;
        }
        return true;
}

const char *mfl_shape_text(const struct mfl_shape *shape, char *buf, size_t buf_bytes)
{
        size_t len = 0;
        mfl_strcpy(buf, buf_bytes, shape->rank ? "" : "scalar");
        for (int i = 0; i < shape->rank && i < MFL_SHAPE_RANK_MAX && len < buf_bytes; i++)
                len += (size_t)snprintf(
                        buf + len, buf_bytes - len, "%s%lld", i ? "x" : "", (long long)shape->dim[i]);
        return buf;
}

static const struct mfl_op_info infos[MFL_OP_COUNT_] = {
        [MFL_OP_INPUT] = {"input", "input", .since = 1},
#define UNARY(symbol, body, stem, reads, n, cost, since, ...)                                                \
        [MFL_OP_##symbol] = {#body, stem, 1, MFL_READS_##reads, since, true},
#include "common/model/unary.def"
#define MFL_OP_WITHOUT_UNARY
#define OP(symbol, name, stem, inputs, shape, cost, reads, since)                                            \
        [MFL_OP_##symbol] = {name, stem, inputs, MFL_READS_##reads, since, false},
#include "common/model/op.def"
};

const struct mfl_op_info *mfl_op_info(enum mfl_op op)
{
        mfl_assert((unsigned)op < MFL_OP_COUNT_);
        return &infos[op];
}

bool mfl_op_is_recurrent(enum mfl_op op)
{
        return op == MFL_OP_LSTM || op == MFL_OP_GRU || op == MFL_OP_RNN;
}

enum mfl_cell mfl_cell_of(const struct mfl_layer *layer)
{
        if (layer->op == MFL_OP_RNN)
                return layer->relu ? MFL_CELL_RELU : MFL_CELL_TANH;
        return layer->op == MFL_OP_GRU ? MFL_CELL_GRU : MFL_CELL_LSTM;
}

const char *mfl_op_name(enum mfl_op op)
{
        return (unsigned)op < MFL_OP_COUNT_ ? infos[op].name : "?";
}

static const char *const map_names[MFL_MAP_COUNT_] = {
        [MFL_MAP_VIEW] = "view",
        [MFL_MAP_GATHER] = "gather",
        [MFL_MAP_PAD] = "pad",
        [MFL_MAP_RESIZE] = "resize",
        [MFL_MAP_SUM] = "sum",
        [MFL_MAP_MEAN] = "mean",
        [MFL_MAP_CUMSUM] = "cumsum",
        [MFL_MAP_AVGPOOL2D] = "avgpool2d",
        [MFL_MAP_ADAPTIVE_AVGPOOL2D] = "adaptive_avgpool2d",
};

const char *mfl_map_name(enum mfl_map_kind kind)
{
        return (unsigned)kind < MFL_MAP_COUNT_ ? map_names[kind] : "?";
}

const char *mfl_layer_kind(const struct mfl_layer *layer)
{
        return layer->op == MFL_OP_MAP ? mfl_map_name(layer->map.kind) : mfl_op_name(layer->op);
}

int mfl_op_inputs(enum mfl_op op)
{
        return infos[op].n_inputs;
}

int mfl_graph_check_outputs(const struct mfl_layer *layer, const char *what, struct mfl_error *err)
{
        if (layer->out_channels < 1 || layer->out_channels > MFL_WIDTH_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %d is outside 1 to %d", layer->name,
                        mfl_layer_kind(layer), what, layer->out_channels, MFL_WIDTH_MAX);
        if (layer->init > MFL_INIT_GPT2)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): there is no initialisation number %u",
                        layer->name, mfl_op_name(layer->op), (unsigned)layer->init);
        return 0;
}

/* Checks the shape in a description: each dimension 1 to 2^31 - 1, and together at most the size of a tensor.
 */
int mfl_graph_check_shape(const struct mfl_layer *layer, struct mfl_error *err)
{
        const struct mfl_shape *shape = &layer->shape;
        uint64_t count = 1;
        bool fits = shape->rank >= 1 && shape->rank <= 3;
        for (int d = 0; fits && d < shape->rank; d++) {
                fits = shape->dim[d] >= 1 && shape->dim[d] <= INT32_MAX;
                count = fits ? mfl_graph_multiply(count, (uint64_t)shape->dim[d]) : count;
        }
        if (!fits || count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): a shape has 1 to 3 dimensions of at least 1, and at most %llu "
                        "numbers",
                        layer->name, mfl_layer_kind(layer), (unsigned long long)MFL_PARAMS_MAX);
        return 0;
}
