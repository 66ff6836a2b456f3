/* SPDX-License-Identifier: Apache-2.0 */
/* Watching: events to lines and JSON, exit codes, and going on after the server went away. */
#include <stdio.h>

#include "tests/unit/cli/fake.h"

static void send_info(struct fake_conn *c, const Mfl__Envelope *e, Mfl__JobState state, const char *reason)
{
        Mfl__JobInfo info = fake_job("j-000001", "demo", state);
        Mfl__Event event = MFL__EVENT__INIT;
        info.reason = (char *)(uintptr_t)reason;
        event.what_case = MFL__EVENT__WHAT_INFO;
        event.info = &info;
        fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
}

static void send_round(struct fake_conn *c, const Mfl__Envelope *e, uint32_t round, double accuracy)
{
        Mfl__RoundInfo info = fake_round(round, accuracy);
        Mfl__Event event = MFL__EVENT__INIT;
        event.what_case = MFL__EVENT__WHAT_ROUND;
        event.round = &info;
        fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
}

static Mfl__JobState last_state;
static const char *last_reason;

static void answer_rounds(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        assert_int_equal(e->body_case, MFL__ENVELOPE__BODY_WATCH);
        assert_string_equal(e->watch->job, "j-000001");
        assert_int_equal(e->watch->rounds_from, 0);
        send_info(c, e, MFL__JOB_STATE__JOB_RUNNING, "");
        send_round(c, e, 1, 0.25);
        send_round(c, e, 1, 0.25); /* twice is once */
        send_round(c, e, 2, -1);
        send_round(c, e, 3, 0.75);
        send_info(c, e, last_state, last_reason);
}

static void test_lines(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_rounds;
        last_state = MFL__JOB_STATE__JOB_DONE;
        last_reason = "";
        const struct fake_result *r = fake_run(&f, "watch j-000001");
        assert_int_equal(r->status, 0);
        assert_string_equal(r->out,
                "j-000001 demo: running\n"
                "round 1/3  accuracy 0.2500  loss 0.7500  train loss 0.0000  clients 4  0.0 s\n"
                "round 2/3  train loss 0.0000  clients 4  0.0 s\n"
                "round 3/3  accuracy 0.7500  loss 0.2500  train loss 0.0000  clients 4  0.0 s\n"
                "j-000001 demo: done\n"
                "j-000001 demo: done after 3 rounds, accuracy 0.7500, loss 0.2500\n");
        assert_string_equal(r->err, "");
        r = fake_run(&f, "wait j-000001");
        assert_int_equal(r->status, 0);
        assert_string_equal(r->out, "");
        fake_close(&f);
}

static void test_failed(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_rounds;
        last_state = MFL__JOB_STATE__JOB_FAILED;
        last_reason = "diverged";
        const struct fake_result *r = fake_run(&f, "wait j-000001");
        assert_int_equal(r->status, 1);
        assert_string_equal(r->err, "mfl: j-000001 failed: diverged\n");
        r = fake_run(&f, "watch j-000001"); /* the reason is told once */
        assert_non_null(strstr(r->out, "\nj-000001 demo: failed\n"));
        assert_null(strstr(r->out, "diverged"));
        assert_string_equal(r->err, "mfl: j-000001 failed: diverged\n");
        r = fake_run(&f, "watch j-000001 --json");
        assert_int_equal(r->status, 1);
        fake_assert_json(r, "{\"error\":{\"code\":\"failed\",\"text\":\"j-000001 failed: diverged\"}}");
        last_state = MFL__JOB_STATE__JOB_STOPPED;
        assert_int_equal(fake_run(&f, "watch j-000001")->status, 1);
        fake_close(&f);
}

/* A server that knows what the crew does; a later round's line has it, and one event of those that come. */
static void answer_crew(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__JobInfo info = fake_job("j-000001", "demo", MFL__JOB_STATE__JOB_RUNNING);
        Mfl__Event event = MFL__EVENT__INIT;
        Mfl__Crew crew = MFL__CREW__INIT;
        Mfl__CrewMember a = MFL__CREW_MEMBER__INIT, b = a, *members[] = {&a, &b};
        Mfl__Activity activity = MFL__ACTIVITY__INIT;
        assert_true(e->watch->crew);
        send_round(c, e, 1, 0.25);
        activity.workers = 2;
        activity.samples_per_second = 1234.5;
        activity.compute = 0.75;
        activity.network = 0.25;
        activity.samples = 5;
        activity.compute_us = 1500000;
        a.daemon = "d1";
        a.state = "training";
        a.items_done = 3;
        a.items_total = 4;
        a.activity = &activity;
        b.daemon = "d2";
        crew.n_members = 2;
        crew.members = members;
        crew.more = 7;
        event.what_case = MFL__EVENT__WHAT_INFO;
        event.info = &info;
        event.crew = &crew;
        fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
        fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
        send_round(c, e, 2, 0.75);
        send_info(c, e, MFL__JOB_STATE__JOB_DONE, "");
}

static int count(const char *text, const char *part);

static void test_crew(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_crew;
        const struct fake_result *r = fake_run(&f, "watch j-000001");
        assert_int_equal(r->status, 0);
        assert_non_null(strstr(r->out, "clients 4  0.0 s\nj-000001 demo: running\nround 2"));
        assert_non_null(strstr(r->out,
                "clients 4  0.0 s  1234 samples/s  compute 75%  data 0%  network 25%  wait 0%\n"
                "j-000001 demo: done\n"));
        r = fake_run(&f, "watch j-000001 --json");
        assert_int_equal(count(r->out, "{\"event\":\"crew\""), 1);
        assert_non_null(
                strstr(r->out, "{\"event\":\"crew\",\"job\":\"j-000001\",\"daemons\":[{\"name\":\"d1\","
                               "\"state\":\"training\","
                               "\"items_done\":3,\"items_total\":4,\"activity\":{\"workers\":2,\"samples_per_"
                               "second\":1234.5,"
                               "\"compute\":0.75,\"data\":0.0,\"network\":0.25,\"wait\":0.0,\"samples\":5,"
                               "\"compute_seconds\":1.5,"
                               "\"data_seconds\":0.0,\"network_seconds\":0.0,\"wait_seconds\":0.0}},{"
                               "\"name\":\"d2\",\"state\":\"\","
                               "\"items_done\":0,\"items_total\":0,\"activity\":null}],\"more\":7}\n"));
        fake_close(&f);
}

static int count(const char *text, const char *part)
{
        int n = 0;
        for (; (text = strstr(text, part)); text++)
                n++;
        return n;
}

static void test_json(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_rounds;
        last_state = MFL__JOB_STATE__JOB_DONE;
        last_reason = "";
        const struct fake_result *r = fake_run(&f, "watch j-000001 --json");
        assert_int_equal(r->status, 0);
        assert_int_equal(count(r->out, "\n"), 5);
        assert_int_equal(count(r->out, "{\"event\":\"round\",\"job\":\"j-000001\",\"round\":{\"round\":"), 3);
        assert_int_equal(count(r->out, "{\"event\":\"state\",\"job\":{\"job\":\"j-000001\""), 2);
        assert_int_equal(count(r->out, "\"accuracy\":null"), 1);
        json_t *last = fake_json(r);
        assert_string_equal(
                json_string_value(json_object_get(json_object_get(last, "job"), "state")), "done");
        json_decref(last);
        fake_close(&f);
}

/* The first connection dies after round 1; the second is asked for what comes after it. */
static void answer_twice(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        if (f->requests == 1) {
                send_info(c, e, MFL__JOB_STATE__JOB_RUNNING, "");
                send_round(c, e, 1, 0.25);
                fake_cut(c);
                return;
        }
        assert_int_equal(e->watch->rounds_from, 1);
        send_round(c, e, 2, 0.5);
        send_info(c, e, MFL__JOB_STATE__JOB_DONE, "");
}

static void test_reconnect(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_twice;
        const struct fake_result *r = fake_run(&f, "watch j-000001");
        assert_int_equal(r->status, 0);
        assert_int_equal(count(r->out, "round 1/3"), 1);
        assert_int_equal(count(r->out, "round 2/3"), 1);
        assert_int_equal(count(r->err, "connection to the server lost, waiting"), 1);
        assert_int_equal(count(r->err, "connected to the server again"), 1);
        fake_close(&f);
}

static void answer_last_time(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        send_info(c, e, MFL__JOB_STATE__JOB_RUNNING, "");
        fake_stop_listening(f);
        fake_cut(c);
}

static void test_gives_up(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_last_time;
        const struct fake_result *r = fake_run(&f, "wait j-000001 --timeout 1");
        assert_int_equal(r->status, 3);
        assert_int_equal(count(r->err, "connection to the server lost, waiting"), 1);
        fake_close(&f);
}

static void answer_done(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__Done done = MFL__DONE__INIT;
        done.text = "";
        fake_send(c, e, MFL__ENVELOPE__BODY_DONE, &done);
}

static void answer_unknown(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        fake_fail(c, e, MFL__FAILURE_CODE__FAILURE_NOT_FOUND, "no such job");
}

static void test_gone(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_done;
        assert_int_equal(fake_run(&f, "wait j-000001")->status, 4);
        f.on_request = answer_unknown;
        assert_int_equal(fake_run(&f, "watch j-000001")->status, 4);
        fake_close(&f);
}

static void send_line(struct fake_conn *c, const Mfl__Envelope *e, uint64_t seq, const char *text)
{
        Mfl__LogLine line = MFL__LOG_LINE__INIT;
        Mfl__Event event = MFL__EVENT__INIT;
        line.seq = seq;
        line.text = (char *)(uintptr_t)text;
        event.what_case = MFL__EVENT__WHAT_LOG;
        event.log = &line;
        fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
}

static void answer_logs(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        assert_true(e->watch->logs);
        send_line(c, e, 1, "first");
        if (e->watch->follow && f->requests == 2) {
                fake_cut(c);
                return;
        }
        send_line(c, e, 2, "second");
        answer_done(f, c, e);
}

static void test_logs(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_logs;
        const struct fake_result *r = fake_run(&f, "logs j-000001");
        assert_int_equal(r->status, 0);
        assert_int_equal(count(r->out, "first\n"), 1);
        assert_int_equal(count(r->out, "second\n"), 1);
        /* Requests 2 and 3: cut in the middle, and no line twice. */
        r = fake_run(&f, "logs j-000001 -f --json");
        assert_int_equal(r->status, 0);
        assert_int_equal(count(r->out, "\"text\":\"first\""), 1);
        fake_assert_json(r, "{\"event\":\"log\",\"seq\":2,\"time_ms\":0,\"text\":\"second\"}");
        assert_int_equal(f.requests, 3);
        fake_close(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lines),
                cmocka_unit_test(test_crew),
                cmocka_unit_test(test_failed),
                cmocka_unit_test(test_json),
                cmocka_unit_test(test_reconnect),
                cmocka_unit_test(test_gives_up),
                cmocka_unit_test(test_gone),
                cmocka_unit_test(test_logs),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
