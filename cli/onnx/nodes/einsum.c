/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum of two values: a product of matrices between transpositions. Labels in both values and in the result number the
 * matrices; labels in both values only are summed over. More values are multiplied one after the other: a product keeps
 * the labels that later values or the result have. */
#include "cli/onnx/internal.h"

#define VALUES_MAX 8

struct labels {
        char in[2][ONNX_RANK_MAX + 1], out[2 * ONNX_RANK_MAX + 1];
};

struct equation {
        int n;
        char in[VALUES_MAX][ONNX_RANK_MAX + 1], out[2 * ONNX_RANK_MAX + 1];
};

static int read_equation(struct onnx *o, struct equation *ret)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "equation");
        struct equation l = {.out = ""};
        size_t n = 0;
        int k = 0;
        bool out = false;
        for (size_t i = 0; a && a->has_s && i < a->s.len; i++) {
                char c = (char)a->s.data[i];
                size_t room = out ? sizeof l.out - 1 : ONNX_RANK_MAX;
                if (c == ' ')
                        continue;
                if (c == ',' && !out && k + 1 < VALUES_MAX) {
                        k++;
                        n = 0;
                } else if (c == '-' && i + 1 < a->s.len && a->s.data[i + 1] == '>' && !out && k > 0) {
                        out = true;
                        n = 0;
                        i++;
                } else if (((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) && n < room) {
                        char *to = out ? l.out : l.in[k];
                        if (strchr(to, c))
                                return mfl_onnx_fail(o,
                                        "the label %c stands twice in one value: write x.diagonal(), or "
                                        "export with "
                                        "mfl_export.save, which does",
                                        c);
                        to[n++] = c;
                } else {
                        out = false;
                        break;
                }
        }
        l.n = k + 1;
        if (!out || (size_t)l.n != mfl_onnx_node(o)->n_input)
                return mfl_onnx_fail(o,
                        "is supported for 2 to %d values and letters, such as 'btd,de->bte'; write other "
                        "sums with matmul, transpose and sum",
                        VALUES_MAX);
        *ret = l;
        return 0;
}

/* The labels of each role, and the product of their sizes. */
struct roles {
        char batch[ONNX_RANK_MAX + 1], rows[ONNX_RANK_MAX + 1], inner[ONNX_RANK_MAX + 1],
                columns[ONNX_RANK_MAX + 1];
        int64_t n_batch, n_rows, n_inner, n_columns;
        int64_t size[128];
};

static void put(char *labels, int64_t *n, char c, int64_t size)
{
        size_t k = strlen(labels);
        labels[k] = c;
        labels[k + 1] = '\0';
        *n *= size;
}

static int find_roles(
        struct onnx *o, const struct labels *l, const struct onnx_value *const v[2], struct roles *ret)
{
        struct roles s = {.n_batch = 1, .n_rows = 1, .n_inner = 1, .n_columns = 1};
        for (int k = 0; k < 2; k++) {
                if ((int)strlen(l->in[k]) != v[k]->shape.rank)
                        return mfl_onnx_fail(o, "value %d has %d dimensions, but %zu labels", k,
                                v[k]->shape.rank, strlen(l->in[k]));
                for (int d = 0; d < v[k]->shape.rank; d++) {
                        char c = l->in[k][d];
                        int64_t size = v[k]->shape.dim[d], *have = &s.size[(unsigned char)c];
                        bool both = strchr(l->in[1 - k], c), out = strchr(l->out, c);
                        if (k && both && *have != size)
                                return mfl_onnx_fail(
                                        o, "label %c is %lld and %lld", c, (long long)*have, (long long)size);
                        *have = size;
                        if (!both && !out && size != 1)
                                return mfl_onnx_fail(
                                        o, "label %c is summed over in one value; sum over it before", c);
                        if (both && out && !k)
                                put(s.batch, &s.n_batch, c, size);
                        else if (both && !out && !k)
                                put(s.inner, &s.n_inner, c, size);
                        else if (!both)
                                put(k ? s.columns : s.rows, k ? &s.n_columns : &s.n_rows, c, size);
                }
        }
        for (const char *p = l->out; *p; p++)
                if (!s.size[(unsigned char)*p])
                        return mfl_onnx_fail(o, "label %c of the result is in no value", *p);
        *ret = s;
        return 0;
}

/* For each element in the order of labels `to`, its place in a value with labels `from`. */
static int map_labels(
        struct onnx *o, const struct roles *s, const char *from, const char *to, int32_t **ret_map)
{
        int64_t n = 1;
        for (const char *p = to; *p; p++)
                n *= s->size[(unsigned char)*p];
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++) {
                int64_t index[128] = {0}, left = i, at = 0;
                for (size_t k = strlen(to); k-- > 0; left /= s->size[(unsigned char)to[k]])
                        index[(unsigned char)to[k]] = left % s->size[(unsigned char)to[k]];
                for (const char *p = from; *p; p++)
                        at = at * s->size[(unsigned char)*p] + index[(unsigned char)*p];
                map[i] = (int32_t)at;
        }
        *ret_map = map;
        return 0;
}

static int moved(struct onnx *o, const struct roles *s, const struct onnx_value *v, const char *from,
        const char *const *to, const struct onnx_shape *shape, struct onnx_value **ret_view)
{
        char all[3 * ONNX_RANK_MAX + 1];
        int32_t *map;
        mfl_snprintf(all, sizeof all, "%s%s%s", to[0], to[1], to[2]);
        int r = map_labels(o, s, from, all, &map);
        return r ? r : mfl_onnx_view(o, v, shape, map, ret_view);
}

/* The second value is a parameter: a dense layer. */
static int with_weight(struct onnx *o, const struct roles *s, const struct labels *l, struct onnx_value *x,
        const struct onnx_tensor *t, struct onnx_value **ret_value)
{
        struct onnx_shape rows = {2, {s->n_rows, s->n_inner}};
        struct onnx_value *view, *v;
        struct onnx_tensor *w;
        int32_t *map;
        char order[2 * ONNX_RANK_MAX + 1];
        mfl_snprintf(order, sizeof order, "%s%s", s->columns, s->inner);
        int r = map_labels(o, s, l->in[1], order, &map);
        if (!r)
                r = mfl_onnx_take(o, t, map, t->count, &w);
        if (!r)
                r = moved(o, s, x, l->in[0], (const char *[]){"", s->rows, s->inner}, &rows, &view);
        if (r)
                return r;
        w->shape = (struct onnx_shape){2, {s->n_columns, s->n_inner}};
        struct onnx_shape shape = {2, {s->n_rows, s->n_columns}};
        if ((r = mfl_onnx_new_value(o, &shape, &v)))
                return r;
        v->pending = ONNX_PRODUCT;
        v->base = view;
        v->weight = w;
        return mfl_onnx_make_product(o, v, NULL, ret_value);
}

static int multiply(struct onnx *o, const struct roles *s, const struct labels *l,
        struct onnx_value *const x[2], struct onnx_value **ret_value)
{
        struct onnx_shape a = {3, {s->n_batch, s->n_rows, s->n_inner}},
                          b = {3, {s->n_batch, s->n_inner, s->n_columns}};
        struct mfl_shape na = {3, {s->n_batch, s->n_rows, s->n_inner}},
                         nb = {3, {s->n_batch, s->n_inner, s->n_columns}};
        struct onnx_shape shape = {3, {s->n_batch, s->n_rows, s->n_columns}};
        struct mfl_layer layer = {.op = MFL_OP_MATMUL, .out = {3, {s->n_batch, s->n_rows, s->n_columns}}};
        struct onnx_value *va, *vb;
        int made, r;
        if ((r = moved(o, s, x[0], l->in[0], (const char *[]){s->batch, s->rows, s->inner}, &a, &va)) ||
                (r = moved(
                         o, s, x[1], l->in[1], (const char *[]){s->batch, s->inner, s->columns}, &b, &vb)) ||
                (r = mfl_onnx_view_layer(o, va, &na, &layer.input)) ||
                (r = mfl_onnx_view_layer(o, vb, &nb, &layer.input2)))
                return r;
        if (layer.input == layer.input2 && (r = mfl_onnx_copy_layer(o, layer.input, &layer.input2)))
                return r;
        r = mfl_onnx_add_layer(o, &layer, NULL, o->node, &made);
        return r ? r : mfl_onnx_layer_value(o, made, &shape, ret_value);
}

/* One product of two values, each of the samples or a constant. */
static int einsum_of_two(
        struct onnx *o, struct labels l, struct onnx_value *in[2], struct onnx_value **ret_value)
{
        struct onnx_value *x[2], *v;
        struct roles s;
        struct onnx_shape shape = {0};
        int r = 0;
        if (!in[0] || !in[1])
                return mfl_onnx_fail(o, "needs two values, one of them of the samples");
        if (in[0]->tensor && in[1]->tensor && (r = mfl_onnx_lift(o, in[0], &in[0])))
                return r;
        if (in[0]->tensor) { /* the parameter comes second */
                struct labels turned = {.out = ""};
                struct onnx_value *first = in[0];
                in[0] = in[1];
                in[1] = first;
                memcpy(turned.in[0], l.in[1], sizeof l.in[1]);
                memcpy(turned.in[1], l.in[0], sizeof l.in[0]);
                memcpy(turned.out, l.out, sizeof l.out);
                l = turned;
        }
        r = find_roles(o, &l, (const struct onnx_value *const[]){in[0], in[1]}, &s);
        if (!r)
                r = mfl_onnx_resolve(o, in[0], &x[0]);
        if (r)
                return r;
        if (in[1]->tensor && in[1]->tensor->f && s.n_batch == 1)
                r = with_weight(o, &s, &l, x[0], in[1]->tensor, &v);
        else if (!(r = in[1]->tensor ? mfl_onnx_lift(o, in[1], &x[1]) : mfl_onnx_resolve(o, in[1], &x[1])))
                r = multiply(o, &s, &l, x, &v);
        if (r)
                return r;
        char from[3 * ONNX_RANK_MAX + 1];
        mfl_snprintf(from, sizeof from, "%s%s%s", s.batch, s.rows, s.columns);
        for (const char *p = l.out; *p && shape.rank < ONNX_RANK_MAX; p++)
                shape.dim[shape.rank++] = s.size[(unsigned char)*p];
        return moved(o, &s, v, from, (const char *[]){"", "", l.out}, &shape, ret_value);
}

/* Whether values after the first k, or the result, have the label. */
static bool is_needed(const struct equation *e, int k, char c)
{
        for (int i = k; i < e->n; i++)
                if (strchr(e->in[i], c))
                        return true;
        return strchr(e->out, c);
}

/* The labels that the product of `so_far` and value k keeps, in their order. */
static int keep_labels(struct onnx *o, const struct equation *e, int k, struct labels *l)
{
        size_t n = 0;
        if (k == e->n - 1) {
                memcpy(l->out, e->out, sizeof l->out);
                return 0;
        }
        for (int side = 0; side < 2; side++)
                for (const char *p = l->in[side]; *p; p++) {
                        if (!is_needed(e, k + 1, *p) || (side && strchr(l->in[0], *p)))
                                continue;
                        if (n == ONNX_RANK_MAX)
                                return mfl_onnx_fail(
                                        o, "the product of the first %d values has too many labels", k + 1);
                        l->out[n++] = *p;
                }
        l->out[n] = '\0';
        return 0;
}

int mfl_onnx_einsum(struct onnx *o)
{
        struct equation e;
        struct onnx_value *v = mfl_onnx_input(o, 0);
        int r = read_equation(o, &e);
        if (r)
                return r;
        struct labels l = {.out = ""};
        memcpy(l.in[0], e.in[0], sizeof l.in[0]);
        for (int k = 1; k < e.n; k++) {
                struct onnx_value *in[2] = {v, mfl_onnx_input(o, (size_t)k)};
                memcpy(l.in[1], e.in[k], sizeof l.in[1]);
                if ((r = keep_labels(o, &e, k, &l)) || (r = einsum_of_two(o, l, in, &v)))
                        return r;
                mfl_strcpy(l.in[0], sizeof l.in[0], l.out);
        }
        return mfl_onnx_output(o, 0, v);
}
