/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulator's disks share. */
#ifndef MFL_TESTS_SIM_CLUSTER_COPIES_INTERNAL_H
#define MFL_TESTS_SIM_CLUSTER_COPIES_INTERNAL_H

#include "tests/sim/cluster/copies.h"

enum sim_copy_event_kind {
        OWN_NAMED, /* the leader's own file is under its name; `other` is the put */
        OWN_SYNCED,
        LOOK,    /* whether a put shall wait on */
        ARRIVES, /* a message, at its receiver */
        WORKS,   /* the disk takes the next step of its first operation */
        ANSWERS, /* at the sender */
        LATE,
        KEPT_NAMED, /* what was brought */
        KEPT_SYNCED,
        ASKS, /* for what it lacks */
};

/* copies.c */
uint32_t sim_copies_below(struct sim_copies *c, uint32_t n);
void sim_copies_require(struct sim_copies *c, bool holds, const char *rule);
struct sim_copy_event *sim_copies_post(
        struct sim_copies *c, uint64_t delay, int kind, uint32_t server, uint32_t other);
/* To the other one, unless it is lost on the way. */
void sim_copies_send(struct sim_copies *c, uint32_t from, uint32_t to, int kind, const struct sim_op *op);

/* disks.c */
uint32_t sim_file_bytes(uint64_t digest);
uint64_t sim_file_byte(uint64_t digest, uint32_t at);
bool sim_file_is_right(const struct sim_file *file);
/* from 0: under its name; else a part of that sender. NULL: none. */
struct sim_file *sim_file_find(struct sim_disk *d, uint64_t digest, uint32_t from);
struct sim_file *sim_file_new(struct sim_copies *c, uint32_t server, uint64_t digest, uint32_t from);
void sim_file_note(struct sim_copies *c, uint32_t server, uint64_t digest); /* if it is durable there */
void sim_disk_arrive(struct sim_copies *c, const struct sim_copy_event *e);
void sim_disk_work(struct sim_copies *c, uint32_t server);

#endif
