/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates constant nodes that add along dimensions, or pick elements by their places: positions of tokens, and masks. */
#include <math.h>

#include "cli/onnx/internal.h"

static int axis_of(struct onnx *o, int64_t axis, int rank, int *ret_axis)
{
        axis += axis < 0 ? rank : 0;
        if (axis < 0 || axis >= rank)
                return mfl_onnx_fail(o, "axis %lld: the constant has no such dimension", (long long)axis);
        *ret_axis = (int)axis;
        return 0;
}

/* Elements from one index of dimension d to the next. */
static int64_t stride_of(const struct onnx_shape *s, int d)
{
        int64_t n = 1;
        for (int k = d + 1; k < s->rank; k++)
                n *= s->dim[k];
        return n;
}

static int64_t place_of(struct onnx *o, const struct onnx_tensor *index, int64_t i, int64_t n)
{
        int64_t at = index->i ? index->i[i] : -n - 1;
        at += at < 0 ? n : 0;
        if (at < 0 || at >= n) {
                mfl_onnx_fail(o, "an index is outside the dimension of %lld", (long long)n);
                return -1;
        }
        return at;
}

/* Where the run of elements begins that row i of the indices names; -1: outside. */
static int64_t run_of(
        struct onnx *o, const struct onnx_tensor *index, int64_t i, int parts, const struct onnx_shape *s)
{
        int64_t from = 0;
        for (int d = 0; d < parts; d++) {
                int64_t at = place_of(o, index, i * parts + d, s->dim[d]);
                if (at < 0)
                        return -1;
                from += at * stride_of(s, d);
        }
        return from;
}

int mfl_onnx_fold_cumsum(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        bool reverse = mfl_onnx_int(o, "reverse", 0), exclusive = mfl_onnx_int(o, "exclusive", 0);
        struct onnx_tensor *t;
        double number;
        int axis = 0, r;
        if (!mfl_onnx_scalar(mfl_onnx_input(o, 1), &number) || !(fabs(number) <= ONNX_RANK_MAX))
                return mfl_onnx_fail(o, "needs one axis");
        if ((r = axis_of(o, (int64_t)number, a->shape.rank, &axis)) ||
                (r = mfl_onnx_fold_new(o, &a->shape, a->f, &t)))
                return r;
        int64_t n = a->shape.dim[axis], step = stride_of(&a->shape, axis);
        for (int64_t line = 0; n && line < a->count / n; line++) {
                double sum = 0;
                for (int64_t k = 0; k < n; k++) {
                        int64_t at = line / step * n * step + (reverse ? n - 1 - k : k) * step + line % step;
                        double before = sum;
                        sum += mfl_onnx_number(a, at);
                        mfl_onnx_fold_put(t, at, exclusive ? before : sum);
                }
        }
        return mfl_onnx_fold_output(o, t);
}

/* The places of what is not 0, as {dimensions, places}. */
int mfl_onnx_fold_non_zero(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        int64_t n = 0, at = 0;
        struct onnx_tensor *t;
        for (int64_t i = 0; i < a->count; i++)
                n += mfl_onnx_number(a, i) != 0;
        struct onnx_shape shape = {2, {a->shape.rank, n}};
        int r = mfl_onnx_fold_new(o, &shape, false, &t);
        for (int64_t i = 0; !r && i < a->count; i++) {
                if (mfl_onnx_number(a, i) == 0)
                        continue;
                for (int d = 0; d < a->shape.rank; d++)
                        mfl_onnx_fold_put(
                                t, d * n + at, (double)(i / stride_of(&a->shape, d) % a->shape.dim[d]));
                at++;
        }
        return r ? r : mfl_onnx_fold_output(o, t);
}

/* out[i..][k..] = data[index[i..][0]][index[i..][1]]..[k..] */
int mfl_onnx_fold_gather_nd(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor, *index = mfl_onnx_input(o, 1)->tensor;
        int rank = index->shape.rank, r;
        int64_t parts = rank ? index->shape.dim[rank - 1] : 0;
        struct onnx_shape shape = {0};
        struct onnx_tensor *t;
        if (mfl_onnx_int(o, "batch_dims", 0) || parts < 1 || parts > a->shape.rank ||
                rank - 1 + a->shape.rank - parts > ONNX_RANK_MAX)
                return mfl_onnx_fail(o, "only indices of whole elements are supported, without batch_dims");
        for (int d = 0; d < rank - 1; d++)
                shape.dim[shape.rank++] = index->shape.dim[d];
        for (int d = (int)parts; d < a->shape.rank; d++)
                shape.dim[shape.rank++] = a->shape.dim[d];
        if ((r = mfl_onnx_fold_new(o, &shape, a->f, &t)))
                return r;
        int64_t run = stride_of(&a->shape, (int)parts - 1);
        t->is_bool = a->is_bool;
        for (int64_t i = 0; i * parts < index->count; i++) {
                int64_t from = run_of(o, index, i, (int)parts, &a->shape);
                if (from < 0)
                        return MFL_INVALID;
                for (int64_t k = 0; k < run; k++)
                        mfl_onnx_fold_put(t, i * run + k, mfl_onnx_number(a, from + k));
        }
        return mfl_onnx_fold_output(o, t);
}

/* to[index[i..][0]][index[i..][1]]..[k..] = updates[i..][k..], or all of them *update; the updates may be computed then. */
static int scatter(struct onnx *o, struct onnx_tensor *to, const float *update)
{
        const struct onnx_tensor *index = mfl_onnx_input(o, 1)->tensor,
                                 *updates = mfl_onnx_input(o, 2)->tensor;
        int64_t parts = index->shape.rank ? index->shape.dim[index->shape.rank - 1] : 0;
        if (!mfl_onnx_string_is(o, "reduction", "none", "none") || parts < 1 || parts > to->shape.rank)
                return mfl_onnx_fail(o, "only indices of whole elements are supported, without a reduction");
        int64_t run = stride_of(&to->shape, (int)parts - 1);
        if (mfl_onnx_count(&mfl_onnx_input(o, 2)->shape) != index->count / parts * run)
                return mfl_onnx_fail(o, "the indices and the updates do not fit");
        for (int64_t i = 0; i * parts < index->count; i++) {
                int64_t at = run_of(o, index, i, (int)parts, &to->shape);
                if (at < 0)
                        return MFL_INVALID;
                for (int64_t k = 0; k < run; k++)
                        mfl_onnx_fold_put(
                                to, at + k, update ? (double)*update : mfl_onnx_number(updates, i * run + k));
        }
        return 0;
}

int mfl_onnx_fold_scatter_nd(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        struct onnx_tensor *t;
        int r = mfl_onnx_fold_new(o, &a->shape, a->f, &t);
        if (r)
                return r;
        t->is_bool = a->is_bool;
        for (int64_t i = 0; i < a->count; i++)
                mfl_onnx_fold_put(t, i, mfl_onnx_number(a, i));
        return (r = scatter(o, t, NULL)) ? r : mfl_onnx_fold_output(o, t);
}

int mfl_onnx_fold_scattered(struct onnx *o, const struct onnx_shape *shape, float data, const float *update,
        struct onnx_tensor **ret_tensor)
{
        int r = mfl_onnx_fold_new(o, shape, true, ret_tensor);
        for (int64_t i = 0; !r && i < (*ret_tensor)->count; i++)
                mfl_onnx_fold_put(*ret_tensor, i, (double)data);
        return r ? r : scatter(o, *ret_tensor, update);
}

/* out[i][j] = data[index[i][j]][j] for axis 0; of the same rank. */
int mfl_onnx_fold_gather_elements(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor, *index = mfl_onnx_input(o, 1)->tensor;
        struct onnx_tensor *t;
        int axis = 0, r = axis_of(o, mfl_onnx_int(o, "axis", 0), a->shape.rank, &axis);
        if (r)
                return r;
        bool fits = index->shape.rank == a->shape.rank;
        for (int d = 0; fits && d < a->shape.rank; d++)
                fits = d == axis || index->shape.dim[d] <= a->shape.dim[d];
        if (!fits)
                return mfl_onnx_fail(o, "the indices do not fit the constant");
        if ((r = mfl_onnx_fold_new(o, &index->shape, a->f, &t)))
                return r;
        t->is_bool = a->is_bool;
        for (int64_t i = 0; i < t->count; i++) {
                int64_t from = 0;
                for (int d = 0; d < a->shape.rank; d++) {
                        int64_t at = i / stride_of(&t->shape, d) % t->shape.dim[d];
                        if (d == axis && (at = place_of(o, index, i, a->shape.dim[d])) < 0)
                                return MFL_INVALID;
                        from += at * stride_of(&a->shape, d);
                }
                mfl_onnx_fold_put(t, i, mfl_onnx_number(a, from));
        }
        return mfl_onnx_fold_output(o, t);
}

static double reduce(char code, double sum, double x)
{
        switch (code) {
        case 'a': /* ReduceMax */
                return x > sum ? x : sum;
        case 'i': /* ReduceMin */
                return x < sum ? x : sum;
        case 'r': /* ReduceProd */
                return sum * x;
        default:
                return sum + x;
        }
}

/* ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd. */
int mfl_onnx_fold_reduce(struct onnx *o)
{
        const char *op = mfl_onnx_node(o)->op_type + strlen("Reduce");
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        char code = op[0] == 'M' && op[1] == 'e' ? 'm' : op[1]; /* Sum: 'u' */
        bool keep = mfl_onnx_int(o, "keepdims", 1), over[ONNX_RANK_MAX] = {false};
        struct onnx_shape shape = a->shape, out = {0};
        struct onnx_tensor *t;
        const int64_t *axes;
        int n, axis = 0, r = mfl_onnx_ints(o, "axes", 1, &axes, &n);
        for (int k = 0; !r && k < n; k++)
                if (!(r = axis_of(o, axes[k], a->shape.rank, &axis)))
                        over[axis] = true;
        if (r)
                return r;
        for (int d = 0; d < a->shape.rank; d++) {
                over[d] = over[d] || n < 0 || (n == 0 && !mfl_onnx_int(o, "noop_with_empty_axes", 0));
                shape.dim[d] = over[d] ? 1 : a->shape.dim[d];
                if (keep || !over[d])
                        out.dim[out.rank++] = shape.dim[d];
        }
        if ((r = mfl_onnx_fold_new(o, &out, a->f, &t)))
                return r;
        MFL_CLEANUP_FREE double *sum = mfl_calloc((size_t)t->count + 1, sizeof *sum);
        if (!sum)
                return onnx_memory(o);
        for (int64_t i = 0; i < t->count; i++)
                sum[i] = code == 'a' ? -INFINITY : code == 'i' ? INFINITY : code == 'r' ? 1 : 0;
        for (int64_t i = 0; i < a->count; i++) {
                double *to = &sum[mfl_onnx_broadcast_at(&a->shape, i, &shape)];
                *to = reduce(code, *to, mfl_onnx_number(a, i));
        }
        for (int64_t i = 0; i < t->count; i++)
                mfl_onnx_fold_put(t, i, code == 'm' ? sum[i] * (double)t->count / (double)a->count : sum[i]);
        return mfl_onnx_fold_output(o, t);
}

/* Which element is at place i of a padded dimension of n; -1: none. */
static int64_t padded_place(enum mfl_map_mode mode, int64_t i, int64_t n)
{
        if (i >= 0 && i < n)
                return i;
        switch (mode) {
        case MFL_MAP_REFLECT:
                i = i < 0 ? -i : 2 * (n - 1) - i;
                return i >= 0 && i < n ? i : -1;
        case MFL_MAP_REPLICATE:
                return i >= 0 ? n - 1 : n ? 0 : -1;
        case MFL_MAP_CIRCULAR:
                return i < -n || i >= 2 * n ? -1 : (i + n) % n;
        default:
                return -1;
        }
}

int mfl_onnx_fold_pad(struct onnx *o)
{
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        struct onnx_shape shape = a->shape;
        enum mfl_map_mode mode = MFL_MAP_CONSTANT;
        struct onnx_tensor *t;
        int64_t pads[ONNX_RANK_MAX][2];
        double value = (double)mfl_onnx_float(o, "value", 0);
        int64_t total = 1;
        int r = mfl_onnx_read_pads(o, shape.rank, pads);
        if (r || (r = mfl_onnx_pad_mode(o, &mode)))
                return r;
        if (mfl_onnx_input(o, 2) && !mfl_onnx_scalar(mfl_onnx_input(o, 2), &value))
                return mfl_onnx_fail(o, "the value of the padding is not one number");
        for (int d = 0; d < shape.rank; d++) {
                if (MFL_MAX(pads[d][0], pads[d][1]) > ONNX_ELEMENTS_MAX ||
                        MFL_MIN(pads[d][0], pads[d][1]) < -ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "pads a constant by too much");
                shape.dim[d] = MFL_MAX(shape.dim[d] + pads[d][0] + pads[d][1], (int64_t)0);
                if (shape.dim[d] > ONNX_ELEMENTS_MAX || (total *= shape.dim[d]) > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "pads a constant by too much");
        }
        if ((r = mfl_onnx_fold_new(o, &shape, a->f, &t)))
                return r;
        t->is_bool = a->is_bool;
        for (int64_t i = 0; i < t->count; i++) {
                int64_t at = 0, step = 1, left = i;
                bool inside = true;
                for (int d = shape.rank - 1; d >= 0; d--) {
                        int64_t n = a->shape.dim[d],
                                place = padded_place(mode, left % shape.dim[d] - pads[d][0], n);
                        if (place < 0 && mode != MFL_MAP_CONSTANT)
                                return mfl_onnx_fail(o, "pads a constant by more than it has");
                        inside = inside && place >= 0;
                        at += MFL_MAX(place, (int64_t)0) * step;
                        step *= n;
                        left /= shape.dim[d];
                }
                mfl_onnx_fold_put(t, i, inside ? mfl_onnx_number(a, at) : value);
        }
        return mfl_onnx_fold_output(o, t);
}
