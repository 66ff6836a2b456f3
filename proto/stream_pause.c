/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that are not read for a while: what the peer sends waits in both kernels, and then at the peer. */
#include "proto/stream_internal.h"

void mfl_stream_pause(struct mfl_stream *s, bool pause)
{
        s = s->carrier ? s->carrier : s;
        if (s->paused == pause || s->closing)
                return;
        s->paused = pause;
        s->heard_ms = uv_now(s->tcp.loop);
        if (pause)
                uv_read_stop((uv_stream_t *)&s->tcp);
        else if (uv_read_start((uv_stream_t *)&s->tcp, mfl_stream_on_alloc, mfl_stream_on_read))
                mfl_stream_abort(s, "reading can't go on");
}
