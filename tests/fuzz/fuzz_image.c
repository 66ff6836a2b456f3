/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes PNG and JPEG, from bytes to a sample. */
#include "common/data/sources.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct mfl_shape shape = {3, {3, 5, 4}};
        struct mfl_error err;
        uint8_t *rgb, out[60];
        uint32_t width, height;
        if (mfl_image_decode(data, size, "fuzz", &rgb, &width, &height, &err))
                return 0;
        mfl_assert(width >= 1 && height >= 1 && (uint64_t)width * height <= MFL_IMAGE_PIXELS_MAX);
        mfl_assert(mfl_image_fit(rgb, width, height, &shape, out, &err) == 0);
        free(rgb);
        return 0;
}
