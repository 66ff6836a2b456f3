/* SPDX-License-Identifier: Apache-2.0 */
/* Who leads: one server's part in it, as a state machine without I/O, clock and threads.
 *
 *                 no leader in etcd                   won                caught up
 *     FOLLOW ------------------------> CAMPAIGN ---------------> CATCH_UP --------> LEAD
 *       ^   \__ READ again and again       | lost, or the lease is over  |             | the lease is over, a commit was
 *       |                                  v                             v             v refused, or the server ends
 *       +--------------------------------- + <---------------------------+ <--RESUMED- LEFT
 *
 * A lease is over, for this server, `lease_ms` after the moment at which the last request that etcd answered was *sent*: etcd
 * counts from later, so a leader stops by itself before another one can begin. That needs clocks of the same speed, not of the
 * same time, and nothing but liveness depends on it: a leader that was stopped in the meantime is held off by the term in every
 * transaction (commit_core.h) and in every message.
 *
 * A server that has won, and can't bring what the log names (a file lies where it can't reach), gives up a few leases after the first
 * failure in a row, so that another one may try.
 *
 * The term is the revision of etcd that created the leader's key, so a later leader's term is larger.
 *
 * step takes one event, and gives at most one action; the next event is the action's result, or TICK when there was nothing to do
 * before `wake_ms`. */
#ifndef MFL_SERVER_CLUSTER_LEAD_CORE_H
#define MFL_SERVER_CLUSTER_LEAD_CORE_H

#include "common/base/base.h"

enum mfl_lead_state {
        MFL_LEAD_FOLLOW,
        MFL_LEAD_CAMPAIGN,
        MFL_LEAD_CATCH_UP,
        MFL_LEAD_LEADS,
        MFL_LEAD_LEFT, /* it led; the server closes what it has open */
        MFL_LEAD_STATES_,
};

enum mfl_lead_event_kind {
        MFL_LEAD_EV_TICK,
        MFL_LEAD_EV_READ, /* of READ. ok; leader: somebody's key is there; behind: there are entries that are not applied yet */
        MFL_LEAD_EV_GRANTED,  /* of GRANT. ok; lease, ttl_ms */
        MFL_LEAD_EV_CAMPAIGN, /* of CAMPAIGN. ok; term: ours; 0: another server leads */
        MFL_LEAD_EV_KEPT,     /* of KEEP. ok; ttl_ms 0: etcd has ended the lease */
        MFL_LEAD_EV_FENCED,   /* a commit was refused: another server leads, or will */
        MFL_LEAD_EV_RESUMED, /* after STEP_DOWN, or because the server ended by itself: nothing is open any more */
};

struct mfl_lead_event {
        enum mfl_lead_event_kind kind;
        uint64_t now_ms;  /* monotonic */
        uint64_t sent_ms; /* GRANTED, KEPT: when the request was sent */
        bool ok;          /* etcd answered */
        bool leader, behind;
        uint64_t lease, term, ttl_ms;
};

enum mfl_lead_action_kind {
        MFL_LEAD_ACT_NONE,
        MFL_LEAD_ACT_READ,     /* the leader's key, and the next entries, which are applied */
        MFL_LEAD_ACT_GRANT,    /* a lease */
        MFL_LEAD_ACT_CAMPAIGN, /* create the leader's key with the lease; if it is there, find out whose it is */
        MFL_LEAD_ACT_KEEP,     /* the lease */
        MFL_LEAD_ACT_REVOKE,    /* the lease; no result is waited for */
        MFL_LEAD_ACT_SERVE,     /* open the store, with the term */
        MFL_LEAD_ACT_STEP_DOWN, /* close everything, then RESUMED */
};

struct mfl_lead_options {
        uint64_t lease_ms, poll_ms;
};

struct mfl_lead {
        struct mfl_lead_options options;
        enum mfl_lead_state state;
        uint64_t lease, term; /* 0: none */
        uint64_t until_ms;    /* the lease's end, by this server's clock */
        uint64_t keep_ms;     /* when to keep it next */
        uint64_t read_ms;     /* FOLLOW, CATCH_UP: when to read next */
        uint64_t
                patient_ms; /* CATCH_UP: until when it may go on failing to read; 0: the last read did not fail */
        uint64_t wake_ms;   /* result: the next TICK */
        uint64_t old_lease; /* to be revoked; valid with REVOKE */
        bool revokes;
};

void mfl_lead_init(struct mfl_lead *lead, const struct mfl_lead_options *options);
enum mfl_lead_action_kind mfl_lead_step(struct mfl_lead *lead, const struct mfl_lead_event *event);

#endif
