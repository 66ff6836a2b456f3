/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libpng or libjpeg: refuses images, and says what to do. */
#include "common/data/sources.h"

int mfl_image_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_rgb,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%s: this build cannot read images, because it lacks libpng and libjpeg", path);
}

int mfl_mask_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint16_t **ret_labels,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        return mfl_image_decode(bytes, n_bytes, path, NULL, ret_width, ret_height, err);
}
