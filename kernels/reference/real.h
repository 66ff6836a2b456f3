/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the reference: float, as the other backends have it; or double (MFL_REF_DOUBLE), in the second build of the same
 * files (double.c), whose functions have names of their own. */
#ifndef MFL_KERNELS_REFERENCE_REAL_H
#define MFL_KERNELS_REFERENCE_REAL_H

#include "kernels/bodies.h"

#ifdef MFL_REF_DOUBLE
#include "kernels/reference/names.h"

typedef double mfl_real;
#define MFL_REAL_BODY(body) mfl_real_##body
#define MFL_REAL_EXP exp
#define MFL_REAL_TANH tanh
#define UNARY_REAL double
#define UNARY_BODY static inline
#define UNARY_NAME(body) mfl_real_##body
#define UNARY_C(number) number
#define UNARY_EXP exp
#define UNARY_EXPM1 expm1
#define UNARY_LOG1P_OF_EXP(x) log1p(exp(x))
#define UNARY_TANH tanh
#define UNARY_ERF erf
#define UNARY_ABS fabs
#define UNARY_LOG log
#define UNARY_SQRT sqrt
#define UNARY_POW pow
#define UNARY_SIN sin
#define UNARY_COS cos
#define UNARY_FLOOR floor
#define UNARY_RINT rint
#define UNARY_GATE(v, x) ((v) / (1.0 + exp(-(x))))
#include "common/model/unary_bodies.h"
#else
typedef float mfl_real;
#define MFL_REAL_BODY(body) mfl_unary_##body
#define MFL_REAL_EXP expf
#define MFL_REAL_TANH tanhf
#endif

#endif
