/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of computed values that only their names tell, and conditions that others join. */
#include <math.h>

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

/* ---- functions by name: unary.def, from the steps on ---- */

static const struct {
        const char *name;
        enum mfl_op op;
        bool turned; /* ceil(x) = -floor(-x) */
} named[] = {{"Sign", MFL_OP_SIGN, false}, {"Round", MFL_OP_ROUND, false}, {"Floor", MFL_OP_FLOOR, false},
        {"Ceil", MFL_OP_FLOOR, true}, {ONNX_STOP, MFL_OP_DETACH, false}, {"Tan", MFL_OP_TAN, false},
        {"Asin", MFL_OP_ASIN, false}, {"Acos", MFL_OP_ACOS, false}, {"Atan", MFL_OP_ATAN, false},
        {"Sinh", MFL_OP_SINH, false}, {"Cosh", MFL_OP_COSH, false}, {"Asinh", MFL_OP_ASINH, false},
        {"Acosh", MFL_OP_ACOSH, false}, {"Atanh", MFL_OP_ATANH, false}, {"Mod", MFL_OP_FMOD, false}};

/* In a file that mfl wrote, an Identity of a computed value is a `detach` layer: ONNX has no other node for it. */
static bool is_named(const struct onnx *o, size_t k)
{
        return is(o, named[k].name) || (named[k].op == MFL_OP_DETACH && o->own && is(o, "Identity"));
}

/* The rest of computed numbers, when a constant divides them. */
static int make_fmod(struct onnx *o, struct onnx_value *x)
{
        struct onnx_value *by = mfl_onnx_input(o, 1), *v;
        double divisor = 0;
        if (!mfl_onnx_int(o, "fmod", 0))
                return mfl_onnx_fail(o,
                        "is supported with fmod=1, or between constants; for whole numbers write x - y * "
                        "torch.floor(x / y)");
        if (x->tensor || !by || !mfl_onnx_scalar(by, &divisor) || !isfinite(divisor) || divisor == 0)
                return mfl_onnx_fail(o, "is supported where one constant number divides, which is not 0; "
                                        "compute it with the data");
        int r = mfl_onnx_resolve_exact(o, x, &v);
        if (!r)
                r = mfl_onnx_add_unary(
                        o, v, &(struct mfl_layer){.op = MFL_OP_FMOD, .alpha = (float)fabs(divisor)}, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

int mfl_onnx_named_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *v;
        size_t k = 0;
        while (k < MFL_ARRAY_SIZE(named) && !is_named(o, k))
                k++;
        bool constant = x && x->tensor;
        if (k == MFL_ARRAY_SIZE(named) || !x || (constant && !is(o, ONNX_STOP) && !is(o, "Mod")))
                return 0;
        *ret_taken = true;
        if (named[k].op == MFL_OP_FMOD)
                return make_fmod(o, x);
        if (constant) /* which nothing trains */
                return mfl_onnx_output(o, 0, x);
        bool jumps = named[k].op == MFL_OP_SIGN || named[k].op == MFL_OP_ROUND || named[k].op == MFL_OP_FLOOR;
        int r = jumps ? mfl_onnx_resolve_exact(o, x, &v) : mfl_onnx_resolve(o, x, &v);
        if (!r && named[k].op == MFL_OP_FLOOR && o->layers[v->layer].quotient)
                return mfl_onnx_fail(o, "takes the whole part of a quotient by computed values or by several "
                                        "numbers, which is not exact here; "
                                        "divide by one number, or compute it with the data");
        if (!r && named[k].turned)
                r = add(o, v, MFL_OP_NEG, &v);
        if (!r)
                r = add(o, v, named[k].op, &v);
        if (!r && named[k].turned)
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
