/* SPDX-License-Identifier: Apache-2.0 */
/* The frame header: 24 bytes, little-endian (mfl.proto, FRAMES). Pure. */
#ifndef MFL_PROTO_FRAME_H
#define MFL_PROTO_FRAME_H

#include "common/base/base.h"

#define MFL_FRAME_HEADER_BYTES 24
/* The version of the header's layout, which is not the protocol's version (version.h): it does not change when
 * messages are added. */
#define MFL_FRAME_VERSION 1

struct mfl_frame {
        uint16_t version;
        uint32_t envelope_bytes, payload_bytes, envelope_crc, payload_crc;
};

void mfl_frame_encode(const struct mfl_frame *frame, uint8_t ret_header[MFL_FRAME_HEADER_BYTES]);

/* Checks the first four bytes alone, so that a peer with another protocol, whose first message may be shorter than a
 * header, gets an answer at once. MFL_INVALID as below. */
int mfl_frame_check_magic(const uint8_t first[4], struct mfl_error *err);

/* Checks magic, version, flags and both sizes against the limits. MFL_INVALID says what was seen and expected
 * (an HTTP or TLS client on the port is named as such). */
int mfl_frame_decode(const uint8_t header[MFL_FRAME_HEADER_BYTES], uint32_t envelope_max,
        uint32_t payload_max, struct mfl_frame *ret_frame, struct mfl_error *err);

#endif
