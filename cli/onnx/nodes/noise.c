/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic depth (Huang et al. 2016, "Deep Networks with Stochastic Depth"), as a model in training mode
 * writes it: a random number decides for each sample whether it is kept, and kept samples are divided by the
 * share that is kept. Whether it is: random < p, or floor(random + p). As layers: a frozen 1 under dropout, times the samples.
 * Without the division, the sign of that dropout: 0 or 1 in training, 1 in evaluation. */
#include <math.h>

#include "cli/onnx/internal.h"

static bool is_noise(const struct onnx_value *v)
{
        return v && !v->tensor &&
               (v->pending == ONNX_UNIFORM || v->pending == ONNX_KEPT || v->pending == ONNX_NOISE);
}

/* from: the random numbers that the new ones follow from; NULL: they are drawn here. */
static int give(struct onnx *o, enum onnx_pending pending, const struct onnx_value *from,
        const struct onnx_shape *shape, double rate)
{
        struct onnx_value *v;
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->pending = pending;
        v->rate = (float)rate;
        v->drawn = from ? from->drawn : v;
        return mfl_onnx_output(o, 0, v);
}

/* ---- how many are drawn ---- */

#define SHAPE_DEPTH 8

/* Whether the value follows from the samples or from their number. */
static bool hangs_on_samples(const struct onnx *o, const char *name, int depth)
{
        const struct onnx_value *v = mfl_onnx_find(o, name);
        const Onnx__NodeProto *node = v && v->node >= 0 ? o->graph->node[v->node] : NULL;
        if (!v || !v->tensor || !node)
                return v && !v->tensor;
        bool hangs = !strcmp(node->op_type, "Shape") || !strcmp(node->op_type, "Size");
        for (size_t i = 0; !hangs && depth > 0 && i < node->n_input; i++)
                hangs = *node->input[i] && hangs_on_samples(o, node->input[i], depth - 1);
        return hangs;
}

/* A shape of constants with a 1 for the batch: one number for all samples, unless the file has one sample. */
static int check_drawn(struct onnx *o, const struct onnx_shape *shape)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        if (!mfl_onnx_is_of_samples(o, shape) || (o->batch > 1 && shape->dim[0] == o->batch))
                return 0;
        for (size_t i = 0; i < node->n_input; i++)
                if (*node->input[i] && hangs_on_samples(o, node->input[i], SHAPE_DEPTH))
                        return 0;
        if (o->batch != 1)
                return mfl_onnx_fail(o,
                        "draws one random number for all samples of a batch; mfl draws one for each: "
                        "torch.rand(x.shape[0], 1, 1), StochasticDepth(p, 'row')");
        if (!o->described)
                mfl_onnx_note(o,
                        "node %.60s draws a random number, and the file, of one sample, does not say whether "
                        "for each sample or for a whole "
                        "batch (StochasticDepth(p, 'batch')): it is drawn for each. mfl_export.save tells",
                        node->name ? node->name : "?");
        return 0;
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
        int r = check_drawn(o, &shape);
        return r ? r : give(o, ONNX_UNIFORM, NULL, &shape, 0);
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
        int r = check_drawn(o, &t->shape);
        return r ? r : give(o, ONNX_KEPT, NULL, &t->shape, 1 - (double)t->f[0]);
}

/* ---- what is done with them ---- */

static int apply(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise)
{
        struct onnx_value *view;
        int r = mfl_onnx_resolve(o, x, &view);
        if (!r)
                r = mfl_onnx_make_kept(o, view, noise, true, &view);
        return r ? r : mfl_onnx_output(o, 0, view);
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

/* What is divided by the kept share before is what dropout takes; it may also be divided after. */
static int apply_kept(struct onnx *o, struct onnx_value *x, struct onnx_value *noise)
{
        struct onnx_value *before = undivided(o, x, 1 - (double)noise->rate), *view, *v;
        if (before && !before->tensor && !is_noise(before))
                return apply(o, before, noise);
        int r = mfl_onnx_resolve(o, x, &view);
        if (!r)
                r = mfl_onnx_new_value(o, &x->shape, &v);
        if (r)
                return r;
        v->pending = ONNX_DROPPED;
        v->base = view;
        v->other = noise;
        v->rate = noise->rate;
        v->drawn = noise->drawn;
        return mfl_onnx_output(o, 0, v);
}

/* A division by the kept share, or a product with its reciprocal. */
static bool divides(const struct onnx *o, const struct onnx_value *b, bool first, double kept)
{
        const char *op = mfl_onnx_node(o)->op_type;
        double c;
        return b && mfl_onnx_scalar(b, &c) &&
               ((!strcmp(op, "Div") && first && fabs(c - kept) < 1e-6) ||
                       (!strcmp(op, "Mul") && fabs(c * kept - 1) < 1e-6));
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
                return give(o, ONNX_KEPT, noise, &noise->shape, dropped);
        if (uniform && !shifted && !strcmp(op, "Add") && scalar && c > 0 && c < 1)
                return give(o, ONNX_UNIFORM, noise, &noise->shape, c);
        if (shifted && !strcmp(op, "Floor")) /* of a number from c to 1 + c */
                return give(o, ONNX_KEPT, noise, &noise->shape, kept);
        if (!strncmp(op, "Cast", 4) && noise->pending == ONNX_KEPT)
                return mfl_onnx_output(o, 0, noise);
        if (noise->pending == ONNX_KEPT && divides(o, other, noise == a, kept))
                return give(o, ONNX_NOISE, noise, &noise->shape, (double)noise->rate);
        if (multiplies && noise->pending == ONNX_NOISE && other && !other->tensor && !is_noise(other))
                return apply(o, other, noise);
        if (multiplies && noise->pending == ONNX_KEPT && other && !other->tensor && !is_noise(other))
                return apply_kept(o, other, noise);
        return mfl_onnx_fail(o, ONNX_RANDOM);
}

static bool is_dropped(const struct onnx_value *v)
{
        return v && !v->tensor && v->pending == ONNX_DROPPED;
}

int mfl_onnx_noise_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *view;
        *ret_taken = true;
        if (!strcmp(op, "RandomUniformLike") || !strcmp(op, "RandomUniform"))
                return uniform(o);
        if (!strcmp(op, "Bernoulli"))
                return bernoulli(o);
        const struct onnx_value *cut = is_dropped(a) ? a : is_dropped(b) ? b : NULL;
        if (cut && divides(o, cut == a ? b : a, cut == a, 1 - (double)cut->rate)) {
                int r = mfl_onnx_view(o, cut->base, &cut->base->shape, NULL, &view);
                return r ? r
                         : apply(o, view,
                                   &(struct onnx_value){.shape = cut->other->shape,
                                           .rate = cut->rate,
                                           .drawn = cut->drawn});
        }
        *ret_taken = is_noise(a) || is_noise(b);
        return *ret_taken ? step(o, a, b) : 0;
}
