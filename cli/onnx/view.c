/* SPDX-License-Identifier: Apache-2.0 */
/* Views, and their elements as a layer's output: by reshapes, slices and transpositions. */
#include "cli/onnx/internal.h"

int mfl_onnx_view(struct onnx *o, const struct onnx_value *of, const struct onnx_shape *shape,
        const int32_t *map, struct onnx_value **ret_value)
{
        struct onnx_value *v;
        int64_t n = mfl_onnx_count(shape);
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->layer = of->layer;
        v->samples = of->samples;
        if (of->samples)
                v->unmoved = of->unmoved ? of->unmoved : (struct onnx_value *)(uintptr_t)of;
        v->function = of->function;
        v->cut = of->cut;
        v->pair = of->pair;
        v->map = of->map;
        v->parent = map ? of : of->parent;
        v->step = map ? map : of->step;
        *ret_value = v;
        if (!map)
                return 0;
        int32_t *joined = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *joined);
        if (!joined)
                return onnx_memory(o);
        bool same = n == mfl_shape_count(mfl_onnx_layer_shape(o, of->layer));
        for (int64_t i = 0; i < n; i++) {
                joined[i] = of->map ? of->map[map[i]] : map[i];
                same = same && joined[i] == i;
        }
        v->map = same ? NULL : joined;
        return 0;
}

static int reshape_to(struct onnx *o, int layer, const struct mfl_shape *shape, int *ret_layer)
{
        while (o->layers[layer].layer.op == MFL_OP_RESHAPE)
                layer = o->layers[layer].layer.input; /* the second of two reshapes is enough */
        *ret_layer = layer;
        if (mfl_shape_equal(mfl_onnx_layer_shape(o, layer), shape))
                return 0;
        struct mfl_layer l = {.op = MFL_OP_RESHAPE, .input = layer, .shape = *shape, .out = *shape};
        return mfl_onnx_derive(o, &l, o->node, ret_layer);
}

/* Whether map lists the elements of `in` with its dimensions in that order, starting at `start` along axis.
 */
static bool is_strided(const int32_t *map, const struct mfl_shape *in, const int *order,
        const struct mfl_shape *part, int axis, int64_t start)
{
        int64_t stride[MFL_SHAPE_RANK_MAX], n = mfl_shape_count(part), s = 1;
        for (int d = in->rank - 1; d >= 0; d--) {
                stride[d] = s;
                s *= in->dim[d];
        }
        for (int64_t i = 0; i < n; i++) {
                int64_t left = i, at = start * stride[axis];
                for (int d = in->rank - 1; d >= 0; d--) {
                        at += left % part->dim[order[d]] * stride[order[d]];
                        left /= part->dim[order[d]];
                }
                if (map[i] != at)
                        return false;
        }
        return true;
}

static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

static bool order_fits(const int *order, int rank)
{
        for (int d = 0; d < 3; d++)
                if (d < rank ? order[d] >= rank : order[d] != d)
                        return false;
        return true;
}

static int slice_and_transpose(struct onnx *o, const struct onnx_value *v, const int *order, int axis,
        int64_t start, const struct mfl_shape *part, int *ret_layer)
{
        int layer = v->layer, r = 0;
        struct mfl_shape in = *mfl_onnx_layer_shape(o, layer);
        if (part->dim[axis] != in.dim[axis]) {
                struct mfl_layer l = {.op = MFL_OP_SLICE,
                        .input = layer,
                        .axis = axis,
                        .start = (int)start,
                        .end = (int)(start + part->dim[axis]),
                        .out = *part};
                r = mfl_onnx_derive(o, &l, o->node, &layer);
        }
        bool moved = false;
        struct mfl_layer l = {.op = MFL_OP_TRANSPOSE, .input = layer, .out = {.rank = in.rank}};
        for (int d = 0; d < in.rank; d++) {
                l.order[d] = order[d];
                l.out.dim[d] = part->dim[order[d]];
                moved = moved || order[d] != d;
        }
        if (!r && moved)
                r = mfl_onnx_derive(o, &l, o->node, &layer);
        if (!r)
                *ret_layer = layer;
        return r;
}

/* Makes a view that takes a part of one dimension and reorders the dimensions. *ret_layer is -1 if the view
 * is different. */
static int find_transposed(struct onnx *o, const struct onnx_value *v, int *ret_layer)
{
        struct mfl_shape in = *mfl_onnx_layer_shape(o, v->layer);
        int64_t n = mfl_onnx_count(&v->shape), total = mfl_shape_count(&in);
        *ret_layer = -1;
        for (int axis = 0; n && axis < in.rank; axis++) {
                int64_t others = total / in.dim[axis], stride = 1;
                struct mfl_shape part = in;
                if (n % others || n / others > in.dim[axis])
                        continue;
                for (int d = axis + 1; d < in.rank; d++)
                        stride *= in.dim[d];
                part.dim[axis] = n / others;
                int64_t start = v->map[0] / stride % in.dim[axis];
                for (size_t k = 0; k < MFL_ARRAY_SIZE(orders); k++) {
                        if (order_fits(orders[k], in.rank) && start + part.dim[axis] <= in.dim[axis] &&
                                is_strided(v->map, &in, orders[k], &part, axis, start))
                                return slice_and_transpose(o, v, orders[k], axis, start, &part, ret_layer);
                }
        }
        return 0;
}

/* ---- views whose dimensions differ from the layer's ---- */

#define STEPS_MAX 3

/* Element (i0, i1, ...) of a view is element start + i0 stride[0] + i1 stride[1] + ... of the layer. The last
 * index varies fastest. */
struct steps {
        int n;
        int64_t start, size[STEPS_MAX], stride[STEPS_MAX];
};

/* How often the first `block` elements repeat, each time shifted by `stride`. */
static int64_t count_blocks(const int32_t *map, int64_t n, int64_t block, int64_t stride)
{
        int64_t count = 1;
        while ((count + 1) * block <= n) {
                for (int64_t i = 0; i < block; i++)
                        if (map[count * block + i] != map[i] + count * stride)
                                return count;
                count++;
        }
        return count;
}

static bool read_steps(const int32_t *map, int64_t n, struct steps *ret_steps)
{
        struct steps s = {.start = map[0]};
        for (int64_t block = 1; block < n;) {
                int64_t stride = (int64_t)map[block] - map[0], count = count_blocks(map, n, block, stride);
                if (stride < 1 || s.n == STEPS_MAX || n % (block * count))
                        return false;
                memmove(s.size + 1, s.size, (STEPS_MAX - 1) * sizeof s.size[0]);
                memmove(s.stride + 1, s.stride, (STEPS_MAX - 1) * sizeof s.stride[0]);
                s.size[0] = count;
                s.stride[0] = stride;
                s.n++;
                block *= count;
        }
        *ret_steps = s;
        return s.n > 0;
}

/* Sorted by falling strides, the steps are the dimensions of the layer's output, split differently: the part
 * of each, and its start. order[d]: the dimension that is the view's d-th. */
struct cut {
        struct mfl_shape whole, part;
        int64_t start[MFL_SHAPE_RANK_MAX];
        int order[MFL_SHAPE_RANK_MAX];
};

static bool cut_by(const struct steps *s, int64_t total, struct cut *ret_cut)
{
        struct cut c = {.whole.rank = s->n, .part.rank = s->n};
        int64_t outer = total, least = total;
        int by[STEPS_MAX] = {0};
        for (int d = 0; d < s->n; d++) {
                for (int e = 0; e < s->n; e++)
                        c.order[d] += s->stride[e] > s->stride[d];
                by[c.order[d]] = d;
        }
        for (int k = 0; k < s->n; k++) {
                int64_t stride = s->stride[by[k]];
                if (outer % stride)
                        return false;
                c.whole.dim[k] = outer / stride;
                c.part.dim[k] = s->size[by[k]];
                c.start[k] = s->start / stride % c.whole.dim[k];
                if (c.start[k] + c.part.dim[k] > c.whole.dim[k])
                        return false;
                outer = least = stride;
        }
        if (least > 1) { /* one of several neighbours */
                if (s->n == STEPS_MAX)
                        return false;
                c.start[s->n] = s->start % least;
                c.order[s->n] = s->n;
                c.whole.dim[c.whole.rank++] = least;
                c.part.dim[c.part.rank++] = 1;
        }
        *ret_cut = c;
        return true;
}

/* Makes a view by a reshape, slices and a transposition: for shuffled channels, or every second one. */
static int find_cut(struct onnx *o, const struct onnx_value *v, int *ret_layer)
{
        struct steps steps;
        struct cut cut;
        int layer, r = 0;
        bool moved = false;
        *ret_layer = -1;
        if (!read_steps(v->map, mfl_onnx_count(&v->shape), &steps) ||
                !cut_by(&steps, mfl_shape_count(mfl_onnx_layer_shape(o, v->layer)), &cut))
                return 0;
        if ((r = reshape_to(o, v->layer, &cut.whole, &layer)))
                return r;
        struct mfl_shape now = cut.whole;
        for (int d = 0; !r && d < now.rank; d++) {
                if (cut.part.dim[d] == now.dim[d])
                        continue;
                now.dim[d] = cut.part.dim[d];
                struct mfl_layer l = {.op = MFL_OP_SLICE,
                        .input = layer,
                        .axis = d,
                        .start = (int)cut.start[d],
                        .end = (int)(cut.start[d] + cut.part.dim[d]),
                        .out = now};
                r = mfl_onnx_derive(o, &l, o->node, &layer);
        }
        struct mfl_layer l = {.op = MFL_OP_TRANSPOSE, .input = layer, .out = {.rank = now.rank}};
        for (int d = 0; d < now.rank; d++) {
                l.order[d] = cut.order[d];
                l.out.dim[d] = now.dim[cut.order[d]];
                moved = moved || cut.order[d] != d;
        }
        if (!r && moved)
                r = mfl_onnx_derive(o, &l, o->node, &layer);
        if (!r)
                *ret_layer = layer;
        return r;
}

#define PARENTS_MAX 64 /* each level uses some of the stack */

static int find_layer(
        struct onnx *o, const struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer);

/* Makes the parent a layer first, then its last move. If there was a function, v's layer already includes it.
 */
static int find_by_parent(
        struct onnx *o, const struct onnx_value *v, const struct mfl_shape *wanted, int *ret_layer)
{
        struct onnx_value parent = *v->parent, child = *v;
        const struct onnx_shape *all = &parent.shape;
        struct mfl_shape shape = {.rank = 1, .dim = {mfl_onnx_count(all)}};
        parent.layer = v->layer;
        parent.samples = NULL;
        if (all->rank >= 2 && all->rank <= 4 && all->dim[0] == 1) {
                shape.rank = all->rank - 1;
                for (int d = 0; d < shape.rank; d++)
                        shape.dim[d] = all->dim[d + 1];
        }
        if (o->parents >= PARENTS_MAX)
                return mfl_onnx_fail(o, "comes after too many moves that are not slices and transpositions");
        o->parents++;
        int r = mfl_onnx_view_layer(o, &parent, &shape, &child.layer);
        o->parents--;
        if (r)
                return r;
        child.map = v->step;
        child.parent = NULL;
        return find_layer(o, &child, wanted, ret_layer);
}

/* Slices and transpositions come first, those of the moves before too; then one strided view; then one for a move. */
static int find_layer(
        struct onnx *o, const struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer)
{
        bool narrow = o->narrow, tries = v->parent && v->parent->map;
        int layer, n_layers = o->n_layers, r = find_transposed(o, v, &layer);
        if (!r && layer < 0)
                r = find_cut(o, v, &layer);
        if (r || layer >= 0) {
                *ret_layer = r ? *ret_layer : layer;
                return r;
        }
        if (tries) {
                o->narrow = true;
                r = find_by_parent(o, v, shape, &layer);
                o->narrow = narrow;
        } else {
                r = mfl_onnx_fail(o, "reads an earlier layer in an order that is neither a slice nor a "
                                     "transposition of up to three dimensions");
        }
        if (r && r != -ENOMEM && !narrow) {
                o->n_layers = n_layers;
                r = mfl_onnx_make_strided(o, v, shape, &layer);
        }
        if (r && r != -ENOMEM && !narrow &&
                tries) { /* several strided views, as of windows that overlap the edge */
                o->n_layers = n_layers;
                r = find_by_parent(o, v, shape, &layer);
        }
        if (!r)
                *ret_layer = layer;
        return r;
}

int mfl_onnx_view_layer(
        struct onnx *o, const struct onnx_value *view, const struct mfl_shape *shape, int *ret_layer)
{
        int layer = view->layer, r;
        mfl_assert(!view->tensor && !view->samples && view->pending == ONNX_NONE);
        if (mfl_shape_count(shape) != mfl_onnx_count(&view->shape))
                return mfl_onnx_fail(o, "a value has %lld numbers where %lld are expected",
                        (long long)mfl_onnx_count(&view->shape), (long long)mfl_shape_count(shape));
        if (view->map && (r = find_layer(o, view, shape, &layer)))
                return r;
        return reshape_to(o, layer, shape, ret_layer);
}
