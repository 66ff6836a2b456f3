/* SPDX-License-Identifier: Apache-2.0 */
/* The clients of partition `local`: sites. */
#include "common/base/digest.h"
#include "common/partition/partition.h"

int mfl_partition_site_client(
        const char *site, const char *daemon, uint64_t *ret_client, struct mfl_error *err)
{
        /* No name has a slash, so a site never has the number of a daemon that has none. */
        char text[2 * MFL_NAME_BYTES];
        uint8_t digest[MFL_SHA256_BYTES];
        mfl_snprintf(text, sizeof text, "%s%s", *site ? "site/" : "", *site ? site : daemon);
        int r = mfl_sha256(text, strlen(text), digest, err);
        if (!r)
                *ret_client = mfl_sha256_number(digest);
        return r;
}
