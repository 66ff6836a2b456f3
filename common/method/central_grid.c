/* SPDX-License-Identifier: Apache-2.0 */
/* Central differential privacy: the grid, and a client's weight. central_grid.h has the paper and the proof. */
#include "common/method/central_grid.h"

#include <inttypes.h>
#include <math.h>

#include "common/exact/exact.h"
#include "common/method/clip.h"
#include "common/privacy/matrix.h"
#include "common/privacy/noise.h"

/* Below, the noise on integers might differ from the accountant's Gaussian by something that matters; here, by e^(-2 pi^2 2^20). */
#define SIGMA_MIN 1024

#define CLIP_UP 64.0 /* of the first clip */
#define CLIP_DOWN (1 / 128.0)
#define QUANTILE 0.5
#define RATE 0.2

static double clip_most(const struct mfl_job *job)
{
        return job->privacy.clip * (job->privacy.adaptive ? CLIP_UP : 1);
}

static double clip_least(const struct mfl_job *job)
{
        return job->privacy.clip * (job->privacy.adaptive ? CLIP_DOWN : 1);
}

double mfl_central_clip(const struct mfl_job *job, const double *state)
{
        return job->privacy.adaptive ? state[0] : job->privacy.clip;
}

double mfl_central_bits_sigma(const struct mfl_job *job)
{
        return mfl_central_divisor(job) / MFL_CENTRAL_BITS_SHARE;
}

double mfl_central_next_clip(const struct mfl_job *job, double clip, uint64_t n, double bits)
{
        double x = RATE * ((bits - (double)n / 2) / mfl_central_divisor(job) + 0.5 - QUANTILE);
        x = MFL_MAX(-1.0, MFL_MIN(1.0, x));
        double next = x >= 0 ? clip * mfl_exact_exp(-x) : clip / mfl_exact_exp(x);
        return MFL_MAX(clip_least(job), MFL_MIN(clip_most(job), next));
}

/* The noise of a sum of changes, as a multiple of the clip. */
static int find_multiplier(const struct mfl_job *job, double *ret_multiplier, struct mfl_error *err)
{
        double z = job->privacy.noise, bits = 2 * mfl_central_bits_sigma(job);
        MFL_CLEANUP_FREE struct mfl_matrix *matrix = NULL;
        int r = job->privacy.mechanism == MFL_MECHANISM_GAUSSIAN
                        ? 0
                        : mfl_matrix_new(job->privacy.mechanism, job->rounds, job->selection.separation,
                                  &matrix, err);
        if (r)
                return r;
        *ret_multiplier = matrix                  ? z * matrix->sensitivity
                          : job->privacy.adaptive ? 1 / sqrt(1 / (z * z) - 1 / (bits * bits))
                                                  : z;
        return 0;
}

int mfl_central_scale_max(const struct mfl_job *job, int *ret_scale_bits, struct mfl_error *err)
{
        double sigma;
        int r = find_multiplier(job, &sigma, err);
        if (r)
                return r;
        sigma *= clip_most(job);
        int s = 24 - (int)ceil(log2(sigma)) + 1;
        while (ldexp(sigma, s) * (1 + 0x1p-50) > (double)MFL_NOISE_SIGMA_MAX)
                s--;
        *ret_scale_bits = s;
        return 0;
}

int mfl_central_sigma(const struct mfl_job *job, const struct mfl_fixed *fixed, double clip,
        uint64_t *ret_sigma, struct mfl_error *err)
{
        double multiplier;
        int r = find_multiplier(job, &multiplier, err);
        if (r)
                return r;
        double sigma = ldexp(multiplier * clip, fixed->scale_bits);
        *ret_sigma = (uint64_t)ceil(sigma * (1 + 0x1p-50));
        return 0;
}

static double rounding_share(int scale_bits, uint64_t n)
{
        return ldexp(sqrt((double)n), -scale_bits - 1);
}

double mfl_central_weight(double clip, int scale_bits, uint64_t n, double norm2)
{
        return mfl_method_clip_factor(clip - rounding_share(scale_bits, n), norm2, n);
}

double mfl_central_divisor(const struct mfl_job *job)
{
        uint32_t clients = job->privacy.clients ? job->privacy.clients : job->data.clients;
        if (job->selection.kind == MFL_SELECT_SEPARATED)
                return job->selection.clients ? job->selection.clients
                                              : (double)clients / job->selection.separation;
        return mfl_job_rate(job) * clients;
}

int mfl_central_check(
        const struct mfl_job *job, const struct mfl_fixed *fixed, uint64_t n, struct mfl_error *err)
{
        if (!mfl_privacy_of_sums(&job->privacy))
                return 0;
        double share = rounding_share(fixed->scale_bits, n);
        uint64_t sigma;
        int r = mfl_central_sigma(job, fixed, clip_least(job), &sigma, err);
        if (r)
                return r;
        if (share > clip_least(job) / 2)
                return mfl_fail(err, MFL_INVALID,
                        "privacy.clip: %g is too short for %" PRIu64
                        " parameters: rounding alone may change a client's update by %g; write a larger "
                        "clip, or a "
                        "smaller aggregation.delta_max",
                        clip_least(job), n, share);
        if (sigma < SIGMA_MIN)
                return mfl_fail(err, MFL_INVALID,
                        "privacy: noise * clip is %g, only %" PRIu64
                        " units of the grid of sums, too few for noise that hides; write a smaller "
                        "aggregation.delta_max",
                        ldexp((double)sigma, -fixed->scale_bits), sigma);
        return 0;
}
