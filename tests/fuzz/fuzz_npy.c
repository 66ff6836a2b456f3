/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes npy files, from bytes to samples and labels. */
#include "common/data/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct mfl_array array;
        struct mfl_error err;
        struct mfl_shape shape;
        enum mfl_dtype dtype;
        int32_t *labels = NULL;
        uint32_t count;
        if (mfl_npy_parse(data, size, "fuzz", &array, &err))
                return 0;
        mfl_assert(array.offset + array.count * mfl_array_element_bytes(array.type) == size);
        if (mfl_array_to_labels(&array, data, "fuzz", &labels, &count, &err) == 0)
                mfl_assert(count == array.dim[0]);
        free(labels);
        uint8_t *own = malloc(size);
        mfl_assert(own);
        memcpy(own, data, size);
        if (mfl_array_to_samples(&array, own, NULL, "fuzz", &shape, &dtype, &count, &err) == 0)
                mfl_assert((uint64_t)mfl_shape_count(&shape) * count == array.count);
        free(own);
        return 0;
}
