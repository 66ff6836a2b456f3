/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests, by OpenSSL's library. */
#include "tests/unit/proto/certs.h"

#include <dirent.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_of(const struct certs *c, const char *file, const char *end, char *buf)
{
        char path[128];
        snprintf(path, sizeof path, "%s/%s%s", c->dir, file, end);
        memcpy(buf, path, sizeof path);
}

static void extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
        X509V3_CTX ctx;
        X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
        X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        assert_non_null(e);
        assert_int_equal(X509_add_ext(cert, e, -1), 1);
        X509_EXTENSION_free(e);
}

static void add_name(X509 *cert, const char *field, const char *value)
{
        if (value)
                assert_int_equal(X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), field, MBSTRING_UTF8,
                                         (const unsigned char *)value, -1, -1, 0),
                        1);
}

static X509 *new_cert(struct certs *c, EVP_PKEY *key, long from_days, long to_days)
{
        X509 *cert = X509_new();
        assert_non_null(cert);
        X509_set_version(cert, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(cert), ++c->serial);
        X509_gmtime_adj(X509_getm_notBefore(cert), from_days * 86400 - 60);
        X509_gmtime_adj(X509_getm_notAfter(cert), to_days * 86400 + 60);
        X509_set_pubkey(cert, key);
        return cert;
}

static void write_cert(const char *path, X509 *cert)
{
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(PEM_write_X509(f, cert), 1);
        fclose(f);
}

static void make_ca(struct certs *c, int i)
{
        char name[16], path[128];
        snprintf(name, sizeof name, "CA %d", i);
        c->ca_key[i] = EVP_EC_gen("P-256");
        c->ca[i] = new_cert(c, c->ca_key[i], -100, 100);
        add_name(c->ca[i], "CN", name);
        X509_set_issuer_name(c->ca[i], X509_get_subject_name(c->ca[i]));
        extend(c->ca[i], c->ca[i], NID_basic_constraints, "critical,CA:TRUE");
        extend(c->ca[i], c->ca[i], NID_subject_key_identifier, "hash");
        assert_true(X509_sign(c->ca[i], c->ca_key[i], EVP_sha256()) > 0);
        snprintf(name, sizeof name, "ca%d", i);
        path_of(c, name, ".pem", path);
        memcpy(c->ca_file[i], path, sizeof path);
        write_cert(path, c->ca[i]);
}

void certs_init(struct certs *c)
{
        memset(c, 0, sizeof *c);
        strcpy(c->dir, "/tmp/mfl-certs-XXXXXX");
        assert_non_null(mkdtemp(c->dir));
        make_ca(c, 0);
        make_ca(c, 1);
}

void certs_deinit(struct certs *c)
{
        DIR *dir = opendir(c->dir);
        for (struct dirent *e; dir && (e = readdir(dir));) {
                char path[400];
                snprintf(path, sizeof path, "%s/%s", c->dir, e->d_name);
                if (*e->d_name != '.')
                        unlink(path);
        }
        closedir(dir);
        rmdir(c->dir);
        for (int i = 0; i < 2; i++) {
                X509_free(c->ca[i]);
                EVP_PKEY_free(c->ca_key[i]);
        }
}

void certs_issue(struct certs *c, const struct certs_spec *spec)
{
        char path[128];
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *cert = new_cert(c, key, spec->from_days, spec->to_days);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(spec->ou); i++)
                add_name(cert, "OU", spec->ou[i]);
        add_name(cert, "CN", spec->cn);
        add_name(cert, "CN", spec->cn2);
        X509_set_issuer_name(cert, X509_get_subject_name(c->ca[spec->ca]));
        if (spec->san)
                extend(cert, c->ca[spec->ca], NID_subject_alt_name, spec->san);
        assert_true(X509_sign(cert, c->ca_key[spec->ca], EVP_sha256()) > 0);
        path_of(c, spec->file, ".pem", path);
        write_cert(path, cert);
        path_of(c, spec->file, ".key", path);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
        fclose(f);
        chmod(path, 0600);
        X509_free(cert);
        EVP_PKEY_free(key);
}

void certs_revoke(struct certs *c, const char *file, const char *file_out, long to_days)
{
        char path[128];
        path_of(c, file, ".pem", path);
        FILE *f = fopen(path, "r");
        X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
        fclose(f);
        X509_CRL *crl = X509_CRL_new();
        X509_REVOKED *revoked = X509_REVOKED_new();
        ASN1_TIME *from = X509_gmtime_adj(NULL, -3 * 86400), *to = X509_gmtime_adj(NULL, to_days * 86400);
        X509_CRL_set_version(crl, 1);
        X509_CRL_set_issuer_name(crl, X509_get_subject_name(c->ca[0]));
        X509_CRL_set1_lastUpdate(crl, from);
        X509_CRL_set1_nextUpdate(crl, to);
        X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(cert));
        X509_REVOKED_set_revocationDate(revoked, from);
        X509_CRL_add0_revoked(crl, revoked);
        assert_true(X509_CRL_sign(crl, c->ca_key[0], EVP_sha256()) > 0);
        path_of(c, file_out, ".pem", path);
        f = fopen(path, "w");
        assert_int_equal(PEM_write_X509_CRL(f, crl), 1);
        fclose(f);
        ASN1_TIME_free(from);
        ASN1_TIME_free(to);
        X509_CRL_free(crl);
        X509_free(cert);
}

const struct mfl_tls_files *certs_files(
        const struct certs *c, int ca, const char *file, const char *crl, struct certs_files *f)
{
        strcpy(f->ca, c->ca_file[ca]);
        path_of(c, file, ".pem", f->cert);
        path_of(c, file, ".key", f->key);
        f->crl[0] = '\0';
        if (crl)
                path_of(c, crl, ".pem", f->crl);
        f->files = (struct mfl_tls_files){.ca = f->ca, .cert = f->cert, .key = f->key, .crl = f->crl};
        return &f->files;
}
