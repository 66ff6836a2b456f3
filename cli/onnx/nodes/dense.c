/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights: dense layers. Weights that are computed from parameters are layers themselves: their product
 * with the samples is a matmul, or the dense layer of the parameter times a number. */
#include <math.h>

#include "cli/onnx/internal.h"

int mfl_onnx_fail_computed(struct onnx *o, size_t i, const struct onnx_value *v)
{
        const char *name = mfl_onnx_param_of(o, v);
        bool norm = name && (strstr(name, "weight_g") || strstr(name, "weight_v") ||
                                    strstr(name, "parametrizations"));
        if (!name)
                return mfl_onnx_fail(o, "input %zu is computed from the samples; it must be a parameter", i);
        return mfl_onnx_fail(o, "input %zu is computed from the parameter %.120s; %s", i, name,
                norm ? "before the export, call torch.nn.utils.remove_weight_norm(module), or "
                       "torch.nn.utils.parametrize.remove_parametrizations(module, name)"
                     : "mfl trains weights that are parameters themselves. Store the result as the parameter "
                       "before the "
                       "export (a pruned weight: torch.nn.utils.prune.remove), if that is what shall be "
                       "trained");
}

int mfl_onnx_weight_of(struct onnx *o, size_t i, int rank, const struct onnx_tensor **ret_tensor)
{
        const struct onnx_value *v = mfl_onnx_input(o, i);
        if (v && !v->tensor)
                return mfl_onnx_fail_computed(o, i, v);
        if (!v || !v->tensor->f || v->shape.rank != rank)
                return mfl_onnx_fail(o, "input %zu must be a parameter with %d dimensions, but has %d", i,
                        rank, v ? v->shape.rank : 0);
        *ret_tensor = v->tensor;
        return 0;
}

int mfl_onnx_scaled_weight(
        struct onnx *o, struct onnx_value *w, const struct onnx_tensor **ret_tensor, double *ret_scale)
{
        struct onnx_value *v;
        struct onnx_tensor *t;
        double scale;
        *ret_tensor = NULL;
        int r = mfl_onnx_settle(o, w, &v);
        if (r || o->layers[v->layer].layer.op != MFL_OP_WEIGHT || !mfl_onnx_linear(v, &scale))
                return r;
        const struct onnx_tensor *of = o->layers[v->layer].tensors[0];
        if (v->map) {
                r = mfl_onnx_take(o, of, v->map, mfl_onnx_count(&v->shape), &t);
        } else if ((t = mfl_onnx_alloc(o, 1, sizeof *t))) {
                *t = *of;
        } else {
                r = onnx_memory(o);
        }
        if (r)
                return r;
        t->shape = v->shape;
        while (t->shape.rank > 2 && t->shape.dim[0] == 1) /* a matrix by itself, as pulled files have it */
                memmove(t->shape.dim, t->shape.dim + 1, (size_t)--t->shape.rank * sizeof t->shape.dim[0]);
        *ret_tensor = t;
        *ret_scale = scale;
        return 0;
}

/* ---- weights that are parameters ---- */

static int pend_product(struct onnx *o, struct onnx_value *x, const struct onnx_tensor *w, bool transposed,
        struct onnx_value **ret_value)
{
        struct onnx_shape shape;
        struct onnx_value *base;
        if (!x || x->tensor)
                return mfl_onnx_fail(o, "needs data of the samples as its first input");
        int r = mfl_onnx_resolve(o, x, &base);
        if (r)
                return r;
        shape = base->shape;
        if (!w->f || w->shape.rank != 2 || shape.rank < 1 ||
                shape.dim[shape.rank - 1] != w->shape.dim[transposed ? 0 : 1])
                return mfl_onnx_fail(o, "the weights don't fit their input");
        shape.dim[shape.rank - 1] = w->shape.dim[transposed ? 1 : 0];
        if ((r = mfl_onnx_new_value(o, &shape, ret_value)))
                return r;
        (*ret_value)->pending = ONNX_PRODUCT;
        (*ret_value)->base = base;
        (*ret_value)->weight = w;
        (*ret_value)->transposed = transposed;
        return 0;
}

/* ---- computed weights ---- */

/* Whether the view is a matrix of its layer, turned. */
static bool is_turned(const struct onnx_value *v)
{
        int64_t rows = v->shape.dim[0], columns = v->shape.dim[1];
        if (!v->map)
                return false;
        for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < columns; k++)
                        if (v->map[i * columns + k] != k * rows + i)
                                return false;
        return true;
}

static int multiply(struct onnx *o, struct onnx_value *x, struct onnx_value *w, bool transposed,
        struct onnx_value **ret_value)
{
        struct onnx_value *base, *view, plain;
        int r = mfl_onnx_resolve(o, x, &base);
        if (!r)
                r = mfl_onnx_resolve(o, w, &view);
        if (r)
                return r;
        int64_t n = mfl_onnx_count(&view->shape);
        plain = *view;
        while (plain.shape.rank > 2 && plain.shape.dim[0] == 1)
                memmove(plain.shape.dim, plain.shape.dim + 1,
                        (size_t)--plain.shape.rank * sizeof plain.shape.dim[0]);
        view = &plain;
        if (view->shape.rank != 2 || base->shape.rank < 1 || n > MFL_ONNX_COMPUTED_MAX)
                return mfl_onnx_fail_computed(o, 1, w);
        int64_t features = view->shape.dim[transposed ? 0 : 1], outputs = view->shape.dim[transposed ? 1 : 0],
                rows = mfl_onnx_count(&base->shape) / MFL_MAX(features, (int64_t)1);
        if (features < 1 || base->shape.dim[base->shape.rank - 1] != features)
                return mfl_onnx_fail(o, "the weights don't fit their input");
        struct mfl_layer l = {.op = MFL_OP_MATMUL, .transposed = !transposed, .out = {2, {rows, outputs}}};
        if (is_turned(view)) {
                plain.map = NULL;
                l.transposed = transposed;
        }
        struct mfl_shape sx = {2, {rows, features}},
                         sw = l.transposed ? (struct mfl_shape){2, {outputs, features}}
                                           : (struct mfl_shape){2, {features, outputs}};
        struct onnx_shape shape = base->shape;
        shape.dim[shape.rank - 1] = outputs;
        int layer;
        if ((r = mfl_onnx_view_layer(o, base, &sx, &l.input)) ||
                (r = mfl_onnx_view_layer(o, &plain, &sw, &l.input2)) ||
                (l.input == l.input2 && (r = mfl_onnx_copy_layer(o, l.input2, &l.input2))) ||
                (r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, &shape, ret_value);
}

int mfl_onnx_product_with_computed(struct onnx *o, struct onnx_value *x, struct onnx_value *w,
        bool transposed, struct onnx_value **ret_value)
{
        const struct onnx_tensor *t;
        struct onnx_value *v;
        double scale;
        int r = mfl_onnx_scaled_weight(o, w, &t, &scale);
        const struct onnx_value *own = !r && t && t->origin ? mfl_onnx_find(o, t->origin) : NULL;
        bool vector = own && own->shape.rank == 1; /* elsewhere it may be a row */
        if (r || !t || vector)
                return r ? r : multiply(o, x, w, transposed, ret_value);
        if ((r = pend_product(o, x, t, transposed, &v)) || (r = mfl_onnx_make_product(o, v, NULL, &v)))
                return r;
        return mfl_onnx_make_affine(o, v, scale, 0, ret_value);
}

/* ---- nodes ---- */

int mfl_onnx_computed_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *w = mfl_onnx_input(o, 1), *v;
        int64_t heads, rows, columns;
        if (strcmp(mfl_onnx_node(o)->op_type, "MatMul") || !x || !w || w->tensor ||
                (x->tensor && !x->tensor->f) || !mfl_onnx_of_params(o, w) || w->pending != ONNX_NONE ||
                (!x->tensor && mfl_onnx_heads(&w->shape, &heads, &rows, &columns) && heads > 1))
                return 0;
        *ret_taken = true;
        /* A constant times weights: Swin v2's bias of relative positions. */
        int r = x->tensor ? mfl_onnx_lift(o, x, &x) : 0;
        if (!r)
                r = mfl_onnx_product_with_computed(o, x, w, true, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* A matrix of weights for each of the samples' matrices. */
static int multiply_each(
        struct onnx *o, struct onnx_value *x, struct onnx_value *w, struct onnx_value **ret_value)
{
        struct onnx_value *a, *b;
        int r = mfl_onnx_resolve(o, x, &a);
        return r || (r = mfl_onnx_lift(o, w, &b)) ? r : mfl_onnx_weigh(o, a, b, ret_value);
}

/* Products with a vector: one output, whose dimension goes. */
static int by_vector(
        struct onnx *o, struct onnx_value *x, struct onnx_value *b, struct onnx_value **ret_value)
{
        struct onnx_tensor *column = mfl_onnx_alloc(o, 1, sizeof *column);
        struct onnx_value *v;
        if (!column)
                return onnx_memory(o);
        *column = *b->tensor;
        column->shape = (struct onnx_shape){2, {b->shape.dim[0], 1}};
        int r;
        if (b->uses > 1) { /* elsewhere it may be a row */
                if ((r = mfl_onnx_lift(o, b, &b)) || (r = mfl_onnx_view(o, b, &column->shape, NULL, &b)) ||
                        (r = multiply(o, x, b, true, &v)))
                        return r;
        } else if ((r = pend_product(o, x, column, true, &v)) ||
                   (r = mfl_onnx_make_product(o, v, NULL, &v))) {
                return r;
        }
        struct onnx_shape shape = v->shape;
        shape.rank--;
        return mfl_onnx_view(o, v, &shape, NULL, ret_value);
}

int mfl_onnx_matmul(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        int64_t heads, rows, columns;
        int r;
        if (x && x->tensor && b && !b->tensor && x->tensor->f) { /* weights on the left */
                if ((r = mfl_onnx_lift(o, x, &x)) || (r = mfl_onnx_resolve(o, b, &b)) ||
                        (r = mfl_onnx_weigh(o, x, b, &v)))
                        return r;
                return mfl_onnx_output(o, 0, v);
        }
        if (!x || x->tensor || !b || !b->tensor)
                return mfl_onnx_fail(o, "needs data of the samples and weights");
        if (b->tensor->param && b->shape.rank == 2 && b->tensor->count <= MFL_ONNX_COMPUTED_MAX &&
                mfl_onnx_is_computed_with(o, b)) {
                if (!(r = mfl_onnx_lift(o, b, &b)))
                        r = multiply(o, x, b, true, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        struct onnx_tensor *matrix = b->tensor;
        if (b->tensor->f && b->shape.rank > 2 && mfl_onnx_heads(&b->shape, &heads, &rows, &columns)) {
                if (heads > 1) {
                        r = multiply_each(o, x, b, &v);
                        return r ? r : mfl_onnx_output(o, 0, v);
                }
                if (!(matrix = mfl_onnx_alloc(o, 1, sizeof *matrix)))
                        return onnx_memory(o);
                *matrix = *b->tensor;
                matrix->shape = (struct onnx_shape){2, {rows, columns}};
        }
        if (b->shape.rank == 1 && b->tensor->f) {
                r = by_vector(o, x, b, &v);
        } else {
                r = pend_product(o, x, matrix, true, &v);
        }
        return r ? r : mfl_onnx_output(o, 0, v);
}

static bool trains(const struct onnx_tensor *t)
{
        return t->param || t->generated;
}

static int gemm_of(struct onnx *o, struct onnx_value *x)
{
        struct onnx_value *w = mfl_onnx_input(o, 1), *b = mfl_onnx_input(o, 2), *v;
        bool turned = mfl_onnx_int(o, "transB", 0) == 0;
        if (mfl_onnx_float(o, "alpha", 1) != 1 || (b && mfl_onnx_float(o, "beta", 1) != 1) ||
                mfl_onnx_int(o, "transA", 0))
                return mfl_onnx_fail(o, "only alpha 1, beta 1 and transA 0 are supported");
        if (!x || x->tensor || !w || w->shape.rank != 2)
                return mfl_onnx_fail(o, "needs data of the samples and a matrix of weights");
        if (b && mfl_onnx_count(&b->shape) != w->shape.dim[turned ? 1 : 0])
                return mfl_onnx_fail(o, "the bias doesn't fit the weights");
        int r = w->tensor ? pend_product(o, x, w->tensor, turned, &v)
                          : mfl_onnx_product_with_computed(o, x, w, turned, &v);
        if (r)
                return r;
        bool own = w->tensor && b && b->tensor && b->tensor->f && trains(w->tensor) == trains(b->tensor) &&
                   !mfl_onnx_bias_is_apart(o, b->tensor, w->tensor);
        if (w->tensor)
                r = mfl_onnx_make_product(o, v, own ? b->tensor : NULL, &v);
        if (!r && b && b->tensor && !own)
                r = mfl_onnx_lift(o, b, &b);
        if (!r && b && !own)
                r = mfl_onnx_combine(o, MFL_OP_ADD, v, b, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

int mfl_onnx_gemm(struct onnx *o)
{
        return gemm_of(o, mfl_onnx_input(o, 0));
}

/* ---- the first state of a cell that is called position by position ---- */

/* One row of any numbers, as an export of a frozen state has it, or any number of rows of zeros. */
static bool is_state(const struct onnx_value *x, bool gemm)
{
        if (!x || !x->tensor || !x->tensor->f || x->tensor->param || x->tensor->generated ||
                x->shape.rank != 2)
                return false;
        if (gemm && x->shape.dim[0] == 1)
                return true;
        for (int64_t i = 0; i < x->tensor->count; i++)
                if (x->tensor->f[i] != 0)
                        return false;
        return true;
}

/* A row of them is what each sample has: a layer that does not move, so that the weights are a dense layer's here, too. */
int mfl_onnx_zeros_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *w = mfl_onnx_input(o, 1), *row, *v;
        bool gemm = !strcmp(mfl_onnx_node(o)->op_type, "Gemm");
        if ((!gemm && strcmp(mfl_onnx_node(o)->op_type, "MatMul")) || !is_state(x, gemm) || !w ||
                !w->tensor || !w->tensor->f || w->shape.rank != 2)
                return 0;
        *ret_taken = true;
        struct onnx_value *one = mfl_onnx_alloc(o, 1, sizeof *one);
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        if (!one || !t)
                return onnx_memory(o);
        *t = *x->tensor;
        t->shape = (struct onnx_shape){2, {1, x->shape.dim[1]}};
        t->count = x->shape.dim[1];
        *one = (struct onnx_value){.tensor = t, .shape = t->shape};
        int r = mfl_onnx_lift(o, one, &row);
        if (r || gemm)
                return r ? r : gemm_of(o, row);
        r = pend_product(o, row, w->tensor, true, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}
