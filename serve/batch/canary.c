/* SPDX-License-Identifier: Apache-2.0 */
/* A new version on trial. */
#include "serve/batch/canary.h"

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
