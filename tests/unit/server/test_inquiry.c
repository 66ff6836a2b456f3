/* SPDX-License-Identifier: Apache-2.0 */
/* Inquiries: whom they ask, once for each data set, and again when a daemon is lost; and the gates of promotion. */
#include "tests/lib/test.h"
#include "server/inquiry/gates.h"
#include "server/inquiry/plan.h"

static struct mfl_inquiry_daemon daemon_of(
        const char *name, const char *site, uint64_t fingerprint, uint32_t conn)
{
        struct mfl_inquiry_daemon d = {.conn = conn, .fingerprint = fingerprint, .train_samples = 7};
        mfl_strcpy(d.name, sizeof d.name, name);
        mfl_strcpy(d.site, sizeof d.site, site);
        return d;
}

static void equal_data_are_asked_about_once(void **state)
{
        struct mfl_inquiry_daemon v[] = {daemon_of("d2", "d2", 1, 12), daemon_of("h-2", "hospital", 2, 14),
                daemon_of("d1", "d1", 1, 11), daemon_of("h-1", "hospital", 2, 13)};
        struct mfl_inquiry_plan plan;
        assert_int_equal(mfl_inquiry_plan_init(&plan, v, 4, 1000), 0);
        assert_int_equal(plan.n, 2);
        assert_string_equal(plan.parts[0].site, "d1");
        assert_string_equal(plan.parts[1].site, "hospital");
        assert_string_equal(mfl_inquiry_next(&plan, 1, v, 4)->name, "h-2");
        assert_null(mfl_inquiry_next(&plan, 1, v, 4)); /* it is at it */
        assert_ptr_equal(mfl_inquiry_asked(&plan, 14), &plan.parts[1]);
        assert_null(mfl_inquiry_asked(&plan, 13));
        /* h-2 is lost: h-1 is asked; h-2 comes back on another connection, and is not asked beside it. */
        assert_string_equal(mfl_inquiry_next(&plan, 1, &v[2], 2)->name, "h-1");
        v[1].conn = 15;
        assert_null(mfl_inquiry_next(&plan, 1, v, 4));
        assert_null(mfl_inquiry_asked(&plan, 14));
        plan.parts[1].status = MFL_INQUIRY_ANSWERED;
        assert_null(mfl_inquiry_asked(&plan, 13));
        assert_false(mfl_inquiry_over(&plan, 999));
        assert_true(mfl_inquiry_over(&plan, 1000));
        plan.parts[0].status = MFL_INQUIRY_REFUSED;
        assert_true(mfl_inquiry_over(&plan, 0));
        mfl_inquiry_plan_deinit(&plan);
}

/* The daemon that was asked may have the answer, so it is the first to be asked again. */
static void the_same_daemon_first(void **state)
{
        struct mfl_inquiry_daemon v[] = {daemon_of("a", "s", 1, 1), daemon_of("b", "s", 1, 2)};
        struct mfl_inquiry_plan plan;
        assert_int_equal(mfl_inquiry_plan_init(&plan, v, 2, 9), 0);
        assert_string_equal(mfl_inquiry_next(&plan, 0, &v[1], 1)->name, "b");
        v[1].conn = 3;
        assert_int_equal(mfl_inquiry_next(&plan, 0, v, 2)->conn, 3);
        mfl_inquiry_plan_deinit(&plan);
}

static void patterns(void **state)
{
        const struct mfl_inquiry_daemon d = daemon_of("box-1", "hospital-a", 1, 1);
        assert_true(mfl_inquiry_matches("", &d) && mfl_inquiry_matches("hospital-*", &d) &&
                    mfl_inquiry_matches("box-?", &d));
        assert_false(mfl_inquiry_matches("hospital", &d) || mfl_inquiry_matches("box-??", &d));
}

static Mfl__InquirySite site_of(
        const char *name, Mfl__InquiryStatus status, uint64_t samples, uint64_t correct)
{
        Mfl__InquirySite s = MFL__INQUIRY_SITE__INIT;
        s.site = (char *)(uintptr_t)name;
        s.status = status;
        s.samples = samples;
        s.correct = correct;
        return s;
}

static void gates(void **state)
{
        Mfl__InquirySite a = site_of("a", 1, 100, 90), b = site_of("b", 1, 100, 80),
                         gone = site_of("b", 0, 0, 0), worse = site_of("a", 1, 100, 85);
        Mfl__InquirySite *first[] = {&a, &b}, *second[] = {&worse, &b}, *third[] = {&a, &gone};
        Mfl__InquiryReport now = MFL__INQUIRY_REPORT__INIT, before = MFL__INQUIRY_REPORT__INIT;
        Mfl__ModelGates g = MFL__MODEL_GATES__INIT;
        char reason[MFL_REASON_BYTES];
        now.n_sites = before.n_sites = 2;
        now.sites = before.sites = first;
        g.worse_max = -1;
        g.accuracy = 0.85;
        assert_null(mfl_gates_check(&g, &now, true, NULL, reason));
        assert_string_equal(mfl_gates_check(&g, NULL, true, NULL, reason), "validated");
        g.accuracy = 0.86;
        assert_string_equal(mfl_gates_check(&g, &now, true, NULL, reason), "accuracy");
        assert_string_equal(reason, "its accuracy over all sites is 0.8500, below 0.86");
        g.accuracy = 0;
        g.sites = 3;
        assert_string_equal(mfl_gates_check(&g, &now, true, NULL, reason), "sites");
        g.sites = 2;
        g.worse_max = 0.04;
        assert_null(mfl_gates_check(&g, &now, false, NULL, reason)); /* the first champion */
        assert_string_equal(mfl_gates_check(&g, &now, true, NULL, reason), "worse");
        assert_null(mfl_gates_check(&g, &now, true, &before, reason));
        now.sites = second;
        assert_string_equal(mfl_gates_check(&g, &now, true, &before, reason), "worse");
        g.worse_max = 0.05 + 1e-9;
        assert_null(mfl_gates_check(&g, &now, true, &before, reason));
        g.sites = 0;
        now.sites = third;
        assert_string_equal(mfl_gates_check(&g, &now, true, &before, reason), "worse");
        now.sites = first;
        now.no_accuracy = true;
        g = (Mfl__ModelGates)MFL__MODEL_GATES__INIT;
        g.accuracy = 0.1;
        assert_string_equal(mfl_gates_check(&g, &now, false, NULL, reason), "accuracy");
        g.accuracy = 0;
        g.worse_max = 1;
        assert_string_equal(mfl_gates_check(&g, &now, true, &now, reason), "worse");
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(equal_data_are_asked_about_once),
                cmocka_unit_test(the_same_daemon_first), cmocka_unit_test(patterns), cmocka_unit_test(gates)};
        return cmocka_run_group_tests_name("inquiry", tests, NULL, NULL);
}
