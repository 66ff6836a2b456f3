/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the frame header between bytes and numbers. */
#include "proto/frame.h"

#include <ctype.h>
#include <endian.h>
#include <stdio.h>

static const uint8_t magic[4] = {'M', 'F', 'L', '1'};

static void put16(uint8_t *p, uint16_t v)
{
        v = htole16(v);
        memcpy(p, &v, sizeof v);
}

static void put32(uint8_t *p, uint32_t v)
{
        v = htole32(v);
        memcpy(p, &v, sizeof v);
}

static uint16_t get16(const uint8_t *p)
{
        uint16_t v;
        memcpy(&v, p, sizeof v);
        return le16toh(v);
}

static uint32_t get32(const uint8_t *p)
{
        uint32_t v;
        memcpy(&v, p, sizeof v);
        return le32toh(v);
}

void mfl_frame_encode(const struct mfl_frame *frame, uint8_t ret_header[MFL_FRAME_HEADER_BYTES])
{
        memcpy(ret_header, magic, sizeof magic);
        put16(ret_header + 4, frame->version);
        put16(ret_header + 6, 0);
        put32(ret_header + 8, frame->envelope_bytes);
        put32(ret_header + 12, frame->payload_bytes);
        put32(ret_header + 16, frame->envelope_crc);
        put32(ret_header + 20, frame->payload_crc);
}

/* Other protocols that reach the port: the message names them, so that the operator sees at once what is
 * misconfigured. */
static const char *guess_protocol(const uint8_t *b)
{
        static const char *const http[] = {
                "GET ", "POST", "HEAD", "PUT ", "OPTI", "HTTP", "CONN", "PRI ", "DELE"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(http); i++)
                if (!memcmp(b, http[i], 4))
                        return "; this looks like HTTP";
        if (b[0] == 0x16 && b[1] == 0x03)
                return "; this looks like TLS, which is not configured here";
        if (!memcmp(b, "SSH-", 4))
                return "; this looks like SSH";
        return "";
}

int mfl_frame_check_magic(const uint8_t first[4], struct mfl_error *err)
{
        char text[5] = {0};
        if (!memcmp(first, magic, sizeof magic))
                return 0;
        for (int i = 0; i < 4; i++)
                text[i] = isprint(first[i]) ? (char)first[i] : '.';
        return mfl_fail(err, MFL_INVALID,
                "frame: begins with %02x %02x %02x %02x (\"%s\"), expected 4d 46 4c 31 (\"MFL1\")%s",
                first[0], first[1], first[2], first[3], text, guess_protocol(first));
}

int mfl_frame_decode(const uint8_t header[MFL_FRAME_HEADER_BYTES], uint32_t envelope_max,
        uint32_t payload_max, struct mfl_frame *ret_frame, struct mfl_error *err)
{
        struct mfl_frame f = {
                .version = get16(header + 4),
                .envelope_bytes = get32(header + 8),
                .payload_bytes = get32(header + 12),
                .envelope_crc = get32(header + 16),
                .payload_crc = get32(header + 20),
        };
        int r = mfl_frame_check_magic(header, err);
        if (r)
                return r;
        if (f.version != MFL_FRAME_VERSION)
                return mfl_fail(err, MFL_INVALID, "frame: version %u; this program (mfl %s) reads %u: %s",
                        f.version, MFL_VERSION, MFL_FRAME_VERSION,
                        f.version > MFL_FRAME_VERSION ? "this side is too old" : "the peer is too old");
        if (get16(header + 6))
                return mfl_fail(err, MFL_INVALID, "frame: flags 0x%04x, expected 0", get16(header + 6));
        if (!f.envelope_bytes || f.envelope_bytes > envelope_max)
                return mfl_fail(err, MFL_INVALID, "frame: envelope of %u bytes, expected 1 to %u",
                        f.envelope_bytes, envelope_max);
        if (f.payload_bytes > payload_max)
                return mfl_fail(err, MFL_INVALID, "frame: payload of %u bytes, expected at most %u",
                        f.payload_bytes, payload_max);
        if (!f.payload_bytes && f.payload_crc)
                return mfl_fail(err, MFL_INVALID,
                        "frame: payload checksum %08x without a payload, expected 0", f.payload_crc);
        *ret_frame = f;
        return 0;
}
