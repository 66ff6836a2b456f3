/* SPDX-License-Identifier: Apache-2.0 */
/* Norm clipping of a client's update, before the only rounding and before any sum, so that the sum stays exact and has no
 * order: McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR 2018, section 2,
 *
 *      delta <- delta min(1, C / ||delta||)
 *
 * Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor Federated Learning?", 2019, section 4, for what it does to attacks. */
#include "common/method/clip.h"

#include "common/method/method.h"

double mfl_method_clip(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, double limit,
        float *delta, size_t n)
{
        double factor = mfl_method_clip_factor(limit, mfl_method_norm2(fixed, parts, delta, n), n);
        if (factor >= 1)
                return 1;
        factor *= 1 - 0x1p-23; /* rounding to float adds at most 2^-24 of each element */
        for (uint64_t i = 0; i < n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, parts, i, n);
                for (; i < part.end; i++)
                        delta[i] = part.statistics ? delta[i] : (float)(factor * (double)delta[i]);
        }
        return factor;
}
