/* SPDX-License-Identifier: Apache-2.0 */
/* Central differential privacy: the grid, and a client's weight. central_grid.h has the paper and the proof. */
#include "common/method/central_grid.h"

#include <inttypes.h>
#include <math.h>

#include "common/method/clip.h"
#include "common/privacy/noise.h"

/* Below, the noise on integers might differ from the accountant's Gaussian by something that matters; here, by e^(-2 pi^2 2^20). */
#define SIGMA_MIN 1024

int mfl_central_scale_max(const struct mfl_job *job)
{
        double sigma = job->privacy.noise * job->privacy.clip;
        int s = 24 - (int)ceil(log2(sigma)) + 1;
        while (ldexp(sigma, s) * (1 + 0x1p-50) > (double)MFL_NOISE_SIGMA_MAX)
                s--;
        return s;
}

uint64_t mfl_central_sigma(const struct mfl_job *job, const struct mfl_fixed *fixed)
{
        double sigma = ldexp(job->privacy.noise * job->privacy.clip, fixed->scale_bits);
        return (uint64_t)ceil(sigma * (1 + 0x1p-50));
}

static double rounding_share(int scale_bits, uint64_t n)
{
        return ldexp(sqrt((double)n), -scale_bits - 1);
}

double mfl_central_weight(const struct mfl_job *job, int scale_bits, uint64_t n, double norm2)
{
        return mfl_method_clip_factor(job->privacy.clip - rounding_share(scale_bits, n), norm2, n);
}

double mfl_central_divisor(const struct mfl_job *job)
{
        uint32_t clients = job->privacy.clients ? job->privacy.clients : job->data.clients;
        return mfl_job_rate(job) * clients;
}

int mfl_central_check(
        const struct mfl_job *job, const struct mfl_fixed *fixed, uint64_t n, struct mfl_error *err)
{
        if (job->privacy.kind != MFL_PRIVACY_CENTRAL)
                return 0;
        double share = rounding_share(fixed->scale_bits, n);
        uint64_t sigma = mfl_central_sigma(job, fixed);
        if (share > job->privacy.clip / 2)
                return mfl_fail(err, MFL_INVALID,
                        "privacy.clip: %g is too short for %" PRIu64
                        " parameters: rounding alone may change a client's update by %g; write a larger "
                        "clip, or a "
                        "smaller aggregation.delta_max",
                        job->privacy.clip, n, share);
        if (sigma < SIGMA_MIN)
                return mfl_fail(err, MFL_INVALID,
                        "privacy: noise * clip is %g, only %" PRIu64
                        " units of the grid of sums, too few for noise that hides; write a smaller "
                        "aggregation.delta_max",
                        job->privacy.noise * job->privacy.clip, sigma);
        return 0;
}
