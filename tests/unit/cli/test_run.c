/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl run` without programs to run: what is refused before anything starts, and children that die at once.
 * Whole runs are tested end to end, with the real server and daemons. */
#include <stdio.h>
#include <unistd.h>

#include "cli/run/run.h"
#include "common/base/fs.h"
#include "tests/unit/cli/fake.h"

#define TEXT                                                                                                 \
        "name: t\nseed: 1\nrounds: 2\nmodel: mlp\ndata: {name: d, partition: iid, clients: 2}\n"             \
        "training: {lr: 0.1, epochs: 1, batch: 8}\n"

#define DATA " --data d=synthetic:1,4,4:2:40:10:1"

static const char *job_path(void)
{
        const char *path = fake_path("job.yaml");
        fake_write_file(path, TEXT);
        return path;
}

static void check(const struct fake_result *r, int status, const char *part)
{
        if (r->status != status || !strstr(r->err, part))
                fail_msg("exit code %d (expected %d), stderr '%s' (expected '%s')", r->status, status, r->err,
                        part);
}

static void test_refused(void **state)
{
        struct fake f;
        fake_open(&f);
        const char *job = job_path(), *out = fake_path("out"), *full = fake_path("full");
        setenv("MFL_SERVER_PROGRAM", "/bin/false", 1);
        setenv("MFL_CLIENT_PROGRAM", "/bin/false", 1);
        check(fake_run(&f, "run %s --out %s" DATA, fake_path("none.yaml"), out), 4, "none.yaml");
        check(fake_run(&f, "run %s --out %s --data nonsense", job, out), 5, "NAME=FORMAT:PATH");
        check(fake_run(&f, "run %s --out %s", job, out), 4,
                "data set is 'd': give its folder with --data d=FORMAT:DIR");
        check(fake_run(&f, "run %s --out %s --data e=synthetic:1,4,4:2:40:10:1", job, out), 4,
                "data set is 'd'");
        check(fake_run(&f, "run %s --out %s --data d=csv:/nonexistent/x.csv", job, out), 4,
                "/nonexistent/x.csv: No such file");
        assert_int_not_equal(access(out, F_OK), 0); /* there was nothing to keep */
        fake_run(&f, "run %s --out %s" DATA, job, full);
        check(fake_run(&f, "run %s --out %s" DATA, job, full), 6, "is not empty");
        setenv("MFL_SERVER_PROGRAM", "/nonexistent/mfl-server", 1);
        check(fake_run(&f, "run %s --out %s" DATA, job, fake_path("out2")), 1, "MFL_SERVER_PROGRAM");
        fake_close(&f);
}

static const char *write_script(const char *name, const char *text)
{
        char command[512];
        const char *path = fake_path(name);
        fake_write_file(path, text);
        snprintf(command, sizeof command, "chmod +x '%s'", path);
        assert_int_equal(system(command), 0);
        return path;
}

/* A server that dies before it listens: told at once, with what it said. */
static void test_server_dies(void **state)
{
        struct fake f;
        fake_open(&f);
        setenv("MFL_CLIENT_PROGRAM", "/bin/false", 1);
        setenv("MFL_SERVER_PROGRAM",
                write_script("dying", "#!/bin/sh\necho 'no room for a state directory' >&2\nexit 1\n"), 1);
        const struct fake_result *r =
                fake_run(&f, "run %s --out %s" DATA " --json", job_path(), fake_path("dies"));
        check(r, 1, "server exited with status 1");
        check(r, 1, "| no room for a state directory");
        json_t *json = fake_json(r);
        assert_non_null(json_object_get(json, "error"));
        json_decref(json);
        fake_close(&f);
}

static void answer(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__Submitted s = MFL__SUBMITTED__INIT;
        Mfl__Done done = MFL__DONE__INIT;
        Mfl__JobInfo info = fake_job("j-000001", "t", MFL__JOB_STATE__JOB_WAITING);
        Mfl__Event event = MFL__EVENT__INIT;
        s.job = "j-000001";
        done.text = "";
        info.reason = "no daemon";
        event.what_case = MFL__EVENT__WHAT_INFO;
        event.info = &info;
        if (e->body_case == MFL__ENVELOPE__BODY_SUBMIT)
                fake_send(c, e, MFL__ENVELOPE__BODY_SUBMITTED, &s);
        else if (e->body_case == MFL__ENVELOPE__BODY_WATCH)
                fake_send(c, e, MFL__ENVELOPE__BODY_EVENT, &event);
        else
                fake_send(c, e, MFL__ENVELOPE__BODY_DONE, &done);
}

/* The server's part is played by the fake, behind a script that only tells the address and ends with its
 * standard input; daemons are this script. */
static void play(struct fake *f, const char *daemon)
{
        char script[256];
        fake_open(f);
        f->on_request = answer;
        snprintf(script, sizeof script, "#!/bin/sh\necho %s >&3\nread x\n", f->address);
        setenv("MFL_SERVER_PROGRAM", write_script("telling", script), 1);
        setenv("MFL_CLIENT_PROGRAM", write_script("playing", daemon), 1);
}

/* Every daemon dies at once: each is started four times, and then the run ends. */
static void test_daemons_die(void **state)
{
        struct fake f;
        play(&f, "#!/bin/sh\necho $* >&2\nexit 7\n");
        const struct fake_result *r = fake_run(
                &f, "run %s --out %s" DATA " --daemons 2 --threads 3", job_path(), fake_path("daemons"));
        check(r, 1, "local-2 exited with status 7");
        check(r, 1, "repeatedly");
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                "| --server %s --name local-1 --workers 3 --state-dir %s/sites/local-1" DATA
                " --share-gpu --exit-with-stdin\n",
                f.address, fake_path("daemons"));
        check(r, 1, arguments);
        int n = 0;
        for (const char *at = r->err; (at = strstr(at, "exited with status 7; it")); at++)
                n++;
        assert_int_equal(n, 8);
        /* With --json the result is the last line, of a run that failed too. */
        r = fake_run(&f, "run %s --out %s" DATA " --daemons 1 --json", job_path(), fake_path("json"));
        assert_int_equal(r->status, 1);
        json_t *last = fake_json(r);
        assert_string_equal(json_string_value(json_object_get(last, "event")), "result");
        assert_string_equal(json_string_value(json_object_get(last, "job")), "j-000001");
        assert_true(json_is_null(json_object_get(last, "accuracy")));
        assert_int_equal(json_integer_value(json_object_get(last, "rounds")), 0);
        json_decref(last);
        assert_non_null(strstr(r->out, "{\"error\":{\"code\":\"failed\""));
        fake_close(&f);
}

/* Where the configuration is wrong once it is wrong for ever: the reason is told once, and nothing is left.
 */
static void test_wrong_configuration(void **state)
{
        struct fake f;
        play(&f, "#!/bin/sh\necho '12:00:00 mfl-client: error: x.csv: is empty' >&2\nexit 78\n");
        const struct fake_result *r =
                fake_run(&f, "run %s --out %s" DATA " --daemons 2", job_path(), fake_path("refused"));
        check(r, 1, ": x.csv: is empty\n");
        assert_int_not_equal(access(fake_path("refused"), F_OK), 0); /* nothing was trained */
        const char *first = strstr(r->err, "x.csv: is empty");
        assert_null(strstr(first + 1, "x.csv: is empty"));
        assert_null(strstr(r->err, "again"));
        assert_null(strstr(r->out, "rounds"));
        fake_close(&f);
}

/* The table of rounds, to the letter: scripts find columns by number, too, so new ones come last. */
static void test_rounds_csv(void **state)
{
        struct mfl_watch_round rounds[2] = {{.info = fake_round(1, -1)}, {.info = fake_round(2, 0.5)}};
        struct mfl_run run = {.watch = {.all = rounds, .n = 2}};
        struct mfl_error err = {""};
        const char *path = fake_path("rounds.csv");
        char *text = NULL;
        size_t bytes;
        rounds[1].info.bytes_up = 10;
        rounds[1].info.bytes_down = 5;
        rounds[1].info.bytes_up_alone = 40;
        rounds[1].info.bytes_down_alone = 20;
        rounds[1].info.daemons = 4;
        rounds[1].digest[31] = 0xef;
        rounds[1].measures = (struct mfl_measures){.known = 1u << MFL_MEASURE_CLIENT_MEAN,
                .clients = 7,
                .v = {[MFL_MEASURE_CLIENT_MEAN] = 0.25},
                .bins = {[9] = 3}};
        rounds[1].metrics = (struct mfl_metrics){.n = 2, .v = {0.75, (double)NAN}, .names = "f-beta,kappa"};
        mfl_strcpy(run.out, sizeof run.out, path);
        *strrchr(run.out, '/') = '\0';
        if (mfl_run_write_rounds(&run, &err) || mfl_fs_read(path, 10000, &text, &bytes, &err))
                fail_msg("%s", err.text);
        assert_string_equal(text,
                "round,accuracy,loss,train_loss,train_accuracy,samples,clients,clients_"
                "rejected,bytes_up,bytes_down,"
                "seconds,attempt,daemons,digest,bytes_up_alone,bytes_down_alone,mean_iou,virtual_start,"
                "virtual_end,clamped,clients_evaluated,client_bins,client_mean,client_variance,client_worst,"
                "client_best,client_low,client_high,macro_f1,mae,rmse,r2,"
                "staleness_mean,staleness_max,dropped,epsilon,backdoor,clip,metrics\n"
                "1,,,0,0,0,4,0,0,0,0.000,0,0,"
                "0000000000000000000000000000000000000000000000000000000000000000,0,0,,,,0,,,,,,,,,,,,,,,,,,,"
                "\n"
                "2,0.5,0.5,0,0,0,4,0,10,5,0.000,0,4,"
                "00000000000000000000000000000000000000000000000000000000000000ef,40,20,,,,0,7,"
                "0 0 0 0 0 0 0 0 0 3,0.25,,,,,,,,,,,,,,,,f-beta=0.75 kappa=\n");
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_server_dies),
                cmocka_unit_test(test_daemons_die),
                cmocka_unit_test(test_wrong_configuration),
                cmocka_unit_test(test_rounds_csv),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
