/* SPDX-License-Identifier: Apache-2.0 */
/* idx files, plain and gzipped, from bytes in memory. */
#include "common/data/formats.h"

#include <zlib.h>

static int parse_head(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_array *ret_array,
        struct mfl_error *err)
{
        struct mfl_array array = {.big_endian = true};
        if (n_bytes < 4)
                return mfl_fail(err, MFL_INVALID, "%s: %zu bytes are too few for an idx file", path, n_bytes);
        if (bytes[0] || bytes[1])
                return mfl_fail(err, MFL_INVALID, "%s: begins with %02x %02x; an idx file begins with 00 00",
                        path, bytes[0], bytes[1]);
        if (bytes[2] == 0x08)
                array.type = MFL_ARRAY_U8;
        else if (bytes[2] == 0x0d)
                array.type = MFL_ARRAY_F32;
        else
                return mfl_fail(err, MFL_INVALID,
                        "%s: idx type 0x%02x; only 0x08 (u8) and 0x0d (f32) are supported", path, bytes[2]);
        array.rank = bytes[3];
        if (array.rank < 1 || array.rank > MFL_ARRAY_RANK_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: %d dimensions, 1 to %d are possible", path, array.rank,
                        MFL_ARRAY_RANK_MAX);
        array.offset = 4 + 4 * (size_t)array.rank;
        if (n_bytes < array.offset)
                return mfl_fail(err, MFL_INVALID,
                        "%s: truncated: %zu bytes, but a header of %d dimensions has %zu", path, n_bytes,
                        array.rank, array.offset);
        for (int i = 0; i < array.rank; i++) {
                const uint8_t *b = bytes + 4 + 4 * i;
                array.dim[i] = (uint64_t)b[0] << 24 | (uint64_t)b[1] << 16 | (uint64_t)b[2] << 8 | b[3];
        }
        *ret_array = array;
        return 0;
}

int mfl_idx_parse(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_array *ret_array,
        struct mfl_error *err)
{
        struct mfl_array array;
        int r = parse_head(bytes, n_bytes, path, &array, err);
        if (!r)
                r = mfl_array_check(&array, n_bytes, path, err);
        if (!r)
                *ret_array = array;
        return r;
}

bool mfl_is_gzip(const uint8_t *bytes, size_t n_bytes)
{
        return n_bytes >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static voidpf z_alloc(voidpf opaque, uInt items, uInt size)
{
        return mfl_calloc(items, size);
}

static void z_free(voidpf opaque, voidpf p)
{
        free(p);
}

struct inflater {
        z_stream z;
        const uint8_t *next;
        size_t left; /* input that zlib has not seen yet */
        const char *path;
};

/* Inflates up to n bytes into out; fewer only at the end of the member (*ret_end). */
static int inflate_some(
        struct inflater *in, uint8_t *out, size_t n, size_t *ret_n, bool *ret_end, struct mfl_error *err)
{
        size_t done = 0;
        while (done < n) {
                /* zlib counts in 32 bits; slices of 1 GiB make larger files possible. */
                if (!in->z.avail_in && in->left) {
                        size_t slice = MFL_MIN(in->left, (size_t)1 << 30);
                        in->z.next_in = (Bytef *)(uintptr_t)in->next;
                        in->z.avail_in = (uInt)slice;
                        in->next += slice;
                        in->left -= slice;
                }
                size_t room = MFL_MIN(n - done, (size_t)1 << 30);
                in->z.next_out = out + done;
                in->z.avail_out = (uInt)room;
                int r = inflate(&in->z, Z_NO_FLUSH);
                done += room - in->z.avail_out;
                if (r == Z_STREAM_END) {
                        *ret_end = true;
                        break;
                }
                if (r == Z_MEM_ERROR)
                        return mfl_fail_memory(err, 1 << 15, "inflating");
                if (r == Z_BUF_ERROR)
                        return mfl_fail(
                                err, MFL_INVALID, "%s: truncated: the gzip data end too early", in->path);
                if (r != Z_OK)
                        return mfl_fail(err, MFL_INVALID, "%s: damaged gzip data: %s", in->path,
                                in->z.msg ? in->z.msg : "not as RFC 1952 says");
        }
        *ret_n = done;
        return 0;
}

/* The idx header inside, and the size of the whole file that it declares. */
static int inflate_head(struct inflater *in, size_t n_bytes, uint8_t *head, struct mfl_array *ret_array,
        size_t *ret_total, struct mfl_error *err)
{
        size_t n = 0, more = 0;
        bool end = false;
        int r = inflate_some(in, head, 4, &n, &end, err);
        if (r)
                return r;
        size_t dims = n == 4 ? 4 * (size_t)MFL_MIN(head[3], MFL_ARRAY_RANK_MAX) : 0;
        if (!end && dims)
                r = inflate_some(in, head + 4, dims, &more, &end, err);
        struct mfl_array array;
        if (!r)
                r = parse_head(head, n + more, in->path, &array, err);
        if (r)
                return r;
        /* So far the declared size is a stranger's number. Deflate cannot compress better than 1032 : 1 (zlib's
         * technical notes), so the compressed size bounds what may be allocated for it. */
        size_t total = array.offset, elements = mfl_array_element_bytes(array.type);
        bool over = false;
        for (int i = 0; i < array.rank; i++)
                over |= __builtin_mul_overflow(elements, array.dim[i], &elements);
        over |= __builtin_add_overflow(total, elements, &total);
        if (over || total / 1032 > n_bytes)
                return mfl_fail(err, MFL_INVALID,
                        "%s: its idx header declares more than %zu bytes of gzip data can hold", in->path,
                        n_bytes);
        *ret_array = array;
        *ret_total = total;
        return 0;
}

/* The member must end right where the header says, with its checksum, and nothing may follow. */
static int check_end(struct inflater *in, size_t total, bool end, struct mfl_error *err)
{
        uint8_t extra;
        size_t n = 0;
        int r = end ? 0 : inflate_some(in, &extra, 1, &n, &end, err);
        if (r)
                return r;
        if (n)
                return mfl_fail(err, MFL_INVALID, "%s: its idx header declares %zu bytes, but more follow",
                        in->path, total);
        size_t rest = in->z.avail_in + in->left;
        if (rest)
                return mfl_fail(err, MFL_INVALID,
                        "%s: %zu bytes follow the end of the gzip data; expected none", in->path, rest);
        return 0;
}

int mfl_idx_inflate(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_bytes,
        size_t *ret_n_bytes, struct mfl_error *err)
{
        struct inflater in = {
                .z = {.zalloc = z_alloc, .zfree = z_free}, .next = bytes, .left = n_bytes, .path = path};
        uint8_t head[4 + 4 * MFL_ARRAY_RANK_MAX], *out = NULL;
        struct mfl_array array = {0};
        size_t total = 0, n = 0;
        bool end = false;
        /* 16: gzip only, with its checksum. */
        if (inflateInit2(&in.z, 15 + 16) != Z_OK)
                return mfl_fail_memory(err, sizeof in.z, "inflating");
        int r = inflate_head(&in, n_bytes, head, &array, &total, err);
        if (r)
                goto out;
        out = mfl_alloc_aligned(total);
        if (!out) {
                r = mfl_fail_memory(err, total, path);
                goto out;
        }
        memcpy(out, head, array.offset);
        r = inflate_some(&in, out + array.offset, total - array.offset, &n, &end, err);
        if (!r && n < total - array.offset)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: truncated: %zu bytes inflated, but its idx header declares %zu", path,
                        array.offset + n, total);
        if (!r)
                r = check_end(&in, total, end, err);
out:
        inflateEnd(&in.z);
        if (r) {
                free(out);
                return r;
        }
        *ret_bytes = out;
        *ret_n_bytes = total;
        return 0;
}
