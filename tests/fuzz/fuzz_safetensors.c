/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused or read, never a crash, never "this process can't go on". */
#include "common/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct mfl_st_file *file = NULL;
        struct mfl_error err;
        int r = mfl_st_parse(data, size, "fuzz", &file, &err);
        mfl_assert(r >= 0);
        mfl_assert((r == 0) == (file != NULL));
        for (int i = 0; file && i < mfl_st_count(file); i++) {
                const struct mfl_st_tensor *tensor = mfl_st_tensor_at(file, i);
                mfl_assert(mfl_st_find(file, tensor->name) == tensor);
                volatile float sink = 0;
                for (uint64_t k = 0; k < tensor->count; k++)
                        sink = tensor->data[k];
                (void)sink;
        }
        mfl_st_close(file);
        return 0;
}
