/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests, made in memory and written as PEM files into a scratch directory. */
#ifndef MFL_TESTS_UNIT_PROTO_CERTS_H
#define MFL_TESTS_UNIT_PROTO_CERTS_H

#include <openssl/x509.h>

#include "tests/lib/test.h"
#include "proto/tls/tls.h"

struct certs {
        char dir[64];
        X509 *ca[2]; /* two that know nothing of each other */
        EVP_PKEY *ca_key[2];
        char ca_file[2][128];
        long serial;
};
struct certs_spec {
        int ca;               /* 0 or 1 */
        const char *file;     /* FILE.pem and FILE.key are written */
        const char *cn, *cn2; /* NULL: none */
        const char *ou[3];
        const char *san;         /* "DNS:localhost,IP:127.0.0.1"; NULL: none */
        long from_days, to_days; /* from now */
};
/* Paths into the directory, for one context. */
struct certs_files {
        char ca[128], cert[128], key[128], crl[128];
        struct mfl_tls_files files;
};

void certs_init(struct certs *certs);
void certs_deinit(struct certs *certs); /* removes the directory */
void certs_issue(struct certs *certs, const struct certs_spec *spec);
/* A CRL of CA 0 with FILE's certificate in it, as FILE_OUT; to_days: until when it is good. */
void certs_revoke(struct certs *certs, const char *file, const char *file_out, long to_days);
/* crl: NULL for none. */
const struct mfl_tls_files *certs_files(
        const struct certs *certs, int ca, const char *file, const char *crl, struct certs_files *ret_files);

#endif
