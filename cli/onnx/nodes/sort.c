/* SPDX-License-Identifier: Apache-2.0 */
/* TopK, which torch.sort, topk, msort and median are: a network that sorts each row by maxima and minima of pairs (Batcher 1968,
 * as Knuth's algorithm 5.2.2M gives it for any count). Only its values are computed, not the indices. */
#include "cli/onnx/internal.h"

#define SORTED_MAX 256 /* numbers in a row */

/* {rows, n} by the table of columns `at`. */
static int columns(
        struct onnx *o, const struct onnx_value *of, const int *at, int n, struct onnx_value **ret_view)
{
        int64_t rows = of->shape.dim[0], width = of->shape.dim[1];
        struct onnx_shape shape = {2, {rows, n}};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(rows * n) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < rows * n; i++)
                map[i] = (int32_t)(i / n * width + at[i % n]);
        return mfl_onnx_view(o, of, &shape, map, ret_view);
}

/* The larger of each pair of neighbouring columns, or the smaller. Of equal numbers the first one counts, which gets the
 * gradient. */
static int one_of_pairs(struct onnx *o, const struct onnx_value *pairs, bool smaller,
        struct mfl_shape *ret_shape, int *ret_layer)
{
        static const struct mfl_layer negation = {.op = MFL_OP_NEG};
        int64_t rows = pairs->shape.dim[0], n = pairs->shape.dim[1] / 2;
        struct mfl_shape in = {3, {rows * n, 1, 2}};
        struct mfl_layer l = {.op = MFL_OP_GLOBAL_MAXPOOL2D, .out = {3, {rows * n, 1, 1}}};
        struct onnx_shape shape = {2, {rows, n}};
        struct onnx_value *v = (struct onnx_value *)(uintptr_t)pairs;
        int r, layer;
        if ((smaller && (r = mfl_onnx_add_unary(o, v, &negation, &v))) ||
                (r = mfl_onnx_view_layer(o, v, &in, &l.input)) ||
                (r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)) ||
                (r = mfl_onnx_layer_value(o, layer, &shape, &v)) ||
                (smaller && (r = mfl_onnx_add_unary(o, v, &negation, &v))))
                return r;
        *ret_shape = (struct mfl_shape){2, {rows, n}};
        return mfl_onnx_view_layer(o, v, ret_shape, ret_layer);
}

/* The columns side by side. */
static int append(
        struct onnx *o, int layer, const struct mfl_shape *shape, int *joined, struct mfl_shape *total)
{
        struct mfl_layer l = {
                .op = MFL_OP_CONCAT, .axis = 1, .input = *joined, .input2 = layer, .out = *total};
        l.out.dim[1] += shape->dim[1];
        *total = l.out;
        return mfl_onnx_add_layer(o, &l, NULL, o->node, joined);
}

struct network {
        struct onnx_value *view; /* {rows, columns} */
        int n, at[SORTED_MAX];   /* number i of each row stands in column at[i] */
        int n_pairs, lower[SORTED_MAX], upper[SORTED_MAX];
};

/* One layer of comparisons: number lower[i] and upper[i] of each row change places if they are not in order. */
static int run_stage(struct onnx *o, struct network *w)
{
        int high[SORTED_MAX], low[SORTED_MAX], rest[SORTED_MAX], n_rest = 0, n = w->n_pairs, layer, more;
        bool paired[SORTED_MAX] = {false};
        struct onnx_value *highs, *lows, *others;
        struct mfl_shape total, s;
        int r;
        for (int i = 0; i < n; i++) {
                int a = w->lower[i], b = w->upper[i];
                high[2 * i] = low[2 * i + 1] = w->at[b];
                high[2 * i + 1] = low[2 * i] = w->at[a];
                paired[a] = paired[b] = true;
                w->at[a] = n + i;
                w->at[b] = i;
        }
        for (int i = 0; i < w->n; i++)
                if (!paired[i]) {
                        rest[n_rest] = w->at[i];
                        w->at[i] = 2 * n + n_rest++;
                }
        if ((r = columns(o, w->view, high, 2 * n, &highs)) || (r = columns(o, w->view, low, 2 * n, &lows)) ||
                (r = one_of_pairs(o, highs, false, &total, &layer)) ||
                (r = one_of_pairs(o, lows, true, &s, &more)) || (r = append(o, more, &s, &layer, &total)))
                return r;
        s.dim[1] = n_rest;
        if (n_rest && ((r = columns(o, w->view, rest, n_rest, &others)) ||
                              (r = mfl_onnx_view_layer(o, others, &s, &more)) ||
                              (r = append(o, more, &s, &layer, &total))))
                return r;
        struct onnx_shape shape = {2, {total.dim[0], total.dim[1]}};
        return mfl_onnx_layer_value(o, layer, &shape, &w->view);
}

/* In ascending order. */
static int sort(struct onnx *o, struct network *w)
{
        int r = 0, n = w->n;
        for (int p = 1; p < n; p *= 2)
                for (int k = p; k >= 1 && !r; k /= 2) {
                        w->n_pairs = 0;
                        for (int j = k % p; j <= n - 1 - k; j += 2 * k)
                                for (int i = 0; i < k && i + j + k < n; i++)
                                        if ((i + j) / (2 * p) == (i + j + k) / (2 * p)) {
                                                w->lower[w->n_pairs] = i + j;
                                                w->upper[w->n_pairs++] = i + j + k;
                                        }
                        r = w->n_pairs ? run_stage(o, w) : 0;
                }
        return r;
}

int mfl_onnx_top(struct onnx *o)
{
        struct onnx_value *x, *v;
        struct network *w = mfl_onnx_alloc(o, 1, sizeof *w);
        bool largest = mfl_onnx_int(o, "largest", 1) != 0;
        int64_t axis = mfl_onnx_int(o, "axis", -1);
        double wanted = 0;
        int r = w ? mfl_onnx_resolve(o, mfl_onnx_input(o, 0), &x) : onnx_memory(o);
        if (r)
                return r;
        axis += axis < 0 ? x->shape.rank : 0;
        if (axis < 0 || axis >= x->shape.rank || x->shape.dim[axis] > SORTED_MAX ||
                !mfl_onnx_scalar(mfl_onnx_input(o, 1), &wanted) ||
                !(wanted >= 1 && wanted <= (double)x->shape.dim[axis]))
                return mfl_onnx_fail(o,
                        "torch.sort, topk and median are supported for at most %d numbers; use amax, or "
                        "a softmax, over more",
                        SORTED_MAX);
        if ((r = mfl_onnx_check_batch(o, x, axis)))
                return r;
        w->n = (int)x->shape.dim[axis];
        int k = (int)wanted, taken[SORTED_MAX];
        struct onnx_shape rows = {2, {mfl_onnx_count(&x->shape) / w->n, w->n}}, shape = x->shape;
        for (int i = 0; i < w->n; i++)
                w->at[i] = i;
        if ((r = mfl_onnx_axis_last(o, x, (int)axis, &v)) ||
                (r = mfl_onnx_view(o, v, &rows, NULL, &w->view)) || (r = sort(o, w)))
                return r;
        for (int i = 0; i < k; i++)
                taken[i] = w->at[largest ? w->n - 1 - i : i];
        shape.dim[axis] = k;
        if ((r = columns(o, w->view, taken, k, &v)) || (r = mfl_onnx_axis_back(o, v, (int)axis, &shape, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}
