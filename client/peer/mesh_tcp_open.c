/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a mesh over TCP meet: each connects to those below it, and waits for those above it.
 *
 * A rank that does not know the team yet, because its task is still on the way, is asked again and again. One that can't be
 * reached at all, or is not of the team, ends the meeting. Then this rank also tries all others: if it reaches none of them, and they
 * are at other hosts than the first one, it accuses itself, since a firewall in front of it explains that and a closed port or a restart
 * of one host does not. */
#include "client/peer/mesh_tcp.h"

#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/peer/dial.h"
#include "client/peer/port.h"
#include "client/peer/reach.h"
#include "proto/stream.h"

#define AGAIN_MS 10u
#define AGAIN_MS_MAX 250u
#define BROKEN_OFF_MAX 5u /* greetings of one rank that break off */
#define TURN_MS 10u

struct opening {
        const struct mfl_mesh_tcp_options *options;
        struct mesh_tcp *mesh;
        struct peer_meeting meeting;
        struct mfl_tls_context *context; /* of the client's side; NULL: plain */
        uint64_t end_ms;
        struct {
                uint64_t at_ms;
                uint32_t pause_ms, broken_off;
        } again[MFL_MESH_RANKS_MAX];
};

static void tell(const struct mfl_mesh_tcp_options *o, const struct mfl_mesh *mesh)
{
        if (o->accused)
                *o->accused = mesh->accused;
        if (o->loss)
                *o->loss = mesh->loss;
}

static int accuse(
        struct opening *opening, uint32_t rank, enum mfl_mesh_loss loss, const struct mfl_error *err)
{
        opening->mesh->base.loss = loss;
        mfl_mesh_tcp_break(opening->mesh, rank + 1, err->text);
        tell(opening->options, &opening->mesh->base);
        return MFL_MESH_BROKEN;
}

static bool is_local(const struct mfl_mesh_tcp_options *o, uint32_t rank)
{
        return rank >= o->local_first && rank < o->local_first + o->n_local;
}

/* ---- to those below ---- */

static int bring(struct opening *opening, uint32_t rank, struct peer_link **ret_link, struct mfl_error *err)
{
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds))
                return mfl_fail_errno(err, "a pair of sockets");
        int r = mfl_peer_port_bring(opening->options->port, &opening->meeting, rank, fds[1], err);
        if (!r)
                return mfl_peer_link_new(fds[0], NULL, ret_link, err);
        close(fds[0]);
        return r == MFL_BUSY ? PEER_LATER : r;
}

static int dial(struct opening *opening, uint32_t rank, struct peer_link **ret_link, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        struct peer_greeting greeting = {.dials = true,
                .team = o->team,
                .epoch = o->epoch,
                .rank = o->rank,
                .other = rank,
                .n_ranks = o->n_ranks};
        memcpy(greeting.key, o->key, sizeof greeting.key);
        return mfl_peer_dial(o->address[rank], opening->context, &greeting, o->cancel, ret_link, err);
}

/* One rank can't be reached at its address. */
static int look_around(struct opening *opening, uint32_t rank, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        const char *others[MFL_MESH_RANKS_MAX];
        uint32_t tried;
        for (uint32_t r = 0; r < o->n_ranks;
                r++) { /* a firewall around the own host is not between its ranks */
                bool beside = mfl_peer_same_host(o->address[o->rank], o->address[r]);
                others[r] = is_local(o, r) || beside ? NULL : o->address[r];
        }
        uint32_t found = mfl_peer_reach(others, o->n_ranks, o->address[rank], o->cancel, &tried);
        size_t length = strlen(err->text);
        if (tried && found == o->n_ranks && !(o->cancel && atomic_load(o->cancel))) {
                mfl_snprintf(err->text + length, sizeof err->text - length, "; nor can %u other host%s",
                        tried, tried > 1 ? "s" : "");
                return accuse(opening, o->rank, MFL_MESH_ISOLATED, err);
        }
        if (found < o->n_ranks)
                mfl_snprintf(
                        err->text + length, sizeof err->text - length, "; %s can be reached", others[found]);
        return accuse(opening, rank, MFL_MESH_UNREACHED, err);
}

static int connect_to(struct opening *opening, uint32_t rank, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        struct mfl_error why = {{0}};
        uint64_t now_ms = mfl_now_ms();
        if (now_ms < opening->again[rank].at_ms)
                return 0;
        struct peer_link **link = &opening->mesh->peer[rank].link;
        int r = is_local(o, rank) ? bring(opening, rank, link, &why) : dial(opening, rank, link, &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        if (!r || r == MFL_BUSY) /* cancelled: the caller sees it */
                return 0;
        bool broken_off = r == PEER_OVER && strstr(why.text, "was closed");
        if (broken_off && ++opening->again[rank].broken_off < BROKEN_OFF_MAX)
                r = PEER_LATER;
        if (r != PEER_LATER) {
                mfl_fail(err, MFL_MESH_BROKEN, "rank %u of the team %s at %s: %.300s", rank,
                        r == PEER_REFUSED ? "is not who it should be" : "can't be reached", o->address[rank],
                        why.text);
                return r == PEER_REFUSED ? accuse(opening, rank, MFL_MESH_UNREACHED, err)
                                         : look_around(opening, rank, err);
        }
        uint32_t pause_ms = opening->again[rank].pause_ms;
        opening->again[rank].pause_ms = pause_ms = MFL_MIN(MFL_MAX(2 * pause_ms, AGAIN_MS), AGAIN_MS_MAX);
        opening->again[rank].at_ms = mfl_now_ms() + pause_ms;
        return 0;
}

/* ---- all of them ---- */

/* *ret_missing: a rank that is not there; n_ranks: all are. */
static int look(struct opening *opening, uint32_t *ret_missing, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        uint32_t missing = o->n_ranks;
        for (uint32_t r = 0; r < o->n_ranks; r++) {
                struct mesh_tcp_peer *peer = &opening->mesh->peer[r];
                int rc = r < o->rank && !peer->link ? connect_to(opening, r, err) : 0;
                if (rc)
                        return rc;
                if (r > o->rank && !peer->link)
                        peer->link = mfl_peer_port_take(o->port, &opening->meeting, r, 0);
                if (r != o->rank && !peer->link)
                        missing = r;
        }
        *ret_missing = missing;
        return 0;
}

static int meet(struct opening *opening, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        for (;;) {
                uint32_t missing = 0;
                int r = look(opening, &missing, err);
                if (r || missing == o->n_ranks)
                        return r;
                if (o->cancel && atomic_load(o->cancel))
                        return mfl_fail(err, MFL_MESH_BROKEN, "opening the team's mesh was cancelled");
                if (mfl_now_ms() >= opening->end_ms) {
                        mfl_fail(err, MFL_MESH_BROKEN, "rank %u of the team did not come within %u ms",
                                missing, o->deadline_ms);
                        return accuse(opening, missing, MFL_MESH_LATE, err);
                }
                if (missing > o->rank)
                        opening->mesh->peer[missing].link =
                                mfl_peer_port_take(o->port, &opening->meeting, missing, TURN_MS);
                else
                        nanosleep(&(struct timespec){.tv_nsec = TURN_MS * 1000000}, NULL);
        }
}

static uint64_t piece_bytes(uint32_t n_ranks)
{
        uint64_t bytes = MESH_TCP_SLOTS_BYTES / MFL_MAX(1u, n_ranks - 1) & ~(uint64_t)4095;
        return MFL_MAX(MESH_TCP_PIECE_BYTES_MIN, MFL_MIN(bytes, MESH_TCP_PIECE_BYTES));
}

/* What a connection holds of records that are sealed and not yet sent, or received and not yet opened. */
#define LINK_BYTES ((uint64_t)256 << 10)

uint64_t mfl_mesh_tcp_bytes(uint32_t n_ranks)
{
        return sizeof(struct mesh_tcp) + piece_bytes(n_ranks) * n_ranks +
               (n_ranks - 1) * (sizeof(struct peer_link) + LINK_BYTES);
}

static int mesh_new(const struct mfl_mesh_tcp_options *o, struct mesh_tcp **ret_mesh, struct mfl_error *err)
{
        mfl_assert(o->n_ranks >= 1 && o->n_ranks <= MFL_MESH_RANKS_MAX && o->rank < o->n_ranks);
        mfl_assert(is_local(o, o->rank));
        uint64_t each = piece_bytes(o->n_ranks);
        struct mesh_tcp *mesh = mfl_calloc(1, sizeof *mesh);
        uint8_t *slots = mfl_alloc_aligned(each * o->n_ranks);
        if (!mesh || !slots) {
                free(mesh);
                free(slots);
                return mfl_fail_memory(err, each * o->n_ranks, "a mesh");
        }
        *mesh = (struct mesh_tcp){.base = {.ops = &mfl_mesh_tcp_ops,
                                          .rank = o->rank,
                                          .n_ranks = o->n_ranks,
                                          .team = o->team,
                                          .epoch = o->epoch},
                .wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                .slots = slots,
                .piece_bytes = each};
        for (uint32_t r = 0; r < o->n_ranks; r++)
                mesh->peer[r].slot = slots + r * each;
        if (mesh->wake < 0) {
                free(mesh);
                free(slots);
                return mfl_fail_errno(err, "eventfd");
        }
        pthread_mutex_init(&mesh->lock, NULL);
        *ret_mesh = mesh;
        return 0;
}

static void prepare_links(struct mesh_tcp *mesh, const struct mfl_mesh_tcp_options *o)
{
        for (uint32_t r = 0; r < o->n_ranks; r++) {
                struct peer_link *link = mesh->peer[r].link;
                if (!link)
                        continue;
                link->in.payload_max = (uint32_t)mesh->piece_bytes;
                if (!is_local(o, r))
                        mfl_peer_set_socket(link->fd);
        }
}

/* From here on a rank that is gone is noticed, and none begins before all can. */
static int begin(struct opening *opening, struct mfl_error *err)
{
        const struct mfl_mesh_tcp_options *o = opening->options;
        const struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER, .step = UINT32_MAX, .sequence = UINT32_MAX};
        uint64_t now_ms = mfl_now_ms();
        uint32_t left_ms = now_ms < opening->end_ms ? (uint32_t)(opening->end_ms - now_ms) : 0;
        prepare_links(opening->mesh, o);
        int r = mfl_mesh_run(&opening->mesh->base, &op, left_ms, o->cancel, err);
        if (r == MFL_MESH_BROKEN)
                tell(o, &opening->mesh->base);
        return r;
}

int mfl_mesh_tcp_open(
        const struct mfl_mesh_tcp_options *options, struct mfl_mesh **ret_mesh, struct mfl_error *err)
{
        struct opening opening = {.options = options,
                .end_ms = mfl_now_ms() + options->deadline_ms,
                .meeting = {.team = options->team,
                        .epoch = options->epoch,
                        .rank = options->rank,
                        .n_ranks = options->n_ranks}};
        memcpy(opening.meeting.key, options->key, sizeof opening.meeting.key);
        int r = mesh_new(options, &opening.mesh, err);
        if (r)
                return r;
        r = mfl_peer_port_client_tls(options->port, &opening.context, err);
        if (r > 0)
                r = MFL_MESH_BROKEN;
        if (!r) {
                mfl_peer_port_expect(options->port, &opening.meeting);
                r = meet(&opening, err);
                mfl_peer_port_leave(options->port, &opening.meeting);
        }
        mfl_tls_context_unref(opening.context);
        if (!r)
                r = begin(&opening, err);
        if (r)
                mfl_mesh_close(&opening.mesh->base);
        else
                *ret_mesh = &opening.mesh->base;
        return r;
}
