/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a frame header: what is accepted keeps to the limits and encodes to the same bytes. */
#include "proto/frame.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
        uint8_t header[MFL_FRAME_HEADER_BYTES] = {0}, again[MFL_FRAME_HEADER_BYTES];
        struct mfl_frame f;
        struct mfl_error err;
        memcpy(header, data, MFL_MIN(n, sizeof header));
        if (mfl_frame_decode(header, MFL_ENVELOPE_MAX, MFL_PAYLOAD_MAX, &f, &err))
                return 0;
        mfl_assert(f.envelope_bytes >= 1 && f.envelope_bytes <= MFL_ENVELOPE_MAX);
        mfl_assert(f.payload_bytes <= MFL_PAYLOAD_MAX);
        mfl_frame_encode(&f, again);
        mfl_assert(!memcmp(header, again, sizeof header));
        return 0;
}
