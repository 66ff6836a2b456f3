/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes idx files, plain and gzipped, from bytes to samples and labels. */
#include "common/data/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const uint8_t *bytes, size_t n)
{
        struct mfl_array array;
        struct mfl_error err;
        struct mfl_shape shape;
        enum mfl_dtype dtype;
        int32_t *labels = NULL;
        uint32_t count;
        if (mfl_idx_parse(bytes, n, "fuzz", &array, &err))
                return;
        if (mfl_array_to_labels(&array, bytes, "fuzz", &labels, &count, &err) == 0)
                mfl_assert(count == array.dim[0]);
        free(labels);
        uint8_t *own = malloc(n);
        mfl_assert(own);
        memcpy(own, bytes, n);
        if (mfl_array_to_samples(&array, own, NULL, "fuzz", &shape, &dtype, &count, &err) == 0)
                mfl_assert((uint64_t)mfl_shape_count(&shape) * count == array.count);
        free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t *plain;
        size_t n;
        use(data, size);
        if (mfl_is_gzip(data, size) && mfl_idx_inflate(data, size, "fuzz", &plain, &n, NULL) == 0) {
                use(plain, n);
                free(plain);
        }
        return 0;
}
