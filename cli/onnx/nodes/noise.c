/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic depth (Huang et al. 2016, "Deep Networks with Stochastic Depth"), as a model in training mode
 * writes it: a random number decides for each sample whether it is kept, and kept samples are divided by the
 * share that is kept. As layers: a frozen 1 under dropout, times the samples. */
#include <math.h>

#include "cli/onnx/internal.h"

static bool is_noise(const struct onnx_value *v)
{
        return v && !v->tensor &&
               (v->pending == ONNX_UNIFORM || v->pending == ONNX_KEPT || v->pending == ONNX_NOISE);
}

static int give(struct onnx *o, enum onnx_pending pending, const struct onnx_shape *shape, double rate)
{
        struct onnx_value *v;
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->pending = pending;
        v->rate = (float)rate;
        return mfl_onnx_output(o, 0, v);
}

/* Random numbers from 0 to 1, in the shape of the node's input or attribute. */
static int uniform(struct onnx *o)
{
        const Onnx__AttributeProto *dims = mfl_onnx_attribute(o, "shape");
        struct onnx_shape shape = {0};
        if (mfl_onnx_float(o, "low", 0) != 0 || mfl_onnx_float(o, "high", 1) != 1)
                return mfl_onnx_fail(o, "only random numbers from 0 to 1 are supported (stochastic depth)");
        if (mfl_onnx_input(o, 0))
                shape = mfl_onnx_input(o, 0)->shape;
        else if (dims && dims->n_ints <= ONNX_RANK_MAX)
                for (size_t d = 0; d < dims->n_ints; d++)
                        shape.dim[shape.rank++] = dims->ints[d];
        return give(o, ONNX_UNIFORM, &shape, 0);
}

static int bernoulli(struct onnx *o)
{
        const struct onnx_tensor *t = mfl_onnx_input(o, 0) ? mfl_onnx_input(o, 0)->tensor : NULL;
        for (int64_t i = 0; t && t->f && i < t->count; i++)
                if (t->f[i] != t->f[0])
                        t = NULL;
        if (!t || !t->f || t->count < 1)
                return mfl_onnx_fail(
                        o, "is supported only with one constant for all samples (stochastic depth)");
        return give(o, ONNX_KEPT, &t->shape, 1 - (double)t->f[0]);
}

/* One number per sample: all dimensions but the first are 1. */
static bool is_of_samples(const struct onnx_shape *shape)
{
        bool fits = shape->rank > 0;
        for (int d = 1; d < shape->rank; d++)
                fits = fits && shape->dim[d] == 1;
        return fits;
}

static int apply(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise)
{
        struct onnx_value *view, *made;
        int one, mask, layer, r = mfl_onnx_resolve(o, x, &view);
        if (!r && !is_of_samples(&noise->shape))
                r = mfl_onnx_fail(
                        o, "random numbers other than one per sample are supported only as Dropout");
        if (!r)
                r = mfl_onnx_add_scalar(o, view, 1, &one);
        if (r)
                return r;
        struct mfl_layer dropout = {.op = MFL_OP_DROPOUT,
                .input = one,
                .rate = noise->rate,
                .out = *mfl_onnx_layer_shape(o, one)};
        if ((r = mfl_onnx_add_layer(o, &dropout, NULL, o->node, &mask)))
                return r;
        struct mfl_layer join = {.op = MFL_OP_MULTIPLY,
                .input = view->layer,
                .input2 = mask,
                .out = *mfl_onnx_layer_shape(o, view->layer)};
        if ((r = mfl_onnx_add_layer(o, &join, NULL, o->node, &layer)) ||
                (r = mfl_onnx_view(o, view, &view->shape, NULL, &made)))
                return r;
        made->layer = layer;
        made->samples = NULL;
        return mfl_onnx_output(o, 0, made);
}

static int step(struct onnx *o, struct onnx_value *a, struct onnx_value *b)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *noise = is_noise(a) ? a : b, *other = noise == a ? b : a;
        bool multiplies = !strcmp(op, "Mul");
        double c, kept = 1 - (double)noise->rate;
        bool scalar = other && mfl_onnx_scalar(other, &c);
        if (!strcmp(op, "Less") && noise == a && a->pending == ONNX_UNIFORM && scalar && c > 0 && c <= 1)
                return give(o, ONNX_KEPT, &a->shape, 1 - c);
        if (!strncmp(op, "Cast", 4) && noise->pending == ONNX_KEPT)
                return mfl_onnx_output(o, 0, noise);
        if (noise->pending == ONNX_KEPT && scalar &&
                ((!strcmp(op, "Div") && noise == a && fabs(c - kept) < 1e-6) ||
                        (multiplies && fabs(c * kept - 1) < 1e-6)))
                return give(o, ONNX_NOISE, &noise->shape, (double)noise->rate);
        if (multiplies && noise->pending == ONNX_NOISE && other && !other->tensor && !is_noise(other))
                return apply(o, other, noise);
        return mfl_onnx_fail(o, ONNX_RANDOM);
}

int mfl_onnx_noise_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        *ret_taken = true;
        if (!strcmp(op, "RandomUniformLike") || !strcmp(op, "RandomUniform"))
                return uniform(o);
        if (!strcmp(op, "Bernoulli"))
                return bernoulli(o);
        *ret_taken = is_noise(a) || is_noise(b);
        return *ret_taken ? step(o, a, b) : 0;
}
