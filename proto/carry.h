/* SPDX-License-Identifier: Apache-2.0 */
/* Streams inside a stream: a relay's connection carries those of the daemons below it (mfl.proto, RELAYS).
 *
 * A carried stream is a mfl_stream without a socket: what it sends goes out on its carrier with Envelope.via, and the carrier's
 * owner hands it what comes with that number. Everything else is as in stream.h: mfl_stream_send, mfl_stream_close (which also
 * says Bye without a text, since the other side must learn of the end), one on_closed, never from inside. The sent callback of a frame names
 * the carrier as its stream. What waits to be sent counts at the carrier.
 *
 * The carrier's owner closes the carried streams no later than in the carrier's on_closed: they must not outlive its call.
 * A carried stream that is closing does not touch its carrier. Loop thread only.
 */
#ifndef MFL_PROTO_CARRY_H
#define MFL_PROTO_CARRY_H

#include "proto/stream.h"

/* Like mfl_stream_init, and the stream is connected at once. via is not 0. */
int mfl_carry_init(struct mfl_stream *stream, uv_loop_t *loop, struct mfl_stream *carrier, uint32_t via,
        const struct mfl_stream_ops *ops, void *owner, struct mfl_error *err);
/* The carrier's frame with this stream's number begins to arrive: finds the payload's destination. NULL: drop it. What the stream's
 * owner refuses closes this stream, not the carrier. */
void *mfl_carry_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes);
/* The frame has arrived. */
void mfl_carry_frame(
        struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload, size_t payload_bytes);
/* Stops reading from a stream, or goes on; if it is a carried one, from its carrier: what the peer sends waits in both kernels, and then at
 * the peer. A close ends it all the same, within 200 ms. */
void mfl_carry_pause(struct mfl_stream *stream, bool pause);

#endif
