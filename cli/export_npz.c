/* SPDX-License-Identifier: Apache-2.0 */
/* A model as NumPy's npz: a zip archive (minizip) of .npy files, one a parameter.
 *
 * numpy/lib/format.py is the format: "\x93NUMPY", version 1.0, u16 length of the header, the header (a Python
 * literal, padded with blanks to a multiple of 64 bytes), the floats in C order, little-endian.
 */
#include "cli/export.h"

#include <endian.h>
#include <inttypes.h>
#include <minizip/zip.h>

#define PIECE_FLOATS (1u << 18)
#define ZIP64_BYTES 0xf0000000u /* from here on sizes need 64 bits; the headers count too */

/* Returns the header's length in buf of at least 256 bytes. */
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

static int write_floats(zipFile zip, const float *data, uint64_t count)
{
        for (uint64_t i = 0; i < count; i += PIECE_FLOATS) {
                unsigned n = (unsigned)MFL_MIN(count - i, (uint64_t)PIECE_FLOATS);
                int r = zipWriteInFileInZip(zip, data + i, n * (unsigned)sizeof(float));
                if (r != ZIP_OK)
                        return r;
        }
        return ZIP_OK;
}

static int write_param(zipFile zip, const struct mfl_param *param, const float *params)
{
        char name[sizeof param->name + 8], header[256];
        /* The oldest time that zip knows: equal params give equal bytes. */
        zip_fileinfo info = {.tmz_date = {.tm_mday = 1, .tm_year = 1980}};
        size_t n = make_header(&param->shape, header);
        snprintf(name, sizeof name, "%s.npy", param->name);
        int r = zipOpenNewFileInZip64(
                zip, name, &info, NULL, 0, NULL, 0, NULL, 0, 0, param->count * sizeof(float) >= ZIP64_BYTES);
        if (r == ZIP_OK)
                r = zipWriteInFileInZip(zip, header, (unsigned)n);
        if (r == ZIP_OK)
                r = write_floats(zip, params + param->offset, param->count);
        return r == ZIP_OK ? zipCloseFileInZip(zip) : r;
}

static int fail_zip(const char *path, struct mfl_error *err)
{
        int code = errno ? -errno : -EIO;
        return mfl_fail(err, code, "write %s: %s", path, strerror(-code));
}

/* minizip opens the file by its name, beside the descriptor that is synced afterwards. */
static int write_zip(
        const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err)
{
        errno = 0;
        zipFile zip = zipOpen64(path, APPEND_STATUS_CREATE);
        if (!zip)
                return fail_zip(path, err);
        int r = ZIP_OK;
        for (int i = 0; r == ZIP_OK && i < graph->n_params; i++)
                r = write_param(zip, &graph->params[i], params);
        int closed = zipClose(zip, NULL);
        return r == ZIP_OK && closed == ZIP_OK ? 0 : fail_zip(path, err);
}

int mfl_npz_write(const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err)
{
        _Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "floats are written as they are");
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin(&file, path, err);
        if (r)
                return r;
        r = write_zip(file.tmp, graph, params, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}
