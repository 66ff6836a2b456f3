/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that only move elements. Each gives a shape and a table with the source of each element, both for
 * constants and for layers' outputs. */
#include "cli/onnx/internal.h"

static const char *const moves[] = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
        "Slice", "Split", "Gather", "Expand", "Tile", "Cast", "CastLike", "DepthToSpace", "SpaceToDepth",
        "Pad", NULL};

bool mfl_onnx_is_move(const struct onnx *o)
{
        const char *op = mfl_onnx_node(o)->op_type;
        const struct onnx_value *v = mfl_onnx_input(o, 0), *index = mfl_onnx_input(o, 1);
        if (!strcmp(op, "Gather"))
                return v && index && index->tensor && (!v->tensor || v->tensor->count);
        if (!strcmp(op, "Pad"))
                return v && mfl_onnx_pads_nothing(o);
        for (int i = 0; moves[i]; i++)
                if (!strcmp(moves[i], op))
                        return true;
        return false;
}

/* A move: out[i] = in[map[i]]; map NULL: the same order. */
struct move {
        const struct onnx_value *in;
        struct onnx_shape out;
        int32_t *map;
        int batch_at; /* of the result, where that is known */
};

static int new_map(struct onnx *o, struct move *m)
{
        int64_t n = 1;
        for (int d = 0; d < m->out.rank; d++)
                if (m->out.dim[d] < 0 || m->out.dim[d] > ONNX_ELEMENTS_MAX ||
                        (n *= m->out.dim[d]) > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "the result is too large");
        m->map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *m->map);
        return m->map ? 0 : onnx_memory(o);
}

static void strides_of(const struct onnx_shape *s, int64_t *stride)
{
        int64_t n = 1;
        for (int d = s->rank - 1; d >= 0; d--) {
                stride[d] = n;
                n *= s->dim[d];
        }
}

/* out[i0, i1, ...] = in[start + i0 * step[0] + i1 * step[1] + ...] */
static int fill_strided(struct onnx *o, struct move *m, int64_t start, const int64_t *step)
{
        int r = new_map(o, m);
        int64_t n = r ? 0 : mfl_onnx_count(&m->out), index[ONNX_RANK_MAX] = {0}, at = start;
        for (int64_t i = 0; i < n; i++) {
                m->map[i] = (int32_t)at;
                for (int d = m->out.rank - 1; d >= 0; d--) {
                        at += step[d];
                        if (++index[d] < m->out.dim[d])
                                break;
                        at -= step[d] * m->out.dim[d];
                        index[d] = 0;
                }
        }
        return r;
}

static int axis_of(struct onnx *o, int64_t axis, int rank, int *ret_axis)
{
        if (axis < -rank || axis >= rank)
                return mfl_onnx_fail(o, "axis %lld; there are %d dimensions", (long long)axis, rank);
        *ret_axis = (int)(axis < 0 ? axis + rank : axis);
        return 0;
}

/* One dimension may be -1. If the graph was exported with a fixed batch, its shapes contain that batch size,
 * which is read as 1. */
static int try_reshape(const struct move *m, const int64_t *dims, int n, bool allow_zero, int64_t first,
        struct onnx_shape *ret_shape)
{
        int64_t have = mfl_onnx_count(&m->in->shape), known = 1;
        int open = -1;
        struct onnx_shape s = {.rank = n};
        for (int d = 0; d < n; d++) {
                int64_t v = d == 0 && first ? first : dims[d];
                if (v == 0 && !allow_zero)
                        v = d < m->in->shape.rank ? m->in->shape.dim[d] : -2;
                if (v < -1 || (v == -1 && open >= 0))
                        return -1;
                if (v == -1)
                        open = d;
                else if (__builtin_mul_overflow(known, v, &known))
                        return -1;
                s.dim[d] = v;
        }
        if (open >= 0) {
                if (!known || have % known)
                        return -1;
                s.dim[open] = have / known;
        } else if (known != have) {
                return -1;
        }
        *ret_shape = s;
        return 0;
}

static int fail_batch(struct onnx *o, const struct move *m)
{
        return mfl_onnx_fail(o,
                "the %lld numbers of one sample don't fit the shape; export the model with a batch of 1, "
                "with "
                "dynamic_axes, or by mfl_export.save(net, example, file)",
                (long long)mfl_onnx_count(&m->in->shape));
}

/* Whether the value has the file's fixed batch, where it has 1 here: it is computed from samples. */
static bool has_batch(const struct onnx *o, const struct onnx_value *v)
{
        return o->batch > 1 && !v->tensor && !mfl_onnx_of_params(o, v);
}

/* Of a fixed batch that comes first, the first dimension is a multiple, and the numbers of a sample are neighbours. A model that
 * mixes samples otherwise is none that mfl, or a file without a fixed batch, could have. Behind a transpose that moved the batch, the
 * first dimension may have the batch's number by chance. */
static int move_reshape(struct onnx *o, struct move *m)
{
        const int64_t *dims;
        int n, r = mfl_onnx_ints(o, "shape", 1, &dims, &n);
        if (r)
                return r;
        bool allow_zero = mfl_onnx_int(o, "allowzero", 0) != 0;
        if (n < 0 || n > ONNX_RANK_MAX)
                return mfl_onnx_fail(o, "%d dimensions; the limit is %d", n, ONNX_RANK_MAX);
        int64_t first = 0;
        if (n && has_batch(o, m->in) && m->in->batch_at)
                return mfl_onnx_batch_reshape(o, m->in, dims, n, allow_zero, &m->out, &m->batch_at)
                               ? 0
                               : fail_batch(o, m);
        if (n && has_batch(o, m->in)) {
                bool open = false, leads = m->in->shape.rank && m->in->shape.dim[0] == 1;
                for (int d = 0; d < n; d++)
                        open = open || dims[d] == -1;
                first = dims[0] == o->batch && !m->in->aside              ? 1
                        : leads && dims[0] > 0 && dims[0] % o->batch == 0 ? dims[0] / o->batch
                                                                          : 0;
                if (!first && open && !(leads && dims[0] <= 0))
                        return fail_batch(o, m);
        }
        if (!try_reshape(m, dims, n, allow_zero, first, &m->out) ||
                (n && dims[0] > 1 && !m->in->tensor && o->batch <= 1 &&
                        !try_reshape(m, dims, n, allow_zero, 1, &m->out)))
                return 0;
        return fail_batch(o, m);
}

static int move_flatten(struct onnx *o, struct move *m)
{
        int64_t axis = mfl_onnx_int(o, "axis", 1), rows = 1;
        const struct onnx_shape *in = &m->in->shape;
        if (axis < -in->rank || axis > in->rank)
                return mfl_onnx_fail(o, "axis %lld; there are %d dimensions", (long long)axis, in->rank);
        axis += axis < 0 ? in->rank : 0;
        for (int d = 0; d < axis; d++)
                rows *= in->dim[d];
        m->out = (struct onnx_shape){2, {rows, rows ? mfl_onnx_count(in) / rows : 0}};
        return 0;
}

static int move_squeeze(struct onnx *o, struct move *m, bool un)
{
        const int64_t *axes;
        int n, axis = 0, r = mfl_onnx_ints(o, "axes", 1, &axes, &n);
        unsigned at = 0;
        const struct onnx_shape *in = &m->in->shape;
        if (r)
                return r;
        if (n > ONNX_RANK_MAX || (un && (n < 0 || in->rank + n > ONNX_RANK_MAX)))
                return mfl_onnx_fail(o, "the number of axes is wrong");
        int rank = un ? in->rank + n : in->rank;
        for (int i = 0; i < n; i++) {
                if ((r = axis_of(o, axes[i], rank, &axis)))
                        return r;
                at |= 1u << axis;
        }
        for (int d = 0; n < 0 && d < rank; d++)
                at |= in->dim[d] == 1 ? 1u << d : 0;
        m->out.rank = 0;
        for (int d = 0, from = 0; d < rank; d++) {
                bool marked = at >> d & 1;
                if (un) {
                        if (!marked && from >= in->rank)
                                return mfl_onnx_fail(o, "an axis is named twice");
                        m->out.dim[m->out.rank++] = marked ? 1 : in->dim[from++];
                } else if (!marked) {
                        m->out.dim[m->out.rank++] = in->dim[d];
                } else if (in->dim[d] != 1) {
                        return mfl_onnx_fail(o, "dimension %d is %lld, not 1", d, (long long)in->dim[d]);
                }
        }
        m->batch_at = mfl_onnx_batch_squeeze(m->in, &m->out, at, un);
        return 0;
}

static int move_transpose(struct onnx *o, struct move *m)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "perm");
        int64_t stride[ONNX_RANK_MAX], step[ONNX_RANK_MAX];
        const struct onnx_shape *in = &m->in->shape;
        unsigned seen = 0;
        if (a && (int)a->n_ints != in->rank)
                return mfl_onnx_fail(o, "perm has %zu numbers for %d dimensions", a->n_ints, in->rank);
        strides_of(in, stride);
        m->out.rank = in->rank;
        for (int d = 0; d < in->rank; d++) {
                int64_t from = a ? a->ints[d] : in->rank - 1 - d;
                from += from < 0 ? in->rank : 0; /* PyTorch's first exporter writes -1 for movedim(-1, ...) */
                if (from < 0 || from >= in->rank || seen >> from & 1)
                        return mfl_onnx_fail(o, "perm must name each dimension once");
                seen |= 1u << from;
                m->out.dim[d] = in->dim[from];
                step[d] = stride[from];
        }
        m->batch_at = mfl_onnx_batch_transpose(o, m->in);
        return fill_strided(o, m, 0, step);
}

/* Clamps by the rules of the specification. */
static void clamp_range(int64_t dim, int64_t step, int64_t *start, int64_t *end)
{
        int64_t s = *start < 0 ? *start + dim : *start, e = *end < 0 ? *end + dim : *end;
        if (*end <= INT64_MIN + dim)
                e = step < 0 ? -1 : 0;
        s = MFL_MAX(MFL_MIN(s, step > 0 ? dim : dim - 1), 0);
        e = MFL_MAX(MFL_MIN(e, dim), step > 0 ? 0 : -1);
        *start = s;
        *end = e;
}

static int move_slice(struct onnx *o, struct move *m)
{
        const int64_t *starts, *ends, *axes, *steps;
        int n, n_ends, n_axes, n_steps, r;
        int64_t step[ONNX_RANK_MAX], at = 0;
        const struct onnx_shape *in = &m->in->shape;
        if ((r = mfl_onnx_ints(o, "starts", 1, &starts, &n)) ||
                (r = mfl_onnx_ints(o, "ends", 2, &ends, &n_ends)) ||
                (r = mfl_onnx_ints(o, "axes", 3, &axes, &n_axes)) ||
                (r = mfl_onnx_ints(o, NULL, 4, &steps, &n_steps)))
                return r;
        if (n < 0 || n != n_ends || (n_axes >= 0 && n_axes != n) || (n_steps >= 0 && n_steps != n) ||
                n > in->rank)
                return mfl_onnx_fail(o, "starts, ends, axes and steps differ in number");
        strides_of(in, step);
        m->out = *in;
        for (int i = 0; i < n; i++) {
                int axis = 0;
                if ((r = axis_of(o, n_axes < 0 ? i : axes[i], in->rank, &axis)))
                        return r;
                int64_t start = starts[i], end = ends[i], by = n_steps < 0 ? 1 : steps[i];
                if (by == 0 || by > INT32_MAX || by < -INT32_MAX)
                        return mfl_onnx_fail(o, "step %lld", (long long)by);
                clamp_range(in->dim[axis], by, &start, &end);
                int64_t length = by > 0 ? (end - start + by - 1) / by : (start - end - by - 1) / -by;
                m->out.dim[axis] = in->dim[axis] ? MFL_MAX(length, 0) : 0;
                at += start * step[axis];
                step[axis] *= by;
        }
        return fill_strided(o, m, at, step);
}

static int move_gather(struct onnx *o, struct move *m)
{
        const int64_t *index;
        int n, axis = 0, to = 0;
        const struct onnx_shape *in = &m->in->shape;
        int r = axis_of(o, mfl_onnx_int(o, "axis", 0), in->rank, &axis);
        if (!r)
                r = mfl_onnx_ints(o, NULL, 1, &index, &n);
        if (r)
                return r;
        const struct onnx_shape *shape = &mfl_onnx_input(o, 1)->shape;
        if (in->rank - 1 + shape->rank > ONNX_RANK_MAX)
                return mfl_onnx_fail(o, "the result has too many dimensions");
        for (int d = 0; d < axis; d++)
                m->out.dim[to++] = in->dim[d];
        for (int d = 0; d < shape->rank; d++)
                m->out.dim[to++] = shape->dim[d];
        for (int d = axis + 1; d < in->rank; d++)
                m->out.dim[to++] = in->dim[d];
        m->out.rank = to;
        if ((r = new_map(o, m)))
                return r;
        int64_t inner = 1, size = in->dim[axis], total = mfl_onnx_count(&m->out);
        for (int d = axis + 1; d < in->rank; d++)
                inner *= in->dim[d];
        for (int64_t i = 0; i < total; i++) {
                int64_t which = index[i / inner % n];
                which += which < 0 ? size : 0;
                if (which < 0 || which >= size)
                        return mfl_onnx_fail(
                                o, "index %lld is not in 0 to %lld", (long long)which, (long long)size - 1);
                m->map[i] = (int32_t)((i / inner / n * size + which) * inner + i % inner);
        }
        return 0;
}

static int move_expand(struct onnx *o, struct move *m)
{
        const int64_t *dims;
        struct onnx_shape want = {0};
        int n, r = mfl_onnx_ints(o, NULL, 1, &dims, &n);
        if (r)
                return r;
        if (n < 0 || n > ONNX_RANK_MAX)
                return mfl_onnx_fail(o, "%d dimensions; the limit is %d", n, ONNX_RANK_MAX);
        for (int d = 0; d < n; d++) {
                if (dims[d] < 0 || dims[d] > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "dimension %d is %lld", d, (long long)dims[d]);
                want.dim[want.rank++] = dims[d];
        }
        if (n == m->in->shape.rank && n && has_batch(o, m->in) && m->in->shape.dim[0] == 1 &&
                want.dim[0] == o->batch)
                want.dim[0] = 1;
        if ((r = mfl_onnx_broadcast(o, &m->in->shape, &want, &m->out)))
                return r;
        if (mfl_onnx_count(&m->out) == mfl_onnx_count(&m->in->shape))
                return 0;
        if ((r = new_map(o, m)))
                return r;
        int64_t total = mfl_onnx_count(&m->out);
        for (int64_t i = 0; i < total; i++)
                m->map[i] = (int32_t)mfl_onnx_broadcast_at(&m->out, i, &m->in->shape);
        return 0;
}

/* Each dimension, repeated as a whole. */
static int move_tile(struct onnx *o, struct move *m)
{
        const struct onnx_shape *in = &m->in->shape;
        const int64_t *repeats;
        int64_t step[ONNX_RANK_MAX] = {0}, stride[ONNX_RANK_MAX];
        struct onnx_shape whole = {.rank = in->rank};
        int n, r = mfl_onnx_ints(o, NULL, 1, &repeats, &n);
        if (r)
                return r;
        if (n != in->rank)
                return mfl_onnx_fail(o, "%d numbers of repetitions for %d dimensions", n, in->rank);
        strides_of(in, stride);
        m->out = (struct onnx_shape){0};
        for (int d = 0; d < n; d++) {
                if (repeats[d] < 1 || repeats[d] > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "%lld repetitions", (long long)repeats[d]);
                if (m->out.rank + 1 + (repeats[d] > 1) > ONNX_RANK_MAX)
                        return mfl_onnx_fail(o, "repeats too many dimensions");
                if (repeats[d] > 1)
                        m->out.dim[m->out.rank++] = repeats[d];
                step[m->out.rank] = stride[d];
                m->out.dim[m->out.rank++] = in->dim[d];
                whole.dim[d] = repeats[d] * in->dim[d];
        }
        r = fill_strided(o, m, 0, step);
        m->out = whole;
        return r;
}

/* Blocks of size x size pixels become channels, or channels become blocks. CRD counts the output's channels first, as
 * PixelShuffle; DCR counts the pixels of a block first. */
static int move_depth(struct onnx *o, struct move *m, bool to_space)
{
        const struct onnx_shape *in = &m->in->shape;
        int64_t k = mfl_onnx_int(o, "blocksize", 0), n = in->dim[0], c = in->dim[1], h = in->dim[2],
                w = in->dim[3];
        bool crd = to_space && mfl_onnx_string_is(o, "mode", "DCR", "CRD");
        if (in->rank != 4 || k < 1 || k > 65536 || (to_space ? c % (k * k) : h % k || w % k))
                return mfl_onnx_fail(o, "blocksize %lld does not fit the image", (long long)k);
        int64_t plane = h * w;
        if (to_space) {
                c /= k * k;
                m->out = (struct onnx_shape){6, {n, c, h, k, w, k}};
                int64_t own = crd ? k * k * plane : plane, pixel = crd ? plane : c * plane;
                const int64_t step[] = {in->dim[1] * plane, own, w, k * pixel, 1, pixel};
                int r = fill_strided(o, m, 0, step);
                m->out = (struct onnx_shape){4, {n, c, h * k, w * k}};
                return r;
        }
        m->out = (struct onnx_shape){6, {n, k, k, c, h / k, w / k}};
        const int64_t step[] = {c * plane, w, 1, plane, k * w, k};
        int r = fill_strided(o, m, 0, step);
        m->out = (struct onnx_shape){4, {n, c * k * k, h / k, w / k}};
        return r;
}

/* Whether only embeddings read the value, as it is or with constants added that say where each column's rows begin. */
static bool is_of_embeddings(const struct onnx *o, size_t from, const char *name, bool added)
{
        int n = 0;
        for (size_t i = from; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                for (size_t k = 0; k < node->n_input; k++) {
                        if (strcmp(node->input[k], name))
                                continue;
                        const struct onnx_value *other = node->n_input == 2 && *node->input[1 - k]
                                                                 ? mfl_onnx_find(o, node->input[1 - k])
                                                                 : NULL;
                        bool sum = !added && !strcmp(node->op_type, "Add") && other && other->tensor &&
                                   other->tensor->i && node->n_output == 1;
                        if (sum ? !is_of_embeddings(o, i + 1, node->output[0], true)
                                : strcmp(node->op_type, "Gather") || k != 1)
                                return false;
                        n++;
                }
        }
        return n > 0;
}

/* The numbers stay the same: all floats are float32 here. */
static int move_cast(struct onnx *o, struct move *m)
{
        enum onnx_kind from = onnx_kind_of(o, m->in), to;
        int r = mfl_onnx_cast_kind(o, &to);
        m->out = m->in->shape;
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        /* Columns of a table that hold codes, which a data set must have as whole numbers (kernels/check.c). */
        bool codes = from == ONNX_KIND_FLOAT && to == ONNX_KIND_WHOLE && m->in->layer == 0 &&
                     node->n_output == 1 && is_of_embeddings(o, (size_t)o->node + 1, node->output[0], false);
        if (!r && from != to && !codes)
                r = mfl_onnx_fail(o,
                        "converts the samples to %s; mfl keeps floats as floats and tokens as tokens: give "
                        "codes an int64 input of their own, "
                        "mfl_export.save(net, (codes, floats), file)",
                        to == ONNX_KIND_FLOAT  ? "floats"
                        : to == ONNX_KIND_BOOL ? "truth values"
                                               : "other numbers");
        return r;
}

static int take_tensor(
        struct onnx *o, const struct onnx_tensor *from, const struct move *m, struct onnx_value *v)
{
        struct onnx_tensor *t;
        int64_t n = mfl_onnx_count(&m->out);
        int r = 0;
        if (m->map) {
                r = mfl_onnx_take(o, from, m->map, n, &t);
        } else if ((t = mfl_onnx_alloc(o, 1, sizeof *t))) {
                *t = *from;
                t->count = n;
        } else {
                r = onnx_memory(o);
        }
        if (r)
                return r;
        t->moved = t->moved ? t->moved : o->node + 1;
        t->shape = m->out;
        t->shared = from->shared || m->in->uses > 1;
        t->turned = from->turned !=
                    (m->map && m->out.rank == 2 && !strcmp(mfl_onnx_node(o)->op_type, "Transpose"));
        v->tensor = t;
        return 0;
}

/* A parameter that stands in the result more than once is one parameter: a view of its layer repeats it. */
static int repeat(struct onnx *o, const struct move *m, struct onnx_value *v)
{
        struct onnx_value *lifted, *view, in = *m->in;
        bool simple = true;
        int r = m->map && v->tensor->param ? mfl_onnx_is_simple(o, v->tensor, &simple) : 0;
        if (r || simple)
                return r;
        const struct onnx_value *own = in.tensor->origin ? mfl_onnx_find(o, in.tensor->origin) : NULL;
        if (own && own->tensor &&
                own->tensor->f == in.tensor->f) /* only reshaped: the layer has its own shape */
                in.shape = own->shape;
        if ((r = mfl_onnx_lift(o, &in, &lifted)) || (r = mfl_onnx_view(o, lifted, &m->out, m->map, &view)))
                return r;
        int uses = v->uses;
        *v = *view;
        v->uses = uses;
        return 0;
}

static int finish(struct onnx *o, struct move *m, size_t i)
{
        struct onnx_value *v;
        int r = m->in->tensor ? mfl_onnx_new_value(o, &m->out, &v)
                              : mfl_onnx_view(o, m->in, &m->out, m->map, &v);
        if (!r && m->in->tensor)
                r = take_tensor(o, m->in->tensor, m, v);
        if (!r && v->tensor)
                r = repeat(o, m, v);
        if (!r && !v->tensor && !m->in->tensor && !strcmp(mfl_onnx_node(o)->op_type, "Expand"))
                v->narrow = (struct onnx_value *)(uintptr_t)m->in;
        if (!r && !v->tensor)
                v->batch_at = m->batch_at;
        return r ? r : mfl_onnx_output(o, i, v);
}

static int move_split(struct onnx *o, struct move *m)
{
        const struct onnx_shape *in = &m->in->shape;
        const int64_t *sizes;
        int n, axis = 0, n_out = (int)mfl_onnx_node(o)->n_output, r;
        int64_t step[ONNX_RANK_MAX], at = 0;
        if ((r = axis_of(o, mfl_onnx_int(o, "axis", 0), in->rank, &axis)) ||
                (r = mfl_onnx_ints(o, "split", 1, &sizes, &n)))
                return r;
        if (n_out < 1 || (n >= 0 && n != n_out))
                return mfl_onnx_fail(o, "%d sizes for %d outputs", n, n_out);
        strides_of(in, step);
        int64_t equal = (in->dim[axis] + n_out - 1) / n_out;
        for (int k = 0; k < n_out; k++) {
                int64_t size = n < 0 ? MFL_MIN(equal, in->dim[axis] - at) : sizes[k];
                if (size < 0 || size > in->dim[axis] - at)
                        return mfl_onnx_fail(o, "the parts exceed dimension %d, which is %lld", axis,
                                (long long)in->dim[axis]);
                m->out = *in;
                m->out.dim[axis] = size;
                if ((r = fill_strided(o, m, at * step[axis], step)) || (r = finish(o, m, (size_t)k)))
                        return r;
                at += size;
        }
        return 0;
}

int mfl_onnx_move(struct onnx *o)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *in = mfl_onnx_input(o, 0);
        struct move m = {.in = in};
        int r = 0;
        if (!in)
                return mfl_onnx_fail(o, "input 0 is missing");
        if (!in->tensor && in->pending == ONNX_GROUPS && !strcmp(op, "Reshape"))
                return (r = move_reshape(o, &m)) ? r : mfl_onnx_reshape_groups(o, in, &m.out);
        if (!in->tensor && (r = mfl_onnx_settle(o, in, &in)))
                return r;
        m.in = in;
        m.out = in->shape;
        if (!strcmp(op, "Split"))
                return move_split(o, &m);
        if (!strcmp(op, "Reshape"))
                r = move_reshape(o, &m);
        else if (!strcmp(op, "Flatten"))
                r = move_flatten(o, &m);
        else if (!strcmp(op, "Squeeze") || !strcmp(op, "Unsqueeze"))
                r = move_squeeze(o, &m, op[0] == 'U');
        else if (!strcmp(op, "Transpose"))
                r = move_transpose(o, &m);
        else if (!strcmp(op, "Slice"))
                r = move_slice(o, &m);
        else if (!strcmp(op, "Gather"))
                r = move_gather(o, &m);
        else if (!strncmp(op, "Cast", 4) && !in->tensor)
                r = move_cast(o, &m);
        else if (!strcmp(op, "Pad")) /* by 0, as exporters write before average pools */
                m.out = m.in->shape;
        else if (!strcmp(op, "Tile"))
                r = move_tile(o, &m);
        else if (!strcmp(op, "DepthToSpace") || !strcmp(op, "SpaceToDepth"))
                r = move_depth(o, &m, op[0] == 'D');
        else if (!strcmp(op, "Expand"))
                r = move_expand(o, &m);
        return r ? r : finish(o, &m, 0);
}
