/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's decisions as one pure state machine: step(agent, event) -> actions. It has no I/O, clock,
 * threads or globals.
 *
 *   OFFLINE --CONNECT--> CONNECTING --Hello--> GREETING --Welcome--> ONLINE --any loss--> OFFLINE
 *                                                                   (back-off 0.2 .. 10 s, jitter)
 *
 *   one task:  QUEUED -> PARAMS (they arrive) -> READY -> COMPUTE -> RESULT
 *   one update of the result:  HELD (announced) -> UPLOADING -> SENT -> Accepted or Refused
 *
 * Tasks run on the device one at a time, in the order received. While the updates of one task are uploaded,
 * the agent fetches the next task's params and starts it, as long as at most results_max results are held. A
 * lost connection costs no work: computing goes on, the agent announces held results again after the next
 * Welcome, and a download continues at its offset. A result is kept under (job, round, params digest, items):
 * a Task for the same work is answered from it without computing. A held result is dropped when it is
 * Accepted, Refused or cancelled, or when a Task of a later round of its job comes. Ping is answered at once,
 * even while a task computes. If nothing is heard from the server for dead_ms, the agent closes the
 * connection and connects again. Bye with retry = false: EXIT with the reason.
 *
 * Params (agent_params.c): the agent decides whom to fetch them from, what to keep and what to evict. Params
 * that can't be had fail the task with a reason.
 *
 * Recall shortens a training: items that have not begun go back to the server, in one answer that says how
 * many are left. For a task that computes, the shell knows which items have begun (RECALL). The shorter task
 * is the same task: it keeps its number, and the agent recognizes a resent Task that still has the former
 * items. Until its result is answered, the agent repeats what it gave back after each Welcome, before it
 * announces anything.
 *
 * LEAVE: the agent tells the server by Leaving, at once or after the next Welcome. It finishes its work and
 * hands over what it holds; a task that still arrives goes back by TaskFailed. When nothing is left, or the
 * time is over, it acts as for STOP. Without a connection it stops at once, unless something is still to be
 * handed over.
 *
 * A task may come with a team (daemons that train each client together). The agent treats the leader's task like any
 * other. Who helps has a task of kind ASSIST: it is computed like a training, and forgotten when it is done. A team that
 * loses a member fails its members' tasks; the server deals their clients again. The same work with another team is other
 * work, unless it is done.
 *
 * A task may come with a group (daemons of one node that add their updates; client/node/collective.h). Its
 * result is announced as the group's if the shell could place it where the other members reach it; otherwise
 * it is uploaded alone.
 *
 *   RESULT, update HELD --Combine--> COMBINE ordered --> Accepted
 *                       (leader: Grant under the group's number -> UPLOAD of the sum as it gets ready)
 *
 * The daemon keeps its own update until it is answered. Alone, a lost connection, or a new start of the
 * server ends the group; the update is then announced or granted like any other. */
#ifndef MFL_CLIENT_AGENT_AGENT_H
#define MFL_CLIENT_AGENT_AGENT_H

#include "common/base/base.h"
#include "proto/message.h"

struct mfl_agent;

struct mfl_agent_options {
        struct mfl_daemon_info info; /* for Hello; copied */
        uint64_t backoff_max_ms;     /* the longest wait between two attempts to connect; 0: 10 s */
        uint64_t seed;               /* jitter of the back-off */
        uint32_t results_max;        /* results held at once, >= 1; 2 is usual */
        bool exit_on_bye;            /* tests */
};
int mfl_agent_new(
        const struct mfl_agent_options *options, struct mfl_agent **ret_agent, struct mfl_error *err);
void mfl_agent_free(struct mfl_agent *agent);

enum mfl_agent_event_kind {
        MFL_AGENT_EV_START,
        MFL_AGENT_EV_TICK,
        MFL_AGENT_EV_CONNECTED,      /* the connection is open: the agent sends Hello */
        MFL_AGENT_EV_CLOSED,         /* the connection is lost, or was never made; reason */
        MFL_AGENT_EV_HEARD,          /* bytes came; part: the params that they belong to */
        MFL_AGENT_EV_MESSAGE,        /* msg */
        MFL_AGENT_EV_JOB_CHANGED,    /* job: sent before its JobSpec (MESSAGE) when the text has changed: the
                                        id now means another job, because the server has lost its state
                                        directory */
        MFL_AGENT_EV_JOB_DENIED,     /* job: this site takes no part in it any more; the server knows */
        MFL_AGENT_EV_JOB_OVER,       /* job: the server has no more work for it */
        MFL_AGENT_EV_PARAMS_ROOM,    /* answers PARAMS_ROOM: ok, or no memory and the reason */
        MFL_AGENT_EV_PARAMS_LOOKED,  /* answers PARAMS_LOOK. ok: the part is here; gone: it will never be;
                                        else it is not there yet */
        MFL_AGENT_EV_PARAMS_ARRIVED, /* n_floats of the part came at offset, where mfl_agent_params_place put
                                        them */
        MFL_AGENT_EV_PARAMS_HASHED,  /* answers PARAMS_HASH. After the part's last stretch, ok: the digest is
                                        right */
        MFL_AGENT_EV_COMPUTED,     /* COMPUTE of task ended: ok with n_updates announces (TRAIN) or eval items
                                      (EVAL); or not ok, reason */
        MFL_AGENT_EV_RECALLED,     /* answers RECALL: how many items the task has now */
        MFL_AGENT_EV_SENT,         /* an UPLOAD's last byte was written */
        MFL_AGENT_EV_COMBINED,     /* answers COMBINE: ok, or not ok, reason */
        MFL_AGENT_EV_COMMUNICATOR, /* answers COMMUNICATOR with make: ok with id, or a reason; or a
                                      communicator that was open has failed: not ok, reason */
        MFL_AGENT_EV_STOP,         /* SIGTERM: abort work, say Bye, EXIT */
        MFL_AGENT_EV_LEAVE,        /* SIGTERM with `stop: task`: take no more work, then STOP when all is
                                      done, or after within_ms */
};

struct mfl_agent_event {
        enum mfl_agent_event_kind kind;
        uint64_t now_ms;
        const struct mfl_msg *msg;  /* MESSAGE; borrowed */
        uint64_t task;              /* COMPUTED, SENT */
        uint32_t update;            /* SENT */
        char job[MFL_JOB_ID_BYTES]; /* JOB_CHANGED, JOB_DENIED, JOB_OVER */
        uint64_t part;              /* PARAMS_*, HEARD: the part that the bytes belong to; 0: none */
        uint64_t offset, n_floats;  /* PARAMS_ARRIVED */
        uint64_t within_ms;         /* LEAVE */
        bool ok;
        bool gone;        /* PARAMS_LOOKED */
        bool permanent;   /* COMPUTED, not ok: this daemon can't do this job at all */
        bool broken;      /* COMPUTED, not ok: its team lost a member */
        uint32_t accused; /* broken: 1 + the member that is lost; 0: not known */
        uint32_t loss;    /* accused: as in TaskFailed */
        uint32_t n_items; /* RECALLED */
        uint32_t n_updates;
        const struct mfl_announce *updates; /* the agent fills in task, job and round; borrowed */
        /* COMPUTED: the other members reach the result in the way of task->group.collective; it may be
         * announced for any group of that kind. */
        bool grouped;
        uint32_t n_eval;
        const struct mfl_eval_item *eval;
        uint32_t n_tally; /* as in struct mfl_msg */
        const uint64_t *tally;
        uint64_t communicator; /* COMMUNICATOR */
        uint8_t communicator_id[MFL_COMMUNICATOR_ID_BYTES];
        char reason[MFL_REASON_BYTES];
};

enum mfl_agent_action_kind {
        MFL_AGENT_ACT_CONNECT,
        MFL_AGENT_ACT_CLOSE,       /* reason; no CLOSED for this connection may come after the next CONNECT */
        MFL_AGENT_ACT_SEND,        /* msg; owned */
        MFL_AGENT_ACT_PARAMS_LOOK, /* part, job, digest, n_floats, from: read the part where that daemon of
                                        the node shares it; PARAMS_LOOKED follows. Once found, the part is
                                        whole */
        MFL_AGENT_ACT_PARAMS_ROOM, /* part, job, digest, n_floats, frozen_part, reuse: get memory for the
                                        part; PARAMS_ROOM follows. The part `reuse` is dropped, as by
                                        PARAMS_FREE, and its memory may be used if it fits; 0: none */
        MFL_AGENT_ACT_PARAMS_HASH, /* part, offset, n_floats: hash this stretch, which follows the one
                                        before; PARAMS_HASHED follows. After the part's last float, compare
                                        the digest; if it is wrong, the next stretch begins at 0 */
        MFL_AGENT_ACT_PARAMS_SHARE, /* part: let the other daemons of the node read it. make: copy it into
                                        shared memory if it is elsewhere */
        MFL_AGENT_ACT_PARAMS_FREE,  /* part: free its bytes as soon as no task reads them; a part that the
                                        shell never had is fine. An answer that is still due may be left
                                        out */
        MFL_AGENT_ACT_COMPUTE,      /* task: start on the worker; exactly one COMPUTED follows */
        MFL_AGENT_ACT_ABORT,        /* task: stop computing soon; COMPUTED follows with ok = false */
        MFL_AGENT_ACT_REGROUP, /* task: its team has another number now. One that has not met yet never will, and fails as
                                       broken; one that has met goes on */
        MFL_AGENT_ACT_RECALL, /* task, n_items: the task ends after this many of its items, or after those
                                 that have begun; RECALLED follows, and comes before COMPUTED if it changed
                                 anything */
        MFL_AGENT_ACT_UPLOAD, /* task, update, ranges: queue these bytes as Chunks on the connection */
        MFL_AGENT_ACT_RESULT_FREE, /* task: its result's memory may be freed; a COMBINE of it is cancelled,
                                      and COMBINED need not follow */
        MFL_AGENT_ACT_PUBLISH,     /* task, group: its result is this daemon's part of the group's sum; comes
                                  before the Announce that says so, even if the result was made for another
                                  group */
        MFL_AGENT_ACT_COMBINE,     /* task, group, ranks, leader, deadline_ms: add the members' sums; COMBINED
                                  follows. On the leader, UPLOAD with `combined` sends this sum, and may be
                                  ordered before the sum is ready */
        MFL_AGENT_ACT_COMBINE_STOP, /* task: stop adding soon; free the sum and stop its uploads. COMBINED
                                       (not ok) follows if it has not come yet: one for each COMBINE. No other
                                       COMBINE of the task is ordered before it */
        MFL_AGENT_ACT_COMMUNICATOR, /* group: its communicator is new. make: make an id (COMMUNICATOR follows)
                                       and open it; otherwise open it with communicator_id. Older ones may be
                                       closed */
        MFL_AGENT_ACT_JOB_FORGET,   /* job: its text and everything that was kept for it may be freed */
        MFL_AGENT_ACT_TRACE,        /* reason is the line */
        MFL_AGENT_ACT_EXIT,         /* reason; ok tells the exit status */
};

struct mfl_agent_action {
        enum mfl_agent_action_kind kind;
        struct mfl_msg msg;          /* SEND; owned */
        const struct mfl_task *task; /* COMPUTE: valid until COMPUTED / RESULT_FREE of it; its params_from and
                                        group are a snapshot taken at the order */
        uint64_t part;               /* PARAMS_*; COMPUTE: its moving params */
        uint64_t frozen_part;        /* PARAMS_*, COMPUTE: the part before it in the flat vector; 0: none */
        uint64_t offset, n_floats, from, reuse; /* PARAMS_* */
        uint8_t digest[MFL_DIGEST_BYTES];       /* PARAMS_* */
        uint32_t n_items;                       /* RECALL */
        uint64_t task_number;   /* ABORT, RECALL, UPLOAD, RESULT_FREE, PUBLISH, COMBINE, COMBINE_STOP: the
                                 number under which COMPUTE was ordered; PARAMS_LOOK: the task that wants the
                                 part */
        uint64_t wire_task;     /* UPLOAD: the number for Chunk (the group's when combined; a new one when a
                                 result was reused) */
        bool combined;          /* UPLOAD: of the group's sum, not the task's own update */
        bool make;              /* COMMUNICATOR, PARAMS_SHARE */
        struct mfl_group group; /* PUBLISH, COMBINE, COMMUNICATOR */
        uint8_t communicator_id[MFL_COMMUNICATOR_ID_BYTES];
        uint64_t ranks;               /* COMBINE */
        uint32_t leader, deadline_ms; /* COMBINE */
        uint32_t update;
        uint32_t n_ranges;
        struct mfl_range *ranges; /* owned */
        char job[MFL_JOB_ID_BYTES];
        bool ok;
        char reason[MFL_REASON_BYTES];
};

struct mfl_agent_actions {
        uint32_t n, capacity;
        struct mfl_agent_action *v;
};
void mfl_agent_actions_clear(struct mfl_agent_actions *actions);
void mfl_agent_actions_deinit(struct mfl_agent_actions *actions);

int mfl_agent_step(
        struct mfl_agent *agent, const struct mfl_agent_event *event, struct mfl_agent_actions *actions);
uint64_t mfl_agent_next_ms(const struct mfl_agent *agent);
/* True when connected and greeted; for status lines. */
bool mfl_agent_online(const struct mfl_agent *agent);
/* True when connected and a task's params are on their way; for figures. */
bool mfl_agent_fetches(const struct mfl_agent *agent);

/* A piece of params from the server: n floats of `total` at `offset` of the part that job and digest name. */
struct mfl_agent_piece {
        const char *job;
        const uint8_t *digest; /* MFL_DIGEST_BYTES */
        uint64_t offset, n, total;
};
/* Says whether this is the next piece that is wanted. If so, it belongs to *ret_part, and PARAMS_ARRIVED
 * follows when it is whole. MFL_NOT_FOUND: nobody wants it any more, so skip it; MFL_INVALID: its sizes don't
 * match the part. Changes nothing. */
int mfl_agent_params_place(
        const struct mfl_agent *agent, const struct mfl_agent_piece *piece, uint64_t *ret_part);
void mfl_agent_check(const struct mfl_agent *agent);

#endif
