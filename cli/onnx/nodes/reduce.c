/* SPDX-License-Identifier: Apache-2.0 */
/* Means, sums and maxima over dimensions. */
#include "cli/onnx/internal.h"

int mfl_onnx_axis_last(struct onnx *o, const struct onnx_value *of, int axis, struct onnx_value **ret_view)
{
        struct onnx_shape s = of->shape;
        int64_t inner = 1, size = s.dim[axis], n = mfl_onnx_count(&s);
        for (int d = axis + 1; d < s.rank; d++)
                inner *= s.dim[d];
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        memmove(s.dim + axis, s.dim + axis + 1, (size_t)(s.rank - 1 - axis) * sizeof s.dim[0]);
        s.dim[s.rank - 1] = size;
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)((i / size / inner * size + i % size) * inner + i / size % inner);
        return mfl_onnx_view(o, of, &s, map, ret_view);
}

int mfl_onnx_axis_back(struct onnx *o, const struct onnx_value *of, int axis, const struct onnx_shape *shape,
        struct onnx_value **ret_view)
{
        int64_t inner = 1, size = shape->dim[axis], n = mfl_onnx_count(shape);
        for (int d = axis + 1; d < shape->rank; d++)
                inner *= shape->dim[d];
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)((i / inner / size * inner + i % inner) * size + i / inner % size);
        return mfl_onnx_view(o, of, shape, map, ret_view);
}

struct reduction {
        unsigned over; /* bit d: dimension d of the value */
        int64_t n;     /* numbers in each result */
        struct onnx_shape out;
};

static int read_axes(struct onnx *o, const struct onnx_value *x, struct reduction *ret)
{
        const int64_t *axes;
        int n, rank = x->shape.rank, r = mfl_onnx_ints(o, "axes", 1, &axes, &n);
        bool keep = mfl_onnx_int(o, "keepdims", 1) != 0;
        struct reduction d = {.n = 1};
        if (r)
                return r;
        for (int i = 0; i < n; i++) {
                int64_t a = axes[i] < 0 ? axes[i] + rank : axes[i];
                if (a < 0 || a >= rank)
                        return mfl_onnx_fail(
                                o, "axis %lld; there are %d dimensions", (long long)axes[i], rank);
                d.over |= 1u << a;
        }
        if (n < 1 && !mfl_onnx_int(o, "noop_with_empty_axes", 0))
                d.over = (1u << rank) - 1;
        /* Of a recurrent layer's last states, {1, batch, features}, the first dimension counts layers. */
        bool states = rank == 3 && (x->shape.dim[1] == 1 || x->shape.dim[2] == 1);
        if ((d.over & 1) && !states && (r = mfl_onnx_check_batch(o, x, 0)))
                return r;
        for (int k = 0; k < rank; k++) {
                bool reduced = d.over >> k & 1;
                d.n *= reduced ? x->shape.dim[k] : 1;
                if (!reduced || keep)
                        d.out.dim[d.out.rank++] = reduced ? 1 : x->shape.dim[k];
        }
        *ret = d;
        return 0;
}

/* The dimensions that remain, then those that go. */
static int reduced_last(
        struct onnx *o, const struct onnx_value *x, unsigned over, struct onnx_value **ret_view)
{
        int r = mfl_onnx_view(o, x, &x->shape, NULL, ret_view);
        int axis = 0;
        for (int d = 0; !r && d < x->shape.rank; d++) {
                if (!(over >> d & 1))
                        axis++;
                else if (over >> d != (1u << (x->shape.rank - d)) - 1)
                        r = mfl_onnx_axis_last(o, *ret_view, axis, ret_view);
                else
                        break;
        }
        return r;
}

/* The mean over one dimension of a value with few others is a layer as it is. */
static int mean_over(
        struct onnx *o, struct onnx_value *x, const struct reduction *d, int *ret_layer, bool *ret_done)
{
        int batch = 0;
        struct mfl_shape in;
        struct mfl_layer l = {.op = MFL_OP_MEAN};
        int r;
        while (batch < x->shape.rank && x->shape.dim[batch] != 1)
                batch++;
        *ret_done = false;
        for (int a = 0; a < x->shape.rank; a++) {
                if (d->over != 1u << a || a == batch || x->shape.rank - (batch < x->shape.rank) > 3)
                        continue;
                l.axis = a - (a > batch);
                if ((r = mfl_onnx_sample_shape(o, x, &in)) || in.rank < 2 || l.axis >= in.rank)
                        return r;
                if ((r = mfl_onnx_view_layer(o, x, &in, &l.input)))
                        return r;
                for (int k = 0; k < in.rank; k++)
                        if (k != l.axis)
                                l.out.dim[l.out.rank++] = in.dim[k];
                *ret_done = true;
                return mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
        }
        return 0;
}

/* Over any dimensions: if they lie apart in too many groups, they are moved to the end first. */
static int sum(struct onnx *o, struct onnx_value *x, const struct reduction *d, bool is_mean, int *ret_layer)
{
        struct onnx_value *view;
        struct onnx_shape rows = {2, {mfl_onnx_count(&x->shape) / d->n, d->n}};
        bool done;
        int r = mfl_onnx_add_sum(o, x, d->over, is_mean, ret_layer, &done);
        if (r || done)
                return r;
        if ((r = reduced_last(o, x, d->over, &view)) || (r = mfl_onnx_view(o, view, &rows, NULL, &view)))
                return r;
        return mfl_onnx_add_sum(o, view, 2, is_mean, ret_layer, &done);
}

static int mean(struct onnx *o, struct onnx_value *x, const struct reduction *d, int *ret_layer)
{
        bool done;
        if (x->shape.rank == 4 && d->over == 12 && x->shape.dim[0] == 1) {
                struct mfl_layer l = {.op = MFL_OP_GLOBAL_AVGPOOL2D};
                struct mfl_shape in;
                int r = mfl_onnx_image(o, x, &l.input, &in);
                l.out = (struct mfl_shape){3, {x->shape.dim[1], 1, 1}};
                return r ? r : mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
        }
        int r = mean_over(o, x, d, ret_layer, &done);
        return r || done ? r : sum(o, x, d, true, ret_layer);
}

static int maximum(struct onnx *o, struct onnx_value *x, const struct reduction *d, int *ret_layer)
{
        struct onnx_value *view;
        int64_t rows = mfl_onnx_count(&x->shape) / d->n;
        struct mfl_layer l = {.op = MFL_OP_GLOBAL_MAXPOOL2D, .out = {3, {rows, 1, 1}}};
        struct mfl_shape in = {3, {rows, 1, d->n}};
        int r;
        if ((r = reduced_last(o, x, d->over, &view)) || (r = mfl_onnx_view_layer(o, view, &in, &l.input)))
                return r;
        return mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
}

/* Columns [start, start + n) of {rows, width}. */
static int columns(
        struct onnx *o, const struct onnx_value *of, int64_t start, int64_t n, struct onnx_value **ret_view)
{
        int64_t rows = of->shape.dim[0], width = of->shape.dim[1];
        struct onnx_shape shape = {2, {rows, n}};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(rows * n) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < rows * n; i++)
                map[i] = (int32_t)(i / n * width + start + i % n);
        return mfl_onnx_view(o, of, &shape, map, ret_view);
}

/* The first half times the second, again and again; the number between two halves of an odd count comes last. Unlike the
 * exponential of a sum of logarithms, this is right for zeros and negative numbers. */
static int product(
        struct onnx *o, struct onnx_value *x, const struct reduction *d, struct onnx_value **ret_view)
{
        int64_t rows = mfl_onnx_count(&x->shape) / d->n;
        struct onnx_value *view, *a, *b, *odd = NULL;
        struct onnx_shape all = {2, {rows, d->n}}, flat = {2, {rows, 1}};
        int r = reduced_last(o, x, d->over, &view);
        if (!r)
                r = mfl_onnx_view(o, view, &all, NULL, &view);
        for (int64_t n = d->n, half; !r && n > 1; n = half) {
                half = n / 2;
                struct onnx_value *last = NULL;
                if ((r = columns(o, view, 0, half, &a)) || (r = columns(o, view, half, half, &b)) ||
                        (n % 2 && (r = columns(o, view, n - 1, 1, &last))) ||
                        (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, a, b, &view)))
                        break;
                flat.dim[1] = half;
                view->shape = flat;
                if (last && odd)
                        r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, odd, last, &last);
                odd = last ? last : odd;
        }
        if (!r && odd)
                r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, view, odd, &view);
        return r ? r : mfl_onnx_view(o, view, &d->out, NULL, ret_view);
}

static int absolute(struct onnx *o, struct onnx_value *of, struct onnx_value **ret_view)
{
        struct onnx_value *v, *made = NULL;
        double *f;
        int r = mfl_onnx_new_function(o, of, &f, &v);
        for (int i = 0; !r && i < ONNX_SAMPLES; i++)
                f[i] = fabs(mfl_onnx_sample_at(i));
        if (!r)
                r = mfl_onnx_make_known(o, v, &made);
        if (!r)
                *ret_view = made;
        return r;
}

static int log_sum_exp(
        struct onnx *o, struct onnx_value *x, const struct reduction *d, struct onnx_value **ret_view)
{
        struct onnx_value *view, *v;
        struct onnx_shape rows = {2, {mfl_onnx_count(&x->shape) / d->n, d->n}};
        int r;
        if ((r = reduced_last(o, x, d->over, &view)) || (r = mfl_onnx_view(o, view, &rows, NULL, &view)) ||
                (r = mfl_onnx_log_sum_exp(o, view, &v)))
                return r;
        return mfl_onnx_view(o, v, &d->out, NULL, ret_view);
}

int mfl_onnx_reduce(struct onnx *o)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *x, *v;
        struct reduction d;
        int layer, r = mfl_onnx_resolve(o, mfl_onnx_input(o, 0), &x);
        if (!r)
                r = read_axes(o, x, &d);
        if (r)
                return r;
        if (d.n < 1 || !mfl_onnx_count(&x->shape))
                return mfl_onnx_fail(o, "has no numbers to reduce");
        bool length = !strcmp(op, "ReduceL2"), least = !strcmp(op, "ReduceMin");
        if (((length || !strcmp(op, "ReduceSumSquare")) && (r = mfl_onnx_make_power(o, x, 2, 1, &x))) ||
                (least && (r = mfl_onnx_make_affine(o, x, -1, 0, &x))) ||
                (!strcmp(op, "ReduceL1") && (r = absolute(o, x, &x))))
                return r;
        if (d.n == 1) { /* nothing to add */
                r = mfl_onnx_view(o, x, &d.out, NULL, &v);
        } else if (!strcmp(op, "ReduceLogSumExp")) {
                r = log_sum_exp(o, x, &d, &v);
        } else if (!strcmp(op, "ReduceProd")) {
                r = product(o, x, &d, &v);
        } else {
                r = least || !strcmp(op, "ReduceMax") ? maximum(o, x, &d, &layer)
                    : !strcmp(op, "ReduceMean")       ? mean(o, x, &d, &layer)
                                                      : sum(o, x, &d, false, &layer);
                if (!r)
                        r = mfl_onnx_layer_value(o, layer, &d.out, &v);
        }
        if (!r && least)
                r = mfl_onnx_make_affine(o, v, -1, 0, &v);
        /* The slope of the root at 0 is infinite; a vector of zeros shall have the gradient 0. */
        if (!r && length && !(r = mfl_onnx_make_affine(o, v, 1, 1e-24, &v)))
                r = mfl_onnx_make_power(o, v, 0.5, 1, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* max(x, c), or min(x, c), for a number c that nothing trains: *ret_view NULL: the node is not that. */
static int bound(struct onnx *o, struct onnx_value **ret_view)
{
        static const double none = 1e38; /* as in a Clip without the bound */
        double c;
        *ret_view = NULL;
        for (size_t k = 0; k < 2; k++) {
                struct onnx_value *x = mfl_onnx_input(o, 1 - k), *constant = mfl_onnx_input(o, k), *view;
                if (!x || x->tensor || !constant || !mfl_onnx_scalar(constant, &c) ||
                        constant->tensor->param || constant->shape.rank > x->shape.rank || !(fabs(c) < none))
                        continue;
                bool least = mfl_onnx_node(o)->op_type[1] == 'i';
                struct mfl_layer f = {.op = MFL_OP_HARDTANH,
                        .alpha = (float)(least ? -none : c),
                        .beta = (float)(least ? c : none)};
                if (!least && c == 0)
                        f = (struct mfl_layer){.op = MFL_OP_RELU};
                int r = mfl_onnx_resolve(o, x, &view);
                return r ? r : mfl_onnx_add_unary(o, view, &f, ret_view);
        }
        return 0;
}

/* max(a, b) = a + max(b - a, 0), and min(a, b) = -max(-a, -b). */
int mfl_onnx_extreme(struct onnx *o)
{
        struct onnx_value *in[2], *difference, *above, *v = NULL;
        double sign = mfl_onnx_node(o)->op_type[1] == 'i' ? -1 : 1;
        int layer, r = mfl_onnx_node(o)->n_input == 2 ? bound(o, &v)
                                                      : mfl_onnx_fail(o, "is supported for two values");
        if (r || v)
                return r ? r : mfl_onnx_output(o, 0, v);
        for (int k = 0; !r && k < 2; k++) {
                struct onnx_value *x = mfl_onnx_input(o, (size_t)k);
                if (!x || (x->tensor && !x->tensor->f))
                        return mfl_onnx_fail(o, "is supported for floats");
                r = x->tensor ? mfl_onnx_lift(o, x, &in[k]) : mfl_onnx_resolve(o, x, &in[k]);
                if (!r && sign < 0)
                        r = mfl_onnx_make_affine(o, in[k], -1, 0, &in[k]);
        }
        if (r || (r = mfl_onnx_make_affine(o, in[0], -1, 0, &v)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, in[1], v, &difference)))
                return r;
        struct mfl_layer relu = {.op = MFL_OP_RELU,
                .input = difference->layer,
                .out = *mfl_onnx_layer_shape(o, difference->layer)};
        if ((r = mfl_onnx_derive(o, &relu, o->node, &layer)) ||
                (r = mfl_onnx_view(o, difference, &difference->shape, NULL, &above)))
                return r;
        above->layer = layer;
        if ((r = mfl_onnx_combine(o, MFL_OP_ADD, in[0], above, &v)) ||
                (sign < 0 && (r = mfl_onnx_make_affine(o, v, -1, 0, &v))))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* He et al. 2015: max(x, 0) + slope * min(x, 0), and min(x, 0) = x - max(x, 0). */
int mfl_onnx_prelu(struct onnx *o)
{
        struct onnx_value *x, *slope = mfl_onnx_input(o, 1), *above, *below, *v;
        int layer, r = mfl_onnx_resolve(o, mfl_onnx_input(o, 0), &x);
        if (!r && (!slope || !slope->tensor))
                r = mfl_onnx_fail(o, "needs a parameter as its slope");
        if (!r)
                r = mfl_onnx_lift(o, slope, &slope);
        if (r)
                return r;
        struct mfl_layer relu = {
                .op = MFL_OP_RELU, .input = x->layer, .out = *mfl_onnx_layer_shape(o, x->layer)};
        if ((r = mfl_onnx_derive(o, &relu, o->node, &layer)) ||
                (r = mfl_onnx_view(o, x, &x->shape, NULL, &above)))
                return r;
        above->layer = layer;
        if ((r = mfl_onnx_make_affine(o, above, -1, 0, &below)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, x, below, &below)) ||
                (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, below, slope, &v)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, v, above, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}
