/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting: what reaches the server, and what is refused before it gets there. */
#include <stdio.h>

#include "common/model/safetensors.h"
#include "tests/unit/cli/fake.h"

#include <fcntl.h>
#include <unistd.h>

#define TEXT                                                                                                 \
        "name: t\nseed: 1\nrounds: 2\nmodel: mlp\ndata: {name: d, partition: iid, clients: 2}\n"             \
        "training: {lr: 0.1, epochs: 1, batch: 8}\n"

static char seen_text[4096], seen_file[64], seen_token[64];
static uint64_t seen_count;

static void answer(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        static uint64_t request;
        Mfl__Submitted s = MFL__SUBMITTED__INIT;
        s.job = "j-000009";
        if (e->body_case == MFL__ENVELOPE__BODY_SUBMIT) {
                snprintf(seen_text, sizeof seen_text, "%s", e->submit->text);
                snprintf(seen_file, sizeof seen_file, "%s", e->submit->file);
                snprintf(seen_token, sizeof seen_token, "%s", e->submit->token);
                seen_count = e->submit->initial_count;
                request = e->request;
        } else {
                assert_int_equal(e->body_case, MFL__ENVELOPE__BODY_INITIAL);
                assert_int_equal(e->request, request);
        }
        if (f->n_received == seen_count)
                fake_send(c, e, MFL__ENVELOPE__BODY_SUBMITTED, &s);
}

static void test_plain(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer;
        const char *path = fake_path("job.yaml");
        fake_write_file(path, TEXT);
        const struct fake_result *r = fake_run(&f, "submit %s --token tok --json", path);
        assert_int_equal(r->status, 0);
        fake_assert_json(r, "{\"job\":\"j-000009\",\"existed\":false}");
        assert_string_equal(seen_text, TEXT);
        assert_string_equal(seen_file, "job.yaml");
        assert_string_equal(seen_token, "tok");
        assert_int_equal(seen_count, 0);
        r = fake_run(&f, "submit %s", path);
        assert_string_equal(r->out, "j-000009 t\n");
        assert_string_equal(seen_token, "");
        fake_close(&f);
}

static void check_invalid(struct fake *f, const char *text, const char *part)
{
        const char *path = fake_path("bad.yaml");
        fake_write_file(path, text);
        const struct fake_result *r = fake_run(f, "submit %s --json", path);
        assert_int_equal(r->status, 5);
        json_t *json = fake_json(r);
        const char *got = json_string_value(json_object_get(json_object_get(json, "error"), "text"));
        if (!got || !strstr(got, part))
                fail_msg("'%s' is not in '%s'", part, got ? got : r->out);
        json_decref(json);
}

/* A wrong job is found here, with its line, and nothing is sent. */
static void test_invalid(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer;
        check_invalid(&f, "name: t\nseed: 1\nroundz: 2\n", "bad.yaml:3: ");
        check_invalid(&f, TEXT "initial: x\n", "bad.yaml:7: ");
        check_invalid(&f, TEXT "# \xe2\x80\xae drawkcab\n", "bad.yaml:7: column 3 has U+202E");
        check_invalid(&f, "name: \"a\\eb\"\n", "bad.yaml:1: name: must be letters");
        assert_int_equal(f.connections, 0);
        const struct fake_result *r = fake_run(&f, "submit %s --json", fake_path("none.yaml"));
        assert_int_equal(r->status, 4);
        r = fake_run(&f, "submit '%s'", fake_path("n\033[31m\xc2\x9bone.yaml"));
        assert_int_equal(r->status, 4);
        assert_non_null(strstr(r->err, "n?[31m?one.yaml"));
        r = fake_run(&f, "submit %s --json", fake_path("none.yaml"));
        assert_int_equal(r->status, 4);
        r = fake_run(&f, "check %s/demo.yaml --json", getenv("MFL_EXAMPLES"));
        assert_int_equal(r->status, 0);
        fake_assert_json(r,
                "{\"valid\":true,\"name\":\"fashion-demo\",\"rounds\":4,\"model\":\"fedavg-cnn\",\"params\":"
                "null,\"moving\":null,"
                "\"data\":\"fashion-mnist\",\"partition\":\"iid\",\"clients\":10,\"strategy\":\"fedavg\","
                "\"samples\":null,\"privacy\":null}");
        /* What is valid, but hardly meant. */
        fake_write_file(fake_path("soft.yaml"),
                "name: t\nrounds: 1\nmodel: {layers: [dense: {units: 4}, softmax]}\n"
                "data: {name: d}\ntraining: {lr: 0.1}\n");
        r = fake_run(&f, "check %s", fake_path("soft.yaml"));
        assert_int_equal(r->status, 0);
        assert_non_null(
                strstr(r->err, "soft.yaml: the model ends with softmax, but the loss cross-entropy already"));
        fake_close(&f);
}

/* ---- model.initial ---- */

static float value(uint64_t i)
{
        return (float)i * 0.25f - 3;
}

static struct mfl_graph *write_initial(const char *path)
{
        struct mfl_shape input = {.rank = 3, .dim = {1, 28, 28}};
        struct mfl_graph *g;
        struct mfl_error err;
        assert_int_equal(mfl_graph_preset("fedavg-cnn", &input, 10, &g, &err), 0);
        float *params = malloc(g->n * sizeof *params);
        struct mfl_st_tensor *t = calloc((size_t)g->n_params, sizeof *t);
        assert_true(params && t);
        for (uint64_t i = 0; i < g->n; i++)
                params[i] = value(i);
        mfl_st_from_params(g, params, t);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(mfl_st_write(fd, path, t, g->n_params, NULL, 0, &err), 0);
        close(fd);
        free(params);
        free(t);
        return g;
}

#define INITIAL_TEXT                                                                                         \
        "name: t\nseed: 1\nrounds: 2\nmodel: {preset: fedavg-cnn%s, initial: %s}\n"                          \
        "data: {name: d, partition: iid, clients: 2}\ntraining: {lr: 0.1, epochs: 1, batch: 8}\n"

/* 1,663,370 floats: seven frames of at most 1 MiB. */
static void test_initial(void **state)
{
        struct fake f;
        char text[1024];
        fake_open(&f);
        f.on_request = answer;
        const char *model = fake_path("initial.safetensors"), *path = fake_path("initial.yaml");
        struct mfl_graph *g = write_initial(model);
        snprintf(text, sizeof text, INITIAL_TEXT, ", input: [1, 28, 28], classes: 10", model);
        fake_write_file(path, text);
        const struct fake_result *r = fake_run(&f, "submit %s", path);
        if (r->status)
                fail_msg("%s", r->err);
        assert_int_equal(seen_count, g->n);
        assert_int_equal(f.n_received, g->n);
        assert_int_equal(f.requests, 1 + 7);
        for (uint64_t i = 0; i < g->n; i++)
                if (f.received[i] != value(i))
                        fail_msg("float %d is %g", (int)i, (double)f.received[i]);
        mfl_graph_free(g);
        fake_close(&f);
}

static void refuse(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        if (e->body_case == MFL__ENVELOPE__BODY_SUBMIT)
                fake_fail(c, e, MFL__FAILURE_CODE__FAILURE_LIMIT, "too large for this server");
}

/* A refusal that comes while params are still on their way is told as it is. */
static void test_initial_refused(void **state)
{
        struct fake f;
        char text[1024];
        fake_open(&f);
        f.on_request = refuse;
        const char *model = fake_path("initial.safetensors"), *path = fake_path("initial.yaml");
        mfl_graph_free(write_initial(model));
        snprintf(text, sizeof text, INITIAL_TEXT, ", input: [1, 28, 28], classes: 10", model);
        fake_write_file(path, text);
        const struct fake_result *r = fake_run(&f, "submit %s", path);
        assert_int_equal(r->status, 6);
        assert_string_equal(r->err, "mfl: too large for this server\n");
        fake_close(&f);
}

static void test_initial_wrong(void **state)
{
        struct fake f;
        char text[1024];
        fake_open(&f);
        f.on_request = answer;
        const char *model = fake_path("other.safetensors");
        snprintf(text, sizeof text, INITIAL_TEXT, "", model);
        check_invalid(&f, text, "needs model.input and model.classes");
        fake_write_file(model, "not a model");
        snprintf(text, sizeof text, INITIAL_TEXT, ", input: [1, 28, 28], classes: 10", model);
        check_invalid(&f, text, "other.safetensors");
        assert_int_equal(f.connections, 0);
        fake_close(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_plain),
                cmocka_unit_test(test_invalid),
                cmocka_unit_test(test_initial),
                cmocka_unit_test(test_initial_refused),
                cmocka_unit_test(test_initial_wrong),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
