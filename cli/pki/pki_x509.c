/* SPDX-License-Identifier: Apache-2.0 */
/* The private CA's use of OpenSSL: the only file of the command line that includes its headers. */
#include "cli/pki/pki_x509.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/pkcs12.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "common/base/digest.h"

#define SECURITY_BITS_MIN 112
#define DAY_S 86400

struct mfl_pki_ca {
        X509 *cert;
        EVP_PKEY *key;
};
struct mfl_pki_public {
        EVP_PKEY *key;
};

/* Failures of the library for lack of memory or random numbers, which no input can cause. */
static int fail_library(struct mfl_error *err, const char *what)
{
        char text[160] = "no reason given";
        unsigned long code = ERR_get_error();
        if (code)
                ERR_error_string_n(code, text, sizeof text);
        ERR_clear_error();
        return mfl_fail(err, -EIO, "%s: OpenSSL: %s", what, text);
}

static int fail_input(struct mfl_error *err, const char *what, const char *why)
{
        ERR_clear_error();
        return mfl_fail(err, MFL_INVALID, "%s: %s", what, why);
}

/* ---- PEM ---- */

static int take_text(BIO *bio, char **ret_text, struct mfl_error *err)
{
        char *data;
        long n = BIO_get_mem_data(bio, &data);
        char *text = mfl_malloc((size_t)n + 1);
        if (!text)
                return mfl_fail_memory(err, (size_t)n, "PEM text");
        memcpy(text, data, (size_t)n);
        text[n] = '\0';
        *ret_text = text;
        return 0;
}

/* The BIO's buffer may have held a key. */
static void drop_bio(BIO *bio)
{
        char *data;
        long n = bio ? BIO_get_mem_data(bio, &data) : 0;
        if (n > 0)
                OPENSSL_cleanse(data, (size_t)n);
        BIO_free(bio);
}

static bool write_encrypted(BIO *bio, EVP_PKEY *key, const char *pass)
{
        bool ok = false;
        PKCS8_PRIV_KEY_INFO *plain = EVP_PKEY2PKCS8(key);
        X509_SIG *sealed = NULL;
        /* -1: PBES2, whose PRF is HMAC with SHA-256. */
        if (plain)
                sealed = PKCS8_encrypt(-1, EVP_aes_256_cbc(), pass, (int)strlen(pass), NULL, 0,
                        MFL_PKI_PASS_ITERATIONS, plain);
        if (sealed)
                ok = PEM_write_bio_PKCS8(bio, sealed);
        X509_SIG_free(sealed);
        PKCS8_PRIV_KEY_INFO_free(plain);
        return ok;
}

static int key_text(EVP_PKEY *key, const char *pass, char **ret_pem, struct mfl_error *err)
{
        BIO *bio = BIO_new(BIO_s_mem());
        int r;
        if (!bio || !(pass ? write_encrypted(bio, key, pass)
                           : PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)))
                r = fail_library(err, "writing a key");
        else
                r = take_text(bio, ret_pem, err);
        drop_bio(bio);
        return r;
}

static int cert_text(X509 *cert, char **ret_pem, struct mfl_error *err)
{
        BIO *bio = BIO_new(BIO_s_mem());
        int r = !bio || !PEM_write_bio_X509(bio, cert) ? fail_library(err, "writing a certificate")
                                                       : take_text(bio, ret_pem, err);
        BIO_free(bio);
        return r;
}

/* Replaces OpenSSL's question on the terminal. -1: there is no pass phrase, or it does not fit. */
static int give_pass(char *buf, int size, int writing, void *user)
{
        const char *pass = user;
        size_t n = pass ? strlen(pass) : 0;
        if (!n || n > (size_t)size)
                return -1;
        memcpy(buf, pass, n);
        return (int)n;
}

static int read_key(
        const char *pem, const char *pass, const char *what, EVP_PKEY **ret_key, struct mfl_error *err)
{
        bool sealed = strstr(pem, "ENCRYPTED") != NULL;
        if (sealed && !pass)
                return fail_input(err, what, "the key is encrypted: give --ca-pass-file FILE");
        BIO *bio = BIO_new_mem_buf(pem, -1);
        if (!bio)
                return fail_library(err, what);
        EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, give_pass, (void *)(uintptr_t)pass);
        BIO_free(bio);
        if (!key)
                return fail_input(err, what,
                        sealed ? "wrong pass phrase, or a damaged file" : "not a private key in PEM");
        *ret_key = key;
        return 0;
}

static int read_cert(const char *pem, const char *what, X509 **ret_cert, struct mfl_error *err)
{
        BIO *bio = BIO_new_mem_buf(pem, -1);
        if (!bio)
                return fail_library(err, what);
        X509 *cert = PEM_read_bio_X509(bio, NULL, give_pass, NULL);
        BIO_free(bio);
        if (!cert)
                return fail_input(err, what, "not a certificate in PEM");
        *ret_cert = cert;
        return 0;
}

/* ---- parts of certificates ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
        X509V3_CTX ctx;
        X509V3_set_ctx_nodb(&ctx);
        X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
        X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        bool ok = ext && X509_add_ext(cert, ext, -1);
        X509_EXTENSION_free(ext);
        return ok;
}

static bool add_name(X509_NAME *name, const char *key, const char *value)
{
        return X509_NAME_add_entry_by_txt(name, key, MBSTRING_UTF8, (const unsigned char *)value, -1, -1, 0);
}

/* The top bit is set, so that every serial number has 32 digits. */
static bool set_random_serial(X509 *cert)
{
        BIGNUM *bn = BN_new();
        bool ok = bn && BN_rand(bn, 128, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) &&
                  BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert));
        BN_free(bn);
        return ok;
}

static bool serial_text(const ASN1_INTEGER *serial, char text[MFL_PKI_SERIAL_BYTES])
{
        BIGNUM *bn = ASN1_INTEGER_to_BN(serial, NULL);
        char *hex = bn ? BN_bn2hex(bn) : NULL;
        bool ok = hex && mfl_strcpy(text, MFL_PKI_SERIAL_BYTES, hex);
        OPENSSL_free(hex);
        BN_free(bn);
        return ok;
}

static bool set_times(X509 *cert, int64_t not_before, int64_t not_after)
{
        return ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)not_before) &&
               ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)not_after);
}

static bool time_of(const ASN1_TIME *t, int64_t *ret_unix)
{
        ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
        int days, seconds;
        bool ok = epoch && t && ASN1_TIME_diff(&days, &seconds, epoch, t);
        ASN1_TIME_free(epoch);
        if (ok)
                *ret_unix = (int64_t)days * DAY_S + seconds;
        return ok;
}

static GENERAL_NAME *general_name(const char *host)
{
        GENERAL_NAME *name = GENERAL_NAME_new();
        ASN1_OCTET_STRING *ip = a2i_IPADDRESS(host);
        ASN1_IA5STRING *dns = ip ? NULL : ASN1_IA5STRING_new();
        if (name && ip) {
                GENERAL_NAME_set0_value(name, GEN_IPADD, ip);
                return name;
        }
        if (name && dns && ASN1_STRING_set(dns, host, -1)) {
                GENERAL_NAME_set0_value(name, GEN_DNS, dns);
                return name;
        }
        ASN1_OCTET_STRING_free(ip);
        ASN1_IA5STRING_free(dns);
        GENERAL_NAME_free(name);
        return NULL;
}

static bool add_hosts(X509 *cert, const struct mfl_pki_leaf *leaf)
{
        GENERAL_NAMES *names = GENERAL_NAMES_new();
        bool ok = names != NULL;
        for (int i = 0; ok && i < leaf->n_hosts; i++) {
                GENERAL_NAME *name = general_name(leaf->hosts[i]);
                ok = name && sk_GENERAL_NAME_push(names, name) > 0;
                if (!ok)
                        GENERAL_NAME_free(name);
        }
        ok = ok && (!leaf->n_hosts || X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) == 1);
        GENERAL_NAMES_free(names);
        ERR_clear_error(); /* for names that are not addresses */
        return ok;
}

/* ---- the CA ---- */

static bool fill_ca(X509 *cert, EVP_PKEY *key, const char *name, int64_t now, int days)
{
        X509_NAME *subject = X509_get_subject_name(cert);
        return X509_set_version(cert, X509_VERSION_3) && set_random_serial(cert) &&
               set_times(cert, now - MFL_PKI_EARLY_S, now + (int64_t)days * DAY_S) &&
               add_name(subject, "CN", name) && X509_set_issuer_name(cert, subject) &&
               X509_set_pubkey(cert, key) &&
               add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
               add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") &&
               add_extension(cert, cert, NID_subject_key_identifier, "hash") &&
               add_extension(cert, cert, NID_authority_key_identifier, "keyid:always") &&
               X509_sign(cert, key, EVP_sha256()) > 0;
}

int mfl_pki_ca_make(const char *name, int64_t now, int days, const char *pass, char **ret_cert_pem,
        char **ret_key_pem, struct mfl_error *err)
{
        char *cert_pem = NULL, *key_pem = NULL;
        int r = 0;
        X509 *cert = X509_new();
        EVP_PKEY *key = EVP_EC_gen("P-256");
        if (!cert || !key || !fill_ca(cert, key, name, now, days))
                r = fail_library(err, "making the CA");
        if (!r)
                r = cert_text(cert, &cert_pem, err);
        if (!r)
                r = key_text(key, pass, &key_pem, err);
        X509_free(cert);
        EVP_PKEY_free(key);
        if (r) {
                free(cert_pem);
                return r;
        }
        *ret_cert_pem = cert_pem;
        *ret_key_pem = key_pem;
        return 0;
}

int mfl_pki_ca_read(const char *cert_pem, const char *key_pem, const char *pass, struct mfl_pki_ca **ret_ca,
        struct mfl_error *err)
{
        struct mfl_pki_ca *ca = mfl_calloc(1, sizeof *ca);
        if (!ca)
                return mfl_fail_memory(err, sizeof *ca, "the CA");
        int r = read_cert(cert_pem, "ca.pem", &ca->cert, err);
        if (!r)
                r = read_key(key_pem, pass, "ca.key", &ca->key, err);
        if (!r && !X509_check_private_key(ca->cert, ca->key))
                r = fail_input(err, "ca.key", "does not belong to ca.pem");
        if (!r && !X509_check_ca(ca->cert))
                r = fail_input(err, "ca.pem", "not the certificate of a CA");
        if (r)
                mfl_pki_ca_free(ca);
        else
                *ret_ca = ca;
        return r;
}

int64_t mfl_pki_ca_not_after(const struct mfl_pki_ca *ca)
{
        int64_t t = 0;
        return time_of(X509_get0_notAfter(ca->cert), &t) ? t : 0;
}

void mfl_pki_ca_free(struct mfl_pki_ca *ca)
{
        if (!ca)
                return;
        X509_free(ca->cert);
        EVP_PKEY_free(ca->key);
        free(ca);
}

/* ---- keys ---- */

/* Takes over the key, also on failure. */
static int wrap_public(EVP_PKEY *key, struct mfl_pki_public **ret_key, struct mfl_error *err)
{
        struct mfl_pki_public *public = mfl_calloc(1, sizeof *public);
        if (!public) {
                EVP_PKEY_free(key);
                return mfl_fail_memory(err, sizeof *public, "a key");
        }
        public->key = key;
        *ret_key = public;
        return 0;
}

int mfl_pki_key_make(char **ret_key_pem, struct mfl_pki_public **ret_key, struct mfl_error *err)
{
        char *pem;
        EVP_PKEY *key = EVP_EC_gen("P-256");
        if (!key)
                return fail_library(err, "making a key");
        int r = key_text(key, NULL, &pem, err);
        if (r) {
                EVP_PKEY_free(key);
                return r;
        }
        r = wrap_public(key, ret_key, err);
        if (r)
                mfl_pki_wipe(pem);
        else
                *ret_key_pem = pem;
        return r;
}

int mfl_pki_public_of_csr(
        const char *pem, const char *what, struct mfl_pki_public **ret_key, struct mfl_error *err)
{
        BIO *bio = BIO_new_mem_buf(pem, -1);
        if (!bio)
                return fail_library(err, what);
        X509_REQ *req = PEM_read_bio_X509_REQ(bio, NULL, give_pass, NULL);
        BIO_free(bio);
        if (!req)
                return fail_input(err, what, "not a certificate request in PEM");
        EVP_PKEY *key = X509_REQ_get_pubkey(req);
        int r = 0;
        if (!key)
                r = fail_input(err, what, "the request's public key is of an unknown kind");
        else if (EVP_PKEY_get_security_bits(key) < SECURITY_BITS_MIN)
                r = fail_input(err, what, "the request's key is too weak; EC P-256 is right");
        else if (X509_REQ_verify(req, key) != 1)
                r = fail_input(err, what, "the request's signature is wrong: it was damaged or forged");
        X509_REQ_free(req);
        if (!r)
                return wrap_public(key, ret_key, err);
        EVP_PKEY_free(key);
        return r;
}

int mfl_pki_public_of_cert(const struct mfl_pki_ca *ca, const char *pem, const char *serial, const char *what,
        struct mfl_pki_public **ret_key, struct mfl_error *err)
{
        char text[MFL_PKI_SERIAL_BYTES];
        X509 *cert = NULL;
        int r = read_cert(pem, what, &cert, err);
        if (r)
                return r;
        EVP_PKEY *key = X509_get_pubkey(cert);
        if (!key || X509_verify(cert, ca->key) != 1)
                r = fail_input(err, what, "not a certificate of this CA");
        else if (!serial_text(X509_get0_serialNumber(cert), text) || strcmp(text, serial))
                r = fail_input(err, what, "not the certificate that the index names");
        X509_free(cert);
        if (!r)
                return wrap_public(key, ret_key, err);
        EVP_PKEY_free(key);
        return r;
}

void mfl_pki_public_free(struct mfl_pki_public *key)
{
        if (key)
                EVP_PKEY_free(key->key);
        free(key);
}

int mfl_pki_key_belongs(
        const char *key_pem, const struct mfl_pki_public *key, const char *what, struct mfl_error *err)
{
        EVP_PKEY *private = NULL;
        int r = read_key(key_pem, NULL, what, &private, err);
        if (r)
                return r;
        if (EVP_PKEY_eq(private, key->key) != 1)
                r = fail_input(err, what, "does not belong to the certificate beside it");
        EVP_PKEY_free(private);
        return r;
}

/* ---- leaves ---- */

static bool fill_leaf(X509 *cert, const struct mfl_pki_ca *ca, const struct mfl_pki_leaf *leaf,
        const struct mfl_pki_public *key, int64_t now)
{
        X509_NAME *subject = X509_get_subject_name(cert);
        if (leaf->site && *leaf->site && !add_name(subject, "O", leaf->site))
                return false;
        for (int i = 0; i < leaf->n_roles; i++)
                if (!add_name(subject, "OU", leaf->roles[i]))
                        return false;
        return X509_set_version(cert, X509_VERSION_3) && set_random_serial(cert) &&
               set_times(cert, now - MFL_PKI_EARLY_S, leaf->not_after) &&
               add_name(subject, "CN", leaf->name) &&
               X509_set_issuer_name(cert, X509_get_subject_name(ca->cert)) &&
               X509_set_pubkey(cert, key->key) &&
               add_extension(cert, ca->cert, NID_basic_constraints, "critical,CA:FALSE") &&
               add_extension(cert, ca->cert, NID_key_usage, "critical,digitalSignature") &&
               add_extension(cert, ca->cert, NID_ext_key_usage,
                       leaf->server && leaf->client ? "serverAuth,clientAuth"
                       : leaf->server               ? "serverAuth"
                                                    : "clientAuth") &&
               add_extension(cert, ca->cert, NID_subject_key_identifier, "hash") &&
               add_extension(cert, ca->cert, NID_authority_key_identifier, "keyid:always") &&
               add_hosts(cert, leaf) && X509_sign(cert, ca->key, EVP_sha256()) > 0;
}

int mfl_pki_sign(const struct mfl_pki_ca *ca, const struct mfl_pki_leaf *leaf,
        const struct mfl_pki_public *key, int64_t now, char **ret_cert_pem,
        char ret_serial[MFL_PKI_SERIAL_BYTES], struct mfl_error *err)
{
        char serial[MFL_PKI_SERIAL_BYTES];
        X509 *cert = X509_new();
        int r;
        if (!cert || !fill_leaf(cert, ca, leaf, key, now) ||
                !serial_text(X509_get0_serialNumber(cert), serial))
                r = fail_library(err, "signing a certificate");
        else
                r = cert_text(cert, ret_cert_pem, err);
        X509_free(cert);
        if (!r)
                memcpy(ret_serial, serial, sizeof serial);
        return r;
}

/* ---- revocation ---- */

static bool add_revoked(X509_CRL *crl, const struct mfl_pki_revoked *revoked)
{
        BIGNUM *bn = NULL;
        X509_REVOKED *entry = X509_REVOKED_new();
        ASN1_INTEGER *serial = BN_hex2bn(&bn, revoked->serial) ? BN_to_ASN1_INTEGER(bn, NULL) : NULL;
        ASN1_TIME *when = ASN1_TIME_set(NULL, (time_t)revoked->when);
        bool ok = entry && serial && when && X509_REVOKED_set_serialNumber(entry, serial) &&
                  X509_REVOKED_set_revocationDate(entry, when) && X509_CRL_add0_revoked(crl, entry);
        if (!ok)
                X509_REVOKED_free(entry);
        ASN1_TIME_free(when);
        ASN1_INTEGER_free(serial);
        BN_free(bn);
        return ok;
}

static bool set_crl_extensions(X509_CRL *crl, X509 *issuer, uint64_t number)
{
        X509V3_CTX ctx;
        X509V3_set_ctx_nodb(&ctx);
        X509V3_set_ctx(&ctx, issuer, NULL, NULL, crl, 0);
        X509_EXTENSION *aki = X509V3_EXT_conf_nid(NULL, &ctx, NID_authority_key_identifier, "keyid:always");
        ASN1_INTEGER *n = ASN1_INTEGER_new();
        bool ok = aki && n && X509_CRL_add_ext(crl, aki, -1) && ASN1_INTEGER_set_uint64(n, number) &&
                  X509_CRL_add1_ext_i2d(crl, NID_crl_number, n, 0, 0) == 1;
        ASN1_INTEGER_free(n);
        X509_EXTENSION_free(aki);
        return ok;
}

static bool fill_crl(X509_CRL *crl, const struct mfl_pki_ca *ca, const struct mfl_pki_revoked *revoked,
        size_t n, uint64_t number, int64_t now, int64_t next_update)
{
        ASN1_TIME *last = ASN1_TIME_set(NULL, (time_t)(now - MFL_PKI_EARLY_S));
        ASN1_TIME *next = ASN1_TIME_set(NULL, (time_t)next_update);
        bool ok = last && next && X509_CRL_set_version(crl, X509_CRL_VERSION_2) &&
                  X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca->cert)) &&
                  X509_CRL_set1_lastUpdate(crl, last) && X509_CRL_set1_nextUpdate(crl, next);
        ASN1_TIME_free(last);
        ASN1_TIME_free(next);
        for (size_t i = 0; ok && i < n; i++)
                ok = add_revoked(crl, &revoked[i]);
        return ok && X509_CRL_sort(crl) && set_crl_extensions(crl, ca->cert, number) &&
               X509_CRL_sign(crl, ca->key, EVP_sha256()) > 0;
}

int mfl_pki_crl_make(const struct mfl_pki_ca *ca, const struct mfl_pki_revoked *revoked, size_t n,
        uint64_t number, int64_t now, int64_t next_update, char **ret_crl_pem, struct mfl_error *err)
{
        X509_CRL *crl = X509_CRL_new();
        BIO *bio = BIO_new(BIO_s_mem());
        int r;
        if (!crl || !bio || !fill_crl(crl, ca, revoked, n, number, now, next_update) ||
                !PEM_write_bio_X509_CRL(bio, crl))
                r = fail_library(err, "making the revocation list");
        else
                r = take_text(bio, ret_crl_pem, err);
        BIO_free(bio);
        X509_CRL_free(crl);
        return r;
}

/* ---- looking ---- */

int mfl_pki_cert_not_after(const char *pem, const char *what, int64_t *ret_not_after, struct mfl_error *err)
{
        X509 *cert = NULL;
        int r = read_cert(pem, what, &cert, err);
        if (!r && !time_of(X509_get0_notAfter(cert), ret_not_after))
                r = fail_input(err, what, "a date that can't be read");
        X509_free(cert);
        return r;
}

int mfl_pki_crl_next_update(
        const char *pem, const char *what, int64_t *ret_next_update, struct mfl_error *err)
{
        BIO *bio = BIO_new_mem_buf(pem, -1);
        if (!bio)
                return fail_library(err, what);
        X509_CRL *crl = PEM_read_bio_X509_CRL(bio, NULL, give_pass, NULL);
        BIO_free(bio);
        int r = 0;
        if (!crl || !time_of(X509_CRL_get0_nextUpdate(crl), ret_next_update))
                r = fail_input(err, what, "not a revocation list in PEM");
        X509_CRL_free(crl);
        return r;
}

int mfl_pki_random_hex(size_t n, char *hex, struct mfl_error *err)
{
        uint8_t bytes[16];
        mfl_assert(n <= sizeof bytes);
        if (RAND_bytes(bytes, (int)n) != 1)
                return fail_library(err, "random numbers");
        mfl_hex(bytes, n, hex);
        return 0;
}

void mfl_pki_wipe(char *text)
{
        if (text)
                OPENSSL_cleanse(text, strlen(text));
        free(text);
}
