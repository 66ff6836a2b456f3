/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about which daemons may take part: whom a pattern matches, which rule wins, who was refused lately,
 * and that the database has them. */
#include "tests/unit/server/fixture.h"

#include <stdio.h>

#include "common/base/rng.h"
#include "server/access/access.h"
#include "server/store/store_internal.h"

/* ---- patterns ---- */

static void test_glob(void **state)
{
        (void)state;
        static const struct {
                const char *pattern, *text;
                bool matches;
        } cases[] = {
                {"site-a", "site-a", true},
                {"site-a", "site-a1", false},
                {"site-a1", "site-a", false},
                {"site-?", "site-a", true},
                {"site-?", "site-", false},
                {"site-?", "site-ab", false},
                {"site-*", "site-", true},
                {"site-*", "site-b2", true},
                {"*", "", true},
                {"*", "x", true},
                {"**", "x", true},
                {"", "", true},
                {"", "x", false},
                {"*b", "aab", true},
                {"*b", "aaba", false},
                {"a*b*c", "a-b-b-c", true},
                {"a*b*c", "a-c-b", false},
                {"*ab?", "abababc", true},
                {"Site", "site", false},
                {"a.c", "abc", false},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                if (mfl_glob(cases[i].pattern, cases[i].text) != cases[i].matches)
                        fail_msg("'%s' and '%s'", cases[i].pattern, cases[i].text);
}

/* The plain definition, which takes exponential time. */
static bool glob_reference(const char *p, const char *t)
{
        if (!*p)
                return !*t;
        if (*p == '*')
                return glob_reference(p + 1, t) || (*t && glob_reference(p, t + 1));
        return *t && (*p == '?' || *p == *t) && glob_reference(p + 1, t + 1);
}

static void test_glob_as_the_reference(void **state)
{
        (void)state;
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_SIM, 0, 0);
        uint32_t n_match = 0;
        for (int k = 0; k < 200000; k++) {
                char pattern[9] = "", text[9] = "";
                for (uint32_t i = mfl_rng_below(&rng, 9); i > 0; i--)
                        pattern[i - 1] = "ab*?"[mfl_rng_below(&rng, 4)];
                for (uint32_t i = mfl_rng_below(&rng, 9); i > 0; i--)
                        text[i - 1] = "ab"[mfl_rng_below(&rng, 2)];
                bool want = glob_reference(pattern, text);
                n_match += want;
                if (mfl_glob(pattern, text) != want)
                        fail_msg("'%s' and '%s'", pattern, text);
        }
        assert_true(n_match > 20000);
        /* Stars that could be tried in C(63, 30) ways. */
        char stars[64], text[64];
        for (int i = 0; i < 62; i += 2)
                memcpy(stars + i, "a*", 2);
        memcpy(stars + 62, "b", 2);
        memset(text, 'a', 63);
        text[63] = '\0';
        assert_false(mfl_glob(stars, text));
}

static void test_certificates(void **state)
{
        (void)state;
        char pattern[MFL_ACCESS_PATTERN_BYTES] = "sha256:", print[65];
        for (int i = 0; i < 64; i++)
                print[i] = "0123456789abcdef"[i % 16];
        print[64] = '\0';
        mfl_strcpy(pattern + 7, sizeof pattern - 7, print);
        const struct mfl_access_peer tls = {"site-a-gpu0", "site-a", print}, plain = {"site-a", "", ""};
        assert_true(mfl_access_matches("cn:site-?", &tls));
        assert_false(mfl_access_matches("site-?", &tls));
        assert_true(mfl_access_matches(pattern, &tls));
        pattern[7 + 10] = 'A'; /* of "a" */
        assert_true(mfl_access_matches(pattern, &tls));
        pattern[7] = '1';
        assert_false(mfl_access_matches(pattern, &tls));
        assert_false(mfl_access_matches("cn:*", &plain));
        assert_false(mfl_access_matches("sha256:", &plain));
}

/* ---- rules ---- */

static struct mfl_store_rule make(const char *pattern, enum mfl_verdict verdict, uint64_t until_ms)
{
        struct mfl_store_rule rule = {.verdict = verdict, .time_ms = 5, .until_ms = until_ms, .who = "ann"};
        mfl_strcpy(rule.pattern, sizeof rule.pattern, pattern);
        snprintf(rule.reason, sizeof rule.reason, "because of %s", pattern);
        return rule;
}

static void put(
        struct mfl_store_rules *rules, const char *pattern, enum mfl_verdict verdict, uint64_t until_ms)
{
        struct mfl_store_rule rule = make(pattern, verdict, until_ms);
        assert_int_equal(mfl_access_put(rules, &rule), 0);
}

static enum mfl_access check(
        const struct mfl_store_rules *rules, const char *name, uint64_t now_ms, char *reason)
{
        char ignored[MFL_REASON_BYTES];
        struct mfl_access_peer peer = {name, "", ""};
        return mfl_access_check(rules, &peer, now_ms, reason ? reason : ignored);
}

static void test_deny_wins(void **state)
{
        (void)state;
        struct mfl_store_rules rules = {0};
        char reason[MFL_REASON_BYTES];
        assert_int_equal(check(&rules, "a1", 0, NULL), MFL_ACCESS_OK);
        put(&rules, "a*", MFL_VERDICT_ALLOW, 0);
        assert_int_equal(check(&rules, "a1", 0, NULL), MFL_ACCESS_OK);
        assert_int_equal(check(&rules, "b1", 0, reason), MFL_ACCESS_NOT_ALLOWED);
        assert_non_null(strstr(reason, "'b1'"));
        put(&rules, "a1", MFL_VERDICT_DENY, 0);
        assert_int_equal(check(&rules, "a1", 0, reason), MFL_ACCESS_DENIED);
        assert_string_equal(reason, "disabled by the rule 'a1': because of a1");
        assert_int_equal(check(&rules, "a2", 0, NULL), MFL_ACCESS_OK);
        put(&rules, "a1", MFL_VERDICT_ALLOW, 0); /* a rule of its own */
        assert_int_equal(rules.n, 3);
        assert_int_equal(check(&rules, "a1", 0, NULL), MFL_ACCESS_DENIED);
        assert_true(mfl_access_remove(&rules, "a1", MFL_VERDICT_DENY));
        assert_false(mfl_access_remove(&rules, "a1", MFL_VERDICT_DENY));
        assert_int_equal(check(&rules, "a1", 0, NULL), MFL_ACCESS_OK);
        mfl_store_rules_deinit(&rules);
}

/* Whatever the order, the verdict and the words are the same. */
static void test_order_does_not_matter(void **state)
{
        (void)state;
        static const struct {
                const char *pattern;
                enum mfl_verdict verdict;
        } all[] = {{"*1", MFL_VERDICT_DENY}, {"d*", MFL_VERDICT_DENY}, {"d?", MFL_VERDICT_DENY},
                {"*", MFL_VERDICT_ALLOW}, {"d1", MFL_VERDICT_ALLOW}};
        char want[MFL_REASON_BYTES] = "";
        for (int order = 0; order < 3125; order++) {
                struct mfl_store_rules rules = {0};
                char reason[MFL_REASON_BYTES];
                int left = order, seen = 0;
                for (int i = 0; i < 5; i++, left /= 5) {
                        seen |= 1 << left % 5;
                        put(&rules, all[left % 5].pattern, all[left % 5].verdict, 0);
                }
                if (seen == 31) {
                        assert_int_equal(rules.n, 5);
                        assert_int_equal(check(&rules, "d1", 0, reason), MFL_ACCESS_DENIED);
                        if (*want)
                                assert_string_equal(reason, want);
                        strcpy(want, reason);
                }
                mfl_store_rules_deinit(&rules);
        }
        assert_true(*want);
}

static void test_rules_end(void **state)
{
        (void)state;
        struct mfl_store_rules rules = {0};
        char reason[MFL_REASON_BYTES];
        put(&rules, "a", MFL_VERDICT_DENY, 1000);
        put(&rules, "b", MFL_VERDICT_DENY, 0);
        assert_int_equal(check(&rules, "a", 999, NULL), MFL_ACCESS_DENIED);
        assert_int_equal(check(&rules, "a", 1000, NULL), MFL_ACCESS_OK);
        assert_int_equal(mfl_access_check_absent(&rules, "a", 999, reason), MFL_ACCESS_DENIED);
        assert_int_equal(mfl_access_check_absent(&rules, "a", 1000, reason), MFL_ACCESS_OK);
        put(&rules, "c", MFL_VERDICT_ALLOW, 0);
        assert_int_equal(mfl_access_check_absent(&rules, "d", 1000, reason), MFL_ACCESS_OK);
        mfl_access_expire(&rules, 1000);
        assert_int_equal(rules.n, 2);
        assert_string_equal(rules.v[0].pattern, "b");
        put(&rules, "b", MFL_VERDICT_DENY, 7); /* in its place */
        assert_int_equal(rules.n, 2);
        assert_int_equal(rules.v[0].until_ms, 7);
        mfl_store_rules_deinit(&rules);
}

/* ---- who was refused lately ---- */

static struct mfl_refused_daemon refused(const char *name, uint64_t last_ms, const char *reason)
{
        struct mfl_refused_daemon r = {.last_ms = last_ms};
        mfl_strcpy(r.name, sizeof r.name, name);
        mfl_strcpy(r.reason, sizeof r.reason, reason);
        return r;
}

static bool note(struct mfl_refused_list *list, const char *name, uint64_t last_ms, const char *reason)
{
        struct mfl_refused_daemon r = refused(name, last_ms, reason);
        return mfl_refused_note(list, &r);
}

static void test_refused_list(void **state)
{
        (void)state;
        static struct mfl_refused_list list;
        struct mfl_store_rules rules = {0};
        put(&rules, "d*", MFL_VERDICT_DENY, 0);
        assert_true(note(&list, "d1", 100, "no"));
        assert_false(note(&list, "d1", 200, "no"));
        assert_true(note(&list, "d1", 300, "no, indeed"));
        assert_int_equal(list.n, 1);
        assert_int_equal(list.v[0].last_ms, 300);
        note(&list, "e1", 300, "no");
        mfl_refused_trim(&list, &rules, 300); /* e1 may come in now */
        assert_int_equal(list.n, 1);
        assert_null(mfl_refused_find(&list, "e1"));
        mfl_refused_trim(&list, &rules, 300 + MFL_REFUSED_KEPT_MS - 1);
        assert_non_null(mfl_refused_find(&list, "d1"));
        mfl_refused_trim(&list, &rules, 300 + MFL_REFUSED_KEPT_MS);
        assert_int_equal(list.n, 0);
        for (uint64_t i = 0; i < 2 * MFL_REFUSED_MAX; i++) {
                char name[16];
                snprintf(name, sizeof name, "d%u", (unsigned)i);
                assert_true(note(&list, name, 1000 + i, "no"));
        }
        assert_int_equal(list.n, MFL_REFUSED_MAX);
        assert_null(mfl_refused_find(&list, "d0"));
        for (unsigned i = MFL_REFUSED_MAX; i < 2 * MFL_REFUSED_MAX; i++) {
                char name[16];
                snprintf(name, sizeof name, "d%u", i);
                assert_non_null(mfl_refused_find(&list, name));
                mfl_refused_forget(&list, name);
        }
        assert_int_equal(list.n, 0);
        mfl_store_rules_deinit(&rules);
}

/* ---- the database ---- */

static struct mfl_store *open_store(const char *dir)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        if (mfl_store_open(dir, &store, &err))
                fail_msg("%s", err.text);
        return store;
}

static void test_the_database_keeps_them(void **state)
{
        struct fixture f;
        (void)state;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        struct mfl_store_rules rules;
        struct mfl_error err;
        struct mfl_store_rule rule = make("site-b*", MFL_VERDICT_DENY, 0),
                              other = make("cn:x", MFL_VERDICT_ALLOW, 0);
        assert_int_equal(mfl_store_rules(store, &rules, &err), 0);
        assert_int_equal(rules.n, 0);
        assert_int_equal(mfl_store_rule_put(store, &rule, &err), 0);
        rule.until_ms = UINT64_C(1) << 50;
        assert_int_equal(mfl_store_rule_put(store, &rule, &err), 0); /* in its place */
        assert_int_equal(mfl_store_rule_put(store, &other, &err), 0);
        mfl_store_close(store);
        store = open_store(f.dir);
        assert_int_equal(mfl_store_rules(store, &rules, &err), 0);
        assert_int_equal(rules.n, 2);
        assert_string_equal(rules.v[0].pattern, "cn:x");
        assert_int_equal(rules.v[0].verdict, MFL_VERDICT_ALLOW);
        assert_memory_equal(&rules.v[1], &rule, sizeof rule);
        mfl_store_rules_deinit(&rules);
        assert_int_equal(mfl_store_rule_remove(store, "site-b*", MFL_VERDICT_ALLOW, &err), MFL_NOT_FOUND);
        assert_non_null(strstr(err.text, "'site-b*'"));
        assert_int_equal(mfl_store_rule_remove(store, "site-b*", MFL_VERDICT_DENY, &err), 0);
        assert_int_equal(mfl_store_rule_remove(store, "site-b*", MFL_VERDICT_DENY, &err), MFL_NOT_FOUND);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void test_so_many_and_no_more(void **state)
{
        struct fixture f;
        (void)state;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        struct mfl_error err;
        struct mfl_store_rule over = make("d0", MFL_VERDICT_DENY, 1); /* at once */
        assert_int_equal(mfl_store_rule_put(store, &over, &err), 0);
        /* One transaction for the others, which are no matter of this test. */
        assert_int_equal(mfl_store_begin(store, &err), 0);
        int r = 0;
        for (uint32_t i = 1; i < MFL_ACCESS_RULES_MAX && !r; i++) {
                char name[16];
                snprintf(name, sizeof name, "d%u", i);
                r = mfl_db_run(store->db, &err,
                        "INSERT INTO daemon_rules (pattern, verdict, who, time_ms, until_ms, reason) VALUES "
                        "(?1, 1, '', 0, 0, '')",
                        "t", name);
        }
        assert_int_equal(mfl_store_end(store, r, &err), 0);
        struct mfl_store_rule more = make("e0", MFL_VERDICT_DENY, 0), same = make("d5", MFL_VERDICT_DENY, 0),
                              last = make("e1", MFL_VERDICT_ALLOW, 0);
        assert_int_equal(mfl_store_rule_put(store, &more, &err), 0); /* in the room of d0 */
        assert_int_equal(mfl_store_rule_put(store, &last, &err), MFL_STORE_RULES_FULL);
        assert_non_null(strstr(err.text, "1000"));
        assert_int_equal(mfl_store_rule_put(store, &same, &err), 0);
        mfl_store_close(store);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_glob),
                cmocka_unit_test(test_glob_as_the_reference),
                cmocka_unit_test(test_certificates),
                cmocka_unit_test(test_deny_wins),
                cmocka_unit_test(test_order_does_not_matter),
                cmocka_unit_test(test_rules_end),
                cmocka_unit_test(test_refused_list),
                cmocka_unit_test(test_the_database_keeps_them),
                cmocka_unit_test(test_so_many_and_no_more),
        };
        return cmocka_run_group_tests_name("access", tests, NULL, NULL);
}
