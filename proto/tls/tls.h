/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 in memory, mutual: a context of certificates that many connections share, and one connection's
 * sealing and opening of bytes. Nothing here touches a socket: stream_tls.c moves the bytes.
 *
 * Both sides always send a certificate, and both are checked. The certificate's subject contains the roles:
 * OU=daemon, OU=operator, OU=viewer, OU=admin, OU=relay, OU=serve, several allowed; CN is the name. The client also checks that the
 * server's certificate is for the intended host (SAN, a name or an IP address). Ciphers: AES-128-GCM first (the
 * fastest where AES is in hardware), AES-256-GCM, ChaCha20-Poly1305. No session tickets and no session cache: the
 * server keeps nothing of a connection that has ended. TLS 1.3 has no renegotiation. Idle connections hold no buffers
 * inside OpenSSL.
 *
 * Errors: MFL_INVALID with a line for people; -ENOMEM. One thread at a time per connection; a context may be shared by
 * threads, and its references counted by any.
 */
#ifndef MFL_PROTO_TLS_TLS_H
#define MFL_PROTO_TLS_TLS_H

#include "common/base/base.h"

enum {
        MFL_TLS_ROLE_DAEMON = 1,
        MFL_TLS_ROLE_OPERATOR = 2,
        MFL_TLS_ROLE_VIEWER = 4,
        MFL_TLS_ROLE_ADMIN = 8,
        MFL_TLS_ROLE_RELAY = 16,
        MFL_TLS_ROLE_SERVE = 32, /* mfl-serve: has models, and follows them */
};
#define MFL_TLS_NAME_BYTES 64

/* The owner of an accepted certificate. */
struct mfl_tls_identity {
        char name[MFL_TLS_NAME_BYTES]; /* CN; "" when there is none, or it cannot be printed */
        char site[MFL_TLS_NAME_BYTES]; /* O; as for CN */
        uint32_t roles;
        char serial[48];         /* hexadecimal, in capitals, as `openssl x509 -serial` prints it */
        char fingerprint[65];    /* SHA-256 of the certificate, hexadecimal */
        uint64_t not_after_unix; /* seconds; 0: out of range */
};

struct mfl_tls_files {
        const char *ca;   /* PEM file with one or more certificates, or a directory of .pem and .crt files */
        const char *cert; /* PEM: our own certificate, then those between it and the CA */
        const char *key;  /* PEM, not encrypted, not readable by everybody */
        const char *crl;  /* PEM with one or more revocation lists; NULL or "": none */
};

/* ---- context ---- */

struct mfl_tls_context;
/* Reads the files. MFL_INVALID names the file and what is wrong with it: missing, not PEM, a key that does
 * not belong to the certificate, expired, not yet valid, readable by everybody. ret_context has one
 * reference. */
int mfl_tls_context_new(const struct mfl_tls_files *files, bool server, struct mfl_tls_context **ret_context,
        struct mfl_error *err);
/* For connections between daemons: whichever side this is, the peer shows a client's certificate, and is not looked for
 * under a host name. Otherwise as mfl_tls_context_new. */
int mfl_tls_context_new_peer(const struct mfl_tls_files *files, bool server,
        struct mfl_tls_context **ret_context, struct mfl_error *err);
struct mfl_tls_context *mfl_tls_context_ref(struct mfl_tls_context *context);
void mfl_tls_context_unref(struct mfl_tls_context *context); /* NULL is fine */
bool mfl_tls_context_is_server(const struct mfl_tls_context *context);
/* The number of records that one key seals before the next key (RFC 8446, section 4.6.3). RFC 8446, section 5.5,
 * limits AES-GCM to 2^24.5 full records, 388 GiB, which a daemon's connection may reach within days; a sixth of that
 * is far below the limit and costs nothing. */
#define MFL_TLS_REKEY_RECORDS (1u << 22)
/* For tests: another number, for connections of this context created from now on. */
void mfl_tls_context_rekey(struct mfl_tls_context *context, uint32_t n_records);
/* Of the own certificate. */
const struct mfl_tls_identity *mfl_tls_context_identity(const struct mfl_tls_context *context);
/* When it expires, in Unix seconds. */
int64_t mfl_tls_context_expires(const struct mfl_tls_context *context);
/* "daemon, operator", or "no role". Returns buf. */
const char *mfl_tls_roles_text(uint32_t roles, char *buf, size_t buf_bytes);

/* ---- connection ---- */

#define MFL_TLS_RECORD_BYTES (16u * 1024)  /* the most plain text that one record holds */
#define MFL_TLS_OVERHEAD_BYTES 64u         /* an upper limit for what a record adds to its plain text */
#define MFL_TLS_HANDSHAKE_BYTES_MAX 65536u /* accepted from a peer before its handshake is over */

enum {
        MFL_TLS_MORE = 16,  /* nothing more before more bytes come from the peer */
        MFL_TLS_END = 17,   /* the peer has closed the connection properly */
        MFL_TLS_PLAIN = 18, /* handshake: the peer speaks our frames without TLS; with text */
};

struct mfl_tls;
/* host: the host that a client intends to reach; a server, and between daemons both, ignore it. Takes a reference to the context. */
int mfl_tls_new(
        struct mfl_tls_context *context, const char *host, struct mfl_tls **ret_tls, struct mfl_error *err);
void mfl_tls_free(struct mfl_tls *tls); /* NULL is fine */

/* Lends bytes of the peer until a call returns MFL_TLS_MORE: then they are consumed. Discards what is left of earlier
 * bytes. */
void mfl_tls_feed(struct mfl_tls *tls, const void *bytes, size_t n);
/* Continues the handshake: 0 when it is over, MFL_TLS_MORE, or a failure. */
int mfl_tls_handshake(struct mfl_tls *tls, struct mfl_error *err);
/* Decrypts fed bytes: 1 to n bytes, at most one record. MFL_TLS_MORE, MFL_TLS_END, or a failure. */
int mfl_tls_read(struct mfl_tls *tls, void *dst, size_t n, size_t *ret_n, struct mfl_error *err);
/* Seals 1 to MFL_TLS_RECORD_BYTES into the output, as one record. */
int mfl_tls_write(struct mfl_tls *tls, const void *src, size_t n, struct mfl_error *err);
/* Writes close_notify (nothing more follows) into the output. */
void mfl_tls_finish(struct mfl_tls *tls);
/* After the handshake; valid as long as the connection. */
const struct mfl_tls_identity *mfl_tls_peer(const struct mfl_tls *tls);

/* The output: sealed bytes, and those of the handshake and of alerts, which any of the calls above may create. data
 * is from mfl_malloc; a buffer that is too small is replaced by a larger one. */
struct mfl_tls_out {
        uint8_t *data;
        size_t n, room;
};
struct mfl_tls_out *mfl_tls_output(struct mfl_tls *tls);

#endif
