/* SPDX-License-Identifier: Apache-2.0 */
/* What tls.c (connections) and tls_files.c (certificates from files) share. */
#ifndef MFL_PROTO_TLS_TLS_INTERNAL_H
#define MFL_PROTO_TLS_TLS_INTERNAL_H

#include <openssl/x509.h>

#include "proto/tls/tls.h"

/* Our own certificate, those between it and the CA, and its key. */
struct mfl_tls_own {
        X509 *cert;
        STACK_OF(X509) * chain;
        EVP_PKEY *key;
};
int mfl_tls_own_read(const struct mfl_tls_files *files, struct mfl_tls_own *ret_own, struct mfl_error *err);
void mfl_tls_own_deinit(struct mfl_tls_own *own);
/* CA certificates and revocation lists into the store. */
int mfl_tls_trust_read(const struct mfl_tls_files *files, X509_STORE *store, struct mfl_error *err);

/* -ENOMEM if this thread's OpenSSL errors say so, otherwise MFL_INVALID; `what` is the caller's text. Clears the
 * errors. */
int mfl_tls_fail(struct mfl_error *err, const char *what);
int mfl_tls_identity_of(X509 *cert, struct mfl_tls_identity *ret_identity, struct mfl_error *err);
/* "C=DE, O=Lab, CN=node7"; returns buf. */
const char *mfl_tls_subject(const X509 *cert, char *buf, size_t buf_bytes);

#endif
