/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: the true server core and true agents in one process, with a virtual clock, an in-memory
 * network and disk, and seeded faults. world.c has the clock, the network and the schedule; server.c and
 * daemon.c are the shells that carry out actions, params.c what of a daemon's shell concerns params, node.c
 * what daemons of one node share, ledger.c what must
 * be in a round's sum; model.c is the arithmetic in miniature; versions.c what asynchronous jobs have of it, regions.c those with regions;
 * faults.c draws the faults; main.c the command line.
 */
#ifndef MFL_TESTS_SIM_H
#define MFL_TESTS_SIM_H

#include "client/agent/agent.h"
#include "common/base/rng.h"
#include "proto/version.h"
#include "server/core/core.h"
#include "server/relay/relay_core.h"

#define SIM_PARAMS 6 /* that move */
#define SIM_FROZEN 3 /* of jobs that have any */
/* Scenarios: the fixed job in which everything is tried at every event. */
#define SIM_SWEEP 8
#define SIM_SWEEP_NCCL 9
#define SIM_SWEEP_TEAM 10
#define SIM_SWEEP_WIDE 11 /* teams over two nodes */
#define SIM_JOBS 3
#define SIM_DAEMONS 8
#define SIM_CALM_MS 3000
#define SIM_BEAT_MS 200    /* how often the server's shell looks at whose uploads move */
#define SIM_LOST_MS 10000  /* until a download that stands still is asked for again */
#define SIM_STILL_MS 15000 /* no job stands still for longer than that while nothing goes wrong */
#define SIM_SLOTS 3
#define SIM_ARRIVALS 512
#define SIM_VERSIONS 101 /* rounds of a job, with the initial params */
#define SIM_ITEMS 32
#define SIM_REGIONS 4
#define SIM_RELAYS 5
#define SIM_HOPS 4 /* links of a connection, over 3 relays */
#define SIM_RELAY_SLOTS 2
#define SIM_RELAY_SUMS 16
#define SIM_RESULTS 8
#define SIM_PARTS 24
#define SIM_UPDATE_BYTES (SIM_PARAMS * 8)

enum sim_event_kind {
        SIM_TICK_SERVER,
        SIM_TICK_DAEMON,
        SIM_PACKET,      /* conn, packet */
        SIM_CONNECTED,   /* a: daemon, b: its generation */
        SIM_CLOSED,      /* conn; a: 1 to the server, 0 to the daemon */
        SIM_WORK,        /* the server's worker answers: event */
        SIM_UPLOADING,   /* conn: the server's shell tells that chunks came; a: the server's start */
        SIM_COMPUTED,    /* a: daemon, b: generation, task */
        SIM_PROGRESS,    /* a: daemon, b: generation, task */
        SIM_DAEMON_SELF, /* event of a daemon's shell to its agent */
        SIM_COMBINE,     /* a: daemon, b: generation, task: the combine's serial */
        SIM_TRAP,        /* a: daemon, b: enum sim_harm */
        SIM_FAULT,
        SIM_SERVER_START,
        SIM_DAEMON_START, /* a: daemon */
        SIM_DAEMON_EXIT,  /* a: daemon, b: its generation */
        SIM_SCRIPT,       /* a: step of a golden scenario */
        SIM_HOP, /* conn; a: the place whose link has ended, b: the one below; task: boot of the relay there */
        SIM_RELAY_TICK,  /* a: relay, b: its boot */
        SIM_RELAY_ADDED, /* a: relay, b: its boot, conn: slot + 1, task: grant */
        SIM_RELAY_DROP,  /* a: relay, b: its boot: the connection above is lost */
        SIM_RELAY_START, /* a: relay */
};

/* What may happen to a daemon, and at which step of a group's way. */
enum sim_harm { SIM_KILL, SIM_STOP, SIM_CUT, SIM_DARK, SIM_HARMS };
enum sim_trap_step {
        SIM_TRAP_NONE,
        SIM_TRAP_COMPUTED,  /* before it is published */
        SIM_TRAP_PUBLISHED, /* about to be announced */
        SIM_TRAP_COMBINE,
        SIM_TRAP_UPLOAD, /* half of the sum is sent */
        SIM_TRAP_ADDING, /* the server adds it */
        SIM_TRAP_STEPS
};

struct sim_packet {
        struct mfl_msg msg; /* NONE: bulk */
        bool to_server, duplicate;
        uint32_t at;     /* the place that it is on its way to */
        bool params;     /* else a chunk */
        bool population; /* else one of those */
        uint32_t counts[SIM_ITEMS];
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        uint64_t task, offset; /* chunk: bytes; params: floats */
        uint64_t total;        /* params: floats of the part */
        uint32_t update, n;
        uint8_t bytes[8];
        bool inside; /* an Announce with its update in it */
        uint8_t data[SIM_UPDATE_BYTES];
};

struct sim_event {
        uint64_t at, seq;
        enum sim_event_kind kind;
        uint32_t a, b, conn;
        uint64_t task;
        struct sim_packet *packet;
        struct mfl_core_event *core;   /* WORK; owned */
        struct mfl_agent_event *agent; /* DAEMON_SELF; owned */
};

struct sim_conn {
        uint32_t daemon, generation;
        bool server_open, daemon_open, greeted, dark; /* dark: packets vanish, nobody is told */
        bool uploading;                               /* chunks came of which the core has not heard */
        uint64_t latency;
        uint64_t free_at[2][SIM_HOPS];       /* when the last packet in each direction arrives, by link */
        uint32_t n_path, path[SIM_HOPS - 1]; /* relay.c: from above */
        bool link[2][SIM_HOPS];              /* down, up: it lives, if there are relays */
};

/* What a daemon may say that can't be true. */
enum sim_lie {
        SIM_LIE_NONE,
        SIM_LIE_ROOM,    /* the round's whole weight */
        SIM_LIE_WEIGHT,  /* one sample more */
        SIM_LIE_CORRECT, /* more than there are */
        SIM_LIE_LOSS,
        SIM_LIE_SAMPLES,
        SIM_LIE_SCALARS, /* more than clients of that weight can have */
        SIM_LIE_CUT,     /* other samples of the clients than there are */
        SIM_LIE_EVAL_SAMPLES,
        SIM_LIE_EVAL_CORRECT,
        SIM_LIE_EVAL_LOSS,
        SIM_LIES
};

/* Which clients an announced update has; what the server's ledger knows. */
struct sim_update {
        uint64_t task;
        uint32_t update, n, round; /* round: as its task says */
        uint64_t item[SIM_ITEMS];
        uint64_t weight;
};

/* What the server has told the members of a group. */
struct sim_group {
        uint64_t number, ranks;     /* ranks: of its Combine; 0: none was sent */
        uint64_t task[SIM_DAEMONS]; /* by rank; 0: not sent */
        struct mfl_group group;     /* as one of them was told */
        bool counted, ended;        /* ended: some member was told Alone before it counted */
        bool calm;                  /* formed when the faults were long over: nothing may end it */
};

struct sim_slot {
        bool open, adding, complete, single, busy; /* busy: there was no memory for the grant */
        uint64_t grant, task, item, weight, bytes;
        uint32_t staleness;
        uint32_t conn, update;
        enum mfl_encoding encoding;
        _Alignas(8) uint8_t data[SIM_UPDATE_BYTES];
        bool have[SIM_PARAMS]; /* per 8 bytes */
};

/* The params that each region's clients start from, and its weight since the regions met. */
struct sim_regions {
        float x[SIM_REGIONS][SIM_PARAMS];
        uint64_t weight[SIM_REGIONS];
};

struct sim_job {
        struct mfl_job spec;
        char id[MFL_JOB_ID_BYTES];
        uint32_t n_slots;
        uint64_t moved_at; /* when a round of it last began or was committed */
        /* durable */
        bool over;
        enum mfl_job_state end;
        char end_reason[MFL_REASON_BYTES];
        uint32_t committed;
        uint64_t virtual_us; /* when that round ended, in virtual time */
        float params[SIM_PARAMS];
        uint32_t n_frozen; /* SIM_FROZEN, or 0 */
        float frozen[SIM_FROZEN];
        bool misled; /* a daemon has told false samples, from which clients may have been drawn */
        bool pure;   /* every round so far had all of its first cohort */
        float version[SIM_VERSIONS]
                     [SIM_PARAMS]; /* asynchronous: what each round has made; 0: the initial params */
        union mfl_calendar_row calendar[SIM_ITEMS + 1]; /* as it was stored with `committed` */
        struct mfl_arrival arrival[SIM_ARRIVALS];       /* real time: of all versions that were applied */
        uint32_t n_arrivals;
        struct sim_regions regions;
        /* volatile */
        bool in_core, ready, has_new, checkpoint;
        union mfl_calendar_row calendar_stored[SIM_ITEMS + 1]; /* with the checkpoint under way */
        uint8_t bases[MFL_STALENESS_MAX + 1][MFL_DIGEST_BYTES];
        uint32_t opened, applied;
        float params_new[SIM_PARAMS];
        struct sim_regions regions_new;
        int64_t sum[SIM_PARAMS];
        struct mfl_fixed fixed;
        struct sim_slot slots[SIM_SLOTS];
        /* ledger of the round: clients in the sum */
        uint32_t n_in;
        uint64_t in[SIM_ITEMS], weight_in;
        /* those that daemons rejected since it began, and for which round they trained them */
        uint32_t n_rejected;
        struct {
                uint64_t client;
                uint32_t round;
        } rejected[SIM_ITEMS];
        /* of the applied round, which is not committed yet */
        uint32_t n_applied;
        uint64_t in_applied[SIM_ITEMS], weight_applied;
        float single[SIM_ITEMS][SIM_PARAMS];
};

enum sim_team_state {
        SIM_TEAM_NONE,
        SIM_TEAM_WAITS, /* for the other members */
        SIM_TEAM_MET,
        SIM_TEAM_DONE,   /* the leader has the result */
        SIM_TEAM_BROKEN, /* a member is gone */
};

enum sim_combine_state {
        SIM_COMBINE_NONE,
        SIM_COMBINE_RUNS,
        SIM_COMBINE_STOPS, /* COMBINED has yet to come */
        SIM_COMBINE_DONE,
};

struct sim_combine {
        enum sim_combine_state state;
        uint64_t serial, ranks, deadline;
        struct mfl_group group;
        uint32_t leader, n_ready; /* n_ready: parts of the sum, of 8 bytes each */
        bool open, fails;         /* open: the others' sums are mapped */
        bool hangs, sleeps;       /* to its deadline; until it is stopped */
        bool wanted[SIM_PARAMS];  /* granted, and not ready yet */
        int64_t sum[SIM_PARAMS];
};

struct sim_result {
        bool used, grouped, corrupt; /* grouped: the others can reach it */
        uint64_t published;          /* for this group; 0: for none */
        struct sim_combine combine;
        uint64_t task;
        struct mfl_task t; /* items owned */
        uint32_t n_updates;
        _Alignas(8) uint8_t data[SIM_ITEMS][SIM_UPDATE_BYTES];
        uint64_t bytes;
};

/* What a daemon has of one part of params. */
struct sim_part {
        uint64_t number; /* the agent's; 0: unused */
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        uint32_t n, have, hashed;
        bool room, private, shared; /* room: in memory of its own; private: others can't read that */
        float data[SIM_PARAMS];
};

struct sim_relay_slot {
        bool open, no_room, whole, have[SIM_PARAMS];
        uint64_t grant, task, adding; /* adding: to the sum of this group */
        uint32_t conn;
        int64_t data[SIM_PARAMS];
};

struct sim_relay_sum {
        uint64_t group;
        int64_t sum[SIM_PARAMS];
};

struct sim_relay {
        char name[8];
        uint32_t above, level; /* above: number of the relay, or 0: the server */
        uint32_t boot, crash_in;
        uint64_t stalled_to;
        struct mfl_relay_core *core; /* NULL: its process is not there */
        struct sim_relay_slot slots[SIM_RELAY_SLOTS];
        struct sim_relay_sum sums[SIM_RELAY_SUMS];
};

struct sim_daemon {
        struct mfl_daemon_info info;
        uint32_t relay; /* number of its relay; 0: the server */
        struct mfl_data_info data_sets[2];
        struct mfl_agent *agent;
        uint32_t generation, conn; /* conn: index + 1 */
        uint64_t tick_at;
        struct sim_part part[SIM_PARTS];
        uint64_t look_task; /* the task of its last look for another one's params */
        bool look_waits;    /* they were not there, and it will look again */
        /* How many of its next pieces of params go wrong so; of its next orders of memory for them. */
        uint32_t garble_params, lose_params, swap_params, refuse_params, unshared_params;
        uint32_t params_cut;        /* in the middle of its next download it is cut off (1) or killed (2) */
        struct sim_packet *swapped; /* comes after the next piece */
        float params[SIM_PARAMS];   /* what it computes on */
        struct sim_result result[SIM_RESULTS];
        const struct mfl_task *computing;
        uint64_t computing_task;
        uint64_t computing_at; /* since then */
        uint32_t computing_slow;
        enum mfl_collective_kind computing_kind; /* of its group when it was ordered; 0: none */
        uint64_t told_from; /* by the last task that was sent to it, on connection told_conn */
        uint32_t told_conn;
        bool told_calm; /* nothing went wrong then */
        uint8_t told_digest[MFL_DIGEST_BYTES];
        uint32_t asked_conn; /* the last params that it asked the server for, on this connection */
        uint8_t asked_digest[MFL_DIGEST_BYTES];
        uint32_t n_combine_failed; /* messages sent */
        uint64_t communicator;
        bool communicator_open;
        uint32_t combine_fail, combine_hang, shm_full; /* how many of its next ones go wrong so */
        enum sim_team_state team_state;                /* of the team whose task it computes */
        uint32_t accused;                              /* BROKEN: as in the agent's event */
        bool abort, retasked; /* retasked: a Task came since, which may have renamed what is computed */
        /* The last Tasks: a server that began anew may have renamed one before its computing began, and so does each new round with
         * work that stands. */
        struct {
                uint32_t conn, round;
                uint64_t task, item;
                bool stands;
        } given[8];
        uint32_t n_given;
        uint32_t slow;                  /* factor */
        uint32_t corrupt, fail, reject; /* how many of its next tasks go wrong so */
        enum sim_lie lie;               /* its next word of that kind is one; the process has lied */
        bool lied, has_lied;            /* this process; any of the daemon's */
        uint32_t told_cut[SIM_JOBS];    /* on which connection; and that its process has made the cut */
        bool made_cut[SIM_JOBS], false_cut[SIM_JOBS];
        bool permanent, draining;
        bool denied, leaves; /* it may not take part; it was asked to leave */
        uint32_t left_boot;  /* the server's, when it took its Leaving; 0: it did not */
        uint64_t left_task;  /* the newest task that the server had sent to anybody then */
        uint64_t stalled_to; /* the process stands still (SIGSTOP) */
        uint64_t mute_to;    /* it lives, and nothing of its uploads goes out */
};

struct sim {
        uint64_t seed, now, seq, serial, n_events;
        struct mfl_rng rng, params_rng;
        struct sim_event *heap;
        uint32_t n_heap, heap_capacity;
        struct sim_conn *conns;
        uint32_t n_conns, conns_capacity;
        struct sim_update *updates; /* of announces that reached the server */
        uint32_t n_updates, updates_capacity;
        struct sim_group *groups;
        uint32_t n_groups, groups_capacity;
        uint64_t
                calm_at; /* the faults are so long over that everybody who was lost is back, or known to be */
        uint64_t first_round_at; /* n_events when it began */
        uint64_t inject_at;      /* after so many events, inject_what to inject_daemons; 0: not */
        uint32_t inject_daemons; /* bits */
        enum sim_harm inject_what;
        uint64_t n_lies;        /* that were found out */
        uint64_t n_busy;        /* slots for which there was no memory */
        uint64_t n_params_read; /* from another daemon of the node */
        uint64_t lost_at;       /* when a piece of params last got lost, which stops a download for a while */
        uint64_t n_params_wrong, n_params_refused, n_evicted; /* digests; memory; versions */
        uint64_t n_frozen_sent;                               /* of floats, by the server */
        uint64_t n_returned;                                  /* clients that daemons gave back */
        uint64_t n_teams, n_teams_broken;                     /* that met; members that lost another */
        uint64_t n_teams_wide, n_teams_walled; /* of them over the network; that a firewall kept apart */
        uint64_t n_regrouped; /* rounds after the faults in which nodes were grouped, as they must */
        struct {
                enum sim_trap_step step;
                enum sim_harm what;
                bool leader; /* else a member */
        } trap;
        struct {
                bool set;
                enum sim_harm what;
        } params_trap; /* for the next daemon whose copy of params another one looks for */
        bool with_relays;
        struct mfl_rng relay_rng;
        uint32_t n_relays;
        struct sim_relay relay[SIM_RELAYS];
        uint64_t relays_back_at;                /* then what is dark now is given up */
        uint64_t n_relay_sums, n_relays_killed; /* sums that were sent up */
        struct sim_job job[SIM_JOBS];
        uint32_t n_jobs;
        struct sim_daemon daemon[SIM_DAEMONS];
        uint32_t n_daemons;
        struct mfl_core *core;
        uint32_t n_starts;       /* of the server's process */
        uint32_t boot, crash_in; /* crash_in: the server dies before so many more actions; 0: not */
        uint64_t server_tick_at, newest_task;
        uint32_t disk_fail, disk_slow;   /* of 100; factor */
        uint32_t memory_busy;            /* of 100 slots that are to be opened */
        const struct sim_packet *inside; /* the Announce that the core is at, if its update is in it */
        uint64_t n_inside;               /* that were taken */
        uint32_t duplicate;              /* of 100 messages */
        uint64_t faults_end, stalled_to; /* the server stands still */
        bool crash_ahead; /* the server dies soon, while a round is trained and the one before not committed
                           */
        bool quiet, server_restarting; /* quiet: faults are over */
        bool lost_state;               /* the server finds an empty state directory when it starts again */
        bool twins;                    /* the last daemon has the first one's name */
        bool barred;                   /* some daemon said that it can't do a job: it may end early */
        uint32_t fault_gap;
        bool node_faults; /* most faults are those of groups */
        uint32_t n_ahead; /* crashes while daemons trained from params that were never committed */
        int scenario;     /* 0: seeded faults; else a golden one */
        bool trace;
        char *lines;
        size_t n_lines, lines_capacity;
};

/* world.c */
struct sim_event *sim_at(struct sim *sim, uint64_t delay_ms, enum sim_event_kind kind);
uint32_t sim_below(struct sim *sim, uint32_t n);
bool sim_chance(struct sim *sim, uint32_t percent);
void sim_line(struct sim *sim, const char *who, const char *fmt, ...) MFL_PRINTF(3, 4);
_Noreturn void sim_fail(struct sim *sim, const char *fmt, ...) MFL_PRINTF(2, 3);
#define sim_check(sim, cond, ...) ((cond) ? (void)0 : sim_fail(sim, __VA_ARGS__))
void sim_send(struct sim *sim, uint32_t conn, struct sim_packet *packet);
void sim_hop(
        struct sim *sim, uint32_t conn, struct sim_packet *packet, uint32_t from); /* to the next place */
struct sim_packet *sim_copy(const struct sim_packet *packet);
void sim_conn_cut(struct sim *sim, uint32_t conn);
void sim_conn_dark(struct sim *sim, uint32_t conn); /* packets vanish */
void sim_conn_close(struct sim *sim, uint32_t conn, bool by_server);
uint32_t sim_connect(struct sim *sim, uint32_t daemon);
void sim_run(struct sim *sim); /* to the end of all jobs; sim_fail otherwise */
void sim_deinit(struct sim *sim);

/* model.c */
void sim_digest(const float *params, uint8_t *ret_digest);
void sim_digest_frozen(const float *frozen, uint8_t *ret_digest);
uint64_t sim_weight(const struct mfl_job *spec, uint64_t item);
uint32_t sim_samples(const struct mfl_job *spec, uint64_t item); /* of a client */
void sim_train(uint64_t item, uint32_t round, const float *p0, float *ret_p1);
void sim_apply(const struct mfl_job *spec, const struct mfl_fixed *fixed, uint32_t round, const float *p0,
        const uint64_t *items, uint32_t n, float *ret_params);
void sim_fixed(struct sim_job *job);
uint32_t sim_sites(const struct sim *sim); /* clients of a `local` job, at most */
uint32_t sim_cohort(const struct mfl_job *spec, uint32_t round, uint32_t attempt, uint64_t *ret_items);
void sim_initial(const struct mfl_job *spec, float *ret_params);
void sim_median(const float (*single)[SIM_PARAMS], uint32_t n, const float *p0, float *ret_params);
bool sim_single(const struct mfl_job *spec);
/* Adds a client's share to the sum of an update, and to its scalar with FedNova, whose clients take 1 to 3 steps. */
void sim_fold(const struct mfl_job *spec, const struct mfl_fixed *fixed, uint64_t item, uint32_t staleness,
        const float *p1, const float *p0, int64_t *sum, int64_t *scalar);

/* versions.c */
/* Asynchronous: the turns that make version `round`. Returns how many. */
uint32_t sim_turns(const struct sim_job *job, uint32_t round, uint64_t *ret_items, uint32_t *ret_bases);
/* The version that a client of a round starts from; of other jobs the one before. */
uint32_t sim_base(const struct sim_job *job, uint32_t round, uint64_t item);
void sim_versions_setup(struct sim *sim);
void sim_versions_reset(struct sim_job *job); /* to the initial params */
void sim_versions_ready(struct sim_job *job, struct mfl_core_event *event);
void sim_versions_store(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action);
void sim_versions_commit(struct sim_job *job);
/* Real time: the order of arrival of a version, which is written before it is applied. */
void sim_arrivals_record(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action);
const float *sim_versions_find(const struct sim_job *job, const uint8_t *digest); /* NULL: none */
/* What element i changes by, from the updates' mean. */
double sim_mix(
        const struct sim_job *job, const struct mfl_round_totals *totals, uint32_t round, int i, double mean);
void sim_versions_apply(
        const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n, float *ret_params);

/* regions.c */
void sim_regions_setup(struct sim *sim);
void sim_regions_reset(const struct sim_job *job, struct sim_regions *regions); /* to the job's params */
const float *sim_regions_start(const struct sim_job *job, uint64_t item);
const float *sim_regions_find(const struct sim_job *job, const uint8_t *digest); /* NULL: none */
void sim_regions_tell(struct sim_job *job, struct mfl_core_event *event);
/* What a round makes of the changes of these clients; before: the model of the round before. */
void sim_regions_make(const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n,
        const float (*single)[SIM_PARAMS], const float *before, struct sim_regions *regions,
        float *ret_params);
/* The same, with the training of these clients. */
void sim_regions_apply(const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n,
        const float *before, struct sim_regions *regions, float *ret_params);

/* server.c */
void sim_server_start(struct sim *sim);
void sim_server_crash(struct sim *sim);
void sim_server_step(struct sim *sim, const struct mfl_core_event *event);
void sim_server_uploading(struct sim *sim, uint32_t conn);
void sim_server_packet(struct sim *sim, uint32_t conn, struct sim_packet *packet);
struct sim_job *sim_job(struct sim *sim, const char *id);
void sim_server_drain(struct sim *sim, uint32_t daemon, bool on);
void sim_server_deny(struct sim *sim, uint32_t daemon, bool on);

/* node.c */
struct sim_result *sim_result(struct sim_daemon *d, uint64_t task);
struct sim_result *sim_published(struct sim_daemon *d, uint64_t group);
struct sim_daemon *sim_instance(struct sim *sim, uint64_t instance); /* NULL: that process is gone */
void sim_trap_at(struct sim *sim, enum sim_trap_step step, const struct mfl_group *group);
void sim_publish(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);
void sim_combine(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);
void sim_combine_stop(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);
void sim_combine_step(struct sim *sim, uint32_t i, uint64_t serial);
void sim_upload_sum(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);
void sim_communicator(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);

/* team.c */
/* The daemon, which computes a team's task, is there. True: with it all are. */
bool sim_team_join(struct sim *sim, uint32_t i);
/* What the daemon computes for a team is over now; else it goes on. */
bool sim_team_ready(struct sim *sim, uint32_t i);
/* A member, as `team` names it, is through; the others learn that all is done, or that it is gone. */
void sim_team_end(struct sim *sim, const struct mfl_task_team *team, bool done, uint32_t accused);
/* The daemon's team has another number: if it has not met, it never will. */
void sim_team_regroup(struct sim *sim, uint32_t i, uint64_t task);
void sim_team_sent(struct sim *sim, const struct sim_daemon *to, const struct mfl_task *t);

/* params.c */
struct sim_part *sim_part(struct sim_daemon *d, uint64_t number); /* NULL: none */
void sim_params_order(struct sim *sim, uint32_t i, const struct mfl_agent_action *action);
void sim_params_piece(struct sim *sim, uint32_t i, const struct sim_packet *packet);
void sim_params_reset(struct sim_daemon *d); /* its process is new */
void sim_params_calm(struct sim *sim);
void sim_params_fault(struct sim *sim, bool may_bar);

/* relay.c */
void sim_relays_setup(struct sim *sim);
void sim_relay_path(struct sim *sim, struct sim_conn *conn);
bool sim_relays_up(const struct sim *sim, uint32_t daemon); /* on its way to the server */
void sim_link_cut(struct sim *sim, uint32_t conn, uint32_t link);
void sim_link_dark(struct sim *sim, uint32_t conn, uint32_t link, bool up, bool down);
void sim_relay_start(struct sim *sim, uint32_t r);
void sim_relay_drop(struct sim *sim, uint32_t r);
void sim_relays_server_gone(struct sim *sim);
void sim_relay_tick(struct sim *sim, uint32_t r, uint32_t boot);
void sim_relay_added(struct sim *sim, uint32_t r, uint32_t boot, uint32_t slot, uint64_t grant);
void sim_relay_packet(struct sim *sim, uint32_t conn, const struct sim_packet *packet);
void sim_relay_hop(struct sim *sim, uint32_t conn, uint32_t place, bool below, uint64_t boot);
void sim_relay_fault(struct sim *sim);
void sim_relays_calm(struct sim *sim, uint64_t *back_at);
bool sim_relays_settled(const struct sim *sim);
void sim_relays_free(struct sim *sim);

/* ledger.c */
void sim_ledger_sent(struct sim *sim, uint32_t conn, const struct mfl_msg *msg);
void sim_ledger_announced(struct sim *sim, const struct mfl_announce *a);
void sim_ledger_count(struct sim *sim, struct sim_job *job, const struct sim_slot *slot);
struct sim_group *sim_ledger_group(struct sim *sim, uint64_t number);  /* NULL: none */
struct sim_group *sim_ledger_group_of(struct sim *sim, uint64_t task); /* the last one that it was in */
/* Both can read each other's memory, or reach each other's card. */
bool sim_reaches(const struct mfl_daemon_info *a, const struct mfl_daemon_info *b, bool nccl);
void sim_ledger_fetched(struct sim *sim, uint32_t conn, const uint8_t *digest);
void sim_ledger_dealt(struct sim *sim, const struct mfl_core_actions *actions);

/* daemon.c */
struct sim_event *sim_self(struct sim *sim, uint32_t i, uint64_t delay, const struct mfl_agent_event *event);
void sim_send_chunk(
        struct sim *sim, uint32_t i, uint64_t task, uint32_t update, uint64_t offset, const void *bytes);
void sim_harm(struct sim *sim, uint32_t i, enum sim_harm harm);
void sim_daemon_start(struct sim *sim, uint32_t i);
void sim_daemon_stop(struct sim *sim, uint32_t i);
void sim_daemon_leave(struct sim *sim, uint32_t i, uint64_t within_ms);
void sim_daemon_accused(struct sim *sim, const struct mfl_core_action *accusation);
void sim_daemon_exited(struct sim *sim, uint32_t i);
void sim_daemon_crash(struct sim *sim, uint32_t i);
void sim_daemon_step(struct sim *sim, uint32_t i, const struct mfl_agent_event *event);
void sim_daemon_packet(struct sim *sim, uint32_t i, struct sim_packet *packet);
void sim_daemon_computed(struct sim *sim, uint32_t i, uint64_t task);
void sim_daemon_progress(struct sim *sim, uint32_t i, uint64_t task);
void sim_daemon_free(struct sim *sim, uint32_t i);

/* faults.c */
void sim_setup(struct sim *sim);
void sim_fault(struct sim *sim);
void sim_end_faults(struct sim *sim);
void sim_script(struct sim *sim, uint32_t step);

#endif
