/* SPDX-License-Identifier: Apache-2.0 */
/* Connects a TCP handle by name: resolves (on libuv's thread pool), then tries one address after the other.
 *
 * Happy path: uv_getaddrinfo -> uv_tcp_connect -> done(0).
 * Failures: the name is unknown; every address refuses (the last one's error is reported). Loop thread only.
 */
#ifndef MFL_PROTO_DIAL_H
#define MFL_PROTO_DIAL_H

#include <uv.h>

#include "common/base/base.h"

struct mfl_dial;

/* The result: 0, or a negative libuv status. text says what was tried, and why it failed. Called once, later; the dial
 * is gone by then. */
typedef void (*mfl_dial_cb)(void *owner, int status, const char *text);

/* Connects tcp, an open handle, whose `data` stays the owner's. address is for messages. MFL_INVALID: the request could
 * not be made; -ENOMEM. done is not called then. */
int mfl_dial_start(uv_tcp_t *tcp, const char *host, const char *port, const char *address, mfl_dial_cb done,
        void *owner, struct mfl_dial **ret_dial, struct mfl_error *err);
/* Stops it, before done. The owner closes tcp and done is not called, except when this returns true: the dial is closing
 * tcp itself at this moment, between two addresses, and calls done with UV_ECANCELED once tcp is closed. */
bool mfl_dial_cancel(struct mfl_dial *dial);

#endif
