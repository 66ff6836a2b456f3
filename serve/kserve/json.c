/* SPDX-License-Identifier: Apache-2.0 */
/* JSON read in one pass: a place in the text that moves, and functions that expect something there. */
#include "serve/kserve/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "common/base/plain.h"
#include "serve/kserve/number.h"

#define ROOM_FIRST 256u

void mfl_scan_open(struct mfl_scan *json, const char *text, size_t n, struct mfl_error *err)
{
        *json = (struct mfl_scan){.begin = text, .at = text, .end = text + n, .err = err};
}

int mfl_scan_fail(struct mfl_scan *json, const char *fmt, ...)
{
        char text[300];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        return mfl_fail(
                json->err, MFL_INVALID, "JSON, at byte %zu: %s", (size_t)(json->at - json->begin), text);
}

char mfl_scan_peek(struct mfl_scan *json)
{
        while (json->at < json->end &&
                (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r'))
                json->at++;
        return json->at < json->end ? *json->at : '\0';
}

static int fail_expected(struct mfl_scan *json, const char *expected)
{
        const char c = mfl_scan_peek(json);
        if (json->at == json->end)
                return mfl_scan_fail(json, "expected %s, but the text ends here", expected);
        const bool signed_word = c == '-' && json->end - json->at > 1 && json->at[1] == 'I';
        if (c == 'N' || c == 'I' || signed_word)
                return mfl_scan_fail(json, "expected %s; JSON has no NaN and no Infinity", expected);
        return c > ' ' && c < 0x7f ? mfl_scan_fail(json, "expected %s, got '%c'", expected, c)
                                   : mfl_scan_fail(json, "expected %s", expected);
}

int mfl_scan_expect(struct mfl_scan *json, char c)
{
        const char name[] = {'\'', c, '\'', '\0'};
        if (mfl_scan_peek(json) != c || json->at == json->end)
                return fail_expected(json, name);
        json->at++;
        return 0;
}

int mfl_scan_next(struct mfl_scan *json, char close, uint32_t i, bool *ret_more)
{
        if (mfl_scan_peek(json) == close) {
                json->at++;
                *ret_more = false;
                return 0;
        }
        *ret_more = true;
        return i ? mfl_scan_expect(json, ',') : 0;
}

int mfl_scan_end(struct mfl_scan *json)
{
        mfl_scan_peek(json);
        return json->at == json->end ? 0 : mfl_scan_fail(json, "something follows the end");
}

/* ---- strings ---- */

static int read_hex(struct mfl_scan *json, uint32_t *ret_code)
{
        uint32_t code = 0;
        for (int i = 0; i < 4; i++, json->at++) {
                const char c = json->at < json->end ? *json->at : '\0';
                const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
                if (!letter && !(c >= '0' && c <= '9'))
                        return mfl_scan_fail(json, "expected four hexadecimal digits after '\\u'");
                code = code * 16 + (uint32_t)(letter ? (c | 0x20) - 'a' + 10 : c - '0');
        }
        *ret_code = code;
        return 0;
}

/* What follows a backslash, as a code point. */
static int read_escape(struct mfl_scan *json, uint32_t *ret_code)
{
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char c = json->at < json->end ? *json->at : '\0';
        const char *at = c ? strchr(from, c) : NULL;
        uint32_t code = 0, low = 0;
        if (at) {
                json->at++;
                *ret_code = (unsigned char)to[at - from];
                return 0;
        }
        if (c != 'u')
                return mfl_scan_fail(json, "unknown escape in a string");
        json->at++;
        int r = read_hex(json, &code);
        if (r)
                return r;
        if (code >= 0xd800 && code < 0xdc00 && json->end - json->at >= 2 && json->at[0] == '\\' &&
                json->at[1] == 'u') {
                json->at += 2;
                r = read_hex(json, &low);
                if (r)
                        return r;
                if (low >= 0xdc00 && low < 0xe000) {
                        *ret_code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                        return 0;
                }
        }
        if ((code >= 0xd800 && code < 0xe000) || !code)
                return mfl_scan_fail(json, "half a surrogate pair, or a NUL, in a string");
        *ret_code = code;
        return 0;
}

static size_t encode(uint32_t code, char out[4])
{
        if (code < 0x80) {
                out[0] = (char)code;
                return 1;
        }
        const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        static const uint8_t heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t i = n - 1; i; i--, code >>= 6)
                out[i] = (char)(0x80 | (code & 0x3f));
        out[0] = (char)(heads[n] | code);
        return n;
}

int mfl_scan_string(struct mfl_scan *json, char *ret_text, size_t bytes)
{
        size_t n = 0;
        if (mfl_scan_peek(json) != '"')
                return fail_expected(json, "a string");
        json->at++;
        while (json->at < json->end && *json->at != '"') {
                char one[4] = {*json->at++};
                size_t k = 1;
                uint32_t code = 0;
                if (one[0] == '\\') {
                        const int r = read_escape(json, &code);
                        if (r)
                                return r;
                        k = encode(code, one);
                } else if ((unsigned char)one[0] < ' ') {
                        return mfl_scan_fail(json, "a control character in a string");
                }
                if (n + k >= bytes)
                        return mfl_scan_fail(json, "a string is longer than %zu bytes", bytes - 1);
                memcpy(ret_text + n, one, k);
                n += k;
        }
        if (json->at == json->end)
                return mfl_scan_fail(json, "a string does not end");
        json->at++;
        ret_text[n] = '\0';
        return mfl_plain_utf8(ret_text) ? 0 : mfl_scan_fail(json, "a string is not UTF-8");
}

int mfl_scan_key(struct mfl_scan *json, char *ret_key, size_t bytes)
{
        const int r = mfl_scan_string(json, ret_key, bytes);
        return r ? r : mfl_scan_expect(json, ':');
}

/* ---- scalars ---- */

int mfl_scan_number(struct mfl_scan *json, double *ret_value)
{
        mfl_scan_peek(json);
        const size_t n = mfl_number_read(json->at, (size_t)(json->end - json->at), ret_value);
        if (!n)
                return fail_expected(json, "a number as JSON writes it, in at most 400 characters");
        json->at += n;
        return 0;
}

int mfl_scan_whole(struct mfl_scan *json, uint64_t max, uint64_t *ret_value)
{
        double value;
        const int r = mfl_scan_number(json, &value);
        if (r)
                return r;
        if (!(value >= 0 && value <= (double)max && value == floor(value) && value <= 0x1p53))
                return mfl_scan_fail(json, "expected a whole number from 0 to %llu", (unsigned long long)max);
        *ret_value = (uint64_t)value;
        return 0;
}

int mfl_scan_bool(struct mfl_scan *json, bool *ret_value)
{
        const char c = mfl_scan_peek(json);
        const char *word = c == 't' ? "true" : "false";
        const size_t n = strlen(word);
        if ((size_t)(json->end - json->at) < n || memcmp(json->at, word, n))
                return fail_expected(json, "true or false");
        json->at += n;
        *ret_value = c == 't';
        return 0;
}

/* ---- tensors ---- */

size_t mfl_tensor_bytes(enum mfl_tensor_type type)
{
        return type == MFL_TENSOR_U8 ? 1 : 4;
}

const char *mfl_tensor_name(enum mfl_tensor_type type)
{
        return type == MFL_TENSOR_F32 ? "FP32" : type == MFL_TENSOR_U8 ? "UINT8" : "INT32";
}

static int make_room(struct mfl_scan *json, struct mfl_scan_tensor *tensor)
{
        if (tensor->n == tensor->n_max)
                return mfl_scan_fail(json, "more than %zu numbers", tensor->n_max);
        const size_t room = MFL_MIN(MFL_MAX(tensor->room * 2, ROOM_FIRST), tensor->n_max);
        void *grown = mfl_realloc(tensor->v, room * mfl_tensor_bytes(tensor->type));
        if (!grown)
                return mfl_fail_memory(json->err, room * mfl_tensor_bytes(tensor->type), "a tensor");
        tensor->v = grown;
        tensor->room = room;
        return 0;
}

static int add_number(struct mfl_scan *json, struct mfl_scan_tensor *tensor)
{
        double value;
        int r = mfl_scan_number(json, &value);
        if (!r && tensor->n == tensor->room)
                r = make_room(json, tensor);
        if (r)
                return r;
        const size_t i = tensor->n++;
        switch (tensor->type) {
        case MFL_TENSOR_F32:
                if (!(fabs(value) <= (double)FLT_MAX) && isinf((float)value))
                        return mfl_scan_fail(json, "a number is too large for FP32");
                ((float *)tensor->v)[i] = (float)value;
                return 0;
        case MFL_TENSOR_U8:
                if (!(value >= 0 && value <= 255 && value == floor(value)))
                        return mfl_scan_fail(json, "expected a whole number from 0 to 255 (UINT8)");
                ((uint8_t *)tensor->v)[i] = (uint8_t)value;
                return 0;
        default:
                if (!(value >= INT32_MIN && value <= INT32_MAX && value == floor(value)))
                        return mfl_scan_fail(json, "expected a whole number of 32 bits (INT32)");
                ((int32_t *)tensor->v)[i] = (int32_t)value;
                return 0;
        }
}

/* An array at this depth has ended with `count` elements. */
static int note_length(
        struct mfl_scan *json, struct mfl_scan_tensor *tensor, bool *known, uint32_t depth, size_t count)
{
        if (known[depth] && tensor->dim[depth] != count)
                return mfl_scan_fail(json, "arrays beside each other have %zu and %zu elements",
                        tensor->dim[depth], count);
        known[depth] = true;
        tensor->dim[depth] = count;
        return 0;
}

int mfl_scan_tensor(struct mfl_scan *json, struct mfl_scan_tensor *tensor)
{
        bool known[MFL_SCAN_DEPTH_MAX] = {false}, more;
        size_t count[MFL_SCAN_DEPTH_MAX] = {0};
        uint32_t depth = 0; /* of the array that we are in; its elements are numbers if depth + 1 == rank */
        int r = mfl_scan_expect(json, '[');
        tensor->rank = 0;
        while (!r) {
                r = mfl_scan_next(json, ']', (uint32_t)(count[depth] != 0), &more);
                if (!r && !more) {
                        r = note_length(json, tensor, known, depth, count[depth]);
                        if (!depth)
                                break;
                        depth--;
                        continue;
                }
                if (r)
                        break;
                count[depth]++;
                const bool nested = mfl_scan_peek(json) == '[';
                if (!nested && !tensor->rank)
                        tensor->rank = depth + 1;
                if (tensor->rank && nested != (depth + 1 < tensor->rank))
                        r = mfl_scan_fail(json, "numbers and arrays beside each other");
                else if (!nested)
                        r = add_number(json, tensor);
                else if (depth + 1 == MFL_SCAN_DEPTH_MAX)
                        r = mfl_scan_fail(json, "arrays are nested deeper than %d", MFL_SCAN_DEPTH_MAX);
                else {
                        json->at++;
                        count[++depth] = 0;
                }
        }
        return r;
}
