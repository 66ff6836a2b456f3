/* SPDX-License-Identifier: Apache-2.0 */
/* A task: the clients or shards that one daemon was given at once. */
#ifndef MFL_SERVER_STATE_CORE_TASK_H
#define MFL_SERVER_STATE_CORE_TASK_H

#include "proto/message.h"

struct core_daemon;
struct core_group;
struct core_job;
struct core_team;
struct core_update;
struct mfl_core;

/* Whether clients may be asked back. Legal changes are in core_task.c. */
enum recall_state {
        RECALL_NONE,  /* may be asked */
        RECALL_ASKED, /* was asked, and has not answered */
        RECALL_SPENT, /* has begun more than it was to keep: is never asked again */
        RECALL_STATES_,
};

struct core_task {
        uint64_t number;
        struct core_job *job;
        struct core_daemon *daemon; /* NULL: taken away */
        uint64_t owner_key, owner_instance;
        enum mfl_task_kind kind;
        uint32_t n_items, n_held;     /* n_held: items ASSIGNED to it */
        uint32_t *index;              /* positions in job->items */
        uint32_t *cover;              /* per position: number of its update + 1; 0: none yet */
        struct core_update **updates; /* by number, n_items of them */
        struct core_task *job_next;
        struct core_task *daemon_prev, *daemon_next; /* the daemon's newest task comes first */
        uint32_t progress_items;
        uint64_t progress_ms; /* of its last Progress; 0: none came */
        uint64_t progress_samples;
        int64_t progress_loss;
        uint64_t sent_ms, sent_changes; /* core->changes then */
        enum recall_state recall;
        uint64_t recall_ms;       /* ASKED: when */
        uint32_t recall_keep;     /* ASKED: the number of items that it was to keep */
        uint32_t n_covered;       /* items that some update has */
        bool unmeasured;          /* its time says nothing about the daemon's speed, or was counted already */
        struct core_group *group; /* NULL: it adds alone */
        bool was_grouped;
        uint32_t
                cancelled; /* the connection on which its daemon was told to drop it: nothing of it is there; 0: none */
        uint64_t params_from;   /* as in Task; 0 once it is alone */
        bool shares_params;     /* it was told to lay the params where others of its node read them */
        struct core_team *team; /* NULL: its daemon trains alone */
        uint32_t member;        /* of the team; 0 leads, all others assist */
};

/* A daemon works on it. */
static inline bool mfl_core_task_live(const struct core_task *task)
{
        return task->daemon && (task->n_held > 0 || task->member > 0);
}

/* A task of n items for the daemon, which is in no list of a job and not sent. NULL: memory is out. */
struct core_task *mfl_core_task_new(struct mfl_core *core, struct core_daemon *daemon, uint32_t n);
void mfl_core_task_free(struct mfl_core *core, struct core_task *task);
void mfl_core_task_attach(struct core_task *task, struct core_daemon *daemon);
void mfl_core_task_detach(struct core_task *task);
/* The task, even if it was taken away, is that of this process. */
bool mfl_core_task_is_of(const struct core_task *task, const struct core_daemon *daemon);
/* "daemon NAME" of the daemon that got the task, for people, also when the task was taken away. */
#define CORE_OWNER_BYTES (MFL_NAME_BYTES + 16)
const char *mfl_core_task_owner(
        const struct mfl_core *core, const struct core_task *task, char text[CORE_OWNER_BYTES]);
/* Asserts that the change is legal. */
void mfl_core_task_recall_move(struct core_task *task, enum recall_state to);
void mfl_core_task_cancel(struct mfl_core *core, struct core_task *task, const char *reason);

#endif
