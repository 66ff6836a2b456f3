/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM, GRU and RNN, forward, backward or in both directions. A layer that runs backward is one that reads and writes
 * its positions in reverse order. ONNX orders the gates differently from PyTorch: input, output, forget, cell for i, f, g, o;
 * update, reset, hidden for r, z, n (onnx/defs/rnn/defs.cc). RNN has one. */
#include "cli/onnx/internal.h"

/* {gates * rows, columns} from element `skip` on, with the gates in PyTorch's order. A bias has one column. */
static int reorder(struct onnx *o, const struct onnx_tensor *from, int n_gates, int64_t skip, int64_t rows,
        int64_t columns, const struct onnx_tensor **ret_tensor)
{
        static const int lstm[] = {0, 2, 3, 1}, gru[] = {1, 0, 2}, rnn[] = {0};
        const int *order = n_gates == 4 ? lstm : n_gates == 3 ? gru : rnn;
        struct onnx_tensor *t;
        int64_t each = rows * columns;
        int32_t *map = mfl_onnx_alloc(o, (size_t)(n_gates * each) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int g = 0; g < n_gates; g++)
                for (int64_t i = 0; i < each; i++)
                        map[g * each + i] = (int32_t)(skip + order[g] * each + i);
        int r = mfl_onnx_take(o, from, map, n_gates * each, &t);
        if (r)
                return r;
        t->shape = (struct onnx_shape){1, {n_gates * each}};
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

static int n_directions(const struct onnx *o)
{
        return mfl_onnx_string_is(o, "direction", "forward", "bidirectional") ? 2 : 1;
}

/* Without `activations`, Tanh in each direction. */
static int read_cell(struct onnx *o, int directions, enum mfl_cell *ret_cell)
{
        const char *type = mfl_onnx_node(o)->op_type;
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "activations");
        *ret_cell = type[0] == 'L' ? MFL_CELL_LSTM : type[0] == 'G' ? MFL_CELL_GRU : MFL_CELL_TANH;
        if (type[0] != 'R' || !a)
                return 0;
        if (a->n_strings != (size_t)directions)
                return mfl_onnx_fail(o, "activations must name a function for each direction");
        for (int d = 0; d < directions; d++) {
                const ProtobufCBinaryData *s = &a->strings[d];
                bool relu = s->len == 4 && !memcmp(s->data, "Relu", 4);
                if ((!relu && !(s->len == 4 && !memcmp(s->data, "Tanh", 4))) ||
                        (d && relu != (*ret_cell == MFL_CELL_RELU)))
                        return mfl_onnx_fail(
                                o, "activations must be Tanh or Relu, the same in both directions");
                *ret_cell = relu ? MFL_CELL_RELU : MFL_CELL_TANH;
        }
        return 0;
}

static int check(struct onnx *o, enum mfl_cell cell, int64_t hidden)
{
        const struct onnx_value *x = mfl_onnx_input(o, 0), *w = mfl_onnx_input(o, 1),
                                *r = mfl_onnx_input(o, 2), *b = mfl_onnx_input(o, 3);
        int64_t rows = mfl_cell_gates(cell) * hidden * n_directions(o);
        if ((cell < MFL_CELL_TANH && mfl_onnx_attribute(o, "activations")) || mfl_onnx_attribute(o, "clip") ||
                mfl_onnx_int(o, "layout", 0) || mfl_onnx_int(o, "input_forget", 0) || mfl_onnx_input(o, 7))
                return mfl_onnx_fail(
                        o, "activations, clip, layout, input_forget and peepholes are not supported");
        if (cell == MFL_CELL_GRU && mfl_onnx_int(o, "linear_before_reset", 0) != 1)
                return mfl_onnx_fail(o, "linear_before_reset must be 1, as in PyTorch's GRU");
        for (size_t i = 5; i < 7; i++) {
                const struct onnx_value *state = mfl_onnx_input(o, i);
                const char *name = state ? mfl_onnx_param_of(o, state) : NULL;
                if (name)
                        return mfl_onnx_fail(o,
                                "starts from the parameter %.120s, but mfl's recurrent layers start from "
                                "zeros; call the "
                                "module without an initial state",
                                name);
        }
        if (!is_zero(mfl_onnx_input(o, 5)) || !is_zero(mfl_onnx_input(o, 6)) || mfl_onnx_input(o, 4))
                return mfl_onnx_fail(o, "must start from zeros and cover all positions: call the module "
                                        "without an initial state and without packed sequences");
        bool fits = x && !x->tensor && x->shape.rank == 3 && x->shape.dim[1] == 1 && w && w->tensor &&
                    w->tensor->f && r && r->tensor && r->tensor->f && hidden > 0 && hidden <= 65536 &&
                    w->tensor->count == rows * x->shape.dim[2] && r->tensor->count == rows * hidden &&
                    (!b || (b->tensor && b->tensor->f && b->tensor->count == 2 * rows));
        return fits ? 0 : mfl_onnx_fail(o, "input and weights don't match");
}

/* The layers of a stack are named "rnn", "rnn.1", "rnn.2" for PyTorch's rnn.weight_ih_l0, _l1, _l2, and
 * "rnn.0_reverse", "rnn.1_reverse" where they run backward. */
static void name_layer(
        struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *weight, bool backward)
{
        static const char stem[] = "weight_ih_l";
        const char *origin = weight->origin, *end = origin ? strstr(origin, stem) : NULL;
        char name[MFL_TENSOR_NAME_BYTES];
        int number;
        if (!backward)
                mfl_onnx_name(o, layer, weight, "weight_ih_l0");
        if (layer->name[0] || !end || end == origin || end[-1] != '.')
                return;
        const char *digits = end + sizeof stem - 1;
        size_t n = strspn(digits, "0123456789");
        if (n < 1 || n > 4 || digits[n] || end - origin >= MFL_LAYER_NAME_BYTES)
                return;
        number = atoi(digits);
        if (number || backward)
                mfl_snprintf(name, sizeof name, "%.*s%d%s.w", (int)(end - origin), origin, number,
                        backward ? "_reverse" : "");
        else
                mfl_snprintf(name, sizeof name, "%.*s.w", (int)(end - origin - 1), origin);
        struct onnx_tensor named = {.origin = name};
        mfl_onnx_name(o, layer, &named, "w");
}

/* ---- one direction ---- */

struct recurrent {
        enum mfl_cell cell;
        bool backward;
        bool last_cell; /* its layers have one more position, the last cell state */
        int direction;  /* which of the node's weights it has */
        int64_t positions, features, hidden;
        struct onnx_value *x; /* {positions, features}, a view */
};

/* The first rows of `width` elements, in reverse order if `back`, of a layer or of a view of it. */
static int take_rows(struct onnx *o, const struct onnx_value *of, int64_t rows, int64_t width, bool back,
        struct onnx_value **ret_view)
{
        struct onnx_shape shape = {2, {rows, width}};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(rows * width) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < rows * width; i++)
                map[i] = (int32_t)((back ? rows - 1 - i / width : i / width) * width + i % width);
        return mfl_onnx_view(o, of, &shape, map, ret_view);
}

/* A position of zeros behind the others. */
static int add_position(struct onnx *o, const struct recurrent *rnn, int *layer)
{
        struct mfl_layer l = {.op = MFL_OP_MAP,
                .input = *layer,
                .map = {.kind = MFL_MAP_PAD, .after = {1, 0}},
                .out = {2, {rnn->positions + 1, rnn->features}}};
        return mfl_onnx_add_layer(o, &l, NULL, o->node, layer);
}

/* *ret_layer gives the positions in the order in which they were read. */
static int add_direction(struct onnx *o, const struct recurrent *rnn, int *ret_layer)
{
        static const enum mfl_op ops[] = {[MFL_CELL_LSTM] = MFL_OP_LSTM,
                [MFL_CELL_GRU] = MFL_OP_GRU,
                [MFL_CELL_TANH] = MFL_OP_RNN,
                [MFL_CELL_RELU] = MFL_OP_RNN};
        const struct onnx_value *b = mfl_onnx_input(o, 3);
        const struct onnx_tensor *w = mfl_onnx_input(o, 1)->tensor, *u = mfl_onnx_input(o, 2)->tensor;
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        int gates = mfl_cell_gates(rnn->cell), d = rnn->direction, r;
        int64_t hidden = rnn->hidden, rows = gates * hidden;
        struct mfl_shape in = {2, {rnn->positions, rnn->features}};
        struct onnx_value *x = rnn->x;
        struct mfl_layer l = {.op = ops[rnn->cell],
                .relu = rnn->cell == MFL_CELL_RELU,
                .out_channels = (int)hidden,
                .last_cell = rnn->last_cell,
                .bias = b,
                .out = {2, {rnn->positions + rnn->last_cell, hidden}}};
        if ((r = reorder(o, w, gates, d * rows * rnn->features, hidden, rnn->features, &t[0])) ||
                (r = reorder(o, u, gates, d * rows * hidden, hidden, hidden, &t[1])))
                return r;
        if (b && ((r = reorder(o, b->tensor, gates, 2 * d * rows, hidden, 1, &t[2])) ||
                         (r = reorder(o, b->tensor, gates, (2 * d + 1) * rows, hidden, 1, &t[3]))))
                return r;
        if (rnn->backward && (r = take_rows(o, x, rnn->positions, rnn->features, true, &x)))
                return r;
        name_layer(o, &l, w, rnn->backward);
        if ((r = mfl_onnx_view_layer(o, x, &in, &l.input)))
                return r;
        if (rnn->last_cell && (r = add_position(o, rnn, &l.input)))
                return r;
        return mfl_onnx_add_layer(o, &l, t, o->node, ret_layer);
}

/* ---- outputs ---- */

static int concat(struct onnx *o, int a, int b, int axis, const struct mfl_shape *shape, int *ret_layer)
{
        struct mfl_layer l = {.op = MFL_OP_CONCAT, .input = a, .input2 = b, .axis = axis, .out = *shape};
        return mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
}

/* Y: {positions, directions, 1, hidden}. */
static int all_states(struct onnx *o, const struct recurrent *rnn, int n, const int *layers)
{
        struct onnx_shape shape = {4, {rnn->positions, n, 1, rnn->hidden}};
        struct mfl_shape one = {2, {rnn->positions, rnn->hidden}},
                         both = {2, {rnn->positions, n * rnn->hidden}};
        int part[2], layer, r = 0;
        struct onnx_value *v;
        for (int d = 0; !r && d < n; d++) {
                struct onnx_value whole = {.layer = layers[d]};
                bool back = d == 1 || rnn->backward;
                part[d] = layers[d];
                if ((back || rnn->last_cell) &&
                        !(r = take_rows(o, &whole, rnn->positions, rnn->hidden, back, &v)))
                        r = mfl_onnx_view_layer(o, v, &one, &part[d]);
        }
        layer = part[0];
        if (!r && n == 2)
                r = concat(o, part[0], part[1], 1, &both, &layer);
        if (!r)
                r = mfl_onnx_layer_value(o, layer, &shape, &v);
        if (!r)
                v->batch_at = 3;
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* Output i of the node, Y_h or Y_c: {directions, 1, hidden}, which is the layers' row `row`. */
static int last_states(
        struct onnx *o, const struct recurrent *rnn, int n, const int *layers, size_t i_output, int64_t row)
{
        struct onnx_shape shape = {3, {1, 1, rnn->hidden}};
        struct mfl_shape one = {1, {rnn->hidden}}, both = {1, {n * rnn->hidden}};
        struct onnx_value *v[2];
        int part[2], layer, r = 0;
        int32_t *map = mfl_onnx_alloc(o, (size_t)rnn->hidden, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < rnn->hidden; i++)
                map[i] = (int32_t)(row * rnn->hidden + i);
        for (int d = 0; !r && d < n; d++) {
                struct onnx_value whole = {.layer = layers[d]};
                r = mfl_onnx_view(o, &whole, &shape, map, &v[d]);
                if (!r && n == 2)
                        r = mfl_onnx_view_layer(o, v[d], &one, &part[d]);
        }
        shape.dim[0] = n;
        if (!r && n == 2 && !(r = concat(o, part[0], part[1], 0, &both, &layer)))
                r = mfl_onnx_layer_value(o, layer, &shape, &v[0]);
        if (!r)
                v[0]->batch_at = 2;
        return r ? r : mfl_onnx_output(o, i_output, v[0]);
}

static bool is_used(const struct onnx *o, size_t i)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        const struct onnx_value *v =
                i < node->n_output && *node->output[i] ? mfl_onnx_find(o, node->output[i]) : NULL;
        return v && v->uses;
}

int mfl_onnx_recurrent(struct onnx *o)
{
        enum mfl_cell cell;
        int64_t hidden = mfl_onnx_int(o, "hidden_size", 0);
        int n = n_directions(o), layers[2], r = read_cell(o, n, &cell);
        if (!r)
                r = check(o, cell, hidden);
        if (r)
                return r;
        struct recurrent rnn = {.cell = cell, .hidden = hidden, .last_cell = is_used(o, 2)};
        struct onnx_value *x = mfl_onnx_input(o, 0), *view;
        rnn.positions = x->shape.dim[0];
        rnn.features = x->shape.dim[2];
        struct onnx_shape rows = {2, {rnn.positions, rnn.features}};
        if ((r = mfl_onnx_resolve(o, x, &view)) || (r = mfl_onnx_view(o, view, &rows, NULL, &rnn.x)))
                return r;
        bool reverse = mfl_onnx_string_is(o, "direction", "forward", "reverse");
        for (int d = 0; d < n; d++) {
                rnn.direction = d;
                rnn.backward = reverse || d == 1;
                if ((r = add_direction(o, &rnn, &layers[d])))
                        return r;
        }
        rnn.backward = reverse;
        if ((is_used(o, 0) || (!is_used(o, 1) && !rnn.last_cell)) && (r = all_states(o, &rnn, n, layers)))
                return r;
        if ((is_used(o, 1) || n == 1) && (r = last_states(o, &rnn, n, layers, 1, rnn.positions - 1)))
                return r;
        return rnn.last_cell ? last_states(o, &rnn, n, layers, 2, rnn.positions) : 0;
}
