/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that another stream carries. */
#include "proto/carry.h"

#include "proto/stream_internal.h"

int mfl_carry_init(struct mfl_stream *s, uv_loop_t *loop, struct mfl_stream *carrier, uint32_t via,
        const struct mfl_stream_ops *ops, void *owner, struct mfl_error *err)
{
        mfl_assert(via && !carrier->carrier);
        int r = mfl_stream_init(s, loop, ops, owner, err);
        if (r)
                return r;
        s->carrier = carrier;
        s->via = via;
        s->connected = true;
        s->heard_ms = s->sent_ms = uv_now(loop);
        return 0;
}

void *mfl_carry_payload(struct mfl_stream *s, const Mfl__Envelope *envelope, size_t payload_bytes)
{
        struct mfl_error err = {"refused"};
        void *dst = NULL;
        if (s->closing || !s->ops->on_payload)
                return NULL;
        int r = s->ops->on_payload(s, envelope, payload_bytes, &dst, &err);
        if (r)
                mfl_stream_refuse(s, r, &err);
        return s->closing ? NULL : dst;
}

void mfl_carry_frame(struct mfl_stream *s, const Mfl__Envelope *envelope, void *payload, size_t payload_bytes)
{
        s->heard_ms = uv_now(s->tcp.loop);
        if (!s->closing)
                mfl_stream_dispatch(s, envelope, payload, payload_bytes);
}

void mfl_carry_pause(struct mfl_stream *s, bool pause)
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
