/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemon gets how many clients: the arithmetic by itself, and the server core with daemons of given
 * speeds, on a clock that the test turns. */
#include "tests/lib/test.h"

#include "common/base/rng.h"
#include "server/core/core.h"
#include "server/round/round_share.h"

#include <math.h>
#include <stdio.h>

/* ---- the arithmetic ---- */

static double makespan(const struct mfl_share *v, uint32_t n)
{
        double most = 0;
        for (uint32_t i = 0; i < n; i++)
                most = v[i].n ? fmax(most, (v[i].load + v[i].n) * v[i].cost) : most;
        return most;
}

static uint32_t total(const struct mfl_share *v, uint32_t n)
{
        uint32_t sum = 0;
        for (uint32_t i = 0; i < n; i++)
                sum += v[i].n;
        return sum;
}

/* One item after another to whoever would end it first. */
static double greedy(const struct mfl_share *v, uint32_t n, uint32_t n_items)
{
        uint32_t got[16] = {0};
        double most = 0;
        for (uint32_t k = 0; k < n_items; k++) {
                uint32_t best = 0;
                for (uint32_t i = 1; i < n; i++)
                        if ((v[i].load + got[i] + 1) * v[i].cost <
                                (v[best].load + got[best] + 1) * v[best].cost)
                                best = i;
                got[best]++;
                most = fmax(most, (v[best].load + got[best]) * v[best].cost);
        }
        return most;
}

static void test_makespan_is_the_least(void **state)
{
        (void)state;
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_SIM, 0, 0);
        for (int k = 0; k < 5000; k++) {
                struct mfl_share v[16] = {0};
                uint32_t n = 1 + mfl_rng_below(&rng, 16), n_items = mfl_rng_below(&rng, 300);
                for (uint32_t i = 0; i < n; i++) {
                        v[i].cost = 1 + mfl_rng_below(&rng, 100);
                        v[i].load = mfl_rng_below(&rng, 4) ? 0 : mfl_rng_below(&rng, 20);
                }
                mfl_round_share(v, n, n_items);
                assert_int_equal(total(v, n), n_items);
                /* Costs are rounded to 1/1024 of the least one. */
                assert_true(makespan(v, n) <= greedy(v, n, n_items) * (1 + 1.0 / 512));
        }
}

static void test_equal_times(void **state)
{
        (void)state;
        struct mfl_share v[3] = {{.cost = 1}, {.cost = 16}, {.cost = 3}};
        mfl_round_share(v, 3, 1000);
        assert_int_equal(total(v, 3), 1000);
        for (int i = 0; i < 3; i++)
                for (int k = 0; k < 3; k++) /* within one client of the slower of the two */
                        assert_true(
                                fabs(v[i].n * v[i].cost - v[k].n * v[k].cost) <= fmax(v[i].cost, v[k].cost));
}

static void test_corners(void **state)
{
        (void)state;
        struct mfl_share two[2] = {{.cost = 5}, {.cost = 4}};
        mfl_round_share(two, 2, 1);
        assert_true(two[0].n == 0 && two[1].n == 1);
        mfl_round_share(two, 2, 0);
        assert_true(two[0].n == 0 && two[1].n == 0);
        struct mfl_share many[5] = {{.cost = 9}, {.cost = 1}, {.cost = 9}, {.cost = 1}, {.cost = 9}};
        mfl_round_share(many, 5, 2);
        assert_true(many[1].n == 1 && many[3].n == 1);
        struct mfl_share far[2] = {{.cost = 1e-9}, {.cost = 1e30}};
        mfl_round_share(far, 2, 1u << 24);
        assert_true(far[0].n == 1u << 24 && far[1].n == 0);
        struct mfl_share probe[3] = {{.cost = 1}, {.cost = 1000, .probe = true}, {.cost = 1000}};
        mfl_round_share(probe, 3, 10);
        assert_true(probe[0].n == 9 && probe[1].n == 1 && probe[2].n == 0);
        mfl_round_share(probe, 3, 2); /* not enough for everybody */
        assert_true(probe[0].n == 2 && probe[1].n == 0);
        struct mfl_share fixed[3] = {{.cost = 1}, {.cost = 1, .fixed = true, .n = 7}, {.cost = 1}};
        mfl_round_share(fixed, 3, 9);
        assert_true(fixed[0].n == 1 && fixed[1].n == 7 && fixed[2].n == 1);
        fixed[1].n = 99; /* can't be */
        mfl_round_share(fixed, 3, 9);
        assert_true(fixed[0].n == 3 && fixed[1].n == 3 && fixed[2].n == 3);
}

/* ---- the core ---- */

#define DAEMONS 6

struct work {
        uint64_t task, end_ms;
        uint32_t daemon, round, n, boot;
        enum mfl_task_kind kind;
        uint64_t items[256];
        bool single;
};

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        uint32_t boot, committed;
        double ms[DAEMONS]; /* of one client */
        uint64_t busy_to[DAEMONS];
        struct work work[64];
        uint32_t n_work;
        uint32_t n[DAEMONS];        /* clients dealt in the round at hand */
        uint64_t has[DAEMONS][256]; /* which */
        uint32_t n_accepted, n_refused, n_cancelled;
        uint32_t first_conn; /* later connections have other numbers */
};

static void feed(struct bed *bed, struct mfl_core_event event);

static void job_event(struct bed *bed, enum mfl_core_event_kind kind, const struct mfl_core_action *answers)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = "j"};
        if (kind == MFL_EV_JOB_READY)
                event.job_ready.n_params = event.job_ready.n_slots = 4;
        if (answers) {
                event.upload.slot = answers->slot.slot;
                event.upload.grant = answers->slot.grant;
        }
        feed(bed, event);
}

static void take_task(struct bed *bed, uint32_t daemon, const struct mfl_task *t)
{
        assert_true(bed->n_work < 64 && t->n_items <= 256);
        struct work *w = &bed->work[bed->n_work++];
        uint64_t from = MFL_MAX(bed->now, bed->busy_to[daemon]);
        *w = (struct work){.task = t->task,
                .daemon = daemon,
                .round = t->round,
                .n = t->n_items,
                .kind = t->kind,
                .single = t->single_updates,
                .end_ms = from + (uint64_t)(t->n_items * bed->ms[daemon])};
        memcpy(w->items, t->items, t->n_items * sizeof *t->items);
        bed->busy_to[daemon] = w->end_ms;
        memcpy(bed->has[daemon] + bed->n[daemon], t->items, t->n_items * sizeof *t->items);
        bed->n[daemon] += t->n_items;
}

static void carry_out(struct bed *bed, const struct mfl_core_action *action)
{
        switch (action->kind) {
        case MFL_ACT_SEND:
                if (action->msg.kind == MFL_MSG_TASK)
                        take_task(bed, (action->conn - 1) % DAEMONS, &action->msg.task);
                bed->n_accepted += action->msg.kind == MFL_MSG_ACCEPTED;
                bed->n_refused += action->msg.kind == MFL_MSG_REFUSED;
                bed->n_cancelled += action->msg.kind == MFL_MSG_CANCEL;
                break;
        case MFL_ACT_JOB_PREPARE:
                job_event(bed, MFL_EV_JOB_READY, NULL);
                break;
        case MFL_ACT_ROUND_OPEN:
                memset(bed->n, 0, sizeof bed->n);
                break;
        case MFL_ACT_GRANT:
                job_event(bed, MFL_EV_UPLOAD_COMPLETE, action);
                break;
        case MFL_ACT_SLOT_ADD:
                job_event(bed, MFL_EV_ADDED, action);
                break;
        case MFL_ACT_APPLY:
                job_event(bed, MFL_EV_APPLIED, NULL);
                break;
        case MFL_ACT_CHECKPOINT:
                job_event(bed, MFL_EV_CHECKPOINTED, NULL);
                break;
        case MFL_ACT_COMMIT:
                bed->committed = action->record.round;
                job_event(bed, MFL_EV_COMMITTED, NULL);
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

static void boot(struct bed *bed)
{
        struct mfl_core_options options = {
                .boot = ++bed->boot, .heartbeat_ms = 100000, .dead_ms = 300000, .reconnect_grace_ms = 10000};
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_JOB_ADD, .job = "j", .job_add = {&bed->spec, bed->committed}});
}

static void start(struct bed *bed, uint32_t clients)
{
        *bed = (struct bed){0};
        strcpy(bed->spec.data.name, "d");
        bed->spec.rounds = 1000;
        bed->spec.data.partition = MFL_PARTITION_IID;
        bed->spec.data.clients = clients;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.selection.daemons_min = 1;
}

static uint32_t conn_of(const struct bed *bed, uint32_t daemon)
{
        return daemon + 1 + DAEMONS * bed->boot + bed->first_conn;
}

static void up_as(struct bed *bed, uint32_t i, uint32_t workers, const char *backend, double ms, bool leaving)
{
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        struct mfl_daemon_info info = {.instance = i + 1,
                .workers = workers,
                .n_data_sets = 1,
                .data_sets = &data,
                .leaving = leaving};
        snprintf(info.name, sizeof info.name, "d%u", i);
        mfl_strcpy(info.backend, sizeof info.backend, backend);
        bed->ms[i] = ms;
        feed(bed,
                (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = conn_of(bed, i), .daemon = &info});
}

static void up(struct bed *bed, uint32_t i, uint32_t workers, const char *backend, double ms)
{
        up_as(bed, i, workers, backend, ms, false);
}

static void down(struct bed *bed, uint32_t i)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = conn_of(bed, i)});
}

static void wait_ms(struct bed *bed, uint64_t ms)
{
        bed->now += ms;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
}

static void announce(struct bed *bed, const struct work *w, uint32_t first, uint32_t count)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
        msg.announce = (struct mfl_announce){.task = w->task,
                .update = w->single ? first : 0,
                .round = w->round,
                .item_first = first,
                .item_count = count,
                .weight = count,
                .samples = count * 20,
                .train_us = 1,
                .bytes = 4 * (w->single ? 4 : 8),
                .encoding = w->single ? MFL_ENCODING_F32 : MFL_ENCODING_I64,
                .job = "j"};
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_MESSAGE, .conn = conn_of(bed, w->daemon), .msg = &msg});
}

static void evaluated(struct bed *bed, const struct work *w)
{
        struct mfl_eval_item items[256];
        struct mfl_msg msg = {.kind = MFL_MSG_EVAL_RESULT};
        for (uint32_t i = 0; i < w->n; i++)
                items[i] = (struct mfl_eval_item){.item = w->items[i], .samples = 1};
        msg.eval.task = w->task;
        msg.eval.items = items;
        msg.eval.n_items = w->n;
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_MESSAGE, .conn = conn_of(bed, w->daemon), .msg = &msg});
}

/* The daemon that ends first. */
static struct work next_work(struct bed *bed)
{
        uint32_t at = 0;
        for (uint32_t i = 1; i < bed->n_work; i++)
                if (bed->work[i].end_ms < bed->work[at].end_ms)
                        at = i;
        assert_true(bed->n_work > 0);
        struct work w = bed->work[at];
        bed->work[at] = bed->work[--bed->n_work];
        bed->now = MFL_MAX(bed->now, w.end_ms);
        return w;
}

/* To the commit; milliseconds that it took. */
static uint64_t run_round(struct bed *bed)
{
        uint64_t began = bed->now;
        for (uint32_t committed = bed->committed; bed->committed == committed;) {
                struct work w = next_work(bed);
                if (w.kind == MFL_TASK_TRAIN)
                        announce(bed, &w, 0, w.n);
                else
                        evaluated(bed, &w);
        }
        return bed->now - began;
}

static void end(struct bed *bed)
{
        mfl_core_free(bed->core);
}

static void test_learns_speeds(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 100);
        boot(&bed);
        up(&bed, 0, 1, "cuda", 10);
        up(&bed, 1, 16, "cpu", 90);
        wait_ms(&bed, 2000);
        assert_int_equal(bed.n[0], 5); /* nobody is known: by workers */
        assert_int_equal(bed.n[1], 95);
        run_round(&bed);
        run_round(&bed);
        uint64_t ms = run_round(&bed);
        /* The next one: 100 clients at 1/10 + 1/90 a millisecond take 900 ms. */
        assert_true(bed.n[0] >= 89 && bed.n[0] <= 91);
        assert_true(ms <= 990);
        struct mfl_core_daemon_view view;
        mfl_core_daemon_view(bed.core, 0, &view);
        assert_true(fabs(view.clients_per_second - 100) < 1 && fabs(view.samples_per_second - 2000) < 20);
        end(&bed);
}

static void test_slower_daemon_loses_its_share(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 40);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 50);
        up(&bed, 1, 1, "cpu", 50);
        wait_ms(&bed, 2000);
        for (int i = 0; i < 4; i++)
                run_round(&bed);
        assert_int_equal(bed.n[0], 20);
        bed.ms[0] = 500;
        for (int i = 0; i < 4; i++)
                run_round(&bed);
        assert_true(bed.n[0] >= 3 && bed.n[0] <= 5); /* 40 / 11 */
        bed.ms[0] = 50;
        for (int i = 0; i < 8; i++)
                run_round(&bed);
        assert_true(bed.n[0] >= 18 && bed.n[0] <= 22);
        end(&bed);
}

/* One too slow for any client of a round gets one again in the end, and not often. */
static void test_passed_over_is_tried_again(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 2);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 100);
        up(&bed, 1, 1, "cpu", 1000);
        wait_ms(&bed, 2000);
        assert_int_equal(bed.n[1], 1);
        run_round(&bed);
        uint32_t n_tries = 0;
        for (int i = 0; i < 400; i++) {
                n_tries += bed.n[1] > 0;
                run_round(&bed);
        }
        /* 1000 against 2 * 100: five times too slow, about once in 4 * 32 rounds. */
        assert_true(n_tries >= 2 && n_tries <= 4);
        bed.ms[1] = 100;
        for (int i = 0; i < 300; i++)
                run_round(&bed);
        assert_int_equal(bed.n[1], 1);
        end(&bed);
}

static void test_unknown_daemons(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 120);
        boot(&bed);
        up(&bed, 0, 1, "cuda", 10);
        up(&bed, 1, 4, "cpu", 40);
        wait_ms(&bed, 2000);
        run_round(&bed);
        run_round(&bed);
        run_round(&bed);
        up(&bed, 2, 1, "cuda", 10); /* as the other GPU */
        up(&bed, 3, 8, "cpu", 20);  /* as the other CPU, with twice the workers */
        run_round(&bed);
        /* 1/10 : 1/40 : 1/10 : 1/20 of 120 */
        assert_true(abs((int)bed.n[0] - 43) <= 2 && abs((int)bed.n[1] - 11) <= 2);
        assert_true(abs((int)bed.n[2] - 43) <= 2 && abs((int)bed.n[3] - 22) <= 2);
        end(&bed);
}

static void test_evaluation_has_speeds_of_its_own(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 10);
        bed.spec.evaluation.every = 1;
        bed.spec.evaluation.batch = 1;
        boot(&bed);
        up(&bed, 0, 1, "cpu", 30);
        up(&bed, 1, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        run_round(&bed);
        run_round(&bed);
        while (bed.n_work && bed.work[0].kind == MFL_TASK_TRAIN) {
                struct work w = next_work(&bed);
                announce(&bed, &w, 0, w.n);
        }
        assert_int_equal(bed.n_work, 2);
        uint32_t slow = bed.work[bed.work[0].daemon != 0].n, fast = bed.work[bed.work[0].daemon == 0].n;
        assert_true(fast > 2 * slow && slow > 0);
        end(&bed);
}

static void test_modulo(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 11);
        bed.spec.selection.assign = MFL_ASSIGN_MODULO;
        boot(&bed);
        for (uint32_t i = 0; i < 3; i++)
                up(&bed, i, i + 1, "cpu", 10);
        wait_ms(&bed, 2000);
        for (int round = 0; round < 3; round++) {
                for (uint32_t i = 0; i < 3; i++) {
                        assert_int_equal(bed.n[i], (11 - i + 2) / 3);
                        for (uint32_t k = 0; k < bed.n[i]; k++)
                                assert_int_equal(bed.has[i][k], i + 3 * k);
                }
                run_round(&bed);
        }
        end(&bed);
}

/* A server that starts anew knows no speeds. What the daemons hold tells how it had dealt. */
static void test_restart_deals_the_same(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 60);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        up(&bed, 1, 1, "cpu", 20);
        up(&bed, 2, 1, "cpu", 30);
        wait_ms(&bed, 2000);
        run_round(&bed);
        run_round(&bed);
        run_round(&bed);
        uint32_t n[3] = {bed.n[0], bed.n[1], bed.n[2]};
        assert_true(n[0] > n[1] && n[1] > n[2]);
        struct work held[3];
        for (int i = 0; i < 3; i++)
                held[i] = next_work(&bed);
        mfl_core_free(bed.core);
        boot(&bed);
        for (uint32_t i = 0; i < 3; i++)
                up(&bed, i, 1, "cpu", bed.ms[i]);
        for (int i = 0; i < 2; i++) /* the third still works */
                announce(&bed, &held[i], 0, held[i].n);
        wait_ms(&bed, 2000);
        for (int i = 0; i < 3; i++)
                assert_int_equal(bed.n[i], n[i]);
        assert_int_equal(bed.n_refused, 0);
        for (uint32_t i = 0; i < 3; i++) /* the answers need no time, and are not taken for speed */
                for (uint32_t k = 0; k < bed.n_work; k++)
                        if (bed.work[k].daemon < 2)
                                bed.work[k].end_ms = bed.now;
        run_round(&bed);
        assert_true(bed.n[0] < 59 && bed.n[1] < 59);
        end(&bed);
}

/* A task that was taken back from a daemon and comes after all, an update at a time: each update asks for its
 * own client. */
static void test_taken_task_comes_back_in_pieces(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 3);
        bed.spec.aggregation.strategy = MFL_STRATEGY_MEDIAN;
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        struct work w = next_work(&bed);
        assert_int_equal(w.n, 3);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DRAIN, .drain = {.name = "d0", .on = true}});
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1 + DAEMONS});
        wait_ms(&bed, 20000); /* over its grace time */
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        struct mfl_daemon_info info = {
                .name = "d0", .instance = 1, .workers = 1, .n_data_sets = 1, .data_sets = &data};
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 1 + DAEMONS, .daemon = &info});
        for (uint32_t i = 0; i < 3; i++)
                announce(&bed, &w, i, 1);
        assert_int_equal(bed.n_accepted, 3);
        assert_int_equal(bed.committed, 1);
        end(&bed);
}

/* With a job that waits for somebody, a daemon that comes drained has no task for a moment either. */
static void test_comes_drained(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 3);
        boot(&bed);
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        struct mfl_daemon_info info = {
                .name = "d0", .instance = 1, .workers = 1, .n_data_sets = 1, .data_sets = &data};
        bed.ms[0] = 10;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP,
                           .conn = 1 + DAEMONS * bed.boot,
                           .daemon = &info,
                           .drained = true});
        struct mfl_core_daemon_view view;
        mfl_core_daemon_view(bed.core, 0, &view);
        assert_string_equal(view.state, "drained");
        wait_ms(&bed, 20000);
        assert_int_equal(bed.n_work, 0);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DRAIN, .drain = {.name = "d0", .on = false}});
        wait_ms(&bed, 2000);
        assert_int_equal(next_work(&bed).n, 3);
        end(&bed);
}

/* In the middle of its work it may not take part any more: it is told to stop, and another one does the work
 * at once, although it was only being waited for. */
static void test_expelled_daemon_keeps_nothing(void **state)
{
        (void)state;
        for (int lost = 0; lost < 2; lost++) {
                struct bed bed;
                start(&bed, 3);
                boot(&bed);
                up(&bed, 0, 1, "cpu", 10);
                wait_ms(&bed, 2000);
                assert_int_equal(next_work(&bed).n, 3);
                up(&bed, 1, 1, "cpu", 10);
                wait_ms(&bed, 10);
                assert_int_equal(bed.n_work, 0);
                if (lost)
                        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1 + DAEMONS});
                feed(&bed, (struct mfl_core_event){
                                   .kind = MFL_EV_EXPEL, .drain = {.name = "d0"}, .reason = "no more"});
                assert_int_equal(mfl_core_daemon_count(bed.core), 1);
                struct work w = next_work(&bed);
                assert_true(w.daemon == 1 && w.n == 3);
                mfl_core_check(bed.core);
                end(&bed);
        }
        struct bed bed;
        start(&bed, 3);
        boot(&bed);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_EXPEL, .drain = {.name = "d5"}}); /* nobody */
        end(&bed);
}

static void leaving(struct bed *bed, uint32_t conn)
{
        struct mfl_msg msg = {.kind = MFL_MSG_LEAVING, .cancel = {.reason = "it was asked to stop"}};
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
}

/* It keeps its work and gets no other; a new process under its name does. */
static void test_leaving_daemon_gets_nothing_new(void **state)
{
        (void)state;
        struct bed bed;
        struct mfl_core_daemon_view view;
        start(&bed, 3);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        struct work w = next_work(&bed);
        assert_int_equal(w.n, 3);
        leaving(&bed, 1 + DAEMONS);
        mfl_core_daemon_view(bed.core, 0, &view);
        assert_string_equal(view.state, "draining");
        assert_non_null(strstr(view.note, "when its work is done"));
        announce(&bed, &w, 0, w.n);
        assert_int_equal(bed.n_accepted, 1);
        wait_ms(&bed, 20000);
        assert_int_equal(bed.n_work, 0); /* neither the evaluation nor the next round */
        mfl_core_daemon_view(bed.core, 0, &view);
        assert_string_equal(view.state, "drained");
        end(&bed);
}

/* The server has forgotten the process, whose Leaving it had, and another daemon has not come: Hello says it again. What the process
 * computes is taken back as it asks about it; what it had announced meanwhile finds that. */
static void test_leaving_daemon_comes_back_forgotten(void **state)
{
        (void)state;
        struct bed bed;
        struct mfl_core_daemon_view view;
        struct mfl_msg progress = {.kind = MFL_MSG_PROGRESS};
        start(&bed, 3);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        struct work w = next_work(&bed);
        leaving(&bed, 1 + DAEMONS);
        down(&bed, 0);
        wait_ms(&bed, 20000);
        assert_int_equal(mfl_core_daemon_count(bed.core), 0);
        up_as(&bed, 0, 1, "cpu", 10, true);
        wait_ms(&bed, 2000);
        assert_int_equal(bed.n_work, 0);
        mfl_core_daemon_view(bed.core, 0, &view);
        assert_string_equal(view.state, "drained");
        progress.progress.task = w.task;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1 + DAEMONS, .msg = &progress});
        assert_int_equal(bed.n_cancelled, 1);
        announce(&bed, &w, 0, w.n); /* it had crossed the Cancel: there is nothing to grant any more */
        assert_true(bed.n_accepted == 0 && bed.n_refused == 1);
        up(&bed, 1, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        w = next_work(&bed);
        assert_true(w.daemon == 1 && w.n == 3);
        end(&bed);
}

/* Without a Cancel the announced clients, which nobody else has, are still its own. */
static void test_result_of_a_forgotten_daemon_counts(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, 3);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        struct work w = next_work(&bed);
        down(&bed, 0);
        wait_ms(&bed, 20000);
        up_as(&bed, 0, 1, "cpu", 10, true);
        announce(&bed, &w, 0, w.n);
        assert_true(bed.n_accepted == 1 && bed.n_refused == 0);
        end(&bed);
}

/* The connection broke before the Cancel arrived, so the process finished its work. What it announces on the next one is there. */
static void test_result_counts_after_a_lost_cancel(void **state)
{
        (void)state;
        struct bed bed;
        struct mfl_msg progress = {.kind = MFL_MSG_PROGRESS};
        start(&bed, 3);
        boot(&bed);
        up(&bed, 0, 1, "cpu", 10);
        wait_ms(&bed, 2000);
        struct work w = next_work(&bed);
        down(&bed, 0);
        wait_ms(&bed, 20000);
        up_as(&bed, 0, 1, "cpu", 10, true);
        progress.progress.task = w.task;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1 + DAEMONS, .msg = &progress});
        assert_int_equal(bed.n_cancelled, 1);
        down(&bed, 0);
        bed.first_conn = 4 * DAEMONS;
        up_as(&bed, 0, 1, "cpu", 10, true);
        announce(&bed, &w, 0, w.n);
        assert_true(bed.n_accepted == 1 && bed.n_refused == 0);
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_makespan_is_the_least),
                cmocka_unit_test(test_equal_times),
                cmocka_unit_test(test_corners),
                cmocka_unit_test(test_learns_speeds),
                cmocka_unit_test(test_slower_daemon_loses_its_share),
                cmocka_unit_test(test_passed_over_is_tried_again),
                cmocka_unit_test(test_unknown_daemons),
                cmocka_unit_test(test_evaluation_has_speeds_of_its_own),
                cmocka_unit_test(test_modulo),
                cmocka_unit_test(test_restart_deals_the_same),
                cmocka_unit_test(test_taken_task_comes_back_in_pieces),
                cmocka_unit_test(test_comes_drained),
                cmocka_unit_test(test_expelled_daemon_keeps_nothing),
                cmocka_unit_test(test_leaving_daemon_gets_nothing_new),
                cmocka_unit_test(test_leaving_daemon_comes_back_forgotten),
                cmocka_unit_test(test_result_of_a_forgotten_daemon_counts),
                cmocka_unit_test(test_result_counts_after_a_lost_cancel),
        };
        return cmocka_run_group_tests_name("assign", tests, NULL, NULL);
}
