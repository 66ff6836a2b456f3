/* SPDX-License-Identifier: Apache-2.0 */
/* What relay_core.c, relay_group.c, relay_fill.c and relay_out.c share; each uses only those behind it. */
#ifndef MFL_SERVER_RELAY_RELAY_INTERNAL_H
#define MFL_SERVER_RELAY_RELAY_INTERNAL_H

#include "server/relay/relay_core.h"
#include "server/state/core_map.h"

struct relay_group;
struct relay_member;

/* A daemon below. */
struct relay_peer {
        uint32_t conn, lane;
        uint64_t instance;
        bool gone;   /* its connection below has ended; the one above stays until its updates are answered */
        bool parted; /* PART is ordered */
        uint32_t n_members;           /* of groups */
        struct relay_member *members; /* linked by peer_next */
};

enum fill_state {
        FILL_NONE,
        FILL_QUEUED,
        FILL_FILLING,
        FILL_ADDING,
        FILL_DONE, /* is in the sum */
};

/* Something on its way into a group's sum: a member's update, or the sum of a relay below. */
struct relay_fill {
        enum fill_state state;
        struct relay_group *group;
        uint32_t peer; /* whose connection brings it */
        uint64_t task; /* or the group's number */
        uint32_t slot;
        uint64_t grant, moved_ms;
        struct relay_fill *next; /* QUEUED */
};

struct relay_member {
        uint64_t instance, task; /* task 0: it has none, or has left */
        struct relay_group *group;
        struct relay_peer *peer;
        struct relay_member *peer_next;
        uint32_t rank, lane, lane_rank; /* lane 0: its update comes here, with a slot */
        bool taken;                     /* it has, or had, a task: no other one takes its place */
        bool ready;                     /* its Announce went up with the group */
        bool keeps;                     /* announce is kept here */
        struct mfl_msg announce;
        struct relay_fill fill; /* lane 0 */
};

/* A relay below, with two members or more. */
struct relay_lane {
        uint32_t conn, n_members;
        bool wanted; /* Combine went to it */
        struct relay_fill fill;
};

struct relay_group {
        uint64_t number;
        char job[MFL_JOB_ID_BYTES];
        struct relay_group *next, **prev_next;
        struct mfl_group description;
        uint64_t bytes;  /* of an update; 0: not known yet */
        uint64_t in_sum; /* ranks whose updates are in the sum */
        uint32_t n_here; /* members that have a task */
        uint32_t n_adding;
        bool combining, has_sum, over; /* over: is freed when nothing is being added */
        uint64_t ranks;                /* combining */
        uint32_t leader;               /* combining: the peer */
        bool granted;
        uint32_t n_ranges;
        struct mfl_range *ranges;
        uint32_t n_lanes;
        struct relay_lane *lanes; /* n_members places */
        struct relay_member members[];
};

struct mfl_relay_core {
        struct mfl_relay_options options;
        uint64_t now_ms;
        int error;
        struct mfl_relay_actions *out;
        struct mfl_relay_action scrap;
        struct core_map peers, instances, tasks,
                numbers; /* by conn; instance; task: members; number: groups */
        struct relay_group *groups;
        struct relay_fill *slots[MFL_RELAY_SLOTS_MAX];
        struct relay_fill *queue, **queue_end;
        uint64_t grant_serial;
};

/* relay_out.c */
struct mfl_relay_action *mfl_relay_act(
        struct mfl_relay_core *core, enum mfl_relay_action_kind kind, uint32_t peer);
struct mfl_msg *mfl_relay_send(struct mfl_relay_core *core, uint32_t peer, bool up, enum mfl_msg_kind kind);
void mfl_relay_trace(struct mfl_relay_core *core, const char *fmt, ...) MFL_PRINTF(2, 3);

/* relay_fill.c */
void mfl_relay_fill_queue(struct mfl_relay_core *core, struct relay_fill *fill);
/* It is not wanted any longer. One that is being added stays ADDING. */
void mfl_relay_fill_drop(struct mfl_relay_core *core, struct relay_fill *fill);
void mfl_relay_fills_start(struct mfl_relay_core *core);
/* Takes the slot of one that has stalled. NULL: there is none. */
struct relay_fill *mfl_relay_fill_stalled(struct mfl_relay_core *core);
/* The fill that ends with this event: with ADDED, or without memory. NULL: none does. */
struct relay_fill *mfl_relay_fill_event(struct mfl_relay_core *core, const struct mfl_relay_event *event);

/* relay_group.c */
/* If its daemon is lost and nothing of it is in a sum, its connection above ends. */
void mfl_relay_part(struct mfl_relay_core *core, struct relay_peer *peer);
struct relay_member *mfl_relay_member(
        const struct mfl_relay_core *core, uint64_t task); /* NULL: passes through */
void mfl_relay_task(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg);
/* tells: if its Announce is kept, it goes up without the group. */
void mfl_relay_leave(struct mfl_relay_core *core, struct relay_member *member, bool tells);
void mfl_relay_announced(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg);
void mfl_relay_combine(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg);
void mfl_relay_combine_failed(struct mfl_relay_core *core, struct relay_group *group, const char *reason);
void mfl_relay_granted(struct mfl_relay_core *core, struct relay_group *group, const struct mfl_msg *msg);
/* The fill was added; or, not ok, it was not. */
void mfl_relay_added(struct mfl_relay_core *core, struct relay_fill *fill, bool ok);
/* It will not come. */
void mfl_relay_unfilled(struct mfl_relay_core *core, struct relay_fill *fill);
void mfl_relay_group_free(struct relay_group *group);

#endif
