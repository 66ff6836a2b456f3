/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as bytes: JSON texts and numbers, and the head in front of them. */
#include "serve/http/reply.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "common/base/plain.h"

#define FIRST_BYTES 1536u

void mfl_reply_deinit(struct mfl_reply *reply)
{
        free(reply->v);
        *reply = (struct mfl_reply){0};
}

char *mfl_reply_reserve(struct mfl_reply *reply, size_t n)
{
        size_t room = reply->room ? reply->room : FIRST_BYTES;
        if (reply->failed)
                return NULL;
        if (!reply->n)
                reply->n = MFL_REPLY_HEAD_BYTES;
        while (room - reply->n < n)
                room *= 2;
        if (room > reply->room) {
                char *grown = mfl_realloc(reply->v, room);
                if (!grown) {
                        reply->failed = true;
                        return NULL;
                }
                reply->v = grown;
                reply->room = room;
        }
        return reply->v + reply->n;
}

void mfl_reply_bytes(struct mfl_reply *reply, const void *bytes, size_t n)
{
        char *at = mfl_reply_reserve(reply, n);
        if (!at || !n)
                return;
        memcpy(at, bytes, n);
        reply->n += n;
}

void mfl_reply_put(struct mfl_reply *reply, const char *text)
{
        mfl_reply_bytes(reply, text, strlen(text));
}

void mfl_reply_format(struct mfl_reply *reply, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        char small[512];
        int n = vsnprintf(small, sizeof small, fmt, ap);
        va_end(ap);
        mfl_assert(n >= 0 && (size_t)n < sizeof small);
        mfl_reply_bytes(reply, small, (size_t)n);
}

void mfl_reply_string(struct mfl_reply *reply, const char *text)
{
        mfl_reply_put(reply, "\"");
        while (*text) {
                uint32_t code;
                size_t n = mfl_plain_character(text, &code);
                if (!n || mfl_plain_strange(code, false))
                        mfl_reply_put(reply, "?");
                else if (code == '"' || code == '\\')
                        mfl_reply_format(reply, "\\%c", (char)code);
                else
                        mfl_reply_bytes(reply, text, n);
                text += n ? n : 1;
        }
        mfl_reply_put(reply, "\"");
}

/* ---- numbers ---- */

static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
        1e14, 1e15, 1e16, 1e17, 1e18};

/* Digits of v without zeros at the end, and the point `decimals` digits from there. */
static size_t write_decimal(uint64_t v, int decimals, char *out)
{
        char digits[24];
        int n = 0;
        size_t k = 0;
        while (decimals > 0 && v % 10 == 0) {
                v /= 10;
                decimals--;
        }
        do {
                digits[n++] = (char)('0' + v % 10);
                v /= 10;
        } while (v || n <= decimals);
        while (n) {
                if (n == decimals)
                        out[k++] = '.';
                out[k++] = digits[--n];
        }
        return k;
}

/* Nine significant digits tell every float from its neighbours; often seven or eight do. a is in [1e-5, 1e9), so that the
 * scaled value is below 2^30 and a double's error far below half a digit. */
static size_t write_plain(float a, char *out)
{
        int decimals = 8; /* for 9 digits */
        for (double limit = 10; decimals > 0 && (double)a >= limit; limit *= 10)
                decimals--;
        for (double limit = 1; (double)a < limit; limit /= 10)
                decimals++;
        for (int fewer = MFL_MIN(2, decimals); fewer > 0; fewer--) {
                const double power = powers[decimals - fewer];
                const long long v = llrint((double)a * power);
                if ((float)((double)v / power) == a)
                        return write_decimal((uint64_t)v, decimals - fewer, out);
        }
        return write_decimal((uint64_t)llrint((double)a * powers[decimals]), decimals, out);
}

/* The fewest of seven to nine digits that read back. */
static size_t write_scientific(float a, char *out)
{
        int n = 0;
        for (int digits = 7; digits <= 9; digits++) {
                n = snprintf(out, 32, "%.*g", digits, (double)a);
                if (strtof(out, NULL) == a)
                        break;
        }
        return (size_t)n;
}

void mfl_reply_float(struct mfl_reply *reply, float value)
{
        char *at = mfl_reply_reserve(reply, 40);
        if (!at)
                return;
        const float a = fabsf(value);
        size_t k = 0;
        if (signbit(value))
                at[k++] = '-';
        if (a == 0)
                at[k++] = '0';
        else if (a >= 1e-5f && a < 1e9f)
                k += write_plain(a, at + k);
        else
                k += write_scientific(a, at + k);
        reply->n += k;
}

size_t mfl_reply_body_bytes(const struct mfl_reply *reply)
{
        return reply->n > MFL_REPLY_HEAD_BYTES ? reply->n - MFL_REPLY_HEAD_BYTES : 0;
}

/* ---- head ---- */

static const char *reason_of(int status)
{
        static const struct {
                int status;
                const char *reason;
        } reasons[] = {{200, "OK"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"},
                {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"},
                {413, "Content Too Large"}, {414, "URI Too Long"}, {415, "Unsupported Media Type"},
                {417, "Expectation Failed"}, {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
                {501, "Not Implemented"}, {503, "Service Unavailable"}, {504, "Gateway Timeout"},
                {505, "HTTP Version Not Supported"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(reasons); i++)
                if (reasons[i].status == status)
                        return reasons[i].reason;
        return "Error";
}

bool mfl_reply_finish(struct mfl_reply *reply, const struct mfl_reply_head *head)
{
        char text[MFL_REPLY_HEAD_BYTES];
        if (!mfl_reply_reserve(reply, 0))
                return false;
        const int n = snprintf(text, sizeof text,
                "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%s%sContent-Length: %zu\r\n%s\r\n", head->status,
                reason_of(head->status), head->date, head->type ? "Content-Type: " : "",
                head->type ? head->type : "", head->type ? "\r\n" : "", head->more ? head->more : "",
                mfl_reply_body_bytes(reply),
                head->close  ? "Connection: close\r\n"
                : head->stay ? "Connection: keep-alive\r\n"
                             : "");
        mfl_assert(n > 0 && (size_t)n < sizeof text);
        if (head->no_body)
                reply->n = MFL_REPLY_HEAD_BYTES;
        reply->begin = MFL_REPLY_HEAD_BYTES - (size_t)n;
        memcpy(reply->v + reply->begin, text, (size_t)n);
        return true;
}

void mfl_reply_date(int64_t unix_s, char date[MFL_REPLY_DATE_BYTES])
{
        static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
        const time_t t = (time_t)unix_s;
        struct tm tm;
        gmtime_r(&t, &tm);
        snprintf(date, MFL_REPLY_DATE_BYTES, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + tm.tm_wday * 3,
                tm.tm_mday, months + tm.tm_mon * 3, (tm.tm_year + 1900) % 10000, tm.tm_hour, tm.tm_min,
                tm.tm_sec);
}
