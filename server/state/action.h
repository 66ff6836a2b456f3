/* SPDX-License-Identifier: Apache-2.0 */
/* What the core tells the shell to do. Actions are plain data; the shell carries them out in order. */
#ifndef MFL_SERVER_STATE_ACTION_H
#define MFL_SERVER_STATE_ACTION_H

#include "common/cohort/calendar.h"
#include "common/job/job_record.h"
#include "common/method/method.h"
#include "proto/message.h"

struct mfl_leader;

enum mfl_core_action_kind {
        MFL_ACT_SEND, /* msg to conn */
        /* say Bye to conn (reason, retry) and close it; DAEMON_DOWN may be omitted */
        MFL_ACT_CLOSE,
        /* build the graph for `data`, reserve memory (params, sums, slots), load or make the params */
        MFL_ACT_JOB_PREPARE,
        /* store `prepare` (data, data_from) instead of what JOB_PREPARE told */
        MFL_ACT_JOB_DATA,
        MFL_ACT_JOB_STATE, /* store state and reason, and tell watchers */
        /* free the job's memory and spec: the job is DONE, FAILED or STOPPED, the worker has answered all
         * of its orders, and the core no longer knows the job */
        MFL_ACT_JOB_RELEASE,
        MFL_ACT_ROUND_OPEN, /* zero the sums; for single updates: empty the spill file */
        /* the slot is for (task, update) of conn, with `bytes` in `encoding`. A new number `grant` opens
         * the slot and clears it; if there is no memory, report SLOT_BUSY, and leave it closed. Then send
         * Grant for the missing bytes, if there are any */
        MFL_ACT_GRANT,
        /* worker: check the slot and add it to the sums with `weight`; answer ADDED */
        MFL_ACT_SLOT_ADD,
        /* drop all further chunks for the slot; nothing to do if it is closed */
        MFL_ACT_SLOT_FREE,
        /* worker: params(round) from params(round - 1), the sums and `weight`; answer APPLIED. From then
         * on ParamsGet gives the new params as well as the old ones */
        MFL_ACT_APPLY,
        /* worker: write down, durably, that the secure sum of `round` is opened from here on; answer SECURE_NOTED */
        MFL_ACT_SECURE_NOTE,
        /* worker: take the masks off the sums, and check them; answer UNMASKED */
        MFL_ACT_UNMASK,
        /* worker: write and sync the file of `round`; answer CHECKPOINTED. The next round may be opened
         * and summed meanwhile; it is applied after COMMITTED */
        MFL_ACT_CHECKPOINT,
        MFL_ACT_COMMIT, /* worker: write the database row of `record`; answer COMMITTED */
        /* traffic that `cost.node` would have caused this round without groups and shared params: bytes up
         * of a counted update, bytes down of params that are new to a daemon */
        MFL_ACT_COST,
        /* for the log and the audit: what `accused` said on conn is impossible (reason). CLOSE follows */
        MFL_ACT_ACCUSE,
        MFL_ACT_TRACE, /* one English line in `reason`; job may be empty */
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
                        char data_from[MFL_NAME_BYTES]; /* the daemon that has this data set; "": not known */
                        uint32_t population;            /* JOB_PREPARE: clients; 0 for `local` */
                } prepare;
                struct {
                        enum mfl_job_state state;
                        uint32_t
                                stop_after; /* to be stored: the job ends after that round; 0: the last one */
                } job_state;
                struct {
                        uint32_t slot;
                        uint64_t grant; /* never 0, and never repeated */
                        uint64_t task;
                        uint32_t update;
                        uint64_t bytes, weight;
                        uint64_t item;      /* single updates: the client, which orders the spill file */
                        uint64_t steps;     /* of the client, where the method counts them */
                        uint32_t staleness; /* of its update */
                        uint32_t bucket;    /* of a secure sum: which one it is added to */
                        struct mfl_site_state state; /* client_state daemon */
                        enum mfl_encoding encoding;
                } slot;
                struct {
                        struct mfl_round_totals totals; /* APPLY */
                        /* Real time: what counts, which is recorded before it is applied; it stays as it is until APPLIED. */
                        const struct mfl_arrival *arrivals;
                        uint32_t n_arrivals;
                };
                struct {
                        /* SECURE_NOTE, UNMASK: nobody else touches it until the answer */
                        const struct mfl_leader *leader;
                        uint32_t bucket;
                        const uint64_t *
                                clients; /* UNMASK, of a bucket: whose updates are in it, ascending; until the answer */
                        uint32_t n_clients;
                } secure;
                struct {
                        const int64_t *
                                v; /* CHECKPOINT: what is remembered of clients; it stays as it is until CHECKPOINTED */
                        uint64_t n; /* rows of 4 */
                } memory;
                struct mfl_team_totals teams; /* JOB_RELEASE: the last ones */
                struct {
                        struct mfl_round_record record; /* COMMIT */
                        const struct mfl_round_scores
                                *scores; /* the core's, until its next step; NULL: none */
                };
                struct {
                        char node[MFL_NODE_BYTES], daemon[MFL_NAME_BYTES];
                        uint64_t up, down;
                } cost;
                char accused[MFL_NAME_BYTES]; /* ACCUSE */
        };
        bool retry;
        char reason[MFL_REASON_BYTES]; /* also the text of TRACE */
};

struct mfl_core_actions {
        uint32_t n, capacity;
        struct mfl_core_action *v;
};

#endif
