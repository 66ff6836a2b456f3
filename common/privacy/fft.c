/* SPDX-License-Identifier: Apache-2.0 */
/* Cooley and Tukey, radix 2: bits reversed first, then butterflies of growing width. */
#include "common/privacy/fft.h"

#include <math.h>

void mfl_fft_roots(double complex *roots, size_t n)
{
        for (size_t k = 0; k < n / 2; k++) {
                double angle = -2 * M_PI * (double)k / (double)n;
                roots[k] = mfl_complex(cos(angle), sin(angle));
        }
}

static void reverse_bits(double complex *v, size_t n)
{
        for (size_t i = 1, j = 0; i < n; i++) {
                size_t bit = n >> 1;
                for (; j & bit; bit >>= 1)
                        j ^= bit;
                j ^= bit;
                if (i < j) {
                        double complex t = v[i];
                        v[i] = v[j];
                        v[j] = t;
                }
        }
}

/* Real arithmetic: complex products of C look for NaN. */
static inline double complex times(double complex a, double complex b)
{
        return mfl_complex(
                creal(a) * creal(b) - cimag(a) * cimag(b), creal(a) * cimag(b) + cimag(a) * creal(b));
}

void mfl_fft(double complex *v, size_t n, const double complex *roots, int inverse)
{
        reverse_bits(v, n);
        for (size_t width = 2; width <= n; width *= 2)
                for (size_t from = 0; from < n; from += width)
                        for (size_t k = 0; k < width / 2; k++) {
                                double complex root = roots[k * (n / width)];
                                double complex odd =
                                        times(v[from + k + width / 2], inverse ? conj(root) : root);
                                v[from + k + width / 2] = v[from + k] - odd;
                                v[from + k] += odd;
                        }
}
