/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon as the core knows it, connected or lost, and its history with each job. */
#ifndef MFL_SERVER_STATE_CORE_DAEMON_H
#define MFL_SERVER_STATE_CORE_DAEMON_H

#include "proto/message.h"

struct core_cut;
struct core_job;
struct core_node;
struct core_task;
struct mfl_core;

/* The number of JobSpecs that a daemon certainly remembers per connection; the agent keeps twice as many. */
#define CORE_SPECS_MAX 16

/* How long an item takes; see server/round/round_speed.h. */
struct core_speed {
        double cost;  /* milliseconds per item; 0: not measured yet */
        uint32_t age; /* phases without an item since the last phase with one */
};

/* The history of one daemon with one job. */
struct core_relation {
        uint32_t job;   /* serial */
        uint32_t fails; /* in a row */
        bool barred;    /* it reported that it can't do this job */
        uint32_t
                team_least; /* it reported that it can't do it in a team of fewer daemons; 0: it may, alone */
        bool excused;       /* its site's word has excused an attempt; it does so once */
        bool asks;          /* its site's administrator has not decided about this job */
        uint64_t rest_stamp; /* it gets no work in the phase with this stamp */
        uint32_t wide_fails; /* teams over several nodes in a row that have lost it */
        uint32_t wide_round; /* before this round it joins no such team */
        /* In such teams since it was last accused: others have connected to it; it has connected to others. */
        bool wide_reached, wide_reaches;
        uint64_t
                wide_over; /* key of the daemon that it could not connect to, when it was blamed for that; 0: it was not */
        struct core_speed train, eval;
        /* The newest result from an earlier boot that it announced: round, number of clients, task. */
        uint32_t held_round, held_items;
        uint64_t held_task;
        struct core_cut *cut; /* how it cuts the population; NULL: it has not told */
        uint32_t n_told;      /* counts that it has told, from the first client on */
        bool cut_told;        /* people were told that its cut differs from the valid one */
        bool unjudged;        /* an update of it was taken back unjudged, because it had not told its cut */
        bool unfit_told;      /* people were told that its data differ, or that it is outdated */
        bool told;            /* params: it was told to use those with this digest */
        uint8_t told_digest[MFL_DIGEST_BYTES];
};

struct core_daemon {
        struct mfl_daemon_info info;
        uint64_t key;    /* first 8 bytes of SHA-256 of the name */
        uint64_t client; /* its item in `local` jobs: its site's (core_site.h) */
        bool in_site;
        struct core_daemon *site_next;
        uint32_t position; /* in core->daemons */
        uint32_t conn;     /* 0: lost */
        uint64_t heard_ms, sent_ms, lost_ms, connected_ms;
        uint64_t came;        /* core->changes when its connection began */
        uint64_t upload_ms;   /* when bytes of an upload were last known to come */
        bool draining;        /* an operator wants that it gets no work */
        bool leaving;         /* this process said that it will end */
        struct core_job *job; /* leased to */
        uint32_t lease;       /* position in job->leased */
        struct core_task *tasks;
        uint64_t lease_turn; /* core->lease_turn of its lease */
        uint64_t reserved;   /* the scheduler's pass that keeps it for a job with an older claim */
        uint64_t spare_ms;   /* reserved: that job can't begin earlier than in this time */
        double upload_rate;  /* bytes per millisecond of its last uploads; 0: not measured */
        uint64_t counted_stamp;
        uint32_t specs[CORE_SPECS_MAX], n_specs; /* ring of job serials */
        uint32_t n_relations;
        struct core_relation *relations;
        uint32_t items_done, items_total;
        double samples_per_second, clients_per_second;
        uint64_t free_ms; /* when its last task ended */
        struct core_node *node;
        struct core_daemon *node_next;
        int team_reach; /* while teams are formed: enum reach of round_team.c */
        uint64_t deal;  /* the last deal in which it got tasks */
        uint32_t n_dealt;
        /* The last process that was refused because it came under the same name. */
        uint64_t rival_instance, rival_ms;
        char rival_node[MFL_NAME_BYTES];
        bool resumes; /* it works on something from an earlier boot, so its next task may take no time */
        char note[MFL_REASON_BYTES];
};

/* The key of a name; also used for the names of nodes and data sets. */
uint64_t mfl_core_name_key(const char *name);
int mfl_core_info_copy(struct mfl_daemon_info *to, const struct mfl_daemon_info *from); /* -ENOMEM */

/* The daemon of that name; NULL: there is none. */
struct core_daemon *mfl_core_daemon_find(const struct mfl_core *core, const char *name);
/* A new daemon without a connection. NULL: memory is out. */
struct core_daemon *mfl_core_daemon_add(struct mfl_core *core, uint64_t key);
/* Takes it out of core->daemons and frees it. It must have no tasks, no lease and no node. */
void mfl_core_daemon_remove(struct mfl_core *core, struct core_daemon *daemon);
void mfl_core_daemon_free(struct core_daemon *daemon);

/* NULL: they have no history. */
struct core_relation *mfl_core_relation_find(const struct core_daemon *daemon, const struct core_job *job);
/* Makes one if necessary. NULL: memory is out. */
struct core_relation *mfl_core_relation(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job);
/* May get work: it is not drained and not leaving. */
bool mfl_core_daemon_takes_work(const struct core_daemon *daemon);
/* It reported that it can't do this job. */
bool mfl_core_daemon_barred(const struct core_daemon *daemon, const struct core_job *job);
/* The fewest daemons that a team with this one must have; 1: it may work alone. */
uint32_t mfl_core_daemon_team_least(const struct core_daemon *daemon, const struct core_job *job);
/* The most daemons that a team with this one can have; 1: it gets into none. */
uint32_t mfl_core_daemon_team_most(const struct core_daemon *daemon, const struct core_job *job);
/* Its site's administrator has not decided about this job. */
bool mfl_core_daemon_asks(const struct core_daemon *daemon, const struct core_job *job);
/* It has failed too often in this phase. */
bool mfl_core_daemon_rests(const struct core_daemon *daemon, const struct core_job *job);

#endif
