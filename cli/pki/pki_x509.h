/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, certificates and revocation lists, from PEM text to PEM text. This module touches no file and no
 * clock.
 *
 * Certificates follow RFC 5280: EC P-256, ECDSA with SHA-256, random serial numbers of 128 bits. The CA signs
 * only leaves (pathlen 0). A leaf's CN is its name, and each of its OUs is a role; a server's certificate has
 * SANs and no OU. Texts are on the heap and end with a zero; wipe texts with a private key with mfl_pki_wipe.
 * Times are Unix seconds. Any thread.
 *
 * Errors: MFL_INVALID for bad input (`what` names it in the text); negative if memory or the library's random
 * numbers fail.
 */
#ifndef MFL_CLI_PKI_PKI_X509_H
#define MFL_CLI_PKI_PKI_X509_H

#include "common/base/base.h"

#define MFL_PKI_SERIAL_BYTES 48 /* upper-case hexadecimal, as `openssl x509 -serial` prints it */
#define MFL_PKI_EARLY_S 300     /* not_before is this far in the past, because clocks differ */
#define MFL_PKI_PASS_ITERATIONS 600000

struct mfl_pki_ca;     /* the CA's certificate and private key */
struct mfl_pki_public; /* any public key */

/* Makes a CA: CN is name, valid for `days` days from now. pass (NULL: none) encrypts ret_key_pem: PKCS#8,
 * AES-256, PBKDF2 with SHA-256. */
int mfl_pki_ca_make(const char *name, int64_t now, int days, const char *pass, char **ret_cert_pem,
        char **ret_key_pem, struct mfl_error *err);
/* MFL_INVALID also if the key does not belong to the certificate, or if the pass phrase is missing or wrong.
 */
int mfl_pki_ca_read(const char *cert_pem, const char *key_pem, const char *pass, struct mfl_pki_ca **ret_ca,
        struct mfl_error *err);
int64_t mfl_pki_ca_not_after(const struct mfl_pki_ca *ca);
void mfl_pki_ca_free(struct mfl_pki_ca *ca); /* NULL is fine */

/* A new key, and its public half. */
int mfl_pki_key_make(char **ret_key_pem, struct mfl_pki_public **ret_key, struct mfl_error *err);
/* The public key of a request. The request's signature proves that its maker has the private key. Refused: a
 * key below 112 bits of security (RSA below 2048). */
int mfl_pki_public_of_csr(
        const char *pem, const char *what, struct mfl_pki_public **ret_key, struct mfl_error *err);
/* The public key of a certificate of this CA with this serial number. */
int mfl_pki_public_of_cert(const struct mfl_pki_ca *ca, const char *pem, const char *serial, const char *what,
        struct mfl_pki_public **ret_key, struct mfl_error *err);
void mfl_pki_public_free(struct mfl_pki_public *key); /* NULL is fine */
/* Whether the private key, which is not encrypted, belongs to this public key. */
int mfl_pki_key_belongs(
        const char *key_pem, const struct mfl_pki_public *key, const char *what, struct mfl_error *err);

struct mfl_pki_leaf {
        const char *name;         /* CN */
        const char *site;         /* O; NULL or "": none */
        const char *const *roles; /* OUs, n_roles */
        int n_roles;
        const char *const *hosts; /* SANs: DNS names and IP addresses, n_hosts */
        int n_hosts;
        bool server, client; /* EKU serverAuth, clientAuth; one at least */
        int64_t not_after;   /* at most the CA's */
};
/* Signs a certificate that is valid from MFL_PKI_EARLY_S before now. */
int mfl_pki_sign(const struct mfl_pki_ca *ca, const struct mfl_pki_leaf *leaf,
        const struct mfl_pki_public *key, int64_t now, char **ret_cert_pem,
        char ret_serial[MFL_PKI_SERIAL_BYTES], struct mfl_error *err);

struct mfl_pki_revoked {
        const char *serial;
        int64_t when;
};
/* A revocation list of version 2, valid from MFL_PKI_EARLY_S before now to next_update. */
int mfl_pki_crl_make(const struct mfl_pki_ca *ca, const struct mfl_pki_revoked *revoked, size_t n,
        uint64_t number, int64_t now, int64_t next_update, char **ret_crl_pem, struct mfl_error *err);

/* The time at which a certificate or a revocation list in PEM expires. */
int mfl_pki_cert_not_after(const char *pem, const char *what, int64_t *ret_not_after, struct mfl_error *err);
int mfl_pki_crl_next_update(
        const char *pem, const char *what, int64_t *ret_next_update, struct mfl_error *err);
/* Random bytes in hexadecimal: hex has room for 2 * n + 1. */
int mfl_pki_random_hex(size_t n, char *hex, struct mfl_error *err);
/* Overwrites and frees a text; NULL is allowed. */
void mfl_pki_wipe(char *text);

#endif
