/* SPDX-License-Identifier: Apache-2.0 */
/* The server's decisions, all of them, as one pure state machine: step(core, event) -> actions.
 *
 * No I/O, clock, threads, files or globals: time and identity arrive in events, randomness is the job's
 * counter stream. The libuv shell (server/shell*) and the simulator (tests/sim) drive the very same code.
 * Inside, core.c keeps daemons, tasks and uploads; round.c one job's rounds; scheduler.c which job gets which
 * daemons.
 *
 *  JOB_ADD -> a daemon with the data set is up: JOB_PREPARE -> JOB_READY
 *                                     |
 *      +------------------------> WAITING(r) <----- below quorum: next attempt; retries spent: FAILED
 *      |                              |                    |
 *      |               daemons, in turn                    |
 *      |                              v                    |
 *      |                           TRAIN(r) -- all counted, or deadline and quorum --> TRAINED(r)
 *      |                                                                                   |
 *      |                                                          r - 1 is COMMITTED, or never was
 *      |                                                                                   v
 *      +-- r + 1, at once, if r is neither evaluated nor the last ----- APPLIED(r) <-- APPLY(r)
 *      |                                                                   |
 *      |                                    EVAL(r), if it is due, and CHECKPOINT(r) at the same time
 *      |                                                                   |
 *      |                                                          both done: COMMIT(r)
 *      |                                                                   v
 *      +-- r + 1, if r was evaluated --------------------------------- COMMITTED(r) -- last round: DONE
 *
 * So a round that is not evaluated is stored while the next one is trained from its params; that one is
 * applied when its predecessor is committed, so that never more than one round is not on disk. A server that
 * dies in between starts after round r - 1 and trains r again; updates of r + 1 that daemons hold are refused
 * (they are of no round at hand), or, if r + 1 is dealt before they come, used if and only if they were made
 * from the same params: the agent compares digests. A job that is stopped or fails ends at its last committed
 * round.
 *
 * Rules that the simulator checks after every event:
 *   - an update counts at most once; a client counts at most once in a round;
 *   - weight accepted equals weight applied; committed rounds rise by one;
 *   - slots in use never exceed n_slots; a slot is granted to one upload at a time;
 *   - a lost daemon's uncounted clients go to other daemons in the same round (not for partition `local`), so
 * that the model does not depend on who died;
 *   - when faults stop, rounds advance within a bounded virtual time.
 * A daemon whose connection broke keeps its tasks for reconnect_grace_ms, unless another instance under its
 * name appears. An upload's bytes that arrived stay in its slot that long. A daemon that is heard of is
 * alive, however slow. A daemon that says Bye with retry = false is not waited for, nor is one that is
 * expelled. One that says Leaving keeps what it has and gets nothing else; it is as drained, for the life of
 * its process. Attempts count from 0. A
 * job whose last round is committed may be added: it is DONE at once. Daemons that start together share the
 * first round of a job: it waits until none has come for 300 ms, 1.5 s at most. An update that was made for a
 * task of an earlier boot is left unanswered until the round is dealt; the agent matches it with its new
 * task. The core itself sends Welcome, JobSpec (again after 16 other jobs on one connection), Ping and Pong.
 * An upload of which nothing comes for upload_stall_ms gives its slot up to those that wait for one, and
 * stands in the queue again; if nobody does, it is granted again. A group's sum ends its group, so that the
 * members upload singly. A byte of any upload from that daemon is enough.
 * A job that is to stop after a round stops when the one under way, or being stored, is committed, evaluated
 * like a last one; when there is none, at once.
 * Failing disk: CHECKPOINTED or COMMITTED with ok = false is tried again every 5 s, the job's reason tells
 * why it waits. Quorum < 1: when the deadline passes with at least ceil(quorum * cohort) clients counted, the
 * round closes without the rest. A round whose every missing client was rejected or is impossible to place
 * closes without waiting, if it has quorum; if it has not, it is retried (attempt + 1, other clients drawn if
 * the population is larger than the cohort) up to limits.retries, then the job fails with the reason. Having
 * no daemon at all is no failure: the job waits, its deadline clock stands still. Shared daemons: a daemon
 * works for one job at a time, one phase at a time; among jobs that want daemons the least recently served
 * goes first and free daemons are divided evenly; a `local` job takes all of its daemons at once. A phase's
 * items are dealt to its daemons in contiguous pieces, in the order of names, so large that all should end at
 * the same time (selection.assign: speed; server/round_speed.h), or round robin by item (modulo). Daemons
 * that hold results of an earlier boot get pieces of the size of those: with the last one's size given by the
 * others' they are the very same pieces.
 *
 * Data. The first data set that a job takes decides what the others must be: equal in shape, number of
 * classes and meaning (where both tell), and for a simulated population in content. JOB_PREPARE and JOB_DATA
 * give it to the shell to keep, JOB_ADD gives it back after a restart. A job that waits says whom it lacks
 * and why, by what the core knows of daemons and what REFUSED tells of those that were turned away.
 *
 * Nodes. Daemons whose Hello.node, user, network space and memory space are equal form a node, if they have a
 * memory space, and neither an empty node nor instance 0 (server/core_node.c). Its order is that of device
 * memory, the largest first, then of the bus, then of names: who comes first has the most room for the
 * others' sums, and is the same each time. Of a node's daemons that work for a job, the first fetches the
 * params (Task.params_from).
 *
 * Groups. Those of a node that get exactly one training task in the same dealing form a group, in the node's
 * order, 64 members at most, each with an instance of its own; not for jobs that need single updates. Who
 * gets which items does not depend on it. A group adds by nccl if each member has a GPU of its own, not a MIG
 * instance, and all have the same version of NCCL; else by shm (server/core_group_form.c). Its life
 * (server/core_group.c):
 *
 *   GATHER: members announce with the group's number. A member that announces without it, or is lost, is out.
 *     When one is ready, the rest has as long again as that one took, 2 s at least, but not more than half of
 *     what is left to the deadline; who is late then is out.
 *   COMBINE: all are ready, two at least, and for nccl the communicator's id is with all: Combine, to the
 * leader (the first that is ready) or, for nccl, to all. The leader's update stands in the queue for a slot
 * for all of them: SLOT_OPEN, GRANT, SLOT_ADD and SLOT_FREE name the group as task, update 0, and the sum of
 * the weights. Combine has its time, but not more than half of what is left to the deadline. A leader that
 * was granted has as long, and the time of an upload at 1 MiB/s. ADDING: the sum is here whole. It counts
 * whatever happens to the members now. ADDED: each member's update counts, under its own task.
 *
 * A member that is out before ADDING ends the whole group, if it is to be combined or adds by nccl, as
 * CombineFailed, a lack of time and a refused sum do; so does the last but one member that leaves. Each
 * member that is connected is told so (Alone), and its update, if it was ready, waits for a slot of its own.
 * Alone also goes to a daemon with nothing announced yet whose params were to come from one that is lost. A
 * task that is sent again after a reconnect is alone.
 * A communicator's number stays the same for the same members in the same ranks, until a combine with it has
 * failed, it has broken at one of them meanwhile, or a member's connection broke before the first one. The
 * leader's CommunicatorId is passed on once; if it can't be made that is a failure of the group as any other.
 * After two failures in a row the same members add by shm until the daemons of their node change.
 */
#ifndef MFL_SERVER_CORE_H
#define MFL_SERVER_CORE_H

#include "common/base.h"
#include "common/job.h"
#include "proto/message.h"

struct mfl_core;

#define MFL_NODE_BYTES (2 * MFL_NAME_BYTES)

struct mfl_core_options {
        uint64_t server_instance; /* random, for Welcome */
        uint32_t boot; /* rises with each start of a state directory: upper half of task numbers. The lower
                          one counts from server_instance's upper half on, for a directory that was lost and
                          begun anew in the same second */
        uint32_t heartbeat_ms, dead_ms, reconnect_grace_ms;
        uint32_t upload_stall_ms; /* an upload of which nothing comes for so long gives its slot up; 0: never
                                   */
};
int mfl_core_new(const struct mfl_core_options *options, struct mfl_core **ret_core, struct mfl_error *err);
void mfl_core_free(struct mfl_core *core);

enum mfl_job_state {
        MFL_JOB_WAITING = 1,
        MFL_JOB_RUNNING = 2,
        MFL_JOB_DONE = 3,
        MFL_JOB_FAILED = 4,
        MFL_JOB_STOPPED = 5,
};

/* What is known of a committed round. */
struct mfl_round_record {
        uint32_t round, attempt;
        bool evaluated;
        /* Means over the predictions that were scored: one a sample with class labels, one a token or a
         * target value with those. Accuracies are not a number where the loss has none
         * (mfl_job_has_accuracy). */
        double loss, accuracy;             /* of the test split, after the round */
        double train_loss, train_accuracy; /* of the local trainings */
        uint64_t eval_samples, samples, weight;
        uint32_t clients, clients_rejected, daemons;
        uint64_t started_ms, ended_ms; /* the core's clock, to the order to commit; rounds may overlap */
        uint8_t digest[MFL_DIGEST_BYTES];
};

enum mfl_core_event_kind {
        MFL_EV_TICK, /* nothing but the time: at least every 100 ms while a timer may be due
                        (mfl_core_next_ms) */
        MFL_EV_JOB_ADD,
        MFL_EV_JOB_READY,          /* answers JOB_PREPARE */
        MFL_EV_JOB_PREPARE_FAILED, /* answers JOB_PREPARE: the job fails with reason; later: it is tried again
                                    */
        MFL_EV_JOB_STOP,           /* now; after_round: when the round that is under way is committed */
        MFL_EV_DAEMON_UP,          /* a valid Hello of a daemon on connection conn */
        MFL_EV_DAEMON_DOWN,        /* connection conn is gone */
        MFL_EV_MESSAGE,            /* from connection conn; also proves that the peer lives */
        MFL_EV_HEARD,              /* bytes came from connection conn */
        MFL_EV_CHUNK,              /* some of an upload's bytes came from connection conn; HEARD too */
        MFL_EV_UPLOAD_COMPLETE,    /* every byte of the slot has arrived. Not to be delivered after the slot's
                                      SLOT_FREE */
        MFL_EV_ADDED,   /* answers SLOT_ADD; ok = false: invalid, nothing was added, reason says why. Not ok
                           also   instead of a grant: there is no slot of that kind */
        MFL_EV_APPLIED, /* answers APPLY; digest of the new params; ok = false: not finite, the job fails */
        MFL_EV_CHECKPOINTED, /* answers CHECKPOINT */
        MFL_EV_COMMITTED,    /* answers COMMIT */
        MFL_EV_DRAIN,        /* name, on */
        MFL_EV_REFUSED,      /* the shell has turned the daemon away */
        MFL_EV_EXPEL,        /* name, reason: it may not take part any more. It gets Bye with retry, and its
                                work goes to others at once */
};

/* Why the shell turned a daemon away. */
enum mfl_refusal {
        MFL_REFUSAL_RULE,
        MFL_REFUSAL_VERSION,
};

struct mfl_core_event {
        enum mfl_core_event_kind kind;
        uint64_t now_ms; /* never falls */
        uint32_t conn;   /* the shell's number of a connection; never used twice */
        char job[MFL_JOB_ID_BYTES];
        union {
                struct {
                        const struct mfl_job *spec;       /* outlives the job in the core */
                        uint32_t committed;               /* last committed round; 0: the initial params */
                        const struct mfl_data_info *data; /* that it began with, as JOB_PREPARE or JOB_DATA
                                                             told; NULL or no name: nobody has decided */
                        const char *data_from;
                        uint32_t stop_after; /* as JOB_STATE told; 0: with the last round */
                } job_add;
                struct {
                        uint64_t n_params, n_frozen;
                        uint32_t n_slots;
                        uint8_t frozen_digest[MFL_DIGEST_BYTES]; /* of those, if there are any */
                        uint8_t digest[MFL_DIGEST_BYTES];        /* of the params after round `committed` */
                } job_ready;
                struct mfl_daemon_info *daemon;   /* DAEMON_UP, REFUSED; borrowed */
                const struct mfl_msg *msg;        /* MESSAGE; borrowed */
                uint32_t slot;                    /* UPLOAD_COMPLETE, ADDED */
                uint8_t digest[MFL_DIGEST_BYTES]; /* APPLIED */
                struct {
                        char name[MFL_NAME_BYTES];
                        bool on;
                } drain; /* EXPEL: the name */
        };
        bool ok;
        enum mfl_refusal refusal; /* REFUSED */
        bool after_round;         /* JOB_STOP */
        bool later;               /* JOB_PREPARE_FAILED: the disk is full, say, which may pass */
        bool drained;             /* DAEMON_UP: it gets no work from its first moment on, as after DRAIN */
        char reason[MFL_REASON_BYTES];
};

enum mfl_core_action_kind {
        MFL_ACT_SEND,        /* msg to conn */
        MFL_ACT_CLOSE,       /* conn, reason, retry: say Bye and close; DAEMON_DOWN need not follow */
        MFL_ACT_JOB_PREPARE, /* build the graph for `data`, reserve memory (params, sums, slots), load or make
                                the params */
        MFL_ACT_JOB_DATA,    /* keep `prepare` (data, data_from) in the place of what JOB_PREPARE said */
        MFL_ACT_JOB_STATE,   /* store and tell watchers: state, reason */
        MFL_ACT_JOB_RELEASE, /* the job's memory and spec may go (after DONE, FAILED, STOPPED, once every
                                order to the worker is answered); the core does not know the job any more */
        MFL_ACT_ROUND_OPEN,  /* zero the sums; for single updates: empty the spill file */
        MFL_ACT_SLOT_OPEN,   /* slot is for (task, update) with `bytes` in `encoding`; forget what it held */
        MFL_ACT_GRANT,       /* send Grant for the bytes still missing in slot to conn; none missing: report
                                UPLOAD_COMPLETE */
        MFL_ACT_SLOT_ADD,    /* worker: check and add the slot to the sums with `weight`; answer ADDED */
        MFL_ACT_SLOT_FREE,   /* chunks for it are dropped from now on */
        MFL_ACT_APPLY, /* worker: params(round) from params(round - 1), the sums and `weight`; answer APPLIED.
                          The new params are what ParamsGet gives from then on, next to the old ones */
        MFL_ACT_CHECKPOINT, /* worker: write and sync the file of `round`; answer CHECKPOINTED. The next round
                               may be opened and summed at the same time, but is not applied before COMMITTED
                             */
        MFL_ACT_COMMIT,     /* worker: the database row of `record`; answer COMMITTED */
        MFL_ACT_COST,  /* what the round at hand would have cost `cost.node` on the network without its groups
                          and shared params: bytes up of an update that counted, bytes down of params that a
                          daemon was told to use and had not been told of before */
        MFL_ACT_TRACE, /* one English line: text; job may be empty */
};

struct mfl_core_action {
        enum mfl_core_action_kind kind;
        uint32_t conn;
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        union {
                struct mfl_msg msg; /* SEND; owned */
                struct {
                        struct mfl_data_info data;      /* JOB_PREPARE, JOB_DATA */
                        char data_from[MFL_NAME_BYTES]; /* the daemon whose they are; "": not known */
                        uint32_t population;            /* JOB_PREPARE: clients; 0 for local */
                } prepare;
                struct {
                        enum mfl_job_state state;
                        uint32_t stop_after; /* to be kept: it ends after that round; 0: with the last one */
                } job_state;
                struct {
                        uint32_t slot;
                        uint64_t task;
                        uint32_t update;
                        uint64_t bytes, weight;
                        uint64_t item; /* single updates: the client, so that the spill file has an order */
                        enum mfl_encoding encoding;
                } slot;
                uint64_t weight;                /* APPLY: total */
                struct mfl_round_record record; /* COMMIT */
                struct {
                        char node[MFL_NODE_BYTES], daemon[MFL_NAME_BYTES];
                        uint64_t up, down;
                } cost;
        };
        bool retry;
        char reason[MFL_REASON_BYTES]; /* also TRACE's text */
};

struct mfl_core_actions {
        uint32_t n, capacity;
        struct mfl_core_action *v;
};
void mfl_core_actions_clear(struct mfl_core_actions *actions); /* keeps the capacity */
void mfl_core_actions_deinit(struct mfl_core_actions *actions);

/* Takes in one event; appends actions, to be carried out in order. 0 or -ENOMEM. */
int mfl_core_step(
        struct mfl_core *core, const struct mfl_core_event *event, struct mfl_core_actions *actions);

/* When a TICK is due at the latest; UINT64_MAX: never. */
uint64_t mfl_core_next_ms(const struct mfl_core *core);

/* Fixed-point limits of a job: cohort-wide weight bound. samples: the data set's training samples rounded up
 * to a power of two (population), or 2^36 (local); uniform: the cohort size. */
int mfl_core_fixed(const struct mfl_job *spec, uint32_t train_samples, uint32_t population,
        struct mfl_fixed *ret_fixed, struct mfl_error *err);

/* ---- what lists and watchers show ---- */
struct mfl_core_job_view {
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        const char *phase; /* "train", "apply", "evaluate", "commit", "wait" */
        uint32_t committed, in_round, attempt;
        uint32_t clients_done, clients_total, daemons;
        uint64_t samples_done;
        double train_loss; /* running, of this round */
};
int mfl_core_job_view(
        const struct mfl_core *core, const char *job, struct mfl_core_job_view *ret_view); /* MFL_NOT_FOUND */

struct mfl_core_daemon_view {
        const struct mfl_daemon_info *info;
        uint32_t conn;     /* 0: lost, in its grace time */
        const char *state; /* as DaemonInfo.state */
        char job[MFL_JOB_ID_BYTES];
        uint32_t round, items_done, items_total;
        /* Of its last training task, from its sending to its last update, all workers together; 0: none yet.
         */
        double samples_per_second, clients_per_second;
        uint64_t connected_ms;
        char note[MFL_REASON_BYTES];
        char node[MFL_NODE_BYTES];           /* as mfl_core_node */
        enum mfl_collective_kind collective; /* how it would add, or adds, with the others of its node */
        bool leader;                         /* of its node, of two daemons at least */
        char alone[MFL_REASON_BYTES];        /* SOLO: why; SHM among GPUs: why not NCCL; else empty */
};
/* The label of the node of connection conn's daemon: Hello.node, followed by "/" and the first of its
 * daemons' names where several nodes have that id (containers of one host); that name alone where it is
 * empty. Empty: no such daemon. */
void mfl_core_node(const struct mfl_core *core, uint32_t conn, char ret_node[MFL_NODE_BYTES]);
uint32_t mfl_core_daemon_count(const struct mfl_core *core);
void mfl_core_daemon_view(const struct mfl_core *core, uint32_t i, struct mfl_core_daemon_view *ret_view);

/* One of the mfl_core_job_view.daemons daemons that work for a job; their order says nothing. */
struct mfl_core_crew_view {
        const struct mfl_daemon_info *info;
        uint32_t conn;     /* 0: lost, in its grace time */
        const char *state; /* as DaemonInfo.state */
        uint32_t items_done, items_total;
};
/* MFL_NOT_FOUND: no such job, or it has no i-th. */
int mfl_core_job_crew(
        const struct mfl_core *core, const char *job, uint32_t i, struct mfl_core_crew_view *ret_view);

/* Asserts every internal invariant (tests, simulator). */
void mfl_core_check(const struct mfl_core *core);

#endif
