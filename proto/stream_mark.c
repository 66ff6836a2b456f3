/* SPDX-License-Identifier: Apache-2.0 */
/* How much must have arrived before a stream is woken to read.
 *
 * Waking a reader costs both ends processor time. In the middle of a payload that comes fast the kernel is
 * asked to wait for MARK_BYTES, or for the rest of the payload where that is less: over loopback a GB then
 * takes 300 wake-ups instead of 1,700. The mark is never above what the peer has announced, so nothing is
 * awaited that may not come.
 *
 * A peer that slows down in the middle must not look dead, and its owner counts on bytes_in and heard_ms. So
 * while a mark is set, a timer looks ten times a second: where nothing was read since, the mark goes, and it
 * comes back only when bytes come fast again. Sockets that know no such option are woken for every byte.
 */
#include <sys/socket.h>

#include "proto/stream_internal.h"

#define MARK_BYTES ((size_t)512 * 1024)
/* A read of so many bytes is one of a fast peer: the largest packet of loopback, or many that a network card
 * has put together. For a rest below that, a mark is not worth its system call. */
#define FAST_BYTES ((size_t)64 * 1024)
/* Of TLS a record may be half read, beside what the socket has. */
#define TLS_SLACK_BYTES ((size_t)32 * 1024)
#define LOOK_MS 100

static void set_mark(struct mfl_stream *s, size_t bytes)
{
        uv_os_fd_t fd;
        int value = (int)bytes;
        if (bytes == s->mark || uv_fileno((uv_handle_t *)&s->tcp, &fd))
                return;
        s->mark = bytes;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
}

void mfl_stream_mark_clear(struct mfl_stream *s)
{
        if (s->mark > 1)
                set_mark(s, 1);
}

static void on_look(uv_timer_t *timer)
{
        struct mfl_stream *s = timer->data;
        if (s->mark > 1 && uv_now(timer->loop) - s->heard_ms < LOOK_MS)
                return;
        mfl_stream_mark_clear(s);
        uv_timer_stop(timer);
}

void mfl_stream_mark(struct mfl_stream *s, size_t got, bool drained, size_t left)
{
        size_t slack = s->tls ? TLS_SLACK_BYTES : 0;
        size_t want = left < FAST_BYTES + slack ? 1 : MFL_MIN(left - slack, MARK_BYTES);
        if (s->closing)
                return;
        if (want < s->mark)
                set_mark(s, want);
        else if (want > s->mark && drained && (got >= FAST_BYTES || s->mark > 1)) {
                set_mark(s, want);
                if (!uv_is_active((uv_handle_t *)&s->flush))
                        uv_timer_start(&s->flush, on_look, LOOK_MS, LOOK_MS);
        }
}
