/* SPDX-License-Identifier: Apache-2.0 */
/* What a large population costs the server's loop: the longest step of the core, and the memory.
 *
 *     bench_cohort POPULATION COHORT DAEMONS ROUNDS
 *
 * One job, daemons that answer at once with an update for each task; no params, no network, no disk. Prints
 * one line: the longest step of the core in milliseconds and the event that it was for, with the packing of
 * the messages that it sends; and by how many MiB the process grew.
 */
#include "proto/wire.h"
#include "server/core/core.h"

#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        uint32_t n_committed;
        double longest_ms;
        enum mfl_core_event_kind longest_of;
        struct mfl_task *tasks;
        uint32_t *conns;
        uint32_t n_tasks, capacity;
};

static double now_ms(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static double peak_mib(void)
{
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        return (double)usage.ru_maxrss / 1024;
}

static void keep_task(struct bed *bed, uint32_t conn, const struct mfl_task *task)
{
        if (bed->n_tasks == bed->capacity) {
                bed->capacity = bed->capacity ? bed->capacity * 2 : 64;
                bed->tasks = realloc(bed->tasks, bed->capacity * sizeof *bed->tasks);
                bed->conns = realloc(bed->conns, bed->capacity * sizeof *bed->conns);
                mfl_assert(bed->tasks && bed->conns);
        }
        bed->tasks[bed->n_tasks] = *task;
        bed->conns[bed->n_tasks++] = conn;
}

/* As a shell would: what is sent is packed within the step. */
static void send_msg(struct bed *bed, const struct mfl_core_action *action)
{
        uint8_t *bytes;
        size_t n;
        if (action->msg.kind == MFL_MSG_TASK)
                keep_task(bed, action->conn, &action->msg.task);
        if (action->msg.kind == MFL_MSG_WELCOME) /* lacks what the shell knows */
                return;
        mfl_assert(mfl_wire_pack_msg(
                           &action->msg, &(struct mfl_wire_extra){.job_text = "job"}, &bytes, &n, NULL) == 0);
        free(bytes);
}

static void feed(struct bed *bed, const struct mfl_core_event *event);

static void answer(struct bed *bed, enum mfl_core_event_kind kind, const struct mfl_core_action *action)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = "j-000001"};
        if (kind == MFL_EV_JOB_READY)
                event.job_ready.n_params = event.job_ready.n_slots = 4;
        if (kind == MFL_EV_ADDED || kind == MFL_EV_UPLOAD_COMPLETE) {
                event.upload.slot = action->slot.slot;
                event.upload.grant = action->slot.grant;
        }
        feed(bed, &event);
}

static void carry_out(struct bed *bed, const struct mfl_core_action *action)
{
        static const enum mfl_core_event_kind answers[] = {[MFL_ACT_JOB_PREPARE] = MFL_EV_JOB_READY,
                [MFL_ACT_GRANT] = MFL_EV_UPLOAD_COMPLETE,
                [MFL_ACT_SLOT_ADD] = MFL_EV_ADDED,
                [MFL_ACT_APPLY] = MFL_EV_APPLIED,
                [MFL_ACT_CHECKPOINT] = MFL_EV_CHECKPOINTED,
                [MFL_ACT_COMMIT] = MFL_EV_COMMITTED};
        bed->n_committed += action->kind == MFL_ACT_COMMIT;
        if (action->kind < MFL_ARRAY_SIZE(answers) && answers[action->kind])
                answer(bed, answers[action->kind], action);
}

static void feed(struct bed *bed, const struct mfl_core_event *event)
{
        struct mfl_core_event now = *event;
        struct mfl_core_actions actions = {0};
        now.now_ms = bed->now;
        double from = now_ms();
        mfl_assert(mfl_core_step(bed->core, &now, &actions) == 0);
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == MFL_ACT_SEND)
                        send_msg(bed, &actions.v[i]);
        double ms = now_ms() - from;
        if (ms > bed->longest_ms) {
                bed->longest_ms = ms;
                bed->longest_of = event->kind;
        }
        for (uint32_t i = 0; i < actions.n; i++)
                carry_out(bed, &actions.v[i]);
        mfl_core_actions_deinit(&actions);
}

static void add_daemon(struct bed *bed, uint32_t i)
{
        struct mfl_data_info data = {
                .name = "d", .classes = 10, .train_samples = 1u << 30, .test_samples = 100};
        struct mfl_daemon_info info = {
                .instance = i + 1, .workers = 1, .protocol = 3, .n_data_sets = 1, .data_sets = &data};
        snprintf(info.name, sizeof info.name, "d%05u", i);
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = i + 1, .daemon = &info});
}

static void announce_all(struct bed *bed)
{
        while (bed->n_tasks) {
                uint32_t conn = bed->conns[--bed->n_tasks];
                const struct mfl_task *t = &bed->tasks[bed->n_tasks];
                struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                        .announce = {.task = t->task,
                                .round = t->round,
                                .item_count = t->n_items,
                                .weight = t->n_items,
                                .bytes = t->n_params * 8,
                                .encoding = MFL_ENCODING_I64,
                                .job = "j-000001"}};
                feed(bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
        }
}

int main(int argc, char **argv)
{
        if (argc != 5) {
                fprintf(stderr, "usage: bench_cohort POPULATION COHORT DAEMONS ROUNDS\n");
                return 2;
        }
        struct bed bed = {.now = 1000};
        uint32_t n_daemons = (uint32_t)atol(argv[3]);
        struct mfl_core_options options = {
                .boot = 1, .heartbeat_ms = 1u << 30, .dead_ms = 1u << 31, .reconnect_grace_ms = 10000};
        strcpy(bed.spec.data.name, "d");
        bed.spec.data.partition = MFL_PARTITION_IID;
        bed.spec.data.clients = (uint32_t)atol(argv[1]);
        bed.spec.selection.clients = (uint32_t)atol(argv[2]);
        bed.spec.rounds = (uint32_t)atol(argv[4]);
        bed.spec.aggregation.delta_max = 16;
        bed.spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed.spec.limits.quorum = 1;
        bed.spec.limits.deadline_ms = 1u << 30;
        bed.spec.selection.daemons_min = n_daemons;
        mfl_assert(mfl_core_new(&options, &bed.core, NULL) == 0);
        double before = peak_mib();
        feed(&bed, &(struct mfl_core_event){
                           .kind = MFL_EV_JOB_ADD, .job = "j-000001", .job_add = {&bed.spec, 0}});
        for (uint32_t i = 0; i < n_daemons; i++)
                add_daemon(&bed, i);
        while (bed.n_committed < bed.spec.rounds) {
                bed.now += 2000;
                feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
                announce_all(&bed);
        }
        printf("population %u, cohort %s, %u daemons: longest step %.1f ms (event %d), %.0f MiB more\n",
                bed.spec.data.clients, argv[2], n_daemons, bed.longest_ms, (int)bed.longest_of,
                peak_mib() - before);
        mfl_core_free(bed.core);
        free(bed.tasks);
        free(bed.conns);
        return 0;
}
