/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of the functions of unary.def, written once for every arithmetic. A file that includes this one defines
 *
 *   UNARY_REAL        the type
 *   UNARY_BODY        how bodies are declared: static inline and the like
 *   UNARY_NAME(body)  how they are called there
 *   UNARY_C(number)   a constant of the type
 *   UNARY_EXP, _EXPM1, _LOG, _LOG1P_OF_EXP, _TANH, _ERF, _ABS, _SQRT, _POW, _SIN, _COS, _ATAN, _FMOD, _FLOOR, _RINT
 *                     its functions; LOG1P_OF_EXP(x) = log(1 + exp(x)) for x <= 0
 *   UNARY_EXP_WHOLE   exp of any number, also beyond 88; if it is not UNARY_EXP
 *   UNARY_GATE(v, x)  v / (1 + exp(-x)); v is evaluated once
 *
 * f(x) gives y. f_grad(v, dy) gives dx; v is what the function's entry says that its derivative reads. What no
 * derivative defines is as in PyTorch. No guard: kernels/bodies.h (float, by the C library), the loops of the CPU
 * backend (float, by polynomials that become vectors) and unary.c (double) each include it.
 */

#ifndef UNARY_EXP_WHOLE
#define UNARY_EXP_WHOLE UNARY_EXP
#endif

UNARY_BODY UNARY_REAL UNARY_NAME(relu)(UNARY_REAL x)
{
        return x > UNARY_C(0.0) ? x : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(relu_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return y > UNARY_C(0.0) ? dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tanh)(UNARY_REAL x)
{
        return UNARY_TANH(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tanh_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return dy * (UNARY_C(1.0) - y * y);
}

UNARY_BODY UNARY_REAL UNARY_NAME(sigmoid)(UNARY_REAL x)
{
        return UNARY_C(1.0) / (UNARY_C(1.0) + UNARY_EXP(-x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(sigmoid_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return dy * (y * (UNARY_C(1.0) - y));
}

UNARY_BODY UNARY_REAL UNARY_NAME(relu6)(UNARY_REAL x)
{
        return x > UNARY_C(0.0) ? (x < UNARY_C(6.0) ? x : UNARY_C(6.0)) : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(relu6_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return y > UNARY_C(0.0) && y < UNARY_C(6.0) ? dy : UNARY_C(0.0);
}

#define UNARY_LN_2 UNARY_C(0.69314718055994530942)
#define UNARY_SQRT_HALF UNARY_C(0.70710678118654752440)
#define UNARY_SQRT_2_OVER_PI UNARY_C(0.79788456080286535588)
#define UNARY_1_OVER_SQRT_2PI UNARY_C(0.39894228040143267794)

UNARY_BODY UNARY_REAL UNARY_NAME(gelu)(UNARY_REAL x)
{
        return UNARY_C(0.5) * x * (UNARY_C(1.0) + UNARY_ERF(x * UNARY_SQRT_HALF));
}

UNARY_BODY UNARY_REAL UNARY_NAME(gelu_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL phi = UNARY_C(0.5) * (UNARY_C(1.0) + UNARY_ERF(x * UNARY_SQRT_HALF));
        return dy * (phi + x * UNARY_1_OVER_SQRT_2PI * UNARY_EXP(-UNARY_C(0.5) * x * x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(gelu_tanh)(UNARY_REAL x)
{
        return UNARY_C(0.5) * x *
               (UNARY_C(1.0) + UNARY_TANH(UNARY_SQRT_2_OVER_PI * (x + UNARY_C(0.044715) * x * x * x)));
}

UNARY_BODY UNARY_REAL UNARY_NAME(gelu_tanh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL t = UNARY_TANH(UNARY_SQRT_2_OVER_PI * (x + UNARY_C(0.044715) * x * x * x));
        UNARY_REAL inner = UNARY_SQRT_2_OVER_PI * (UNARY_C(1.0) + UNARY_C(3.0) * UNARY_C(0.044715) * x * x);
        return dy * (UNARY_C(0.5) * (UNARY_C(1.0) + t) + UNARY_C(0.5) * x * (UNARY_C(1.0) - t * t) * inner);
}

UNARY_BODY UNARY_REAL UNARY_NAME(silu)(UNARY_REAL x)
{
        return UNARY_GATE(x, x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(silu_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL s = UNARY_NAME(sigmoid)(x);
        return dy * (s * (UNARY_C(1.0) + x * (UNARY_C(1.0) - s)));
}

UNARY_BODY UNARY_REAL UNARY_NAME(leaky_relu)(UNARY_REAL x, UNARY_REAL slope)
{
        return x > UNARY_C(0.0) ? x : slope * x;
}

/* The slope is positive, so y > 0 means the same as x > 0. */
UNARY_BODY UNARY_REAL UNARY_NAME(leaky_relu_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL slope)
{
        return y > UNARY_C(0.0) ? dy : slope * dy;
}

UNARY_BODY UNARY_REAL UNARY_NAME(elu)(UNARY_REAL x, UNARY_REAL alpha)
{
        return x > UNARY_C(0.0) ? x : alpha * UNARY_EXPM1(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(elu_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL alpha)
{
        return y > UNARY_C(0.0) ? dy : dy * (y + alpha);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardsigmoid)(UNARY_REAL x)
{
        return UNARY_NAME(relu6)(x + UNARY_C(3.0)) / UNARY_C(6.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardsigmoid_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return y > UNARY_C(0.0) && y < UNARY_C(1.0) ? dy / UNARY_C(6.0) : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardswish)(UNARY_REAL x)
{
        return x * UNARY_NAME(relu6)(x + UNARY_C(3.0)) / UNARY_C(6.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardswish_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return x > -UNARY_C(3.0) ? (x < UNARY_C(3.0) ? dy * (x / UNARY_C(3.0) + UNARY_C(0.5)) : dy)
                                 : UNARY_C(0.0);
}

/* The form that does not overflow. */
UNARY_BODY UNARY_REAL UNARY_NAME(softplus)(UNARY_REAL x)
{
        return UNARY_NAME(relu)(x) + UNARY_LOG1P_OF_EXP(-UNARY_ABS(x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(softplus_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return UNARY_GATE(dy, x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(exp)(UNARY_REAL x)
{
        return UNARY_EXP_WHOLE(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(exp_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return dy * y;
}

UNARY_BODY UNARY_REAL UNARY_NAME(log)(UNARY_REAL x)
{
        return UNARY_LOG(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(log_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(sqrt)(UNARY_REAL x)
{
        return UNARY_SQRT(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(sqrt_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return dy / (UNARY_C(2.0) * y);
}

UNARY_BODY UNARY_REAL UNARY_NAME(rsqrt)(UNARY_REAL x)
{
        return UNARY_C(1.0) / UNARY_SQRT(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(rsqrt_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return -UNARY_C(0.5) * dy * (y * y * y);
}

UNARY_BODY UNARY_REAL UNARY_NAME(reciprocal)(UNARY_REAL x)
{
        return UNARY_C(1.0) / x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(reciprocal_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return -dy * (y * y);
}

UNARY_BODY UNARY_REAL UNARY_NAME(abs)(UNARY_REAL x)
{
        return UNARY_ABS(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(abs_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return x > UNARY_C(0.0) ? dy : x < UNARY_C(0.0) ? -dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(neg)(UNARY_REAL x)
{
        return -x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(neg_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return -dy;
}

UNARY_BODY UNARY_REAL UNARY_NAME(square)(UNARY_REAL x)
{
        return x * x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(square_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy * (UNARY_C(2.0) * x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(pow)(UNARY_REAL x, UNARY_REAL exponent)
{
        return UNARY_POW(x, exponent);
}

UNARY_BODY UNARY_REAL UNARY_NAME(pow_grad)(UNARY_REAL x, UNARY_REAL dy, UNARY_REAL exponent)
{
        return exponent == UNARY_C(0.0) ? UNARY_C(0.0)
                                        : dy * (exponent * UNARY_POW(x, exponent - UNARY_C(1.0)));
}

UNARY_BODY UNARY_REAL UNARY_NAME(sin)(UNARY_REAL x)
{
        return UNARY_SIN(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(sin_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy * UNARY_COS(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(cos)(UNARY_REAL x)
{
        return UNARY_COS(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(cos_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return -dy * UNARY_SIN(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(erf)(UNARY_REAL x)
{
        return UNARY_ERF(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(erf_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy * (UNARY_C(1.12837916709551257390) * UNARY_EXP(-x * x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(mish)(UNARY_REAL x)
{
        return x * UNARY_TANH(UNARY_NAME(softplus)(x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(mish_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL t = UNARY_TANH(UNARY_NAME(softplus)(x));
        return dy * (t + x * (UNARY_C(1.0) - t * t) * UNARY_NAME(sigmoid)(x));
}

#define UNARY_SELU_SCALE UNARY_C(1.0507009873554804934193349852946)
#define UNARY_SELU_ALPHA UNARY_C(1.6732632423543772848170429916717)

UNARY_BODY UNARY_REAL UNARY_NAME(selu)(UNARY_REAL x)
{
        return UNARY_SELU_SCALE * (x > UNARY_C(0.0) ? x : UNARY_SELU_ALPHA * UNARY_EXPM1(x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(selu_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return y > UNARY_C(0.0) ? UNARY_SELU_SCALE * dy : dy * (y + UNARY_SELU_SCALE * UNARY_SELU_ALPHA);
}

UNARY_BODY UNARY_REAL UNARY_NAME(celu)(UNARY_REAL x, UNARY_REAL alpha)
{
        return x > UNARY_C(0.0) ? x : alpha * UNARY_EXPM1(x / alpha);
}

UNARY_BODY UNARY_REAL UNARY_NAME(celu_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL alpha)
{
        return y > UNARY_C(0.0) ? dy : dy * (y / alpha + UNARY_C(1.0));
}

UNARY_BODY UNARY_REAL UNARY_NAME(softsign)(UNARY_REAL x)
{
        return x / (UNARY_C(1.0) + UNARY_ABS(x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(softsign_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL d = UNARY_C(1.0) + UNARY_ABS(x);
        return dy / (d * d);
}

UNARY_BODY UNARY_REAL UNARY_NAME(quick_gelu)(UNARY_REAL x)
{
        return UNARY_GATE(x, UNARY_C(1.702) * x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(quick_gelu_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL s = UNARY_NAME(sigmoid)(UNARY_C(1.702) * x);
        return dy * (s * (UNARY_C(1.0) + UNARY_C(1.702) * x * (UNARY_C(1.0) - s)));
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardtanh)(UNARY_REAL x, UNARY_REAL low, UNARY_REAL high)
{
        return x < low ? low : x > high ? high : x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardtanh_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL low, UNARY_REAL high)
{
        return y > low && y < high ? dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(logsigmoid)(UNARY_REAL x)
{
        return -UNARY_NAME(softplus)(-x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(logsigmoid_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return UNARY_GATE(dy, -x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tanhshrink)(UNARY_REAL x)
{
        return x - UNARY_TANH(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tanhshrink_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        UNARY_REAL t = UNARY_TANH(x);
        return dy * (t * t);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardshrink)(UNARY_REAL x, UNARY_REAL lambd)
{
        return x > lambd || x < -lambd ? x : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(hardshrink_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL lambd)
{
        return y != UNARY_C(0.0) ? dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(softshrink)(UNARY_REAL x, UNARY_REAL lambd)
{
        return x > lambd ? x - lambd : x < -lambd ? x + lambd : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(softshrink_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL lambd)
{
        return y != UNARY_C(0.0) ? dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(threshold)(UNARY_REAL x, UNARY_REAL threshold, UNARY_REAL value)
{
        return x > threshold ? x : value;
}

UNARY_BODY UNARY_REAL UNARY_NAME(threshold_grad)(
        UNARY_REAL x, UNARY_REAL dy, UNARY_REAL threshold, UNARY_REAL value)
{
        return x > threshold ? dy : UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(sign)(UNARY_REAL x)
{
        return x > UNARY_C(0.0) ? UNARY_C(1.0) : x < UNARY_C(0.0) ? -UNARY_C(1.0) : x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(sign_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(round)(UNARY_REAL x)
{
        return UNARY_RINT(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(round_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(floor)(UNARY_REAL x)
{
        return UNARY_FLOOR(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(floor_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(detach)(UNARY_REAL x)
{
        return x;
}

UNARY_BODY UNARY_REAL UNARY_NAME(detach_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return UNARY_C(0.0);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tan)(UNARY_REAL x)
{
        return UNARY_SIN(x) / UNARY_COS(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(tan_grad)(UNARY_REAL y, UNARY_REAL dy)
{
        return dy * (UNARY_C(1.0) + y * y);
}

UNARY_BODY UNARY_REAL UNARY_NAME(atan)(UNARY_REAL x)
{
        return UNARY_ATAN(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(atan_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / (UNARY_C(1.0) + x * x);
}

/* Half the angle: the sum below has no cancellation. */
UNARY_BODY UNARY_REAL UNARY_NAME(asin)(UNARY_REAL x)
{
        UNARY_REAL cosine = UNARY_SQRT((UNARY_C(1.0) - x) * (UNARY_C(1.0) + x));
        return UNARY_C(2.0) * UNARY_ATAN(x / (UNARY_C(1.0) + cosine));
}

UNARY_BODY UNARY_REAL UNARY_NAME(asin_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / UNARY_SQRT((UNARY_C(1.0) - x) * (UNARY_C(1.0) + x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(acos)(UNARY_REAL x)
{
        return UNARY_C(2.0) * UNARY_ATAN(UNARY_SQRT((UNARY_C(1.0) - x) / (UNARY_C(1.0) + x)));
}

UNARY_BODY UNARY_REAL UNARY_NAME(acos_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return -UNARY_NAME(asin_grad)(x, dy);
}

/* (e^x - e^-x) / 2 of u = e^|x| - 1. Where e^|x| has no number, neither has sinh. */
UNARY_BODY UNARY_REAL UNARY_NAME(sinh)(UNARY_REAL x)
{
        UNARY_REAL u = UNARY_EXPM1(UNARY_ABS(x));
        UNARY_REAL y = UNARY_C(0.5) * (u + (u > UNARY_C(1e30) ? UNARY_C(1.0) : u / (u + UNARY_C(1.0))));
        return x < UNARY_C(0.0) ? -y : y;
}

UNARY_BODY UNARY_REAL UNARY_NAME(cosh)(UNARY_REAL x)
{
        UNARY_REAL e = UNARY_EXP(UNARY_ABS(x));
        return UNARY_C(0.5) * (e + UNARY_C(1.0) / e);
}

UNARY_BODY UNARY_REAL UNARY_NAME(sinh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy * UNARY_NAME(cosh)(x);
}

UNARY_BODY UNARY_REAL UNARY_NAME(cosh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy * UNARY_NAME(sinh)(x);
}

/* log(1 + u), u > -1, of a logarithm that is exact near 1: the rounding of 1 + u falls out of u / (w - 1) (Kahan). */
UNARY_BODY UNARY_REAL UNARY_NAME(log1p)(UNARY_REAL u)
{
        UNARY_REAL w = UNARY_C(1.0) + u, d = w - UNARY_C(1.0);
        return d == UNARY_C(0.0) || u > UNARY_C(1e30) ? (d == UNARY_C(0.0) ? u : UNARY_LOG(u))
                                                      : UNARY_LOG(w) * (u / d);
}

/* Beyond 1e15 the root is |x| to the last bit, and x^2 may have no number. */
UNARY_BODY UNARY_REAL UNARY_NAME(asinh)(UNARY_REAL x)
{
        UNARY_REAL a = UNARY_ABS(x), s = a < UNARY_C(1e15) ? a * a : UNARY_C(0.0);
        UNARY_REAL y = a < UNARY_C(1e15)
                               ? UNARY_NAME(log1p)(a + s / (UNARY_C(1.0) + UNARY_SQRT(s + UNARY_C(1.0))))
                               : UNARY_LOG(a) + UNARY_LN_2;
        return x < UNARY_C(0.0) ? -y : y;
}

UNARY_BODY UNARY_REAL UNARY_NAME(asinh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / UNARY_SQRT(x * x + UNARY_C(1.0));
}

UNARY_BODY UNARY_REAL UNARY_NAME(acosh)(UNARY_REAL x)
{
        UNARY_REAL t = x - UNARY_C(1.0);
        return x < UNARY_C(1e15) ? UNARY_NAME(log1p)(t + UNARY_SQRT(t * (t + UNARY_C(2.0))))
                                 : UNARY_LOG(x) + UNARY_LN_2;
}

UNARY_BODY UNARY_REAL UNARY_NAME(acosh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / UNARY_SQRT((x - UNARY_C(1.0)) * (x + UNARY_C(1.0)));
}

/* Odd, so that small numbers on either side of 0 have equal errors. */
UNARY_BODY UNARY_REAL UNARY_NAME(atanh)(UNARY_REAL x)
{
        UNARY_REAL a = UNARY_ABS(x);
        UNARY_REAL y = UNARY_C(0.5) * UNARY_NAME(log1p)(UNARY_C(2.0) * a / (UNARY_C(1.0) - a));
        return x < UNARY_C(0.0) ? -y : y;
}

UNARY_BODY UNARY_REAL UNARY_NAME(atanh_grad)(UNARY_REAL x, UNARY_REAL dy)
{
        return dy / ((UNARY_C(1.0) - x) * (UNARY_C(1.0) + x));
}

UNARY_BODY UNARY_REAL UNARY_NAME(fmod)(UNARY_REAL x, UNARY_REAL divisor)
{
        return UNARY_FMOD(x, divisor);
}

UNARY_BODY UNARY_REAL UNARY_NAME(fmod_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL divisor)
{
        return dy;
}

UNARY_BODY UNARY_REAL UNARY_NAME(divide)(UNARY_REAL x, UNARY_REAL divisor)
{
        return x / divisor;
}

UNARY_BODY UNARY_REAL UNARY_NAME(divide_grad)(UNARY_REAL y, UNARY_REAL dy, UNARY_REAL divisor)
{
        return dy / divisor;
}

#undef UNARY_REAL
#undef UNARY_BODY
#undef UNARY_NAME
#undef UNARY_C
#undef UNARY_EXP
#undef UNARY_EXP_WHOLE
#undef UNARY_EXPM1
#undef UNARY_LOG
#undef UNARY_LOG1P_OF_EXP
#undef UNARY_TANH
#undef UNARY_ERF
#undef UNARY_ABS
#undef UNARY_SQRT
#undef UNARY_POW
#undef UNARY_SIN
#undef UNARY_COS
#undef UNARY_ATAN
#undef UNARY_FMOD
#undef UNARY_FLOOR
#undef UNARY_RINT
#undef UNARY_GATE
#undef UNARY_SQRT_HALF
#undef UNARY_LN_2
#undef UNARY_SQRT_2_OVER_PI
#undef UNARY_1_OVER_SQRT_2PI
#undef UNARY_SELU_SCALE
#undef UNARY_SELU_ALPHA
