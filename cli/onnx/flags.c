/* SPDX-License-Identifier: Apache-2.0 */
/* Values that tell two kinds of tokens apart: padding and the rest. Their layer is 0 or 1, so that any function of it is
 * known by its two values, which stay exact where samples of a function would not. */
#include <math.h>

#include "cli/onnx/internal.h"

/* Beyond it, a number stands for infinity: no sum of it and a score is seen by a softmax. */
#define ENDLESS 1e9

bool mfl_onnx_pair(const struct onnx *o, const struct onnx_value *v, double ret_pair[2])
{
        if (!v || v->tensor || v->pending != ONNX_NONE || !o->layers[v->layer].flag)
                return false;
        bool own = v->pair && v->samples == v->pair->samples;
        if (v->samples && !own)
                return false;
        ret_pair[0] = own ? v->pair->value[0] : 0;
        ret_pair[1] = own ? v->pair->value[1] : 1;
        return true;
}

int mfl_onnx_new_pair(
        struct onnx *o, const struct onnx_value *of, const double pair[2], struct onnx_value **ret_value)
{
        struct onnx_pair *own = mfl_onnx_alloc(o, 1, sizeof *own);
        struct onnx_value *v;
        int r = own ? mfl_onnx_view(o, of, &of->shape, NULL, &v) : onnx_memory(o);
        if (r)
                return r;
        own->value[0] = pair[0];
        own->value[1] = pair[1];
        for (int i = 0; i < ONNX_SAMPLES; i++)
                own->samples[i] = pair[0] + (pair[1] - pair[0]) * mfl_onnx_sample_at(i);
        v->samples = own->samples;
        v->pair = own;
        v->unmoved = NULL;
        v->function = NULL;
        v->cut = NULL;
        v->node = o->node;
        *ret_value = v;
        return 0;
}

/* The padding_mask layer that gives just these numbers; -1: none. */
static int padding_layer(const struct onnx *o, const struct onnx_value *v)
{
        const struct mfl_layer *l = &o->layers[v->layer].layer;
        double pair[2];
        bool hides = mfl_onnx_pair(o, v, pair) && pair[0] <= -ENDLESS && pair[1] == 0;
        return hides && l->op == MFL_OP_EXP ? l->input : -1;
}

static bool is_whole(const struct onnx_tensor *t)
{
        for (int64_t i = 0; t && i < t->count; i++)
                if (t->f[i] != floorf(t->f[i]))
                        return false;
        return t;
}

bool mfl_onnx_counts_padding(const struct onnx *o, int layer)
{
        const struct onnx_layer *at = &o->layers[layer];
        const struct mfl_layer *l = &at->layer;
        switch (l->op) {
        case MFL_OP_INPUT: /* tokens */
                for (int k = 0; k < o->n_inputs && !o->own; k++)
                        if (!o->inputs[k].whole)
                                return false;
                return true;
        case MFL_OP_PADDING_MASK:
                return true;
        case MFL_OP_WEIGHT:
                return l->frozen && is_whole(at->tensors[0]);
        case MFL_OP_MAP:
                if (l->map.kind != MFL_MAP_VIEW && l->map.kind != MFL_MAP_GATHER &&
                        l->map.kind != MFL_MAP_SUM && l->map.kind != MFL_MAP_CUMSUM)
                        return false;
                return mfl_onnx_counts_padding(o, l->input);
        case MFL_OP_EXP:
                return at->flag;
        case MFL_OP_NEG:
        case MFL_OP_SLICE:
        case MFL_OP_RESHAPE:
        case MFL_OP_TRANSPOSE:
                return mfl_onnx_counts_padding(o, l->input);
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
        case MFL_OP_GATE:
        case MFL_OP_CONCAT:
                return mfl_onnx_counts_padding(o, l->input) && mfl_onnx_counts_padding(o, l->input2);
        default:
                return false;
        }
}

int mfl_onnx_make_pair(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        double pair[2];
        int mask = padding_layer(o, v), r;
        if (!mfl_onnx_pair(o, v, pair) || isnan(pair[0]) || isnan(pair[1]))
                return mfl_onnx_fail(o, "gives no number where a token is padding, or where it is not");
        if (mask < 0 && (pair[0] != 0 || pair[1] != 1)) {
                for (int k = 0; k < 2; k++)
                        pair[k] = fmax(fmin(pair[k], ENDLESS), -ENDLESS);
                return mfl_onnx_make_affine(o, v, pair[1] - pair[0], pair[0], ret_view);
        }
        if ((r = mfl_onnx_view(o, v, &v->shape, NULL, ret_view)))
                return r;
        (*ret_view)->samples = NULL;
        (*ret_view)->unmoved = NULL;
        if (mask >= 0)
                (*ret_view)->layer = mask;
        return 0;
}
