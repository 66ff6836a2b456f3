/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions on computed values, and what chooses by them. A condition that is no part of a function of one value becomes a
 * flag, a layer of 0s and 1s: x > c is relu(sign(x - c)). Nothing is trained through it, as in PyTorch. */
#include <math.h>

#include "cli/onnx/internal.h"

static bool is(const struct onnx *o, const char *op)
{
        return !strcmp(mfl_onnx_node(o)->op_type, op);
}

static bool is_comparison(const struct onnx *o)
{
        return !strncmp(mfl_onnx_node(o)->op_type, "Greater", 7) || !strncmp(mfl_onnx_node(o)->op_type, "Less", 4);
}

/* A layer of one input behind a view without a function. */
static int add(struct onnx *o, struct onnx_value *of, enum mfl_op op, struct onnx_value **ret_view)
{
        return mfl_onnx_add_unary(o, of, &(struct mfl_layer){.op = op}, ret_view);
}

/* ---- steps ---- */

static const struct {
        const char *name;
        enum mfl_op op;
        bool turned; /* ceil(x) = -floor(-x) */
} steps[] = {{"Sign", MFL_OP_SIGN, false}, {"Round", MFL_OP_ROUND, false}, {"Floor", MFL_OP_FLOOR, false},
        {"Ceil", MFL_OP_FLOOR, true}};

int mfl_onnx_steps_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *v;
        size_t k = 0;
        while (k < MFL_ARRAY_SIZE(steps) && !is(o, steps[k].name))
                k++;
        if (k == MFL_ARRAY_SIZE(steps) || !x || x->tensor)
                return 0;
        *ret_taken = true;
        int r = mfl_onnx_resolve(o, x, &v);
        if (!r && steps[k].turned)
                r = add(o, v, MFL_OP_NEG, &v);
        if (!r)
                r = add(o, v, steps[k].op, &v);
        if (!r && steps[k].turned)
                r = add(o, v, MFL_OP_NEG, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* ---- conditions ---- */

/* a - b; either may be a constant. */
static int subtract(struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view)
{
        double c;
        int r;
        if (mfl_onnx_scalar(b, &c))
                return (r = mfl_onnx_resolve(o, a, &a)) ? r : mfl_onnx_make_affine(o, a, 1, -c, ret_view);
        if (mfl_onnx_scalar(a, &c))
                return (r = mfl_onnx_resolve(o, b, &b)) ? r : mfl_onnx_make_affine(o, b, -1, c, ret_view);
        if ((a->tensor && (r = mfl_onnx_lift(o, a, &a))) || (b->tensor && (r = mfl_onnx_lift(o, b, &b))) ||
                (r = mfl_onnx_resolve(o, b, &b)) || (r = mfl_onnx_make_affine(o, b, -1, 0, &b)))
                return r;
        return mfl_onnx_combine(o, MFL_OP_ADD, a, b, ret_view);
}

int mfl_onnx_make_comparison(struct onnx *o, struct onnx_value **ret_view)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        bool or_equal = strstr(op, "OrEqual"), above = op[0] == 'G';
        static const double holds[2] = {0, 1}, fails[2] = {1, 0};
        if (!a || !b || !is_comparison(o))
                return mfl_onnx_fail(o, "this combination of elementwise operators is not supported");
        /* a <= b is where a > b is not. */
        int r = above != or_equal ? subtract(o, a, b, &v) : subtract(o, b, a, &v);
        if (r || (r = add(o, v, MFL_OP_SIGN, &v)) || (r = add(o, v, MFL_OP_RELU, &v)))
                return r;
        o->layers[v->layer].flag = true;
        return mfl_onnx_new_pair(o, v, or_equal ? fails : holds, ret_view);
}

/* Whether the elements lie beyond one of v's bounds, which are no function of them. */
int mfl_onnx_make_cut(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_flag)
{
        const struct onnx_cut *cut = v->cut;
        const double on[2] = {cut->between, !cut->between};
        struct onnx_value *x, *side[2], *flag = NULL;
        int n = 0, r = mfl_onnx_view(o, v, &v->shape, NULL, &x);
        if (r)
                return r;
        x->samples = NULL;
        x->cut = NULL;
        x->unmoved = NULL;
        if (isfinite(cut->above) && (r = mfl_onnx_make_affine(o, x, 1, -cut->above, &side[n++])))
                return r;
        if (isfinite(cut->below) && (r = mfl_onnx_make_affine(o, x, -1, cut->below, &side[n++])))
                return r;
        for (int k = 0; k < n; k++) {
                if ((r = add(o, side[k], MFL_OP_SIGN, &side[k])) || (r = add(o, side[k], MFL_OP_RELU, &side[k])) ||
                        (flag && (r = mfl_onnx_combine(o, MFL_OP_ADD, flag, side[k], &side[k]))))
                        return r;
                flag = side[k];
        }
        if (!flag)
                return mfl_onnx_fail(o, "holds for all numbers, or for none");
        o->layers[flag->layer].flag = true;
        return mfl_onnx_new_pair(o, flag, on, ret_flag);
}

/* A value that is whether something holds, as a flag. */
static int as_flag(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_flag)
{
        double pair[2];
        int r = 0, node = o->node;
        *ret_flag = v;
        if (mfl_onnx_pair(o, v, pair))
                return 0;
        if (v->cut)
                return mfl_onnx_make_cut(o, v, ret_flag);
        o->node = v->node >= 0 ? v->node : node;
        r = v->samples && is_comparison(o) ? mfl_onnx_make_comparison(o, ret_flag) : mfl_onnx_resolve(o, v, ret_flag);
        o->node = node;
        if (r)
                return r;
        return mfl_onnx_pair(o, *ret_flag, pair)
                       ? 0
                       : mfl_onnx_fail(o, "needs a condition, such as x > 0, as its first input");
}

/* a or b where the flag is on; the other one is 0 there. */
static int keep(struct onnx *o, struct onnx_value *flag, const double on[2], struct onnx_value *v,
        struct onnx_value **ret_view)
{
        double c;
        struct onnx_value *k;
        if (mfl_onnx_scalar(v, &c)) {
                const double put[2] = {on[0] != 0 ? c : 0, on[1] != 0 ? c : 0};
                return mfl_onnx_new_pair(o, flag, put, ret_view);
        }
        int r = mfl_onnx_new_pair(o, flag, on, &k);
        if (!r && v->tensor)
                r = mfl_onnx_lift(o, v, &v);
        return r ? r : mfl_onnx_combine(o, MFL_OP_MULTIPLY, k, v, ret_view);
}

int mfl_onnx_make_choice(struct onnx *o, struct onnx_value **ret_view)
{
        struct onnx_value *in[3], *part[2], *flag;
        double pair[2], c;
        for (size_t k = 0; k < 3; k++)
                if (!(in[k] = mfl_onnx_input(o, k)))
                        return mfl_onnx_fail(o, "input %zu is missing", k);
        int r = as_flag(o, in[0], &flag);
        if (r || !mfl_onnx_pair(o, flag, pair))
                return r;
        const double on[2][2] = {{pair[0] != 0, pair[1] != 0}, {pair[0] == 0, pair[1] == 0}};
        for (int k = 0; k < 2; k++)
                if ((r = keep(o, flag, on[k], in[1 + k], &part[k])))
                        return r;
        for (int k = 0; k < 2; k++)
                if (mfl_onnx_scalar(in[1 + k], &c) && c == 0)
                        return mfl_onnx_resolve(o, part[1 - k], ret_view);
        return mfl_onnx_combine(o, MFL_OP_ADD, part[0], part[1], ret_view);
}

/* Conditions of different values become flags, which tokens.c joins. */
int mfl_onnx_condition_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *in[2] = {mfl_onnx_input(o, 0), mfl_onnx_input(o, 1)}, *flag;
        bool turns = is(o, "Not");
        double pair[2];
        if (!(turns || is(o, "And") || is(o, "Or") || is(o, "Xor")))
                return 0;
        for (int k = 0; k < (turns ? 1 : 2); k++) {
                if (!in[k] || in[k]->tensor || mfl_onnx_pair(o, in[k], pair) || !in[k]->samples)
                        continue;
                int uses = in[k]->uses, r = as_flag(o, in[k], &flag);
                if (r)
                        return r;
                *in[k] = *flag;
                in[k]->uses = uses;
        }
        return mfl_onnx_tokens_step(o, ret_taken);
}
