/* SPDX-License-Identifier: Apache-2.0 */
/* Sign, Round, Floor, Ceil and StopGradient of computed values, and conditions that others join. */
#include "cli/onnx/internal.h"

static bool is(const struct onnx *o, const char *op)
{
        return !strcmp(mfl_onnx_node(o)->op_type, op);
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
        {"Ceil", MFL_OP_FLOOR, true}, {ONNX_STOP, MFL_OP_DETACH, false}};

/* In a file that mfl wrote, an Identity of a computed value is a `detach` layer: ONNX has no other node for it. */
static bool is_step(const struct onnx *o, size_t k)
{
        return is(o, steps[k].name) || (steps[k].op == MFL_OP_DETACH && o->own && is(o, "Identity"));
}

int mfl_onnx_steps_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *v;
        size_t k = 0;
        while (k < MFL_ARRAY_SIZE(steps) && !is_step(o, k))
                k++;
        bool constant = x && x->tensor;
        if (k == MFL_ARRAY_SIZE(steps) || !x || (constant && !is(o, ONNX_STOP)))
                return 0;
        *ret_taken = true;
        if (constant) /* which nothing trains */
                return mfl_onnx_output(o, 0, x);
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
                int uses = in[k]->uses, r = mfl_onnx_as_flag(o, in[k], &flag);
                if (r)
                        return r;
                *in[k] = *flag;
                in[k]->uses = uses;
        }
        return mfl_onnx_tokens_step(o, ret_taken);
}
