/* SPDX-License-Identifier: Apache-2.0 */
/* Writes safetensors files: the header is built in memory; the data are written straight from the tensors. Fails when
 * memory is out, when a write fails (-errno; a full disk is the common one), or when the header would be larger than
 * readers accept (MFL_INVALID).
 */
#include "common/model/safetensors.h"

#include <stdio.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (16u << 20)
#define WRITE_BYTES_MAX (64u << 20)

struct text {
        char *s;
        size_t len, room;
        bool failed; /* memory is out: further additions do nothing */
};

static void text_add(struct text *text, const char *s, size_t n)
{
        if (text->failed)
                return;
        if (text->len + n > text->room) {
                size_t room = MFL_MAX(text->len + n, 2 * text->room + 256);
                char *grown = mfl_realloc(text->s, room);
                if (!grown) {
                        text->failed = true;
                        return;
                }
                text->s = grown;
                text->room = room;
        }
        memcpy(text->s + text->len, s, n);
        text->len += n;
}

static void text_put(struct text *text, const char *s)
{
        text_add(text, s, strlen(s));
}

static void text_put_u64(struct text *text, uint64_t v)
{
        char digits[24];
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
        text_put(text, digits);
}

static void text_put_quoted(struct text *text, const char *s)
{
        text_put(text, "\"");
        for (; *s; s++) {
                char escape[8];
                if ((unsigned char)*s < 0x20)
                        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*s);
                else
                        snprintf(escape, sizeof escape, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
                text_put(text, escape);
        }
        text_put(text, "\"");
}

static uint64_t bytes_of(const struct mfl_st_tensor *tensor)
{
        return tensor->count * (tensor->words ? sizeof *tensor->words : sizeof *tensor->data);
}

static void put_tensor(struct text *text, const struct mfl_st_tensor *tensor, uint64_t begin)
{
        text_put_quoted(text, tensor->name);
        text_put(text, tensor->words ? ":{\"dtype\":\"I64\",\"shape\":[" : ":{\"dtype\":\"F32\",\"shape\":[");
        for (int i = 0; i < tensor->shape.rank; i++) {
                text_put(text, i ? "," : "");
                text_put_u64(text, (uint64_t)tensor->shape.dim[i]);
        }
        text_put(text, "],\"data_offsets\":[");
        text_put_u64(text, begin);
        text_put(text, ",");
        text_put_u64(text, begin + bytes_of(tensor));
        text_put(text, "]}");
}

static void put_header(struct text *text, const struct mfl_st_tensor *tensors, int n_tensors,
        const struct mfl_st_meta *meta, int n_meta)
{
        uint64_t begin = 0;
        text_add(text, "\0\0\0\0\0\0\0\0", 8); /* the length, filled in at the end */
        text_put(text, "{");
        for (int i = 0; i < n_meta; i++) {
                text_put(text, i ? "," : "\"__metadata__\":{");
                text_put_quoted(text, meta[i].key);
                text_put(text, ":");
                text_put_quoted(text, meta[i].value);
        }
        text_put(text, n_meta ? "}" : "");
        for (int i = 0; i < n_tensors; i++) {
                mfl_assert(tensors[i].count == (uint64_t)mfl_shape_count(&tensors[i].shape));
                text_put(text, i || n_meta ? "," : "");
                put_tensor(text, &tensors[i], begin);
                begin += bytes_of(&tensors[i]);
        }
        text_put(text, "}");
        while (text->len % 8 && !text->failed)
                text_put(text, " ");
        if (!text->failed) {
                uint64_t length = text->len - 8;
                memcpy(text->s, &length, 8);
        }
}

static int write_all(int fd, const char *path, const void *bytes, size_t n, struct mfl_error *err)
{
        const char *p = bytes;
        while (n) {
                ssize_t done = write(fd, p, MFL_MIN(n, (size_t)WRITE_BYTES_MAX));
                if (done < 0 && errno == EINTR)
                        continue;
                if (done < 0)
                        return mfl_fail_errno(err, "write %s", path);
                p += done;
                n -= (size_t)done;
        }
        return 0;
}

int mfl_st_write(int fd, const char *path, const struct mfl_st_tensor *tensors, int n_tensors,
        const struct mfl_st_meta *meta, int n_meta, struct mfl_error *err)
{
        struct text header = {0};
        int r;
        put_header(&header, tensors, n_tensors, meta, n_meta);
        if (header.failed)
                r = mfl_fail_memory(err, header.len, "a safetensors header");
        else if (header.len - 8 > HEADER_BYTES_MAX)
                r = mfl_fail(err, MFL_INVALID, "%s: a header of %zu bytes; at most %u are possible", path,
                        header.len - 8, HEADER_BYTES_MAX);
        else
                r = write_all(fd, path, header.s, header.len, err);
        for (int i = 0; i < n_tensors && !r; i++)
                r = write_all(fd, path, tensors[i].words ? (const void *)tensors[i].words : tensors[i].data,
                        bytes_of(&tensors[i]), err);
        free(header.s);
        return r;
}
