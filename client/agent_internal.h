/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the agent share. agent.c keeps the connection and its timers; agent_task.c tasks, params,
 * results; agent_upload.c their uploads; agent_group.c what they have to do with the other daemons of the
 * node. */
#ifndef MFL_CLIENT_AGENT_INTERNAL_H
#define MFL_CLIENT_AGENT_INTERNAL_H

#include "client/agent.h"

/* The simulator plants faults here to prove that its checks find them; elsewhere it is nothing. */
#ifndef MFL_SIM_BUG
#define MFL_SIM_BUG(number) false
#endif

#define AGENT_NEVER UINT64_MAX
#define AGENT_BACKOFF_MIN_MS 200
#define AGENT_BACKOFF_MAX_MS 10000
#define AGENT_CONNECT_MS 10000 /* for the connection and the Welcome together */
#define AGENT_JOBS_MAX 32      /* JobSpecs remembered; a server trusts in 16 */
#define AGENT_EVALS_MAX 8      /* evaluation results kept in case they are asked for again */
#define AGENT_PARAMS_TRIES 3   /* downloads with a wrong digest before the task is given back */

enum agent_state {
        AGENT_OFFLINE, /* until retry_ms; before START: AGENT_NEVER */
        AGENT_CONNECTING,
        AGENT_GREETING,
        AGENT_ONLINE,
        AGENT_ENDED,
};

enum agent_task_state {
        TASK_QUEUED,
        TASK_PARAMS, /* their download */
        TASK_READY,  /* params are here */
        TASK_COMPUTE,
        TASK_ABORT,  /* ABORT was ordered, COMPUTED has yet to come */
        TASK_RESULT, /* held until it is answered */
        TASK_FAILED, /* to be reported when online */
};

enum agent_update_state {
        UPDATE_HELD, /* announced, or to be announced when online */
        UPDATE_UPLOADING,
        UPDATE_SENT,
        UPDATE_DONE, /* accepted or refused */
};

enum agent_combine {
        COMBINE_NONE,
        COMBINE_ORDERED, /* COMBINED has yet to come */
        COMBINE_DONE,    /* the sum is there, or all of it that is this daemon's part */
};

struct agent_update {
        struct mfl_announce announce;
        enum agent_update_state state;
};

struct agent_task {
        struct agent_task *next;
        struct mfl_task task; /* task.task is the number under which work was ordered; never changes */
        uint64_t wire;        /* the number that the server knows it by */
        enum agent_task_state state;
        uint32_t params_tries;
        /* Of task.group, which is there as long as this daemon takes part in it: */
        enum agent_combine combine;
        uint32_t leader;               /* rank; of the combine */
        uint32_t n_stopping;           /* COMBINEDs to come of combines that were given up */
        enum mfl_collective_kind laid; /* how others reach the result, since COMPUTE; 0: they can't */
        uint64_t published;            /* the group that the result was last published for */
        uint32_t n_updates, n_eval;
        struct agent_update *updates;
        struct mfl_eval_item *eval;
        bool permanent;
        char reason[MFL_REASON_BYTES];
};

/* What became of a communicator, until the server is told. */
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
        uint64_t leave_ms; /* leaving: when it ends, done or not */
        uint64_t jitter;   /* how many numbers of its stream were drawn */
        struct mfl_agent_actions *out;
        int error;
        struct agent_task *tasks; /* in the order received */
        uint32_t boot;            /* upper half of the last task's number: a server's start */
        char jobs[AGENT_JOBS_MAX][MFL_JOB_ID_BYTES]; /* newest first */
        uint32_t n_jobs;
        uint64_t communicator;       /* of the last order to open one */
        uint64_t early_communicator; /* whose id came last, perhaps before its task */
        uint8_t early_id[MFL_COMMUNICATOR_ID_BYTES];
        struct agent_made made;
        struct mfl_agent_action scrap; /* written to when memory is out */
};

/* ---- agent.c ---- */
struct mfl_agent_action *mfl_agent_act(struct mfl_agent *agent, enum mfl_agent_action_kind kind);
struct mfl_msg *mfl_agent_send(
        struct mfl_agent *agent, enum mfl_msg_kind kind); /* must be online, or greeting */
void mfl_agent_trace(struct mfl_agent *agent, const char *fmt, ...) MFL_PRINTF(2, 3);

/* ---- agent_task.c ---- */
struct agent_task *mfl_agent_find_wire(struct mfl_agent *agent, uint64_t wire);
struct agent_task *mfl_agent_find_number(struct mfl_agent *agent, uint64_t number);
void mfl_agent_open_params(struct mfl_agent *agent, struct agent_task *task);
void mfl_agent_drop_task(struct mfl_agent *agent, struct agent_task *task); /* must not be computed */
void mfl_agent_task_message(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_params_event(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_computed(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_welcomed(struct mfl_agent *agent);
void mfl_agent_lost(struct mfl_agent *agent); /* uploads begin anew after the next Welcome */
void mfl_agent_schedule(struct mfl_agent *agent);
void mfl_agent_abort_all(struct mfl_agent *agent);
/* What is here of the job is of another one that had the same id. */
void mfl_agent_job_changed(struct mfl_agent *agent, const char *job);
/* Something is being worked on, or held for the server. */
bool mfl_agent_busy(const struct mfl_agent *agent);
void mfl_agent_tasks_free(struct mfl_agent *agent);
void mfl_agent_tasks_check(const struct mfl_agent *agent);

/* ---- agent_upload.c ---- */
void mfl_agent_granted(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_answered(struct mfl_agent *agent, const struct mfl_msg *msg);
void mfl_agent_sent(struct mfl_agent *agent, uint64_t task, uint32_t update);

/* ---- agent_group.c ---- */
bool mfl_agent_group_message(struct mfl_agent *agent, const struct mfl_msg *msg); /* false: not of a group */
/* The task takes over t's group and params_from; true: its group is another than before. */
bool mfl_agent_group_take(struct mfl_agent *agent, struct agent_task *task, const struct mfl_task *t);
/* It was computed; grouped: the others of the node reach it. */
void mfl_agent_group_laid(struct mfl_agent *agent, struct agent_task *task, bool grouped);
/* Its result is announced as its group's. */
bool mfl_agent_group_ready(const struct agent_task *task);
void mfl_agent_group_publish(struct mfl_agent *agent, struct agent_task *task);
/* The task whose group's sum this daemon makes to upload it; NULL: none. */
struct agent_task *mfl_agent_group_led(struct mfl_agent *agent, uint64_t group);
void mfl_agent_combined(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_communicator(struct mfl_agent *agent, const struct mfl_agent_event *event);
void mfl_agent_groups_lost(struct mfl_agent *agent);
void mfl_agent_groups_welcomed(struct mfl_agent *agent);
void mfl_agent_group_check(const struct mfl_agent *agent, const struct agent_task *task);

#endif
