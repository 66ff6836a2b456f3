/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's disks: copies of files on the servers of a cluster, by the cores of server/cluster/copy_core.h. A file has a few bytes;
 * its digest says which ones. Pieces and answers are late or lost, links work one way, disks stall, are full, rot, or are lost, servers are
 * killed between any two steps, and the power fails: what is not synced then is gone, or is garbage.
 *
 * It has a queue of events of its own; the caller runs whichever event of the two is next. Rules:
 *   - a copy is told to be durable only if it is: whole, right, synced, and its name, too;
 *   - a file that a server has brought from another one is right;
 *   - while at most one server lacks what its disk has lost, each file that is needed is on some disk;
 *   - without faults no line between two servers is busy with one file for ever. */
#ifndef MFL_TESTS_SIM_CLUSTER_COPIES_H
#define MFL_TESTS_SIM_CLUSTER_COPIES_H

#include "common/base/rng.h"
#include "server/cluster/copy_core.h"

#define SIM_SERVERS 5
#define SIM_PIECES 6    /* a file's longest; 1 byte stands for each */
#define SIM_PIECE_MAX 2 /* of one message */
#define SIM_FILES 96
#define SIM_PUTS 8
#define SIM_OPS 32
#define SIM_HAD 128
#define SIM_COPY_EVENTS 512

struct sim_file {
        uint64_t digest;
        uint32_t bytes, from; /* from: of a part that is not under its name yet, its sender + 1 */
        uint64_t data[SIM_PIECES];
        bool synced, name_synced;
        bool rotten; /* it was whole and right before */
};

/* A message, and what its receiver does with it. */
struct sim_op {
        bool puts;
        uint32_t from;
        uint64_t from_boot, request, digest, data[SIM_PIECE_MAX];
        struct mfl_copy_take take;
        bool begun, ok;
        uint64_t offset;
        uint32_t bytes, n; /* of a get's answer */
};

struct sim_copy_event {
        uint64_t at, number, boot;
        int kind;
        uint32_t server, other;
        struct sim_op op;
};

struct sim_put {
        bool used, waits, own; /* waits: somebody does; own: the leader's disk has it */
        uint64_t digest, token, began;
        uint32_t bytes, users;
        struct mfl_copy_tally tally;
};

/* To one other server. */
struct sim_line {
        bool busy;
        uint32_t put, n_queue, queue[SIM_PUTS];
        uint64_t request, since;
        struct mfl_copy_give give;
};

struct sim_fetch {
        bool busy;
        uint32_t source;
        uint64_t digest, request, data[SIM_PIECES];
        struct mfl_copy_fetch core;
};

struct sim_disk {
        bool up, full;
        uint64_t boot, stopped_until, stalled_until, lost_at, moved;
        bool lost; /* and not all of it is back */
        struct sim_file files[SIM_FILES];
        uint32_t n_files, n_ops;
        struct sim_op ops[SIM_OPS];
        struct sim_put puts[SIM_PUTS];
        struct sim_line lines[SIM_SERVERS];
        struct sim_fetch fetch;
};

struct sim_had {
        uint64_t digest;
        uint32_t servers; /* a bit for each */
};

struct sim_copies {
        struct mfl_rng rng;
        uint32_t n; /* servers */
        uint64_t now, number, request;
        bool faulty;
        struct sim_disk disk[SIM_SERVERS];
        uint64_t dark_until[SIM_SERVERS][SIM_SERVERS]; /* from, to */
        struct sim_copy_event queue[SIM_COPY_EVENTS];
        uint32_t n_queue;
        /* Who has had it durably, by digest; the newest ones. */
        struct sim_had had[SIM_HAD];
        uint32_t n_had;
        const char *broken;
        uint64_t n_put, n_fetched, n_lost;
        /* The caller's. */
        void *user;
        void (*put_done)(void *user, uint32_t server, uint64_t token, bool held);
        void (*kill)(void *user, uint32_t server); /* it must call sim_copies_kill */
        bool (*needs)(void *user, uint64_t digest);
};

/* Zeros, with n, rng and the caller's functions, before. */
void sim_copies_start(struct sim_copies *c, uint32_t server);
/* power: what is not synced is lost. */
void sim_copies_kill(struct sim_copies *c, uint32_t server, bool power);
/* Its own disk, then the others'; put_done says whether most have it. One at a time. */
void sim_copies_put(struct sim_copies *c, uint32_t server, uint64_t digest, uint64_t token);
/* Whether the server has it, checked; if not, it is brought. */
bool sim_copies_get(struct sim_copies *c, uint32_t server, uint64_t digest);
/* Most servers' disks have had it. */
bool sim_copies_held(const struct sim_copies *c, uint64_t digest);
/* Whether the file is on some disk, as it must be. */
void sim_copies_check(struct sim_copies *c, uint64_t digest);
/* Something breaks. *ret_wiped: that server has been killed, and its disk is empty; else SIM_SERVERS. */
void sim_copies_fault(struct sim_copies *c, uint32_t *ret_wiped);
/* All of it works again. */
void sim_copies_heal(struct sim_copies *c);
/* The server has all that is needed. */
void sim_copies_recovered(struct sim_copies *c, uint32_t server);
uint64_t sim_copies_next(const struct sim_copies *c); /* UINT64_MAX: nothing */
void sim_copies_step(struct sim_copies *c);           /* the next event; c->now is its time, or later */
/* Without faults for a while. */
void sim_copies_check_lines(struct sim_copies *c);

#endif
