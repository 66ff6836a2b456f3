/* SPDX-License-Identifier: Apache-2.0 */
/* Images in a build without libpng or libjpeg: refused, with what to do. */
#include "common/data/sources.h"

int mfl_image_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_rgb,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%s: this build reads no images, for it was made without libpng and libjpeg", path);
}
