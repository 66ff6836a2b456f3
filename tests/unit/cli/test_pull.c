/* SPDX-License-Identifier: Apache-2.0 */
/* Pulling a model: the file is right, and what is damaged or cut leaves none. */
#include <stdio.h>

#include "common/base/digest.h"
#include "common/model/safetensors.h"
#include "tests/unit/cli/fake.h"

#define TEXT                                                                                                 \
        "name: t\nseed: 1\nrounds: 2\nmodel: logistic\ndata: {name: d, partition: iid, clients: 2}\n"        \
        "training: {lr: 0.1, epochs: 1, batch: 8}\n"
#define N (600 * 601) /* logistic, 600 features and 600 classes: two frames */

static float params[N];
static enum { GOOD, BAD_DIGEST, CUT, GAP, WRONG_SHAPE } mode;
static int64_t asked_round;

static void send_params(
        struct fake_conn *c, const Mfl__Envelope *e, uint8_t *digest, uint64_t from, uint64_t n)
{
        Mfl__Params p = MFL__PARAMS__INIT;
        p.job = "j-000001";
        p.digest = (ProtobufCBinaryData){.len = 32, .data = digest};
        p.offset = from;
        p.total = N;
        fake_send_payload(c, e, MFL__ENVELOPE__BODY_PARAMS, &p, params + from, n * sizeof(float));
}

static void answer(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        static uint8_t digest[32];
        uint32_t input[] = {mode == WRONG_SHAPE ? 500 : 600};
        Mfl__RoundInfo round = fake_round(2, 0.5);
        Mfl__PullBegin begin = MFL__PULL_BEGIN__INIT;
        assert_int_equal(e->body_case, MFL__ENVELOPE__BODY_PULL);
        asked_round = e->pull->round;
        assert_int_equal(mfl_sha256(params, sizeof params, digest, NULL), 0);
        digest[0] ^= mode == BAD_DIGEST;
        round.digest = (ProtobufCBinaryData){.len = 32, .data = digest};
        begin.round = &round;
        begin.n_params = N;
        begin.text = TEXT;
        begin.n_input = 1;
        begin.input = input;
        begin.classes = 600;
        fake_send(c, e, MFL__ENVELOPE__BODY_PULL_BEGIN, &begin);
        send_params(c, e, digest, 0, N / 2);
        if (mode == CUT)
                fake_cut(c);
        else
                send_params(c, e, digest, mode == GAP ? N / 2 + 1 : N / 2, mode == GAP ? N / 2 - 1 : N / 2);
}

static void fill(void)
{
        for (int i = 0; i < N; i++)
                params[i] = (float)(i % 1000) * 0.001f;
}

static void test_good(void **state)
{
        struct fake f;
        struct mfl_st_file *file;
        struct mfl_error err;
        char expected[512], hex[65];
        uint8_t digest[32];
        fill();
        fake_open(&f);
        f.on_request = answer;
        mode = GOOD;
        const char *path = fake_path("m.safetensors");
        const struct fake_result *r = fake_run(&f, "pull j-000001 --round best -o %s --json", path);
        if (r->status)
                fail_msg("%s", r->err);
        assert_int_equal(asked_round, -2);
        assert_int_equal(mfl_sha256(params, sizeof params, digest, NULL), 0);
        mfl_hex(digest, 32, hex);
        snprintf(expected, sizeof expected,
                "{\"job\":\"j-000001\",\"round\":2,\"file\":\"%s\",\"digest\":\"%s\",\"params\":%d,"
                "\"accuracy\":0.5,\"loss\":0.5}",
                path, hex, N);
        fake_assert_json(r, expected);
        assert_int_equal(mfl_st_open(path, &file, &err), 0);
        assert_int_equal(mfl_st_count(file), 2);
        assert_string_equal(mfl_st_meta_get(file, "job"), "j-000001");
        assert_string_equal(mfl_st_meta_get(file, "round"), "2");
        assert_string_equal(mfl_st_meta_get(file, "digest"), hex);
        assert_string_equal(mfl_st_meta_get(file, "accuracy"), "0.5");
        const struct mfl_st_tensor *w = mfl_st_tensor_at(file, 0), *b = mfl_st_tensor_at(file, 1);
        assert_int_equal(w->count + b->count, N);
        assert_memory_equal(w->data, params, w->count * sizeof(float));
        assert_memory_equal(b->data, params + w->count, b->count * sizeof(float));
        mfl_st_close(file);
        assert_int_equal(fake_run(&f, "pull j-000001 -o %s", path)->status, 0);
        assert_int_equal(asked_round, -1);
        assert_int_equal(fake_run(&f, "pull j-000001 --round 7 -o %s", path)->status, 0);
        assert_int_equal(asked_round, 7);
        assert_int_equal(fake_run(&f, "pull j-000001 --round x -o %s", path)->status, 2);
        fake_close(&f);
}

static void check_refused(int m, int status, const char *part)
{
        struct fake f;
        fill();
        fake_open(&f);
        f.on_request = answer;
        mode = m;
        const char *path = fake_path("bad.safetensors");
        const struct fake_result *r = fake_run(&f, "pull j-000001 -o %s", path);
        assert_int_equal(r->status, status);
        if (!strstr(r->err, part))
                fail_msg("'%s' is not in '%s'", part, r->err);
        assert_false(fake_exists(path));
        fake_close(&f);
}

static void test_refused(void **state)
{
        check_refused(BAD_DIGEST, 3, "not the one that the server sent");
        check_refused(CUT, 3, "the peer closed the connection");
        check_refused(GAP, 3, "params out of order");
        check_refused(WRONG_SHAPE, 5, "parameters");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_good),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
