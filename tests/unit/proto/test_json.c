/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as JSON: what JSON has no number for is null, and text of strangers is plain. */
#include "tests/lib/test.h"

#include <math.h>

#include "proto/json/json.h"

static void is(json_t *object, const char *expected)
{
        assert_non_null(object);
        char *text = json_dumps(object, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(text, expected);
        free(text);
        json_decref(object);
}

static void numbers(void **state)
{
        is(mfl_json_number(true, 0.25), "0.25");
        is(mfl_json_number(false, 0.25), "null");
        is(mfl_json_number(true, NAN), "null");
        is(mfl_json_number(true, -INFINITY), "null");
}

/* An escape sequence, a C1 control, a right-to-left override, and half of a character. */
static void text(void **state)
{
        is(mfl_json_text(""), "null");
        is(mfl_json_text("a \"b\"\\\n\xc3\xa9"), "\"a \\\"b\\\"\\\\\\n\xc3\xa9\"");
        is(mfl_json_text("a\033[2Jb\xc2\x9b"
                         "c\xe2\x80\xae"
                         "d\xe2\x82"),
                "\"a?[2Jb?c?d??\"");
}

/* A diverged round has no number for its loss; the object is there all the same. */
static void a_round_without_numbers(void **state)
{
        Mfl__RoundInfo round = MFL__ROUND_INFO__INIT;
        round.round = 3;
        round.evaluated = true;
        round.clients = 1;
        round.loss = NAN;
        round.train_loss = INFINITY;
        round.committed_ms = 5;
        json_t *object = mfl_json_round(&round);
        assert_non_null(object);
        assert_true(json_is_null(json_object_get(object, "loss")));
        assert_true(json_is_null(json_object_get(object, "train_loss")));
        assert_int_equal(json_integer_value(json_object_get(object, "committed_unix_ms")), 5);
        json_decref(object);
        round.clients = 0; /* nobody trained */
        round.train_loss = 0;
        object = mfl_json_round(&round);
        assert_true(json_is_null(json_object_get(object, "train_loss")));
        assert_true(json_is_null(json_object_get(object, "train_accuracy")));
        json_decref(object);
        is(mfl_json_round(NULL), "null");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(numbers),
                cmocka_unit_test(text),
                cmocka_unit_test(a_round_without_numbers),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
