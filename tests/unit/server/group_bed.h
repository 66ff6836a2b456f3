/* SPDX-License-Identifier: Apache-2.0 */
/* The server core with daemons of one or more nodes, driven by hand: what it orders is kept as one short line
 * each, in order, and the worker answers when the test says so. Traces, Welcome, JobSpec and Ping are left
 * out. Numbers of tasks and groups are without the boot's half. */
#ifndef MFL_TESTS_UNIT_SERVER_GROUP_BED_H
#define MFL_TESTS_UNIT_SERVER_GROUP_BED_H

#include "tests/lib/test.h"

#include "server/core/core.h"

#define BED_DAEMONS 80
#define BED_TASKS 256

struct bed_task {
        uint64_t task;
        uint32_t daemon, round, n_items;
        uint64_t items[16];
        enum mfl_task_kind kind;
        uint64_t params_from;
        struct mfl_group group;
};

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        struct mfl_daemon_info info[BED_DAEMONS];
        uint32_t conn[BED_DAEMONS], n_conns;
        uint64_t now;
        uint32_t n_slots;
        uint64_t n_params;
        struct bed_task task[BED_TASKS];
        uint32_t n_tasks;
        uint32_t granted; /* bit: slot */
        uint64_t grant[32];
        bool costs; /* are in the log */
        int r;
        char log[8192];
};

/* A job of one round (more: set spec.rounds before) with so many clients; weights are numbers of clients. */
void bed_start(struct bed *bed, uint32_t clients);
void bed_end(struct bed *bed);
/* Adds the job; after the daemons, so that all of them share its first round. */
void bed_add_job(struct bed *bed);
/* Names d00, d01, ..; on node "host", reachable, user 1000, spaces 7 and 8; instance i + 1. */
struct mfl_daemon_info *bed_info(struct bed *bed, uint32_t i);
/* The same with a GPU of its own. */
struct mfl_daemon_info *bed_gpu(struct bed *bed, uint32_t i);
void bed_up(struct bed *bed, uint32_t i);
void bed_down(struct bed *bed, uint32_t i);
void bed_wait(struct bed *bed, uint64_t ms);
/* n daemons as bed_info says, and the job; the first tasks are out, their lines are gone. */
void bed_run(struct bed *bed, uint32_t n);

struct bed_task *bed_task(struct bed *bed, uint32_t i); /* the newest of daemon i */
void bed_send(struct bed *bed, uint32_t i, const struct mfl_msg *msg);
/* The whole newest task of daemon i; grouped: with its group's number. */
void bed_announce(struct bed *bed, uint32_t i, bool grouped);
void bed_announce_as(struct bed *bed, uint32_t i, const struct mfl_announce *announce);
struct mfl_announce bed_announcement(struct bed *bed, uint32_t i, bool grouped);
void bed_combine_failed(struct bed *bed, uint32_t i, uint64_t group);
void bed_chunk(struct bed *bed, uint32_t i); /* some bytes of an upload come from daemon i */
void bed_complete(struct bed *bed, uint32_t slot);
void bed_busy(struct bed *bed, uint32_t slot); /* there is no memory for it */
void bed_added(struct bed *bed, uint32_t slot, bool ok);
void bed_job_event(struct bed *bed, enum mfl_core_event_kind kind);
struct mfl_core_daemon_view bed_view(struct bed *bed, const char *name);

void bed_expect_alone(
        struct bed *bed, const char *name, enum mfl_collective_kind collective, const char *why);

/* The lines since the last time are exactly these. */
#define bed_expect(bed, text) bed_expect_at(bed, text, __FILE__, __LINE__)
void bed_expect_at(struct bed *bed, const char *text, const char *file, int line);

#endif
