/* SPDX-License-Identifier: Apache-2.0 */
/* How much shorter an update must be to have a norm of at most `limit` (clip.c has the paper). */
#ifndef MFL_COMMON_METHOD_CLIP_H
#define MFL_COMMON_METHOD_CLIP_H

#include <math.h>
#include <stdint.h>

/* What an update of n elements is multiplied by so that it is no longer than `limit`, whatever sums and roots round: at most 1.
 * norm2: as mfl_method_norm2 found it. A sum of squares of floats, exact each, of blocks of 4,096 is off by less than
 * (4096 + n / 4096) 2^-53 of itself (Higham: "Accuracy and Stability of Numerical Algorithms", 4.2); the root, the product and the
 * quotient by less than the rest. */
static inline double mfl_method_clip_factor(double limit, double norm2, uint64_t n)
{
        double norm = sqrt(norm2) * (1 + (4096 + (double)n / 4096 + 16) * 0x1p-52);
        return norm > limit ? limit / norm : 1;
}

#endif
