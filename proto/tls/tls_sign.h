/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures by the keys of TLS certificates, over more than a connection: what one daemon tells another through the server.
 *
 * A signature is that of the key's own kind over SHA-256 (ECDSA, RSA with PSS) or as it is (Ed25519). One thread at a time per signer.
 * Errors: MFL_INVALID with a line for people; -ENOMEM. */
#ifndef MFL_PROTO_TLS_TLS_SIGN_H
#define MFL_PROTO_TLS_TLS_SIGN_H

#include "proto/tls/tls.h"

struct mfl_tls_signer;

/* Reads the files: they are read again by a new signer only. */
int mfl_tls_signer_new(
        const struct mfl_tls_files *files, struct mfl_tls_signer **ret_signer, struct mfl_error *err);
void mfl_tls_signer_free(struct mfl_tls_signer *signer); /* NULL is fine */
/* Its own certificate and those between it and the CA, DER, one after another. Valid as long as the signer. */
const uint8_t *mfl_tls_signer_chain(const struct mfl_tls_signer *signer, uint32_t *ret_n);
/* n_max: room; MFL_INVALID if the signature is longer. */
int mfl_tls_sign(struct mfl_tls_signer *signer, const void *data, size_t n, uint8_t *ret_signature,
        uint32_t n_max, uint32_t *ret_n, struct mfl_error *err);
/* The owner of the chain's first certificate, which the CA has signed for a client, and which is not expired or revoked. That the peer has its
 * key was proved elsewhere. MFL_INVALID: it is not so, and what is wrong. */
int mfl_tls_check(struct mfl_tls_signer *signer, const uint8_t *chain, uint32_t n_chain,
        struct mfl_tls_identity *ret_identity, struct mfl_error *err);
/* The owner of the chain's first certificate, which the CA has signed for a client with the role daemon, which is not expired or
 * revoked, and whose key has signed the data. MFL_INVALID: it is not so, and what is wrong. */
int mfl_tls_verify(struct mfl_tls_signer *signer, const uint8_t *chain, uint32_t n_chain, const void *data,
        size_t n, const uint8_t *signature, uint32_t n_signature, struct mfl_tls_identity *ret_identity,
        struct mfl_error *err);

#endif
