/* SPDX-License-Identifier: Apache-2.0 */
/* Which characters may be shown, and how text is cleaned of the others. */
#include "common/base/plain.h"

size_t mfl_plain_character(const char *s, uint32_t *ret_code)
{
        const uint8_t *p = (const uint8_t *)s;
        uint8_t c = *p;
        size_t n = c < 0x80 ? c != 0 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
        uint32_t code = n < 2 ? c : c & (0xffu >> (n + 1));
        for (size_t i = 1; i < n; i++) {
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
                code = code << 6 | (p[i] & 0x3f);
        }
        if ((n == 3 && code < 0x800) || (n == 4 && (code < 0x10000 || code > 0x10ffff)) ||
                (code >= 0xd800 && code <= 0xdfff))
                return 0;
        if (n)
                *ret_code = code;
        return n;
}

bool mfl_plain_utf8(const char *text)
{
        uint32_t code;
        while (*text) {
                size_t n = mfl_plain_character(text, &code);
                if (!n)
                        return false;
                text += n;
        }
        return true;
}

bool mfl_plain_strange(uint32_t code, bool lines)
{
        static const struct {
                uint32_t first, last;
        } ranges[] = {
                {0x00, 0x1f},       /* C0 */
                {0x7f, 0x9f},       /* DEL, C1 */
                {0x61c, 0x61c},     /* Arabic letter mark */
                {0x180e, 0x180e},   /* Mongolian vowel separator */
                {0x200b, 0x200b},   /* zero-width space */
                {0x200e, 0x200f},   /* marks of direction */
                {0x2028, 0x202e},   /* line and paragraph separators; embeddings and overrides */
                {0x2060, 0x206f},   /* word joiner, invisible operators, isolates, deprecated controls */
                {0xfeff, 0xfeff},   /* byte order mark */
                {0xfff9, 0xfffb},   /* interlinear annotations */
                {0xe0000, 0xe007f}, /* tags */
        };
        if (lines && (code == '\n' || code == '\t'))
                return false;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(ranges); i++)
                if (code >= ranges[i].first && code <= ranges[i].last)
                        return true;
        return false;
}

const char *mfl_plain_find(const char *text, bool lines, uint32_t *ret_code)
{
        while (*text) {
                uint32_t code = (uint8_t)*text;
                size_t n = mfl_plain_character(text, &code);
                if (!n || mfl_plain_strange(code, lines)) {
                        *ret_code = code;
                        return text;
                }
                text += n;
        }
        return NULL;
}

void mfl_plain_clean(char *text, bool lines)
{
        char *to = text;
        uint32_t code;
        while (*text) {
                size_t n = mfl_plain_character(text, &code);
                bool strange = !n || mfl_plain_strange(code, lines);
                if (strange) {
                        *to++ = '?';
                } else {
                        memmove(to, text, n);
                        to += n;
                }
                text += n ? n : 1;
        }
        *to = '\0';
}

bool mfl_plain_name(const char *text)
{
        size_t n = strlen(text);
        for (size_t i = 0; i < n; i++)
                if (text[i] < ' ' || text[i] > '~')
                        return false;
        return !n || (text[0] != ' ' && text[n - 1] != ' ');
}
