/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of secure sums that includes OpenSSL. */
#include "common/secure/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#define STRETCH 4096 /* words of a stream at once */

/* Nothing from a peer leads here. */
static int broken(struct mfl_error *err, const char *what)
{
        ERR_clear_error();
        return mfl_fail(err, -EIO, "OpenSSL: %s failed", what);
}

int mfl_secure_random(void *ret_bytes, size_t n, struct mfl_error *err)
{
        return RAND_priv_bytes(ret_bytes, (int)n) == 1 ? 0 : broken(err, "the random generator");
}

void mfl_secure_wipe(void *bytes, size_t n)
{
        OPENSSL_cleanse(bytes, n);
}

int mfl_secure_public(
        const struct mfl_secure_key *private, struct mfl_secure_key *ret_public, struct mfl_error *err)
{
        size_t n = sizeof ret_public->v;
        EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, private->v, sizeof private->v);
        bool ok =
                key && EVP_PKEY_get_raw_public_key(key, ret_public->v, &n) == 1 && n == sizeof ret_public->v;
        EVP_PKEY_free(key);
        return ok ? 0 : broken(err, "X25519");
}

int mfl_secure_agree(const struct mfl_secure_key *private, const struct mfl_secure_key *peer,
        struct mfl_secure_key *ret_secret, struct mfl_error *err)
{
        size_t n = sizeof ret_secret->v;
        EVP_PKEY *own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, private->v, sizeof private->v);
        EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer->v, sizeof peer->v);
        EVP_PKEY_CTX *ctx = own ? EVP_PKEY_CTX_new(own, NULL) : NULL;
        int r = 0;
        if (!own || !other || !ctx || EVP_PKEY_derive_init(ctx) != 1 ||
                EVP_PKEY_derive_set_peer(ctx, other) != 1)
                r = broken(err, "X25519");
        else if (EVP_PKEY_derive(ctx, ret_secret->v, &n) != 1 || n != sizeof ret_secret->v) {
                ERR_clear_error(); /* OpenSSL refuses a secret of zeros, RFC 7748, 6.1 */
                r = mfl_fail(err, MFL_INVALID, "a public key of low order");
        }
        EVP_PKEY_CTX_free(ctx);
        EVP_PKEY_free(own);
        EVP_PKEY_free(other);
        return r;
}

int mfl_secure_derive(const struct mfl_secure_key *secret, const uint8_t salt[MFL_SECURE_KEY_BYTES],
        const void *info, size_t n_info, struct mfl_secure_key *ret_key, struct mfl_error *err)
{
        char sha[] = "SHA256";
        const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha, 0),
                OSSL_PARAM_construct_octet_string(
                        OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)secret->v, sizeof secret->v),
                OSSL_PARAM_construct_octet_string(
                        OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)salt, MFL_SECURE_KEY_BYTES),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)info, n_info),
                OSSL_PARAM_construct_end()};
        EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
        EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
        bool ok = ctx && EVP_KDF_derive(ctx, ret_key->v, sizeof ret_key->v, params) == 1;
        EVP_KDF_CTX_free(ctx);
        EVP_KDF_free(kdf);
        return ok ? 0 : broken(err, "HKDF");
}

/* Two words are one block. */
int mfl_secure_mask(const struct mfl_secure_key *key, bool subtract, uint64_t first, uint64_t *v, size_t n,
        struct mfl_error *err)
{
        static const uint8_t zeros[STRETCH * sizeof(uint64_t)];
        uint64_t words[STRETCH];
        uint8_t counter[16] = {0};
        for (int i = 0; i < 8; i++)
                counter[15 - i] = (uint8_t)(first / 2 >> 8 * i);
        EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
        bool ok = ctx && EVP_EncryptInit_ex(ctx, EVP_aes_256_ctr(), NULL, key->v, counter) == 1;
        size_t skip = first % 2;
        for (size_t at = 0; ok && at < n;) {
                size_t count = MFL_MIN(n - at + skip, (size_t)STRETCH);
                int bytes = 0;
                ok = EVP_EncryptUpdate(ctx, (uint8_t *)words, &bytes, zeros, (int)(count * 8)) == 1 &&
                     bytes == (int)(count * 8);
                for (size_t i = skip; ok && i < count; i++)
                        v[at + i - skip] += subtract ? 0 - words[i] : words[i];
                at += count - skip;
                skip = 0;
        }
        EVP_CIPHER_CTX_free(ctx);
        OPENSSL_cleanse(words, sizeof words);
        return ok ? 0 : broken(err, "AES-256-CTR");
}

int mfl_secure_seal(const struct mfl_secure_key *key, const void *plain, uint32_t n, uint8_t *ret_sealed,
        struct mfl_error *err)
{
        static const uint8_t nonce[12];
        int bytes = 0, last = 0;
        EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
        bool ok = ctx && EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key->v, nonce) == 1 &&
                  EVP_EncryptUpdate(ctx, ret_sealed, &bytes, plain, (int)n) == 1 && bytes == (int)n &&
                  EVP_EncryptFinal_ex(ctx, ret_sealed + n, &last) == 1 &&
                  EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, MFL_SECURE_SEAL_BYTES, ret_sealed + n) == 1;
        EVP_CIPHER_CTX_free(ctx);
        return ok ? 0 : broken(err, "AES-256-GCM");
}

int mfl_secure_unseal(const struct mfl_secure_key *key, const uint8_t *sealed, uint32_t n_sealed,
        void *ret_plain, struct mfl_error *err)
{
        static const uint8_t nonce[12];
        uint8_t tag[MFL_SECURE_SEAL_BYTES];
        int bytes = 0, last = 0;
        if (n_sealed < sizeof tag)
                return mfl_fail(err, MFL_INVALID, "a sealed share of %u bytes", n_sealed);
        uint32_t n = n_sealed - (uint32_t)sizeof tag;
        memcpy(tag, sealed + n, sizeof tag);
        EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
        bool set = ctx && EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key->v, nonce) == 1 &&
                   EVP_DecryptUpdate(ctx, ret_plain, &bytes, sealed, (int)n) == 1 && bytes == (int)n &&
                   EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, sizeof tag, tag) == 1;
        bool ok = set && EVP_DecryptFinal_ex(ctx, (uint8_t *)ret_plain + n, &last) == 1;
        EVP_CIPHER_CTX_free(ctx);
        if (!set)
                return broken(err, "AES-256-GCM");
        if (ok)
                return 0;
        ERR_clear_error();
        OPENSSL_cleanse(ret_plain, n);
        return mfl_fail(err, MFL_INVALID, "a share that was not sealed with the agreed key");
}
