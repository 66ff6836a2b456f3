/* SPDX-License-Identifier: Apache-2.0 */
/* An announced update: the result of one or more clients of a task.
 *
 *               +-- no memory, or it stalls --+
 *               v                             |
 *   NEW -----> QUEUED -------- grant -----> FILLING --- whole --> ADDING --- added --> COUNTED
 *    |         ^    |                         |                   ^    |           or  REFUSED
 *    |    leads|    |its group                |its group          |    |
 *    | or alone|    |ends                     |ends               |    |
 *    |         |    v                         v                   |    |
 *    +-------> GROUPED <----------------------+                   |    |
 *               |   ^                                             |    |
 *               |   +------------- the group's sum is refused ----|----+
 *               +----------------- the group's sum is whole ------+
 *
 * In a job with secure_sum it goes from NEW to HELD, and from there to QUEUED when it is masked (server/round/round_secure.h).
 *
 * An invalid update goes from NEW to REFUSED, one without clients from NEW to COUNTED. Before ADDING an
 * update can be dropped, as if it had never been announced. An update that leaves FILLING, other than for
 * ADDING, frees its slot (SLOT_FREE). The worker's answer frees the slot of an update that is ADDING.
 */
#ifndef MFL_SERVER_STATE_CORE_UPDATE_H
#define MFL_SERVER_STATE_CORE_UPDATE_H

#include "proto/message.h"

struct core_group;
struct core_task;

/* A slot has no state of its own: it is free, or its update is FILLING or ADDING. */
enum update_state {
        UPDATE_NEW,     /* announced, and nothing is decided; only within a step */
        UPDATE_HELD,    /* of a secure sum: its daemon keeps it until all are there, and masks it then */
        UPDATE_GROUPED, /* waits for its group; another member's update has the slot, or will have it */
        UPDATE_QUEUED,  /* waits for a slot */
        UPDATE_FILLING, /* has a slot; its bytes are asked for, or arrive */
        UPDATE_ADDING,  /* is whole; the worker adds it, or its group's sum; nothing takes it back */
        UPDATE_COUNTED,
        UPDATE_REFUSED,
        UPDATE_STATES_,
};

struct core_update {
        struct core_task *task;
        struct core_update *queue_prev, *queue_next;
        struct mfl_announce announce;
        enum update_state state;
        uint32_t slot;            /* FILLING, ADDING; in a group only the leader's is valid */
        uint64_t since_ms;        /* FILLING: when its bytes were asked for, or could be there */
        struct core_group *group; /* whose sum includes it, or will */
        bool told;                /* QUEUED: people were told that it uploads, but there was no memory */
        uint8_t *keys; /* of a secure sum: its daemon's, for this update; NULL: they have not come */
        uint32_t n_keys, bucket; /* bucket: the one of the round's secure sums that it is added to */
        char reason[MFL_REASON_BYTES];
};

struct core_slot {
        struct core_update *update; /* FILLING or ADDING; for a group its leader's. NULL: the slot is free */
        uint64_t grant;             /* the number of its newest use; events about older ones are stale */
};

/* Asserts that the change is legal. Only the functions of server/work/core_update.h move updates into and out
 * of the queue and slots. */
void mfl_core_update_move(struct core_update *update, enum update_state to);
void mfl_core_update_free(struct core_update *update);

#endif
