/* SPDX-License-Identifier: Apache-2.0 */
/* TLS contexts and connections, without sockets: the one file that includes OpenSSL's SSL headers.
 *
 *   - A BIO of our own lies between OpenSSL and the stream: reads take from the bytes that mfl_tls_feed lent, writes
 *     append to the output buffer. Nothing is copied on the way and nothing grows: OpenSSL holds at most one record each
 *     way, and none while a connection is idle (SSL_MODE_RELEASE_BUFFERS).
 *   - A failure is described for the person who has to fix it: which certificate, what is wrong with it, or what the
 *     peer's alert says about ours.
 */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "proto/tls/tls_internal.h"
#include "proto/tls/tls_web.h"

#define OUT_FIRST_BYTES 4096u
#define VERIFY_DEPTH 8

struct mfl_tls_context {
        SSL_CTX *ctx;
        BIO_METHOD *method;
        bool server, among_peers;
        bool anonymous; /* peers need no certificate */
        _Atomic uint32_t refs;
        uint32_t rekey_records;
        struct mfl_tls_identity own;
};

struct mfl_tls {
        struct mfl_tls_context *context;
        SSL *ssl;
        const uint8_t *in;
        size_t in_bytes, early_bytes; /* early: bytes that the handshake has consumed */
        struct mfl_tls_out out;
        struct mfl_tls_identity peer;
        uint32_t n_sealed;    /* with the present key */
        bool open, no_memory; /* no_memory: the output could not grow */
        char host[256];
        char refused[256]; /* which certificate was refused, and why; "" if none */
};

/* ---- the BIO ---- */

static int on_bio_read(BIO *bio, char *dst, size_t n, size_t *ret_n)
{
        struct mfl_tls *tls = BIO_get_data(bio);
        BIO_clear_retry_flags(bio);
        n = MFL_MIN(n, tls->in_bytes);
        if (!n) {
                BIO_set_retry_read(bio);
                return 0;
        }
        memcpy(dst, tls->in, n);
        tls->in += n;
        tls->in_bytes -= n;
        if (!tls->open)
                tls->early_bytes += n;
        *ret_n = n;
        return 1;
}

static bool grow_out(struct mfl_tls_out *out, size_t n)
{
        size_t room = out->room ? out->room : OUT_FIRST_BYTES;
        while (room < out->n + n)
                room *= 2;
        if (room <= out->room)
                return true;
        uint8_t *grown = mfl_realloc(out->data, room);
        if (!grown)
                return false;
        out->data = grown;
        out->room = room;
        return true;
}

static int on_bio_write(BIO *bio, const char *src, size_t n, size_t *ret_n)
{
        struct mfl_tls *tls = BIO_get_data(bio);
        BIO_clear_retry_flags(bio);
        if (!grow_out(&tls->out, n)) {
                tls->no_memory = true;
                return 0;
        }
        memcpy(tls->out.data + tls->out.n, src, n);
        tls->out.n += n;
        *ret_n = n;
        return 1;
}

static long on_bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
        return command == BIO_CTRL_FLUSH; /* the other commands are for descriptors and buffers */
}

static BIO_METHOD *make_method(void)
{
        BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "mfl stream");
        if (method && BIO_meth_set_read_ex(method, on_bio_read) &&
                BIO_meth_set_write_ex(method, on_bio_write) && BIO_meth_set_ctrl(method, on_bio_ctrl))
                return method;
        BIO_meth_free(method);
        return NULL;
}

/* ---- context ---- */

static int index_of_ours = -1; /* SSL objects point back to ours */

static void make_index(void)
{
        index_of_ours = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

static int tls_index(void)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, make_index);
        return index_of_ours;
}

/* Describes what is wrong with which certificate. OpenSSL decides, with one exception: a list of revoked certificates
 * is required for the peer's own issuer only, because a root rarely publishes one. */
static int on_verify(int fine, X509_STORE_CTX *store)
{
        struct mfl_tls *tls = SSL_get_ex_data(
                X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()), tls_index());
        int why = X509_STORE_CTX_get_error(store);
        if (fine)
                return 1;
        if (why == X509_V_ERR_UNABLE_TO_GET_CRL && X509_STORE_CTX_get_error_depth(store) > 0) {
                X509_STORE_CTX_set_error(store, X509_V_OK);
                return 1;
        }
        X509 *cert = X509_STORE_CTX_get_current_cert(store);
        char subject[128];
        if (why == X509_V_ERR_HOSTNAME_MISMATCH || why == X509_V_ERR_IP_ADDRESS_MISMATCH)
                snprintf(tls->refused, sizeof tls->refused,
                        "the certificate of %s is not for '%.100s' (see its subjectAltName)",
                        cert ? mfl_tls_subject(cert, subject, sizeof subject) : "?", tls->host);
        else
                snprintf(tls->refused, sizeof tls->refused, "the certificate of %s is refused: %s",
                        cert ? mfl_tls_subject(cert, subject, sizeof subject) : "?",
                        X509_verify_cert_error_string(why));
        return 0;
}

static bool set_up(SSL_CTX *ctx, bool server)
{
        SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
        if (server)
                SSL_CTX_set_options(ctx, SSL_OP_CIPHER_SERVER_PREFERENCE);
        SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, on_verify);
        SSL_CTX_set_verify_depth(ctx, VERIFY_DEPTH);
        SSL_CTX_set_max_cert_list(ctx, MFL_TLS_HANDSHAKE_BYTES_MAX);
        return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
               SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) && SSL_CTX_set_num_tickets(ctx, 0) &&
               SSL_CTX_set_ciphersuites(
                       ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") &&
               SSL_CTX_set1_groups_list(ctx, "X25519:P-256:P-384");
}

static int fill_context(struct mfl_tls_context *c, const struct mfl_tls_files *files, struct mfl_error *err)
{
        struct mfl_tls_own own;
        char what[400];
        int r = mfl_tls_own_read(files, &own, err);
        if (r)
                return r;
        snprintf(what, sizeof what, "certificate %s", files->cert);
        c->method = make_method();
        c->ctx = SSL_CTX_new(c->server ? TLS_server_method() : TLS_client_method());
        if (!c->method || !c->ctx || tls_index() < 0 || !set_up(c->ctx, c->server))
                r = mfl_tls_fail(err, "TLS");
        else if (SSL_CTX_use_cert_and_key(c->ctx, own.cert, own.key, own.chain, 1) != 1)
                r = mfl_tls_fail(err, what);
        else
                r = mfl_tls_identity_of(own.cert, &c->own, err);
        mfl_tls_own_deinit(&own);
        if (!r && c->among_peers && !SSL_CTX_set_purpose(c->ctx, X509_PURPOSE_SSL_CLIENT))
                r = mfl_tls_fail(err, "TLS");
        if (!r && c->anonymous)
                SSL_CTX_set_verify(c->ctx, SSL_VERIFY_NONE, NULL);
        return r || c->anonymous ? r : mfl_tls_trust_read(files, SSL_CTX_get_cert_store(c->ctx), err);
}

static int new_context(const struct mfl_tls_files *files, bool server, bool among_peers, bool anonymous,
        struct mfl_tls_context **ret_context, struct mfl_error *err)
{
        struct mfl_tls_context *c = mfl_calloc(1, sizeof *c);
        if (!c)
                return mfl_fail_memory(err, sizeof *c, "a TLS context");
        c->server = server;
        c->among_peers = among_peers;
        c->anonymous = anonymous;
        c->refs = 1;
        c->rekey_records = MFL_TLS_REKEY_RECORDS;
        int r = fill_context(c, files, err);
        if (r)
                mfl_tls_context_unref(c);
        else
                *ret_context = c;
        return r;
}

int mfl_tls_context_new(const struct mfl_tls_files *files, bool server, struct mfl_tls_context **ret_context,
        struct mfl_error *err)
{
        return new_context(files, server, false, false, ret_context, err);
}

int mfl_tls_context_new_peer(const struct mfl_tls_files *files, bool server,
        struct mfl_tls_context **ret_context, struct mfl_error *err)
{
        return new_context(files, server, true, false, ret_context, err);
}

int mfl_tls_context_new_web(
        const struct mfl_tls_files *files, struct mfl_tls_context **ret_context, struct mfl_error *err)
{
        return new_context(files, true, false, !files->ca || !*files->ca, ret_context, err);
}

struct mfl_tls_context *mfl_tls_context_ref(struct mfl_tls_context *c)
{
        c->refs++;
        return c;
}

int64_t mfl_tls_context_expires(const struct mfl_tls_context *context)
{
        const X509 *cert = SSL_CTX_get0_certificate(context->ctx);
        struct tm tm;
        return cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) ? (int64_t)timegm(&tm) : INT64_MAX;
}

void mfl_tls_context_unref(struct mfl_tls_context *c)
{
        if (!c || --c->refs)
                return;
        SSL_CTX_free(c->ctx);
        BIO_meth_free(c->method);
        free(c);
}

void mfl_tls_context_rekey(struct mfl_tls_context *c, uint32_t n_records)
{
        mfl_assert(n_records > 0);
        c->rekey_records = n_records;
}

bool mfl_tls_context_is_server(const struct mfl_tls_context *c)
{
        return c->server;
}

const struct mfl_tls_identity *mfl_tls_context_identity(const struct mfl_tls_context *c)
{
        return &c->own;
}

/* ---- connection ---- */

static bool set_host(struct mfl_tls *tls, const char *host)
{
        uint8_t address[16];
        X509_VERIFY_PARAM *param = SSL_get0_param(tls->ssl);
        mfl_strcpy(tls->host, sizeof tls->host, host);
        if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
                return X509_VERIFY_PARAM_set1_ip_asc(param, host);
        X509_VERIFY_PARAM_set_hostflags(
                param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        return X509_VERIFY_PARAM_set1_host(param, host, 0) && SSL_set_tlsext_host_name(tls->ssl, host);
}

int mfl_tls_new(
        struct mfl_tls_context *context, const char *host, struct mfl_tls **ret_tls, struct mfl_error *err)
{
        struct mfl_tls *tls = mfl_calloc(1, sizeof *tls);
        if (!tls)
                return mfl_fail_memory(err, sizeof *tls, "a TLS connection");
        ERR_clear_error();
        tls->context = mfl_tls_context_ref(context);
        tls->ssl = SSL_new(context->ctx);
        BIO *bio = BIO_new(context->method);
        if (!tls->ssl || !bio || !SSL_set_ex_data(tls->ssl, tls_index(), tls) ||
                (!context->server && !context->among_peers && !set_host(tls, host))) {
                BIO_free(bio);
                mfl_tls_free(tls);
                return mfl_tls_fail(err, "TLS: open a connection");
        }
        BIO_set_data(bio, tls);
        BIO_set_init(bio, 1);
        SSL_set_bio(tls->ssl, bio, bio); /* one reference serves both */
        context->server ? SSL_set_accept_state(tls->ssl) : SSL_set_connect_state(tls->ssl);
        *ret_tls = tls;
        return 0;
}

void mfl_tls_free(struct mfl_tls *tls)
{
        if (!tls)
                return;
        SSL_free(tls->ssl);
        mfl_tls_context_unref(tls->context);
        free(tls->out.data);
        free(tls);
}

struct mfl_tls_out *mfl_tls_output(struct mfl_tls *tls)
{
        return &tls->out;
}

const struct mfl_tls_identity *mfl_tls_peer(const struct mfl_tls *tls)
{
        return &tls->peer;
}

void mfl_tls_feed(struct mfl_tls *tls, const void *bytes, size_t n)
{
        tls->in = bytes;
        tls->in_bytes = n;
}

/* ---- failures in words ---- */

/* What the peer's alert (RFC 8446, section 6) says about us. NULL: use OpenSSL's text. */
static const char *alert_text(int alert)
{
        switch (alert) {
        case SSL_AD_BAD_CERTIFICATE:
                return "the peer refuses our certificate: it is not for what the peer expects, or not valid "
                       "yet; the peer's log says which";
        case SSL_AD_CERTIFICATE_REVOKED:
                return "the peer refuses our certificate: it is revoked";
        case SSL_AD_CERTIFICATE_EXPIRED:
                return "the peer refuses our certificate: it has expired";
        case SSL_AD_UNSUPPORTED_CERTIFICATE:
                return "the peer refuses our certificate: it is not made for this purpose (its "
                       "extendedKeyUsage)";
        case SSL_AD_CERTIFICATE_UNKNOWN:
                return "the peer refuses our certificate; its log says why";
        case SSL_AD_UNKNOWN_CA:
                return "the peer refuses our certificate: it does not know the CA that issued it";
        case TLS13_AD_CERTIFICATE_REQUIRED:
                return "the peer requires a certificate, and we sent none";
        case SSL_AD_PROTOCOL_VERSION:
                return "the peer does not speak TLS 1.3";
        default:
                return NULL;
        }
}

static const char *reason_text(int reason)
{
        if (reason > SSL_AD_REASON_OFFSET && reason <= SSL_AD_REASON_OFFSET + 255)
                return alert_text(reason - SSL_AD_REASON_OFFSET);
        switch (reason) {
        case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
                return "the peer showed no certificate";
        case SSL_R_UNSUPPORTED_PROTOCOL:
        case SSL_R_VERSION_TOO_LOW:
                return "the peer does not speak TLS 1.3";
        case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
                return "a record is damaged";
        default:
                return NULL;
        }
}

/* Turns OpenSSL's result of a failed call into ours. */
static int result(struct mfl_tls *tls, int got, struct mfl_error *err)
{
        int kind = SSL_get_error(tls->ssl, got);
        if (kind == SSL_ERROR_WANT_READ)
                return MFL_TLS_MORE;
        if (kind == SSL_ERROR_ZERO_RETURN)
                return MFL_TLS_END;
        if (tls->no_memory) {
                ERR_clear_error();
                return mfl_fail_memory(err, tls->out.room, "TLS output");
        }
        unsigned long code = ERR_peek_error();
        const char *text = *tls->refused ? tls->refused : code ? reason_text(ERR_GET_REASON(code)) : NULL;
        char what[300];
        snprintf(what, sizeof what, "TLS: %s",
                text        ? text
                : tls->open ? "the connection is broken"
                            : "the handshake failed");
        int r = mfl_tls_fail(err, what);
        return text && r > 0 ? mfl_fail(err, MFL_INVALID, "%s", what) : r;
}

/* The first byte reveals a peer with another protocol: a record begins with its type, 20 to 23. */
static int check_first(const struct mfl_tls *tls, struct mfl_error *err)
{
        uint8_t first = tls->in[0];
        if (first >= 20 && first <= 23)
                return 0;
        if (first == 'M')
                return mfl_fail(err, MFL_TLS_PLAIN,
                        "TLS: the %s speaks plain TCP, without TLS, but this side requires TLS",
                        tls->context->server ? "client" : "server");
        if (first == 'G' || first == 'H' || first == 'P')
                return mfl_fail(
                        err, MFL_INVALID, "TLS: the peer speaks something else; this looks like HTTP");
        return mfl_fail(
                err, MFL_INVALID, "TLS: the peer speaks something else: its first byte is %02x", first);
}

/* ---- sealing and opening ---- */

static int note_peer(struct mfl_tls *tls, struct mfl_error *err)
{
        X509 *cert = SSL_get1_peer_certificate(tls->ssl);
        if (!cert && tls->context->anonymous)
                return 0;
        if (!cert)
                return mfl_fail(err, MFL_INVALID, "TLS: the peer showed no certificate");
        int r = mfl_tls_identity_of(cert, &tls->peer, err);
        X509_free(cert);
        return r;
}

int mfl_tls_handshake(struct mfl_tls *tls, struct mfl_error *err)
{
        int r = 0;
        if (tls->in_bytes && !tls->early_bytes)
                r = check_first(tls, err);
        if (!r && tls->early_bytes > MFL_TLS_HANDSHAKE_BYTES_MAX)
                r = mfl_fail(
                        err, MFL_INVALID, "TLS: no handshake within %u bytes", MFL_TLS_HANDSHAKE_BYTES_MAX);
        if (r)
                return r;
        ERR_clear_error();
        int got = SSL_do_handshake(tls->ssl);
        if (got != 1) {
                r = result(tls, got, err);
                return r == MFL_TLS_END
                               ? mfl_fail(err, MFL_INVALID, "TLS: the peer closed during the handshake")
                               : r;
        }
        r = note_peer(tls, err);
        tls->open = !r;
        return r;
}

int mfl_tls_read(struct mfl_tls *tls, void *dst, size_t n, size_t *ret_n, struct mfl_error *err)
{
        size_t got = 0;
        ERR_clear_error();
        int r = SSL_read_ex(tls->ssl, dst, n, &got);
        if (!r)
                return result(tls, r, err);
        *ret_n = got;
        return 0;
}

int mfl_tls_write(struct mfl_tls *tls, const void *src, size_t n, struct mfl_error *err)
{
        size_t put = 0;
        mfl_assert(n > 0 && n <= MFL_TLS_RECORD_BYTES);
        ERR_clear_error();
        if (tls->n_sealed == tls->context->rekey_records) {
                /* The following write announces it with the old key; the peer need not answer. */
                if (!SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
                        return mfl_tls_fail(err, "TLS: a new key");
                tls->n_sealed = 0;
        }
        int r = SSL_write_ex(tls->ssl, src, n, &put);
        tls->n_sealed++;
        if (r)
                return 0;
        r = result(tls, r, err);
        /* In TLS 1.3 a write never waits for the peer. */
        return r == MFL_TLS_MORE || r == MFL_TLS_END
                       ? mfl_fail(err, MFL_INVALID, "TLS: the connection is closed")
                       : r;
}

void mfl_tls_finish(struct mfl_tls *tls)
{
        if (!tls->open)
                return;
        ERR_clear_error();
        SSL_shutdown(tls->ssl);
        ERR_clear_error();
}
