/* SPDX-License-Identifier: Apache-2.0 */
/* Where a window's taps lie. */
#ifndef MFL_KERNELS_REFERENCE_TAP_H
#define MFL_KERNELS_REFERENCE_TAP_H

#include "kernels/plan.h"

/* The input coordinate that tap r of output coordinate o reads on one axis; outside [0, size) it is padding.
 */
static inline int64_t tap(const struct mfl_window *v, int axis, int64_t o, int64_t r)
{
        return o * v->s[axis] - v->p[axis] + r * v->d[axis];
}

static inline bool inside(int64_t at, int64_t size)
{
        return at >= 0 && at < size;
}

#endif
