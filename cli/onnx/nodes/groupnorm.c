/* SPDX-License-Identifier: Apache-2.0 */
/* Group and instance normalisation: as one operator, or as exporters write it: the image as {1, groups,
 * rest}, InstanceNormalization with scales of 1 and shifts of 0, the image's shape again, then a scale and a
 * shift per channel. */
#include "cli/onnx/internal.h"

static bool is_all(const struct onnx_tensor *t, float v)
{
        for (int64_t i = 0; i < t->count; i++)
                if (t->f[i] != v)
                        return false;
        return true;
}

/* {channels}, {channels, 1, 1} or {1, channels, 1, 1} with an image; {channels} with a vector. */
static bool is_per_channel(const struct onnx_value *x, const struct onnx_value *constant)
{
        const struct onnx_tensor *t = constant->tensor;
        int rank = constant->shape.rank, at = rank - (x->shape.rank - 1);
        return t && t->f && x->shape.rank > 1 && at >= 0 && rank <= x->shape.rank &&
               t->count == x->shape.dim[1] && constant->shape.dim[at] == t->count;
}

static const char *other_input(const Onnx__NodeProto *node, const char *input)
{
        for (size_t k = 0; k < 2 && node->n_input == 2; k++)
                if (!strcmp(node->input[k], input))
                        return node->input[1 - k];
        return NULL;
}

/* Whether only a shift per channel reads this node's output. Without a shift, there is no bias to train. */
static bool shift_follows(const struct onnx *o, const struct onnx_value *x)
{
        const char *name = mfl_onnx_node(o)->output[0];
        const struct onnx_value *out = mfl_onnx_find(o, name);
        for (size_t i = (size_t)o->node + 1; out && out->uses == 1 && i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                const char *other = strcmp(node->op_type, "Add") ? NULL : other_input(node, name);
                const struct onnx_value *shift = other && *other ? mfl_onnx_find(o, other) : NULL;
                if (shift)
                        return shift->shape.rank < 0 || is_per_channel(x, shift);
        }
        return false;
}

static int pend(struct onnx *o, const struct onnx_value *from, enum onnx_pending pending,
        const struct onnx_shape *shape, const struct onnx_tensor *weight)
{
        struct onnx_value *v;
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->pending = pending;
        v->base = from->base;
        v->eps = from->eps;
        v->groups = from->groups;
        v->weight = weight;
        return mfl_onnx_output(o, 0, v);
}

int mfl_onnx_reshape_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *shape)
{
        return pend(o, v, ONNX_GROUPS, shape, NULL);
}

/* Whether a layer owns this parameter. */
static bool is_taken(const struct onnx *o, const struct onnx_tensor *t)
{
        for (int i = 0; t->param && t->known && i < o->n_layers; i++)
                for (int k = 0; k < ONNX_TENSORS_PER_LAYER && o->layers[i].tensors[k]; k++)
                        if (o->layers[i].tensors[k]->param && o->layers[i].tensors[k]->first == t->first)
                                return true;
        return false;
}

/* InstanceNormalization, or GroupNormalization with `groups`. */
static int convert(struct onnx *o, struct onnx_value *x, int64_t groups)
{
        const struct onnx_value *scale = mfl_onnx_input(o, 1), *shift = mfl_onnx_input(o, 2);
        bool of_params =
                scale && scale->tensor && scale->tensor->f && shift && shift->tensor && shift->tensor->f;
        if (!of_params || scale->tensor->count != shift->tensor->count)
                return mfl_onnx_fail(
                        o, "scale and shift must be initializers, as many as there are channels");
        struct onnx_value whole = {.shape = x->shape, .eps = mfl_onnx_float(o, "epsilon", 1e-5f)}, *view,
                          *made;
        if (!(whole.eps > 0)) /* in a layer, 0 means the default */
                return mfl_onnx_fail(o, "the normalisation needs an eps above 0");
        if (groups < 1 || groups > 65536 || x->shape.rank < 2 || x->shape.dim[1] % groups)
                return mfl_onnx_fail(o, "the channels can't be divided into %lld groups", (long long)groups);
        int r = mfl_onnx_resolve(o, x, &view);
        if (r)
                return r;
        whole.groups = (int)groups;
        whole.base = view;
        if (!strcmp(mfl_onnx_node(o)->op_type, "InstanceNormalization") && is_taken(o, scale->tensor) &&
                !mfl_onnx_is_of_module(o, o->node, scale->tensor->origin))
                return mfl_onnx_fail(o,
                        "its scale is %.120s, which another layer has: the exporter merged equal tensors, so "
                        "it can't be known whether this one is trained. Give %.120s other numbers than 1 "
                        "before "
                        "the export",
                        scale->tensor->origin, scale->tensor->origin);
        bool named = scale->tensor->param || shift->tensor->param;
        bool plain = !named && is_all(scale->tensor, 1) && is_all(shift->tensor, 0);
        if (plain)
                return pend(o, &whole, ONNX_GROUPS, &x->shape, NULL);
        if (scale->tensor->count != x->shape.dim[1])
                return mfl_onnx_fail(o, "scales groups, not channels, as opsets before 21 do; export with "
                                        "opset_version=17 or 21");
        bool apart = mfl_onnx_scale_is_apart(o);
        r = mfl_onnx_make_scaled_groups(
                o, &whole, apart ? NULL : scale->tensor, apart ? NULL : shift->tensor, &made);
        if (!r && apart)
                r = mfl_onnx_scale_channels(o, &made);
        return r ? r : mfl_onnx_output(o, 0, made);
}

/* The scale and the shift are layers of their own, of which one is trained. */
static int scale_apart(
        struct onnx *o, const struct onnx_value *x, struct onnx_value *shift, struct onnx_value **ret_view)
{
        struct onnx_value *scale, *made;
        int r = mfl_onnx_make_scaled_groups(o, x, NULL, NULL, &made);
        if (r || (r = mfl_onnx_lift_tensor(o, x->weight, &shift->shape, &scale)) ||
                (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, made, scale, &made)) ||
                (r = mfl_onnx_lift(o, shift, &shift)))
                return r;
        return mfl_onnx_combine(o, MFL_OP_ADD, made, shift, ret_view);
}

int mfl_onnx_groupnorm_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        if (!a || !b)
                return 0;
        *ret_taken = true;
        if (!a->tensor && !strcmp(op, "InstanceNormalization"))
                return convert(o, a, a->shape.rank > 1 ? a->shape.dim[1] : 0);
        if (!a->tensor && !strcmp(op, "GroupNormalization"))
                return convert(o, a, mfl_onnx_int(o, "num_groups", 0));
        const struct onnx_value *x = a->tensor ? b : a;
        struct onnx_value *constant = a->tensor ? a : b;
        bool fits = !x->tensor && is_per_channel(x, constant);
        if (fits && x->pending == ONNX_GROUPS && !strcmp(op, "Mul") && shift_follows(o, x))
                return pend(o, x, ONNX_SCALED_GROUPS, &x->shape, constant->tensor);
        if (fits && x->pending == ONNX_SCALED_GROUPS && !strcmp(op, "Add")) {
                struct onnx_value *made;
                bool apart = mfl_onnx_bias_is_apart(o, constant->tensor, x->weight);
                int r = apart ? scale_apart(o, x, constant, &made)
                              : mfl_onnx_make_scaled_groups(o, x, x->weight, constant->tensor, &made);
                return r ? r : mfl_onnx_output(o, 0, made);
        }
        *ret_taken = false;
        return 0;
}
