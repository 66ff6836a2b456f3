/* SPDX-License-Identifier: Apache-2.0 */
#include "common/method/local_noise.h"

#include <math.h>

#include "common/method/clip.h"
#include "common/privacy/noise.h"

struct mfl_local_rule mfl_local_of_job(const struct mfl_job *job)
{
        if (job->privacy.kind != MFL_PRIVACY_LOCAL)
                return (struct mfl_local_rule){0};
        return (struct mfl_local_rule){job->privacy.clip, job->privacy.noise};
}

struct mfl_local_rule mfl_local_stricter(struct mfl_local_rule a, struct mfl_local_rule b)
{
        if (a.clip == 0 || b.clip == 0)
                return a.clip == 0 ? b : a;
        return (struct mfl_local_rule){MFL_MIN(a.clip, b.clip), MFL_MAX(a.noise, b.noise)};
}

int mfl_local_scale(const struct mfl_local_rule *rule)
{
        double sigma = rule->noise * rule->clip;
        int s = 24 - (int)ceil(log2(sigma)) + 1;
        while (ldexp(sigma, s) * (1 + 0x1p-50) > (double)MFL_NOISE_SIGMA_MAX)
                s--;
        return s;
}

void mfl_local_shorten(
        const struct mfl_local_rule *rule, const float *delta, double norm2, size_t n, int64_t *ret_q)
{
        int s = mfl_local_scale(rule);
        double share = ldexp(sqrt((double)n), -s - 1);
        double w = mfl_method_clip_factor(MFL_MAX(rule->clip - share, 0.0), norm2, n);
        for (size_t i = 0; i < n; i++)
                ret_q[i] = (int64_t)rint(ldexp(w * (double)delta[i], s));
}

int mfl_local_noise(const struct mfl_local_rule *rule, const struct mfl_secret *secret, uint32_t threads,
        float limit, size_t n, int64_t *q, float *ret_delta, struct mfl_error *err)
{
        int s = mfl_local_scale(rule);
        const struct mfl_noise noise = {
                .a = (uint64_t)ceil(ldexp(rule->noise * rule->clip, s) * (1 + 0x1p-50)), .b = 1};
        int r = mfl_noise_add(&noise, secret, n, threads, q, err);
        for (size_t i = 0; i < n && !r; i++) {
                float x = (float)ldexp((double)q[i], -s);
                ret_delta[i] = x > limit ? limit : x < -limit ? -limit : x;
        }
        return r;
}
