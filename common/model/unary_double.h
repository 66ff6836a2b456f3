/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of unary.def in double: <body>_double and <body>_grad_double. */
#ifndef MFL_COMMON_MODEL_UNARY_DOUBLE_H
#define MFL_COMMON_MODEL_UNARY_DOUBLE_H

#include <math.h>

#define UNARY_REAL double
#define UNARY_BODY static inline
#define UNARY_NAME(body) body##_double
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
#define UNARY_ATAN atan
#define UNARY_FMOD fmod
#define UNARY_FLOOR floor
#define UNARY_RINT rint
#define UNARY_GATE(v, x) ((v) / (1.0 + exp(-(x))))
#include "common/model/unary_bodies.h"

#endif
