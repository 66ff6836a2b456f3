/* SPDX-License-Identifier: Apache-2.0 */
/* Loading versions. Happy path of a file:
 *
 *   - read it once, and digest what was read: the same bytes go to the cache, so that a file that is replaced meanwhile
 *     can't be half of one and half of another;
 *   - open the copy, compute rows of zeros;
 * and of a start without the source: the cache names the version, its bytes must have the digest.
 */
#include "serve/engine/version.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "serve/engine/net.h"

#define FILE_BYTES_MAX (64ull << 30)
#define PATH_BYTES 1400

static void copy_path(const char *cache, const char *digest, char path[PATH_BYTES])
{
        snprintf(path, PATH_BYTES, "%s/%s.safetensors", cache, digest);
}

static int digest_of(const void *data, size_t bytes, char ret_hex[65], struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        const int r = mfl_sha256(data, bytes, digest, err);
        if (!r)
                mfl_hex(digest, sizeof digest, ret_hex);
        return r;
}

static void name_version(struct mfl_version *v, const char *name, const char *digest)
{
        mfl_strcpy(v->model.name, sizeof v->model.name, name);
        mfl_strcpy(v->model.digest, sizeof v->model.digest, digest);
        snprintf(v->model.version, sizeof v->model.version, "%.*s", MFL_VERSION_HEX, digest);
}

/* Computes rows of zeros; an answer of zeros that is not finite may be the model's nature. */
static int warm(struct mfl_version *v, struct mfl_error *err)
{
        const size_t bytes = v->model.elements * mfl_tensor_bytes(v->model.type);
        void *x = mfl_calloc(v->rows_max, bytes);
        float *y = mfl_calloc(v->rows_max, (size_t)v->model.outputs * sizeof *y);
        int r = x && y ? 0 : mfl_fail_memory(err, v->rows_max * bytes, "a batch");
        for (uint32_t i = 0; !r && i < v->n_instances; i++) {
                r = mfl_version_run(v, i, v->rows_max, x, y, err);
                if (!r)
                        r = mfl_version_run(v, i, 1, x, y, err);
        }
        free(x);
        free(y);
        return r;
}

/* ---- identity ---- */

static bool is_identity(const char *source, uint32_t *ret_n)
{
        static const char word[] = "identity:";
        char *end;
        if (strncmp(source, word, sizeof word - 1))
                return false;
        const unsigned long n = strtoul(source + sizeof word - 1, &end, 10);
        *ret_n = *end || n < 1 || n > 1u << 20 ? 0 : (uint32_t)n;
        return true;
}

/* Its digest is that of its name. */
static int stage_identity(
        const char *source, uint32_t n, struct mfl_staged *ret_staged, struct mfl_error *err)
{
        struct mfl_staged staged = {0};
        if (!n)
                return mfl_fail(err, MFL_INVALID, "%s: expected identity:N, N from 1 to 1048576", source);
        mfl_strcpy(staged.source, sizeof staged.source, source);
        const int r = digest_of(source, strlen(source), staged.digest, err);
        if (!r)
                *ret_staged = staged;
        return r;
}

static void make_identity(struct mfl_version *v, uint32_t n)
{
        v->model.round = -1;
        v->model.rank = v->model.positions = 1;
        v->model.dim[0] = n;
        v->model.elements = v->model.outputs = n;
        v->model.output = "values";
}

/* ---- files ---- */

/* A copy of before this start may have been damaged meanwhile: then it is written again. */
static bool has_copy(const char *path, const void *data, size_t bytes)
{
        struct mfl_error err;
        char *copy;
        size_t n;
        if (mfl_fs_read(path, FILE_BYTES_MAX, &copy, &n, &err))
                return false;
        const bool same = n == bytes && !memcmp(copy, data, n);
        free(copy);
        return same;
}

static int write_copy(
        const char *cache, const char *path, const void *data, size_t bytes, struct mfl_error *err)
{
        struct mfl_fs_file file = {0};
        if (has_copy(path, data, bytes))
                return 0;
        int r = mfl_fs_mkdirs(cache, 0700, err);
        if (!r)
                r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, data, bytes, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_version_stage(const char *source, const struct mfl_version_options *options,
        struct mfl_staged *ret_staged, struct mfl_error *err)
{
        struct mfl_staged staged = {.in_place = !options->cache};
        char *data = NULL;
        size_t bytes;
        uint32_t n;
        if (is_identity(source, &n))
                return stage_identity(source, n, ret_staged, err);
        int r = mfl_fs_read(source, FILE_BYTES_MAX, &data, &bytes, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, r, "%s: no such file", source);
        mfl_strcpy(staged.source, sizeof staged.source, source);
        mfl_strcpy(staged.path, sizeof staged.path, source);
        if (!r)
                r = digest_of(data, bytes, staged.digest, err);
        if (!r && options->cache) {
                copy_path(options->cache, staged.digest, staged.path);
                r = write_copy(options->cache, staged.path, data, bytes, err);
        }
        free(data);
        if (!r)
                *ret_staged = staged;
        return r;
}

/* ---- loading ---- */

static int check_bytes(const char *path, const char *digest, const char *remedy, struct mfl_error *err)
{
        char *data = NULL, seen[65];
        size_t bytes;
        int r = mfl_fs_read(path, FILE_BYTES_MAX, &data, &bytes, err);
        if (!r)
                r = digest_of(data, bytes, seen, err);
        free(data);
        if (!r && strcmp(seen, digest))
                r = mfl_fail(err, MFL_INVALID, "%s: its SHA-256 is %.16s in place of %.16s: %s", path, seen,
                        digest, remedy);
        return r;
}

int mfl_version_open(const struct mfl_staged *staged, const struct mfl_version_options *options,
        struct mfl_version **ret_version, struct mfl_error *err)
{
        struct mfl_version *v = mfl_calloc(1, sizeof *v);
        uint32_t n;
        int r;
        if (!v)
                return mfl_fail_memory(err, sizeof *v, "a version");
        v->rows_max = options->rows_max;
        v->n_instances = options->n_instances;
        v->backend = options->backend;
        v->bf16 = options->bf16;
        name_version(v, options->name, staged->digest);
        mfl_strcpy(v->source, sizeof v->source, staged->source);
        if (is_identity(staged->source, &n)) {
                make_identity(v, n);
                r = 0;
        } else {
                r = mfl_net_open(staged->path, v, err);
        }
        if (!r && staged->in_place)
                r = check_bytes(staged->path, staged->digest,
                        "it was written to while it was read; rename a new file over it", err);
        if (!r)
                r = warm(v, err);
        if (r)
                mfl_version_free(v);
        else
                *ret_version = v;
        return r;
}

/* ---- the cache ---- */

/* The cache's file `current`: the digests of the version in service and of one that is kept out or "", and the source that they are of. One name
 * may have had another file, job or registered model in an earlier configuration, whose versions are no answer for this one. */
static int read_current(const struct mfl_version_options *options, char ret_digest[65], char ret_refused[65],
        struct mfl_error *err)
{
        static const char hex[] = "0123456789abcdef";
        char path[PATH_BYTES], *text;
        size_t bytes;
        snprintf(path, sizeof path, "%s/current", options->cache);
        const int r = mfl_fs_read(path, 4096, &text, &bytes, err);
        if (r)
                return r;
        const bool fine = strspn(text, hex) == 64 && text[64] == '\n';
        const char *second = fine ? strchr(text + 65, '\n') : NULL;
        const size_t n = strlen(options->source);
        const bool same = second && !strncmp(second + 1, options->source, n) && !strcmp(second + 1 + n, "\n");
        if (fine) {
                snprintf(ret_digest, 65, "%.64s", text);
                snprintf(ret_refused, 65, "%.64s", strspn(text + 65, hex) == 64 ? text + 65 : "");
        }
        free(text);
        if (!fine)
                return mfl_fail(err, MFL_INVALID, "%s: names no version", path);
        return same ? 0
                    : mfl_fail(err, MFL_NOT_FOUND, "%s: is of another source than %.200s", path,
                              options->source);
}

void mfl_version_refused(const struct mfl_version_options *options, char ret_digest[65])
{
        struct mfl_error err;
        char current[65];
        if (read_current(options, current, ret_digest, &err))
                ret_digest[0] = '\0';
}

int mfl_version_stage_cached(const struct mfl_version_options *options, const char *digest,
        struct mfl_staged *ret_staged, struct mfl_error *err)
{
        struct mfl_staged staged = {0};
        char refused[65];
        if (!options->cache)
                return MFL_NOT_FOUND;
        int r = digest ? 0 : read_current(options, staged.digest, refused, err);
        if (r == MFL_NOT_FOUND && *staged.digest)
                mfl_log(MFL_LOG_WARN, "%s: %s, and is not served", options->name, err->text);
        if (r)
                return r;
        if (digest)
                mfl_strcpy(staged.digest, sizeof staged.digest, digest);
        copy_path(options->cache, staged.digest, staged.path);
        mfl_strcpy(staged.source, sizeof staged.source, staged.path);
        r = check_bytes(staged.path, staged.digest, "the copy is damaged", err);
        if (!r)
                *ret_staged = staged;
        return r;
}

/* A round or version that another source has brought. */
static bool is_anothers(const char *name, const char *source)
{
        const char *slash = strrchr(source, '/');
        return !strncmp(name, MFL_VERSION_FOLLOWED, strlen(MFL_VERSION_FOLLOWED)) &&
               strcmp(name, slash ? slash + 1 : source) != 0;
}

static void remove_others(const char *cache, const char *source, const char *current, const char *previous)
{
        DIR *dir = opendir(cache);
        for (struct dirent *e; dir && (e = readdir(dir));) {
                char path[PATH_BYTES];
                const size_t n = strspn(e->d_name, "0123456789abcdef");
                if (!is_anothers(e->d_name, source) &&
                        (n != 64 || !strncmp(e->d_name, current, 64) || !strncmp(e->d_name, previous, 64)))
                        continue;
                if ((size_t)snprintf(path, sizeof path, "%s/%s", cache, e->d_name) < sizeof path &&
                        unlink(path))
                        mfl_log(MFL_LOG_WARN, "remove %s: %s", path, strerror(errno));
        }
        if (dir)
                closedir(dir);
}

int mfl_version_note(const struct mfl_version_options *options, const char *current, const char *previous,
        const char *refused, struct mfl_error *err)
{
        const char *cache = options->cache;
        char path[PATH_BYTES], text[140 + sizeof((struct mfl_staged *)0)->source];
        struct mfl_fs_file file = {0};
        snprintf(path, sizeof path, "%s/current", cache);
        const int n = snprintf(text, sizeof text, "%s\n%s\n%s\n", current, refused, options->source);
        int r = mfl_fs_mkdirs(cache, 0700, err);
        if (!r)
                r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, text, (size_t)n, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        if (!r)
                remove_others(cache, options->source, current, previous);
        return r;
}

static void remove_file(const char *path)
{
        if (unlink(path) && errno != ENOENT)
                mfl_log(MFL_LOG_WARN, "remove %s: %s", path, strerror(errno));
}

void mfl_version_forget(const struct mfl_version_options *options)
{
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/current", options->cache);
        remove_file(path);
        remove_file(options->source);
}

/* ---- running ---- */

void mfl_version_free(struct mfl_version *v)
{
        if (!v)
                return;
        mfl_net_close(v);
        free(v);
}

int mfl_version_check(const struct mfl_version *v, uint32_t n, const void *x, struct mfl_error *err)
{
        return v->infer[0] ? mfl_net_check_codes(v, n, x, err) : 0;
}

int mfl_version_run(
        struct mfl_version *v, uint32_t instance, uint32_t n, const void *x, float *y, struct mfl_error *err)
{
        mfl_assert(n > 0 && n <= v->rows_max && instance < v->n_instances);
        if (v->infer[0])
                return mfl_net_run(v, instance, n, x, y, err);
        memcpy(y, x, (size_t)n * v->model.outputs * sizeof *y);
        return 0;
}
