/* SPDX-License-Identifier: Apache-2.0 */
/* The server core alone: a large job's cost per event, memory that runs out at every allocation, and peers
 * that talk nonsense. */
#include "tests/lib/test.h"

#include "server/core/core.h"

#include <stdio.h>

struct bed {
        struct mfl_core *core;
        struct mfl_core_actions actions;
        struct mfl_job spec;
        uint64_t now, n_events;
        uint32_t n_commits, n_closed, n_refused, n_combines;
        uint32_t per_node; /* daemons; 0: none reaches another */
        bool hold_disk;    /* checkpoints and commits are answered by the test */
        bool full;         /* what a job wants at its start does not fit on the disk */
        uint32_t n_applied, n_checkpoints, n_released, n_prepares, last_round;
        char reason[MFL_REASON_BYTES];
        struct mfl_task *tasks; /* sent, to be announced; items are not kept */
        uint32_t *conns;
        uint32_t n_tasks, capacity;
        int r;
};

static void feed(struct bed *bed, const struct mfl_core_event *event);

static void job_event(struct bed *bed, enum mfl_core_event_kind kind, const struct mfl_core_action *answers)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = "j-000001"};
        if (kind == MFL_EV_JOB_READY)
                event.job_ready.n_params = event.job_ready.n_slots = 4;
        if (answers) {
                event.upload.slot = answers->slot.slot;
                event.upload.grant = answers->slot.grant;
        }
        feed(bed, &event);
}

static void keep_task(struct bed *bed, uint32_t conn, const struct mfl_task *task)
{
        if (bed->n_tasks == bed->capacity) {
                bed->capacity = bed->capacity ? bed->capacity * 2 : 64;
                bed->tasks = realloc(bed->tasks, bed->capacity * sizeof *bed->tasks);
                bed->conns = realloc(bed->conns, bed->capacity * sizeof *bed->conns);
        }
        bed->tasks[bed->n_tasks] = *task;
        bed->conns[bed->n_tasks++] = conn;
}

static void answer(struct bed *bed, const struct mfl_core_action *action)
{
        switch (action->kind) {
        case MFL_ACT_SEND:
                if (action->msg.kind == MFL_MSG_TASK)
                        keep_task(bed, action->conn, &action->msg.task);
                bed->n_combines += action->msg.kind == MFL_MSG_COMBINE;
                bed->n_refused += action->msg.kind == MFL_MSG_REFUSED;
                break;
        case MFL_ACT_CLOSE:
                bed->n_closed++;
                break;
        case MFL_ACT_JOB_PREPARE:
                bed->n_prepares++;
                if (bed->full)
                        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_JOB_PREPARE_FAILED,
                                          .later = true,
                                          .job = "j-000001",
                                          .reason = "no space left"});
                else
                        job_event(bed, MFL_EV_JOB_READY, NULL);
                break;
        case MFL_ACT_GRANT:
                job_event(bed, MFL_EV_UPLOAD_COMPLETE, action);
                break;
        case MFL_ACT_SLOT_ADD:
                job_event(bed, MFL_EV_ADDED, action);
                break;
        case MFL_ACT_ROUND_OPEN:
                bed->last_round = action->round;
                break;
        case MFL_ACT_JOB_STATE:
                strcpy(bed->reason, action->reason);
                break;
        case MFL_ACT_JOB_RELEASE:
                bed->n_released++;
                break;
        case MFL_ACT_APPLY:
                bed->n_applied++;
                job_event(bed, MFL_EV_APPLIED, NULL);
                break;
        case MFL_ACT_CHECKPOINT:
                bed->n_checkpoints++;
                assert_int_equal(action->round, bed->n_commits + 1);
                if (!bed->hold_disk)
                        job_event(bed, MFL_EV_CHECKPOINTED, NULL);
                break;
        case MFL_ACT_COMMIT:
                bed->n_commits++;
                assert_int_equal(action->record.round, bed->n_commits);
                if (!bed->hold_disk)
                        job_event(bed, MFL_EV_COMMITTED, NULL);
                break;
        default:
                break;
        }
}

static void feed(struct bed *bed, const struct mfl_core_event *event)
{
        struct mfl_core_event now = *event;
        struct mfl_core_actions mine = {0};
        now.now_ms = bed->now;
        if (bed->r)
                return;
        bed->n_events++;
        bed->r = mfl_core_step(bed->core, &now, &mine);
        for (uint32_t i = 0; i < mine.n && !bed->r; i++)
                answer(bed, &mine.v[i]);
        mfl_core_actions_deinit(&mine);
}

static int start(struct bed *bed, uint32_t n_clients)
{
        struct mfl_core_options options = {
                .boot = 1, .heartbeat_ms = 5000, .dead_ms = 15000, .reconnect_grace_ms = 10000};
        *bed = (struct bed){0};
        strcpy(bed->spec.data.name, "d");
        bed->spec.rounds = 2;
        bed->spec.data.partition = MFL_PARTITION_IID;
        bed->spec.data.clients = n_clients;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.limits.retries = 3;
        bed->spec.selection.daemons_min = 1;
        bed->r = mfl_core_new(&options, &bed->core, NULL);
        return bed->r;
}

static void end(struct bed *bed)
{
        mfl_core_free(bed->core);
        free(bed->tasks);
        free(bed->conns);
}

static void add_job(struct bed *bed)
{
        feed(bed, &(struct mfl_core_event){
                          .kind = MFL_EV_JOB_ADD, .job = "j-000001", .job_add = {&bed->spec, 0}});
}

static void add_daemon(struct bed *bed, uint32_t i)
{
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        struct mfl_daemon_info info = {.instance = i + 1, .workers = 1, .n_data_sets = 1, .data_sets = &data};
        snprintf(info.name, sizeof info.name, "d%05u", i);
        if (bed->per_node) {
                strcpy(info.node, "host");
                info.has_reach = true;
                info.reach.memory_space = i / bed->per_node + 1; /* containers of one host */
                info.reach.nccl = 22809;
                snprintf(info.device_uuid, sizeof info.device_uuid, "GPU-%u", i);
        }
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = i + 1, .daemon = &info});
}

static void pass_id(struct bed *bed, uint32_t conn, uint64_t communicator)
{
        struct mfl_msg msg = {.kind = MFL_MSG_COMMUNICATOR_ID,
                .communicator = {.communicator = communicator, .made = true}};
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
}

static void announce_all(struct bed *bed)
{
        while (bed->n_tasks && !bed->r) {
                uint32_t conn = bed->conns[--bed->n_tasks];
                const struct mfl_task *t = &bed->tasks[bed->n_tasks];
                struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
                msg.announce = (struct mfl_announce){.task = t->task,
                        .round = t->round,
                        .item_count = t->n_items,
                        .weight = t->n_items,
                        .bytes = t->n_params * 8,
                        .encoding = MFL_ENCODING_I64,
                        .group = t->group.group,
                        .job = "j-000001"};
                if (t->group.communicator && t->group.rank == 0)
                        pass_id(bed, conn, t->group.communicator);
                feed(bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
        }
}

static void run_job(struct bed *bed, uint32_t n_daemons)
{
        add_job(bed);
        for (uint32_t i = 0; i < n_daemons; i++)
                add_daemon(bed, i);
        bed->now += 2000;
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        announce_all(bed);
}

static void disk_fails(struct bed *bed, enum mfl_core_event_kind kind)
{
        feed(bed, &(struct mfl_core_event){.kind = kind, .job = "j-000001", .reason = "no space left"});
}

static struct mfl_core_job_view view_of(const struct bed *bed)
{
        struct mfl_core_job_view view;
        assert_int_equal(mfl_core_job_view(bed->core, "j-000001", &view), 0);
        return view;
}

/* A job of three rounds with the first one applied and its checkpoint ordered. */
static void start_overlap(struct bed *bed)
{
        assert_int_equal(start(bed, 4), 0);
        bed->spec.rounds = 3;
        bed->hold_disk = true;
        add_job(bed);
        add_daemon(bed, 0);
        bed->now = 2000;
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed->n_tasks, 1);
        announce_all(bed); /* of round 1, and of round 2, which follows at once */
        assert_int_equal(bed->n_checkpoints, 1);
}

/* Round 2 is trained while round 1 is stored, and waits for it; a disk that fails is waited for. */
static void test_rounds_overlap(void **state)
{
        (void)state;
        struct bed bed;
        start_overlap(&bed);
        assert_int_equal(bed.last_round, 2);
        assert_int_equal(bed.n_applied, 1);
        struct mfl_core_job_view view = view_of(&bed);
        assert_string_equal(view.phase, "commit");
        assert_true(view.in_round == 2 && view.committed == 0);
        disk_fails(&bed, MFL_EV_CHECKPOINTED);
        assert_string_equal(bed.reason, "round 1: checkpoint failed, retried every 5 s: no space left");
        assert_int_equal(bed.n_checkpoints, 1);
        bed.now += 5000;
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.n_checkpoints, 2);
        job_event(&bed, MFL_EV_CHECKPOINTED, NULL);
        assert_int_equal(bed.n_commits, 1);
        bed.n_commits = 0; /* it comes again */
        disk_fails(&bed, MFL_EV_COMMITTED);
        assert_string_equal(bed.reason, "round 1: commit failed, retried every 5 s: no space left");
        bed.now += 5000;
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.n_commits, 1);
        assert_int_equal(bed.n_applied, 1);
        job_event(&bed, MFL_EV_COMMITTED, NULL);
        assert_string_equal(bed.reason, "");
        assert_int_equal(view_of(&bed).committed, 1);
        assert_int_equal(bed.n_applied, 2); /* and so on */
        assert_int_equal(bed.n_checkpoints, 3);
        assert_int_equal(bed.last_round, 3);
        bed.hold_disk = false;
        job_event(&bed, MFL_EV_CHECKPOINTED, NULL);
        announce_all(&bed);
        assert_int_equal(bed.n_commits, 3);
        assert_int_equal(bed.n_released, 1);
        assert_int_equal(bed.n_refused + bed.n_closed, 0);
        end(&bed);
}

/* The disk's reason stays while the next round begins; a stop waits for what the worker does. */
static void tick_at(struct bed *bed, uint64_t now)
{
        bed->now = now;
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
}

/* A disk that has no room for what a job wants at its start: the job waits, says why, and starts later. */
static void test_full_at_the_start(void **state)
{
        struct bed bed;
        (void)state;
        assert_int_equal(start(&bed, 4), 0);
        bed.full = true;
        add_job(&bed);
        add_daemon(&bed, 0);
        uint64_t begin = bed.now;
        assert_int_equal(bed.n_prepares, 1);
        assert_int_equal(view_of(&bed).state, MFL_JOB_WAITING);
        assert_non_null(strstr(bed.reason, "no space left; retried"));
        tick_at(&bed, begin + 4900);
        assert_int_equal(bed.n_prepares, 1);
        tick_at(&bed, begin + 5100);
        assert_int_equal(bed.n_prepares, 2);
        bed.full = false;
        tick_at(&bed, begin + 10500);
        assert_int_equal(bed.n_prepares, 3);
        tick_at(&bed, begin + 13000);
        assert_int_equal(view_of(&bed).state, MFL_JOB_RUNNING);
        announce_all(&bed);
        assert_true(bed.n_commits > 0);
        mfl_core_check(bed.core);
        end(&bed);
}

/* A daemon that can't do the job, and another that is lost and may come back: the job waits for that one, and
 * fails when it is given up. */
static void test_the_last_hope_is_lost(void **state)
{
        struct bed bed;
        (void)state;
        assert_int_equal(start(&bed, 4), 0);
        add_daemon(&bed, 0);
        add_daemon(&bed, 1);
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 2});
        add_job(&bed);
        tick_at(&bed, bed.now + 2000);
        assert_int_equal(bed.n_tasks, 1);
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = bed.tasks[0].task, .permanent = true, .reason = "too few samples"}};
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = bed.conns[0], .msg = &msg});
        assert_int_equal(view_of(&bed).state, MFL_JOB_WAITING);
        for (uint32_t i = 0; i < 12; i++) { /* d00000 is heard of all the time */
                struct mfl_msg pong = {.kind = MFL_MSG_PONG};
                tick_at(&bed, bed.now + 1000);
                feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &pong});
        }
        assert_non_null(strstr(bed.reason, "no daemon can do this job"));
        assert_non_null(strstr(bed.reason, "too few samples"));
        end(&bed);
}

/* While it waits for the disk it can be stopped, and is not started any more. */
static void test_stop_on_a_full_disk(void **state)
{
        struct bed bed;
        (void)state;
        assert_int_equal(start(&bed, 4), 0);
        bed.full = true;
        add_job(&bed);
        add_daemon(&bed, 0);
        job_event(&bed, MFL_EV_JOB_STOP, NULL);
        tick_at(&bed, bed.now + 6000);
        assert_int_equal(bed.n_prepares, 1);
        assert_string_equal(bed.reason, "stopped");
        end(&bed);
}

static void test_stop_while_rounds_overlap(void **state)
{
        (void)state;
        struct bed bed;
        assert_int_equal(start(&bed, 4), 0);
        bed.hold_disk = true;
        bed.spec.rounds = 3;
        add_job(&bed);
        add_daemon(&bed, 0);
        bed.now = 2000;
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        struct mfl_task first = bed.tasks[0];
        bed.n_tasks = 0;
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = first.task,
                        .round = 1,
                        .item_count = 4,
                        .weight = 4,
                        .bytes = 32,
                        .encoding = MFL_ENCODING_I64,
                        .job = "j-000001"}};
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        assert_true(bed.n_tasks == 1 && bed.tasks[0].round == 2);
        assert_string_equal(view_of(&bed).phase, "train");
        disk_fails(&bed, MFL_EV_CHECKPOINTED);
        assert_memory_equal(view_of(&bed).reason, "round 1: checkpoint failed", 26);
        bed.now += 5000;
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        job_event(&bed, MFL_EV_JOB_STOP, NULL);
        assert_int_equal(bed.n_released, 0); /* the checkpoint is being written */
        job_event(&bed, MFL_EV_CHECKPOINTED, NULL);
        assert_int_equal(bed.n_released, 1);
        assert_int_equal(bed.n_commits, 0);
        end(&bed);
}

static void large_job(uint32_t n, uint32_t per_node)
{
        struct bed bed;
        assert_int_equal(start(&bed, n), 0);
        bed.per_node = per_node;
        uint64_t t0 = mfl_now_ns();
        run_job(&bed, n);
        double us = (double)(mfl_now_ns() - t0) / 1e3 / (double)bed.n_events;
        print_message("# %u daemons: %llu events, %.2f us each\n", n, (unsigned long long)bed.n_events, us);
        mfl_core_check(bed.core);
        assert_int_equal(bed.n_commits, 2);
        assert_int_equal(bed.n_refused + bed.n_closed, 0);
        assert_int_equal(bed.n_combines, per_node ? 2 * n : 0); /* to every member, in both rounds */
        assert_true(us < 500); /* quadratic costs would be milliseconds; slow builds are allowed for */
        end(&bed);
}

static void test_large_jobs(void **state)
{
        (void)state;
        large_job(1000, 0);
        large_job(10000, 0);
        large_job(10000, 8);
}

static void test_no_memory(void **state)
{
        (void)state;
        for (long n = 0;; n++) {
                struct bed bed;
                mfl_alloc_fail_at(n);
                if (start(&bed, 6) == 0) {
                        run_job(&bed, 3);
                        end(&bed);
                }
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(bed.n_commits, 2);
                        assert_true(n > 50);
                        return;
                }
                assert_int_equal(bed.r, -ENOMEM);
        }
}

static void test_nonsense(void **state)
{
        struct bed bed;
        (void)state;
        assert_int_equal(start(&bed, 4), 0);
        add_job(&bed);
        add_daemon(&bed, 0);
        bed.now = 2000;
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.n_tasks, 1);
        for (int kind = 0; kind < MFL_MSG_COUNT_; kind++) {
                struct mfl_msg msg = {.kind = (enum mfl_msg_kind)kind};
                feed(&bed, &(struct mfl_core_event){
                                   .kind = MFL_EV_MESSAGE, .conn = 77, .msg = &msg}); /* nobody */
        }
        assert_int_equal(bed.n_closed, 0);
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
        msg.announce = (struct mfl_announce){.task = 12345, .job = "j-000001"};
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        assert_int_equal(bed.n_refused, 1);
        msg.announce = (struct mfl_announce){.task = bed.tasks[0].task,
                .round = 1,
                .item_first = 3,
                .item_count = UINT32_MAX,
                .job = "j-000001"};
        feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        assert_int_equal(bed.n_closed, 1);
        mfl_core_check(bed.core);
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_large_jobs),
                cmocka_unit_test(test_no_memory),
                cmocka_unit_test(test_nonsense),
                cmocka_unit_test(test_rounds_overlap),
                cmocka_unit_test(test_full_at_the_start),
                cmocka_unit_test(test_stop_on_a_full_disk),
                cmocka_unit_test(test_the_last_hope_is_lost),
                cmocka_unit_test(test_stop_while_rounds_overlap),
        };
        return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
