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
static size_t make_header(const char *kind, const struct mfl_shape *shape, char *buf)
{
        char dims[96] = "";
        size_t n = 0;
        for (int i = 0; i < shape->rank; i++)
                n += (size_t)snprintf(dims + n, sizeof dims - n, "%" PRId64 ",%s", shape->dim[i],
                        i + 1 < shape->rank ? " " : "");
        n = (size_t)snprintf(
                buf + 10, 246, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", kind, dims);
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

struct array {
        const char *kind; /* "<f4" */
        const struct mfl_shape *shape;
        const void *data;
        uint64_t bytes;
};

static int add_array(zip_t *zip, const char *array_name, const struct array *array, struct header *header)
{
        char name[256];
        zip_buffer_fragment_t parts[2] = {
                {(zip_uint8_t *)header->text, make_header(array->kind, array->shape, header->text)},
                {(zip_uint8_t *)(uintptr_t)array->data, array->bytes}};
        snprintf(name, sizeof name, "%s.npy", array_name);
        zip_source_t *source = zip_source_buffer_fragment(zip, parts, array->bytes ? 2 : 1, 0);
        zip_int64_t i = source ? zip_file_add(zip, name, source, 0) : -1;
        if (source && i < 0)
                zip_source_free(source);
        return i >= 0 && !zip_set_file_compression(zip, (zip_uint64_t)i, ZIP_CM_STORE, 0)
                       ? zip_file_set_dostime(zip, (zip_uint64_t)i, DOS_TIME, DOS_DATE, 0)
                       : -1;
}

static int add_param(zip_t *zip, const char *name, const struct mfl_param *param, const float *params,
        struct header *header)
{
        const struct array array = {
                "<f4", &param->shape, params + param->offset, param->count * sizeof(float)};
        return add_array(zip, name, &array, header);
}

static int fail_zip(const char *path, zip_error_t *error, struct mfl_error *err)
{
        int code = zip_error_system_type(error) == ZIP_ET_SYS && zip_error_code_system(error)
                           ? -zip_error_code_system(error)
                   : zip_error_code_zip(error) == ZIP_ER_MEMORY ? -ENOMEM
                                                                : -EIO;
        return mfl_fail(err, code, "write %s: %s", path, zip_error_strerror(error));
}

/* What goes into an archive: libzip reads it when it closes the archive. */
struct content {
        int (*add)(zip_t *zip, const struct content *content, struct header *headers);
        size_t n; /* arrays, at most */
        const struct mfl_graph *graph;
        const float *params;
        const char *comment;
        const struct mfl_changes_pulled *changes;
};

static int add_model(zip_t *zip, const struct content *content, struct header *headers)
{
        const struct mfl_graph *graph = content->graph;
        int r = 0;
        for (int i = 0; !r && i < graph->n_params; i++)
                r = add_param(zip, graph->params[i].name, &graph->params[i], content->params, &headers[i]);
        for (int k = 0; !r && k < graph->n_aliases; k++)
                if (graph->aliases[k].written)
                        r = add_param(zip, graph->aliases[k].name, &graph->params[graph->aliases[k].param],
                                content->params, &headers[graph->n_params + k]);
        return r;
}

static int add_changes(zip_t *zip, const struct content *content, struct header *headers)
{
        const struct mfl_changes_pulled *c = content->changes;
        const struct mfl_graph *graph = content->graph;
        const struct mfl_shape shape = {1, {(int64_t)c->n}};
        const struct array clients = {"<u8", &shape, c->clients, c->n * sizeof *c->clients},
                           weights = {"<u8", &shape, c->weights, c->n * sizeof *c->weights};
        int r = add_array(zip, "clients", &clients, headers++);
        if (!r)
                r = add_array(zip, "weights", &weights, headers++);
        for (uint32_t k = 0; !r && k < c->n; k++)
                for (int t = graph->i_moving; !r && t < graph->n_params; t++) {
                        char name[MFL_TENSOR_NAME_BYTES + 32];
                        snprintf(name, sizeof name, "client-%" PRIu64 "/%s", c->clients[k],
                                graph->params[t].name);
                        r = add_param(zip, name, &graph->params[t], c->v + k * graph->n, headers++);
                }
        return r;
}

static int write_zip(const struct mfl_fs_file *file, const struct content *content, struct header *headers,
        struct mfl_error *err)
{
        const char *comment = content->comment;
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
        if (zip && !r)
                r = content->add(zip, content, headers);
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

static int write_content(const char *path, const struct content *content, struct mfl_error *err)
{
        _Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "numbers are written as they are");
        struct mfl_fs_file file = {.fd = -1};
        MFL_CLEANUP_FREE struct header *headers = mfl_malloc(content->n * sizeof *headers);
        int r = headers ? mfl_fs_begin(&file, path, err)
                        : mfl_fail_memory(err, content->n * sizeof *headers, path);
        if (r)
                return r;
        r = write_zip(&file, content, headers, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_npz_write(const char *path, const struct mfl_graph *graph, const float *params, const char *comment,
        struct mfl_error *err)
{
        const struct content content = {.add = add_model,
                .n = (size_t)graph->n_params + (size_t)graph->n_aliases,
                .graph = graph,
                .params = params,
                .comment = comment};
        return write_content(path, &content, err);
}

int mfl_npz_write_changes(const char *path, const struct mfl_graph *graph,
        const struct mfl_changes_pulled *changes, struct mfl_error *err)
{
        const struct content content = {.add = add_changes,
                .n = 2 + (size_t)changes->n * (size_t)(graph->n_params - graph->i_moving),
                .graph = graph,
                .comment = "",
                .changes = changes};
        return write_content(path, &content, err);
}
