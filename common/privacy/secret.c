/* SPDX-License-Identifier: Apache-2.0 */
/* The key's file, derived keys, and AES in counter mode.
 *   - open: read; without a file getrandom, PATH.tmp of mode 0600, fsync, rename, fsync of the directory.
 * Fails when the disk or OpenSSL is broken, or when the file is not a key that only its owner can read.
 */
#include "common/privacy/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"

static int fill_random(uint8_t *bytes, size_t n, struct mfl_error *err)
{
        while (n) {
                ssize_t got = getrandom(bytes, n, 0);
                if (got < 0 && errno != EINTR)
                        return mfl_fail_errno(err, "getrandom");
                if (got > 0) {
                        bytes += got;
                        n -= (size_t)got;
                }
        }
        return 0;
}

static int make_key(const char *path, struct mfl_secret *ret_secret, struct mfl_error *err)
{
        struct mfl_fs_file file = {0};
        MFL_CLEANUP_FREE char *tmp = mfl_asprintf("%s.tmp", path);
        if (!tmp)
                return mfl_fail_memory(err, strlen(path), "a file name");
        unlink(tmp); /* of a start that was killed; this process holds the directory's lock */
        int r = fill_random(ret_secret->key, sizeof ret_secret->key, err);
        if (!r)
                r = mfl_fs_begin_exclusive(&file, path, 0600, err);
        if (!r)
                r = mfl_fs_write(&file, ret_secret->key, sizeof ret_secret->key, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_secret_open(const char *path, struct mfl_secret *ret_secret, struct mfl_error *err)
{
        struct mfl_secret secret;
        struct stat st;
        char *data = NULL;
        size_t bytes = 0;
        int r = mfl_fs_read(path, 2 * MFL_SECRET_BYTES, &data, &bytes, err);
        if (r == MFL_NOT_FOUND) {
                r = make_key(path, &secret, err);
                if (!r)
                        *ret_secret = secret;
                return r;
        }
        if (!r && stat(path, &st))
                r = mfl_fail_errno(err, "stat %s", path);
        if (!r && bytes != sizeof secret.key)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: %zu bytes, but a key of noise has %d; restore it, or remove it for a new one",
                        path, bytes, MFL_SECRET_BYTES);
        if (!r && st.st_mode & 077)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: others may read this key (mode %03o): whoever has read it can remove the noise; "
                        "remove the file for a new one, or allow only its owner to read it (chmod 600)",
                        path, (unsigned)st.st_mode & 0777);
        if (!r)
                memcpy(ret_secret->key, data, sizeof ret_secret->key);
        if (data)
                OPENSSL_cleanse(data, bytes);
        free(data);
        return r;
}

int mfl_secret_derive(const struct mfl_secret *secret, const char *what, const char *job, uint64_t number,
        const uint8_t digest[MFL_SHA256_BYTES], struct mfl_secret *ret_secret, struct mfl_error *err)
{
        struct {
                uint8_t key[MFL_SECRET_BYTES];
                char what[MFL_SECRET_WHAT_BYTES], job[MFL_SECRET_JOB_BYTES];
                uint8_t number[8], digest[MFL_SHA256_BYTES];
        } text = {.what = ""};
        mfl_assert(strlen(what) < sizeof text.what && strlen(job) < sizeof text.job);
        memcpy(text.key, secret->key, sizeof text.key);
        memcpy(text.what, what, strlen(what));
        memcpy(text.job, job, strlen(job));
        for (int i = 0; i < 8; i++)
                text.number[i] = (uint8_t)(number >> 8 * i);
        if (digest)
                memcpy(text.digest, digest, sizeof text.digest);
        int r = mfl_sha256(&text, sizeof text, ret_secret->key, err);
        OPENSSL_cleanse(&text, sizeof text);
        return r;
}

static void begin(struct mfl_secret_stream *stream, const uint8_t *key, uint64_t part)
{
        uint8_t counter[16] = {0};
        for (int i = 0; i < 8; i++)
                counter[i] = (uint8_t)(part >> 8 * (7 - i));
        mfl_assert(EVP_EncryptInit_ex(stream->ctx, key ? EVP_aes_256_ctr() : NULL, NULL, key, counter));
        stream->at = MFL_ARRAY_SIZE(stream->word);
}

int mfl_secret_stream_open(
        struct mfl_secret_stream *stream, const struct mfl_secret *secret, struct mfl_error *err)
{
        stream->ctx = EVP_CIPHER_CTX_new();
        if (!stream->ctx)
                return mfl_fail_memory(err, sizeof *stream, "a cipher");
        begin(stream, secret->key, 0);
        return 0;
}

void mfl_secret_stream_close(struct mfl_secret_stream *stream)
{
        EVP_CIPHER_CTX_free(stream->ctx);
        OPENSSL_cleanse(stream->word, sizeof stream->word);
        stream->ctx = NULL;
}

void mfl_secret_stream_seek(struct mfl_secret_stream *stream, uint64_t part)
{
        begin(stream, NULL, part);
}

void mfl_secret_stream_fill(struct mfl_secret_stream *stream)
{
        static const uint8_t zeros[sizeof stream->word];
        int n = 0;
        mfl_assert(EVP_EncryptUpdate(stream->ctx, (uint8_t *)stream->word, &n, zeros, sizeof zeros));
        mfl_assert(n == (int)sizeof zeros);
        stream->at = 0;
}
