/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes npz archives, from bytes to the npy file of array x. */
#include "common/data/sources.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const char *const names[] = {"x", "x_train", "y"};
        struct mfl_npz *npz;
        struct mfl_error err;
        if (mfl_npz_open(data, size, "fuzz", &npz, &err))
                return 0;
        for (int i = 0; i < 3; i++) {
                struct mfl_data_bytes bytes;
                struct mfl_array array;
                if (mfl_npz_read(npz, names[i], &bytes, &err))
                        continue;
                if (mfl_npy_parse(bytes.data, bytes.n, "fuzz", &array, &err) == 0)
                        mfl_assert(
                                array.offset + array.count * mfl_array_element_bytes(array.type) == bytes.n);
                free(bytes.data);
        }
        mfl_npz_close(npz);
        return 0;
}
