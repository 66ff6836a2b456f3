/* SPDX-License-Identifier: Apache-2.0 */
/* The `parallel` key: its defaults, and what is refused, with what to write instead. */
#include "tests/lib/test.h"
#include "common/job/job.h"

#include <stdio.h>

static const char *document(const char *training, const char *parallel)
{
        static char text[1024];
        snprintf(text, sizeof text,
                "name: t\nrounds: 1\ndata: {name: d, partition: iid, clients: 4}\nmodel: mlp\ntraining: {lr: "
                "1%s}\n"
                "parallel: %s\n",
                training, parallel);
        return text;
}

static void assert_grain(const char *training, const char *parallel, uint32_t members, uint32_t grain)
{
        const char *text = document(training, parallel);
        struct mfl_job *job;
        struct mfl_error err = {""};
        if (mfl_job_parse(text, strlen(text), "j.yaml", &job, &err))
                fail_msg("%s", err.text);
        assert_int_equal(job->parallel.members, members);
        assert_int_equal(job->parallel.grain, grain);
        mfl_job_free(job);
}

static void assert_refused(const char *training, const char *parallel, const char *want)
{
        const char *text = document(training, parallel);
        struct mfl_job *job;
        struct mfl_error err = {""};
        assert_int_equal(mfl_job_parse(text, strlen(text), "j.yaml", &job, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
}

static void the_grain_follows_from_batch_and_members(void **state)
{
        assert_grain("", "{grain: 8}", 0, 8);
        assert_grain("", "{members: auto, grain: 32}", 0, 32);
        assert_grain("", "{members: 1}", 1, 32);
        assert_grain("", "{members: 3}", 3, 8);
        assert_grain("", "{members: 4, within: daemon, exact: true}", 4, 8);
        assert_grain("", "{members: 4, within: any}", 4, 8);
        assert_grain(", batch: 12", "{members: 64}", 64, 3);
        assert_grain(", batch: 10, accumulate: 3", "{members: 2, grain: 2}", 2, 2);
        /* Four grains or more, as few as the batch allows. */
        assert_grain("", "auto", 0, 8);
        assert_grain("", "{members: auto}", 0, 8);
        assert_grain("", "{members: {min: 2}}", 0, 8);
        assert_grain(", batch: 10", "auto", 0, 2);
        assert_grain(", batch: 7", "auto", 0, 1);
        assert_grain(", batch: 3", "auto", 0, 1);
        assert_grain(", batch: 8, accumulate: 4", "auto", 0, 8);
}

static void assert_zero(const char *parallel, int zero, bool exact)
{
        const char *text = document("", parallel);
        struct mfl_job *job;
        struct mfl_error err = {""};
        if (mfl_job_parse(text, strlen(text), "j.yaml", &job, &err))
                fail_msg("%s", err.text);
        assert_int_equal(job->parallel.zero, zero);
        assert_int_equal(job->parallel.exact, exact);
        mfl_job_free(job);
}

static void stages_and_sums(void **state)
{
        assert_zero("{grain: 8}", MFL_ZERO_AUTO, true);
        assert_zero("{grain: 8, zero: auto}", MFL_ZERO_AUTO, true);
        assert_zero("{grain: 8, zero: 0}", 0, true);
        assert_zero("{grain: 8, zero: 2}", 2, true);
        assert_zero("{grain: 8, zero: 3}", 3, true);
        assert_zero("{grain: 8, exact: false}", 1, false);
        assert_zero("{grain: 8, exact: false, zero: 0}", 0, false);
}

static void what_cannot_be_done_is_refused(void **state)
{
        assert_refused("", "{}",
                "j.yaml:6: parallel: needs grain, the samples of one gradient, which decides the result; for "
                "example 8, "
                "a quarter of training.batch");
        assert_refused("", "none", "j.yaml:6: parallel: takes keys, such as {grain: 8}, or auto");
        assert_refused(", batch: 1", "auto",
                "j.yaml:6: parallel: a step of one sample can't be shared out; remove parallel");
        assert_refused("", "{grain: 33}",
                "j.yaml:6: parallel.grain: 33 samples are more than training.batch, which is 32");
        assert_refused("", "{grain: 5}",
                "j.yaml:6: parallel.grain: training.batch, which is 32, is no multiple of 5");
        assert_refused("", "{grain: 8, within: rack}",
                "j.yaml:6: parallel.within: expected one of 'daemon', 'node', 'any', got 'rack'");
        assert_refused("", "{grain: 8, zero: 4}",
                "j.yaml:6: parallel.zero: expected a whole number from 0 to 3, got '4'");
        assert_refused("", "{grain: 8, exact: false, zero: 2}",
                "j.yaml:6: parallel.zero: with exact: false, stages 2 and 3 would add gradients in another "
                "order than stages 0 and 1; write 1, or exact: true");
        assert_refused("", "{grain: 8, bucket: 1KiB}",
                "j.yaml:6: parallel.bucket: expected a size like 512MiB or 4GiB from 65536 bytes to 1GiB, "
                "got '1KiB'");
        assert_refused("", "{grain: 8, zero: 0, snapshot: 10}",
                "j.yaml:6: parallel.snapshot: in stage 0 each member has all of the training's state, and "
                "nothing is lost with one; leave snapshot out, or write zero: 1, 2 or 3");
        assert_refused("", "{grain: 8, within: daemon, snapshot: 10}",
                "j.yaml:6: parallel.snapshot: a snapshot is kept by another daemon of the team; write "
                "within: node or any, or leave snapshot out");
        assert_refused("", "{grain: 8, exact: false, zero: 1, snapshot: 10}",
                "j.yaml:6: parallel.snapshot: with exact: false the model depends on the number of members, "
                "so another team can't go on; leave snapshot out, or write exact: true");
        assert_refused("", "{grain: 8, snapshot: -1}",
                "j.yaml:6: parallel.snapshot: expected a whole number from 0 to 1000000, got '-1'");
        assert_refused(", fuse: 2", "{grain: 8}",
                "j.yaml:5: training.fuse: parallel trains one client at a time on each of its workers; leave "
                "fuse out, or write 1");
        assert_refused(", backend: cuda, precision: fp16", "{grain: 8, exact: false}",
                "j.yaml:5: training.precision: sums of floats do not tell which step overflows; write bf16 "
                "or "
                "fp32, or exact: true");
        assert_refused(
                "", "{grain: 8, members: {max: 4}}", "j.yaml:6: parallel.members: key 'min' is missing");
        assert_refused("", "{grain: 8, members: {min: 0, max: 4}}",
                "j.yaml:6: parallel.members.min: expected a whole number from 1 to 64, got '0'");
        assert_refused("", "{grain: 8, members: {min: 4, max: 2}}",
                "j.yaml:6: parallel.members: min, which is 4, is more than max, which is 2");
        assert_refused("", "{grain: 16, members: {min: 3}}",
                "j.yaml:6: parallel.members: min is 3, but a step of 32 samples has 2 grains, and a worker "
                "needs one; "
                "write 2 at most, or a smaller grain");
        assert_refused("", "{grain: 8, within: daemon, members: {min: 2}}",
                "j.yaml:6: parallel.members: min is for teams of several daemons; write within: node or any, "
                "or leave min out");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_grain_follows_from_batch_and_members),
                cmocka_unit_test(stages_and_sums),
                cmocka_unit_test(what_cannot_be_done_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
