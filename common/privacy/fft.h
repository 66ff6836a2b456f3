/* SPDX-License-Identifier: Apache-2.0 */
/* Fourier transforms in double for powers of two. Debian's libraries have them in float only (KissFFT), or under the GPL
 * (FFTW, GSL). Private to the accountant. */
#ifndef MFL_COMMON_PRIVACY_FFT_H
#define MFL_COMMON_PRIVACY_FFT_H

#include <complex.h>
#include <stddef.h>

/* a + b i. The standard's CMPLX is missing where glibc meets clang. */
static inline double complex mfl_complex(double a, double b)
{
        return __builtin_complex(a, b);
}

/* In place; n is a power of two; roots: n / 2 numbers of mfl_fft_roots. The inverse lacks the factor 1 / n. */
void mfl_fft(double complex *v, size_t n, const double complex *roots, int inverse);
/* exp(-2 pi i k / n) for k < n / 2. */
void mfl_fft_roots(double complex *roots, size_t n);

#endif
