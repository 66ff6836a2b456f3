/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic depth (Huang et al. 2016, "Deep Networks with Stochastic Depth"), as a model in training mode
 * writes it: a random number decides for each sample whether it is kept, and kept samples are divided by the
 * share that is kept. Whether it is: random < p, or floor(random + p). As layers: a frozen 1 under dropout, times the samples. */
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

/* `after`: what the result is times. */
static int apply(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise, double after)
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
        double *f;
        if (after != 1 && (r = mfl_onnx_new_function(o, made, &f, &made)))
                return r;
        for (int i = 0; after != 1 && i < ONNX_SAMPLES; i++)
                f[i] = after * mfl_onnx_sample_at(i);
        return mfl_onnx_output(o, 0, made);
}

/* A comparison of the random number with a constant: the share that it drops, or -1. */
static double dropped_by(const char *op, bool first, double c)
{
        bool below = !strcmp(op, "Less") || !strcmp(op, "LessOrEqual");
        if ((!below && strcmp(op, "Greater") && strcmp(op, "GreaterOrEqual")) || !(c >= 0 && c <= 1))
                return -1;
        return below == first ? 1 - c : c;
}

/* What a node divided by the share to make x; NULL: none did. */
static struct onnx_value *undivided(const struct onnx *o, const struct onnx_value *x, double kept)
{
        const Onnx__NodeProto *node = x->node >= 0 ? o->graph->node[x->node] : NULL;
        double c;
        for (size_t i = 0; node && node->n_input == 2 && i < 2; i++) {
                const struct onnx_value *by = mfl_onnx_find(o, node->input[1 - i]);
                bool divides = !i && !strcmp(node->op_type, "Div");
                if (by && (divides || !strcmp(node->op_type, "Mul")) && mfl_onnx_scalar(by, &c) &&
                        fabs((divides ? c / kept : c * kept) - 1) < 1e-6)
                        return mfl_onnx_find(o, node->input[i]);
        }
        return NULL;
}

/* What is divided by the kept share before or after: times that share, it is what dropout takes. */
static int apply_kept(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise)
{
        double kept = 1 - (double)noise->rate;
        struct onnx_value *before = undivided(o, x, kept);
        return before && !before->tensor && !is_noise(before) ? apply(o, before, noise, 1)
                                                              : apply(o, x, noise, kept);
}

static int step(struct onnx *o, struct onnx_value *a, struct onnx_value *b)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *noise = is_noise(a) ? a : b, *other = noise == a ? b : a;
        bool multiplies = !strcmp(op, "Mul");
        double c, kept = 1 - (double)noise->rate;
        bool scalar = other && mfl_onnx_scalar(other, &c);
        bool uniform = noise->pending == ONNX_UNIFORM, shifted = uniform && noise->rate != 0;
        double dropped = uniform && !shifted && scalar ? dropped_by(op, noise == a, c) : -1;
        if (dropped >= 0 && dropped < 1)
                return give(o, ONNX_KEPT, &noise->shape, dropped);
        if (uniform && !shifted && !strcmp(op, "Add") && scalar && c > 0 && c < 1)
                return give(o, ONNX_UNIFORM, &noise->shape, c);
        if (shifted && !strcmp(op, "Floor")) /* of a number from c to 1 + c */
                return give(o, ONNX_KEPT, &noise->shape, kept);
        if (!strncmp(op, "Cast", 4) && noise->pending == ONNX_KEPT)
                return mfl_onnx_output(o, 0, noise);
        if (noise->pending == ONNX_KEPT && scalar &&
                ((!strcmp(op, "Div") && noise == a && fabs(c - kept) < 1e-6) ||
                        (multiplies && fabs(c * kept - 1) < 1e-6)))
                return give(o, ONNX_NOISE, &noise->shape, (double)noise->rate);
        if (multiplies && noise->pending == ONNX_NOISE && other && !other->tensor && !is_noise(other))
                return apply(o, other, noise, 1);
        if (multiplies && noise->pending == ONNX_KEPT && other && !other->tensor && !is_noise(other))
                return apply_kept(o, other, noise);
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
