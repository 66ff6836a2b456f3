/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the functions of one variable, and their bodies in double. */
#include "common/model/unary.h"

#include "common/model/unary_double.h"

#define PARAM(member, key, otherwise, low, high, open)                                                       \
        {                                                                                                    \
                key, otherwise, low, high, open, false                                                       \
        }
#define NEEDED(member, key, low, high, example)                                                              \
        {                                                                                                    \
                key, example, low, high, false, true                                                         \
        }
#define KINKED true
#define SMOOTH false

const struct mfl_unary mfl_unaries[MFL_CURVE_COUNT_] = {
#define UNARY(symbol, body, stem, reads, n, cost, since, edges, low, high, onnx, ...)                        \
        [MFL_CURVE_##symbol] = {                                                                             \
                MFL_OP_##symbol, false, #body, MFL_READS_##reads, n, edges, low, high, onnx, {__VA_ARGS__}},
#define UNARY_VARIANT(symbol, variant, body, reads, low, high, onnx)                                         \
        [MFL_CURVE_##variant] = {MFL_OP_##symbol, true, #body, MFL_READS_##reads, 0, false, low, high, onnx},
#include "common/model/unary.def"
};

static const unsigned char curves[MFL_OP_COUNT_][2] = {
#define UNARY(symbol, ...) [MFL_OP_##symbol][0] = 1 + MFL_CURVE_##symbol,
#define UNARY_VARIANT(symbol, variant, ...) [MFL_OP_##symbol][1] = 1 + MFL_CURVE_##variant,
#include "common/model/unary.def"
};

enum mfl_curve mfl_curve_of(const struct mfl_layer *layer)
{
        const unsigned char *of = curves[layer->op];
        unsigned curve = layer->approximate && of[1] ? of[1] : of[0];
        return curve ? (enum mfl_curve)(curve - 1) : MFL_CURVE_COUNT_;
}

#define ARGS_0
#define ARGS_1 , a
#define ARGS_2 , a, b

double mfl_curve_value(enum mfl_curve curve, double x, double a, double b)
{
        switch (curve) {
#define UNARY(symbol, body, stem, reads, n, ...)                                                             \
        case MFL_CURVE_##symbol:                                                                             \
                return body##_double(x ARGS_##n);
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                return body##_double(x);
#include "common/model/unary.def"
        default:
                return NAN;
        }
}

double mfl_curve_grad(enum mfl_curve curve, double v, double dy, double a, double b)
{
        switch (curve) {
#define UNARY(symbol, body, stem, reads, n, ...)                                                             \
        case MFL_CURVE_##symbol:                                                                             \
                return body##_grad_double(v, dy ARGS_##n);
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                return body##_grad_double(v, dy);
#include "common/model/unary.def"
        default:
                return NAN;
        }
}
