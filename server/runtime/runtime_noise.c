/* SPDX-License-Identifier: Apache-2.0 */
/* Privacy: the noise of a round's sum. It is added before anything reads the sum: what the round makes has it. */
#include "server/runtime/runtime_internal.h"

#include <unistd.h>

#include "common/method/central_grid.h"
#include "common/privacy/noise.h"

#define THREADS_MAX 4

int mfl_runtime_sum_digest(
        struct mfl_runtime *rt, uint8_t ret_digest[MFL_DIGEST_BYTES], struct mfl_error *err)
{
        mfl_ahead_undo(rt);
        return mfl_sha256(rt->sums, rt->n * sizeof *rt->sums, ret_digest, err);
}

void mfl_runtime_set_noise(struct mfl_runtime *rt, const struct mfl_secret *secret)
{
        rt->noise = *secret;
        rt->has_noise = true;
}

int mfl_runtime_add_noise(struct mfl_runtime *rt, struct mfl_error *err)
{
        struct mfl_noise noise = {.a = mfl_central_sigma(rt->spec, &rt->fixed), .b = 1};
        long threads = rt->n_threads ? (long)rt->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
        mfl_assert(rt->has_noise && rt->sums); /* no sum leaves without */
        rt->has_noise = false;
        return mfl_noise_add(&noise, &rt->noise, rt->n,
                (uint32_t)MFL_MIN(MFL_MAX(threads, 1), (long)THREADS_MAX), rt->sums, err);
}
