/* SPDX-License-Identifier: Apache-2.0 */
/* A new version on trial. */
#include "serve/batch/canary.h"

#include <math.h>

#define FAILED_MIN 3
#define TIMED_MIN 50 /* requests after which its pace counts */

/* FNV-1a, then MurmurHash3's finalizer, whose high bits depend on every bit of the key. */
static uint64_t hash_of(const void *key, size_t bytes)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (size_t i = 0; i < bytes; i++)
                h = (h ^ ((const uint8_t *)key)[i]) * 0x100000001b3u;
        h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
        h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
        return h ^ (h >> 33);
}

bool mfl_canary_takes(double share, const void *key, size_t bytes)
{
        return (double)(hash_of(key, bytes) >> 11) * 0x1p-53 < share;
}

bool mfl_canary_mirrors(double share, const void *key, size_t bytes)
{
        return (double)(hash_of(key, bytes) >> 11) * 0x1p-53 >= 1 - share;
}

void mfl_canary_begin(struct mfl_canary *canary, const struct mfl_canary_config *config, uint64_t now_us)
{
        *canary = (struct mfl_canary){.config = *config, .began_us = now_us};
}

void mfl_canary_note(struct mfl_canary *canary, bool failed)
{
        canary->n++;
        canary->n_failed += failed;
}

enum mfl_canary_verdict mfl_canary_judge(
        const struct mfl_canary *canary, uint64_t now_us, double row_us, double row_us_before)
{
        const struct mfl_canary_config *c = &canary->config;
        if (canary->n_failed >= FAILED_MIN && (double)canary->n_failed > c->failures_max * (double)canary->n)
                return MFL_CANARY_BAD;
        if (canary->n >= TIMED_MIN && row_us_before > 0 && row_us > c->slower_max * row_us_before)
                return MFL_CANARY_BAD;
        return now_us - canary->began_us >= c->for_us ? MFL_CANARY_GOOD : MFL_CANARY_GOING;
}

/* ---- the same questions ---- */

static uint32_t largest(const float *v, uint32_t n)
{
        uint32_t best = 0;
        for (uint32_t i = 1; i < n; i++)
                best = v[i] > v[best] ? i : best;
        return best;
}

/* A number that is not finite differs from every other. */
static double difference_of(const float *a, const float *b, uint32_t n)
{
        double most = 0;
        for (uint32_t i = 0; i < n; i++)
                if (a[i] != b[i])
                        most = isfinite(a[i]) && isfinite(b[i])
                                       ? MFL_MAX(most, fabs((double)a[i] - (double)b[i]))
                                       : HUGE_VAL;
        return most;
}

void mfl_mirrored_add(struct mfl_mirrored *m, const float *before, const float *now, uint32_t n,
        uint32_t numbers, uint32_t positions)
{
        m->requests++;
        m->rows += n;
        for (uint32_t row = 0; row < n; row++, before += numbers, now += numbers) {
                const double difference = difference_of(before, now, numbers);
                bool differs = !positions && difference > 0;
                for (uint32_t p = 0; p < positions && !differs; p++) {
                        const uint32_t k = numbers / positions;
                        differs = largest(before + p * k, k) != largest(now + p * k, k);
                }
                m->differ += differs || !isfinite(difference);
                m->difference_max = MFL_MAX(m->difference_max, difference);
        }
}
