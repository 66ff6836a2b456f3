/* SPDX-License-Identifier: Apache-2.0 */
/* What stream.c and connect.c share. */
#ifndef MFL_PROTO_STREAM_INTERNAL_H
#define MFL_PROTO_STREAM_INTERNAL_H

#include "proto/stream.h"

/* Closes at once, without a Bye; the first reason stays. */
void mfl_stream_abort(struct mfl_stream *stream, const char *reason);
/* One of the two handles is closed for good. */
void mfl_stream_handle_closed(struct mfl_stream *stream);
/* The connection stands: options, reading. Returns a libuv status. */
int mfl_stream_begin(struct mfl_stream *stream);
/* Ends an attempt to connect on behalf of a stream that closes. */
void mfl_stream_dial_cancel(struct mfl_stream *stream);

#endif
