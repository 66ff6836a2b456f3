/* SPDX-License-Identifier: Apache-2.0 */
/* Base64. See base64.h. */
#include "server/cluster/base64.h"

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t mfl_base64_room(size_t n)
{
        return (n + 2) / 3 * 4 + 1;
}

void mfl_base64_write(const void *bytes, size_t n, char *text)
{
        const uint8_t *p = bytes;
        for (; n; p += 3) {
                uint32_t v = (uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0) | (n > 2 ? p[2] : 0);
                *text++ = letters[v >> 18];
                *text++ = letters[v >> 12 & 63];
                *text++ = n > 1 ? letters[v >> 6 & 63] : '=';
                *text++ = n > 2 ? letters[v & 63] : '=';
                n -= MFL_MIN(n, (size_t)3);
        }
        *text = 0;
}

static int value_of(char c)
{
        const char *at = c ? strchr(letters, c) : NULL;
        return at ? (int)(at - letters) : -1;
}

bool mfl_base64_read(const char *text, size_t n, uint8_t *ret_bytes, size_t *ret_n)
{
        size_t pad = 0, at = 0;
        if (n % 4)
                return false;
        while (pad < 2 && pad < n && text[n - 1 - pad] == '=')
                pad++;
        uint32_t v = 0;
        for (size_t i = 0; i < n; i++) {
                int value = i < n - pad ? value_of(text[i]) : 0;
                if (value < 0)
                        return false;
                v = v << 6 | (uint32_t)value;
                if (i % 4 != 3)
                        continue;
                for (int shift = 16; shift >= 0 && at < n / 4 * 3 - pad; shift -= 8)
                        ret_bytes[at++] = (uint8_t)(v >> shift);
                v = 0;
        }
        *ret_n = at;
        return true;
}
