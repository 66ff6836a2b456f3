/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes from another daemon, over a pair of sockets without TLS (fuzz_tls.c has that). The first byte says to whom:
 *
 *   0: to a port that somebody has connected to, before he is greeted;
 *   1: to a rank that has connected to a port, and waits for the answer;
 *   2: to a rank of a mesh, in the middle of an operation, of which the second byte says the kind.
 *
 * With 4 added, the rest is a list of frames (envelope's size, payload's size, two bytes each, and their bytes) whose
 * checksums are made right. Nothing that comes breaks more than its own connection, or is written beyond its place. */
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/peer/greeting.h"
#include "client/peer/mesh_tcp.h"
#include "common/base/crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define BYTES_MAX 60000u /* what a socket takes before anybody reads */
#define ELEMENTS 700u

static void send_all(int fd, const void *bytes, size_t n)
{
        (void)!send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_frames(int fd, const uint8_t *data, size_t n)
{
        while (n >= 4) {
                uint8_t header[MFL_FRAME_HEADER_BYTES];
                size_t envelope = data[0] | (size_t)data[1] << 8, payload = data[2] | (size_t)data[3] << 8;
                data += 4, n -= 4;
                envelope = MFL_MIN(envelope, n);
                payload = MFL_MIN(payload, n - envelope);
                const struct mfl_frame frame = {.version = MFL_FRAME_VERSION,
                        .envelope_bytes = (uint32_t)envelope,
                        .payload_bytes = (uint32_t)payload,
                        .envelope_crc = mfl_crc32c(0, data, envelope),
                        .payload_crc = mfl_crc32c(0, data + envelope, payload)};
                mfl_frame_encode(&frame, header);
                send_all(fd, header, sizeof header);
                send_all(fd, data, envelope + payload);
                data += envelope + payload, n -= envelope + payload;
        }
}

static bool knows_all(void *user, struct peer_greeting *greeting)
{
        memset(greeting->key, 5, sizeof greeting->key);
        return greeting->team == 5;
}

static void greet(struct peer_link *link, bool dials)
{
        struct peer_greeting greeting = {
                .dials = dials, .team = 5, .rank = dials, .n_ranks = 2, .knows = knows_all};
        struct mfl_error err;
        memset(greeting.key, 5, sizeof greeting.key);
        for (int i = 0; i < 4; i++) { /* the nonce is always 0 */
                int r = mfl_peer_greet(&greeting, link, &err);
                mfl_assert(r == 0 || r == MFL_BUSY || r == PEER_OVER || r == PEER_LATER || r == PEER_REFUSED);
                if (r != MFL_BUSY)
                        break;
        }
        mfl_peer_link_free(link);
}

static void operate(struct peer_link *link, uint8_t kind)
{
        static uint8_t slots[2 * MESH_TCP_PIECE_BYTES_MIN];
        int64_t in[ELEMENTS] = {0}, *out = mfl_calloc(ELEMENTS, sizeof *out);
        struct mesh_tcp *mesh = mfl_calloc(1, sizeof *mesh);
        struct mfl_error err;
        mfl_assert(mesh && out);
        *mesh = (struct mesh_tcp){
                .base = {.ops = &mfl_mesh_tcp_ops, .rank = kind / 64 % 2, .n_ranks = 2, .team = 5},
                .wake = eventfd(0, EFD_NONBLOCK),
                .piece_bytes = 1024};
        pthread_mutex_init(&mesh->lock, NULL);
        for (uint32_t r = 0; r < 2; r++)
                mesh->peer[r].slot = slots + r * MESH_TCP_PIECE_BYTES_MIN;
        link->in.payload_max = 1024;
        uint32_t other = !mesh->base.rank;
        mesh->peer[other].link = link;
        const struct mfl_mesh_op op = {.kind = (enum mfl_mesh_kind)(kind % 8),
                .type = (enum mfl_mesh_type)(kind / 8 % 4),
                .peer = other,
                .in = in,
                .out = out,
                .n = ELEMENTS};
        for (int i = 0; i < 3; i++) {
                int r = mesh->base.ops->start(&mesh->base, &op, &err);
                if (!r)
                        r = mesh->base.ops->progress(&mesh->base, 0, &err);
                mfl_assert(r == 0 || r == MFL_MESH_PENDING || r == MFL_MESH_BROKEN);
                if (r)
                        break;
        }
        mesh->base.ops->close(&mesh->base);
        free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
        struct peer_link *link;
        struct mfl_error err;
        int fds[2];
        if (n < 2 || n > BYTES_MAX || socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
                return 0;
        if (data[0] & 4)
                send_frames(fds[1], data + 2, n - 2);
        else
                send_all(fds[1], data + 2, n - 2);
        if (!mfl_peer_link_new(fds[0], NULL, &link, &err)) {
                if (data[0] & 2)
                        operate(link, data[1]);
                else
                        greet(link, data[0] & 1);
        }
        close(fds[1]);
        return 0;
}
