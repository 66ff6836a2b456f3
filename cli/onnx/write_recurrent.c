/* SPDX-License-Identifier: Apache-2.0 */
/* Writes recurrent layers as ONNX nodes. */
#include "cli/onnx/write.h"

#define NODE(w, op, output, ...)                                                                             \
        mfl_onnx_writer_node(w, op, output, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),   \
                (const char *[]){__VA_ARGS__})

static const char *whole(struct onnx_writer *w, const char *what, int64_t v)
{
        return mfl_onnx_writer_whole(w, what, &v, 1);
}

/* PyTorch's gates i, f, g, o and r, z, n in ONNX's order: i, o, f, c and z, r, h. */
static const char *gates(struct onnx_writer *w, int param, const char *what, enum mfl_cell cell)
{
        static const int order_lstm[] = {0, 3, 1, 2}, order_gru[] = {1, 0, 2};
        const char *piece[4], *moved[4];
        int n = mfl_cell_gates(cell);
        char text[48];
        if (n == 1)
                return mfl_onnx_writer_param(w, param);
        for (int g = 0; g < n; g++) {
                mfl_snprintf(text, sizeof text, "%s_%d", what, g);
                piece[g] = mfl_onnx_writer_name(w, text);
        }
        NODE(w, "Split", piece[0], mfl_onnx_writer_param(w, param));
        mfl_onnx_writer_int(w, "axis", 0);
        for (int g = 1; g < n; g++)
                mfl_onnx_writer_output(w, piece[g]);
        for (int g = 0; g < n; g++)
                moved[g] = piece[n == 4 ? order_lstm[g] : order_gru[g]];
        mfl_snprintf(text, sizeof text, "%s_moved", what);
        const char *joined = mfl_onnx_writer_node(w, "Concat", mfl_onnx_writer_name(w, text), n, moved);
        mfl_onnx_writer_int(w, "axis", 0);
        return joined;
}

/* {1, batch, units} or {positions, batch, units} as rows of a sample. */
static const char *rows_of_states(struct onnx_writer *w, const char *out, const char *states)
{
        const char *rows = NODE(w, "Transpose", out, states);
        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){1, 0, 2}, 3);
        return rows;
}

/* With last_cell, the last position stays out, and the cell state is joined to the outputs. */
void mfl_onnx_write_recurrent(
        struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        static const char *const types[] = {"LSTM", "GRU", "RNN", "RNN"};
        enum mfl_cell cell = mfl_cell_of(l);
        if (l->last_cell)
                in = NODE(w, "Slice", mfl_onnx_writer_name(w, "read"), in, whole(w, "first", 0),
                        whole(w, "last", l->out.dim[0] - 1), whole(w, "positions", 1));
        const char *turned = NODE(w, "Transpose", mfl_onnx_writer_name(w, "turned"), in);
        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){1, 0, 2}, 3);
        const char *zero = whole(w, "zero", 0);
        const char *wi = NODE(
                w, "Unsqueeze", mfl_onnx_writer_name(w, "W"), gates(w, l->param_weight, "ih", cell), zero);
        const char *wh = NODE(
                w, "Unsqueeze", mfl_onnx_writer_name(w, "R"), gates(w, l->param_weight2, "hh", cell), zero);
        const char *inputs[] = {turned, wi, wh, NULL};
        if (l->bias) {
                const char *bi = gates(w, l->param_bias, "bih", cell),
                           *bh = gates(w, l->param_bias2, "bhh", cell);
                const char *both = NODE(w, "Concat", mfl_onnx_writer_name(w, "biases"), bi, bh);
                mfl_onnx_writer_int(w, "axis", 0);
                inputs[3] = NODE(w, "Unsqueeze", mfl_onnx_writer_name(w, "B"), both, zero);
        }
        const char *y =
                mfl_onnx_writer_node(w, types[cell], mfl_onnx_writer_name(w, "all"), l->bias ? 4 : 3, inputs);
        mfl_onnx_writer_int(w, "hidden_size", l->out_channels);
        const char *last = mfl_onnx_writer_name(w, "cell");
        if (l->last_cell) {
                mfl_onnx_writer_output(w, "");
                mfl_onnx_writer_output(w, last);
        }
        if (cell == MFL_CELL_RELU)
                mfl_onnx_writer_strings(w, "activations", "Relu");
        if (cell == MFL_CELL_GRU)
                mfl_onnx_writer_int(w, "linear_before_reset", 1);
        const char *one = NODE(w, "Squeeze", mfl_onnx_writer_name(w, "one"), y, whole(w, "directions", 1));
        if (!l->last_cell) {
                rows_of_states(w, out, one);
                return;
        }
        NODE(w, "Concat", out, rows_of_states(w, mfl_onnx_writer_name(w, "states"), one),
                rows_of_states(w, mfl_onnx_writer_name(w, "cells"), last));
        mfl_onnx_writer_int(w, "axis", 1);
}
