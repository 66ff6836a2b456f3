/* SPDX-License-Identifier: Apache-2.0 */
/* Series on arguments that were reduced to a small range first. */
#include "common/exact/exact.h"

#include <float.h>
#include <math.h>

/* 1 concerns float and 16 _Float16 (gcc for AVX512-FP16); only 2 and -1 keep doubles in wider registers. */
_Static_assert(FLT_EVAL_METHOD == 0 || FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 16,
        "doubles must be rounded to double after every operation");

/* ln 2 in two parts, the first with zeros at its end, so that k * LN2_HIGH is exact for |k| < 2^11. */
#define LN2_HIGH 0x1.62e42fefa38p-1
#define LN2_LOW 0x1.ef35793c7673p-45

/* x > 0, normal. log(m * 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)); |s| <= 0.172, so s^25 / 25 is below
 * 2^-68. */
double mfl_exact_log(double x)
{
        int e;
        double m = frexp(x, &e);
        if (m < 0.70710678118654752) {
                m *= 2;
                e--;
        }
        double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
        for (int k = 23; k >= 1; k -= 2)
                sum = sum * s2 + 1.0 / k;
        return (2 * s * sum + e * LN2_LOW) + e * LN2_HIGH;
}

/* x <= 0. exp(k ln 2 + r) = 2^k * Taylor(r); |r| <= 0.347, so r^16 / 16! is below 2^-68. */
double mfl_exact_exp(double x)
{
        if (x < -700)
                return 0; /* 2^-1010: nothing beside the largest proportion */
        int k = (int)(x * 0x1.71547652b82fep+0 - 0.5);
        double r = (x - k * LN2_HIGH) - k * LN2_LOW, sum = 1;
        for (int i = 15; i >= 1; i--)
                sum = 1 + sum * r / i;
        return ldexp(sum, k);
}

double mfl_exact_power(double x, double y)
{
        if (y == 0)
                return 1;
        if (y == 1)
                return x;
        double e = y * mfl_exact_log(x);
        if (e <= 0)
                return mfl_exact_exp(e);
        double inverse = mfl_exact_exp(-e);
        return inverse > 0 ? 1 / inverse : INFINITY;
}
