/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates, keys and revocation lists from PEM files, and what a certificate says about its owner.
 *
 * Every failure names the file and says what is wrong with it, because the administrator who reads the line rarely
 * created the file.
 */
#include <dirent.h>
#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "proto/tls/tls_internal.h"

#define FILE_BYTES_MAX (16u << 20) /* revocation lists grow */
#define CHAIN_MAX 8
#define CHAIN_BYTES_MAX (32u * 1024) /* every handshake sends it, and peers limit handshakes */

int mfl_tls_fail(struct mfl_error *err, const char *what)
{
        unsigned long code, last = 0;
        char text[160] = "unknown";
        bool memory = false;
        while ((code = ERR_get_error())) {
                memory |= ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE;
                last = code;
        }
        if (memory)
                return mfl_fail(err, -ENOMEM, "%s: out of memory", what);
        if (last) {
                const char *reason = ERR_reason_error_string(last);
                mfl_strcpy(text, sizeof text, reason ? reason : "unknown");
        }
        return mfl_fail(err, MFL_INVALID, "%s: %s", what, text);
}

/* ---- what a certificate says ---- */

const char *mfl_tls_subject(const X509 *cert, char *buf, size_t buf_bytes)
{
        BIO *bio = BIO_new(BIO_s_mem());
        mfl_strcpy(buf, buf_bytes, "?");
        if (bio && X509_NAME_print_ex(bio, X509_get_subject_name(cert), 0,
                           XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB) >= 0) {
                int n = BIO_read(bio, buf, (int)buf_bytes - 1);
                buf[n > 0 ? n : 0] = '\0';
        }
        BIO_free(bio);
        mfl_plain_clean(buf, false);
        return buf;
}

/* A part of the subject as text; false if it cannot be printed unchanged: such a name must not look like another. */
static bool entry_text(const X509_NAME_ENTRY *entry, char *buf, size_t buf_bytes)
{
        unsigned char *text = NULL;
        int n = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(entry));
        bool fine = n > 0 && (size_t)n < buf_bytes;
        for (int i = 0; fine && i < n; i++)
                fine = text[i] >= ' ' && text[i] < 0x7f;
        if (fine) {
                memcpy(buf, text, (size_t)n);
                buf[n] = '\0';
        }
        OPENSSL_free(text);
        ERR_clear_error();
        return fine;
}

static const char *const role_names[] = {"daemon", "operator", "viewer", "admin", "relay", "serve"};

const char *mfl_tls_roles_text(uint32_t roles, char *buf, size_t buf_bytes)
{
        size_t n = 0;
        mfl_strcpy(buf, buf_bytes, "no role");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(role_names); i++)
                if (roles & 1u << i && n < buf_bytes)
                        n += (size_t)snprintf(buf + n, buf_bytes - n, "%s%s", n ? ", " : "", role_names[i]);
        return buf;
}

static void read_subject(X509 *cert, struct mfl_tls_identity *identity)
{
        const X509_NAME *subject = X509_get_subject_name(cert);
        int names = 0, sites = 0;
        for (int i = 0; i < X509_NAME_entry_count(subject); i++) {
                const X509_NAME_ENTRY *entry = X509_NAME_get_entry(subject, i);
                int nid = OBJ_obj2nid(X509_NAME_ENTRY_get_object(entry));
                char text[MFL_TLS_NAME_BYTES] = "";
                if (nid != NID_commonName && nid != NID_organizationalUnitName && nid != NID_organizationName)
                        continue;
                bool fine = entry_text(entry, text, sizeof text);
                if (nid == NID_commonName) { /* two names count as none, because neither takes precedence */
                        mfl_strcpy(identity->name, sizeof identity->name, fine && !names++ ? text : "");
                        continue;
                }
                if (nid == NID_organizationName) {
                        mfl_strcpy(identity->site, sizeof identity->site, fine && !sites++ ? text : "");
                        continue;
                }
                for (size_t k = 0; fine && k < MFL_ARRAY_SIZE(role_names); k++)
                        if (!strcmp(text, role_names[k]))
                                identity->roles |= 1u << k;
        }
}

static uint64_t unix_of(const ASN1_TIME *time)
{
        struct tm tm;
        if (!ASN1_TIME_to_tm(time, &tm))
                return 0;
        time_t t = timegm(&tm);
        return t > 0 ? (uint64_t)t : 0;
}

int mfl_tls_identity_of(X509 *cert, struct mfl_tls_identity *ret_identity, struct mfl_error *err)
{
        struct mfl_tls_identity identity = {0};
        unsigned char digest[EVP_MAX_MD_SIZE];
        unsigned n = 0;
        read_subject(cert, &identity);
        BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
        char *hex = serial ? BN_bn2hex(serial) : NULL;
        if (hex)
                mfl_strcpy(identity.serial, sizeof identity.serial, hex);
        BN_free(serial);
        if (!hex || !X509_digest(cert, EVP_sha256(), digest, &n) || n != MFL_SHA256_BYTES) {
                OPENSSL_free(hex);
                return mfl_tls_fail(err, "TLS: read a certificate");
        }
        OPENSSL_free(hex);
        mfl_hex(digest, MFL_SHA256_BYTES, identity.fingerprint);
        identity.not_after_unix = unix_of(X509_get0_notAfter(cert));
        *ret_identity = identity;
        return 0;
}

/* ---- files ---- */

/* Distinguishes a key with a passphrase, which nobody is there to type, from a broken key. */
static int no_passphrase(char *buf, int size, int writing, void *user)
{
        *(bool *)user = true;
        return -1;
}

static int open_pem(const char *what, const char *path, BIO **ret_bio, char **ret_text, struct mfl_error *err)
{
        char *text = NULL;
        size_t n;
        struct mfl_error why;
        int r = mfl_fs_read(path, FILE_BYTES_MAX, &text, &n, &why);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "%s %s: there is no such file", what, path);
        if (r == -ENOMEM)
                return mfl_fail(err, r, "%s", why.text);
        if (r)
                return mfl_fail(err, MFL_INVALID, "%s: %s", what, why.text);
        *ret_bio = BIO_new_mem_buf(text, (int)n);
        if (!*ret_bio) {
                free(text);
                return mfl_fail_memory(err, n, "a PEM file");
        }
        *ret_text = text;
        return 0;
}

static void close_pem(BIO *bio, char *text, size_t n)
{
        BIO_free(bio);
        if (text)
                OPENSSL_cleanse(text, n);
        free(text);
}

/* After the last block PEM_read reports "no start line": the end, not a failure. */
static bool at_end(void)
{
        unsigned long last = ERR_peek_last_error();
        if (ERR_GET_LIB(last) != ERR_LIB_PEM || ERR_GET_REASON(last) != PEM_R_NO_START_LINE)
                return false;
        ERR_clear_error();
        return true;
}

static void date_text(const ASN1_TIME *time, char *buf, size_t buf_bytes)
{
        struct tm tm;
        if (!ASN1_TIME_to_tm(time, &tm) || !strftime(buf, buf_bytes, "%Y-%m-%d %H:%M:%S UTC", &tm))
                mfl_strcpy(buf, buf_bytes, "an unreadable date");
}

static int check_dates(X509 *cert, const char *path, struct mfl_error *err)
{
        char date[64];
        if (X509_cmp_current_time(X509_get0_notBefore(cert)) > 0) {
                date_text(X509_get0_notBefore(cert), date, sizeof date);
                return mfl_fail(err, MFL_INVALID,
                        "certificate %s: is not valid before %s; is this machine's clock right?", path, date);
        }
        if (X509_cmp_current_time(X509_get0_notAfter(cert)) < 0) {
                date_text(X509_get0_notAfter(cert), date, sizeof date);
                return mfl_fail(
                        err, MFL_INVALID, "certificate %s: expired on %s; issue a new one", path, date);
        }
        return 0;
}

/* The first certificate is our own, the others are its chain. */
static int read_chain(const char *path, struct mfl_tls_own *own, struct mfl_error *err)
{
        BIO *bio;
        char *text;
        size_t bytes = 0;
        int r = open_pem("certificate", path, &bio, &text, err);
        if (r)
                return r;
        X509 *cert;
        own->chain = sk_X509_new_null();
        r = own->chain ? 0 : mfl_fail_memory(err, 0, "certificates");
        while (!r && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
                int n = i2d_X509(cert, NULL);
                bytes += n > 0 ? (size_t)n : 0;
                if (!own->cert)
                        own->cert = cert;
                else if (!sk_X509_push(own->chain, cert)) {
                        X509_free(cert);
                        r = mfl_fail_memory(err, 0, "certificates");
                }
                if (!r && (bytes > CHAIN_BYTES_MAX || sk_X509_num(own->chain) > CHAIN_MAX))
                        r = mfl_fail(err, MFL_INVALID,
                                "certificate %s: more than %d certificates or %u bytes; include only this "
                                "machine's own and those between it and the CA, not the CA's bundle",
                                path, CHAIN_MAX, CHAIN_BYTES_MAX);
        }
        if (!r && !at_end()) {
                char what[400];
                snprintf(what, sizeof what, "certificate %s", path);
                r = mfl_tls_fail(err, what);
        }
        if (!r && !own->cert)
                r = mfl_fail(
                        err, MFL_INVALID, "certificate %s: not PEM: it has no \"BEGIN CERTIFICATE\"", path);
        close_pem(bio, text, 0);
        return r ? r : check_dates(own->cert, path, err);
}

/* A missing file is reported by the function that reads it next. */
static int check_mode(const char *path, struct mfl_error *err)
{
        struct stat st;
        if (!stat(path, &st) && S_ISREG(st.st_mode) && st.st_mode & (S_IROTH | S_IWOTH))
                return mfl_fail(err, MFL_INVALID,
                        "key %s: every user of this machine may %s it (mode %04o); run: chmod 600 %s", path,
                        st.st_mode & S_IROTH ? "read" : "write", (unsigned)st.st_mode & 07777u, path);
        return 0;
}

static int read_key(const char *path, struct mfl_tls_own *own, struct mfl_error *err)
{
        BIO *bio;
        char *text;
        bool asked = false;
        int r = check_mode(path, err);
        if (!r)
                r = open_pem("key", path, &bio, &text, err);
        if (r)
                return r;
        own->key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked);
        close_pem(bio, text, strlen(text));
        if (own->key)
                return 0;
        r = mfl_tls_fail(err, "key");
        if (r < 0)
                return r;
        return mfl_fail(err, MFL_INVALID, "key %s: %s", path,
                asked ? "is protected by a passphrase, which nobody is there to type; store it without one "
                        "(openssl pkey)"
                      : "not PEM: it has no private key that can be read");
}

int mfl_tls_own_read(const struct mfl_tls_files *files, struct mfl_tls_own *ret_own, struct mfl_error *err)
{
        struct mfl_tls_own own = {0};
        ERR_clear_error();
        int r = read_chain(files->cert, &own, err);
        if (!r)
                r = read_key(files->key, &own, err);
        if (!r && X509_check_private_key(own.cert, own.key) != 1) {
                ERR_clear_error();
                r = mfl_fail(err, MFL_INVALID, "key %s: does not belong to certificate %s", files->key,
                        files->cert);
        }
        if (r)
                mfl_tls_own_deinit(&own);
        else
                *ret_own = own;
        return r;
}

void mfl_tls_own_deinit(struct mfl_tls_own *own)
{
        X509_free(own->cert);
        sk_X509_pop_free(own->chain, X509_free);
        EVP_PKEY_free(own->key);
        *own = (struct mfl_tls_own){0};
}

/* ---- whom to trust ---- */

static int read_ca_file(const char *path, X509_STORE *store, int *n, struct mfl_error *err)
{
        BIO *bio;
        char *text, what[400];
        X509 *cert;
        int r = open_pem("CA", path, &bio, &text, err);
        if (r)
                return r;
        snprintf(what, sizeof what, "CA %s", path);
        while (!r && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
                if (!X509_STORE_add_cert(store, cert))
                        r = mfl_tls_fail(err, what);
                X509_free(cert);
                ++*n;
        }
        if (!r && !at_end())
                r = mfl_tls_fail(err, what);
        close_pem(bio, text, 0);
        return r;
}

static bool is_certificate_file(const char *name)
{
        const char *dot = strrchr(name, '.');
        return dot && *name != '.' && (!strcmp(dot, ".pem") || !strcmp(dot, ".crt"));
}

static int read_ca_dir(const char *path, DIR *dir, X509_STORE *store, int *n, struct mfl_error *err)
{
        int r = 0;
        for (struct dirent *e; !r && (e = readdir(dir));) {
                char file[4096];
                if (!is_certificate_file(e->d_name))
                        continue;
                if (snprintf(file, sizeof file, "%s/%s", path, e->d_name) < (int)sizeof file)
                        r = read_ca_file(file, store, n, err);
        }
        return r;
}

static int read_ca(const char *path, X509_STORE *store, struct mfl_error *err)
{
        int n = 0, r;
        DIR *dir = opendir(path);
        if (dir) {
                r = read_ca_dir(path, dir, store, &n, err);
                closedir(dir);
        } else {
                r = read_ca_file(path, store, &n, err);
        }
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID, "CA %s: %s", path,
                        dir ? "the directory has no .pem or .crt file with a certificate"
                            : "not PEM: it has no \"BEGIN CERTIFICATE\"");
        return r;
}

static void warn_if_stale(const char *path, const X509_CRL *crl)
{
        const ASN1_TIME *next = X509_CRL_get0_nextUpdate(crl);
        char date[64];
        if (!next || X509_cmp_current_time(next) > 0)
                return;
        date_text(next, date, sizeof date);
        mfl_log(MFL_LOG_WARN,
                "revocation list %s: should have been renewed by %s; until then, certificates of its CA are "
                "refused",
                path, date);
}

static int read_crl(const char *path, X509_STORE *store, struct mfl_error *err)
{
        BIO *bio;
        char *text, what[400];
        X509_CRL *crl;
        int n = 0;
        int r = open_pem("revocation list", path, &bio, &text, err);
        if (r)
                return r;
        snprintf(what, sizeof what, "revocation list %s", path);
        while (!r && (crl = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL))) {
                if (!X509_STORE_add_crl(store, crl))
                        r = mfl_tls_fail(err, what);
                warn_if_stale(path, crl);
                X509_CRL_free(crl);
                n++;
        }
        if (!r && !at_end())
                r = mfl_tls_fail(err, what);
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID, "%s: not PEM: it has no \"BEGIN X509 CRL\"", what);
        close_pem(bio, text, 0);
        return r;
}

int mfl_tls_trust_read(const struct mfl_tls_files *files, X509_STORE *store, struct mfl_error *err)
{
        ERR_clear_error();
        int r = read_ca(files->ca, store, err);
        if (r || !files->crl || !*files->crl)
                return r;
        r = read_crl(files->crl, store, err);
        if (!r && !X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL))
                r = mfl_tls_fail(err, "revocation list");
        return r;
}
