/* SPDX-License-Identifier: Apache-2.0 */
/* A relay's decisions, as a pure state machine: step(core, event) -> actions. No I/O, clock or threads.
 *
 * A relay passes messages between the daemons below it and the server above. It takes part in one thing: it adds the updates of the
 * daemons that the server has put into a group (mfl.proto, RELAYS), so that one sum goes up. Everything else is passed on as it is,
 * so a relay knows nothing of strategies, partitions or rounds.
 *
 *   member:  WORKS --announced--> QUEUED --slot--> FILLING --whole--> ADDING --added--> READY (its Announce goes up)
 *            WORKS --announced by the relay below, which has it--> READY
 *   group:   its members are READY; Combine from above names some of them:
 *              the sum has exactly those    -> sums of relays below are fetched and added; Grant: the sum is sent
 *              the sum has another one, too -> CombineFailed: the server grants each update alone
 *
 * A member leaves its group when it is answered, cancelled, told to go on alone, granted alone, or lost. If its Announce was kept
 * here, it goes up without the group. What the relay does not know, it passes on. A daemon that is lost when its update is in a sum
 * stays connected above, until that is answered: so its update counts. A new task ends that.
 *
 * Slots are the only flow control: at most n_slots updates arrive at a time, one sum per group is held. If an update gets no memory, or
 * stalls, it goes up alone.
 */
#ifndef MFL_SERVER_RELAY_RELAY_CORE_H
#define MFL_SERVER_RELAY_RELAY_CORE_H

#include "proto/message.h"

struct mfl_relay_core;

#define MFL_RELAY_SLOTS_MAX 64u

struct mfl_relay_options {
        uint32_t n_slots;  /* 1 to MFL_RELAY_SLOTS_MAX */
        uint64_t stall_ms; /* an update of which nothing comes for this long loses its slot; 0: never */
};

enum mfl_relay_event_kind {
        MFL_RELAY_EV_TICK,       /* time has passed */
        MFL_RELAY_EV_UP,         /* daemon `peer` has come: instance, lane */
        MFL_RELAY_EV_DOWN,       /* its connection below has ended */
        MFL_RELAY_EV_ENDED,      /* its connection above has ended */
        MFL_RELAY_EV_FROM_ABOVE, /* a message for it */
        MFL_RELAY_EV_FROM_BELOW, /* a message from it */
        MFL_RELAY_EV_JOB_OVER,   /* from above, about job `job` */
        MFL_RELAY_EV_MOVED,      /* bytes of a slot came */
        MFL_RELAY_EV_WHOLE,      /* all bytes of a slot have come */
        MFL_RELAY_EV_NO_ROOM,    /* answers OPEN: there is no memory */
        MFL_RELAY_EV_ADDED,      /* answers ADD; ok false: nothing was added */
};

struct mfl_relay_event {
        enum mfl_relay_event_kind kind;
        uint64_t now_ms;
        uint32_t peer;             /* a daemon's number; never used twice */
        uint64_t instance;         /* UP: as in Hello */
        uint32_t lane;             /* UP: the relay below through which it came; 0: itself */
        const struct mfl_msg *msg; /* FROM_ABOVE, FROM_BELOW; borrowed */
        uint32_t slot;             /* MOVED .. ADDED */
        uint64_t grant;            /* as in OPEN: tells late events apart */
        bool ok;                   /* ADDED */
        char job[MFL_JOB_ID_BYTES];
};

enum mfl_relay_action_kind {
        MFL_RELAY_ACT_PASS, /* pass the event's message on to the other side of `peer` */
        MFL_RELAY_ACT_SEND, /* send `msg` to `peer`, above or below (`up`) */
        MFL_RELAY_ACT_PART, /* end the connection above of `peer`, whose daemon is lost; ENDED follows */
        MFL_RELAY_ACT_OPEN, /* the slot takes `bytes` bytes of (task, update) from `peer`; then send Grant for all of them */
        MFL_RELAY_ACT_CLOSE, /* forget what the slot has */
        MFL_RELAY_ACT_ADD, /* worker: add the slot to the sum of `group`; the first makes the sum; answer ADDED */
        MFL_RELAY_ACT_SUM_SEND, /* send the ranges of the sum of `group` as (group, 0), on the connection of `peer` above */
        MFL_RELAY_ACT_SUM_FREE,
        MFL_RELAY_ACT_TRACE, /* `text` */
};

/* PASS: what becomes of Task.group. */
enum mfl_relay_change {
        MFL_RELAY_AS_IS,
        MFL_RELAY_NO_GROUP,
        MFL_RELAY_FOR_SUM,   /* without it, and with Task.sum */
        MFL_RELAY_NEW_GROUP, /* `members` instead, of a relay below */
};

struct mfl_relay_action {
        enum mfl_relay_action_kind kind;
        uint32_t peer;
        bool up;
        enum mfl_relay_change change;
        struct mfl_group members;
        struct mfl_msg msg; /* SEND; owned */
        uint32_t slot;
        uint64_t grant, task, bytes, group;
        uint32_t n_ranges;
        struct mfl_range *ranges; /* SUM_SEND; owned */
        char text[MFL_REASON_BYTES];
};

struct mfl_relay_actions {
        uint32_t n, capacity;
        struct mfl_relay_action *v;
};

int mfl_relay_core_new(
        const struct mfl_relay_options *options, struct mfl_relay_core **ret_core, struct mfl_error *err);
void mfl_relay_core_free(struct mfl_relay_core *core); /* NULL is fine */
/* Takes one event and appends actions, to be carried out in order. 0 or -ENOMEM. */
int mfl_relay_core_step(
        struct mfl_relay_core *core, const struct mfl_relay_event *event, struct mfl_relay_actions *actions);
void mfl_relay_actions_clear(struct mfl_relay_actions *actions); /* keeps the capacity */
void mfl_relay_actions_deinit(struct mfl_relay_actions *actions);
/* Asserts the invariants. */
void mfl_relay_core_check(const struct mfl_relay_core *core);

#endif
