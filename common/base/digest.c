/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 by OpenSSL's EVP; the only file here that includes OpenSSL. */
#include "common/base/digest.h"

#include <openssl/evp.h>

int mfl_sha256_init(struct mfl_sha256 *sha, struct mfl_error *err)
{
        sha->ctx = EVP_MD_CTX_new();
        if (!sha->ctx)
                return mfl_fail(err, -ENOMEM, "out of memory (SHA-256 context)");
        if (EVP_DigestInit_ex(sha->ctx, EVP_sha256(), NULL) != 1) {
                mfl_sha256_deinit(sha);
                return mfl_fail(err, -EIO, "OpenSSL has no SHA-256");
        }
        return 0;
}

int mfl_sha256_update(struct mfl_sha256 *sha, const void *data, size_t bytes, struct mfl_error *err)
{
        if (bytes && EVP_DigestUpdate(sha->ctx, data, bytes) != 1)
                return mfl_fail(err, -EIO, "OpenSSL: SHA-256 of %zu bytes failed", bytes);
        return 0;
}

int mfl_sha256_final(struct mfl_sha256 *sha, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err)
{
        if (EVP_DigestFinal_ex(sha->ctx, ret_digest, NULL) != 1)
                return mfl_fail(err, -EIO, "OpenSSL: finishing SHA-256 failed");
        return 0;
}

int mfl_sha256_copy(const struct mfl_sha256 *from, struct mfl_sha256 *ret_sha, struct mfl_error *err)
{
        struct mfl_sha256 sha = {EVP_MD_CTX_new()};
        if (!sha.ctx)
                return mfl_fail(err, -ENOMEM, "out of memory (SHA-256 context)");
        if (EVP_MD_CTX_copy_ex(sha.ctx, from->ctx) != 1) {
                mfl_sha256_deinit(&sha);
                return mfl_fail(err, -EIO, "OpenSSL: copying SHA-256 failed");
        }
        *ret_sha = sha;
        return 0;
}

void mfl_sha256_deinit(struct mfl_sha256 *sha)
{
        EVP_MD_CTX_free(sha->ctx);
        sha->ctx = NULL;
}

int mfl_sha256(const void *data, size_t bytes, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err)
{
        struct mfl_sha256 sha;
        int r = mfl_sha256_init(&sha, err);
        if (r)
                return r;
        r = mfl_sha256_update(&sha, data, bytes, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}

uint64_t mfl_sha256_number(const uint8_t digest[MFL_SHA256_BYTES])
{
        uint64_t v = 0;
        for (int i = 7; i >= 0; i--)
                v = v << 8 | digest[i];
        return v;
}

void mfl_hex(const uint8_t *bytes, size_t n, char *hex)
{
        static const char digits[] = "0123456789abcdef";
        for (size_t i = 0; i < n; i++) {
                hex[2 * i] = digits[bytes[i] >> 4];
                hex[2 * i + 1] = digits[bytes[i] & 15];
        }
        hex[2 * n] = '\0';
}
