/* SPDX-License-Identifier: Apache-2.0 */
/* Connects a TCP handle by name: one address after the other.
 *
 *   RESOLVING -> CONNECTING -> done
 *                  |    ^
 *                  v    |    an address refused, and there is another one
 *                REOPENING
 *
 * A resolver cannot always be stopped, so what it needs is a heap object of its own, which may outlive the handle.
 */
#include "proto/dial.h"

#include <stdio.h>

enum state {
        RESOLVING,
        CONNECTING, /* a connect request is out */
        REOPENING, /* a handle that failed to connect cannot be used again: it is closed and initialised again */
};

struct mfl_dial {
        enum state state;
        bool cancelled;
        uv_tcp_t *tcp; /* not to be touched once cancelled, unless REOPENING */
        void *tcp_data;
        mfl_dial_cb done;
        void *owner;
        uv_getaddrinfo_t resolver;
        uv_connect_t connect;
        struct addrinfo *list, *next;
        char address[320];
};

static void free_dial(struct mfl_dial *d)
{
        uv_freeaddrinfo(d->list);
        free(d);
}

static void finish(struct mfl_dial *d, int status, const char *what)
{
        mfl_dial_cb done = d->done;
        void *owner = d->owner;
        char text[480];
        snprintf(
                text, sizeof text, "%s %s: %s", what, d->address, status ? uv_strerror(status) : "connected");
        free_dial(d);
        done(owner, status, text);
}

static void try_next(struct mfl_dial *d);

static void on_reopen_closed(uv_handle_t *handle)
{
        struct mfl_dial *d = handle->data;
        handle->data = d->tcp_data;
        if (d->cancelled) {
                finish(d, UV_ECANCELED, "connect to");
                return;
        }
        int r = uv_tcp_init(handle->loop, d->tcp);
        mfl_assert(!r); /* without a socket there is nothing that can fail */
        d->tcp->data = d->tcp_data;
        try_next(d);
}

/* This address failed: goes on with the next one, if there is one. */
static void fail_address(struct mfl_dial *d, int status)
{
        if (!d->next) {
                finish(d, status, "connect to");
                return;
        }
        d->state = REOPENING;
        d->tcp_data = d->tcp->data;
        d->tcp->data = d;
        uv_close((uv_handle_t *)d->tcp, on_reopen_closed);
}

static void on_connect(uv_connect_t *req, int status)
{
        struct mfl_dial *d = MFL_CONTAINER_OF(req, struct mfl_dial, connect);
        if (d->cancelled)
                free_dial(d);
        else if (status)
                fail_address(d, status);
        else
                finish(d, 0, "connect to");
}

static void try_next(struct mfl_dial *d)
{
        struct addrinfo *a = d->next;
        d->next = a->ai_next;
        d->state = CONNECTING;
        int r = uv_tcp_connect(&d->connect, d->tcp, a->ai_addr, on_connect);
        if (r)
                fail_address(d, r);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
        struct mfl_dial *d = MFL_CONTAINER_OF(req, struct mfl_dial, resolver);
        d->list = d->next = list;
        if (d->cancelled)
                free_dial(d);
        else if (status || !list)
                finish(d, status ? status : UV_EAI_NONAME, "resolve");
        else
                try_next(d);
}

int mfl_dial_start(uv_tcp_t *tcp, const char *host, const char *port, const char *address, mfl_dial_cb done,
        void *owner, struct mfl_dial **ret_dial, struct mfl_error *err)
{
        struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        struct mfl_dial *d = mfl_calloc(1, sizeof *d);
        if (!d)
                return mfl_fail_memory(err, sizeof *d, "a connection");
        d->state = RESOLVING;
        d->tcp = tcp;
        d->done = done;
        d->owner = owner;
        mfl_strcpy(d->address, sizeof d->address, address);
        int r = uv_getaddrinfo(tcp->loop, &d->resolver, on_resolved, host, port, &hints);
        if (r) {
                free(d);
                return mfl_fail(err, r == UV_ENOMEM ? -ENOMEM : MFL_INVALID, "resolve %s: %s", address,
                        uv_strerror(r));
        }
        *ret_dial = d;
        return 0;
}

bool mfl_dial_cancel(struct mfl_dial *d)
{
        mfl_assert(!d->cancelled);
        d->cancelled = true;
        if (d->state == RESOLVING)
                uv_cancel((uv_req_t *)&d->resolver); /* on_resolved comes in any case, and frees the dial */
        return d->state == REOPENING;
}
