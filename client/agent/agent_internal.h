/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the agent's files. A file calls only functions of the files above it in this list:
 *
 *   agent_base.c     actions, and the list of tasks
 *   agent_params.c   how params arrive, and what is kept of them
 *   agent_group.c    the other daemons of the node: groups, communicators
 *   agent_recall.c   clients that go back to the server
 *   agent_upload.c   uploads: what the server grants, and its answers
 *   agent_task.c     tasks from their arrival to their results
 *   agent.c          the connection, its timers, and the order of a step */
#ifndef MFL_CLIENT_AGENT_AGENT_INTERNAL_H
#define MFL_CLIENT_AGENT_AGENT_INTERNAL_H

#include "client/agent/agent.h"

#define AGENT_NEVER UINT64_MAX
#define AGENT_BACKOFF_MIN_MS 200
#define AGENT_BACKOFF_MAX_MS 10000
#define AGENT_CONNECT_MS 10000 /* for the connection and the Welcome together */
#define AGENT_JOBS_MAX 32      /* JobSpecs remembered; a server runs 16 at once */
#define AGENT_UNNAMED_MS 10000 /* of a new connection, in which the server names the jobs that go on */
#define AGENT_EVALS_MAX 8      /* evaluation results kept in case the server asks again */

enum agent_state {
        AGENT_OFFLINE, /* until retry_ms; before START: AGENT_NEVER */
        AGENT_CONNECTING,
        AGENT_GREETING,
        AGENT_ONLINE,
        AGENT_ENDED,
};

enum agent_task_state {
        TASK_QUEUED,
        TASK_PARAMS, /* its params arrive */
        TASK_READY,  /* params are here */
        TASK_COMPUTE,
        TASK_ABORT,  /* ABORT was ordered, COMPUTED has not come yet */
        TASK_RESULT, /* held until it is answered */
        TASK_FAILED, /* to be reported when online */
        TASK_STATES
};

enum agent_part_state {
        PART_EMPTY, /* nothing of it is here */
        PART_LOOK,  /* LOOK was ordered */
        PART_WAIT,  /* another daemon does not share it yet */
        PART_ROOM,  /* ROOM was ordered */
        PART_HELD,  /* `have` floats are here, and nobody sends the rest */
        PART_FETCH, /* the server sends the rest */
        PART_CHECK, /* whole; its digest is being taken */
        PART_READY, /* whole, and the digest is right */
        PART_FAILED,
        PART_STATES
};

enum agent_update_state {
        UPDATE_HELD, /* announced, or announced as soon as the agent is online */
        UPDATE_UPLOADING,
        UPDATE_SENT,
        UPDATE_DONE, /* accepted or refused */
};

enum agent_combine {
        COMBINE_NONE,
        COMBINE_ORDERED, /* COMBINED has not come yet */
        COMBINE_DONE,    /* the sum is there, or this daemon's part in it is done */
};

struct agent_update {
        struct mfl_announce announce;
        enum agent_update_state state;
};

/* One version of a job's moving params, or its frozen params. */
struct agent_part {
        struct agent_part *next;
        uint64_t number; /* never used twice */
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        enum agent_part_state state;
        bool is_frozen;
        bool is_view;                            /* READY: it lies in another daemon's memory */
        uint64_t frozen;                         /* the part that it follows in the flat vector; 0: none */
        uint64_t n, have, hashed;                /* floats: in all, received, hashed */
        uint64_t hash_end;                       /* of the stretch being hashed; AGENT_NEVER: none is */
        uint64_t from;                           /* LOOK, WAIT: the daemon whose copy is looked for */
        uint64_t since_ms, look_ms, deadline_ms; /* of this wait; when to look next; when to give up */
        uint64_t piece_ms;                       /* FETCH: since the last piece, or the request */
        uint64_t used;                           /* clock, for the least recently used */
        uint32_t tries;                          /* downloads whose digest was wrong */
        bool permanent;                          /* FAILED */
        char reason[MFL_REASON_BYTES];           /* FAILED */
};

struct agent_task {
        struct agent_task *next;
        struct mfl_task task; /* task.task is the number under which COMPUTE was ordered; it never changes */
        uint64_t wire;        /* the number that the server knows it by */
        enum agent_task_state state;
        uint32_t n_given; /* items at first; task.n_items of them are left */
        /* About task.group, which is set as long as this daemon takes part in it: */
        enum agent_combine combine;
        uint32_t leader;               /* rank; of the combine */
        uint32_t n_stopping;           /* how many stopped combines still owe a COMBINED */
        enum mfl_collective_kind laid; /* how others reach the result, set at COMPUTE; 0: they can't */
        uint64_t published;            /* the group that the result was last published for */
        uint32_t n_updates, n_eval;
        struct agent_update *updates;
        struct mfl_eval_item *eval;
        uint32_t n_tally;
        uint64_t *tally;
        bool permanent, broken; /* FAILED */
        uint32_t accused, loss;
        char reason[MFL_REASON_BYTES];
};

/* What to tell the server about a communicator. */
struct agent_made {
        uint64_t communicator; /* 0: nothing to tell */
        bool ok;
        uint8_t id[MFL_COMMUNICATOR_ID_BYTES];
        char reason[MFL_REASON_BYTES];
};

struct mfl_agent {
        struct mfl_agent_options options;
        enum agent_state state;
        uint64_t now_ms, retry_ms, since_ms, heard_ms, sent_ms;
        uint32_t heartbeat_ms, dead_ms, n_failures;
        bool leaving;
        uint64_t leave_ms; /* leaving: stop at this time, done or not */
        uint64_t jitter;   /* how many numbers of the jitter's stream were drawn */
        struct mfl_agent_actions *out;
        int error;
        struct agent_task *tasks; /* in the order received */
        struct agent_part *parts; /* newest first */
        uint64_t part_numbers, part_clock;
        char turn[MFL_JOB_ID_BYTES]; /* the job of the last task: a daemon works for one at a time */
        uint32_t boot;               /* upper half of the last task's number: which start of the server */
        char jobs[AGENT_JOBS_MAX][MFL_JOB_ID_BYTES]; /* newest first */
        uint32_t n_jobs;
        uint32_t n_named; /* the first ones, which this connection's JobSpecs named */
        uint64_t welcome_ms;
        uint64_t communicator;       /* of the last order to open one */
        uint64_t early_communicator; /* whose id came last, perhaps before its task */
        uint8_t early_id[MFL_COMMUNICATOR_ID_BYTES];
        struct agent_made made;
        struct mfl_agent_action scrap; /* written to when memory is out */
};

/* ---- agent_base.c ---- */
struct mfl_agent_action *mfl_agent_act(struct mfl_agent *agent, enum mfl_agent_action_kind kind);
struct mfl_msg *mfl_agent_send(
        struct mfl_agent *agent, enum mfl_msg_kind kind); /* must be online, or greeting */
void mfl_agent_trace(struct mfl_agent *agent, const char *fmt, ...) MFL_PRINTF(2, 3);
void mfl_agent_actions_end(struct mfl_agent *agent); /* of a step */
struct agent_task *mfl_agent_find_wire(struct mfl_agent *agent, uint64_t wire);
struct agent_task *mfl_agent_find_number(struct mfl_agent *agent, uint64_t number);
void mfl_agent_task_move(struct agent_task *task, enum agent_task_state to); /* along a legal edge */
void mfl_agent_drop_task(struct mfl_agent *agent, struct agent_task *task);  /* must not be computed */
void mfl_agent_tasks_free(struct mfl_agent *agent);

/* ---- agent_params.c ---- */
enum agent_arrival { ARRIVAL_GOES_ON, ARRIVAL_DONE, ARRIVAL_FAILED };
struct agent_failure {
        bool permanent;
        char reason[MFL_REASON_BYTES];
};
/* From now on the task seeks its params. */
void mfl_agent_params_open(struct mfl_agent *agent, struct agent_task *task);
/* Does what can be done now. A part that failed is forgotten, so that the next task tries again. */
enum agent_arrival mfl_agent_params_seek(
        struct mfl_agent *agent, struct agent_task *task, struct agent_failure *ret_failure);
uint64_t mfl_agent_params_due_ms(const struct mfl_agent *agent, const struct agent_task *task);
void mfl_agent_params_name(
        struct mfl_agent *agent, const struct agent_task *task, struct mfl_agent_action *action);
void mfl_agent_params_event(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_params_heard(struct mfl_agent *agent, uint64_t part); /* some bytes of a piece came */
void mfl_agent_params_gone(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_params_lost(struct mfl_agent *agent); /* the connection is lost */
void mfl_agent_params_forget(struct mfl_agent *agent, const char *job);
void mfl_agent_params_free(struct mfl_agent *agent);
void mfl_agent_params_check(const struct mfl_agent *agent);

/* ---- agent_task.c ---- */
void mfl_agent_task_message(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_computed(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_welcomed(struct mfl_agent *agent);
void mfl_agent_lost(struct mfl_agent *agent); /* the connection is lost: uploads start over after the next
                                                 Welcome */
void mfl_agent_schedule(struct mfl_agent *agent);
uint64_t mfl_agent_tasks_due_ms(const struct mfl_agent *agent);
void mfl_agent_abort_all(struct mfl_agent *agent);
/* The id now means another job: what is here of the old one is dropped. */
void mfl_agent_job_changed(struct mfl_agent *agent, const char *job);
/* All work of the job ends without an answer. */
void mfl_agent_job_denied(struct mfl_agent *agent, const char *job);
void mfl_agent_job_over(struct mfl_agent *agent, const char *job);
/* Idle, some time after Welcome. */
void mfl_agent_forget_unnamed(struct mfl_agent *agent);
/* A task is at work, or a result waits for the server. */
bool mfl_agent_busy(const struct mfl_agent *agent);

/* ---- agent_recall.c ---- */
void mfl_agent_recall(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_recalled(struct mfl_agent *agent, const struct mfl_agent_event *event);
/* Repeats what was given back, in case the server missed it. */
void mfl_agent_recall_repeat(struct mfl_agent *agent, const struct agent_task *task);

/* ---- agent_upload.c ---- */
void mfl_agent_granted(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_answered(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_sent(struct mfl_agent *agent, uint64_t task, uint32_t update);

/* ---- agent_group.c ---- */
bool mfl_agent_group_message(struct mfl_agent *agent, const struct mfl_msg *msg); /* false: not of a group */
/* The task takes over t's group and params_from. True: the group is new. */
bool mfl_agent_group_take(struct mfl_agent *agent, struct agent_task *task, const struct mfl_task *t);
/* It was computed. grouped: the other members reach the result. */
void mfl_agent_group_laid(struct mfl_agent *agent, struct agent_task *task, bool grouped);
/* True if its result is announced as its group's. */
bool mfl_agent_group_ready(const struct agent_task *task);
void mfl_agent_group_publish(struct mfl_agent *agent, struct agent_task *task);
/* The task whose group's sum this daemon adds and uploads; NULL: none. */
struct agent_task *mfl_agent_group_led(struct mfl_agent *agent, uint64_t group);
void mfl_agent_combined(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_communicator(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_groups_lost(struct mfl_agent *agent);
void mfl_agent_groups_welcomed(struct mfl_agent *agent);
void mfl_agent_group_check(const struct mfl_agent *agent, const struct agent_task *task);

#endif
