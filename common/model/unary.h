/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of one variable: what unary.def says of each, and their values in double.
 *
 * A curve is what is computed: one for each such operator, and a second for one with `approximate`. Constant;
 * any thread.
 */
#ifndef MFL_COMMON_MODEL_UNARY_H
#define MFL_COMMON_MODEL_UNARY_H

#include "common/model/graph.h"

#define MFL_UNARY_PARAMS_MAX 2

enum mfl_curve {
#define UNARY(symbol, ...) MFL_CURVE_##symbol,
#define UNARY_VARIANT(symbol, variant, ...) MFL_CURVE_##variant,
#include "common/model/unary.def"
        MFL_CURVE_COUNT_
};

struct mfl_unary_param {
        const char *key;           /* in job files */
        float otherwise, min, max; /* otherwise: what 0 means; of a needed parameter, one for tests */
        bool open;                 /* min itself is no value */
        bool needed;
};

struct mfl_unary {
        enum mfl_op op;
        bool approximate;
        const char *name; /* of its bodies */
        unsigned reads;   /* enum mfl_reads */
        int n_params;
        bool kinked;
        float low, high;  /* where tests take their points */
        const char *onnx; /* as unary.def says */
        struct mfl_unary_param params[MFL_UNARY_PARAMS_MAX];
};
extern const struct mfl_unary mfl_unaries[MFL_CURVE_COUNT_];

/* MFL_CURVE_COUNT_ where the operator is no function of one variable. */
enum mfl_curve mfl_curve_of(const struct mfl_layer *layer);
/* f(x), and f'(x) dy; v is x, or f(x) where reads says OUTPUT. a, b: the layer's alpha and beta. */
double mfl_curve_value(enum mfl_curve curve, double x, double a, double b);
double mfl_curve_grad(enum mfl_curve curve, double v, double dy, double a, double b);

#endif
