/* SPDX-License-Identifier: Apache-2.0 */
/* Reads arrays from an npz file, a zip archive of npy files (by libzip). */
#include "common/data/sources.h"

#include <zip.h>

/* Deflate expands one byte to 1032 at most (RFC 1951: a block of longest matches). */
#define INFLATION_MAX 1032

struct mfl_npz {
        zip_t *zip;
        const char *path;
        size_t n_bytes;
};

int mfl_npz_open(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_npz **ret_npz,
        struct mfl_error *err)
{
        zip_error_t why;
        if (!n_bytes)
                return mfl_fail(err, MFL_INVALID, "%s: is empty", path);
        struct mfl_npz *npz = mfl_calloc(1, sizeof *npz);
        if (!npz)
                return mfl_fail_memory(err, sizeof *npz, path);
        zip_error_init(&why);
        zip_source_t *source = zip_source_buffer_create(bytes, n_bytes, 0, &why);
        npz->path = path;
        npz->n_bytes = n_bytes;
        npz->zip = source ? zip_open_from_source(source, ZIP_RDONLY, &why) : NULL;
        int r = 0;
        if (!npz->zip && zip_error_code_zip(&why) == ZIP_ER_MEMORY)
                r = mfl_fail_memory(err, n_bytes, path);
        else if (!npz->zip)
                r = mfl_fail(err, MFL_INVALID, "%s: not an npz file (a zip archive): %s", path,
                        zip_error_strerror(&why));
        if (r) {
                zip_source_free(source); /* owned by the archive once it is open, but not after a failure */
                free(npz);
        } else {
                *ret_npz = npz;
        }
        zip_error_fini(&why);
        return r;
}

void mfl_npz_close(struct mfl_npz *npz)
{
        if (!npz)
                return;
        zip_discard(npz->zip);
        free(npz);
}

const char *mfl_npz_comment(struct mfl_npz *npz, size_t *ret_n)
{
        int n = 0;
        const char *text = zip_get_archive_comment(npz->zip, &n, ZIP_FL_ENC_RAW);
        *ret_n = text && n > 0 ? (size_t)n : 0;
        return text ? text : "";
}

size_t mfl_npz_count(struct mfl_npz *npz)
{
        return (size_t)zip_get_num_entries(npz->zip, 0);
}

static zip_int64_t locate(struct mfl_npz *npz, const char *name)
{
        char file[256];
        if ((size_t)snprintf(file, sizeof file, "%s.npy", name) >= sizeof file)
                return -1;
        return zip_name_locate(npz->zip, file, ZIP_FL_ENC_RAW);
}

static int fail_missing(struct mfl_npz *npz, const char *name, struct mfl_error *err)
{
        char list[256] = "";
        zip_int64_t n = zip_get_num_entries(npz->zip, 0);
        for (zip_int64_t i = 0; i < n && i < 8; i++) {
                const char *entry = zip_get_name(npz->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
                size_t used = strlen(list), length = entry ? strlen(entry) : 0;
                if (length > 4 && !strcmp(entry + length - 4, ".npy"))
                        snprintf(list + used, sizeof list - used, "%s%.*s", used ? ", " : "",
                                (int)MFL_MIN(length - 4, 40), entry);
        }
        return mfl_fail(err, MFL_INVALID, "%s: there is no array '%s'; the arrays are %s", npz->path, name,
                *list ? list : "none");
}

/* Allocates the declared size, once it is known to be possible. */
static int make_room(struct mfl_npz *npz, const char *name, zip_uint64_t index,
        struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        zip_stat_t st;
        zip_uint64_t needed =
                ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
        if (zip_stat_index(npz->zip, index, 0, &st) < 0 || (st.valid & needed) != needed)
                return mfl_fail(
                        err, MFL_INVALID, "%s: array %s: %s", npz->path, name, zip_strerror(npz->zip));
        if (st.encryption_method != ZIP_EM_NONE ||
                (st.comp_method != ZIP_CM_STORE && st.comp_method != ZIP_CM_DEFLATE))
                return mfl_fail(err, MFL_INVALID, "%s: array %s: must be stored or deflated; this one is %s",
                        npz->path, name,
                        st.encryption_method != ZIP_EM_NONE ? "encrypted" : "compressed in another way");
        if (st.comp_size > npz->n_bytes || st.size / INFLATION_MAX > st.comp_size ||
                (st.comp_method == ZIP_CM_STORE && st.size != st.comp_size))
                return mfl_fail(err, MFL_INVALID,
                        "%s: array %s: declares %llu bytes in %llu compressed bytes, but the file has %zu",
                        npz->path, name, (unsigned long long)st.size, (unsigned long long)st.comp_size,
                        npz->n_bytes);
        ret_bytes->n = (size_t)st.size;
        ret_bytes->data = mfl_alloc_aligned(MFL_MAX(ret_bytes->n, 1));
        return ret_bytes->data ? 0 : mfl_fail_memory(err, ret_bytes->n, npz->path);
}

int mfl_npz_read(
        struct mfl_npz *npz, const char *name, struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        struct mfl_data_bytes bytes = {0};
        zip_int64_t index = locate(npz, name), got = 0;
        if (index < 0)
                return fail_missing(npz, name, err);
        int r = make_room(npz, name, (zip_uint64_t)index, &bytes, err);
        if (r)
                return r;
        zip_file_t *file = zip_fopen_index(npz->zip, (zip_uint64_t)index, 0);
        size_t done = 0;
        while (file && done < bytes.n && (got = zip_fread(file, bytes.data + done, bytes.n - done)) > 0)
                done += (size_t)got;
        /* One more read verifies the checksum, and that nothing follows. */
        uint8_t more;
        if (!file || got < 0 || done < bytes.n || zip_fread(file, &more, 1) != 0)
                r = mfl_fail(err, MFL_INVALID, "%s: array %s: damaged: %s", npz->path, name,
                        file ? zip_file_strerror(file) : zip_strerror(npz->zip));
        if (file)
                zip_fclose(file);
        if (r)
                free(bytes.data);
        else
                *ret_bytes = bytes;
        return r;
}
