/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of the HTTP port share: http.c, on the HTTP thread, and http_loop.c, on the loop's. */
#ifndef MFL_SERVER_WEB_HTTP_INTERNAL_H
#define MFL_SERVER_WEB_HTTP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/web/http.h"

#define HTTP_CACHE_PAGES 16
#define HTTP_ETAG_BYTES 24
#define HTTP_CONNECTIONS_MAX 64

struct MHD_Connection;
struct MHD_Daemon;

/* Made by the loop, sent by the HTTP thread to any number of peers. */
struct mfl_http_page {
        atomic_uint refs;
        unsigned status;
        const char *type; /* static */
        char *body;
        size_t n;
        uint64_t made_ms;
        char etag[HTTP_ETAG_BYTES]; /* HTTP thread */
};

struct mfl_http_entry {
        char path[MFL_HTTP_PATH_BYTES];
        struct mfl_http_page *page; /* NULL: none yet */
};

enum mfl_http_ask_state {
        ASK_NEW,
        ASK_BEGUN,
        ASK_PARKED,
};
/* A request. Its connection owns it; while it is in `parked` or `wanted` it is suspended, so that it can't
 * end. */
struct mfl_http_ask {
        struct mfl_http_ask *next;
        struct MHD_Connection *connection;
        enum mfl_http_ask_state state;
        char path[MFL_HTTP_PATH_BYTES];
        struct mfl_http_page *page; /* with a reference; NULL: there is none */
};

/* A connection, with a duplicate of its descriptor, so that shutting it down can't race with its close. */
struct mfl_http_peer {
        struct mfl_http_peer *next, **prev_next;
        int fd;
        bool sent_away;
        uint64_t since_ms;
};

struct mfl_http {
        struct mfl_http_options options;
        struct MHD_Daemon *daemon;
        char address[300];
        bool loopback;
        uv_async_t wakeup;
        uv_timer_t batch;
        unsigned handles; /* of libuv, not closed yet */
        uint64_t batch_ms;
        atomic_uint_least64_t counts[MFL_HTTP_STATUSES];

        pthread_mutex_t lock; /* guards all members below */
        bool closing;
        struct mfl_http_entry cache[HTTP_CACHE_PAGES];
        struct mfl_http_ask *wanted, *parked; /* not rendered yet; being rendered */
        struct mfl_http_peer *peers;          /* the newest first */
        uint32_t n_peers;
        uint64_t beat_ms; /* 0: none yet */
        char unwell[256], unready[256];
};

/* http_loop.c */
void mfl_http_page_unref(void *page); /* NULL is fine */
/* The cached page of path, with a reference, if it is fresh; else NULL. Takes the lock. */
struct mfl_http_page *mfl_http_fresh_page(struct mfl_http *http, const char *path);
void mfl_http_on_wakeup(uv_async_t *async);
/* Removes and returns the requests of the list that wait for path (NULL: all). Under the lock. */
struct mfl_http_ask *mfl_http_take_asks(struct mfl_http_ask **list, const char *path);

/* http.c: resumes the requests; each may end at once. Not under the lock. */
void mfl_http_resume(struct mfl_http_ask *asks);
/* Under the lock: libmicrohttpd sees the end of the stream and closes. */
void mfl_http_send_away(struct mfl_http_peer *peer);

#endif
