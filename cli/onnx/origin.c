/* SPDX-License-Identifier: Apache-2.0 */
/* Which numbers PyTorch trains. Moves and Concat keep parameters as tensors, which a layer can own. A node that
 * computes with a parameter must train it, so its result is never a constant: the parameter becomes a layer of
 * its own (`weight`), and the node becomes layers behind it.
 *
 * Some files say which initializers are parameters (known.c). In others, a name that a module could have
 * counts as a parameter's, unless it is a batch norm's statistics or what it is used for shows a buffer. A note
 * lists the tensors that this may get wrong.
 */
#include <stdio.h>

#include "cli/onnx/internal.h"

int mfl_onnx_take(struct onnx *o, const struct onnx_tensor *from, const int32_t *map, int64_t n,
        struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        bool composed = from->order && (from->param || from->generated) && !from->ids;
        void *data = t ? mfl_onnx_alloc(o, (size_t)n + 1, from->f ? sizeof(float) : sizeof(int64_t)) : NULL;
        int32_t *order = composed && data ? mfl_onnx_alloc(o, (size_t)n + 1, sizeof *order) : NULL;
        int64_t *ids = from->ids && data ? mfl_onnx_alloc(o, (size_t)n + 1, sizeof *ids) : NULL;
        if (!data || (composed && !order) || (from->ids && !ids))
                return onnx_memory(o);
        *t = *from;
        t->count = n;
        for (int64_t i = 0; i < n; i++) {
                if (from->f)
                        ((float *)data)[i] = from->f[map[i]];
                else
                        ((int64_t *)data)[i] = from->i[map[i]];
                if (order)
                        order[i] = from->order[map[i]];
                if (ids)
                        ids[i] = from->ids[map[i]];
        }
        t->f = from->f ? data : NULL;
        t->i = from->f ? NULL : data;
        t->order = composed ? order : map;
        t->ids = ids;
        *ret_tensor = t;
        return 0;
}

static int need_bits(struct onnx *o)
{
        if (!o->bits)
                o->bits = mfl_onnx_alloc(o, (size_t)o->n_elements / 8 + 1, 1);
        return o->bits ? 0 : onnx_memory(o);
}

static bool test_and_set(struct onnx *o, int64_t id)
{
        uint8_t bit = (uint8_t)(1u << (id % 8)), *byte = &o->bits[id / 8];
        bool was = *byte & bit;
        *byte |= bit;
        return was;
}

int mfl_onnx_is_simple(struct onnx *o, const struct onnx_tensor *t, bool *ret_simple)
{
        int64_t n = 0, id;
        bool simple = true;
        int r = need_bits(o);
        if (r)
                return r;
        for (; simple && n < t->count; n++)
                if ((id = mfl_onnx_element(t, n)) >= 0)
                        simple = !test_and_set(o, id);
        for (int64_t i = 0; i < n; i++)
                if ((id = mfl_onnx_element(t, i)) >= 0)
                        o->bits[id / 8] = 0;
        *ret_simple = simple;
        return 0;
}

/* ---- parameters as layers ---- */

/* Element by element, the place of t's numbers in `in`; *ret_map NULL: the same order. *ret_found is false if not
 * all are there. */
static int find_in(struct onnx *o, const struct onnx_tensor *t, const struct onnx_tensor *in,
        const int32_t **ret_map, bool *ret_found)
{
        *ret_found = false;
        *ret_map = NULL;
        if (!t->param || !in->param)
                return 0;
        bool same = t->count == in->count;
        if (in->ids || in->order) { /* of a moved parameter, the same one moved as far */
                for (int64_t i = 0; same && i < t->count; i++)
                        same = mfl_onnx_element(t, i) >= 0 &&
                               mfl_onnx_element(t, i) == mfl_onnx_element(in, i);
                *ret_found = same;
                return 0;
        }
        for (int64_t i = 0; i < t->count; i++) {
                int64_t at = mfl_onnx_element(t, i) - in->first;
                if (at < 0 || at >= in->count)
                        return 0;
                same = same && at == i;
        }
        *ret_found = true;
        if (same)
                return 0;
        int32_t *map = mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < t->count; i++)
                map[i] = (int32_t)(mfl_onnx_element(t, i) - in->first);
        *ret_map = map;
        return 0;
}

static int add_weight(
        struct onnx *o, const struct onnx_tensor *t, const struct mfl_shape *shape, int at, int *ret_layer)
{
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {t};
        struct mfl_layer l = {.op = MFL_OP_WEIGHT, .shape = *shape, .out = *shape};
        mfl_onnx_name(o, &l, t, "");
        return mfl_onnx_add_layer(o, &l, tensors, at, ret_layer);
}

/* Leading dimensions of 1 are left out, and further ones joined, until a layer can have the shape. */
static void native_shape(const struct onnx_shape *all, struct mfl_shape *ret_shape)
{
        struct mfl_shape s = {0};
        int from = 0;
        while (all->rank - from > 3 && all->dim[from] == 1)
                from++;
        for (int d = from; d < all->rank; d++) {
                if (s.rank == 3)
                        s.dim[2] *= all->dim[d];
                else
                        s.dim[s.rank++] = all->dim[d];
        }
        if (!s.rank)
                s.dim[s.rank++] = 1;
        *ret_shape = s;
}

/* The initializer that a moved tensor comes from, if others read it, too: then one layer holds it all. */
static const struct onnx_value *whole_of(const struct onnx *o, const struct onnx_tensor *t)
{
        const struct onnx_value *whole = t->param && t->order && !t->ids ? mfl_onnx_find(o, t->origin) : NULL;
        return whole && whole->tensor && whole->tensor->param && (whole->uses > 1 || t->shared) ? whole
                                                                                                : NULL;
}

/* A view of a layer that has all numbers of t; *ret_view NULL: there is no such layer. */
static int find_view(struct onnx *o, const struct onnx_tensor *t, const struct onnx_shape *shape,
        struct onnx_value **ret_view)
{
        *ret_view = NULL;
        for (int i = 0; i < o->n_layers; i++) {
                const int32_t *map;
                bool found;
                if (o->layers[i].layer.op != MFL_OP_WEIGHT)
                        continue;
                int r = find_in(o, t, o->layers[i].tensors[0], &map, &found);
                if (r)
                        return r;
                if (!found)
                        continue;
                struct onnx_value *whole;
                struct onnx_shape all = {1, {o->layers[i].tensors[0]->count}};
                if ((r = mfl_onnx_layer_value(o, i, &all, &whole)))
                        return r;
                return mfl_onnx_view(o, whole, shape, map, ret_view);
        }
        return 0;
}

/* Ones or zeros that PyTorch's optimiser joined with those of another module. */
static int check_merged(struct onnx *o, const struct onnx_tensor *t)
{
        bool apart;
        const char *name = o->said && t->param && o->node >= 0 && !(o->files && o->files->inference)
                                   ? mfl_onnx_merged_at(o, o->node, &apart)
                                   : NULL;
        return name && t->origin && !strcmp(name, t->origin) ? mfl_onnx_fail_merged(o, name) : 0;
}

static int view_of(struct onnx *o, const struct onnx_value *constant, const struct mfl_shape *shape,
        struct onnx_value **ret_view)
{
        const struct onnx_tensor *t = constant->tensor;
        const struct onnx_value *whole = whole_of(o, t);
        struct onnx_value *view = NULL;
        int layer, r = check_merged(o, t);
        if (!r)
                r = find_view(o, t, &constant->shape, &view);
        if (!r && !view && whole) {
                struct mfl_shape all;
                native_shape(&whole->shape, &all);
                if (!(r = add_weight(o, whole->tensor, &all, mfl_onnx_place_of(o, constant), &layer)))
                        r = find_view(o, t, &constant->shape, &view);
        }
        if (!r && !view && !(r = add_weight(o, t, shape, mfl_onnx_place_of(o, constant), &layer)))
                r = mfl_onnx_layer_value(o, layer, &constant->shape, &view);
        if (!r)
                *ret_view = view;
        return r;
}

#define COMPUTES " Mul Sub Div Pow Sqrt Exp Log Abs Neg Tanh Sigmoid Softmax ReduceSum ReduceMean ReduceL2 "

/* One of these operators, between blanks, reads w, and another node does, too. */
static bool is_read_by(const struct onnx *o, const struct onnx_value *w, const char *computes)
{
        char op[40];
        for (size_t i = 0; w && w->uses > 1 && i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                mfl_snprintf(op, sizeof op, " %.30s ", node->op_type);
                for (size_t k = 0; strstr(computes, op) && k < node->n_input; k++)
                        if (mfl_onnx_find(o, node->input[k]) == w)
                                return true;
        }
        return false;
}

bool mfl_onnx_is_computed_with(const struct onnx *o, const struct onnx_value *w)
{
        return is_read_by(o, w, " Add" COMPUTES);
}

/* Exporters for inference merge tensors of ones and of zeros: of such a one, the uses by other modules are of their own. */
static int uses_of(const struct onnx *o, const struct onnx_tensor *t)
{
        const struct onnx_value *v = t->origin ? mfl_onnx_find(o, t->origin) : NULL;
        int n = 0;
        if (!v || o->knows_ties || !mfl_onnx_is_uniform(t))
                return v ? v->uses : 0;
        for (size_t i = 0; i < o->graph->n_node; i++)
                for (size_t k = 0; k < o->graph->node[i]->n_input; k++)
                        n += !strcmp(o->graph->node[i]->input[k], t->origin) &&
                             mfl_onnx_is_of_module(o, (int)i, t->origin);
        return n;
}

bool mfl_onnx_bias_is_apart(
        const struct onnx *o, const struct onnx_tensor *bias, const struct onnx_tensor *weight)
{
        if (!bias->param || !weight->param || !bias->origin || !weight->origin)
                return false;
        return (uses_of(o, weight) > 0 && uses_of(o, bias) > uses_of(o, weight)) ||
               is_read_by(o, mfl_onnx_find(o, bias->origin), COMPUTES) ||
               (o->described && !mfl_described_alike(o->described, bias->origin, weight->origin));
}

int mfl_onnx_lifted_part(struct onnx *o, const struct onnx_value *constant, struct onnx_value **ret_view)
{
        const struct onnx_tensor *t = constant->tensor;
        *ret_view = NULL;
        if (!t || !t->f || !t->param || !t->order || t->ids)
                return 0;
        int r = find_view(o, t, &constant->shape, ret_view);
        if (!r && *ret_view && mfl_shape_count(mfl_onnx_layer_shape(o, (*ret_view)->layer)) == t->count)
                *ret_view = NULL;
        return r;
}

int mfl_onnx_weight_layer(
        struct onnx *o, const struct onnx_value *constant, const struct mfl_shape *shape, int *ret_layer)
{
        struct onnx_value *view;
        int r = view_of(o, constant, shape, &view);
        return r ? r : mfl_onnx_view_layer(o, view, shape, ret_layer);
}

int mfl_onnx_lift(struct onnx *o, struct onnx_value *constant, struct onnx_value **ret_view)
{
        struct mfl_shape shape;
        int r = constant->tensor ? check_merged(o, constant->tensor) : 0;
        if (!r && !constant->lifted) {
                if (!constant->tensor->f)
                        return mfl_onnx_fail(o, "needs floats, but gets constant whole numbers");
                native_shape(&constant->shape, &shape);
                r = view_of(o, constant, &shape, &constant->lifted);
        }
        if (!r)
                *ret_view = constant->lifted;
        return r;
}

int mfl_onnx_lift_tensor(struct onnx *o, const struct onnx_tensor *t, const struct onnx_shape *shape,
        struct onnx_value **ret_view)
{
        struct onnx_tensor *own = mfl_onnx_alloc(o, 1, sizeof *own);
        struct onnx_value *v;
        int r = own ? mfl_onnx_new_value(o, shape, &v) : onnx_memory(o);
        if (r)
                return r;
        *own = *t;
        v->tensor = own;
        return mfl_onnx_lift(o, v, ret_view);
}

/* ---- nodes ---- */

/* Nodes that keep a parameter as a tensor, or use no values of it. */
static bool keeps_tensors(const char *op)
{
        static const char *const kept[] = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
                "Transpose", "Slice", "Split", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
                "Cast", "CastLike", "Concat", "Shape", "Size", "Dropout", NULL};
        for (int i = 0; kept[i]; i++)
                if (!strcmp(kept[i], op))
                        return true;
        return false;
}

/* In a file that mfl wrote, a `detach` layer (condition.c). A weight that stays without a batch is an Identity, too, but of the
 * initializer itself. */
static bool is_own_detach(const struct onnx *o)
{
        const struct onnx_value *x = mfl_onnx_input(o, 0);
        return o->own && !strcmp(mfl_onnx_node(o)->op_type, "Identity") && x && x->node >= 0;
}

/* Nodes without a gradient: what they are computed from is no parameter that trains by them. */
static bool has_no_gradient(const char *op)
{
        static const char *const steps[] = {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
                "And", "Or", "Not", "IsNaN", "Floor", "Ceil", "Round", "Sign", NULL};
        for (int i = 0; steps[i]; i++)
                if (!strcmp(steps[i], op))
                        return true;
        return false;
}

void mfl_onnx_is_buffer(struct onnx *o, const struct onnx_tensor *t)
{
        struct onnx_value *v = t->origin && t->param ? mfl_onnx_find(o, t->origin) : NULL;
        if (v && v->tensor)
                v->tensor->buffer = true;
}

/* Zeros and ones. */
static bool is_mask(const struct onnx_tensor *t)
{
        bool zero = false, one = false;
        for (int64_t i = 0; i < t->count; i++) {
                zero = zero || t->f[i] == 0;
                one = one || t->f[i] == 1;
                if (t->f[i] != 0 && t->f[i] != 1)
                        return false;
        }
        return zero && one;
}

/* A parameter times zeros and ones: a pruned weight and its mask, which is a buffer. */
static void find_mask(struct onnx *o)
{
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        if (strcmp(mfl_onnx_node(o)->op_type, "Mul") || !a || !b || !a->tensor || !b->tensor ||
                !a->tensor->param || !b->tensor->param)
                return;
        struct onnx_tensor *mask = is_mask(a->tensor) ? a->tensor : b->tensor;
        if (mask->known || !is_mask(mask))
                return;
        mfl_onnx_is_buffer(o, mask);
        mask->param = false;
}

/* Of a node without a gradient: whether its result changes while the parameter is trained by other nodes. Sign and Round show
 * nothing of what they are computed from; what is compared with something is a mask if nothing else is done with it. */
static bool reads_param(const struct onnx *o)
{
        static const char *const steps = "Floor Ceil Round Sign";
        for (size_t i = 0; i < mfl_onnx_node(o)->n_input; i++) {
                const struct onnx_value *v = mfl_onnx_input(o, i);
                const struct onnx_tensor *t = v ? v->tensor : NULL;
                if (t && t->param &&
                        (t->known || strstr(steps, mfl_onnx_node(o)->op_type) ||
                                mfl_onnx_is_computed_with(o, t->origin ? mfl_onnx_find(o, t->origin) : NULL)))
                        return true;
        }
        return false;
}

/* The weights or the bias of a dense layer or a norm that other rows go through, too. */
static bool is_of_rows(const struct onnx *o, const struct onnx_value *v)
{
        const struct onnx_value *first = mfl_onnx_input(o, 0),
                                *own = v->tensor->origin ? mfl_onnx_find(o, v->tensor->origin) : NULL;
        return first && first->tensor && first->tensor->param && own && own->uses > 1 &&
               (v == own || v->tensor->turned) && !mfl_onnx_is_computed_with(o, own);
}

int mfl_onnx_lift_inputs(struct onnx *o, bool *ret_lifted)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        bool computes = false, mixed = false;
        *ret_lifted = false;
        find_mask(o);
        for (size_t i = 0; i < node->n_input; i++) {
                const struct onnx_value *v = mfl_onnx_input(o, i);
                if (v && !v->tensor)
                        return 0;
                computes = computes || (v && v->tensor->param);
                mixed = mixed || (v && v->tensor->f && !v->tensor->param);
        }
        bool joins = !strcmp(node->op_type, "Concat") && mixed; /* a tensor is trained as a whole */
        if (!computes || (keeps_tensors(node->op_type) && !joins && !is_own_detach(o)))
                return 0;
        if (has_no_gradient(node->op_type) && !reads_param(o)) {
                for (size_t i = 0; i < node->n_input; i++)
                        if (mfl_onnx_input(o, i))
                                mfl_onnx_is_buffer(o, mfl_onnx_input(o, i)->tensor);
                return 0;
        }
        bool multiplies = !strcmp(node->op_type, "MatMul") || !strcmp(node->op_type, "Gemm") ||
                          !strcmp(node->op_type, "LayerNormalization");
        for (size_t i = 0; i < node->n_input; i++) {
                struct onnx_value *v = mfl_onnx_input(o, i), *view;
                bool own = multiplies && i > 0 && v && is_of_rows(o, v);
                int r = v && v->tensor->param && !own ? mfl_onnx_lift(o, v, &view) : 0;
                if (r)
                        return r;
        }
        o->lifts[o->node] = *ret_lifted = true;
        return 0;
}

const char *mfl_onnx_param_of(const struct onnx *o, const struct onnx_value *v)
{
        if (v->tensor)
                return v->tensor->param ? v->tensor->origin : NULL;
        int layer = v->pending == ONNX_NONE ? v->layer : v->base ? v->base->layer : 0;
        /* The way back to a parameter, by first inputs or else by second ones. */
        while (layer > 0 && o->layers[layer].layer.op != MFL_OP_WEIGHT) {
                const struct mfl_layer *l = &o->layers[layer].layer;
                bool second = l->input2 > 0 && o->layers[l->input].layer.op == MFL_OP_WEIGHT &&
                              o->layers[l->input].layer.frozen;
                layer = second ? l->input2 : l->input;
        }
        return layer > 0 ? o->layers[layer].tensors[0]->origin : NULL;
}

/* ---- after the last node ---- */

struct names {
        char text[160];
        int n;
};

static void list(struct names *names, const char *name)
{
        size_t n = strlen(names->text);
        if (names->n++ < 3)
                mfl_snprintf(names->text + n, sizeof names->text - n, "%s%.120s", n ? ", " : "", name);
}

static void end_list(struct names *names)
{
        size_t n = strlen(names->text);
        if (names->n > 3)
                mfl_snprintf(names->text + n, sizeof names->text - n, " and %d more", names->n - 3);
}

/* A name that PyTorch's modules give to their parameters. */
static bool is_of_torch(const char *origin)
{
        const char *dot = strrchr(origin, '.'), *name = dot ? dot + 1 : origin;
        return dot && (strstr(name, "weight") || strstr(name, "bias"));
}

static void note_unsure(struct onnx *o)
{
        struct names params = {.n = 0}, constants = {.n = 0};
        for (int i = 0; i < o->n_layers; i++) {
                const struct onnx_layer *l = &o->layers[i];
                const struct onnx_tensor *t = l->tensors[0];
                if (!t || !t->origin || !(t->param || t->generated) || t->known ||
                        (l->layer.op != MFL_OP_WEIGHT && t->param &&
                                (l->layer.shares || mfl_onnx_is_generated(o, t->origin) ||
                                        is_of_torch(t->origin))))
                        continue;
                list(l->layer.frozen ? &constants : &params, t->origin);
        }
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
                if (v && v->tensor && v->tensor->buffer && !v->tensor->known)
                        list(&constants, name);
        }
        end_list(&params);
        end_list(&constants);
        if (params.n || constants.n)
                mfl_onnx_note(o,
                        "the file does not say which tensors are parameters%s%s%s%s%s; mfl_export.save "
                        "writes it",
                        params.n ? "; taken for parameters: " : "", params.text,
                        constants.n ? "; taken for constants: " : "", constants.text, "");
}

/* Marks the elements of the tensor as trained. */
static int claim(struct onnx *o, const struct onnx_layer *l, const struct onnx_tensor *t)
{
        for (int64_t i = 0; i < t->count; i++) {
                int64_t id = mfl_onnx_element(t, i);
                if (id < 0 || !test_and_set(o, id))
                        continue;
                o->node = l->node;
                if (mfl_onnx_is_uniform(t) && !o->described)
                        return mfl_onnx_fail_equal(o, t);
                return mfl_onnx_fail(o,
                        "the parameter %.120s is used in two places, one of them %.120s (%s), and in another "
                        "order or "
                        "part there (as w and w.t(), or slices that overlap); mfl would train two tensors. "
                        "Give each place its own parameter",
                        t->origin ? t->origin : "?", l->layer.name[0] ? l->layer.name : "a layer",
                        mfl_op_name(l->layer.op));
        }
        return 0;
}

/* Whether tensor k is an earlier layer's, which trains it. */
static bool is_shared(const struct mfl_layer *l, int k)
{
        return l->shares && (k == 0 || l->sharing == MFL_SHARES_ALL);
}

/* What does not train may stand in several places as several tensors. */
static bool is_trained(const struct onnx *o, const struct onnx_tensor *t)
{
        return !o->described || !t->origin || mfl_described_trains(o->described, t->origin);
}

int mfl_onnx_check_params(struct onnx *o)
{
        int r = need_bits(o);
        const bool joins = o->current && !o->described && !o->own; /* the exporter joins ones and zeros */
        for (int i = 0; !r && i < o->n_layers && !(o->files && o->files->inference); i++) {
                const struct onnx_layer *l = &o->layers[i];
                for (int k = 0; !r && !l->layer.frozen && k < ONNX_TENSORS_PER_LAYER && l->tensors[k]; k++)
                        if (!is_shared(&l->layer, k) && is_trained(o, l->tensors[k]) &&
                                !(joins && mfl_onnx_is_uniform(l->tensors[k])) &&
                                !(l->layer.op == MFL_OP_BATCHNORM && k > 1))
                                r = claim(o, l, l->tensors[k]);
        }
        if (!r && !o->own)
                note_unsure(o);
        return r;
}
