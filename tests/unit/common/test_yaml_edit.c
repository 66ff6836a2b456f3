/* SPDX-License-Identifier: Apache-2.0 */
/* --set: what changes, what stays, and what is refused; and lists of values. */
#include "tests/lib/test.h"
#include "common/settings/yaml_edit.h"

#include <stdio.h>

static const char job[] = "# a job\n"
                          "name: t\xc3\xa9st  # its name\n"
                          "model:\n"
                          "  layers:\n"
                          "    - {kind: linear, units: 5}\n"
                          "    - kind: relu\n"
                          "training: {lr: 0.1, epochs: 1}\n"
                          "empty:\n"
                          "flow: {}\n"
                          "note: |\n"
                          "  two\n"
                          "  lines\n";

/* What the line that begins with `line` is afterwards, and the one before it, if it is new. */
static void one_line_changes(void **state)
{
        static const struct {
                const char *path, *value, *before, *after;
        } cases[] = {
                {"training.lr", "0.01", "{lr: 0.1,", "{lr: 0.01,"},
                {"name", "'a, b'", "name: t\xc3\xa9st  #", "name: 'a, b'  #"},
                {"model.layers[0].units", "32", "units: 5", "units: 32"},
                {"model.layers[1].kind", "gelu", "- kind: relu", "- kind: gelu"},
                {"training", "{lr: 1}", "training: {lr: 0.1, epochs: 1}", "training: {lr: 1}"},
                {"empty", "x", "empty:\n", "empty: x\n"},
                {"flow.a", "1", "flow: {}", "flow: {a: 1}"},
                {"flow.a.b", "[1, 2]", "flow: {}", "flow: {a: {b: [1, 2]}}"},
                {"training.momentum", "0.9", "{lr", "{momentum: 0.9, lr"},
                {"model.input", "[1, 28, 28]", "  layers:", "  input: [1, 28, 28]\n  layers:"},
                {"model.layers[1].rate", "2", "- kind: relu", "- rate: 2\n      kind: relu"},
                {"seed", "7", "name: ", "seed: 7\nname: "},
                {"compression.up.bits", "8", "name: ", "compression: {up: {bits: 8}}\nname: "},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_error err = {""};
                char *changed = NULL, expected[512];
                const char *at = strstr(job, cases[i].before);
                assert_non_null(at);
                snprintf(expected, sizeof expected, "%.*s%s%s", (int)(at - job), job, cases[i].after,
                        at + strlen(cases[i].before));
                assert_int_equal(mfl_yaml_set(job, "f", cases[i].path, cases[i].value, &changed, &err), 0);
                assert_string_equal(changed, expected);
                free(changed);
        }
}

static void a_byte_order_mark_stays(void **state)
{
        char *changed = NULL;
        assert_int_equal(mfl_yaml_set("\xef\xbb\xbf"
                                      "a: 1\n",
                                 "f", "a", "2", &changed, NULL),
                0);
        assert_string_equal(changed, "\xef\xbb\xbf"
                                     "a: 2\n");
        free(changed);
}

static void the_rest_is_refused(void **state)
{
        static const struct {
                const char *path, *value, *message;
        } cases[] = {
                {"name.x", "1", "f:2: name: is a single value, so --set can't reach 'name.x' below it"},
                {"model.layers.x", "1",
                        "f:4: model.layers: is a list: name an element of it, as in [0], not model.layers.x"},
                {"model[0]", "1", "f:3: model: is no list, so --set can't reach model[0]"},
                {"model.layers[2].kind", "x",
                        "f:4: model.layers: has 2 elements, from [0] on, so --set can't reach "
                        "model.layers[2].kind"},
                {"model.layers[x]", "1",
                        "f:4: model.layers: has 2 elements, from [0] on, so --set can't reach "
                        "model.layers[x]"},
                {"model.layers", "[]",
                        "f:4: model.layers: takes several lines of the file; --set only replaces values "
                        "within a line"},
                {"note", "x",
                        "f:10: note: takes several lines of the file; --set only replaces values within a "
                        "line"},
                {"new[0]", "1", "new[0]=1: there is no such list in the file"},
                {"", "1",
                        "=1: the part before '=' must name a key, as in training.lr=0.01 or "
                        "model.layers[0].units=32"},
                {"training..lr", "1",
                        "training..lr=1: the part before '=' must name a key, as in training.lr=0.01 or "
                        "model.layers[0].units=32"},
#define ONE "expected one value after '=': a number, a word, or YAML such as 'a, b', [1, 2] or {bits: 8}"
                {"name", "a, b", "name=a, b: " ONE},
                {"name", "", "name=: " ONE},
                {"name", "x # y", "name=x # y: " ONE},
                {"name", "a: b", "name=a: b: " ONE},
                {"name", "x\ny: 1", "name=x\ny: 1: " ONE},
                {"name", "1..3", "name=1..3: " ONE},
                {"name", "[1", "name=[1: " ONE},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_error err = {""};
                char *changed = NULL;
                assert_int_equal(
                        mfl_yaml_set(job, "f", cases[i].path, cases[i].value, &changed, &err), MFL_INVALID);
                assert_null(changed);
                assert_string_equal(err.text, cases[i].message);
        }
        char *changed = NULL;
        assert_int_equal(mfl_yaml_set("a: [", "f", "a", "1", &changed, NULL), MFL_INVALID);
}

static void lists_have_values_and_ranges(void **state)
{
        static const struct {
                const char *text, *joined;
        } cases[] = {{"0.01,0.03, 0.1", "0.01|0.03|0.1"}, {"1..4", "1|2|3|4"}, {"-1..1,7", "-1|0|1|7"},
                {"'a, b',[1, 2],{x: 1}", "'a, b'|[1, 2]|{x: 1}"}, {"'1..3'", "'1..3'"}, {"3..1", "3..1"},
                {"\xc3\xa9,b", "\xc3\xa9|b"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                char **values = NULL, joined[128] = "";
                int n = 0;
                assert_int_equal(mfl_yaml_values(cases[i].text, 8, &values, &n, NULL), 0);
                for (int v = 0; v < n; v++)
                        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s",
                                v ? "|" : "", values[v]);
                assert_string_equal(joined, cases[i].joined);
                mfl_yaml_values_free(values, n);
        }
        static const char *const wrong[] = {"1..9", "", "a: b", "1,,2", "a]", "[1", "1\n2"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                char **values = NULL;
                int n = 0;
                assert_int_equal(mfl_yaml_values(wrong[i], 8, &values, &n, NULL), MFL_INVALID);
                assert_null(values);
        }
}

static void memory_may_run_out_anywhere(void **state)
{
        for (long n = 0;; n++) {
                struct mfl_error err = {""};
                char *changed = NULL;
                mfl_alloc_fail_at(n);
                int r = mfl_yaml_set(job, "f", "training.momentum", "0.9", &changed, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                free(changed);
                if (!struck)
                        break;
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_line_changes),
                cmocka_unit_test(a_byte_order_mark_stays),
                cmocka_unit_test(the_rest_is_refused),
                cmocka_unit_test(lists_have_values_and_ranges),
                cmocka_unit_test(memory_may_run_out_anywhere),
        };
        return cmocka_run_group_tests_name("yaml_edit", tests, NULL, NULL);
}
