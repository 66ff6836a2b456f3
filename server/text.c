/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows, and the escapes of the formats that the server writes. */
#include "server/text.h"

#include <math.h>
#include <stdio.h>

#define FIRST_BYTES 1024

void mfl_text_deinit(struct mfl_text *text)
{
        free(text->v);
        *text = (struct mfl_text){NULL, 0, 0, false};
}

/* Room for n more and the terminator. */
static bool reserve(struct mfl_text *text, size_t n)
{
        size_t want = text->n + n + 1, capacity = text->capacity ? text->capacity : FIRST_BYTES;
        if (text->failed)
                return false;
        if (want <= text->capacity)
                return true;
        while (capacity < want)
                capacity *= 2;
        char *v = mfl_realloc(text->v, capacity);
        if (!v) {
                text->failed = true;
                return false;
        }
        text->v = v;
        text->capacity = capacity;
        return true;
}

void mfl_text_bytes(struct mfl_text *text, const void *bytes, size_t n)
{
        if (!reserve(text, n))
                return;
        memcpy(text->v + text->n, bytes, n);
        text->n += n;
        text->v[text->n] = '\0';
}

void mfl_text_put(struct mfl_text *text, const char *s)
{
        mfl_text_bytes(text, s, strlen(s));
}

void mfl_text_format(struct mfl_text *text, const char *fmt, ...)
{
        va_list ap, again;
        char small[128];
        va_start(ap, fmt);
        va_copy(again, ap);
        int n = vsnprintf(small, sizeof small, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof small)
                mfl_text_bytes(text, small, (size_t)n);
        else if (n >= 0 && reserve(text, (size_t)n))
                text->n += (size_t)vsnprintf(text->v + text->n, (size_t)n + 1, fmt, again);
        va_end(again);
}

/* ---- escapes ---- */

/* Bytes of the character that s begins with; 0: it is not UTF-8 (RFC 3629: no overlong forms, no surrogates,
 * nothing over U+10FFFF). */
static size_t character(const unsigned char *s)
{
        size_t n = *s < 0x80                 ? 1
                   : *s >= 0xc2 && *s < 0xe0 ? 2
                   : *s >= 0xe0 && *s < 0xf0 ? 3
                   : *s >= 0xf0 && *s < 0xf5 ? 4
                                             : 0;
        for (size_t i = 1; i < n; i++)
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
        if ((*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f) || (*s == 0xf0 && s[1] < 0x90) ||
                (*s == 0xf4 && s[1] > 0x8f))
                return 0;
        return n;
}

/* Appends s; of each ASCII character that `escape` gives a text for, that text. */
static void put_escaped(
        struct mfl_text *text, const char *s, const char *(*escape)(unsigned char c, char buf[8]))
{
        const unsigned char *p = (const unsigned char *)s, *plain = p;
        while (*p) {
                char buf[8];
                size_t n = character(p);
                const char *other = !n ? "\xef\xbf\xbd" : n == 1 ? escape(*p, buf) : NULL;
                if (!other) {
                        p += n;
                        continue;
                }
                mfl_text_bytes(text, plain, (size_t)(p - plain));
                mfl_text_put(text, other);
                plain = ++p;
        }
        mfl_text_bytes(text, plain, (size_t)(p - plain));
}

static const char *escape_html(unsigned char c, char buf[8])
{
        switch (c) {
        case '&':
                return "&amp;";
        case '<':
                return "&lt;";
        case '>':
                return "&gt;";
        case '"':
                return "&quot;";
        case '\'':
                return "&#39;";
        default: /* HTML has no way to write the other control characters */
                return c < ' ' && c != '\t' && c != '\n' ? "\xef\xbf\xbd" : NULL;
        }
}

static const char *escape_json(unsigned char c, char buf[8])
{
        if (c == '"')
                return "\\\"";
        if (c == '\\')
                return "\\\\";
        if (c >= ' ' && c != '<' && c != '>' && c != '&' && c != 0x7f)
                return NULL;
        snprintf(buf, 8, "\\u%04x", c);
        return buf;
}

static const char *escape_label(unsigned char c, char buf[8])
{
        return c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : NULL;
}

void mfl_text_html(struct mfl_text *text, const char *s)
{
        put_escaped(text, s, escape_html);
}

void mfl_text_json(struct mfl_text *text, const char *s)
{
        mfl_text_put(text, "\"");
        put_escaped(text, s, escape_json);
        mfl_text_put(text, "\"");
}

void mfl_text_json_double(struct mfl_text *text, double value)
{
        if (isfinite(value))
                mfl_text_format(text, "%.9g", value);
        else
                mfl_text_put(text, "null");
}

void mfl_text_label(struct mfl_text *text, const char *s)
{
        put_escaped(text, s, escape_label);
}
