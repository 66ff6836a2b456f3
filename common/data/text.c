/* SPDX-License-Identifier: Apache-2.0 */
/* Text as units: the code points of UTF-8, or bytes. */
#include "common/data/sources.h"

/* One code point (RFC 3629: no surrogates, no overlong forms); 0 bytes if it is invalid. */
static size_t take_code_point(const uint8_t *s, size_t n, uint32_t *ret_point)
{
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t bytes = *s < 0x80             ? 1
                       : (*s & 0xe0) == 0xc0 ? 2
                       : (*s & 0xf0) == 0xe0 ? 3
                       : (*s & 0xf8) == 0xf0 ? 4
                                             : 0;
        if (!bytes || bytes > n)
                return 0;
        uint32_t v = bytes == 1 ? *s : *s & (0x7fu >> bytes);
        for (size_t i = 1; i < bytes; i++) {
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
                v = v << 6 | (s[i] & 0x3f);
        }
        if (v < least[bytes] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
                return 0;
        *ret_point = v;
        return bytes;
}

int mfl_text_decode(const uint8_t *bytes, size_t n_bytes, enum mfl_text_unit unit, const char *path,
        uint32_t **ret_units, size_t *ret_n, struct mfl_error *err)
{
        uint32_t *units = mfl_calloc(MFL_MAX(n_bytes, 1), sizeof *units);
        size_t n = 0;
        if (!units)
                return mfl_fail_memory(err, n_bytes * sizeof *units, path);
        for (size_t at = 0; at < n_bytes; n++) {
                size_t used = 1;
                if (unit == MFL_TEXT_BYTES)
                        units[n] = bytes[at];
                else
                        used = take_code_point(bytes + at, n_bytes - at, &units[n]);
                if (!used) {
                        free(units);
                        return mfl_fail(err, MFL_INVALID,
                                "%s: byte 0x%02x at offset %zu is not UTF-8; unit: bytes accepts any text",
                                path, bytes[at], at);
                }
                at += used;
        }
        *ret_units = units;
        *ret_n = n;
        return 0;
}
