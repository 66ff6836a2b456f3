/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures and chains, by OpenSSL. */
#include "proto/tls/tls_sign.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include "proto/tls/tls_internal.h"

#define CHAIN_MAX 8 /* certificates */

struct mfl_tls_signer {
        struct mfl_tls_own own;
        X509_STORE *trust;
        uint8_t *chain;
        uint32_t n_chain;
};

static int append(struct mfl_tls_signer *signer, X509 *cert, struct mfl_error *err)
{
        uint8_t *der = NULL;
        int n = i2d_X509(cert, &der);
        uint8_t *grown = n > 0 ? mfl_realloc(signer->chain, signer->n_chain + (size_t)n) : NULL;
        if (grown) {
                memcpy(grown + signer->n_chain, der, (size_t)n);
                signer->chain = grown;
                signer->n_chain += (uint32_t)n;
        }
        OPENSSL_free(der);
        return grown ? 0 : mfl_fail_memory(err, 1024, "a certificate");
}

/* As for connections: a revocation list is wanted for the peer's own issuer only. */
static int on_verify(int fine, X509_STORE_CTX *ctx)
{
        if (!fine && X509_STORE_CTX_get_error(ctx) == X509_V_ERR_UNABLE_TO_GET_CRL &&
                X509_STORE_CTX_get_error_depth(ctx) > 0) {
                X509_STORE_CTX_set_error(ctx, X509_V_OK);
                return 1;
        }
        return fine;
}

int mfl_tls_signer_new(
        const struct mfl_tls_files *files, struct mfl_tls_signer **ret_signer, struct mfl_error *err)
{
        struct mfl_tls_signer *signer = mfl_calloc(1, sizeof *signer);
        if (!signer)
                return mfl_fail_memory(err, sizeof *signer, "a signer");
        int r = mfl_tls_own_read(files, &signer->own, err);
        signer->trust = r ? NULL : X509_STORE_new();
        if (!r && !signer->trust)
                r = mfl_fail_memory(err, 1024, "certificates");
        if (!r)
                r = mfl_tls_trust_read(files, signer->trust, err);
        if (!r)
                r = append(signer, signer->own.cert, err);
        for (int i = 0; !r && i < sk_X509_num(signer->own.chain); i++)
                r = append(signer, sk_X509_value(signer->own.chain, i), err);
        if (r)
                mfl_tls_signer_free(signer);
        else
                *ret_signer = signer;
        return r;
}

void mfl_tls_signer_free(struct mfl_tls_signer *signer)
{
        if (!signer)
                return;
        mfl_tls_own_deinit(&signer->own);
        X509_STORE_free(signer->trust);
        free(signer->chain);
        free(signer);
}

const uint8_t *mfl_tls_signer_chain(const struct mfl_tls_signer *signer, uint32_t *ret_n)
{
        *ret_n = signer->n_chain;
        return signer->chain;
}

/* Ed25519 and Ed448 hash by themselves. */
static const EVP_MD *hash_of(const EVP_PKEY *key)
{
        return EVP_PKEY_is_a(key, "ED25519") || EVP_PKEY_is_a(key, "ED448") ? NULL : EVP_sha256();
}

static bool pad(EVP_PKEY_CTX *ctx, const EVP_PKEY *key)
{
        return !EVP_PKEY_is_a(key, "RSA") || EVP_PKEY_CTX_set_rsa_padding(ctx, RSA_PKCS1_PSS_PADDING) > 0;
}

int mfl_tls_sign(struct mfl_tls_signer *signer, const void *data, size_t n, uint8_t *ret_signature,
        uint32_t n_max, uint32_t *ret_n, struct mfl_error *err)
{
        size_t bytes = n_max;
        EVP_PKEY_CTX *key = NULL;
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        bool ok = ctx &&
                  EVP_DigestSignInit(ctx, &key, hash_of(signer->own.key), NULL, signer->own.key) == 1 &&
                  pad(key, signer->own.key) && EVP_DigestSign(ctx, ret_signature, &bytes, data, n) == 1;
        EVP_MD_CTX_free(ctx);
        if (!ok)
                return mfl_tls_fail(err, "TLS: sign with the certificate's key");
        *ret_n = (uint32_t)bytes;
        return 0;
}

static int read_chain(const uint8_t *der, uint32_t n, STACK_OF(X509) * *ret_chain, struct mfl_error *err)
{
        STACK_OF(X509) *chain = sk_X509_new_null();
        const uint8_t *at = der, *end = der + n;
        while (chain && at < end && sk_X509_num(chain) < CHAIN_MAX) {
                X509 *cert = d2i_X509(NULL, &at, end - at);
                if (!cert || !sk_X509_push(chain, cert)) {
                        X509_free(cert);
                        break;
                }
        }
        if (chain && at == end && sk_X509_num(chain)) {
                *ret_chain = chain;
                return 0;
        }
        sk_X509_pop_free(chain, X509_free);
        ERR_clear_error();
        return mfl_fail(err, MFL_INVALID, "a certificate that can't be read");
}

static int check_chain(struct mfl_tls_signer *signer, STACK_OF(X509) * chain, struct mfl_error *err)
{
        char subject[128];
        X509 *cert = sk_X509_value(chain, 0);
        X509_STORE_CTX *ctx = X509_STORE_CTX_new();
        bool set = ctx && X509_STORE_CTX_init(ctx, signer->trust, cert, chain) == 1 &&
                   X509_STORE_CTX_set_purpose(ctx, X509_PURPOSE_SSL_CLIENT) == 1;
        if (set)
                X509_STORE_CTX_set_verify_cb(ctx, on_verify);
        bool fine = set && X509_verify_cert(ctx) == 1;
        int why = ctx ? X509_STORE_CTX_get_error(ctx) : X509_V_OK;
        X509_STORE_CTX_free(ctx);
        if (!set)
                return mfl_tls_fail(err, "TLS: check a certificate");
        ERR_clear_error();
        return fine ? 0
                    : mfl_fail(err, MFL_INVALID, "the certificate of %s is refused: %s",
                              mfl_tls_subject(cert, subject, sizeof subject),
                              X509_verify_cert_error_string(why));
}

static int check_signature(X509 *cert, const void *data, size_t n, const uint8_t *signature,
        uint32_t n_signature, struct mfl_error *err)
{
        char subject[128];
        EVP_PKEY *key = X509_get0_pubkey(cert);
        EVP_PKEY_CTX *key_ctx = NULL;
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        bool fine = ctx && key && EVP_DigestVerifyInit(ctx, &key_ctx, hash_of(key), NULL, key) == 1 &&
                    pad(key_ctx, key) && EVP_DigestVerify(ctx, signature, n_signature, data, n) == 1;
        EVP_MD_CTX_free(ctx);
        ERR_clear_error();
        return fine ? 0
                    : mfl_fail(err, MFL_INVALID, "%s has not signed that",
                              mfl_tls_subject(cert, subject, sizeof subject));
}

int mfl_tls_verify(struct mfl_tls_signer *signer, const uint8_t *chain, uint32_t n_chain, const void *data,
        size_t n, const uint8_t *signature, uint32_t n_signature, struct mfl_tls_identity *ret_identity,
        struct mfl_error *err)
{
        STACK_OF(X509) *certs = NULL;
        int r = read_chain(chain, n_chain, &certs, err);
        if (!r)
                r = check_chain(signer, certs, err);
        if (!r)
                r = check_signature(sk_X509_value(certs, 0), data, n, signature, n_signature, err);
        if (!r)
                r = mfl_tls_identity_of(sk_X509_value(certs, 0), ret_identity, err);
        if (!r && !(ret_identity->roles & MFL_TLS_ROLE_DAEMON))
                r = mfl_fail(
                        err, MFL_INVALID, "the certificate of '%s' is not a daemon's", ret_identity->name);
        sk_X509_pop_free(certs, X509_free);
        return r;
}

int mfl_tls_check(struct mfl_tls_signer *signer, const uint8_t *chain, uint32_t n_chain,
        struct mfl_tls_identity *ret_identity, struct mfl_error *err)
{
        STACK_OF(X509) *certs = NULL;
        int r = read_chain(chain, n_chain, &certs, err);
        if (!r)
                r = check_chain(signer, certs, err);
        if (!r)
                r = mfl_tls_identity_of(sk_X509_value(certs, 0), ret_identity, err);
        sk_X509_pop_free(certs, X509_free);
        return r;
}
