/* SPDX-License-Identifier: Apache-2.0 */
/* npz files in a build without libzip: refused, with what to do. */
#include "common/data/sources.h"

int mfl_npz_open(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_npz **ret_npz,
        struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%s: this build reads no npz, for it was made without libzip; npy files it reads", path);
}

void mfl_npz_close(struct mfl_npz *npz)
{
}

bool mfl_npz_has(struct mfl_npz *npz, const char *name)
{
        return false;
}

int mfl_npz_read(
        struct mfl_npz *npz, const char *name, struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "this build reads no npz");
}
