/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the decoding of text. */
#include "common/data/sources.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint32_t *units;
        size_t n;
        struct mfl_error err;
        mfl_assert(mfl_text_decode(data, size, MFL_TEXT_BYTES, "fuzz", &units, &n, &err) == 0 && n == size);
        free(units);
        if (mfl_text_decode(data, size, MFL_TEXT_CHARACTERS, "fuzz", &units, &n, &err))
                return 0;
        for (size_t i = 0; i < n; i++)
                mfl_assert(units[i] <= 0x10ffff && (units[i] < 0xd800 || units[i] > 0xdfff));
        free(units);
        return 0;
}
