/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port: serves GET and HEAD of pages that the loop makes, and takes POSTs of people who are logged in, on a thread of its own.
 *
 *      HTTP thread:   request ---- in the cache, and fresh ------------------------> answer
 *                        |                                                             ^
 *                        +-- parked; path is wanted --+            resumed ------------+
 *                                                     v               |
 *      loop thread:              (40 times a second) render(path) -> mfl_http_answer
 *
 * Only that thread reads and parses what peers send, at a lower priority, with libmicrohttpd. The loop makes
 * each page at most once per second, however many peers ask. One lock guards what both threads see, and is
 * held for a few instructions. Limits: 64 connections (the oldest is closed when they are nearly used up), 16
 * KiB per request, 10 s of silence, 20 s per connection, one request per connection.
 *
 * /healthz: 200 while the loop beats and the server says that it is well, else 503 and the reason. /readyz:
 * the same for ready. Both are answered even when the loop hangs. On a loopback address, a Host other than
 * localhost or an address is refused: otherwise any web page that a user visits could read ours by rebinding
 * its own name.
 *
 * What is for one asker alone (acts) takes the same way, without the cache: the loop gets the cookie, and the body of a POST, and decides.
 * A POST needs the header X-MFL-CSRF, which no page of another origin can send, and a body of at most MFL_HTTP_BODY_MAX; a browser
 * that says that another site has sent it (Sec-Fetch-Site) is refused before its body is read. At most 8 bodies are in memory.
 *
 * TLS (options.tls): the port shows the server's certificate, TLS 1.3. It asks visitors for one, too. Whoever shows one of tls_ca with the role
 * viewer, operator or admin is named to acts; with `certificates`, all other visitors see /healthz and /readyz alone. The handshake is
 * GnuTLS's, as libmicrohttpd's is; which certificates are good is decided as for all other connections (proto/tls/tls_sign.h).
 *
 * http_absent.c replaces this in a build without libmicrohttpd, and http_tls_absent.c the TLS in one without GnuTLS.
 */
#ifndef MFL_SERVER_WEB_HTTP_H
#define MFL_SERVER_WEB_HTTP_H

#include <uv.h>

#include "common/base/base.h"
#include "proto/tls/tls.h"

struct mfl_http;

/* A page that never changes. */
struct mfl_asset {
        const char *path, *type;
        const unsigned char *bytes;
        size_t n;
};

#define MFL_HTTP_PATH_BYTES 64
#define MFL_HTTP_BODY_MAX (256u * 1024)

/* A request for its asker alone. Strings are "" where the request has no such header, or one that is too long. */
struct mfl_http_act {
        uint64_t id;
        bool post;
        char path[MFL_HTTP_PATH_BYTES];
        char cookie[80]; /* the value of options.cookie */
        char csrf[80], token[64], address[64];
        char visitor
                [MFL_TLS_NAME_BYTES]; /* the CN of the certificate that the visitor has shown; "": none that counts */
        uint32_t roles;               /* MFL_TLS_ROLE_..., of that certificate */
        char *body;                   /* of a POST: n bytes, terminated; NULL: it is empty */
        size_t n;
};

/* What answers it. */
struct mfl_http_result {
        unsigned status;
        const char *type; /* static */
        char *body;       /* malloc made it; NULL with fd */
        size_t n;
        int fd;                /* a file of n bytes in place of the body; -1: none; the port closes it */
        const char *file_name; /* that a browser saves the file under; copied */
        const char *cookie;    /* for Set-Cookie; NULL: none; copied */
};

struct mfl_http_options {
        const char *address;             /* HOST:PORT; port 0: any free one */
        bool anywhere;                   /* allow addresses other than loopback */
        const struct mfl_tls_files *tls; /* borrowed for the call; NULL: without TLS */
        bool certificates;               /* with TLS: visitors without a certificate see nothing */
        uv_loop_t *loop;
        const struct mfl_asset *assets; /* n_assets, static */
        size_t n_assets;
        /* HTTP thread: whether such a page may exist. The path has at most MFL_HTTP_PATH_BYTES - 1 bytes. */
        bool (*knows)(const char *path);
        /* Loop thread: must call mfl_http_answer with that path, now or later, unless the port is closed
         * before. Until then it is not called again with that path. */
        void (*render)(void *user, const char *path);
        /* HTTP thread: whether such a request is an act. NULL: none is. */
        bool (*acts)(const char *path, bool post);
        /* Loop thread: must call mfl_http_acted with that id, now or later, unless the port is closed before. The act is valid until
         * then. */
        void (*act)(void *user, const struct mfl_http_act *act);
        const char *cookie; /* its name; static, as is host */
        const char *host;   /* a name that a loopback address answers to besides; "" or NULL: none */
        void *user;
        uint32_t stale_ms; /* without a beat for this long, the loop hangs; 0: 5000 */
        uint32_t fresh_ms; /* a page is served for this long; 0: 1000 */
};

/* MFL_INVALID: a wrong address, or a build without libmicrohttpd. Negative: the address can't be bound, or
 * memory ran out. */
int mfl_http_open(const struct mfl_http_options *options, struct mfl_http **ret_http, struct mfl_error *err);
const char *mfl_http_address(const struct mfl_http *http); /* "127.0.0.1:7434" */
bool mfl_http_is_loopback(const struct mfl_http *http);
/* Reads the files of TLS again; connections that are open keep theirs. MFL_INVALID: the old ones stay. Without TLS nothing. Loop thread. */
int mfl_http_renew(struct mfl_http *http, const struct mfl_tls_files *files, struct mfl_error *err);
/* Loop thread, from here on. unwell, unready: NULL, or the reason. Until the first beat the server counts as
 * well and not ready ("starting"). Also closes connections that are too old. */
void mfl_http_beat(struct mfl_http *http, const char *unwell, const char *unready);
/* Takes body, which malloc made; NULL: the page could not be made, and is answered with 503. */
void mfl_http_answer(
        struct mfl_http *http, const char *path, unsigned status, const char *type, char *body, size_t n);
/* Takes body and fd. An id that is gone is fine. */
void mfl_http_acted(struct mfl_http *http, uint64_t id, const struct mfl_http_result *result);
/* Answers since the start, by status; the last one counts all other statuses. Any thread. */
#define MFL_HTTP_STATUSES 8
extern const unsigned mfl_http_statuses[MFL_HTTP_STATUSES - 1];
void mfl_http_counts(struct mfl_http *http, uint64_t ret_counts[MFL_HTTP_STATUSES]);
/* Ends the thread; handles and memory go while the loop turns. NULL is fine. */
void mfl_http_close(struct mfl_http *http);

#endif
