/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a mesh over TCP.
 *
 * An operation is made of flows: from each rank to each other a row of pieces of a slice, and in an all-reduce a second row,
 * of what was reduced. Every flow has one piece at least, so that ranks that do different things find out. A rank sends
 * and receives on all connections at once, as far as they allow:
 *
 *   - what others sent of the own slice goes into a slot for each of them; when all slots hold the same piece, it is reduced
 *     in the order of the ranks, 16 KiB at a time;
 *   - everything else is received where it belongs.
 * Each connection is read up to the next message's envelope, so that whoever breaks the mesh is heard early. A piece of an
 * operation that has not begun here waits in its connection.
 * A connection that ends breaks the mesh when this rank needs something of the other side, or owes it something. */
#include "client/peer/mesh_tcp.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define SPIN_NS 20000u /* before it sleeps: the other side usually answers by then */
#define EDGE_NONE 0xcbf29ce484222325u

static struct mesh_tcp *of(struct mfl_mesh *base)
{
        return MFL_CONTAINER_OF(base, struct mesh_tcp, base);
}

/* ---- breaking ---- */

static void say_end(struct mesh_tcp *mesh, struct mesh_tcp_peer *peer, const char *reason, bool broken)
{
        struct mfl_error ignored;
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__PeerEnd end = MFL__PEER_END__INIT;
        char text[400];
        bool moved;
        if (!peer->link)
                return;
        mfl_strcpy(text, sizeof text, reason);
        end.reason = text;
        end.broken = broken;
        end.accused = mesh->base.accused;
        end.loss = (uint32_t)mesh->base.loss;
        e.body_case = MFL__ENVELOPE__BODY_PEER_END;
        e.peer_end = &end;
        /* In the middle of a piece there is no room for it; the other side finds the connection closed. */
        (void)mfl_peer_link_push(peer->link, &moved, &ignored);
        if (!mfl_peer_link_busy(peer->link) && !mfl_peer_link_begin(peer->link, &e, NULL, 0, &ignored))
                (void)mfl_peer_link_push(peer->link, &moved, &ignored);
        shutdown(peer->link->fd, SHUT_WR);
}

/* Under the lock. Only the first reason counts. */
static void break_mesh(struct mesh_tcp *mesh, uint32_t accused, const char *reason)
{
        const uint64_t one = 1;
        if (mesh->broken)
                return;
        mesh->broken = true;
        mesh->base.accused = accused;
        mfl_strcpy(mesh->reason, sizeof mesh->reason, reason);
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                say_end(mesh, &mesh->peer[r], reason, true);
        (void)!write(mesh->wake, &one, sizeof one);
}

static int is_broken(const struct mesh_tcp *mesh, struct mfl_error *err)
{
        return mesh->broken ? mfl_fail(err, MFL_MESH_BROKEN, "%s", mesh->reason) : 0;
}

/* Whether this rank and that one owe each other something. */
static bool needs(const struct mesh_tcp *mesh, const struct mesh_tcp_peer *peer)
{
        for (int f = 0; f < FLOWS_; f++)
                if (mesh->running && (peer->sent[f] < peer->to_send[f] || peer->got[f] < peer->to_get[f]))
                        return true;
        return false;
}

static void end_link(struct mesh_tcp *mesh, uint32_t rank, const char *why)
{
        struct mesh_tcp_peer *peer = &mesh->peer[rank];
        mfl_strcpy(peer->reason, sizeof peer->reason, why);
        mfl_peer_link_free(peer->link);
        peer->link = NULL;
}

/* ---- what an operation is made of ---- */

static bool is_pair(const struct mfl_mesh_op *op)
{
        return op->kind == MFL_MESH_SEND || op->kind == MFL_MESH_RECV;
}

static bool is_reduced(const struct mfl_mesh_op *op)
{
        return op->kind == MFL_MESH_ALL_REDUCE || op->kind == MFL_MESH_REDUCE_SCATTER;
}

/* The slice of a rank; the whole vector where there are no slices. */
static uint64_t slice_of(const struct mesh_tcp *mesh, uint32_t rank, uint64_t *ret_first)
{
        uint64_t n = mesh->op.n;
        *ret_first = 0;
        if (mesh->op.kind != MFL_MESH_BROADCAST && !is_pair(&mesh->op) && mesh->op.kind != MFL_MESH_BARRIER)
                mfl_mesh_op_slice(&mesh->op, mesh->base.n_ranks, rank, ret_first, &n);
        return n;
}

static uint64_t pieces_of(const struct mesh_tcp *mesh, uint32_t rank)
{
        uint64_t first;
        return MFL_MAX(1, (slice_of(mesh, rank, &first) + mesh->piece - 1) / mesh->piece);
}

/* Piece i of that rank's slice: [*ret_first, + the result). */
static uint64_t piece_at(const struct mesh_tcp *mesh, uint32_t rank, uint64_t i, uint64_t *ret_first)
{
        uint64_t n = slice_of(mesh, rank, ret_first), at = MFL_MIN(n, i * mesh->piece);
        *ret_first += at;
        return MFL_MIN(mesh->piece, n - at);
}

/* Whose slice a flow carries. */
static uint32_t sent_slice(const struct mesh_tcp *mesh, uint32_t to, int flow)
{
        bool own = flow == FLOW_RESULT || mesh->op.kind == MFL_MESH_ALL_GATHER;
        return own ? mesh->base.rank : to;
}

static uint32_t got_slice(const struct mesh_tcp *mesh, uint32_t from, int flow)
{
        bool own = flow == FLOW_IN && (is_reduced(&mesh->op) || mesh->op.kind == MFL_MESH_ALL_TO_ALL);
        return own ? mesh->base.rank : from;
}

static void plan_flows(struct mesh_tcp *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint32_t rank = mesh->base.rank;
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                struct mesh_tcp_peer *peer = &mesh->peer[r];
                for (int f = 0; f < FLOWS_; f++)
                        peer->sent[f] = peer->to_send[f] = peer->got[f] = peer->to_get[f] = 0;
                peer->full = false;
                if (r == rank)
                        continue;
                bool sends = op->kind == MFL_MESH_BROADCAST ? op->peer == rank
                             : is_pair(op)                  ? op->kind == MFL_MESH_SEND && op->peer == r
                                                            : true;
                bool gets = op->kind == MFL_MESH_BROADCAST ? op->peer == r
                            : is_pair(op)                  ? op->kind == MFL_MESH_RECV && op->peer == r
                                                           : true;
                peer->to_send[FLOW_IN] = sends ? pieces_of(mesh, sent_slice(mesh, r, FLOW_IN)) : 0;
                peer->to_get[FLOW_IN] = gets ? pieces_of(mesh, got_slice(mesh, r, FLOW_IN)) : 0;
                if (op->kind == MFL_MESH_ALL_REDUCE) {
                        peer->to_send[FLOW_RESULT] = pieces_of(mesh, rank);
                        peer->to_get[FLOW_RESULT] = pieces_of(mesh, r);
                }
        }
        mesh->reduced = 0;
        mesh->n_own = is_reduced(op) ? pieces_of(mesh, rank) : 0;
}

static uint64_t size_of(const struct mesh_tcp *mesh)
{
        return mfl_mesh_type_bytes(mesh->op.type);
}

/* The own part of what goes nowhere. */
static void copy_own(struct mesh_tcp *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t first, size = size_of(mesh);
        if (op->kind != MFL_MESH_ALL_GATHER && op->kind != MFL_MESH_ALL_TO_ALL)
                return;
        uint64_t n = slice_of(mesh, mesh->base.rank, &first);
        char *to = (char *)op->out + first * size;
        const char *from = (const char *)op->in + (op->kind == MFL_MESH_ALL_TO_ALL ? first * size : 0);
        if (n && to != from)
                memcpy(to, from, n * size);
}

static int tcp_start(struct mfl_mesh *base, const struct mfl_mesh_op *op, struct mfl_error *err)
{
        struct mesh_tcp *mesh = of(base);
        mfl_assert(!mesh->running);
        pthread_mutex_lock(&mesh->lock);
        int r = is_broken(mesh, err);
        if (!r) {
                mesh->op = *op;
                mesh->edge_hash = EDGE_NONE;
                if (op->edge) {
                        memcpy(mesh->edge, op->edge, (base->n_ranks + 1) * sizeof *op->edge);
                        mesh->op.edge = mesh->edge;
                }
                for (uint32_t i = 0; op->edge && i <= base->n_ranks; i++)
                        mesh->edge_hash = (mesh->edge_hash ^ op->edge[i]) * 0x100000001b3u;
                if (op->kind == MFL_MESH_BARRIER)
                        mesh->op.n = 0;
                mesh->piece = mesh->piece_bytes / size_of(mesh);
                plan_flows(mesh);
                copy_own(mesh);
                mesh->running = true;
        }
        pthread_mutex_unlock(&mesh->lock);
        return r;
}

/* ---- sending ---- */

static void stamp(const struct mesh_tcp *mesh, Mfl__PeerPiece *ret_piece)
{
        const struct mfl_mesh_op *op = &mesh->op;
        mfl__peer_piece__init(ret_piece);
        ret_piece->team = mesh->base.team;
        ret_piece->epoch = mesh->base.epoch;
        ret_piece->step = op->step;
        ret_piece->sequence = op->sequence;
        ret_piece->kind = op->kind == MFL_MESH_RECV ? MFL_MESH_SEND : op->kind;
        ret_piece->type = op->type;
        ret_piece->reduction = op->reduction;
        ret_piece->root = op->kind == MFL_MESH_BROADCAST ? op->peer : 0;
        ret_piece->n = op->n;
        ret_piece->edge = mesh->edge_hash;
}

static int send_piece(struct mesh_tcp *mesh, uint32_t to, int flow, struct mfl_error *err)
{
        struct mesh_tcp_peer *peer = &mesh->peer[to];
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t first, own_first, size = size_of(mesh);
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__PeerPiece piece;
        uint64_t n = piece_at(mesh, sent_slice(mesh, to, flow), peer->sent[flow], &first);
        const char *from = flow == FLOW_RESULT ? op->out : op->in;
        stamp(mesh, &piece);
        piece.offset = first;
        piece.result = flow == FLOW_RESULT;
        e.body_case = MFL__ENVELOPE__BODY_PEER_PIECE;
        e.peer_piece = &piece;
        if (op->kind == MFL_MESH_ALL_GATHER) {
                slice_of(mesh, mesh->base.rank, &own_first);
                first -= own_first;
        }
        mesh->base.sent_bytes += n * size;
        peer->sent[flow]++;
        return mfl_peer_link_begin(peer->link, &e, n ? from + first * size : NULL, n * size, err);
}

/* Results first: others wait for them. */
static int send_on(struct mesh_tcp *mesh, uint32_t to, bool *moved, struct mfl_error *err)
{
        struct mesh_tcp_peer *peer = &mesh->peer[to];
        while (peer->link) {
                int r = mfl_peer_link_push(peer->link, moved, err);
                if (r || mfl_peer_link_busy(peer->link))
                        return r;
                uint64_t results = MFL_MIN(peer->to_send[FLOW_RESULT], mesh->reduced);
                if (peer->sent[FLOW_RESULT] < results)
                        r = send_piece(mesh, to, FLOW_RESULT, err);
                else if (peer->sent[FLOW_IN] < peer->to_send[FLOW_IN])
                        r = send_piece(mesh, to, FLOW_IN, err);
                else
                        return 0;
                if (r)
                        return r;
                *moved = true;
        }
        return 0;
}

/* ---- receiving ---- */

static void disagree(struct mesh_tcp *mesh, uint32_t from, const Mfl__PeerPiece *piece)
{
        char reason[200];
        if (piece->step == mesh->op.step && piece->sequence == mesh->op.sequence)
                snprintf(reason, sizeof reason,
                        "rank %u does something else than rank %u in step %u, operation %u", from,
                        mesh->base.rank, piece->step, piece->sequence);
        else
                snprintf(reason, sizeof reason,
                        "rank %u is at step %u, operation %u, and rank %u at step %u, operation %u",
                        mesh->base.rank, mesh->op.step, mesh->op.sequence, from, piece->step,
                        piece->sequence);
        break_mesh(mesh, 0, reason);
}

static bool same_stamp(const struct mesh_tcp *mesh, const Mfl__PeerPiece *piece)
{
        Mfl__PeerPiece own;
        stamp(mesh, &own);
        return own.team == piece->team && own.epoch == piece->epoch && own.step == piece->step &&
               own.sequence == piece->sequence && own.kind == piece->kind && own.type == piece->type &&
               own.reduction == piece->reduction && own.root == piece->root && own.n == piece->n &&
               own.edge == piece->edge;
}

/* A piece's envelope has come: where it goes. False: not yet, or the mesh is broken. */
static bool take_piece(struct mesh_tcp *mesh, uint32_t from, const Mfl__PeerPiece *piece)
{
        struct mesh_tcp_peer *peer = &mesh->peer[from];
        struct peer_link *link = peer->link;
        int flow = piece->result ? FLOW_RESULT : FLOW_IN;
        uint64_t first, size = size_of(mesh);
        if (!mesh->running || (peer->got[FLOW_IN] == peer->to_get[FLOW_IN] &&
                                      peer->got[FLOW_RESULT] == peer->to_get[FLOW_RESULT]))
                return false; /* of an operation that has not begun here */
        uint64_t n = piece_at(mesh, got_slice(mesh, from, flow), peer->got[flow], &first);
        if (!same_stamp(mesh, piece) || peer->got[flow] == peer->to_get[flow] || piece->offset != first ||
                link->in.frame.payload_bytes != n * size) {
                disagree(mesh, from, piece);
                return false;
        }
        peer->slotted = flow == FLOW_IN && is_reduced(&mesh->op);
        if (peer->slotted && peer->full)
                return false;
        if (mesh->op.kind == MFL_MESH_ALL_TO_ALL)
                piece_at(mesh, from, peer->got[flow], &first);
        if (link->in.part == PEER_WAITS)
                mfl_peer_link_place(
                        link, peer->slotted ? peer->slot : (uint8_t *)mesh->op.out + first * size);
        mesh->base.received_bytes += n * size;
        return true;
}

static void end_of_peer(struct mesh_tcp *mesh, uint32_t from, const Mfl__PeerEnd *end)
{
        char reason[64];
        if (end->broken) {
                mesh->base.loss = mesh->broken ? mesh->base.loss : (enum mfl_mesh_loss)end->loss;
                return break_mesh(mesh, MFL_MIN(end->accused, mesh->base.n_ranks), end->reason);
        }
        mesh->peer[from].parted = true;
        snprintf(reason, sizeof reason, "rank %u has left", from);
        end_link(mesh, from, reason);
}

/* A whole envelope is there. False: it stays. */
static bool take(struct mesh_tcp *mesh, uint32_t from)
{
        struct mesh_tcp_peer *peer = &mesh->peer[from];
        const Mfl__Envelope *e = peer->link->in.envelope;
        if (e->body_case == MFL__ENVELOPE__BODY_PEER_PIECE)
                return take_piece(mesh, from, e->peer_piece);
        char reason[200];
        if (e->body_case == MFL__ENVELOPE__BODY_PEER_END) {
                end_of_peer(mesh, from, e->peer_end);
                return false;
        }
        if (e->body_case == MFL__ENVELOPE__BODY_BYE)
                snprintf(reason, sizeof reason, "rank %u says: %.150s", from, e->bye->reason);
        else
                snprintf(reason, sizeof reason, "rank %u sends what is no piece of a vector", from);
        break_mesh(mesh, from + 1, reason);
        return false;
}

/* The frame at hand is whole, and was taken. */
static void count(struct mesh_tcp *mesh, struct mesh_tcp_peer *peer)
{
        int flow = peer->link->in.envelope->peer_piece->result ? FLOW_RESULT : FLOW_IN;
        peer->got[flow]++;
        peer->full |= peer->slotted;
        mfl_peer_link_next(peer->link);
}

static int receive_on(struct mesh_tcp *mesh, uint32_t from, bool *moved, struct mfl_error *err)
{
        struct mesh_tcp_peer *peer = &mesh->peer[from];
        while (peer->link && !mesh->broken) {
                struct peer_link *link = peer->link;
                bool placed = link->in.part == PEER_PAYLOAD;
                int r = mfl_peer_link_pull(link, moved, err);
                if (r)
                        return r;
                if (!placed && (link->in.part == PEER_WAITS || link->in.part == PEER_WHOLE)) {
                        if (!take(mesh, from))
                                return 0;
                        placed = true;
                        r = mfl_peer_link_pull(link, moved, err);
                        if (r)
                                return r;
                }
                if (link->in.part != PEER_WHOLE)
                        return 0;
                count(mesh, peer);
                *moved = true;
        }
        return 0;
}

/* ---- reducing ---- */

static bool can_reduce(const struct mesh_tcp *mesh)
{
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                if (r != mesh->base.rank && !mesh->peer[r].full)
                        return false;
        return mesh->reduced < mesh->n_own;
}

static void reduce(struct mesh_tcp *mesh)
{
        const struct mfl_mesh_op *op = &mesh->op;
        const void *part[MFL_MESH_RANKS_MAX];
        uint64_t size = size_of(mesh), first, own_first = 0;
        uint64_t n = piece_at(mesh, mesh->base.rank, mesh->reduced, &first);
        uint64_t out_size = op->reduction == MFL_MESH_SUM_ROUNDED ? sizeof(int64_t) : size;
        if (op->kind != MFL_MESH_ALL_REDUCE)
                slice_of(mesh, mesh->base.rank, &own_first);
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                part[r] = r == mesh->base.rank ? (const void *)((const char *)op->in + first * size)
                                               : mesh->peer[r].slot;
        mfl_mesh_reduce_parts(
                op, part, mesh->base.n_ranks, first, n, (char *)op->out + (first - own_first) * out_size);
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                mesh->peer[r].full = false;
        mesh->reduced++;
}

/* ---- the table ---- */

static bool is_done(const struct mesh_tcp *mesh)
{
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                const struct mesh_tcp_peer *peer = &mesh->peer[r];
                if (needs(mesh, peer) || (peer->link && mfl_peer_link_busy(peer->link)))
                        return false;
        }
        return mesh->reduced == mesh->n_own;
}

/* A connection has ended by itself. */
static int lose(struct mesh_tcp *mesh, uint32_t rank, int code, const struct mfl_error *why)
{
        char reason[300];
        if (code != PEER_OVER)
                return code;
        snprintf(reason, sizeof reason, "rank %u is gone: %.200s", rank, why->text);
        end_link(mesh, rank, reason);
        return 0;
}

static int turn(struct mesh_tcp *mesh, bool *moved, struct mfl_error *err)
{
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                struct mfl_error why = {{0}};
                int rc = receive_on(mesh, r, moved, &why);
                if (!rc)
                        rc = send_on(mesh, r, moved, &why);
                if (rc)
                        rc = lose(mesh, r, rc, &why);
                if (rc)
                        return mfl_fail(err, rc, "%s", why.text);
        }
        while (can_reduce(mesh)) {
                reduce(mesh);
                *moved = true;
        }
        return 0;
}

/* All that can be done now. */
static int attempt(struct mesh_tcp *mesh, bool *ret_moved, struct mfl_error *err)
{
        bool moved = true;
        *ret_moved = false;
        while (moved && !mesh->broken) {
                moved = false;
                int r = turn(mesh, &moved, err);
                if (r)
                        return r;
                *ret_moved |= moved;
                for (uint32_t k = 0; k < mesh->base.n_ranks; k++)
                        if (k != mesh->base.rank && !mesh->peer[k].link && needs(mesh, &mesh->peer[k]))
                                break_mesh(mesh, k + 1, mesh->peer[k].reason);
        }
        int r = is_broken(mesh, err);
        return r ? r : is_done(mesh) ? 0 : MFL_MESH_PENDING;
}

static uint32_t list_waits(const struct mesh_tcp *mesh, struct pollfd *fds)
{
        uint32_t n = 0;
        fds[n++] = (struct pollfd){mesh->wake, POLLIN, 0};
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                const struct peer_link *link = mesh->peer[r].link;
                bool held = link && (link->in.part == PEER_WAITS || link->in.part == PEER_WHOLE);
                short events =
                        (short)((held ? 0 : POLLIN) | (link && mfl_peer_link_busy(link) ? POLLOUT : 0));
                if (link && events)
                        fds[n++] = (struct pollfd){link->fd, events, 0};
        }
        return n;
}

static int tcp_progress(struct mfl_mesh *base, uint64_t wait_ns, struct mfl_error *err)
{
        struct mesh_tcp *mesh = of(base);
        uint64_t now_ns = mfl_now_ns(), end_ns = now_ns + wait_ns, moved_ns = now_ns;
        mfl_assert(mesh->running);
        for (;;) {
                struct pollfd fds[1 + MFL_MESH_RANKS_MAX];
                bool moved;
                pthread_mutex_lock(&mesh->lock);
                int r = attempt(mesh, &moved, err);
                if (r != MFL_MESH_PENDING)
                        mesh->running = false;
                uint32_t n = list_waits(mesh, fds);
                pthread_mutex_unlock(&mesh->lock);
                if (r != MFL_MESH_PENDING)
                        return r;
                now_ns = mfl_now_ns();
                if (moved)
                        moved_ns = now_ns;
                if (now_ns >= end_ns)
                        return MFL_MESH_PENDING;
                if (now_ns - moved_ns < SPIN_NS)
                        continue;
                uint64_t left_ns = end_ns - now_ns;
                poll(fds, n, (int)MFL_MIN(left_ns / 1000000 + 1, 1000u));
        }
}

/* Of those that this rank waits for, the one that has done least. 1 + rank; 0: none. */
static uint32_t last_rank(const struct mesh_tcp *mesh)
{
        uint64_t least = UINT64_MAX;
        uint32_t last = 0;
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                const struct mesh_tcp_peer *peer = &mesh->peer[r];
                uint64_t done = peer->got[FLOW_IN] + peer->got[FLOW_RESULT];
                if (r == mesh->base.rank || !needs(mesh, peer) || done >= least)
                        continue;
                least = done;
                last = r + 1;
        }
        return last;
}

static void tcp_abort(struct mfl_mesh *base, const char *reason)
{
        struct mesh_tcp *mesh = of(base);
        char text[sizeof mesh->reason];
        pthread_mutex_lock(&mesh->lock);
        uint32_t accused = base->late ? last_rank(mesh) : 0;
        if (accused)
                snprintf(text, sizeof text, "%.400s; rank %u has not come", reason, accused - 1);
        else
                mfl_strcpy(text, sizeof text, reason);
        break_mesh(mesh, accused, text);
        pthread_mutex_unlock(&mesh->lock);
}

void mfl_mesh_tcp_break(struct mesh_tcp *mesh, uint32_t accused, const char *reason)
{
        pthread_mutex_lock(&mesh->lock);
        break_mesh(mesh, accused, reason);
        pthread_mutex_unlock(&mesh->lock);
}

static void tcp_close(struct mfl_mesh *base)
{
        struct mesh_tcp *mesh = of(base);
        char reason[64];
        snprintf(reason, sizeof reason, "rank %u has left", base->rank);
        pthread_mutex_lock(&mesh->lock);
        if (mesh->running)
                break_mesh(mesh, base->rank + 1, reason);
        for (uint32_t r = 0; r < base->n_ranks; r++) {
                if (!mesh->broken)
                        say_end(mesh, &mesh->peer[r], reason, false);
                mfl_peer_link_free(mesh->peer[r].link);
        }
        pthread_mutex_unlock(&mesh->lock);
        pthread_mutex_destroy(&mesh->lock);
        close(mesh->wake);
        free(mesh->slots);
        free(mesh);
}

const struct mfl_mesh_ops mfl_mesh_tcp_ops = {
        .name = "tcp",
        .start = tcp_start,
        .progress = tcp_progress,
        .abort = tcp_abort,
        .close = tcp_close,
};
