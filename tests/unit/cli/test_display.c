/* SPDX-License-Identifier: Apache-2.0 */
/* What people see, to the letter: bars, curves, quantities, and the live display at several widths. */
#include "cli/base/display.h"
#include "tests/lib/test.h"

#include <stdio.h>

static void test_bar(void **state)
{
        char buf[256];
        assert_string_equal(mfl_display_bar(0, 4, false, buf, sizeof buf), "....");
        assert_string_equal(mfl_display_bar(0.5, 4, false, buf, sizeof buf), "##..");
        assert_string_equal(mfl_display_bar(0.6, 4, false, buf, sizeof buf), "##-.");
        assert_string_equal(mfl_display_bar(1, 4, false, buf, sizeof buf), "####");
        assert_string_equal(mfl_display_bar(7, 4, false, buf, sizeof buf), "####");
        assert_string_equal(mfl_display_bar(-1, 4, false, buf, sizeof buf), "....");
        assert_string_equal(mfl_display_bar(0.5, 3, true, buf, sizeof buf), "█▌ ");
        assert_string_equal(mfl_display_bar(1, 3, true, buf, sizeof buf), "███");
        assert_string_equal(mfl_display_bar(1.0 / 16, 2, true, buf, sizeof buf), "▏ ");
}

static void test_curve(void **state)
{
        char buf[256];
        const double v[] = {0, 1, 2, 3, 4, 5, 6, 7};
        assert_string_equal(mfl_display_curve(v, 8, 8, true, buf, sizeof buf), "▁▂▃▄▅▆▇█");
        assert_string_equal(mfl_display_curve(v, 8, 8, false, buf, sizeof buf), "_.-:=+*#");
        /* The newest of them, scaled among themselves. */
        assert_string_equal(mfl_display_curve(v, 8, 2, false, buf, sizeof buf), "_#");
        const double flat[] = {3, 3, 3};
        assert_string_equal(mfl_display_curve(flat, 3, 8, false, buf, sizeof buf), "===");
        assert_string_equal(mfl_display_curve(v, 0, 8, true, buf, sizeof buf), "");
}

static void test_quantities(void **state)
{
        char buf[24];
        assert_string_equal(mfl_display_bytes(0, buf, sizeof buf), "0 B");
        assert_string_equal(mfl_display_bytes(999, buf, sizeof buf), "999 B");
        assert_string_equal(mfl_display_bytes(1000, buf, sizeof buf), "1.0 kB");
        assert_string_equal(mfl_display_bytes(9960, buf, sizeof buf), "10 kB");
        assert_string_equal(mfl_display_bytes(1.5e9, buf, sizeof buf), "1.5 GB");
        assert_string_equal(mfl_display_bytes(999.9e6, buf, sizeof buf), "1.0 GB");
        assert_string_equal(mfl_display_time(0, buf, sizeof buf), "0:00");
        assert_string_equal(mfl_display_time(61.6, buf, sizeof buf), "1:02");
        assert_string_equal(mfl_display_time(3723, buf, sizeof buf), "1:02:03");
}

static void test_width(void **state)
{
        assert_int_equal(mfl_display_width("abc"), 3);
        assert_int_equal(mfl_display_width("\033[1mabc\033[0m"), 3);
        assert_int_equal(mfl_display_width("█▌·"), 3);
        assert_int_equal(mfl_display_width(""), 0);
        assert_int_equal(mfl_display_width("\033["), 0);
}

static const double accuracy[] = {0.1, 0.5, 0.8};
static const double loss[] = {2.3, 1.2, 0.7};
static const struct mfl_display_job running = {.job = "j-000001",
        .name = "demo",
        .state = "running",
        .phase = "train",
        .reason = "",
        .round = 3,
        .rounds = 10,
        .in_round = 4,
        .clients_done = 5,
        .clients_total = 10,
        .daemons = 2,
        .bytes_up = 13.3e6,
        .bytes_down = 6.65e6,
        .seconds = 83,
        .left = 168,
        .accuracy = accuracy,
        .loss = loss,
        .n_evaluated = 3};

static void check_render(const struct mfl_display_job *job, int columns, bool utf8, const char *expected)
{
        struct mfl_style style = {.columns = columns, .utf8 = utf8};
        char *text = mfl_display_render(job, &style);
        assert_non_null(text);
        assert_string_equal(text, expected);
        free(text);
}

static void test_render_40(void **state)
{
        check_render(&running, 40, false,
                "j-000001 demo  running - train - 2 daemo\n"
                "rounds   3/10  clients 5/10  2:48 left\n"
                "accuracy 0.8000   _=#\n"
                "loss     0.7000   #-_\n"
                "up 13 MB, down 6.7 MB   time 1:23\n");
}

/* Before the first client is done it shows that something is. */
static void test_first_seconds(void **state)
{
        struct mfl_display_job job = running;
        job.clients_done = job.round = 0;
        job.in_round = 1;
        job.n_evaluated = 0;
        job.trained = 0.043;
        job.left = 600;
        check_render(&job, 80, false,
                "j-000001 demo  running - train - 2 daemons\n"
                "rounds   -.................................. 0/10  clients 0/10  4%  10:00 left\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
        job.trained = 0.7;
        job.clients_done = 3;
        check_render(&job, 80, false,
                "j-000001 demo  running - train - 2 daemons\n"
                "rounds   ##-............................... 0/10  clients 7/10  70%  10:00 left\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
}

static void test_long_name(void **state)
{
        struct mfl_display_job job = running;
        job.name = "a-rather-long-name-of-a-job-in-a-lab";
        job.n_evaluated = 0;
        check_render(&job, 60, false,
                "j-000001 a-rather-long-name-o..  running - train - 2 daemons\n"
                "rounds   #######............. 3/10  clients 5/10  2:48 left\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
        check_render(&job, 40, false,
                "j-000001 a-rath..  running - train - 2 d\n"
                "rounds   3/10  clients 5/10  2:48 left\n"
                "up 13 MB, down 6.7 MB   time 1:23\n");
}

static void test_render_80(void **state)
{
        check_render(&running, 80, false,
                "j-000001 demo  running - train - 2 daemons\n"
                "rounds   ##############.......................... 3/10  clients 5/10  2:48 left\n"
                "accuracy 0.8000   _=#\n"
                "loss     0.7000   #-_\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
}

static void test_render_120_utf8(void **state)
{
        check_render(&running, 120, true,
                "j-000001 demo  running · train · 2 daemons\n"
                "rounds   █████████████████████                                        3/10  clients 5/10  "
                "2:48 left\n"
                "accuracy 0.8000   ▁▅█\n"
                "loss     0.7000   █▃▁\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
}

static void test_render_other_losses(void **state)
{
        struct mfl_display_job job = running;
        job.no_accuracy = true;
        check_render(&job, 80, false,
                "j-000001 demo  running - train - 2 daemons\n"
                "rounds   ##############.......................... 3/10  clients 5/10  2:48 left\n"
                "accuracy n/a\n"
                "loss     0.7000   #-_\n"
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
        job.no_accuracy = false;
        job.per_token = true;
        check_render(&job, 80, false,
                "j-000001 demo  running - train - 2 daemons\n"
                "rounds   ##############.......................... 3/10  clients 5/10  2:48 left\n"
                "accuracy 0.8000   _=#\n"
                "loss     0.7000   #-_\n"
                "perplexity 2.01\n" /* exp(0.7) */
                "traffic  up 13 MB, down 6.7 MB   time 1:23\n");
}

static void test_render_waiting(void **state)
{
        struct mfl_display_job job = {.job = "j-000002",
                .name = "x",
                .state = "waiting",
                .phase = "wait",
                .reason = "no daemon with data set x is connected",
                .notice = "connection to the server lost, waiting",
                .rounds = 2,
                .left = -1};
        check_render(&job, 60, false,
                "j-000002 x  waiting\n"
                "rounds   .............................................. 0/2\n"
                "traffic  up 0 B, down 0 B   time 0:00\n"
                "no daemon with data set x is connected\n"
                "connection to the server lost, waiting\n");
        /* A reason is told to its end. */
        job.reason = "2 daemons offer x: site-a is drained, site-b-with-a-long-name has other samples";
        job.notice = NULL;
        check_render(&job, 24, false,
                "j-000002 x  waiting\n"
                "rounds   .......... 0/2\n"
                "up 0 B, down 0 B   time \n"
                "2 daemons offer x:\n"
                "site-a is drained,\n"
                "site-b-with-a-long-name\n"
                "has other samples\n");
        job.reason = "a-word-without-any-blank\u00e4\u00e4";
        check_render(&job, 24, false,
                "j-000002 x  waiting\n"
                "rounds   .......... 0/2\n"
                "up 0 B, down 0 B   time \n"
                "a-word-without-any-blank\n"
                "\u00e4\u00e4\n");
}

/* No line is ever wider than the terminal, or drawing in place would go wrong; and colours end with the line.
 */
static void test_render_fits(void **state)
{
        for (int columns = 1; columns < 200; columns++)
                for (int k = 0; k < 4; k++) {
                        struct mfl_style style = {.columns = columns, .utf8 = k & 1, .colour = k & 2};
                        struct mfl_display_job job = running;
                        job.reason =
                                "waits for daemons: 1 of 2 are connected; m\u00fcnchen has other samples";
                        char *text = mfl_display_render(&job, &style), *save;
                        assert_non_null(text);
                        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
                                assert_in_range(mfl_display_width(l), 0, columns);
                                char *last = strrchr(l, '\033');
                                if (last)
                                        assert_memory_equal(last, "\033[0m", 4);
                        }
                        free(text);
                }
}

static void test_render_memory(void **state)
{
        struct mfl_style style = {.columns = 80};
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                char *text = mfl_display_render(&running, &style);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(text == NULL, struck);
                free(text);
                if (!struck)
                        return;
        }
}

static void test_screen(void **state)
{
        char *text;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        struct mfl_screen s = {.out = f};
        mfl_screen_draw(&s, "a\nb\n");
        mfl_screen_draw(&s, "c\n");
        mfl_screen_end(&s);
        mfl_screen_end(&s);
        fclose(f);
        assert_string_equal(text, "\033[?25la\nb\n\033[2A\r\033[Jc\n\033[?25h");
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bar),
                cmocka_unit_test(test_curve),
                cmocka_unit_test(test_quantities),
                cmocka_unit_test(test_width),
                cmocka_unit_test(test_render_40),
                cmocka_unit_test(test_first_seconds),
                cmocka_unit_test(test_long_name),
                cmocka_unit_test(test_render_80),
                cmocka_unit_test(test_render_120_utf8),
                cmocka_unit_test(test_render_other_losses),
                cmocka_unit_test(test_render_waiting),
                cmocka_unit_test(test_render_fits),
                cmocka_unit_test(test_render_memory),
                cmocka_unit_test(test_screen),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
