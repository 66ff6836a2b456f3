/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM and GRU. ONNX orders the gates differently from PyTorch: input, output, forget, cell for i, f, g, o;
 * update, reset, hidden for r, z, n (onnx/defs/rnn/defs.cc). */
#include "cli/onnx/internal.h"

/* {1, gates * rows, columns} with the gates in PyTorch's order. A bias has one column and may be in the
 * second half. */
static int reorder(struct onnx *o, const struct onnx_tensor *from, int n_gates, int64_t skip, int64_t rows,
        int64_t columns, const struct onnx_tensor **ret_tensor)
{
        static const int lstm[] = {0, 2, 3, 1}, gru[] = {1, 0, 2};
        const int *order = n_gates == 4 ? lstm : gru;
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        int64_t each = rows * columns;
        float *f = t ? mfl_onnx_alloc(o, (size_t)(n_gates * each) + 1, sizeof *f) : NULL;
        if (!f)
                return onnx_memory(o);
        for (int g = 0; g < n_gates; g++)
                memcpy(f + g * each, from->f + skip + order[g] * each, (size_t)each * sizeof *f);
        *t = (struct onnx_tensor){.count = n_gates * each, .f = f, .origin = from->origin};
        *ret_tensor = t;
        return 0;
}

static bool is_zero(const struct onnx_value *v)
{
        for (int64_t i = 0; v && v->tensor && i < v->tensor->count; i++)
                if (mfl_onnx_number(v->tensor, i) != 0)
                        return false;
        return !v || v->tensor;
}

static int check(struct onnx *o, bool lstm, int64_t hidden)
{
        const struct onnx_value *x = mfl_onnx_input(o, 0), *w = mfl_onnx_input(o, 1),
                                *r = mfl_onnx_input(o, 2), *b = mfl_onnx_input(o, 3);
        int64_t rows = (lstm ? 4 : 3) * hidden;
        if (!mfl_onnx_string_is(o, "direction", "forward", "forward"))
                return mfl_onnx_fail(o, "runs backward or in both directions, but mfl supports only forward. "
                                        "Export the model without bidirectional=True");
        if (mfl_onnx_attribute(o, "activations") || mfl_onnx_attribute(o, "clip") ||
                mfl_onnx_int(o, "layout", 0) || mfl_onnx_int(o, "input_forget", 0) || mfl_onnx_input(o, 7))
                return mfl_onnx_fail(
                        o, "activations, clip, layout, input_forget and peepholes are not supported");
        if (!lstm && mfl_onnx_int(o, "linear_before_reset", 0) != 1)
                return mfl_onnx_fail(o, "linear_before_reset must be 1, as in PyTorch's GRU");
        if (!is_zero(mfl_onnx_input(o, 5)) || !is_zero(mfl_onnx_input(o, 6)) || mfl_onnx_input(o, 4))
                return mfl_onnx_fail(o, "must start with a state of zeros and cover all positions");
        bool fits = x && !x->tensor && x->shape.rank == 3 && x->shape.dim[1] == 1 && w && w->tensor &&
                    w->tensor->f && r && r->tensor && r->tensor->f && hidden > 0 && hidden <= 65536 &&
                    w->tensor->count == rows * x->shape.dim[2] && r->tensor->count == rows * hidden &&
                    (!b || (b->tensor && b->tensor->f && b->tensor->count == 2 * rows));
        return fits ? 0 : mfl_onnx_fail(o, "input and weights don't match");
}

/* Y_h: the last position. */
static int last_state(struct onnx *o, int layer, int64_t positions, int64_t hidden)
{
        struct onnx_shape shape = {3, {1, 1, hidden}};
        struct onnx_value whole = {.layer = layer}, *v;
        int32_t *map = mfl_onnx_alloc(o, (size_t)hidden, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < hidden; i++)
                map[i] = (int32_t)((positions - 1) * hidden + i);
        int r = mfl_onnx_view(o, &whole, &shape, map, &v);
        return r ? r : mfl_onnx_output(o, 1, v);
}

/* The layers of a stack are named "rnn", "rnn.1", "rnn.2" for PyTorch's rnn.weight_ih_l0, _l1, _l2. */
static void name_layer(struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *weight)
{
        static const char stem[] = "weight_ih_l";
        const char *origin = weight->origin, *end = origin ? strstr(origin, stem) : NULL;
        char name[MFL_NAME_BYTES + 16];
        int number;
        mfl_onnx_name(o, layer, weight, "weight_ih_l0");
        if (layer->name[0] || !end || end == origin || end[-1] != '.')
                return;
        const char *digits = end + sizeof stem - 1;
        size_t n = strspn(digits, "0123456789");
        if (n < 1 || n > 4 || digits[n] || end - origin >= MFL_NAME_BYTES)
                return;
        number = atoi(digits);
        mfl_snprintf(name, sizeof name, "%.*s%d.w", (int)(end - origin), origin, number);
        struct onnx_tensor named = {.origin = name};
        mfl_onnx_name(o, layer, &named, "w");
}

int mfl_onnx_recurrent(struct onnx *o)
{
        bool lstm = mfl_onnx_node(o)->op_type[0] == 'L';
        int64_t hidden = mfl_onnx_int(o, "hidden_size", 0);
        int gates = lstm ? 4 : 3, layer, r = check(o, lstm, hidden);
        if (r)
                return r;
        struct onnx_value *x = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 3), *v;
        const struct onnx_tensor *w = mfl_onnx_input(o, 1)->tensor, *u = mfl_onnx_input(o, 2)->tensor;
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        int64_t positions = x->shape.dim[0], features = x->shape.dim[2];
        struct mfl_shape in = {2, {positions, features}};
        struct mfl_layer l = {.op = lstm ? MFL_OP_LSTM : MFL_OP_GRU,
                .out_channels = (int)hidden,
                .bias = b,
                .out = {2, {positions, hidden}}};
        name_layer(o, &l, w);
        if ((r = reorder(o, w, gates, 0, hidden, features, &t[0])) ||
                (r = reorder(o, u, gates, 0, hidden, hidden, &t[1])))
                return r;
        if (b && ((r = reorder(o, b->tensor, gates, 0, hidden, 1, &t[2])) ||
                         (r = reorder(o, b->tensor, gates, gates * hidden, hidden, 1, &t[3]))))
                return r;
        if ((r = mfl_onnx_layer_of(o, x, &in, &l.input)) ||
                (r = mfl_onnx_add_layer(o, &l, t, o->node, &layer)))
                return r;
        struct onnx_shape shape = {4, {positions, 1, 1, hidden}};
        if ((r = mfl_onnx_layer_value(o, layer, &shape, &v)) || (r = mfl_onnx_output(o, 0, v)))
                return r;
        return last_state(o, layer, positions, hidden);
}
