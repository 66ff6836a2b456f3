/* SPDX-License-Identifier: Apache-2.0 */
/* Logins of browsers: what a code and a cookie are good for, when they end, and what a full table does. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "server/access/logins.h"

#define NOW 1000000u

struct bed {
        struct mfl_logins logins;
        struct mfl_error err;
        char code[MFL_LOGIN_SECRET_BYTES], cookie[MFL_LOGIN_SECRET_BYTES];
        const struct mfl_login *login;
};

static void issue(struct bed *bed, const char *who, uint32_t seconds, uint64_t now_ms)
{
        assert_int_equal(mfl_logins_issue(&bed->logins, who, 2, seconds, now_ms, bed->code, &bed->err), 0);
}

static void take(struct bed *bed, uint64_t now_ms)
{
        assert_int_equal(
                mfl_logins_take(&bed->logins, bed->code, now_ms, bed->cookie, &bed->login, &bed->err), 0);
}

static void a_code_works_once_and_in_time(void **state)
{
        struct bed bed = {0};
        issue(&bed, "ann", 0, NOW);
        assert_null(mfl_logins_find(&bed.logins, bed.code, NOW)); /* a code is no cookie */
        take(&bed, NOW + 299999);
        assert_string_equal(bed.login->who, "ann");
        assert_int_equal(bed.login->roles, 2);
        assert_int_equal(bed.login->until_ms, NOW + 1000ull * MFL_LOGIN_SECONDS);
        assert_string_not_equal(bed.code, bed.cookie);
        assert_int_equal(
                mfl_logins_take(&bed.logins, bed.code, NOW, bed.cookie, &bed.login, &bed.err), MFL_NOT_FOUND);
        issue(&bed, "ann", 0, NOW);
        assert_int_equal(
                mfl_logins_take(&bed.logins, bed.code, NOW + 300000, bed.cookie, &bed.login, &bed.err),
                MFL_NOT_FOUND);
        assert_int_equal(
                mfl_logins_take(&bed.logins, "", NOW, bed.cookie, &bed.login, &bed.err), MFL_NOT_FOUND);
}

static void a_login_ends(void **state)
{
        struct bed bed = {0};
        issue(&bed, "ann", 10, NOW);
        take(&bed, NOW + 4000);
        assert_non_null(mfl_logins_find(
                &bed.logins, bed.cookie, NOW + 9999)); /* of what was asked for, from the issue on */
        assert_null(mfl_logins_find(&bed.logins, bed.cookie, NOW + 10000));
        assert_int_equal(bed.logins.n, 0);
        issue(&bed, "ann", 0, NOW);
        take(&bed, NOW);
        mfl_logins_drop(&bed.logins, bed.cookie);
        assert_null(mfl_logins_find(&bed.logins, bed.cookie, NOW));
        issue(&bed, "ann", 0, NOW);
        take(&bed, NOW);
        issue(&bed, "bob", 0, NOW);
        issue(&bed, "ann", 0, NOW); /* a code that nobody has taken */
        assert_int_equal(mfl_logins_end(&bed.logins, "ann"), 2);
        assert_int_equal(bed.logins.n, 1);
        assert_string_equal(bed.logins.v[0].who, "bob");
}

static void each_login_has_its_token(void **state)
{
        struct bed bed = {0};
        char first[MFL_LOGIN_SECRET_BYTES];
        issue(&bed, "ann", 0, NOW);
        take(&bed, NOW);
        memcpy(first, bed.login->csrf, sizeof first);
        assert_true(mfl_login_has_csrf(bed.login, first));
        issue(&bed, "ann", 0, NOW);
        take(&bed, NOW);
        assert_false(mfl_login_has_csrf(bed.login, first));
        assert_false(mfl_login_has_csrf(bed.login, ""));
        memcpy(first, bed.login->csrf, sizeof first);
        first[63] = first[63] == '0' ? '1' : '0';
        assert_false(mfl_login_has_csrf(bed.login, first));
}

static void a_full_table(void **state)
{
        static struct bed bed;
        char oldest[MFL_LOGIN_SECRET_BYTES], who[16];
        memset(&bed, 0, sizeof bed);
        issue(&bed, "ann", 0, NOW);
        memcpy(oldest, bed.code, sizeof oldest);
        for (int i = 0; i < MFL_LOGINS_OF_ONE; i++) /* the last one takes the place of ann's first */
                issue(&bed, "ann", 0, NOW);
        assert_int_equal(bed.logins.n, MFL_LOGINS_OF_ONE);
        assert_int_equal(
                mfl_logins_take(&bed.logins, oldest, NOW, bed.cookie, &bed.login, &bed.err), MFL_NOT_FOUND);
        for (int i = MFL_LOGINS_OF_ONE; i < MFL_LOGINS_MAX; i++) {
                snprintf(who, sizeof who, "p%d", i);
                issue(&bed, who, 0, NOW);
        }
        assert_int_equal(mfl_logins_issue(&bed.logins, "eve", 2, 0, NOW, bed.code, &bed.err), MFL_BUSY);
        issue(&bed, "eve", 0, NOW + 300000); /* the codes are too old by now */
        assert_int_equal(bed.logins.n, 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(a_code_works_once_and_in_time),
                cmocka_unit_test(a_login_ends), cmocka_unit_test(each_login_has_its_token),
                cmocka_unit_test(a_full_table)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
