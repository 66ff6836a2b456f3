/* SPDX-License-Identifier: Apache-2.0 */
/* Group and instance normalisation: an operator of its own, or as exporters write it: the image as {1,
 * groups, rest}, InstanceNormalization with scales of 1 and shifts of 0, the image's shape again, a scale and
 * a shift of each channel. */
#include "cli/onnx/internal.h"

static bool is_all(const struct onnx_tensor *t, float v)
{
        for (int64_t i = 0; i < t->count; i++)
                if (t->f[i] != v)
                        return false;
        return true;
}

/* {channels}, {channels, 1, 1} or {1, channels, 1, 1} beside an image; {channels} beside a vector. */
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

/* A shift of each channel is all that reads this node's output: without one there is no bias to train. */
static bool shift_follows(const struct onnx *o, const struct onnx_value *x)
{
        const char *name = onnx_node(o)->output[0];
        const struct onnx_value *out = onnx_find(o, name);
        for (size_t i = (size_t)o->node + 1; out && out->uses == 1 && i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                const char *other = strcmp(node->op_type, "Add") ? NULL : other_input(node, name);
                const struct onnx_value *shift = other && *other ? onnx_find(o, other) : NULL;
                if (shift)
                        return shift->shape.rank < 0 || is_per_channel(x, shift);
        }
        return false;
}

static int make(struct onnx *o, const struct onnx_value *v, const struct onnx_tensor *weight,
        const struct onnx_tensor *bias, struct onnx_value **ret_view)
{
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {weight, bias};
        struct mfl_layer l = {
                .op = MFL_OP_GROUPNORM, .eps = v->eps, .norm_groups = v->groups, .out = {v->shape.rank - 1}};
        int layer, r = 0;
        bool image = v->shape.rank == 4 || v->shape.rank == 2;
        if (!image || v->shape.dim[0] != 1 || v->shape.dim[1] % v->groups)
                return onnx_fail(o, "normalises groups of something else than an image's channels");
        if (!(v->eps > 0))
                return onnx_fail(o, "a normalisation without an eps above 0");
        memcpy(l.out.dim, v->shape.dim + 1, (size_t)l.out.rank * sizeof l.out.dim[0]);
        l.frozen = !weight || (!weight->origin && !bias->origin);
        onnx_name(o, &l, weight, "weight");
        onnx_name(o, &l, bias, "bias");
        if (!weight &&
                ((r = onnx_ones(o, l.out.dim[0], 1, &t[0])) || (r = onnx_ones(o, l.out.dim[0], 0, &t[1]))))
                return r;
        if ((r = onnx_layer_of(o, (struct onnx_value *)(uintptr_t)v->base, &l.out, &l.input)) ||
                (r = onnx_add_layer(o, &l, t, o->node, &layer)))
                return r;
        return onnx_layer_value(o, layer, &v->shape, ret_view);
}

int onnx_make_groupnorm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        if (v->pending == ONNX_SCALED_GROUPS)
                return onnx_fail(
                        o, "a shift of each channel was expected behind the scale of this normalisation");
        return make(o, v, NULL, NULL, ret_view);
}

static int pend(struct onnx *o, const struct onnx_value *from, enum onnx_pending pending,
        const struct onnx_shape *shape, const struct onnx_tensor *weight)
{
        struct onnx_value *v;
        int r = onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->pending = pending;
        v->base = from->base;
        v->eps = from->eps;
        v->groups = from->groups;
        v->weight = weight;
        return onnx_output(o, 0, v);
}

int onnx_reshape_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *shape)
{
        return pend(o, v, ONNX_GROUPS, shape, NULL);
}

/* InstanceNormalization, or GroupNormalization with `groups`. */
static int convert(struct onnx *o, struct onnx_value *x, int64_t groups)
{
        const struct onnx_value *scale = onnx_input(o, 1), *shift = onnx_input(o, 2);
        bool of_params =
                scale && scale->tensor && scale->tensor->f && shift && shift->tensor && shift->tensor->f;
        if (!of_params || scale->tensor->count != shift->tensor->count)
                return onnx_fail(o, "scale and shift must be initializers, as many as there are channels");
        struct onnx_value whole = {.shape = x->shape, .eps = onnx_float(o, "epsilon", 1e-5f)}, *view, *made;
        if (groups < 1 || groups > 65536 || x->shape.rank < 2 || x->shape.dim[1] % groups)
                return onnx_fail(o, "%lld groups of the channels", (long long)groups);
        int r = onnx_resolve(o, x, &view);
        if (r)
                return r;
        whole.groups = (int)groups;
        whole.base = view;
        bool named = scale->tensor->origin && !onnx_is_generated(scale->tensor->origin);
        bool plain = !named && is_all(scale->tensor, 1) && is_all(shift->tensor, 0);
        if (plain)
                return pend(o, &whole, ONNX_GROUPS, &x->shape, NULL);
        if (scale->tensor->count != x->shape.dim[1])
                return onnx_fail(o, "scales groups, not channels, as it did before opset 21; export with "
                                    "opset_version=17 or "
                                    "21");
        r = make(o, &whole, scale->tensor, shift->tensor, &made);
        return r ? r : onnx_output(o, 0, made);
}

int onnx_groupnorm_step(struct onnx *o, bool *ret_taken)
{
        const char *op = onnx_node(o)->op_type;
        struct onnx_value *a = onnx_input(o, 0), *b = onnx_input(o, 1);
        if (!a || !b)
                return 0;
        *ret_taken = true;
        if (!a->tensor && !strcmp(op, "InstanceNormalization"))
                return convert(o, a, a->shape.rank > 1 ? a->shape.dim[1] : 0);
        if (!a->tensor && !strcmp(op, "GroupNormalization"))
                return convert(o, a, onnx_int(o, "num_groups", 0));
        const struct onnx_value *x = a->tensor ? b : a, *constant = a->tensor ? a : b;
        bool fits = !x->tensor && is_per_channel(x, constant);
        if (fits && x->pending == ONNX_GROUPS && !strcmp(op, "Mul") && shift_follows(o, x))
                return pend(o, x, ONNX_SCALED_GROUPS, &x->shape, constant->tensor);
        if (fits && x->pending == ONNX_SCALED_GROUPS && !strcmp(op, "Add")) {
                struct onnx_value *made;
                int r = make(o, x, x->weight, constant->tensor, &made);
                return r ? r : onnx_output(o, 0, made);
        }
        *ret_taken = false;
        return 0;
}
