/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port: GET and HEAD of pages that the loop makes, on a thread of its own.
 *
 *      HTTP thread:   request ---- in the cache, and fresh ------------------------> answer
 *                        |                                                             ^
 *                        +-- parked; path is wanted --+            resumed ------------+
 *                                                     v               |
 *      loop thread:              (40 times a second) render(path) -> mfl_http_answer
 *
 * Peers' bytes are read and parsed on that thread only, at a lower priority, by libmicrohttpd; the loop is
 * asked for a page at most once a second and path, however many ask. One lock guards what both threads see,
 * and is held for a few instructions. Bounded: connections (64; the oldest goes when it gets full), bytes of
 * a request (16 KiB), silence (10 s), the life of a connection (20 s), one request a connection.
 *
 * /healthz: 200 while the loop beats and the server says that it is well, else 503 and why. /readyz likewise.
 * Both are answered when the loop is stuck, too. A Host that is a name other than localhost is refused on a
 * loopback address: else any web page that its user visits could read ours by rebinding its own name.
 *
 * http_absent.c stands in where libmicrohttpd is not there.
 */
#ifndef MFL_SERVER_HTTP_H
#define MFL_SERVER_HTTP_H

#include <uv.h>

#include "common/base.h"

struct mfl_http;

/* A page that never changes. */
struct mfl_asset {
        const char *path, *type;
        const unsigned char *bytes;
        size_t n;
};

struct mfl_http_options {
        const char *address; /* HOST:PORT; port 0: any free one */
        bool anywhere;       /* also other than loopback */
        uv_loop_t *loop;
        const struct mfl_asset *assets; /* n_assets, static */
        size_t n_assets;
        /* HTTP thread: whether there may be such a page (at most MFL_HTTP_PATH_BYTES - 1 bytes). */
        bool (*knows)(const char *path);
        /* Loop thread: shall call mfl_http_answer with that path, now or later, unless closed before. Until
         * then it is not called again with it. */
        void (*render)(void *user, const char *path);
        void *user;
        uint32_t stale_ms; /* without a beat for so long the loop is stuck; 0: 5000 */
        uint32_t fresh_ms; /* so long a page is good; 0: 1000 */
};
#define MFL_HTTP_PATH_BYTES 64

/* MFL_INVALID: the address, or no libmicrohttpd in this build. Negative: it can't be bound, memory. */
int mfl_http_open(const struct mfl_http_options *options, struct mfl_http **ret_http, struct mfl_error *err);
const char *mfl_http_address(const struct mfl_http *http); /* "127.0.0.1:7434" */
bool mfl_http_is_loopback(const struct mfl_http *http);
/* Loop thread, from here on. How the server is: NULL for well and for ready, else why not. Until the first
 * beat it counts as alive and not ready ("starting"). Also ends connections that have lived too long. */
void mfl_http_beat(struct mfl_http *http, const char *unwell, const char *unready);
/* Takes body, which malloc made; NULL: the page could not be made, which is told with 503. */
void mfl_http_answer(
        struct mfl_http *http, const char *path, unsigned status, const char *type, char *body, size_t n);
/* Answers since the start, by status; the index of the last is "others". Any thread. */
#define MFL_HTTP_STATUSES 8
extern const unsigned mfl_http_statuses[MFL_HTTP_STATUSES - 1];
void mfl_http_counts(struct mfl_http *http, uint64_t ret_counts[MFL_HTTP_STATUSES]);
/* Ends the thread; the rest, and its memory, goes when the loop has turned. NULL is fine. */
void mfl_http_close(struct mfl_http *http);

#endif
