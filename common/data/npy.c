/* SPDX-License-Identifier: Apache-2.0 */
/* npy files from bytes in memory: the header is a Python dictionary, accepted only in its documented form. */
#include "common/data/formats.h"

#include <stdio.h>

/* A header has three keys; numpy itself refuses more than 10,000 characters by default. */
#define HEADER_BYTES_MAX 65536

struct cursor {
        const char *at, *end;
        const char *path;
        struct mfl_error *err;
};

static void skip_spaces(struct cursor *c)
{
        while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
                c->at++;
}

static bool take(struct cursor *c, char wanted)
{
        skip_spaces(c);
        if (c->at == c->end || *c->at != wanted)
                return false;
        c->at++;
        return true;
}

static bool take_word(struct cursor *c, const char *word)
{
        size_t len = strlen(word);
        skip_spaces(c);
        if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len) != 0)
                return false;
        c->at += len;
        return true;
}

static int fail_at(struct cursor *c, const char *wanted)
{
        int rest = (int)MFL_MIN(c->end - c->at, 16);
        char seen[17] = "";
        for (int i = 0; i < rest; i++) /* a header may hold anything; a message is one printable line */
                seen[i] = c->at[i] >= 32 && c->at[i] < 127 ? c->at[i] : '?';
        return mfl_fail(c->err, MFL_INVALID, "%s: npy header: %s expected at \"%s\"", c->path, wanted, seen);
}

/* A quoted string without escapes. */
static int take_string(struct cursor *c, const char *what, char *buf, size_t buf_bytes)
{
        char quote = take(c, '\'') ? '\'' : take(c, '"') ? '"' : 0;
        size_t n = 0;
        if (!quote)
                return fail_at(c, what);
        while (c->at < c->end && *c->at != quote) {
                if (n + 1 >= buf_bytes || *c->at < 32 || *c->at >= 127 || *c->at == '\\')
                        return fail_at(c, what);
                buf[n++] = *c->at++;
        }
        if (c->at == c->end)
                return fail_at(c, what);
        c->at++;
        buf[n] = '\0';
        return 0;
}

static int take_descr(struct cursor *c, struct mfl_array *array)
{
        static const struct {
                const char *name;
                enum mfl_array_type type;
        } types[] = {
                {"|u1", MFL_ARRAY_U8},
                {"<u1", MFL_ARRAY_U8},
                {"u1", MFL_ARRAY_U8},
                {"|i1", MFL_ARRAY_I8},
                {"<i1", MFL_ARRAY_I8},
                {"i1", MFL_ARRAY_I8},
                {"<i4", MFL_ARRAY_I32},
                {"<i8", MFL_ARRAY_I64},
                {"<f4", MFL_ARRAY_F32},
                {"<f8", MFL_ARRAY_F64},
        };
        char descr[16];
        skip_spaces(c);
        if (c->at < c->end && *c->at == '[')
                return mfl_fail(c->err, MFL_INVALID,
                        "%s: a structured array; expected one plain type: u1, <f4, <f8, and for labels i1, "
                        "<i4, <i8",
                        c->path);
        int r = take_string(c, "the type's name", descr, sizeof descr);
        if (r)
                return r;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(types); i++) {
                if (!strcmp(types[i].name, descr)) {
                        array->type = types[i].type;
                        return 0;
                }
        }
        const char *why = !strcmp(descr, "|O") || !strcmp(descr, "O") ? " (Python objects)"
                          : descr[0] == '>'                           ? " (big endian)"
                                                                      : "";
        return mfl_fail(c->err, MFL_INVALID,
                "%s: type '%s'%s is not supported; convert it with astype to u1, <f4, <f8, or for labels i1, "
                "<i4, <i8",
                c->path, descr, why);
}

static int take_order(struct cursor *c, struct mfl_array *array)
{
        if (take_word(c, "False"))
                return 0;
        if (take_word(c, "True"))
                return mfl_fail(c->err, MFL_INVALID,
                        "%s: fortran_order is True; save it in C order, with numpy.ascontiguousarray",
                        c->path);
        return fail_at(c, "True or False");
}

static int take_number(struct cursor *c, uint64_t *ret_number)
{
        uint64_t v = 0;
        skip_spaces(c);
        const char *from = c->at;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
                if (__builtin_mul_overflow(v, 10, &v) ||
                        __builtin_add_overflow(v, (uint64_t)(*c->at - '0'), &v))
                        return mfl_fail(c->err, MFL_INVALID, "%s: a dimension is above 2^64", c->path);
        if (c->at == from)
                return fail_at(c, "a dimension");
        *ret_number = v;
        return 0;
}

static int take_shape(struct cursor *c, struct mfl_array *array)
{
        array->rank = 0;
        if (!take(c, '('))
                return fail_at(c, "the shape's \"(\"");
        while (!take(c, ')')) {
                if (array->rank == MFL_ARRAY_RANK_MAX)
                        return mfl_fail(c->err, MFL_INVALID, "%s: more than %d dimensions", c->path,
                                MFL_ARRAY_RANK_MAX);
                int r = take_number(c, &array->dim[array->rank]);
                if (r)
                        return r;
                array->rank++;
                if (!take(c, ',')) {
                        /* (3) is a number in Python, a tuple of one is (3,). */
                        if (array->rank == 1 || !take(c, ')'))
                                return fail_at(c, "\",\" or \")\" in the shape");
                        break;
                }
        }
        if (!array->rank)
                return mfl_fail(
                        c->err, MFL_INVALID, "%s: shape () is a single number, not a data set", c->path);
        return 0;
}

static int take_entry(struct cursor *c, struct mfl_array *array, unsigned *seen)
{
        static const struct {
                const char *key;
                int (*take)(struct cursor *c, struct mfl_array *array);
        } keys[] = {{"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape}};
        char key[16];
        int r = take_string(c, "a key", key, sizeof key);
        if (r)
                return r;
        if (!take(c, ':'))
                return fail_at(c, "\":\"");
        for (unsigned i = 0; i < MFL_ARRAY_SIZE(keys); i++) {
                if (strcmp(keys[i].key, key))
                        continue;
                if (*seen & 1u << i)
                        return mfl_fail(c->err, MFL_INVALID, "%s: npy header: %s twice", c->path, key);
                *seen |= 1u << i;
                return keys[i].take(c, array);
        }
        return mfl_fail(c->err, MFL_INVALID,
                "%s: npy header: unknown key '%s'; expected descr, fortran_order and shape", c->path, key);
}

static int take_dictionary(struct cursor *c, struct mfl_array *array)
{
        unsigned seen = 0;
        if (!take(c, '{'))
                return fail_at(c, "\"{\"");
        while (!take(c, '}')) {
                int r = take_entry(c, array, &seen);
                if (r)
                        return r;
                if (!take(c, ',')) {
                        if (!take(c, '}'))
                                return fail_at(c, "\",\" or \"}\"");
                        break;
                }
        }
        if (seen != 7)
                return mfl_fail(c->err, MFL_INVALID, "%s: npy header without %s", c->path,
                        !(seen & 1) ? "descr"
                        : seen & 2  ? "shape"
                                    : "fortran_order");
        skip_spaces(c);
        if (c->end - c->at != 1 || *c->at != '\n')
                return fail_at(c, "spaces and a line end after \"}\"");
        return 0;
}

int mfl_npy_parse(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_array *ret_array,
        struct mfl_error *err)
{
        if (n_bytes < 10 || memcmp(bytes, "\x93NUMPY", 6))
                return mfl_fail(err, MFL_INVALID,
                        "%s: not an npy file: it does not begin with \\x93NUMPY and a version", path);
        unsigned major = bytes[6], minor = bytes[7];
        if (major < 1 || major > 3 || minor)
                return mfl_fail(err, MFL_INVALID,
                        "%s: npy version %u.%u; only 1.0, 2.0 and 3.0 are supported", path, major, minor);
        size_t start = major == 1 ? 10 : 12;
        uint64_t header = bytes[8] | (uint64_t)bytes[9] << 8;
        if (n_bytes < start)
                return mfl_fail(err, MFL_INVALID, "%s: truncated: %zu bytes, less than its fixed header",
                        path, n_bytes);
        if (major > 1)
                header |= (uint64_t)bytes[10] << 16 | (uint64_t)bytes[11] << 24;
        if (header > HEADER_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: npy header of %llu bytes; the limit is %d", path,
                        (unsigned long long)header, HEADER_BYTES_MAX);
        if (header > n_bytes - start)
                return mfl_fail(err, MFL_INVALID,
                        "%s: truncated: declares a header of %llu bytes, but %zu follow", path,
                        (unsigned long long)header, n_bytes - start);
        const char *text = (const char *)bytes + start;
        struct cursor c = {.at = text, .end = text + header, .path = path, .err = err};
        struct mfl_array array = {.offset = start + (size_t)header};
        int r = take_dictionary(&c, &array);
        if (!r)
                r = mfl_array_check(&array, n_bytes, path, err);
        if (!r)
                *ret_array = array;
        return r;
}
