/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol: numbers, paths, requests in every shape, answers. */
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "serve/kserve/kserve.h"

static struct mfl_error err;

static const struct mfl_kserve_model images = {.name = "m",
        .version = "v1",
        .digest = "d",
        .round = 7,
        .type = MFL_TENSOR_F32,
        .rank = 2,
        .dim = {2, 2},
        .elements = 4,
        .output = "logits",
        .outputs = 3,
        .positions = 1};
static const struct mfl_kserve_model tokens = {.name = "t",
        .version = "v1",
        .round = -1,
        .type = MFL_TENSOR_I32,
        .vocabulary = 10,
        .rank = 1,
        .dim = {3},
        .elements = 3,
        .output = "logits",
        .outputs = 30,
        .positions = 3};
static const struct mfl_kserve_model pixels = {.name = "p",
        .version = "v1",
        .round = -1,
        .type = MFL_TENSOR_U8,
        .rank = 1,
        .dim = {2},
        .elements = 2,
        .output = "logits",
        .outputs = 2,
        .positions = 1};

/* ---- numbers ---- */

static double number(const char *text)
{
        struct mfl_scan json;
        double value = NAN;
        mfl_scan_open(&json, text, strlen(text), &err);
        return mfl_scan_number(&json, &value) || mfl_scan_end(&json) ? NAN : value;
}

/* The same bits as strtod, which the C library rounds correctly. */
static void numbers_are_rounded_once(void **state)
{
        static const char *const texts[] = {"0", "-0", "1", "-1.5", "1e22", "1e23", "123456789012345678",
                "1234567890123456789", "9007199254740993", "9007199254740992.5", "0.1", "0.30000000000000004",
                "2.2250738585072011e-308", "4.9e-324", "1e-400", "1.7976931348623157e308", "1e999",
                "0.000000000000000000000000000000001", "18446744073709551615", "18446744073709551616",
                "0.10000000149011612", "1E+2", "1e-2", "6929495644600919.5", "3.4028235677973366e38",
                "8.5e-19", "99999999999999999999999999"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++) {
                const double got = number(texts[i]), expected = strtod(texts[i], NULL);
                assert_memory_equal(&got, &expected, sizeof got);
        }
        uint64_t random = 1;
        for (int i = 0; i < 200000; i++) {
                char text[64];
                random = random * 6364136223846793005u + 1442695040888963407u;
                const int digits = 1 + (int)(random >> 60), power = (int)(random >> 40) % 60 - 30;
                snprintf(text, sizeof text, i & 1 ? "%llue%d" : "0.%llue%d",
                        (unsigned long long)(random >> (digits * 3)), power);
                const double got = number(text), expected = strtod(text, NULL);
                assert_memory_equal(&got, &expected, sizeof got);
        }
        static const char *const wrong[] = {
                "", "-", "01", "1.", ".5", "1e", "+1", "0x10", "1e+", "NaN", "Infinity", "--1", "1 2"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++)
                assert_true(isnan(number(wrong[i])));
}

static void floats_read_back_the_same(void **state)
{
        uint32_t random = 1;
        for (int i = 0; i < 300000; i++) {
                float value;
                random = random * 1664525u + 1013904223u;
                memcpy(&value, &random, sizeof value);
                if (i % 2)
                        value = (float)random * 0x1p-32f * (i % 4 > 1 ? 100.0f : 1.0f);
                if (!isfinite(value))
                        continue;
                struct mfl_reply reply = {0};
                mfl_reply_float(&reply, value);
                mfl_reply_bytes(&reply, "", 1);
                const float back = (float)number(reply.v + MFL_REPLY_HEAD_BYTES);
                assert_memory_equal(&back, &value, sizeof back);
                mfl_reply_deinit(&reply);
        }
}

static void floats_are_short(void **state)
{
        static const struct {
                float value;
                const char *text;
        } cases[] = {{0.1f, "0.1"}, {-0.0f, "-0"}, {1, "1"}, {1234567, "1234567"}, {0.25f, "0.25"},
                {1e-7f, "1e-07"}, {100000000, "100000000"}, {16777216, "16777216"},
                {3.1415927f, "3.1415927"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_reply reply = {0};
                mfl_reply_float(&reply, cases[i].value);
                mfl_reply_bytes(&reply, "", 1);
                assert_string_equal(reply.v + MFL_REPLY_HEAD_BYTES, cases[i].text);
                mfl_reply_deinit(&reply);
        }
}

/* ---- paths ---- */

static void path_is(const char *path, enum mfl_kserve_what what, const char *model, const char *version)
{
        struct mfl_kserve_path p;
        mfl_kserve_path(path, &p);
        assert_int_equal(p.what, what);
        if (what != MFL_KSERVE_NOWHERE) {
                assert_string_equal(p.model, model);
                assert_string_equal(p.version, version);
        }
}

static void paths(void **state)
{
        path_is("/v2", MFL_KSERVE_SERVER, "", "");
        path_is("/v2/health/live", MFL_KSERVE_LIVE, "", "");
        path_is("/v2/models/m", MFL_KSERVE_MODEL, "m", "");
        path_is("/v2/models/m/ready", MFL_KSERVE_MODEL_READY, "m", "");
        path_is("/v2/models/m/infer", MFL_KSERVE_INFER, "m", "");
        path_is("/v2/models/m/versions/v1", MFL_KSERVE_MODEL, "m", "v1");
        path_is("/v2/models/m/versions/v1/infer", MFL_KSERVE_INFER, "m", "v1");
        path_is("/v2/models/m/versions/v1/ready", MFL_KSERVE_MODEL_READY, "m", "v1");
        path_is("/v2/models/versions/infer", MFL_KSERVE_INFER, "versions", "");
        path_is("/v2/models/m/rollback", MFL_KSERVE_ROLLBACK, "m", "");
        path_is("/", MFL_KSERVE_PAGE, "", "");
        static const char *const nowhere[] = {"", "//", "/v1", "/v2/models", "/v2/models/",
                "/v2/models//infer", "/v2/models/m/", "/v2/models/m/versions", "/v2/models/m/versions/",
                "/v2/models/m/versions//infer", "/v2/models/m/versions/v/rollback", "/v2/modelsm",
                "/v2/models/m/infer/x",
                "/v2/models/0123456789012345678901234567890123456789012345678901234567890123456789/infer"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(nowhere); i++)
                path_is(nowhere[i], MFL_KSERVE_NOWHERE, "", "");
}

/* ---- requests ---- */

static int parse(const struct mfl_kserve_model *model, const char *json, const void *bytes, size_t n,
        struct mfl_kserve_request *ret)
{
        const size_t k = strlen(json);
        char *body = malloc(k + n + 1);
        memcpy(body, json, k);
        if (n)
                memcpy(body + k, bytes, n);
        err.text[0] = '\0';
        const int r = mfl_kserve_parse(model, 4, body, k + n, k, ret, &err);
        free(body);
        return r;
}

static void refuses(const struct mfl_kserve_model *model, const char *json, const char *why)
{
        struct mfl_kserve_request q;
        assert_int_equal(parse(model, json, NULL, 0, &q), MFL_INVALID);
        if (!strstr(err.text, why))
                fail_msg("'%s' does not say '%s'", err.text, why);
}

#define INPUT(rest) "{\"inputs\":[{\"name\":\"input\"," rest "}]}"

static void requests(void **state)
{
        static const char *const same[] = {
                INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2.5,-3e0,4]"),
                INPUT("\"data\":[1,2.5,-3,4],\"datatype\":\"FP32\",\"shape\":[1,2,2]"),
                INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[[[1,2.5],[-3,4]]]"),
                (" { \"id\" : \"\\u00e9\\ud83d\\ude00\" ,\n\"inputs\" : [ { \"shape\" : [ 1 , 2 , 2 ] , "
                 "\"datatype\":\"FP32\", \"data\" : [ 1 , 2.5,-3 ,4 ] } ] } ")};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(same); i++) {
                struct mfl_kserve_request q;
                assert_int_equal(parse(&images, same[i], NULL, 0, &q), 0);
                assert_int_equal(q.rows, 1);
                assert_memory_equal(q.x, ((const float[]){1, 2.5f, -3, 4}), 16);
                assert_string_equal(q.id, i == 3 ? "\xc3\xa9\xf0\x9f\x98\x80" : "");
                assert_false(q.binary);
                free(q.x);
        }
        struct mfl_kserve_request q;
        assert_int_equal(parse(&images,
                                 "{\"parameters\":{\"timeout\":2500,\"binary_data_output\":true},\"inputs\":["
                                 "{\"name\":\"input\",\"shape\":[1,2,2],\"datatype\":"
                                 "\"FP32\",\"data\":[1,2,3,4]}],\"outputs\":[{\"name\":\"logits\","
                                 "\"parameters\":{\"binary_data\":false,\"classification\":2}}]}",
                                 NULL, 0, &q),
                0);
        assert_int_equal(q.timeout_us, 2500);
        assert_int_equal(q.classification, 2);
        assert_false(q.binary); /* the output's word counts */
        free(q.x);
        /* What KServe's client sends. */
        assert_int_equal(parse(&images,
                                 "{\"id\":\"a\",\"model_name\":\"m\",\"model_version\":\"v1\",\"inputs\":[{"
                                 "\"name\":\"input\","
                                 "\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4]}]}",
                                 NULL, 0, &q),
                0);
        free(q.x);
}

static void binary_requests(void **state)
{
        static const char json[] =
                INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":16}");
        static const char wide[] =
                INPUT("\"shape\":[1,3],\"datatype\":\"INT64\",\"parameters\":{\"binary_data_size\":24}");
        const float x[] = {1, 2, 3, 4}, bad[] = {1, 2, NAN, 4};
        const int64_t t[] = {1, 2, 9}, beyond[] = {1, 2, 1ll << 40};
        struct mfl_kserve_request q;
        assert_int_equal(parse(&images, json, x, sizeof x, &q), 0);
        assert_memory_equal(q.x, x, sizeof x);
        free(q.x);
        assert_int_equal(parse(&images, json, x, sizeof x - 4, &q), MFL_INVALID);
        assert_int_equal(parse(&images, json, x, 0, &q), MFL_INVALID);
        assert_int_equal(parse(&images, json, bad, sizeof bad, &q), MFL_INVALID);
        assert_non_null(strstr(err.text, "row 0 has a value that is not finite"));
        assert_int_equal(parse(&tokens, wide, t, sizeof t, &q), 0);
        assert_memory_equal(q.x, ((const int32_t[]){1, 2, 9}), 12);
        free(q.x);
        assert_int_equal(parse(&tokens, wide, beyond, sizeof beyond, &q), MFL_INVALID);
        assert_int_equal(
                mfl_kserve_parse(&images, 4, "{}", 2, 3, &q, &err), MFL_INVALID); /* the header lies */
        /* Triton's raw request: no JSON, one row, and bytes as answer. */
        assert_int_equal(parse(&images, "", x, sizeof x, &q), 0);
        assert_memory_equal(q.x, x, sizeof x);
        assert_true(q.rows == 1 && q.binary);
        free(q.x);
        assert_int_equal(parse(&images, "", x, sizeof x - 4, &q), MFL_INVALID);
        assert_non_null(strstr(err.text, "one row as bytes: 16 of FP32, not 12"));
        assert_int_equal(parse(&images, "", bad, sizeof bad, &q), MFL_INVALID);
}

static void wrong_requests(void **state)
{
        refuses(&images, "", "ends here");
        refuses(&images, "{}", "inputs: missing");
        refuses(&images, "[]", "expected '{'");
        refuses(&images, "{\"inputs\":[]}", "inputs: missing");
        refuses(&images, "{\"inputs\":[{}]}", "shape: missing");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4]") "x",
                "something follows");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4,]"),
                "expected a number");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,NaN]"), "no NaN");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,1e39]"),
                "too large for FP32");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3]"),
                "3 numbers; the shape has 4");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[[1,2,3,4]]"),
                "nested otherwise");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[[[1,2],[3]]]"),
                "2 and 1 elements");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,[2],3,4]"),
                "numbers and arrays");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[[[[[[[[[1]]]]]]]]]"),
                "deeper");
        refuses(&images, INPUT("\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[1,2,3,4]"),
                "this model takes [n, 2, 2], n from 1 to 4");
        refuses(&images, INPUT("\"shape\":[5,2,2],\"datatype\":\"FP32\",\"data\":[]"), "n from 1 to 4");
        refuses(&images, INPUT("\"shape\":[0,2,2],\"datatype\":\"FP32\",\"data\":[]"), "n from 1 to 4");
        refuses(&images, INPUT("\"shape\":[1e30,2,2]"), "whole number");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP64\",\"data\":[1,2,3,4]"),
                "takes FP32, not FP64");
        refuses(&images, INPUT("\"data\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"),
                "more than 16 numbers");
        refuses(&images, INPUT("\"data\":[1],\"data\":[1]"), "'data' twice");
        refuses(&images, "{\"inputs\":[{\"name\":\"x\"}]}", "this model's input is 'input', not 'x'");
        refuses(&images, "{\"inputs\":[{},{}]}", "this model has one");
        refuses(&images, "{\"colour\":1}", "'colour' is not supported");
        refuses(&images, "{\"parameters\":{\"sequence_id\":1}}", "'sequence_id' is not supported");
        refuses(&images, "{\"model_name\":\"x\"}", "model_name: this is 'm', not 'x'");
        refuses(&images, "{\"model_version\":\"v0\"}", "model_version: this is 'v1', not 'v0'");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,-Infinity"),
                "no NaN and no Infinity");
        refuses(&images, INPUT("\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,007"),
                "as JSON writes it");
        refuses(&images, "{\"id\":\"\\ud800\"}", "surrogate");
        refuses(&images, "{\"id\":\"a\\u0000b\"}", "NUL");
        refuses(&images, "{\"id\":\"\xff\"}", "UTF-8");
        refuses(&images, "{\"id\":\"abc", "does not end");
        refuses(&images, "{\"outputs\":[{\"name\":\"y\"}]}", "output is 'logits'");
        refuses(&images,
                "{\"inputs\":[{\"shape\":[1,2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4]}],\"outputs\":[{"
                "\"parameters\":{\"classification\":4}}]}",
                "3 classes");
        refuses(&tokens, INPUT("\"shape\":[1,3],\"datatype\":\"INT32\",\"data\":[1,2,10]"),
                "the token 10; the vocabulary has 10");
        refuses(&tokens, INPUT("\"shape\":[1,3],\"datatype\":\"INT32\",\"data\":[1,2,0.5]"), "INT32");
        refuses(&pixels, INPUT("\"shape\":[1,2],\"datatype\":\"UINT8\",\"data\":[1,256]"), "0 to 255");
}

/* Every failure of memory is one, and none leaks. */
static void memory_runs_out(void **state)
{
        for (long n = 0;; n++) {
                struct mfl_kserve_request q = {0};
                mfl_alloc_fail_at(n);
                const int r = parse(&images,
                        INPUT("\"data\":[1,2,3,4],\"datatype\":\"FP32\",\"shape\":[1,2,2]"), NULL, 0, &q);
                const bool failed = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, failed ? -ENOMEM : 0);
                free(q.x);
                if (!failed)
                        break;
        }
}

/* ---- answers ---- */

static void answer_is(const struct mfl_kserve_model *model, const struct mfl_kserve_request *q,
        const float *y, const char *expected)
{
        struct mfl_reply reply = {0};
        size_t json_bytes;
        assert_true(mfl_kserve_answer(model, q, y, &reply, &json_bytes, &err));
        mfl_reply_bytes(&reply, "", 1);
        assert_string_equal(reply.v + MFL_REPLY_HEAD_BYTES, expected);
        mfl_reply_deinit(&reply);
}

static void answers(void **state)
{
        static const char *const names[] = {"cat", "dog", "owl"};
        struct mfl_kserve_model named = images;
        const float y[] = {1, 2.5f, -3, 0, 0, 1};
        named.classes = names;
        answer_is(&images, &(struct mfl_kserve_request){.rows = 2, .id = "q"}, y,
                "{\"model_name\":\"m\",\"model_version\":\"v1\",\"id\":\"q\",\"outputs\":[{\"name\":"
                "\"logits\",\"datatype\":\"FP32\",\"shape\":[2,3],\"data\":"
                "[1,2.5,-3,0,0,1]}]}");
        answer_is(&named, &(struct mfl_kserve_request){.rows = 2, .classification = 2}, y,
                "{\"model_name\":\"m\",\"model_version\":\"v1\",\"outputs\":[{\"name\":\"logits\","
                "\"datatype\":\"BYTES\",\"shape\":[2,2],\"data\":"
                "[\"2.500000:1:dog\",\"1.000000:0:cat\",\"1.000000:2:owl\",\"0.000000:0:cat\"]}]}");
        struct mfl_reply reply = {0};
        size_t json_bytes;
        assert_true(mfl_kserve_answer(&images, &(struct mfl_kserve_request){.rows = 2, .binary = true}, y,
                &reply, &json_bytes, &err));
        assert_int_equal(mfl_reply_body_bytes(&reply), json_bytes + sizeof y);
        assert_memory_equal(reply.v + MFL_REPLY_HEAD_BYTES + json_bytes, y, sizeof y);
        mfl_reply_deinit(&reply);
        const float bad[] = {1, 2, 3, 4, NAN, 6};
        assert_false(mfl_kserve_answer(
                &images, &(struct mfl_kserve_request){.rows = 2}, bad, &reply, &json_bytes, &err));
        assert_non_null(strstr(err.text, "row 1"));
        mfl_reply_deinit(&reply);
}

static void descriptions(void **state)
{
        static const char *const versions[] = {"v1", "v0"};
        struct mfl_reply reply = {0};
        mfl_kserve_describe(&tokens, versions, 2, &reply);
        mfl_reply_bytes(&reply, "", 1);
        assert_string_equal(reply.v + MFL_REPLY_HEAD_BYTES,
                "{\"name\":\"t\",\"versions\":[\"v1\",\"v0\"],\"platform\":\"mfl\",\"inputs\":[{\"name\":"
                "\"input\",\"datatype\":\"INT32\",\"shape\":[-1,3]}],"
                "\"outputs\":[{\"name\":\"logits\",\"datatype\":\"FP32\",\"shape\":[-1,3,10]}],"
                "\"parameters\":{\"digest\":\"\"}}");
        mfl_reply_deinit(&reply);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(numbers_are_rounded_once),
                cmocka_unit_test(floats_read_back_the_same),
                cmocka_unit_test(floats_are_short),
                cmocka_unit_test(paths),
                cmocka_unit_test(requests),
                cmocka_unit_test(binary_requests),
                cmocka_unit_test(wrong_requests),
                cmocka_unit_test(memory_runs_out),
                cmocka_unit_test(answers),
                cmocka_unit_test(descriptions),
        };
        return cmocka_run_group_tests_name("serve_kserve", tests, NULL, NULL);
}
