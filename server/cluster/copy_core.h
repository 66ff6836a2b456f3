/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a file on the servers' disks, as state machines without I/O, clock and threads: what copies.c, peer.c and shell/peers.c carry
 * out, and what the simulator runs under faults.
 *
 *     tally   the leader's: on which disks a file lies, and whether those are most
 *     give    the leader's: which piece goes to one server next         PutFile -->
 *     take    that server's: what is done with the piece            <-- FilePiece
 *     fetch   of a server that lacks the file: what is done with the next piece of another one's
 *
 * A copy counts when it is whole, checked, on the disk, and under its name there: a power cut does not take it away. It counts once,
 * however often it is sent. What is under its name is never written to again.
 *
 * step takes the result of the last action, and gives the next one. */
#ifndef MFL_SERVER_CLUSTER_COPY_CORE_H
#define MFL_SERVER_CLUSTER_COPY_CORE_H

#include "common/base/base.h"

#define MFL_COPIES_SERVERS_MAX 16

/* ---- tally ---- */

enum mfl_copy_state {
        MFL_COPY_NONE,
        MFL_COPY_COMING, /* in the other server's queue, or on its way */
        MFL_COPY_THERE,
        MFL_COPY_FAILED,
};
/* Begins as zeros, with n. The leader's own disk has the file before. */
struct mfl_copy_tally {
        uint32_t n; /* other servers */
        enum mfl_copy_state state[MFL_COPIES_SERVERS_MAX];
};
enum mfl_copy_verdict {
        MFL_COPY_WAIT,
        MFL_COPY_HELD, /* most servers have it: an entry may name it */
        MFL_COPY_TOO_FEW,
};
/* Whether it must be sent to that server, again if it failed; then it is COMING. */
bool mfl_copy_wants(struct mfl_copy_tally *tally, uint32_t i);
void mfl_copy_sent(struct mfl_copy_tally *tally, uint32_t i, bool ok);
uint32_t mfl_copy_count(const struct mfl_copy_tally *tally, enum mfl_copy_state state);
enum mfl_copy_verdict mfl_copy_verdict(const struct mfl_copy_tally *tally);

/* ---- give ---- */

struct mfl_copy_give {
        uint64_t bytes, offset, n; /* the piece to send: n bytes at offset; n 0 asks how much is there */
        uint64_t piece_max;
        bool again;
};
enum mfl_copy_give_action {
        MFL_COPY_GIVE_PIECE,
        MFL_COPY_GIVE_DONE,
        MFL_COPY_GIVE_STUCK, /* it asks for the same piece again and again */
};
/* The first piece: all of a small file, even if the server has it. */
void mfl_copy_give_init(struct mfl_copy_give *give, uint64_t bytes, uint64_t piece_max);
/* The answer: how much is there, and whether all of it is durable. */
enum mfl_copy_give_action mfl_copy_give_step(struct mfl_copy_give *give, uint64_t have, bool durable);

/* ---- take ---- */

enum mfl_copy_take_event_kind {
        MFL_COPY_TAKE_EV_BEGIN, /* whole: a file of that size is under the name; part: bytes that came before, of this sender and SHA-256 */
        MFL_COPY_TAKE_EV_DONE,    /* the last action succeeded; after a failure there is no next step */
        MFL_COPY_TAKE_EV_CHECKED, /* of CHECK. ok: it is that SHA-256 */
};
struct mfl_copy_take_event {
        enum mfl_copy_take_event_kind kind;
        bool whole, ok;
        uint64_t part;
};
enum mfl_copy_take_action {
        MFL_COPY_TAKE_CUT,       /* the part, to nothing: it is of another file */
        MFL_COPY_TAKE_WRITE,     /* the piece, at the part's end */
        MFL_COPY_TAKE_SYNC,      /* the part */
        MFL_COPY_TAKE_CHECK,     /* its content */
        MFL_COPY_TAKE_NAME,      /* rename it */
        MFL_COPY_TAKE_SYNC_NAME, /* the directory */
        MFL_COPY_TAKE_DROP,      /* the end: remove the part; its sender lied, or the disk did */
        MFL_COPY_TAKE_ANSWER,    /* the end: have, and durable */
};
struct mfl_copy_take {
        uint64_t bytes, offset, n; /* the request */
        uint64_t have;             /* result */
        bool durable;              /* result */
        enum mfl_copy_take_action doing;
};
enum mfl_copy_take_action mfl_copy_take_step(
        struct mfl_copy_take *take, const struct mfl_copy_take_event *event);

/* ---- fetch ---- */

enum mfl_copy_fetch_event_kind {
        MFL_COPY_FETCH_EV_PIECE, /* of ASK: n bytes of a file of `bytes` bytes; room: what this server's disk has, if the size was not known */
        MFL_COPY_FETCH_EV_WRITTEN,
        MFL_COPY_FETCH_EV_CHECKED, /* ok: all that came is that SHA-256 */
};
struct mfl_copy_fetch_event {
        enum mfl_copy_fetch_event_kind kind;
        uint64_t bytes, n, room;
        bool ok;
};
enum mfl_copy_fetch_action {
        MFL_COPY_FETCH_ASK,   /* for what is at offset */
        MFL_COPY_FETCH_WRITE, /* the piece, at the end */
        MFL_COPY_FETCH_CHECK,
        MFL_COPY_FETCH_KEEP,  /* the end: under its name, durably */
        MFL_COPY_FETCH_OTHER, /* the end: the file has another size, or one that no file has */
        MFL_COPY_FETCH_FULL, /* the end: this server's disk has no room for it, which is not the other one's fault */
        MFL_COPY_FETCH_WRONG, /* the end: the file has another content */
};
/* Begins as zeros with bytes, and with ASK. bytes 0: no row says how many (initial params, in a row of an earlier release). */
struct mfl_copy_fetch {
        uint64_t bytes, offset, n;
};
enum mfl_copy_fetch_action mfl_copy_fetch_step(
        struct mfl_copy_fetch *fetch, const struct mfl_copy_fetch_event *event);

#endif
