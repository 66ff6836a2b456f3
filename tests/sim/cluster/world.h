/* SPDX-License-Identifier: Apache-2.0 */
/* The world of the simulated cluster: its servers, etcd, and what comes next. */
#ifndef MFL_TESTS_SIM_CLUSTER_WORLD_H
#define MFL_TESTS_SIM_CLUSTER_WORLD_H

#include "proto/servers.h"
#include "server/cluster/commit_core.h"
#include "server/cluster/lead_core.h"
#include "tests/sim/cluster/copies.h"

#define DAEMONS 2
#define ENTRIES 4096
#define KEEP 4 /* entries whose blobs are needed */
#define TIMEOUT_MS 1500
#define LEASE_MS 3000
#define QUIET_MS 60000
#define EVENTS 512
#define LEASES 4096

struct entry {
        uint64_t id, digest, term;
};

/* One of the two threads of a server: at most one request is out. */
enum line {
        LINE_LEAD,
        LINE_COMMIT,
};

enum kind {
        ARRIVES, /* a request at etcd */
        ANSWERS, /* the answer at the server, or the time limit */
        TICKS,   /* the lead core wants to be woken */
        WORKS,   /* a leader begins a commit */
        FAULT,
};

struct event {
        uint64_t at, number;
        enum kind kind;
        uint32_t server;
        enum line line;
        uint64_t boot, request; /* an answer of before is for nobody */
        /* A request, as it was sent; or its answer. answered false: the time limit. */
        bool answered;
        enum mfl_lead_action_kind lead_asks;
        uint64_t lease;
        struct mfl_lead_event lead_answer;
        enum mfl_commit_action commit_asks;
        struct mfl_commit commit;
        uint64_t digest;
        struct mfl_commit_event commit_answer;
};

struct server {
        bool up, serves, closing, fenced, cut;
        uint64_t boot, stopped_until;
        struct mfl_lead lead;
        enum mfl_lead_action_kind doing; /* the request that is out, or NONE */
        struct mfl_lead_event answer;    /* what the core gets if there is none */
        bool committing;
        struct mfl_commit commit;
        enum mfl_commit_action commit_doing;
        struct mfl_commit_event commit_answer;
        uint64_t request[2], digest;
        uint32_t n;       /* entries that its disk has */
        uint32_t n_files; /* entries whose blobs were looked at since it started, if they are needed */
        uint64_t disk[ENTRIES];
};

struct world {
        struct mfl_rng rng;
        uint64_t now, number, faults_end;
        bool stalls;
        struct event queue[EVENTS];
        uint32_t n_queue;
        uint32_t n;
        struct server server[SIM_SERVERS];
        struct sim_copies copies;
        /* etcd */
        uint64_t revision, away_until, leader_created, leader_lease, leases[LEASES], expires[LEASES];
        uint32_t leader_server;
        struct entry log[ENTRIES];
        uint32_t n_log;
        uint64_t acked[ENTRIES];
        struct mfl_servers daemon[DAEMONS];
        uint64_t taken[DAEMONS];
        const char *broken;
};

void sim_cluster_require(struct world *w, bool holds, const char *rule);

/* etcd.c. Carry out a request, which becomes its answer. */
void sim_etcd_expire(struct world *w);
void sim_etcd_lead(struct world *w, struct event *e);
void sim_etcd_commit(struct world *w, struct event *e);

#endif
