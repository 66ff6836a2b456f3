/* SPDX-License-Identifier: Apache-2.0 */
#include "common/secure/shares.h"

#include <math.h>

#define SMALL 1e-9 /* of products that are whole numbers but for their rounding */

static uint32_t share_of(double share, uint32_t n)
{
        return (uint32_t)ceil(share * n - SMALL);
}

uint32_t mfl_secure_survivors(const struct mfl_secure_spec *spec, uint32_t n)
{
        return MFL_MAX(share_of(spec->least, n), MFL_SECURE_LEAST);
}

int mfl_secure_honest(
        const struct mfl_secure_spec *spec, uint32_t n, uint32_t *ret_honest, struct mfl_error *err)
{
        uint32_t survivors = mfl_secure_survivors(spec, n), bad = share_of(spec->bad, n);
        if (n > MFL_SECURE_SHARES_MOST)
                return mfl_fail(err, MFL_INVALID,
                        "%u participants, and noise in shares stands at most %u, who all share masks: write "
                        "selection: {clients: %u}, or privacy: {kind: local}",
                        n, MFL_SECURE_SHARES_MOST, MFL_SECURE_SHARES_MOST);
        if (survivors > n || survivors <= bad)
                return mfl_fail(err, MFL_INVALID,
                        "of %u participants %u may be all that are left, and %u of them may be bad, so that "
                        "nobody's noise is sure: write a larger limits.quorum, or a smaller secure_sum.bad",
                        n, MFL_MIN(survivors, n), bad);
        *ret_honest = survivors - bad;
        return 0;
}

uint64_t mfl_secure_share(uint64_t sigma, uint32_t honest)
{
        return (uint64_t)ceil((double)sigma / sqrt((double)honest) * (1 + 0x1p-50));
}
