/* SPDX-License-Identifier: Apache-2.0 */
/* Privacy: the noise of a round's sum. It is added before anything reads the sum: what the round makes has it. */
#include "server/runtime/runtime_internal.h"

#include <math.h>
#include <unistd.h>

#include "common/method/central_grid.h"
#include "common/privacy/matrix.h"
#include "common/privacy/noise.h"

#define THREADS_MAX 4

/* Other clients may have the same sum, all zeros for instance, and other bits. */
int mfl_runtime_sum_digest(struct mfl_runtime *rt, const struct mfl_round_totals *totals,
        uint8_t ret_digest[MFL_DIGEST_BYTES], struct mfl_error *err)
{
        const double bits[] = {(double)totals->weight, totals->scalar[0]};
        struct mfl_sha256 sha = {0};
        mfl_ahead_undo(rt);
        if (rt->spec->secure.bits &&
                !totals->weight) /* skipped: what is there may be under masks, and is never used */
                memset(rt->sums, 0, rt->n * sizeof *rt->sums);
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, rt->sums, rt->n * sizeof *rt->sums, err);
        if (!r && rt->spec->privacy.adaptive)
                r = mfl_sha256_update(&sha, bits, sizeof bits, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}

void mfl_runtime_set_noise(struct mfl_runtime *rt, const struct mfl_secret *secret)
{
        rt->noise = *secret;
        rt->has_noise = true;
}

/* clip: adaptive. The sum of bits is a whole number; its noise is a whole number of 2^-s, sigma being at most 2^24 of these. */
static int add_bits_noise(struct mfl_runtime *rt, struct mfl_round_totals *totals, struct mfl_error *err)
{
        double sigma = mfl_central_bits_sigma(rt->spec);
        int s = MFL_MIN(16, 24 - (int)ceil(log2(sigma)));
        const struct mfl_noise noise = {.a = (uint64_t)ceil(ldexp(sigma, s)), .b = 1};
        struct mfl_secret secret;
        int64_t drawn = 0;
        int r = mfl_secret_derive(&rt->noise, "bits", "", 0, NULL, &secret, err);
        if (!r)
                r = mfl_noise_add(&noise, &secret, 1, 1, &drawn, err);
        totals->scalar[0] += ldexp((double)drawn, -s);
        return r;
}

/* The noise of this round, and of those before it whose noise it has, too: each round's follows from the job's secret and its number. */
static int add_correlated(
        struct mfl_runtime *rt, const struct mfl_noise *noise, uint32_t threads, struct mfl_error *err)
{
        const struct mfl_job *spec = rt->spec;
        MFL_CLEANUP_FREE struct mfl_matrix *matrix = NULL;
        MFL_CLEANUP_FREE struct mfl_secret *secrets = mfl_malloc(rt->round * sizeof *secrets);
        if (!secrets)
                return mfl_fail_memory(err, rt->round * sizeof *secrets, "noise");
        int r = mfl_matrix_new(
                spec->privacy.mechanism, spec->rounds, spec->selection.separation, &matrix, err);
        uint32_t n = r ? 0 : MFL_MIN(matrix->n, rt->round);
        for (uint32_t j = 0; j < n && !r; j++)
                r = mfl_secret_derive(&rt->noise, "round", "", rt->round - j, NULL, &secrets[j], err);
        return r ? r : mfl_noise_add_weighted(noise, secrets, matrix->v, n, rt->n, threads, rt->sums, err);
}

int mfl_runtime_add_noise(struct mfl_runtime *rt, struct mfl_round_totals *totals, struct mfl_error *err)
{
        double clip = mfl_central_clip(rt->spec, rt->numbers);
        struct mfl_noise noise = {.b = 1};
        long threads = rt->n_threads ? (long)rt->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
        mfl_assert(rt->has_noise && rt->sums); /* no sum leaves without */
        rt->has_noise = false;
        uint32_t n_threads = (uint32_t)MFL_MIN(MFL_MAX(threads, 1), (long)THREADS_MAX);
        int r = mfl_central_sigma(rt->spec, &rt->fixed, clip, &noise.a, err);
        if (!r && rt->spec->privacy.mechanism != MFL_MECHANISM_GAUSSIAN)
                return add_correlated(rt, &noise, n_threads, err);
        if (!r)
                r = rt->spec->privacy.adaptive ? add_bits_noise(rt, totals, err) : 0;
        return r ? r : mfl_noise_add(&noise, &rt->noise, rt->n, n_threads, rt->sums, err);
}
