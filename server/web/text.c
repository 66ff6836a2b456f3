/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows, and the escapes of the formats that the server writes. */
#include "server/web/text.h"

#include <stdio.h>

#include "common/base/plain.h"

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
        mfl_assert(text->n + n < text->capacity);
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

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Appends s, with each ASCII character that `escape` has a text for replaced by that text. Text from peers
 * was cleaned when it arrived, but the database of an older release may hold text that was not. */
static void put_escaped(
        struct mfl_text *text, const char *s, const char *(*escape)(unsigned char c, char buf[8]))
{
        const char *plain = s;
        while (*s) {
                char buf[8];
                uint32_t code = 0;
                size_t n = mfl_plain_character(s, &code);
                const char *other = n == 1 ? escape((unsigned char)code, buf) : NULL;
                if (!other && (!n || mfl_plain_strange(code, true)))
                        other = REPLACEMENT;
                size_t step = n ? n : 1;
                if (other) {
                        mfl_text_bytes(text, plain, (size_t)(s - plain));
                        mfl_text_put(text, other);
                        plain = s + step;
                }
                s += step;
        }
        mfl_text_bytes(text, plain, (size_t)(s - plain));
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
        default:
                return NULL;
        }
}

/* The format is read line by line. */
static const char *escape_label(unsigned char c, char buf[8])
{
        return c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : c == '\t' ? REPLACEMENT : NULL;
}

void mfl_text_html(struct mfl_text *text, const char *s)
{
        put_escaped(text, s, escape_html);
}

void mfl_text_label(struct mfl_text *text, const char *s)
{
        put_escaped(text, s, escape_label);
}
