/* SPDX-License-Identifier: Apache-2.0 */
/* Several jobs on one set of daemons of given speeds, on a clock that the test turns: who waits for whom,
 * which clients move within a round, and two processes under one name. */
#include "tests/lib/test.h"

#include "proto/version.h"
#include "server/core/core.h"

#include <stdio.h>

#define DAEMONS 4
#define JOBS 3

struct work {
        bool used;
        uint64_t task, start_ms;
        uint32_t daemon, job, round, n;
        enum mfl_task_kind kind;
        uint64_t items[64];
};

struct bed {
        struct mfl_core *core;
        struct mfl_job spec[JOBS];
        char id[JOBS][MFL_JOB_ID_BYTES];
        uint64_t now;
        uint32_t committed[JOBS], begun[JOBS];
        uint64_t began_ms[JOBS], took_ms[JOBS]; /* took_ms: the last round, to its end */
        double ms[DAEMONS][JOBS];               /* of one client */
        uint32_t conn[DAEMONS], protocol;
        struct work work[16];
        uint32_t counted[JOBS][64]; /* in the round at hand */
        uint32_t trained[DAEMONS];  /* clients */
        uint32_t n_recalls, n_returned;
        bool mute; /* daemons do not answer Ping */
        /* The last Close, and Ping. */
        uint32_t closed_conn, n_closed, welcomed;
        bool closed_retry;
        char closed_reason[MFL_REASON_BYTES];
};

static void feed(struct bed *bed, struct mfl_core_event event);

static uint32_t job_of(const struct bed *bed, const char *id)
{
        for (uint32_t j = 0; j < JOBS; j++)
                if (!strcmp(bed->id[j], id))
                        return j;
        fail_msg("job %s", id);
        return 0;
}

static void job_event(
        struct bed *bed, const char *id, enum mfl_core_event_kind kind, const struct mfl_core_action *answers)
{
        struct mfl_core_event event = {.kind = kind, .ok = true};
        mfl_strcpy(event.job, sizeof event.job, id);
        if (kind == MFL_EV_JOB_READY)
                event.job_ready.n_params = event.job_ready.n_slots = 4;
        if (answers) {
                event.upload.slot = answers->slot.slot;
                event.upload.grant = answers->slot.grant;
        }
        feed(bed, event);
}

static void message(struct bed *bed, uint32_t conn, struct mfl_msg msg)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
}

static uint32_t daemon_of(const struct bed *bed, uint32_t conn)
{
        uint32_t i = 0;
        while (i < DAEMONS && bed->conn[i] != conn)
                i++;
        return i;
}

static void take_task(struct bed *bed, uint32_t i, const struct mfl_task *t)
{
        struct work *w = bed->work;
        while (w->used)
                w++;
        assert_true(w < bed->work + 16 && t->n_items <= 64 && i < DAEMONS);
        *w = (struct work){.used = true,
                .task = t->task,
                .start_ms = bed->now,
                .daemon = i,
                .job = job_of(bed, t->job),
                .round = t->round,
                .kind = t->kind,
                .n = t->n_items};
        memcpy(w->items, t->items, t->n_items * sizeof *t->items);
}

static uint64_t ends_ms(const struct bed *bed, const struct work *w)
{
        double ms = w->kind == MFL_TASK_EVAL ? 1 : bed->ms[w->daemon][w->job];
        return w->start_ms + (uint64_t)(w->n * ms);
}

/* As an agent whose trainer has one worker. */
static void recall(struct bed *bed, uint32_t conn, uint64_t task, uint32_t keep)
{
        bed->n_recalls++;
        for (struct work *w = bed->work; w < bed->work + 16; w++) {
                if (!w->used || w->task != task)
                        continue;
                uint32_t begun =
                        1 + (uint32_t)((double)(bed->now - w->start_ms) / bed->ms[w->daemon][w->job]);
                uint32_t kept = MFL_MIN(w->n, MFL_MAX(begun, keep));
                bed->n_returned += w->n - kept;
                w->n = kept;
                message(bed, conn, (struct mfl_msg){.kind = MFL_MSG_RETURNED, .recall = {task, kept}});
                return;
        }
}

static void send(struct bed *bed, uint32_t conn, const struct mfl_msg *msg)
{
        if (msg->kind == MFL_MSG_TASK)
                take_task(bed, daemon_of(bed, conn), &msg->task);
        else if (msg->kind == MFL_MSG_RECALL)
                recall(bed, conn, msg->recall.task, msg->recall.n_items);
        else if (msg->kind == MFL_MSG_WELCOME)
                bed->welcomed = conn;
        else if (msg->kind == MFL_MSG_PING && !bed->mute)
                message(bed, conn, (struct mfl_msg){.kind = MFL_MSG_PONG, .cookie = msg->cookie});
}

static void committed(struct bed *bed, uint32_t j, uint32_t round)
{
        bool local = bed->spec[j].data.partition == MFL_PARTITION_LOCAL;
        for (uint32_t k = 0; !local && k < bed->spec[j].data.clients; k++)
                assert_int_equal(bed->counted[j][k], 1);
        bed->committed[j] = round;
        bed->took_ms[j] = bed->now - bed->began_ms[j];
}

static void carry_out(struct bed *bed, const struct mfl_core_action *action)
{
        uint32_t j = action->job[0] && action->kind != MFL_ACT_SEND ? job_of(bed, action->job) : 0;
        switch (action->kind) {
        case MFL_ACT_SEND:
                send(bed, action->conn, &action->msg);
                break;
        case MFL_ACT_CLOSE:
                bed->n_closed++;
                bed->closed_conn = action->conn;
                bed->closed_retry = action->retry;
                mfl_strcpy(bed->closed_reason, sizeof bed->closed_reason, action->reason);
                break;
        case MFL_ACT_JOB_PREPARE:
                job_event(bed, action->job, MFL_EV_JOB_READY, NULL);
                break;
        case MFL_ACT_ROUND_OPEN:
                bed->begun[j] = action->round;
                bed->began_ms[j] = bed->now;
                memset(bed->counted[j], 0, sizeof bed->counted[j]);
                break;
        case MFL_ACT_GRANT:
                job_event(bed, action->job, MFL_EV_UPLOAD_COMPLETE, action);
                break;
        case MFL_ACT_SLOT_ADD:
                job_event(bed, action->job, MFL_EV_ADDED, action);
                break;
        case MFL_ACT_APPLY:
                committed(bed, j, action->round); /* before the next round is dealt */
                job_event(bed, action->job, MFL_EV_APPLIED, NULL);
                break;
        case MFL_ACT_CHECKPOINT:
                job_event(bed, action->job, MFL_EV_CHECKPOINTED, NULL);
                break;
        case MFL_ACT_COMMIT:
                job_event(bed, action->job, MFL_EV_COMMITTED, NULL);
                break;
        default:
                break;
        }
}

static void feed(struct bed *bed, struct mfl_core_event event)
{
        struct mfl_core_actions mine = {0};
        event.now_ms = bed->now;
        assert_int_equal(mfl_core_step(bed->core, &event, &mine), 0);
        mfl_core_check(bed->core);
        for (uint32_t i = 0; i < mine.n; i++)
                carry_out(bed, &mine.v[i]);
        mfl_core_actions_deinit(&mine);
}

static void start(struct bed *bed)
{
        *bed = (struct bed){.protocol = MFL_PROTOCOL_MAX};
        struct mfl_core_options options = {
                .boot = 1, .heartbeat_ms = 20000, .dead_ms = 60000, .reconnect_grace_ms = 10000};
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
}

/* clients 0: partition `local`. */
static void add_job(struct bed *bed, uint32_t j, const char *data, uint32_t clients)
{
        struct mfl_job *spec = &bed->spec[j];
        snprintf(bed->id[j], sizeof bed->id[j], "j-%u", j);
        strcpy(spec->data.name, data);
        spec->rounds = 100000;
        spec->data.partition = clients ? MFL_PARTITION_IID : MFL_PARTITION_LOCAL;
        spec->data.clients = clients;
        spec->aggregation.delta_max = 16;
        spec->aggregation.weighting = MFL_WEIGHT_UNIFORM;
        spec->limits.quorum = 1;
        spec->limits.deadline_ms = 3600000;
        spec->selection.daemons_min = 1;
        struct mfl_core_event event = {.kind = MFL_EV_JOB_ADD, .job_add = {spec, 0}};
        mfl_strcpy(event.job, sizeof event.job, bed->id[j]);
        feed(bed, event);
}

static void hello(struct bed *bed, uint32_t i, const char *name, uint64_t instance, uint32_t conn)
{
        struct mfl_data_info data[2] = {{.name = "d", .classes = 10, .train_samples = 1000},
                {.name = "big", .classes = 10, .train_samples = 1000}};
        struct mfl_daemon_info info = {.instance = instance,
                .workers = 1,
                .protocol = bed->protocol,
                .n_data_sets = i == 2 ? 2 : 1, /* d2 alone has the data of the big job */
                .data_sets = data,
                .backend = "cpu",
                .node = "n1"};
        mfl_strcpy(info.name, sizeof info.name, name);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = conn, .daemon = &info});
}

static void up(struct bed *bed, uint32_t i, double ms)
{
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        for (uint32_t j = 0; j < JOBS; j++)
                bed->ms[i][j] = bed->ms[i][j] > 0 ? bed->ms[i][j] : ms;
        bed->conn[i] = i + 1;
        hello(bed, i, name, i + 1, i + 1);
}

static void finish(struct bed *bed, struct work *done)
{
        struct work w = *done;
        struct mfl_eval_item items[64];
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
        done->used = false;
        if (w.kind == MFL_TASK_EVAL) {
                for (uint32_t i = 0; i < w.n; i++)
                        items[i] = (struct mfl_eval_item){.item = w.items[i], .samples = 1};
                msg.kind = MFL_MSG_EVAL_RESULT;
                msg.eval.task = w.task;
                msg.eval.items = items;
                msg.eval.n_items = w.n;
        } else {
                msg.announce = (struct mfl_announce){.task = w.task,
                        .round = w.round,
                        .item_count = w.n,
                        .weight = w.n,
                        .samples = w.n,
                        .bytes = 4 * 8,
                        .encoding = MFL_ENCODING_I64};
                mfl_strcpy(msg.announce.job, sizeof msg.announce.job, bed->id[w.job]);
                for (uint32_t k = 0; k < w.n; k++)
                        if (w.items[k] < 64)
                                bed->counted[w.job][w.items[k]]++;
                bed->trained[w.daemon] += w.n;
        }
        message(bed, bed->conn[w.daemon], msg);
}

/* Progress comes twice a second, as from a link. */
static void tell_progress(struct bed *bed)
{
        for (struct work *w = bed->work; w < bed->work + 16; w++) {
                uint64_t ms = bed->now - w->start_ms;
                if (!w->used || w->kind != MFL_TASK_TRAIN || !ms || ms % 500)
                        continue;
                struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS, .progress = {.task = w->task}};
                msg.progress.items_done = (uint32_t)((double)ms / bed->ms[w->daemon][w->job]);
                message(bed, bed->conn[w->daemon], msg);
        }
}

static void run_to(struct bed *bed, uint64_t ms)
{
        for (; bed->now < ms; bed->now++) {
                if (bed->now >= mfl_core_next_ms(bed->core))
                        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
                tell_progress(bed);
                for (struct work *w = bed->work; w < bed->work + 16; w++)
                        if (w->used && bed->now >= ends_ms(bed, w))
                                finish(bed, w);
        }
}

static void run_until_committed(struct bed *bed, uint32_t j, uint32_t round)
{
        while (bed->committed[j] < round && bed->now < 1000000)
                run_to(bed, bed->now + 1);
        assert_true(bed->committed[j] >= round);
}

static void end(struct bed *bed)
{
        mfl_core_free(bed->core);
}

/* ---- clients that move within a round ---- */

/* Ten clients on the only daemon of three that was there when the round began. Nothing was measured before.
 */
static void late_daemons_take_over(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        add_job(&bed, 0, "d", 10);
        up(&bed, 0, 1000);
        run_to(&bed, 2600);
        assert_int_equal(bed.begun[0], 1);
        up(&bed, 1, 1000);
        up(&bed, 3, 1000);
        run_until_committed(&bed, 0, 1);
        /* Alone it takes 10 s. */
        print_message("# a round of ten clients of 1 s, two daemons coming after 2.3 s: %u ms\n",
                (uint32_t)bed.took_ms[0]);
        assert_true(bed.took_ms[0] <= 6500);
        assert_true(bed.trained[1] >= 2 && bed.trained[3] >= 2 && bed.n_returned >= 4);
        end(&bed);
}

/* Equal so far; then one needs ten times as long, and the others help it out, as often as it pays. */
static void early_ones_take_over(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        add_job(&bed, 0, "d", 30);
        for (uint32_t i = 0; i < 2; i++)
                up(&bed, i, 100);
        run_until_committed(&bed, 0, 2);
        assert_int_equal(bed.n_recalls, 0);
        bed.ms[1][0] = 1000;
        run_until_committed(&bed, 0, 4); /* round 3 was dealt */
        assert_true(bed.n_returned >= 8);
        bed.ms[1][0] = 100;
        run_until_committed(&bed, 0, 8);
        uint32_t n = bed.n_recalls; /* it is known to be fast again */
        run_until_committed(&bed, 0, 20);
        assert_int_equal(bed.n_recalls, n);
        end(&bed);
}

static void small_rests_stay(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        add_job(&bed, 0, "d", 20);
        up(&bed, 0, 9);
        run_to(&bed, 1500);
        up(&bed, 1, 9);
        run_to(&bed, 9000);
        assert_true(bed.committed[0] > 30);
        assert_int_equal(bed.n_recalls, 0);
        end(&bed);
}

static void nobody_is_asked_who_must_not_be(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        bed.protocol = MFL_PROTOCOL_RECALL - 1;
        add_job(&bed, 0, "d", 10);
        up(&bed, 0, 1000);
        run_to(&bed, 2600);
        up(&bed, 1, 1000);
        run_until_committed(&bed, 0, 1);
        assert_int_equal(bed.n_recalls, 0); /* it would not know what is asked of it */
        end(&bed);
        start(&bed);
        bed.spec[0].selection.assign = MFL_ASSIGN_MODULO;
        add_job(&bed, 0, "d", 10);
        up(&bed, 0, 1000);
        run_to(&bed, 2600);
        up(&bed, 1, 1000);
        run_until_committed(&bed, 0, 1);
        assert_int_equal(bed.n_recalls, 0); /* the client's number says who trains it */
        end(&bed);
}

/* A daemon may give back what it was not asked for, but nothing that it has announced, and not everything. */
static void nonsense_is_returned(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        add_job(&bed, 0, "d", 10);
        up(&bed, 0, 1000);
        run_to(&bed, 1000);
        uint64_t task = bed.work[0].task;
        message(&bed, 1, (struct mfl_msg){.kind = MFL_MSG_RETURNED, .recall = {task + 7, 3}});
        message(&bed, 1, (struct mfl_msg){.kind = MFL_MSG_RETURNED, .recall = {task, 10}});
        message(&bed, 1, (struct mfl_msg){.kind = MFL_MSG_RETURNED, .recall = {task, 4000}});
        assert_int_equal(bed.n_closed, 0);
        struct mfl_msg half = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = task,
                        .round = 1,
                        .item_first = 5,
                        .item_count = 5,
                        .weight = 5,
                        .bytes = 32,
                        .encoding = MFL_ENCODING_I64,
                        .job = "j-0"}};
        message(&bed, 1, half);
        message(&bed, 1, (struct mfl_msg){.kind = MFL_MSG_RETURNED, .recall = {task, 7}});
        assert_int_equal(bed.n_closed, 1);
        assert_non_null(strstr(bed.closed_reason, "clients that it may not return"));
        end(&bed);
}

/* ---- a job that wants all daemons ---- */

/* d2 works 10 s at a time for a job that only it can do; j-1 wants all three; j-2 is small. */
static void start_three(struct bed *bed)
{
        start(bed);
        for (uint32_t i = 0; i < 3; i++) {
                bed->ms[i][0] = 1000;
                bed->ms[i][1] = 50;
                bed->ms[i][2] = 45;
        }
        add_job(bed, 0, "big", 10);
        add_job(bed, 2, "d", 2);
        for (uint32_t i = 0; i < 3; i++)
                up(bed, i, 0);
        run_to(bed, 4000); /* the big one is at work, and the small one's rounds were measured */
        assert_true(bed->begun[0] >= 1 && bed->committed[2] > 20);
}

static void free_daemons_work_on_while_a_local_job_waits(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        uint32_t alone = bed.committed[2], local = 0, n = bed.committed[2];
        uint64_t waited = 0, from = bed.now;
        add_job(&bed, 1, "d", 0);
        run_to(&bed, from + 30000);
        n = bed.committed[2] - n;
        local = bed.committed[1];
        print_message("# in 30 s beside a `local` job and one with rounds of 10 s: %u small rounds, %u local "
                      "ones\n",
                n, local);
        assert_true(alone && n > 250 && local >= 2);
        from = bed.now;
        for (uint32_t i = 0, begun = bed.begun[1]; i < 30000; i++) { /* the local one's longest wait */
                run_to(&bed, bed.now + 1);
                if (bed.begun[1] != begun || bed.committed[1] < bed.begun[1])
                        from = bed.now;
                begun = bed.begun[1];
                waited = MFL_MAX(waited, bed.now - from);
        }
        assert_true(waited <= 10000 + 1000);
        end(&bed);
}

/* Phases of 3 s would make the local job wait when 1 s is left: they wait instead. */
static void long_phases_do_not_enter_a_small_gap(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        for (uint32_t i = 0; i < 3; i++) {
                bed.ms[i][0] = 400;
                bed.ms[i][1] = 50;
                bed.ms[i][2] = 3000;
        }
        add_job(&bed, 0, "big", 10); /* 4 s on d2 */
        add_job(&bed, 2, "d", 2);    /* 3 s on d0 and d1 */
        for (uint32_t i = 0; i < 3; i++)
                up(&bed, i, 0);
        run_to(&bed, 20000);
        add_job(&bed, 1, "d", 0);
        uint64_t longest = 0, since = bed.now;
        for (uint32_t i = 0; i < 60000; i++) {
                uint32_t begun = bed.begun[1];
                run_to(&bed, bed.now + 1);
                if (bed.begun[1] != begun) {
                        longest = MFL_MAX(longest, bed.now - since);
                        since = bed.now;
                }
        }
        /* At worst a phase of 4 s had just begun. */
        assert_true(bed.begun[1] >= 8 && longest <= 4000 + 3000 + 500);
        assert_true(bed.committed[2] >= 4 && bed.committed[0] >= 4);
        end(&bed);
}

/* Whatever was expected, a daemon that was lent is lent once. */
static void a_wrong_estimate_costs_one_phase(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        add_job(&bed, 1, "d", 0);
        uint32_t begun = bed.begun[1];
        while (bed.begun[1] == begun)
                run_to(&bed, bed.now + 1);
        for (uint32_t i = 0; i < 3; i++)
                bed.ms[i][2] = 7000; /* was 45 */
        uint64_t since = bed.now, longest = 0;
        begun = bed.begun[1];
        for (uint32_t i = 0; i < 120000; i++) {
                run_to(&bed, bed.now + 1);
                if (bed.begun[1] == begun)
                        continue;
                longest = MFL_MAX(longest, bed.now - since);
                since = bed.now;
                begun = bed.begun[1];
        }
        assert_true(longest <= 10000 + 7000 + 500);
        end(&bed);
}

/* d2 takes 5 s for its part of the local round, the others 50 ms: they need not look on. */
static void who_has_done_its_part_works_for_others(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        for (uint32_t i = 0; i < 3; i++) {
                bed.ms[i][1] = i == 2 ? 5000 : 50;
                bed.ms[i][2] = 45;
        }
        add_job(&bed, 2, "d", 2);
        add_job(&bed, 1, "d", 0);
        for (uint32_t i = 0; i < 3; i++)
                up(&bed, i, 0);
        run_to(&bed, 12000);
        uint32_t local = bed.committed[1], small = bed.committed[2];
        run_to(&bed, 42000);
        local = bed.committed[1] - local;
        small = bed.committed[2] - small;
        assert_true(local >= 5); /* 6 at best */
        assert_true(small >= 200);
        end(&bed);
}

static void a_waiting_job_says_why(void **state)
{
        (void)state;
        struct bed bed;
        struct mfl_core_job_view view;
        start(&bed);
        for (uint32_t i = 0; i < 3; i++) {
                bed.ms[i][0] = 2000;
                bed.ms[i][1] = 50;
        }
        add_job(&bed, 1, "d", 0);
        for (uint32_t i = 0; i < 3; i++)
                up(&bed, i, 0);
        run_to(&bed, 3000);
        add_job(&bed, 0, "big", 10); /* 20 s */
        run_to(&bed, 5000);
        bool told = false;
        for (uint32_t i = 0; i < 20000 && !told; i += 100) {
                run_to(&bed, bed.now + 100);
                assert_int_equal(mfl_core_job_view(bed.core, "j-1", &view), 0);
                assert_int_equal(view.state, MFL_JOB_RUNNING);
                told = *view.reason;
        }
        assert_string_equal(view.reason, "waits for daemon d2, which works for j-0");
        run_until_committed(&bed, 1, bed.committed[1] + 1);
        mfl_core_job_view(bed.core, "j-1", &view);
        assert_string_equal(view.reason, "");
        end(&bed);
}

/* A daemon that can't do the job comes back without its data set: it no longer counts among those that have it. */
static void who_lacks_the_data_decides_nothing(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        add_job(&bed, 0, "d", 4);
        up(&bed, 0, 50);
        up(&bed, 1, 50);
        run_until_committed(&bed, 0, 1);
        struct work *w = bed.work;
        while (!w->used || w->daemon)
                w++;
        assert_int_equal(w->kind, MFL_TASK_TRAIN);
        w->used = false;
        message(&bed, 1,
                (struct mfl_msg){.kind = MFL_MSG_TASK_FAILED,
                        .failed = {.task = w->task, .permanent = true, .reason = "no bf16 here"}});
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        struct mfl_data_info other = {.name = "other", .classes = 10, .train_samples = 1000};
        struct mfl_daemon_info info = {.name = "d0",
                .instance = 1,
                .workers = 1,
                .protocol = bed.protocol,
                .n_data_sets = 1,
                .data_sets = &other,
                .backend = "cpu",
                .node = "n1"};
        bed.conn[0] = 11;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 11, .daemon = &info});
        run_until_committed(&bed, 0, 4);
        end(&bed);
}

/* ---- two processes under one name ---- */

static const struct mfl_core_daemon_view *view_of(const struct bed *bed, const char *name)
{
        static struct mfl_core_daemon_view view;
        for (uint32_t i = 0; i < mfl_core_daemon_count(bed->core); i++) {
                mfl_core_daemon_view(bed->core, i, &view);
                if (!strcmp(view.info->name, name))
                        return &view;
        }
        return NULL;
}

static void the_first_one_answers_and_stays(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        up(&bed, 0, 100);
        run_to(&bed, 1000);
        hello(&bed, 0, "d0", 77, 50);
        assert_int_equal(bed.n_closed, 1);
        assert_int_equal(bed.closed_conn, 50);
        assert_true(bed.closed_retry);
        assert_non_null(
                strstr(bed.closed_reason, "another process under the name d0 is connected, on node n1"));
        assert_int_equal(bed.welcomed, 1);
        assert_non_null(strstr(view_of(&bed, "d0")->note, "a second process under this name"));
        assert_int_equal(view_of(&bed, "d0")->conn, 1);
        run_to(&bed, 70000);
        assert_string_equal(view_of(&bed, "d0")->note, "");
        end(&bed);
}

static void a_silent_one_is_given_up_soon(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        up(&bed, 0, 100);
        run_to(&bed, 5000);
        bed.mute = true;
        hello(&bed, 0, "d0", 77, 50);
        hello(&bed, 0, "d0", 78, 51); /* the last one is it */
        assert_int_equal(bed.closed_conn, 50);
        run_to(&bed, 6900);
        assert_int_equal(bed.welcomed, 1);
        run_to(&bed, 7100);
        assert_int_equal(bed.welcomed, 51);
        assert_int_equal(bed.closed_conn, 1);
        assert_true(bed.closed_retry); /* it may only have stood still: it must not end */
        assert_int_equal(view_of(&bed, "d0")->conn, 51);
        end(&bed);
}

static void a_killed_one_is_back_at_once(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        up(&bed, 0, 100);
        bed.mute = true;
        hello(&bed, 0, "d0", 77, 50); /* before the system has told that the first one is gone */
        assert_int_equal(bed.welcomed, 1);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        assert_int_equal(bed.welcomed, 50);
        assert_int_equal(bed.n_closed, 0);
        hello(&bed, 0, "d0", 78, 51);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 51}); /* it gives up */
        run_to(&bed, 10000);
        assert_int_equal(view_of(&bed, "d0")->conn, 50);
        end(&bed);
}

/* Its Pong stands behind an upload on a slow line. */
static void one_that_is_heard_of_stays(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed);
        up(&bed, 0, 100);
        bed.mute = true;
        hello(&bed, 0, "d0", 77, 50);
        for (uint32_t s = 1; s <= 9; s++) {
                run_to(&bed, s * 1000);
                feed(&bed, (struct mfl_core_event){.kind = MFL_EV_UPLOADING, .conn = 1});
        }
        assert_int_equal(bed.closed_conn, 50);
        assert_int_equal(bed.n_closed, 1);
        assert_int_equal(view_of(&bed, "d0")->conn, 1);
        hello(&bed, 0, "d0", 79, 52);
        feed(&bed, (struct mfl_core_event){
                           .kind = MFL_EV_EXPEL, .drain = {.name = "d0"}, .reason = "it is denied"});
        run_to(&bed, 12000);
        assert_null(view_of(&bed, "d0")); /* neither of them */
        assert_int_equal(bed.welcomed, 1);
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(late_daemons_take_over),
                cmocka_unit_test(early_ones_take_over),
                cmocka_unit_test(small_rests_stay),
                cmocka_unit_test(nobody_is_asked_who_must_not_be),
                cmocka_unit_test(nonsense_is_returned),
                cmocka_unit_test(free_daemons_work_on_while_a_local_job_waits),
                cmocka_unit_test(long_phases_do_not_enter_a_small_gap),
                cmocka_unit_test(a_wrong_estimate_costs_one_phase),
                cmocka_unit_test(who_has_done_its_part_works_for_others),
                cmocka_unit_test(a_waiting_job_says_why),
                cmocka_unit_test(who_lacks_the_data_decides_nothing),
                cmocka_unit_test(the_first_one_answers_and_stays),
                cmocka_unit_test(a_silent_one_is_given_up_soon),
                cmocka_unit_test(a_killed_one_is_back_at_once),
                cmocka_unit_test(one_that_is_heard_of_stays),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
