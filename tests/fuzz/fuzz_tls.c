/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes from a peer into the server's side of a stream, over a real socket and loop. The first byte says
 * how far the peer is honest:
 *
 *   0: raw bytes from the start, to a server with TLS;
 *   1: a real client whose flights are damaged on the way: the input says where, and by what;
 *   2: a real client; after the handshake it seals what the input says, frames or nonsense;
 *   3: the same without TLS.
 *
 * In 2 and 3 the input is a list of pieces (flags, size, bytes): raw, or the envelope or payload of a frame
 * whose checksums are made right, or the fuzzer would never come past them. Whatever comes, the stream closes
 * once, with a reason, and has said no more than a bounded number of bytes. Random numbers are the same in
 * every run.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* RAND_set_rand_method: what OpenSSL's own fuzzers use */
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "proto/stream_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define PAYLOAD_MAX 65536

/* ---- a world that is the same each time ---- */

static uint64_t seed;

static int next_bytes(unsigned char *bytes, int n)
{
        for (int i = 0; i < n; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                bytes[i] = (unsigned char)(seed >> 56);
        }
        return 1;
}
static int always(void)
{
        return 1;
}
static const RAND_METHOD same_each_time = {.bytes = next_bytes, .pseudorand = next_bytes, .status = always};

static struct mfl_tls_context *server_context, *client_context;

/* One certificate serves both sides, and is its own CA. */
static void write_cert(const char *cert_path, const char *key_path)
{
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *cert = X509_new();
        mfl_assert(key && cert);
        X509_set_version(cert, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
        ASN1_TIME_set_string(X509_getm_notBefore(cert), "20200101000000Z");
        ASN1_TIME_set_string(X509_getm_notAfter(cert), "20491231000000Z");
        X509_NAME_add_entry_by_txt(
                X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)"d1", -1, -1, 0);
        X509_set_issuer_name(cert, X509_get_subject_name(cert));
        X509_set_pubkey(cert, key);
        X509_EXTENSION *san = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "DNS:localhost");
        mfl_assert(san && X509_add_ext(cert, san, -1) && X509_sign(cert, key, EVP_sha256()));
        FILE *f = fopen(cert_path, "w");
        mfl_assert(f && PEM_write_X509(f, cert) && !fclose(f));
        f = fopen(key_path, "w");
        mfl_assert(f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) && !fclose(f));
        mfl_assert(!chmod(key_path, 0600));
        X509_EXTENSION_free(san);
        X509_free(cert);
        EVP_PKEY_free(key);
}

static void set_up(void)
{
        char dir[] = "/tmp/mfl-fuzz-tls-XXXXXX", cert[64], key[64];
        mfl_assert(mkdtemp(dir));
        snprintf(cert, sizeof cert, "%s/c.pem", dir);
        snprintf(key, sizeof key, "%s/k.pem", dir);
        RAND_set_rand_method(&same_each_time);
        write_cert(cert, key);
        struct mfl_tls_files files = {.ca = cert, .cert = cert, .key = key};
        mfl_assert(!mfl_tls_context_new(&files, true, &server_context, NULL));
        mfl_assert(!mfl_tls_context_new(&files, false, &client_context, NULL));
        unlink(cert);
        unlink(key);
        rmdir(dir);
}

/* ---- the server's end ---- */

struct world {
        uv_loop_t loop;
        struct mfl_stream stream;
        int fd;                 /* the peer's end */
        struct mfl_tls *client; /* NULL: the peer is none */
        bool greeted;
        uint8_t payload[PAYLOAD_MAX];
        size_t answered;
        int closed;
};

static int on_payload(
        struct mfl_stream *s, const Mfl__Envelope *e, size_t n, void **ret_dst, struct mfl_error *err)
{
        struct world *w = s->owner;
        mfl_assert(!w->closed && n > 0 && n <= PAYLOAD_MAX);
        *ret_dst = n % 3 ? w->payload : NULL; /* some are dropped */
        return 0;
}

static int on_frame(
        struct mfl_stream *s, const Mfl__Envelope *e, void *payload, size_t n, struct mfl_error *err)
{
        struct world *w = s->owner;
        struct mfl_msg msg = {.kind = MFL_MSG_PONG};
        mfl_assert(!w->closed && e->body_case != MFL__ENVELOPE__BODY__NOT_SET);
        if (e->body_case == MFL__ENVELOPE__BODY_PING && !s->closing)
                mfl_stream_send_msg(s, &msg, NULL, NULL);
        return 0;
}

static void on_closed(struct mfl_stream *s, const char *reason)
{
        struct world *w = s->owner;
        mfl_assert(!w->closed && *reason);
        w->closed++;
}

static const struct mfl_stream_ops ops = {on_payload, on_frame, on_closed, NULL};

static void begin(struct world *w, bool tls, bool client)
{
        int ends[2];
        w->answered = 0;
        w->closed = 0;
        w->client = NULL;
        w->greeted = false;
        mfl_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) && !uv_loop_init(&w->loop));
        w->fd = ends[0];
        mfl_assert(!mfl_stream_init(&w->stream, &w->loop, &ops, w, NULL));
        w->stream.payload_max = PAYLOAD_MAX;
        mfl_assert(!tls || !mfl_stream_tls(&w->stream, server_context, NULL));
        mfl_assert(!client || !mfl_tls_new(client_context, "localhost", &w->client, NULL));
        mfl_assert(!uv_tcp_open(&w->stream.tcp, ends[1]) && !mfl_stream_begin(&w->stream));
}

/* What the server says goes to the client, if there is one, and into nothing otherwise. */
static void listen_to_it(struct world *w)
{
        static uint8_t bytes[65536];
        struct mfl_error err;
        uv_run(&w->loop, UV_RUN_NOWAIT);
        for (ssize_t n; (n = read(w->fd, bytes, sizeof bytes)) > 0;) {
                uint8_t plain[4096];
                size_t got;
                w->answered += (size_t)n;
                if (!w->client)
                        continue;
                mfl_tls_feed(w->client, bytes, (size_t)n);
                int r = w->greeted ? 0 : mfl_tls_handshake(w->client, &err);
                w->greeted = w->greeted || !r;
                while (!r)
                        r = mfl_tls_read(w->client, plain, sizeof plain, &got, &err);
                if (r != MFL_TLS_MORE) {
                        mfl_tls_free(w->client); /* it has had enough */
                        w->client = NULL;
                }
        }
}

static void say(struct world *w, const uint8_t *bytes, size_t n)
{
        while (n && !w->closed) {
                ssize_t sent = send(w->fd, bytes, n, MSG_NOSIGNAL);
                if (sent < 0 && errno != EAGAIN)
                        return;
                bytes += sent > 0 ? sent : 0;
                n -= sent > 0 ? (size_t)sent : 0;
                listen_to_it(w);
        }
}

static void end(struct world *w, size_t n)
{
        listen_to_it(w);
        close(w->fd);
        for (int i = 0; i < 1000 && !w->closed; i++)
                uv_run(&w->loop, UV_RUN_ONCE);
        mfl_assert(w->closed == 1 && w->answered <= 65536 + 16 * n);
        mfl_assert(!uv_loop_close(&w->loop));
        mfl_tls_free(w->client);
}

/* ---- what the peer says ---- */

struct input {
        const uint8_t *at;
        size_t n;
};

static const uint8_t *take(struct input *in, size_t *n)
{
        const uint8_t *at = in->at;
        *n = MFL_MIN(*n, in->n);
        in->at += *n;
        in->n -= *n;
        return at;
}

static size_t take_number(struct input *in, size_t bytes)
{
        const uint8_t *p = take(in, &bytes);
        size_t value = 0;
        for (size_t i = 0; i < bytes; i++)
                value = value << 8 | p[i];
        return value;
}

/* The client's flights, each with up to 8 bytes changed, and maybe cut or said twice. */
static void damage_flights(struct world *w, struct input *in)
{
        struct mfl_error err;
        mfl_assert(mfl_tls_handshake(w->client, &err) == MFL_TLS_MORE);
        for (int flight = 0; flight < 4 && w->client && !w->closed; flight++) {
                struct mfl_tls_out *out = mfl_tls_output(w->client);
                size_t how = take_number(in, 1), n = out->n;
                uint8_t *bytes = malloc(n + 1);
                mfl_assert(bytes);
                if (n)
                        memcpy(bytes, out->data, n);
                out->n = 0;
                for (size_t i = 0; n && i < (how & 7); i++) {
                        size_t at = take_number(in, 2);
                        bytes[at % n] ^= (uint8_t)take_number(in, 1);
                }
                if (how & 8)
                        n -= n ? take_number(in, 2) % n : 0;
                say(w, bytes, n);
                if (how & 16)
                        say(w, bytes, n);
                free(bytes);
                listen_to_it(w);
        }
}

static void seal_and_say(struct world *w, const uint8_t *bytes, size_t n)
{
        struct mfl_error err;
        while (n && w->client && !w->closed) {
                size_t part = MFL_MIN(n, (size_t)MFL_TLS_RECORD_BYTES);
                if (mfl_tls_write(w->client, bytes, part, &err))
                        return;
                struct mfl_tls_out *out = mfl_tls_output(w->client), sealed = *out;
                *out = (struct mfl_tls_out){0};
                say(w, sealed.data, sealed.n);
                free(sealed.data);
                bytes += part;
                n -= part;
        }
}

/* Flags: 1: a frame with right checksums around this and the next piece; else the bytes as they are. 2: the
 * frame's version is wrong. 4: a payload of zeros, of the size that the next piece says. */
static void say_pieces(struct world *w, struct input *in, bool tls)
{
        static uint8_t bytes[MFL_FRAME_HEADER_BYTES + 2 * 65536];
        while (in->n > 1 && !w->closed) {
                size_t flags = take_number(in, 1), n = take_number(in, 2), payload = 0, head = 0;
                const uint8_t *p = take(in, &n);
                if (flags & 1) {
                        head = MFL_FRAME_HEADER_BYTES;
                        memcpy(bytes + head, p, n);
                        payload = take_number(in, 2);
                        if (flags & 4)
                                memset(bytes + head + n, 0, payload);
                        else
                                memcpy(bytes + head + n, take(in, &payload), payload);
                        struct mfl_frame frame = {
                                .version = (uint8_t)(MFL_FRAME_VERSION + ((flags & 2) != 0)),
                                .envelope_bytes = (uint32_t)n,
                                .payload_bytes = (uint32_t)payload,
                                .envelope_crc = mfl_crc32c(0, bytes + head, n),
                                .payload_crc = payload ? mfl_crc32c(0, bytes + head + n, payload) : 0};
                        mfl_frame_encode(&frame, bytes);
                } else if (n)
                        memcpy(bytes, p, n);
                if (tls)
                        seal_and_say(w, bytes, head + n + payload);
                else
                        say(w, bytes, head + n + payload);
        }
}

static void greet(struct world *w)
{
        struct mfl_error err;
        mfl_assert(mfl_tls_handshake(w->client, &err) == MFL_TLS_MORE);
        for (int i = 0; i < 4 && !w->stream.connected; i++) {
                struct mfl_tls_out *out = mfl_tls_output(w->client);
                size_t n = out->n;
                out->n = 0;
                say(w, out->data, n);
                listen_to_it(w);
        }
        mfl_assert(w->stream.connected && w->greeted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
        static struct world w;
        if (!server_context) {
                mfl_log_init("fuzz", MFL_LOG_ERROR);
                set_up();
        }
        if (!n)
                return 0;
        struct input in = {data + 1, n - 1};
        int mode = data[0] & 3;
        seed = 1;
        begin(&w, mode != 3, mode == 1 || mode == 2);
        if (mode == 0)
                say(&w, in.at, in.n);
        else if (mode == 1)
                damage_flights(&w, &in);
        else {
                if (mode == 2)
                        greet(&w);
                say_pieces(&w, &in, mode == 2);
        }
        end(&w, n);
        return 0;
}
