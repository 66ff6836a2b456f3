/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend in double, for comparisons that must not depend on rounding.
 *
 * Only what computes outputs and gradients is there: device_open and device_close, net_new (one group), net_free, net_bytes,
 * params_set, forward and backward; the other functions are NULL, and no program trains on it. Numbers go in and out as floats.
 * Slow: plain loops on one thread, a core's 0.2 to 1 billion multiplications per second. */
#ifndef MFL_KERNELS_DOUBLE_H
#define MFL_KERNELS_DOUBLE_H

#include "kernels/backend.h"

extern const struct mfl_backend_ops mfl_backend_double;
/* After forward: the sum of outputs times dy, without rounding the outputs. */
double mfl_double_dot(const struct mfl_net *net, const float *dy);

#endif
