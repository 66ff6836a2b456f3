/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the reference: float, as the other backends have it; or double (MFL_REF_DOUBLE), in the second build of the same
 * files (double.c), whose functions have names of their own. */
#ifndef MFL_KERNELS_REFERENCE_REAL_H
#define MFL_KERNELS_REFERENCE_REAL_H

#include "kernels/bodies.h"

#ifdef MFL_REF_DOUBLE
#include "common/model/unary_double.h"
#include "kernels/reference/names.h"

typedef double mfl_real;
#define MFL_REAL_BODY(body) body##_double
#define MFL_REAL_EXP exp
#define MFL_REAL_TANH tanh
#else
typedef float mfl_real;
#define MFL_REAL_BODY(body) mfl_unary_##body
#define MFL_REAL_EXP expf
#define MFL_REAL_TANH tanhf
#endif

#endif
