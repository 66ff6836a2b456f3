/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of daemons, and expressions over them. */
#include "tests/lib/test.h"
#include "common/tags/where.h"

#include <stdio.h>

static const struct mfl_where_daemon site_a = {.name = "site-a",
        .site = "north",
        .node = "rack4",
        .backend = "cuda",
        .tags = "region=eu,gpu=h100,gpus=8"};

static void expressions(void **state)
{
        static const struct {
                const char *text;
                bool matches;
        } rows[] = {
                {"", true},
                {"region == 'eu'", true},
                {"region==\"us\"", false},
                {"region != 'us'", true},
                {"gpu == 'h100' and region == 'us'", false},
                {"gpu == 'h100' or region == 'us' and region == 'asia'", true}, /* and binds first */
                {"(gpu == 'h100' or region == 'us') and region == 'asia'", false},
                {"not region == 'us' and not (gpu == 'h100' and backend == 'cpu')", true},
                {"not not region == 'eu'", true},
                {"region in ('us', 'eu')", true},
                {"region not in ('us', 'eu')", false},
                {"gpus in ('80')", false},
                {"gp == 'h100'", false}, /* only a part of a key, or of a value */
                {"gpu == 'h10'", false},
                {"gpu == 'h1000'", false},
                {"tier == 'a'", false}, /* a tag that it does not have equals nothing */
                {"tier != 'a'", true},
                {"tier == ''", false},
                {"tier not in ('a')", true},
                {"name == 'site-a' and site == 'north' and node == 'rack4'", true},
                {"\n  region\t==  'eu' ", true},
        };
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                if (*rows[i].text)
                        assert_int_equal(mfl_where_check(rows[i].text, &err), 0);
                if (mfl_where_matches(rows[i].text, &site_a) != rows[i].matches)
                        fail_msg("%s", rows[i].text);
        }
}

static void mistakes(void **state)
{
        static const char *const rows[][2] = {
                {"region", "character 7: expected '==', '!=', 'in' or 'not in', got the end"},
                {"region = 'eu'", "character 8: expected '==', '!=', 'in' or 'not in', got \"= 'eu'\""},
                {"region == eu", "character 11: expected a value in quotes, got \"eu\""},
                {"region == 'eu", "character 11: expected a quote at the end of the value"},
                {"region == 'eu' && gpu == 'a'", "character 16: expected 'and', 'or' or the end"},
                {"region == 'eu' and",
                        "character 19: expected a tag, name, site, node or backend, got the end"},
                {"(region == 'eu'", "character 16: expected 'and', 'or' or ')', got the end"},
                {"region in 'eu'", "character 11: expected '(' and a list of values"},
                {"region in ('eu' 'us')", "character 17: expected ',' or ')'"},
                {"region not == 'eu'", "character 12: expected 'in'"},
                {"and == 'eu'", "character 1: expected a tag"},
                {"8 == 'eu'", "character 1: expected a tag"},
                {"", "character 1: expected a tag"},
                {"((((((((((((((((((((((((((((((((((a == 'b'", "expected less depth"},
        };
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                assert_int_equal(mfl_where_check(rows[i][0], &err), MFL_INVALID);
                if (!strstr(err.text, rows[i][1]))
                        fail_msg("%s: %s", rows[i][0], err.text);
                assert_false(*rows[i][0] && mfl_where_matches(rows[i][0], &site_a));
        }
}

static void tags(void **state)
{
        char v[MFL_TAGS_BYTES] = "";
        struct mfl_error err;
        assert_int_equal(mfl_tags_add(v, "region", "eu-1", &err), 0);
        assert_int_equal(mfl_tags_add(v, "gpu", "h100", &err), 0);
        assert_string_equal(v, "region=eu-1,gpu=h100");
        static const char *const bad[][3] = {{"gpu", "a", "tag gpu is there twice"},
                {"a-b", "c", "'a-b' can't be a tag"}, {"8a", "c", "can't be a tag"},
                {"", "c", "can't be a tag"}, {"site", "c", "a meaning of its own"},
                {"not", "c", "a meaning of its own"}, {"a", "b,c=d", "can't be a tag's value"},
                {"a", "", "can't be"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                assert_int_equal(mfl_tags_add(v, bad[i][0], bad[i][1], &err), MFL_INVALID);
                if (!strstr(err.text, bad[i][2]))
                        fail_msg("%s: %s", bad[i][0], err.text);
        }
        int n = 0;
        for (char key[8] = "k00"; n < 100 && !mfl_tags_add(v, key, "0123456789", &err); n++)
                snprintf(key, sizeof key, "k%02d", n + 1);
        assert_non_null(strstr(err.text, "more than 255 characters"));
        assert_in_range(strlen(v), 240, 255);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(expressions), cmocka_unit_test(mistakes), cmocka_unit_test(tags)};
        return cmocka_run_group_tests_name("where", tests, NULL, NULL);
}
