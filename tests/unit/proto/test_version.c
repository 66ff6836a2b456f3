/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a protocol version by both sides, for ranges that this release does not have yet. */
#include "tests/lib/test.h"
#include "proto/version.h"

struct row {
        struct mfl_protocol_range server, peer;
        uint32_t want; /* 0: none */
        const char *words;
};

static void the_largest_common_version_is_chosen(void **state)
{
        static const struct row rows[] = {
                {{1, 1}, {1, 1}, 1, ""},
                {{1, 3}, {2, 5}, 3, ""}, /* the server is older */
                {{2, 5}, {1, 3}, 3, ""}, /* the server is newer */
                {{2, 4}, {4, 4}, 4, ""},
                {{1, 9}, {3, 5}, 5, ""},
                {{1, 2}, {3, 4}, 0, "speaks protocol 1 to 2, mfl-x 7 speaks 3 to 4: upgrade the server"},
                {{3, 4}, {1, 2}, 0, "speaks protocol 3 to 4, mfl-x 7 speaks 1 to 2: upgrade the client"},
                {{3, 3}, {2, 2}, 0, "speaks protocol 3, mfl-x 7 speaks 2: upgrade the client"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                const struct row *row = &rows[i];
                struct mfl_error err = {{0}};
                uint32_t version = 77;
                int r = mfl_protocol_choose(row->server, row->peer, "mfl-x 7", &version, &err);
                assert_int_equal(r, row->want ? 0 : MFL_INVALID);
                assert_int_equal(version, row->want ? row->want : 77);
                if (!row->want)
                        assert_non_null(strstr(err.text, row->words));
                if (!row->want)
                        continue;
                /* What the server chooses, the peer takes. */
                assert_int_equal(
                        mfl_protocol_check_chosen(row->peer, version, "mfl-x 7", "mfl-server 8", &err), 0);
        }
}

static void a_version_that_was_not_offered_is_refused(void **state)
{
        const struct mfl_protocol_range own = {2, 3};
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_protocol_check_chosen(own, 4, "mfl 7", "mfl-server 8", &err), MFL_INVALID);
        assert_string_equal(
                err.text, "mfl-server 8 chose protocol 4, mfl 7 speaks 2 to 3: upgrade the client");
        assert_int_equal(mfl_protocol_check_chosen(own, 1, "mfl 7", "", &err), MFL_INVALID);
        assert_string_equal(err.text, "the server chose protocol 1, mfl 7 speaks 2 to 3: upgrade the server");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_largest_common_version_is_chosen),
                cmocka_unit_test(a_version_that_was_not_offered_is_refused),
        };
        return cmocka_run_group_tests_name("version", tests, NULL, NULL);
}
