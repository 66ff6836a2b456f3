/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the server core share: daemons, jobs, tasks, uploads, and the functions between them.
 *
 * core.c takes events in and runs the timers; core_daemon.c keeps daemons and what is sent to them;
 * core_data.c knows whose data fit a job, and whom it lacks;
 * core_task.c keeps tasks, core_announce.c and core_upload.c uploads; core_node.c knows which daemons form a
 * node, core_group.c how they add their updates, core_comm.c which communicators they hold; core_view.c
 * answers lists; round.c decides about one job's rounds, round_deal.c who does what in them, round_speed.c
 * learns how fast; scheduler.c says whose turn it is. Memory that runs out is remembered in core->error and
 * returned by step; until then every function leaves the structures in a state that mfl_core_free can take.
 */
#ifndef MFL_SERVER_CORE_INTERNAL_H
#define MFL_SERVER_CORE_INTERNAL_H

#include "server/core.h"

/* The simulator plants faults here to prove that its checks find them; elsewhere it is nothing. */
#ifndef MFL_SIM_BUG
#define MFL_SIM_BUG(number) false
#endif

#define CORE_NEVER UINT64_MAX
/* Daemons that start together should share the first round: it waits until none has come for so long. */
#define CORE_SETTLE_MS 300
#define CORE_SETTLE_MAX_MS 1500
#define CORE_DISK_RETRY_MS 5000
#define CORE_TIMER_STEP_MS 20
#define CORE_FAILS_MAX 3
/* Daemons that were turned away: so many are remembered, for so long after their last try. */
#define CORE_REFUSED_MAX 256
#define CORE_REFUSED_KEPT_MS 600000
/* Of more daemons not each is looked at to tell whom a job lacks while too few are connected. */
#define CORE_COUNT_MAX 256
/* A group waits at least so long for the rest of its members, once one of them is ready. */
#define CORE_PATIENCE_MS 2000
/* To combine: so long, and a second more for so many bytes of sum. That is a hundredth of what memory can do,
 * so that only a collective that hangs is too late. */
#define CORE_COMBINE_MS 10000
#define CORE_COMBINE_BYTES_PER_S (64u << 20)
#define CORE_NCCL_FAILS_MAX 2
/* A sum that comes slower than that is given up: its leader hangs, or the others are faster by themselves. */
#define CORE_UPLOAD_BYTES_PER_S (1u << 20)
/* JobSpecs that a daemon is trusted to remember of one connection; the agent keeps twice as many. */
#define CORE_SPECS_MAX 16

/* Open addressing, linear probing, no tombstones. Values are never NULL. */
struct core_map {
        uint64_t *keys;
        void **values;
        uint32_t n, capacity;
};
void *mfl_core_map_get(const struct core_map *map, uint64_t key);
int mfl_core_map_put(struct core_map *map, uint64_t key, void *value); /* replaces; -ENOMEM */
void mfl_core_map_remove(struct core_map *map, uint64_t key);
void mfl_core_map_deinit(struct core_map *map);

enum item_state {
        ITEM_OPEN,     /* to be given to a daemon */
        ITEM_ASSIGNED, /* in a live task */
        ITEM_COUNTED,
        ITEM_REJECTED, /* done, but its update was refused as invalid */
        ITEM_MISSING,  /* local: its daemon is gone */
        ITEM_STATES_,
};

/* One client (train) or one shard (evaluate) of the phase at hand, sorted by item. */
struct core_item {
        uint64_t item;
        enum item_state state;
        struct core_task *task; /* ASSIGNED */
};

enum update_state {
        UPDATE_GROUPED, /* waits for its group, of which another one has or will have the slot */
        UPDATE_QUEUED,  /* waits for a slot */
        UPDATE_FILLING, /* its bytes arrive */
        UPDATE_ADDING,  /* the worker has it */
        UPDATE_COUNTED,
        UPDATE_REFUSED,
};

struct core_update {
        struct core_task *task;
        struct core_update *queue_prev, *queue_next;
        struct mfl_announce announce;
        enum update_state state;
        uint32_t slot;            /* FILLING, ADDING; of a group, the leader's only */
        uint64_t since_ms;        /* FILLING: when its bytes were asked for, or could be there */
        struct core_group *group; /* that it is, or is to be, in the sum of */
        char reason[MFL_REASON_BYTES];
};

struct core_task {
        uint64_t number;
        struct core_job *job;
        struct core_daemon *daemon; /* NULL once taken away */
        uint64_t owner_key, owner_instance;
        enum mfl_task_kind kind;
        uint32_t n_items, n_held;     /* n_held: items ASSIGNED to it */
        uint32_t *index;              /* positions in job->items */
        uint32_t *cover;              /* per position: number of its update + 1; 0: none yet */
        struct core_update **updates; /* by number, n_items of them */
        struct core_task *job_next;
        struct core_task *daemon_prev, *daemon_next;
        uint32_t progress_items;
        uint64_t progress_samples;
        int64_t progress_loss;
        uint64_t sent_ms;
        uint32_t n_covered;       /* items that some update has */
        bool unmeasured;          /* its time says nothing of its daemon's speed; see round_speed.h */
        struct core_group *group; /* NULL: alone, or not any more in one */
        bool was_grouped;
        uint64_t params_from; /* as in Task; 0 again once it is alone */
};

/* A node: daemons that can reach each other's memory, lost ones in their grace time included. A daemon that
 * nobody can reach is a node by itself. */
struct core_node {
        uint64_t key;
        struct core_host *host;
        struct core_node *host_next;
        struct core_daemon *first;         /* in the node's order */
        const struct core_daemon *by_name; /* the first by name: the node is labelled after it */
        uint32_t n;
        uint64_t deal;                        /* the last one that looked at it */
        const struct core_daemon *sharers[2]; /* of one GPU; as of core->changes = sharers_of */
        uint64_t sharers_of;
};

/* The nodes of one Hello.node. */
struct core_host {
        uint64_t key;
        struct core_node *first;
        uint32_t n_nodes;
};

enum group_state {
        GROUP_GATHER,  /* members train, or wait for the others */
        GROUP_COMBINE, /* Combine is sent; the leader's update stands for all in the queue or in a slot */
        GROUP_ADDING,  /* the worker has the sum */
};

struct core_member {
        uint64_t instance;
        struct core_task *task; /* NULL: out of it */
};

struct core_group {
        uint64_t number;
        struct core_job *job;
        struct core_group *next; /* of its job */
        enum group_state state;
        enum mfl_collective_kind collective;
        uint64_t communicator;
        /* GATHER: then the rest is late; CORE_NEVER while nobody is ready. COMBINE: then a granted sum is. */
        uint64_t limit_ms;
        uint32_t leader; /* rank, from COMBINE on */
        uint32_t workers, n_members;
        struct core_member members[]; /* by rank */
};

/* What NCCL did among the same members in the same ranks. */
struct core_comm {
        struct core_comm *next;
        const struct core_node *node;
        uint64_t number;     /* 0: the next group needs a new one */
        bool passed, proven; /* every member was told of it; it has added */
        uint32_t fails;      /* in a row */
        char reason[MFL_REASON_BYTES];
        uint32_t n;
        uint64_t instances[];
};

/* See round_speed.h. */
struct core_speed {
        double cost;  /* milliseconds an item; 0: not measured yet */
        uint32_t age; /* phases that gave it nothing, since it last had something */
};

/* What a daemon and a job have been through together. */
struct core_relation {
        uint32_t job;        /* serial */
        uint32_t fails;      /* in a row */
        bool barred;         /* it said that it can't do this job */
        uint64_t rest_stamp; /* does not work in the phase of that stamp */
        struct core_speed train, eval;
        /* It announced a result of an earlier boot: of that round, the newest task of it, so many clients. */
        uint32_t held_round, held_items;
        uint64_t held_task;
        bool unfit_told; /* that its data differ from the job's, or that it is outdated */
        bool told;       /* of params: */
        uint8_t told_digest[MFL_DIGEST_BYTES];
};

struct core_daemon {
        struct mfl_daemon_info info;
        uint64_t key;      /* first 8 bytes of SHA-256 of the name: also its item in `local` jobs */
        uint32_t position; /* in core->daemons */
        uint32_t conn;     /* 0: lost */
        uint64_t heard_ms, sent_ms, lost_ms, connected_ms;
        uint64_t chunk_ms; /* when bytes of an upload last came */
        bool draining, was_drained;
        bool leaving;         /* said so; of this process */
        struct core_job *job; /* leased to */
        uint32_t lease;       /* position in job->leased */
        struct core_task *tasks;
        uint64_t reserved; /* the scheduler's pass that keeps it for a job with an older claim */
        uint64_t counted_stamp;
        uint32_t specs[CORE_SPECS_MAX], n_specs; /* ring of job serials */
        uint32_t n_relations;
        struct core_relation *relations;
        uint32_t items_done, items_total;
        double samples_per_second, clients_per_second;
        uint64_t free_ms; /* when it ended its last task */
        struct core_node *node;
        struct core_daemon *node_next;
        uint64_t deal; /* the last one that gave it anything, and how many tasks */
        uint32_t n_dealt;
        bool resumes; /* what it is at was given out by an earlier boot: its next task may need no time */
        char note[MFL_REASON_BYTES];
};

enum core_phase {
        PHASE_DATA,       /* no daemon with the data set was seen yet */
        PHASE_PREPARE,    /* JOB_PREPARE is under way */
        PHASE_TRAIN_WAIT, /* wants daemons to begin a round */
        PHASE_TRAIN,
        PHASE_CLOSING, /* the round is decided; sums under way end first */
        PHASE_TRAINED, /* the round is counted; the one before is not committed yet */
        PHASE_APPLY,
        PHASE_EVAL_WAIT, /* wants daemons to evaluate */
        PHASE_EVAL,
        PHASE_STORE, /* nothing goes on but storing the round */
        PHASE_OVER,  /* waits for the worker's last answers, then released */
};

/* The round that is applied and not yet committed. Another one may be trained from its params meanwhile. */
struct core_store {
        uint32_t round; /* 0: none */
        bool checkpointed, committing;
        bool complete; /* nothing is to be added to the record: evaluated, or not to be */
        bool failing;  /* the disk is; reason says how, while `round` is stored */
        char reason[MFL_REASON_BYTES];
        struct mfl_round_record record;
        uint64_t checkpoint_retry_ms, commit_retry_ms; /* CORE_NEVER: none due */
};

struct core_job {
        char id[MFL_JOB_ID_BYTES];
        const struct mfl_job *spec;
        uint32_t serial;
        struct core_job *next;
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        enum core_phase phase;
        bool dirty;

        struct mfl_data_info data;      /* name "": nobody has decided yet */
        char data_from[MFL_NAME_BYTES]; /* the daemon that did; "": not known */
        struct mfl_fixed fixed;
        uint64_t n_params, n_frozen; /* updates have the difference */
        uint32_t n_slots;
        uint8_t frozen_digest[MFL_DIGEST_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];  /* of the newest params, committed or not */
        char numerics[MFL_NUMERICS_BYTES]; /* of the daemon that was first to train here */
        bool has_numerics, numerics_mixed; /* mixed: said so */
        struct core_store store;

        uint32_t committed, round, attempt, eval_tries;
        uint32_t stop_after; /* 0: it goes on to its last round */
        uint64_t stamp;      /* rises with every phase that gives out work */
        uint64_t served;     /* the scheduler's turn at which it last began a phase */
        uint64_t arrival_ms, ready_ms;
        uint64_t prepare_ms; /* not before, because the disk was full; 0: at any time */
        bool settled;

        struct core_item *items;
        uint32_t n_items, count[ITEM_STATES_];
        struct core_task *tasks;
        struct core_group *groups;
        struct core_daemon **leased;
        uint32_t n_leased, leased_capacity, n_leased_up;

        struct core_update **slots;
        struct core_update *queue_head, *queue_tail;
        uint32_t n_adding;
        uint64_t weight_claimed, weight_counted; /* of updates that may still count; of those that have */

        uint64_t deadline_ms, deadline_left; /* CORE_NEVER: the clock stands still, with that much left */
        bool quorum_failed;                  /* CLOSING: on to the next attempt */
        bool released;
        uint32_t n_pending; /* worker orders without an answer, n_adding included */
        char last_failure[MFL_REASON_BYTES];

        struct mfl_round_record record;
        int64_t train_loss, eval_loss;
        uint64_t train_correct, eval_correct;
        uint64_t progress_samples;
        int64_t progress_loss;
};

struct core_refused {
        char name[MFL_NAME_BYTES];
        enum mfl_refusal why;
        uint64_t at_ms;
        uint32_t n_data_sets;
        uint64_t data_sets[MFL_DATA_SETS_MAX]; /* mfl_core_name_key of each */
};

struct mfl_core {
        struct mfl_core_options options;
        uint64_t now_ms;
        struct mfl_core_actions *out;
        int error;

        struct core_daemon **daemons;
        uint32_t n_daemons, daemons_capacity;
        struct core_refused *refused;
        uint32_t n_refused;
        struct core_map by_conn, by_key, tasks, nodes, hosts;
        struct core_comm *comms;
        uint64_t deal;
        uint64_t changes; /* rises whenever a daemon comes or goes */

        struct core_job *jobs, **jobs_end;
        uint32_t job_serial;
        uint32_t task_serial; /* of tasks, groups and communicators; it may wrap */
        uint64_t stamp, turn, pass;
        uint64_t arrival_ms;          /* when a daemon last came */
        bool dirty;                   /* some job is */
        bool sched_dirty;             /* daemons or wishes changed */
        uint64_t scan_ms;             /* no timer is due before */
        struct mfl_core_action scrap; /* written to when memory is out */
};

/* ---- core.c ---- */
struct mfl_core_action *mfl_core_act(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_job *job);
void mfl_core_trace(struct mfl_core *core, const struct core_job *job, const char *fmt, ...) MFL_PRINTF(3, 4);
void mfl_core_wake(struct mfl_core *core, uint64_t at_ms);
void mfl_core_dirty(struct mfl_core *core, struct core_job *job);
struct core_job *mfl_core_job(const struct mfl_core *core, const char *id);
/* Of a task, a group or a communicator; never given twice. */
uint64_t mfl_core_number(struct mfl_core *core);

/* ---- core_daemon.c ---- */
void mfl_core_daemon_up(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained);
void mfl_core_daemon_down(struct mfl_core *core, struct core_daemon *daemon, const char *why);
/* Says Bye; its tasks have their grace time. */
void mfl_core_daemon_close(
        struct mfl_core *core, struct core_daemon *daemon, bool retry, const char *fmt, ...) MFL_PRINTF(4, 5);
/* It said that it will not come back: no grace time. */
void mfl_core_daemon_left(struct mfl_core *core, struct core_daemon *daemon, const char *reason);
void mfl_core_daemon_timers(struct mfl_core *core, struct core_daemon *daemon, uint64_t *next_ms);
void mfl_core_daemon_drain(struct mfl_core *core, const char *name, bool on);
void mfl_core_daemon_expel(struct mfl_core *core, const char *name, const char *reason);
void mfl_core_daemon_leaving(struct mfl_core *core, struct core_daemon *daemon, const char *reason);
/* It gets work, if there is any for it: nobody drains it, and it does not leave. */
bool mfl_core_daemon_takes_work(const struct core_daemon *daemon);
/* A daemon that is drained, or rests, leaves its job with its last task. */
void mfl_core_daemon_idle(struct mfl_core *core, struct core_daemon *daemon);
void mfl_core_daemon_free(struct core_daemon *daemon);
/* The message to fill in; daemon->conn must not be 0. */
struct mfl_msg *mfl_core_send(struct mfl_core *core, struct core_daemon *daemon, enum mfl_msg_kind kind);
/* Never NULL unless memory is out. */
struct core_relation *mfl_core_relation(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job);
/* Connected, taking work, with the job's data set, and willing. */
bool mfl_core_daemon_usable(const struct core_daemon *daemon, const struct core_job *job);
/* It said that it can't do this job at all. */
bool mfl_core_daemon_barred(const struct core_daemon *daemon, const struct core_job *job);
void mfl_core_lease(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job);
void mfl_core_unlease(struct mfl_core *core, struct core_daemon *daemon);
uint64_t mfl_core_name_key(const char *name);

/* ---- core_data.c ---- */
/* The daemon's data set of the job; NULL: it has none, or one that does not fit. */
const struct mfl_data_info *mfl_core_daemon_data(
        const struct core_daemon *daemon, const struct core_job *job);
/* False: there is no daemon with data that fit and would work. Before anybody has decided, the first does. */
bool mfl_core_data_decide(struct mfl_core *core, struct core_job *job);
/* The job is prepared; a daemon came, or works again: what its data are is compared, and told. */
void mfl_core_data_ready(struct mfl_core *core, struct core_job *job);
void mfl_core_data_arrived(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon);
/* The shell has turned it away; it has come in. */
void mfl_core_refused(struct mfl_core *core, const struct mfl_daemon_info *info, enum mfl_refusal why);
void mfl_core_refused_forget(struct mfl_core *core, const char *name);
/* Why a job waits of which no daemon is usable; of which only so many are. */
void mfl_core_data_lack(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES]);
void mfl_core_data_missing(const struct mfl_core *core, const struct core_job *job, uint32_t usable,
        uint32_t need, char ret_text[MFL_REASON_BYTES]);

/* ---- core_task.c ---- */
/* Gives items[index[0 .. n)] to the daemon as one task, which is yet to be sent. */
void mfl_core_task_give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon,
        const uint32_t *index, uint32_t n);
void mfl_core_task_send(struct mfl_core *core, struct core_task *task);
/* After a lost connection: alone. */
void mfl_core_task_send_again(struct mfl_core *core, struct core_task *task);
/* Takes what is not counted (or being added) back from the daemon. */
void mfl_core_task_take(struct mfl_core *core, struct core_task *task, enum item_state to);
void mfl_core_task_attach(struct core_task *task, struct core_daemon *daemon);
bool mfl_core_task_live(const struct core_task *task);
void mfl_core_task_free(struct mfl_core *core, struct core_task *task);
void mfl_core_task_cancel(struct mfl_core *core, struct core_task *task, const char *reason);
/* Its uploads wait for another connection: queued ones are announced again, filling ones keep their slots. */
void mfl_core_task_offline(struct mfl_core *core, struct core_task *task);
void mfl_core_item_set(struct core_job *job, uint32_t i, enum item_state state, struct core_task *task);
void mfl_core_message(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);

/* ---- core_announce.c ---- */
void mfl_core_announced(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *announce);

/* ---- core_upload.c ---- */
void mfl_core_upload_complete(struct mfl_core *core, struct core_job *job, uint32_t slot);
void mfl_core_added(struct mfl_core *core, struct core_job *job, uint32_t slot, bool ok, const char *reason);
void mfl_core_slots_grant(struct mfl_core *core, struct core_job *job);
/* Forgets a QUEUED or FILLING update, or one that has left its group, as if it had never been announced. */
void mfl_core_update_drop(struct mfl_core *core, struct core_update *update);
void mfl_core_update_free(struct core_update *update);
/* It waits for a slot, for itself or as its group's leader. */
void mfl_core_update_enqueue(struct mfl_core *core, struct core_update *update);
/* It waits for no slot, and has none. */
void mfl_core_update_unslot(struct mfl_core *core, struct core_update *update);
void mfl_core_slots_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);
/* FILLING: asks for the bytes that are missing. */
void mfl_core_update_grant(struct mfl_core *core, struct core_update *update);
void mfl_core_update_count(struct mfl_core *core, struct core_update *update);
/* It is not valid, and no better if it comes again. */
void mfl_core_update_refuse(struct mfl_core *core, struct core_update *update, const char *reason);
/* To nobody, if the daemon is NULL or lost. */
void mfl_core_send_accepted(
        struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update);
void mfl_core_send_refused(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update,
        enum mfl_refused code, const char *reason);

/* ---- core_node.c ---- */
/* info is what Hello says now: true when it says the same as daemon->info about where the daemon is. */
bool mfl_core_node_same(const struct core_daemon *daemon, const struct mfl_daemon_info *info);
int mfl_core_node_enter(struct mfl_core *core, struct core_daemon *daemon);  /* -ENOMEM */
void mfl_core_node_leave(struct mfl_core *core, struct core_daemon *daemon); /* if it is in one */
void mfl_core_node_label(const struct core_daemon *daemon, char ret_node[MFL_NODE_BYTES]);
/* Whether NCCL can add among the node's connected daemons (deal 0), or those with one task of that deal. */
bool mfl_core_node_nccl(const struct core_node *node, uint64_t deal);
/* collective, leader, alone */
void mfl_core_node_view(
        const struct mfl_core *core, const struct core_daemon *daemon, struct mfl_core_daemon_view *ret_view);
void mfl_core_node_check(const struct mfl_core *core);

/* ---- core_comm.c ---- */
/* The communicator's number for a group of them; 0: NCCL has failed too often among them, or memory is out.
 */
uint64_t mfl_core_comm_number(
        struct mfl_core *core, const struct core_group *group, const struct core_node *node);
/* Every member was told its id. */
void mfl_core_comm_passed(struct mfl_core *core, uint64_t number);
bool mfl_core_comm_is_passed(const struct mfl_core *core, uint64_t number);
void mfl_core_comm_proven(struct mfl_core *core, uint64_t number);
/* It can't be used again; failed: and NCCL is to blame. */
void mfl_core_comm_lost(struct mfl_core *core, uint64_t number, bool failed, const char *reason);
/* A member has it no more: the next group of them gets another one. */
void mfl_core_comm_broken(struct mfl_core *core, uint64_t number, uint64_t instance);
/* A member may have missed its id. */
void mfl_core_comm_cut(struct mfl_core *core, uint64_t instance);
/* The node has other daemons than before; instance, if not 0, is gone. */
void mfl_core_comm_change(struct mfl_core *core, const struct core_node *node, uint64_t instance);
/* Why NCCL is not tried among some with that instance; NULL: it is. */
const char *mfl_core_comm_reason(const struct mfl_core *core, uint64_t instance);
void mfl_core_comm_free(struct mfl_core *core);

/* ---- core_group.c ---- */
/* Of tasks that a deal made and that are not sent: params_from, and groups. */
void mfl_core_groups_form(struct mfl_core *core, struct core_job *job, struct core_task **tasks, uint32_t n);
void mfl_core_group_describe(const struct core_task *task, struct mfl_group *ret_group);
/* Whether an update that is announced so is to wait for its task's group. */
bool mfl_core_group_takes(const struct core_task *task, const struct mfl_announce *announce);
void mfl_core_group_ready(struct mfl_core *core, struct core_update *update);
/* Its task can't be in its group any more; its update, if it waits for the group, is dropped. */
void mfl_core_group_lose(struct mfl_core *core, struct core_task *task, const char *reason);
/* The same, but it is told, and its update waits for a slot of its own. */
void mfl_core_group_alone(struct mfl_core *core, struct core_task *task, const char *reason);
/* Who was to get params from the lost daemon is alone. */
void mfl_core_group_fetcher_lost(struct mfl_core *core, struct core_daemon *daemon);
uint64_t mfl_core_group_weight(const struct core_group *group);
/* It has a slot. Returns when its first bytes should be there at the latest. */
uint64_t mfl_core_group_granted(struct mfl_core *core, struct core_group *group);
/* Nothing comes from its leader. */
void mfl_core_group_stalled(struct mfl_core *core, struct core_group *group);
/* There is no slot for its sum. */
void mfl_core_group_unopened(struct mfl_core *core, struct core_group *group, const char *reason);
void mfl_core_group_adding(struct core_group *group);
void mfl_core_group_added(struct mfl_core *core, struct core_group *group, bool ok, const char *reason);
void mfl_core_group_failed(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);
void mfl_core_group_communicator(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg);
void mfl_core_group_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);
/* The round is decided: nothing of theirs is wanted but sums that the worker has. */
void mfl_core_groups_end(struct mfl_core *core, struct core_job *job, const char *reason);
void mfl_core_groups_free(struct core_job *job);
void mfl_core_group_check(const struct mfl_core *core, const struct core_job *job);

#endif
