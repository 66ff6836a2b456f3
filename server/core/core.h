/* SPDX-License-Identifier: Apache-2.0 */
/* The server's decisions, all of them, as one pure state machine: step(core, event) -> actions.
 *
 * No I/O, clock, threads, files or globals: time and identity come in events, randomness is the job's counter
 * stream. The libuv shell (server/shell/) and the simulator (tests/sim) drive the same code. Rooms, from the
 * bottom up; each uses only those before it:
 *
 *   server/state   what the core knows: jobs, daemons, tasks, updates, nodes; events and actions
 *   server/work    what daemons do for jobs: tasks, uploads, groups, votes; how daemons come and go
 *   server/round   one job's rounds, and the scheduler, which decides which job gets which daemons
 *   server/core    events in, timers, what lists show
 *
 *  JOB_ADD -> a daemon with the data set is up: JOB_PREPARE -> JOB_READY
 *                                     |
 *      +------------------------> WAITING(r) <----- below quorum: next attempt; no retries left: FAILED
 *      |                              |                    |
 *      |                   daemons, in turn                |
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
 * So a round without evaluation is stored while the next one is trained from its params. The next one is
 * applied once its predecessor is committed, so at most one round is not on disk. A server that dies in
 * between starts after round r - 1 and trains r again. Updates of r + 1 that daemons hold are refused,
 * because their round is not under way. If r + 1 is dealt before they come, they are used if and only if
 * they were made from the same params: the agent compares digests. A job that is stopped or fails ends at
 * its last committed round.
 *
 * Rules that the simulator checks after every event:
 *   - an update counts at most once; a client counts at most once per round;
 *   - the weight accepted equals the weight applied; committed rounds rise by one;
 *   - at most n_slots slots are in use; a slot is granted to one upload at a time;
 *   - uncounted clients of a lost daemon go to other daemons in the same round (not for partition `local`),
 *     so the model does not depend on who died;
 *   - when faults stop, rounds advance within a bounded virtual time.
 *
 * Attempts count from 0. A job whose last round is committed may be added: it is DONE at once. Daemons that
 * start together share the first round of a job: it waits until none has come for 300 ms, at most 1.5 s. An
 * update that was made for a task of an earlier boot is not answered until the round is dealt; the agent
 * compares it with its new task. The core itself sends Welcome, JobSpec (again after 16 other jobs on one
 * connection), Ping and Pong. A job that is to stop after a round stops when the round under way, or the one
 * being stored, is committed, evaluated like a last round; without such a round it stops at once. Having no
 * daemon at all is no failure: the job waits, and its deadline's clock stands still.
 *
 * More rules are beside the functions that keep them: daemons (server/work/core_presence.h, core_rival.h),
 * data (core_data.h), what daemons report (core_claims.h, core_vote.h), uploads (core_upload.h), nodes and
 * groups (server/state/core_node.h, server/work/core_group.h), quorum and retries
 * (server/round/round_phase.h), the disk (round_store.h), dealing (round_deal.h, round_speed.h), moving
 * clients (round_move.h), and which job gets which daemons (scheduler.h).
 */
#ifndef MFL_SERVER_CORE_CORE_H
#define MFL_SERVER_CORE_CORE_H

#include "server/state/action.h"
#include "server/state/event.h"

struct mfl_core;

int mfl_core_new(const struct mfl_core_options *options, struct mfl_core **ret_core, struct mfl_error *err);
void mfl_core_free(struct mfl_core *core);

void mfl_core_actions_clear(struct mfl_core_actions *actions); /* keeps the capacity */
void mfl_core_actions_deinit(struct mfl_core_actions *actions);

/* Takes one event and appends actions, which must be carried out in order. 0 or -ENOMEM. */
int mfl_core_step(
        struct mfl_core *core, const struct mfl_core_event *event, struct mfl_core_actions *actions);

/* When a TICK is due; UINT64_MAX: never. */
uint64_t mfl_core_next_ms(const struct mfl_core *core);

/* The maximum memory that the core takes for a job's clients: in proportion to the cohort, and four bytes per
 * client of a population up to MFL_CUT_CLIENTS_MAX. */
uint64_t mfl_core_clients_bytes(const struct mfl_job *spec, uint32_t population);
/* Whether the cut of the population that this connection's daemon tells is the valid one, or none is valid
 * yet. */
bool mfl_core_cut_holds(const struct mfl_core *core, uint32_t conn, const char *job);

/* Whether this connection's daemon has the client in a training task of the job; with personal layers, or in an evaluation. */
bool mfl_core_trains(const struct mfl_core *core, uint32_t conn, const char *job, uint64_t client);

/* ---- what lists and watchers show ---- */
struct mfl_core_job_view {
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        const char *phase; /* "train", "apply", "evaluate", "commit", "wait" */
        uint32_t committed, in_round, attempt;
        uint32_t clients_done, clients_total, daemons;
        uint64_t samples_done;
        double train_loss; /* running mean of this round */
        double trained;    /* the part of its training that is done: 0..1 */
};
int mfl_core_job_view(
        const struct mfl_core *core, const char *job, struct mfl_core_job_view *ret_view); /* MFL_NOT_FOUND */

struct mfl_core_daemon_view {
        const struct mfl_daemon_info *info;
        uint32_t conn;     /* 0: lost, in its grace time */
        const char *state; /* as DaemonInfo.state */
        char job[MFL_JOB_ID_BYTES];
        uint32_t round, items_done, items_total;
        double items_part; /* items_done, with parts of clients under way */
        /* Of its last training task, from sending to its last update, all workers together; 0: none yet. */
        double samples_per_second, clients_per_second;
        uint64_t connected_ms;
        char note[MFL_REASON_BYTES];
        char node[MFL_NODE_BYTES];           /* as mfl_core_node */
        enum mfl_collective_kind collective; /* how it adds, or would add, with the others of its node */
        bool leader;                         /* of its node, if that has at least two daemons */
        char alone[MFL_REASON_BYTES];        /* SOLO: why; SHM among GPUs: why not NCCL; else empty */
};
/* The label of the node of connection conn's daemon. It is Hello.node; if several nodes have that id, as
 * containers of one host may, "/" and the first of the node's daemons' names follow. Without Hello.node it
 * is that name alone. Empty: no such daemon. */
void mfl_core_node(const struct mfl_core *core, uint32_t conn, char ret_node[MFL_NODE_BYTES]);
uint32_t mfl_core_daemon_count(const struct mfl_core *core);
void mfl_core_daemon_view(const struct mfl_core *core, uint32_t i, struct mfl_core_daemon_view *ret_view);
/* Whether a job's selection.where ("": any) holds for the daemon. */
bool mfl_core_daemon_where(const struct mfl_daemon_info *info, const char *where);

/* One of the mfl_core_job_view.daemons daemons that work for a job, in no particular order. */
struct mfl_core_crew_view {
        const struct mfl_daemon_info *info;
        uint32_t conn;     /* 0: lost, in its grace time */
        const char *state; /* as DaemonInfo.state */
        uint32_t items_done, items_total;
};
/* MFL_NOT_FOUND: no such job, or no i-th daemon. */
int mfl_core_job_crew(
        const struct mfl_core *core, const char *job, uint32_t i, struct mfl_core_crew_view *ret_view);

/* MFL_NOT_FOUND: no such job. */
int mfl_core_job_teams(const struct mfl_core *core, const char *job, struct mfl_team_totals *ret_totals);
/* The i-th team at work; member 0 leads. MFL_NOT_FOUND: no such job, team or member. */
int mfl_core_job_team(const struct mfl_core *core, const char *job, uint32_t i, uint32_t member,
        const char **ret_daemon, uint32_t *ret_ranks, bool *ret_wide);

/* All jobs together: slots, and those that are in use. */
/* The name of the site that is client `item` of jobs with partition local; "": none is known. */
void mfl_core_site_name(const struct mfl_core *core, uint64_t item, char ret_name[MFL_NAME_BYTES]);
void mfl_core_slots_count(const struct mfl_core *core, uint64_t *ret_slots, uint64_t *ret_used);

/* Asserts every internal invariant (tests, simulator). */
void mfl_core_check(const struct mfl_core *core);

#endif
