/* SPDX-License-Identifier: Apache-2.0 */
/* A model as NumPy's npz: a zip archive (libzip) with one .npy file per parameter.
 *
 * The format is numpy/lib/format.py: "\x93NUMPY", version 1.0, u16 length of the header, the header (a Python
 * literal, padded with blanks to a multiple of 64 bytes), the floats in C order, little-endian.
 */
#include "cli/pull/export.h"

#include <endian.h>
#include <inttypes.h>
#include <unistd.h>
#include <zip.h>

/* Returns the length of the header in buf, which has at least 256 bytes. */
static size_t make_header(const struct mfl_shape *shape, char *buf)
{
        char dims[96] = "";
        size_t n = 0;
        for (int i = 0; i < shape->rank; i++)
                n += (size_t)snprintf(dims + n, sizeof dims - n, "%" PRId64 ",%s", shape->dim[i],
                        i + 1 < shape->rank ? " " : "");
        n = (size_t)snprintf(
                buf + 10, 246, "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", dims);
        size_t total = (10 + n + 1 + 63) / 64 * 64;
        memset(buf + 10 + n, ' ', total - 10 - n);
        buf[total - 1] = '\n';
        memcpy(buf, "\x93NUMPY\x01\x00", 8);
        buf[8] = (char)((total - 10) & 255);
        buf[9] = (char)((total - 10) >> 8);
        return total;
}

/* ---- where libzip writes to: the file that is synced and renamed afterwards ---- */

struct sink {
        int fd;
        zip_error_t error;
};

static int64_t fail_sink(struct sink *sink, int code)
{
        zip_error_set(&sink->error, code, errno);
        return -1;
}

static int64_t write_all(struct sink *sink, const char *data, size_t bytes)
{
        for (size_t done = 0; done < bytes;) {
                ssize_t n = write(sink->fd, data + done, bytes - done);
                if (n < 0 && errno != EINTR)
                        return fail_sink(sink, ZIP_ER_WRITE);
                done += n > 0 ? (size_t)n : 0;
        }
        return (int64_t)bytes;
}

static int64_t seek_sink(struct sink *sink, void *data, uint64_t bytes)
{
        off_t end = lseek(sink->fd, 0, SEEK_END), at = lseek(sink->fd, 0, SEEK_CUR);
        int64_t to = zip_source_seek_compute_offset(
                (zip_uint64_t)at, (zip_uint64_t)end, data, bytes, &sink->error);
        if (to < 0)
                return -1;
        return lseek(sink->fd, to, SEEK_SET) < 0 ? fail_sink(sink, ZIP_ER_SEEK) : 0;
}

/* libzip never reads a new archive, but it accepts only sources that can be read. */
static zip_int64_t serve(void *state, void *data, zip_uint64_t bytes, zip_source_cmd_t command)
{
        struct sink *sink = state;
        switch (command) {
        case ZIP_SOURCE_SUPPORTS:
                return ZIP_SOURCE_SUPPORTS_WRITABLE;
        case ZIP_SOURCE_ERROR:
                return zip_error_to_data(&sink->error, data, bytes);
        case ZIP_SOURCE_STAT: /* the archive does not exist yet */
                errno = ENOENT;
                return fail_sink(sink, ZIP_ER_READ);
        case ZIP_SOURCE_BEGIN_WRITE:
        case ZIP_SOURCE_COMMIT_WRITE:
        case ZIP_SOURCE_ROLLBACK_WRITE:
        case ZIP_SOURCE_REMOVE: /* for an archive without entries */
        case ZIP_SOURCE_FREE:
                return 0;
        case ZIP_SOURCE_WRITE:
                return write_all(sink, data, bytes);
        case ZIP_SOURCE_TELL_WRITE:
                return lseek(sink->fd, 0, SEEK_CUR);
        case ZIP_SOURCE_SEEK_WRITE:
                return seek_sink(sink, data, bytes);
        default:
                errno = ENOTSUP;
                return fail_sink(sink, ZIP_ER_OPNOTSUPP);
        }
}

/* ---- entries ---- */

/* The oldest time that zip knows, 1 January 1980: equal params give equal bytes. */
#define DOS_TIME 0
#define DOS_DATE (1 << 5 | 1)

struct header {
        char text[256];
};

static int add_param(zip_t *zip, const char *param_name, const struct mfl_param *param, const float *params,
        struct header *header)
{
        char name[sizeof param->name + 8];
        zip_buffer_fragment_t parts[2] = {
                {(zip_uint8_t *)header->text, make_header(&param->shape, header->text)},
                {(zip_uint8_t *)(params + param->offset), param->count * sizeof(float)}};
        snprintf(name, sizeof name, "%s.npy", param_name);
        zip_source_t *source = zip_source_buffer_fragment(zip, parts, param->count ? 2 : 1, 0);
        zip_int64_t i = source ? zip_file_add(zip, name, source, 0) : -1;
        if (source && i < 0)
                zip_source_free(source);
        return i >= 0 && !zip_set_file_compression(zip, (zip_uint64_t)i, ZIP_CM_STORE, 0)
                       ? zip_file_set_dostime(zip, (zip_uint64_t)i, DOS_TIME, DOS_DATE, 0)
                       : -1;
}

static int fail_zip(const char *path, zip_error_t *error, struct mfl_error *err)
{
        int code = zip_error_system_type(error) == ZIP_ET_SYS && zip_error_code_system(error)
                           ? -zip_error_code_system(error)
                   : zip_error_code_zip(error) == ZIP_ER_MEMORY ? -ENOMEM
                                                                : -EIO;
        return mfl_fail(err, code, "write %s: %s", path, zip_error_strerror(error));
}

/* headers: one per param and alias; libzip reads them and the params when it closes the archive. */
static int write_zip(const struct mfl_fs_file *file, const struct mfl_graph *graph, const float *params,
        const char *comment, struct header *headers, struct mfl_error *err)
{
        struct sink sink = {.fd = file->fd};
        zip_error_t error;
        zip_error_init(&error);
        zip_error_init(&sink.error);
        zip_source_t *source = zip_source_function_create(serve, &sink, &error);
        zip_t *zip = source ? zip_open_from_source(source, ZIP_CREATE, &error) : NULL;
        int r = 0;
        if (!zip) {
                r = fail_zip(file->tmp, &error, err);
                zip_source_free(source);
        }
        for (int i = 0; zip && !r && i < graph->n_params; i++)
                r = add_param(zip, graph->params[i].name, &graph->params[i], params, &headers[i]);
        for (int k = 0; zip && !r && k < graph->n_aliases; k++)
                if (graph->aliases[k].written)
                        r = add_param(zip, graph->aliases[k].name, &graph->params[graph->aliases[k].param],
                                params, &headers[graph->n_params + k]);
        if (zip && !r && *comment && strlen(comment) <= UINT16_MAX) /* the format's limit */
                r = zip_set_archive_comment(zip, comment, (zip_uint16_t)strlen(comment));
        if (zip && (r || zip_close(zip))) {
                r = fail_zip(file->tmp, zip_get_error(zip), err);
                zip_discard(zip);
        }
        zip_error_fini(&error);
        zip_error_fini(&sink.error);
        return r;
}

int mfl_npz_write(const char *path, const struct mfl_graph *graph, const float *params, const char *comment,
        struct mfl_error *err)
{
        _Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "floats are written as they are");
        struct mfl_fs_file file = {.fd = -1};
        size_t n = (size_t)graph->n_params + (size_t)graph->n_aliases;
        MFL_CLEANUP_FREE struct header *headers = mfl_malloc(n * sizeof *headers);
        int r = headers ? mfl_fs_begin(&file, path, err) : mfl_fail_memory(err, sizeof *headers, path);
        if (r)
                return r;
        r = write_zip(&file, graph, params, comment, headers, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}
