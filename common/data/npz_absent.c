/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libzip: refuses npz files, and says what to do. */
#include "common/data/sources.h"

int mfl_npz_open(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_npz **ret_npz,
        struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%s: this build cannot read npz, because it lacks libzip; it can read npy", path);
}

void mfl_npz_close(struct mfl_npz *npz)
{
}

const char *mfl_npz_comment(struct mfl_npz *npz, size_t *ret_n)
{
        *ret_n = 0;
        return "";
}

size_t mfl_npz_count(struct mfl_npz *npz)
{
        return 0;
}

int mfl_npz_read(
        struct mfl_npz *npz, const char *name, struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "this build cannot read npz");
}
