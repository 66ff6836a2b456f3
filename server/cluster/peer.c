/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to another server of the cluster. See peer.h.
 *   - the loop runs only while a call waits: for the connection, the greeting, an answer;
 *   - put: ask how much is there (with a small file, send it), then piece by piece, until the answer says that all is durable;
 *   - get: piece by piece into a temporary file, hashed on the way.
 * Fails when the other server is away, slow, of another release, or has another certificate; the connection is closed then. */
#include "server/cluster/peer.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/digest.h"
#include "common/base/fs.h"
#include "proto/stream.h"
#include "proto/version.h"
#include "server/cluster/copy_core.h"

struct mfl_peer {
        struct mfl_peer_options options;
        uv_loop_t loop;
        uv_timer_t alarm;
        struct mfl_stream *stream; /* NULL: none */
        bool connected, welcomed, answered, late;
        char reason[300];
        uint64_t request;
        /* The answer. */
        bool failed, not_found, durable;
        uint64_t bytes, offset;
        size_t n;
        uint8_t *piece; /* room for MFL_MOVE_DATA_MAX */
};

static void on_alarm(uv_timer_t *timer)
{
        ((struct mfl_peer *)timer->data)->late = true;
}

static int send_envelope(struct mfl_peer *peer, Mfl__Envelope *envelope, struct mfl_error *err)
{
        return mfl_stream_send(peer->stream, envelope, NULL, 0, NULL, NULL, NULL, err);
}

/* ---- frames ---- */

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
}

static void answer_ping(struct mfl_peer *peer, uint64_t cookie)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Pong pong = MFL__PONG__INIT;
        pong.cookie = cookie;
        e.body_case = MFL__ENVELOPE__BODY_PONG;
        e.pong = &pong;
        send_envelope(peer, &e, NULL);
}

static int take_welcome(struct mfl_peer *peer, const Mfl__Welcome *welcome, struct mfl_error *err)
{
        const struct mfl_protocol_range own = {MFL_PROTOCOL_RELAYS, MFL_PROTOCOL_MAX};
        int r = mfl_protocol_check_chosen(
                own, welcome->protocol, "mfl-server " MFL_VERSION, welcome->software, err);
        peer->welcomed = !r;
        peer->stream->envelope_max = MFL_ENVELOPE_MAX;
        return r;
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *e, void *payload, size_t payload_bytes,
        struct mfl_error *err)
{
        struct mfl_peer *peer = stream->owner;
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_BYE:
                mfl_strcpy(peer->reason, sizeof peer->reason, e->bye->reason);
                return 0;
        case MFL__ENVELOPE__BODY_PING:
                answer_ping(peer, e->ping->cookie);
                return 0;
        case MFL__ENVELOPE__BODY_WELCOME:
                return take_welcome(peer, e->welcome, err);
        default:
                break;
        }
        if (e->request != peer->request)
                return 0;
        if (e->body_case == MFL__ENVELOPE__BODY_FAILURE) {
                peer->failed = peer->answered = true;
                peer->not_found = e->failure->code == MFL__FAILURE_CODE__FAILURE_NOT_FOUND;
                mfl_strcpy(peer->reason, sizeof peer->reason, e->failure->text);
        } else if (e->body_case == MFL__ENVELOPE__BODY_FILE_PIECE) {
                const Mfl__FilePiece *piece = e->file_piece;
                peer->answered = true;
                peer->bytes = piece->bytes;
                peer->offset = piece->offset;
                peer->durable = piece->durable;
                peer->n = piece->data.len;
                if (peer->n)
                        memcpy(peer->piece, piece->data.data, peer->n);
        }
        return 0;
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct mfl_peer *peer = stream->owner;
        if (!*peer->reason)
                mfl_strcpy(peer->reason, sizeof peer->reason, reason);
        peer->stream = NULL;
        peer->connected = peer->welcomed = false;
        free(stream);
}

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct mfl_peer *peer = stream->owner;
        peer->connected = !status;
        if (status && text)
                mfl_strcpy(peer->reason, sizeof peer->reason, text);
}

static const struct mfl_stream_ops ops = {
        .on_payload = on_payload,
        .on_frame = on_frame,
        .on_closed = on_closed,
        .on_connected = on_connected,
};

/* ---- waiting ---- */

static void drop(struct mfl_peer *peer)
{
        if (peer->stream)
                mfl_stream_close(peer->stream, NULL, false);
        while (peer->stream)
                uv_run(&peer->loop, UV_RUN_ONCE);
}

/* Until *flag; MFL_BUSY, and no connection any more. */
static int wait_for(struct mfl_peer *peer, const bool *flag, uint64_t ms, struct mfl_error *err)
{
        peer->late = false;
        uv_update_time(&peer->loop);
        uv_timer_start(&peer->alarm, on_alarm, ms, 0);
        while (!*flag && peer->stream && !peer->late)
                uv_run(&peer->loop, UV_RUN_ONCE);
        uv_timer_stop(&peer->alarm);
        if (*flag)
                return 0;
        if (peer->late)
                mfl_snprintf(peer->reason, sizeof peer->reason, "no answer for %llu s",
                        (unsigned long long)(ms / 1000));
        drop(peer);
        return mfl_fail(
                err, MFL_BUSY, "%s (%s): %s", peer->options.name, peer->options.address, peer->reason);
}

static int begin_tls(struct mfl_peer *peer, struct mfl_error *err)
{
        struct mfl_tls_context *context;
        if (!peer->options.tls.ca || !*peer->options.tls.ca)
                return 0;
        int r = mfl_tls_context_new(&peer->options.tls, false, &context, err);
        if (r)
                return r;
        r = mfl_stream_tls(peer->stream, context, err);
        mfl_tls_context_unref(context);
        return r;
}

static int greet(struct mfl_peer *peer, struct mfl_error *err)
{
        Mfl__Hello hello = MFL__HELLO__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        hello.protocol_min = MFL_PROTOCOL_RELAYS;
        hello.protocol_max = MFL_PROTOCOL_MAX;
        hello.role = MFL__ROLE__ROLE_SERVER;
        hello.software = (char *)"mfl-server " MFL_VERSION;
        hello.name = (char *)(uintptr_t)peer->options.own;
        envelope.body_case = MFL__ENVELOPE__BODY_HELLO;
        envelope.hello = &hello;
        int r = send_envelope(peer, &envelope, err);
        return r ? r : wait_for(peer, &peer->welcomed, MFL_PEER_CONNECT_MS, err);
}

static int dial(struct mfl_peer *peer, struct mfl_error *err)
{
        if (peer->stream) /* whether the other side has closed it since the last call */
                uv_run(&peer->loop, UV_RUN_NOWAIT);
        if (peer->stream && peer->welcomed)
                return 0;
        drop(peer);
        peer->reason[0] = 0;
        struct mfl_stream *stream = mfl_calloc(1, sizeof *stream);
        if (!stream)
                return mfl_fail_memory(err, sizeof *stream, "a connection");
        int r = mfl_stream_init(stream, &peer->loop, &ops, peer, err);
        if (r) {
                free(stream);
                return r;
        }
        peer->stream = stream;
        r = begin_tls(peer, err);
        if (!r)
                r = mfl_stream_connect(stream, peer->options.address, err);
        if (!r)
                r = wait_for(peer, &peer->connected, MFL_PEER_CONNECT_MS, err);
        if (!r)
                r = greet(peer, err);
        if (r)
                drop(peer);
        return r;
}

static int ask(struct mfl_peer *peer, Mfl__Envelope *envelope, struct mfl_error *err)
{
        int r = dial(peer, err);
        if (r)
                return r;
        envelope->request = ++peer->request;
        peer->answered = peer->failed = peer->not_found = peer->durable = false;
        r = send_envelope(peer, envelope, err);
        if (!r)
                r = wait_for(peer, &peer->answered, MFL_PEER_ANSWER_MS, err);
        if (r || !peer->failed)
                return r;
        r = mfl_fail(
                err, peer->not_found ? MFL_NOT_FOUND : MFL_BUSY, "%s: %s", peer->options.name, peer->reason);
        peer->reason[0] = 0;
        return r;
}

/* ---- files ---- */

static int put_piece(struct mfl_peer *peer, Mfl__PutFile *put, struct mfl_error *err)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        envelope.body_case = MFL__ENVELOPE__BODY_PUT_FILE;
        envelope.put_file = put;
        return ask(peer, &envelope, err);
}

static int read_piece(
        int fd, const char *path, const struct mfl_copy_give *give, uint8_t *piece, struct mfl_error *err)
{
        ssize_t n = give->n ? pread(fd, piece, give->n, (off_t)give->offset) : 0;
        return n >= 0 && (uint64_t)n == give->n
                       ? 0
                       : mfl_fail(err, MFL_NOT_FOUND, "read %s: %s", path,
                                 n < 0 ? strerror(errno) : "it is shorter than its row says");
}

static int send_pieces(struct mfl_peer *peer, int fd, const char *path, Mfl__PutFile *put,
        void (*on_piece)(void *user), void *user, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *piece = mfl_malloc(MFL_MOVE_DATA_MAX);
        struct mfl_copy_give give;
        enum mfl_copy_give_action action = MFL_COPY_GIVE_PIECE;
        if (!piece)
                return mfl_fail_memory(err, MFL_MOVE_DATA_MAX, "a piece of a file");
        mfl_copy_give_init(&give, put->bytes, MFL_MOVE_DATA_MAX);
        int r = 0;
        for (bool first = true; !r && action == MFL_COPY_GIVE_PIECE; first = false) {
                r = read_piece(fd, path, &give, piece, err);
                if (r)
                        break;
                put->offset = give.offset;
                put->data = (ProtobufCBinaryData){.len = give.n, .data = piece};
                r = put_piece(peer, put, err);
                if (!r) /* before on_piece, which may send another file */
                        action = mfl_copy_give_step(&give, peer->offset, peer->durable);
                if (!r && !first)
                        on_piece(user);
        }
        if (!r && action == MFL_COPY_GIVE_STUCK)
                r = mfl_fail(
                        err, MFL_INVALID, "%s: asks for the same piece again and again", peer->options.name);
        return r;
}

int mfl_peer_put(struct mfl_peer *peer, const char *path, const uint8_t sha256[32], uint64_t bytes,
        void (*on_piece)(void *user), void *user, struct mfl_error *err)
{
        Mfl__PutFile put = MFL__PUT_FILE__INIT;
        put.sha256 = (ProtobufCBinaryData){.len = 32, .data = (uint8_t *)(uintptr_t)sha256};
        put.bytes = bytes;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_fail(err, MFL_NOT_FOUND, "open %s: %s", path, strerror(errno));
        int r = send_pieces(peer, fd, path, &put, on_piece, user, err);
        close(fd);
        return r;
}

/* What one server has of it. */
struct getting {
        struct mfl_copy_fetch core;
        Mfl__GetFile get;
        struct mfl_fs_file to;
        struct mfl_sha256 sha;
        bool (*beat)(void *user);
        void *user;
};

static int get_piece(struct mfl_peer *peer, struct getting *g, struct mfl_error *err)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        envelope.body_case = MFL__ENVELOPE__BODY_GET_FILE;
        envelope.get_file = &g->get;
        g->get.offset = g->core.offset;
        int r = ask(peer, &envelope, err);
        /* Whoever sends a byte at a time would keep this server from asking another one. */
        if (!r && (!g->core.bytes || peer->bytes == g->core.bytes) && g->get.offset <= peer->bytes &&
                peer->n < MFL_MIN(peer->bytes - g->get.offset, (uint64_t)MFL_MOVE_DATA_MAX))
                r = mfl_fail(
                        err, MFL_INVALID, "%s: it sends pieces of %zu bytes", peer->options.name, peer->n);
        return r;
}

/* What the directory has room for. */
static int find_room(const struct getting *g, uint64_t *ret_room, struct mfl_error *err)
{
        char dir[1500];
        mfl_strcpy(dir, sizeof dir, g->to.tmp);
        char *slash = strrchr(dir, '/');
        if (slash)
                *slash = 0;
        return mfl_fs_room(slash ? dir : ".", ret_room, err);
}

static int fail_full(
        const struct mfl_peer *peer, const struct mfl_copy_fetch_event *event, struct mfl_error *err)
{
        char wants[16], has[16];
        return mfl_fail(err, MFL_BUSY, "%s: a file of %s, and %s are free here: No space left on device",
                peer->options.name, mfl_format_bytes(event->bytes, wants),
                mfl_format_bytes(event->room, has));
}

static int write_piece(struct mfl_peer *peer, struct getting *g, struct mfl_error *err)
{
        int r = mfl_sha256_update(&g->sha, peer->piece, peer->n, err);
        if (!r)
                r = mfl_fs_write(&g->to, peer->piece, peer->n, err);
        if (!r && g->beat && !g->beat(g->user))
                r = mfl_fail(err, -ECANCELED, "copying a file: the lease is over");
        return r;
}

static int check_all(struct getting *g, bool *ret_same, struct mfl_error *err)
{
        uint8_t got[32];
        int r = mfl_sha256_final(&g->sha, got, err);
        *ret_same = !r && !memcmp(got, g->get.sha256.data, sizeof got);
        return r;
}

/* Carries out an action; *event is its result. */
static int get_step(struct mfl_peer *peer, struct getting *g, enum mfl_copy_fetch_action action,
        struct mfl_copy_fetch_event *event, struct mfl_error *err)
{
        int r;
        switch (action) {
        case MFL_COPY_FETCH_ASK:
                r = get_piece(peer, g, err);
                *event = (struct mfl_copy_fetch_event){
                        .kind = MFL_COPY_FETCH_EV_PIECE, .bytes = peer->bytes, .n = peer->n};
                return r || g->core.bytes ? r : find_room(g, &event->room, err);
        case MFL_COPY_FETCH_WRITE:
                event->kind = MFL_COPY_FETCH_EV_WRITTEN;
                return write_piece(peer, g, err);
        case MFL_COPY_FETCH_CHECK:
                event->kind = MFL_COPY_FETCH_EV_CHECKED;
                return check_all(g, &event->ok, err);
        case MFL_COPY_FETCH_OTHER:
                return g->core.bytes ? mfl_fail(err, MFL_INVALID, "%s: its file is not of %llu bytes",
                                               peer->options.name, (unsigned long long)g->core.bytes)
                                     : mfl_fail(err, MFL_INVALID, "%s: its file is said to have %llu bytes",
                                               peer->options.name, (unsigned long long)peer->bytes);
        case MFL_COPY_FETCH_FULL:
                return fail_full(peer, event, err);
        case MFL_COPY_FETCH_WRONG:
                return mfl_fail(err, MFL_INVALID, "%s: what it has is not that SHA-256", peer->options.name);
        case MFL_COPY_FETCH_KEEP:
                break;
        }
        return mfl_fs_commit(&g->to, err);
}

int mfl_peer_get(struct mfl_peer *peer, const uint8_t sha256[32], uint64_t bytes, const char *path,
        bool (*beat)(void *user), void *user, struct mfl_error *err)
{
        struct getting g = {
                .core.bytes = bytes, .get = MFL__GET_FILE__INIT, .to.fd = -1, .beat = beat, .user = user};
        enum mfl_copy_fetch_action action = MFL_COPY_FETCH_ASK;
        struct mfl_copy_fetch_event event;
        g.get.sha256 = (ProtobufCBinaryData){.len = 32, .data = (uint8_t *)(uintptr_t)sha256};
        int r = mfl_fs_begin(&g.to, path, err);
        if (r)
                return r;
        r = mfl_sha256_init(&g.sha, err);
        while (!r) {
                r = get_step(peer, &g, action, &event, err);
                if (r || action == MFL_COPY_FETCH_KEEP)
                        break;
                action = mfl_copy_fetch_step(&g.core, &event);
        }
        mfl_sha256_deinit(&g.sha);
        mfl_fs_abort(&g.to);
        return r;
}

/* ---- begin and end ---- */

int mfl_peer_new(const struct mfl_peer_options *options, struct mfl_peer **ret_peer, struct mfl_error *err)
{
        struct mfl_peer *peer = mfl_calloc(1, sizeof *peer);
        if (!peer || !(peer->piece = mfl_malloc(MFL_MOVE_DATA_MAX))) {
                free(peer);
                return mfl_fail_memory(err, MFL_MOVE_DATA_MAX, "a connection to another server");
        }
        peer->options = *options;
        int rc = uv_loop_init(&peer->loop);
        if (rc) {
                free(peer->piece);
                free(peer);
                return mfl_fail(err, rc, "start a loop: %s", uv_strerror(rc));
        }
        uv_timer_init(&peer->loop, &peer->alarm);
        peer->alarm.data = peer;
        *ret_peer = peer;
        return 0;
}

void mfl_peer_free(struct mfl_peer *peer)
{
        if (!peer)
                return;
        drop(peer);
        uv_close((uv_handle_t *)&peer->alarm, NULL);
        uv_run(&peer->loop, UV_RUN_DEFAULT);
        uv_loop_close(&peer->loop);
        free(peer->piece);
        free(peer);
}
