/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's decisions as one pure state machine: step(agent, event) -> actions. No I/O, clock, threads or
 * globals.
 *
 *   OFFLINE --CONNECT--> CONNECTING --Hello--> GREETING --Welcome--> ONLINE --any loss--> OFFLINE (back-off
 * 0.2 .. 10 s, jitter)
 *
 *   one task:  QUEUED -> PARAMS (download, resumable) -> COMPUTE -> RESULT: per update ANNOUNCED -> UPLOADING
 * -> Accepted or Refused
 *
 * Tasks run one at a time on the device, in the order received; the next one's params are fetched and its
 * work begun while the updates of the one before are uploaded, as far as results_max results may be held. A
 * connection's loss takes nothing away: computing goes on, held results are announced again after the next
 * Welcome, a download goes on at its offset. A result is kept under (job, round, params digest, items): a
 * Task for the same thing is answered from it without computing. A held result goes when Accepted, Refused,
 * cancelled, or when a Task of a later round of its job comes. Ping is answered at once, also while
 * computing. Who hears nothing from the server for dead_ms closes and connects anew. Bye with retry = false:
 * EXIT with the reason.
 *
 * LEAVE: the server is told by Leaving, at once or after the next Welcome. What is at work here and what is
 * held is brought to its end; a task that comes after all goes back by TaskFailed. With nothing left, or when
 * the time is over: as STOP. Without a connection there is nobody to wait for, unless something is yet to be
 * handed over.
 *
 * A task may come with a group (daemons of one node that add their updates; client/collective.h). Its result
 * is announced as the group's if the shell could lay it where the others reach it, and uploaded alone if not.
 *
 *   RESULT, update HELD --Combine--> COMBINE ordered --> (leader: Grant under the group's number -> UPLOAD of
 * the sum as it gets ready) --> Accepted
 *
 * The own update is kept until it is answered: Alone, a lost connection, or a new start of the server end the
 * group, and it is announced or granted as any other. A task's params come from the server, or from the
 * shared memory of the daemon that the task names (the shell's PARAMS_OPEN); Alone makes the shell ask the
 * server.
 */
#ifndef MFL_CLIENT_AGENT_H
#define MFL_CLIENT_AGENT_H

#include "common/base.h"
#include "proto/message.h"

struct mfl_agent;

struct mfl_agent_options {
        struct mfl_daemon_info info; /* for Hello; copied */
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
        MFL_AGENT_EV_CONNECTED,      /* CONNECT went well: the agent greets */
        MFL_AGENT_EV_CLOSED,         /* the connection is gone, or never came; reason */
        MFL_AGENT_EV_HEARD,          /* bytes came (chunks of params, say) */
        MFL_AGENT_EV_MESSAGE,        /* msg */
        MFL_AGENT_EV_JOB_CHANGED,    /* job: before its JobSpec as MESSAGE, whose text is not what it was: it
                                        is another job, of a server that has lost its state directory */
        MFL_AGENT_EV_PARAMS_MISSING, /* answers PARAMS_OPEN: floats from `offset` on are wanted; the agent
                                        sends ParamsGet */
        MFL_AGENT_EV_PARAMS_DONE,  /* all floats of `digest` are here (of a task's frozen params: the rest is
                                      ordered next); ok = false: the digest was wrong, fetch  anew from 0 */
        MFL_AGENT_EV_COMPUTED,     /* COMPUTE of task ended: ok with n_updates announces (TRAIN) or eval items
                                      (EVAL); or not ok, reason */
        MFL_AGENT_EV_SENT,         /* an UPLOAD's last byte was written */
        MFL_AGENT_EV_COMBINED,     /* answers COMBINE: ok, or not ok, reason */
        MFL_AGENT_EV_COMMUNICATOR, /* answers COMMUNICATOR with make: ok with id, or reason; or a communicator
                                      that was opened has failed since: not ok, reason */
        MFL_AGENT_EV_STOP,         /* SIGTERM: abort work, say Bye, EXIT */
        MFL_AGENT_EV_LEAVE,        /* SIGTERM, the gentle way: take no more work, and STOP when there is none,
                                      or after within_ms */
};

struct mfl_agent_event {
        enum mfl_agent_event_kind kind;
        uint64_t now_ms;
        const struct mfl_msg *msg;        /* MESSAGE; borrowed */
        uint64_t task;                    /* COMPUTED, SENT */
        uint32_t update;                  /* SENT */
        uint8_t digest[MFL_DIGEST_BYTES]; /* PARAMS_DONE, PARAMS_MISSING */
        char job[MFL_JOB_ID_BYTES];       /* PARAMS_DONE, PARAMS_MISSING, JOB_CHANGED */
        uint64_t offset;                  /* PARAMS_MISSING: floats held */
        uint64_t within_ms;               /* LEAVE */
        bool ok;
        bool permanent; /* COMPUTED, not ok: this daemon can't do this job at all */
        uint32_t n_updates;
        const struct mfl_announce *updates; /* task, job and round are filled in by the agent; borrowed */
        /* COMPUTED: the result lies where others of the node reach it in the way of task->group.collective;
         * it may be announced for any group of that kind. */
        bool grouped;
        uint32_t n_eval;
        const struct mfl_eval_item *eval;
        uint64_t communicator; /* COMMUNICATOR */
        uint8_t communicator_id[MFL_COMMUNICATOR_ID_BYTES];
        char reason[MFL_REASON_BYTES];
};

enum mfl_agent_action_kind {
        MFL_AGENT_ACT_CONNECT,
        MFL_AGENT_ACT_CLOSE, /* reason; no CLOSED for that connection may come later than the next CONNECT */
        MFL_AGENT_ACT_SEND,  /* msg; owned */
        MFL_AGENT_ACT_PARAMS_OPEN, /* get ready for the params of task (job, digests, n_params, n_frozen): the
                                      shell answers with exactly one event, of the frozen ones as long as it
                                      has not got them, else of the rest: PARAMS_DONE when it holds them
                                      whole, else PARAMS_MISSING with the offset reached (0, or more after a
                                      cut). Ordered again after a reconnect, and when task->params_from, which
                                      tells whom to get them from, named another daemon and has changed: the
                                      order before it, if it is unanswered, need not be answered any more */
        MFL_AGENT_ACT_COMPUTE,     /* task: start on the worker; exactly one COMPUTED follows */
        MFL_AGENT_ACT_ABORT,       /* task: stop computing soon; COMPUTED follows with ok = false */
        MFL_AGENT_ACT_UPLOAD,      /* task, update, ranges: queue these bytes as Chunks on the connection */
        MFL_AGENT_ACT_RESULT_FREE, /* task: its result's memory may go; a COMBINE of it is cancelled, and its
                                      COMBINED need not follow */
        MFL_AGENT_ACT_PUBLISH, /* task, group: its result is the group's sum of this daemon; comes before the
                                  Announce that says so, also when the result was made for another group */
        MFL_AGENT_ACT_COMBINE, /* task, group, ranks, leader, deadline_ms: add the members' sums; COMBINED
                                  follows. As the leader: the sum is what UPLOAD with `combined` sends, and
                                  may be asked for before it is ready */
        MFL_AGENT_ACT_COMBINE_STOP, /* task: give it up soon; the sum's memory goes, uploads of it too.
                                       COMBINED (not ok) follows if none has come yet: one for each COMBINE.
                                       No other COMBINE of the task is ordered before it */
        MFL_AGENT_ACT_COMMUNICATOR, /* group: its communicator is new. make: make an id (COMMUNICATOR follows)
                                       and open it; else open it with communicator_id. Those before it can go
                                     */
        MFL_AGENT_ACT_JOB_FORGET,   /* job: spec and params may go */
        MFL_AGENT_ACT_TRACE,        /* reason is the line */
        MFL_AGENT_ACT_EXIT,         /* reason; ok tells the exit status */
};

struct mfl_agent_action {
        enum mfl_agent_action_kind kind;
        struct mfl_msg msg;          /* SEND; owned */
        const struct mfl_task *task; /* PARAMS_OPEN, COMPUTE: valid until COMPUTED / RESULT_FREE of it; its
                                        params_from and group are what they were at the order only */
        uint64_t task_number; /* ABORT, UPLOAD, RESULT_FREE, PUBLISH, COMBINE, COMBINE_STOP: the number under
                                 which COMPUTE was ordered */
        uint64_t wire_task;   /* UPLOAD: the number to put into Chunk (differs after a result was reused; the
                                 group's, when combined) */
        bool combined;        /* UPLOAD: of the group's sum, not the task's own update */
        bool make;            /* COMMUNICATOR */
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
/* True when connected and while params of a task are on their way; for figures. */
bool mfl_agent_fetches(const struct mfl_agent *agent);
void mfl_agent_check(const struct mfl_agent *agent);

#endif
