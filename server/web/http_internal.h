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
        /* Of an act's: */
        bool alone;
        int fd; /* -1: none. libmicrohttpd closes it when it was sent, else the page does */
        char cookie[256], file_name[80];
};

struct mfl_http_entry {
        char path[MFL_HTTP_PATH_BYTES];
        struct mfl_http_page *page; /* NULL: none yet */
};

enum mfl_http_ask_state {
        ASK_NEW,
        ASK_BODY, /* a POST whose body is coming */
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
        struct mfl_http_act *act;   /* NULL: it is for a page */
        size_t capacity;            /* of act->body */
};

/* http_tls.c, the only file that uses GnuTLS. Certificates and what they are compared with: the newest, and before them those that
 * connections may still use. */
struct mfl_http_tls;
/* Takes `before`, unless it fails. */
int mfl_http_tls_read(const struct mfl_tls_files *files, struct mfl_http_tls *before,
        struct mfl_http_tls **ret_tls, struct mfl_error *err);
void mfl_http_tls_free(struct mfl_http_tls *tls); /* NULL is fine; when the daemon has stopped */
/* What libmicrohttpd is started with: room for 3 rows, the last of which is MHD_OPTION_END. Sets the certificates that handshakes use. */
struct MHD_OptionItem;
void mfl_http_tls_options(struct mfl_http_tls *tls, struct MHD_OptionItem *ret_items);
/* HTTP thread. False: the visitor has shown none, or it does not count. */
bool mfl_http_visitor(
        struct mfl_http *http, struct MHD_Connection *connection, struct mfl_tls_identity *ret_visitor);

/* A connection, with a duplicate of its descriptor, so that shutting it down can't race with its close. */
struct mfl_http_peer {
        struct mfl_http_peer *next, **prev_next;
        int fd;
        bool sent_away;
        bool patient; /* it loads a file */
        bool acting;  /* it waits for an act, which is always answered */
        bool posting; /* its body is coming */
        uint64_t since_ms;
};

struct mfl_http {
        struct mfl_http_options options;
        struct MHD_Daemon *daemon;
        char address[300];
        bool loopback;
        struct mfl_http_tls *tls; /* loop thread; set at start; NULL: without TLS */
        uv_async_t wakeup;
        uv_timer_t batch;
        unsigned handles; /* of libuv, not closed yet */
        uint64_t batch_ms;
        atomic_uint_least64_t counts[MFL_HTTP_STATUSES];

        pthread_mutex_t lock; /* guards all members below */
        bool closing;
        struct mfl_http_entry cache[HTTP_CACHE_PAGES];
        struct mfl_http_ask *wanted, *parked; /* not rendered yet; being rendered */
        struct mfl_http_ask *to_do, *doing;   /* acts */
        uint64_t last_act;
        uint32_t n_bodies, n_patient; /* HTTP thread */
        struct mfl_http_peer *peers;  /* the newest first */
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

/* http_act.c, HTTP thread. Whether the peer waits for an act; it has its whole time again when the act is answered. */
void mfl_http_acting(struct mfl_http *http, struct MHD_Connection *connection, bool acting);
/* Judges a POST by its headers: NULL, or why it is refused, with *ret_status. */
const char *mfl_http_judge_post(
        struct mfl_http *http, struct MHD_Connection *connection, const char *path, unsigned *ret_status);
/* A request that is an act: *ret_ask has one. False: memory ran out. */
bool mfl_http_begin_act(struct mfl_http *http, struct mfl_http_ask *ask, const char *path, bool post);
/* Takes bytes of the body. False: it is longer than its header says, or memory ran out. */
bool mfl_http_add_body(struct mfl_http_ask *ask, const char *bytes, size_t n);
/* Suspends the connection and gives the act to the loop. */
void mfl_http_park_act(struct mfl_http *http, struct mfl_http_ask *ask);
void mfl_http_act_free(struct mfl_http *http, struct mfl_http_act *act);
/* Under the lock: libmicrohttpd sees the end of the stream and closes. */
void mfl_http_send_away(struct mfl_http_peer *peer);
/* http_loop.c: does what is to be done. */
void mfl_http_do_acts(struct mfl_http *http);

/* http.c: resumes the requests; each may end at once. Not under the lock. */
void mfl_http_resume(struct mfl_http_ask *asks);

#endif
