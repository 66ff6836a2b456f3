/* SPDX-License-Identifier: Apache-2.0 */
/* What scrapers and browsers are given: escapes of every format, numbers that read back, histograms, and
 * memory that runs out in the middle. */
#include "tests/lib/test.h"

#include <math.h>

#include "server/web/exposition.h"

static void is(struct mfl_text *text, const char *expected)
{
        assert_false(text->failed);
        assert_string_equal(text->v, expected);
        assert_int_equal(text->n, strlen(expected));
        mfl_text_deinit(text);
}

static void html_is_escaped(void **state)
{
        struct mfl_text text = {0};
        mfl_text_html(&text, "<script>alert(\"x\" + 'y')</script> & \xc3\xa9\n");
        is(&text, "&lt;script&gt;alert(&quot;x&quot; + &#39;y&#39;)&lt;/script&gt; &amp; \xc3\xa9\n");
        mfl_text_html(&text, "a\x01z");
        is(&text, "a\xef\xbf\xbdz");
}

static void labels_are_escaped(void **state)
{
        struct mfl_text text = {0};
        mfl_text_label(&text, "a\"b\\c\nd{}=,\xc3\xa9");
        is(&text, "a\\\"b\\\\c\\nd{}=,\xc3\xa9");
}

/* An escape sequence, a C1 control, a right-to-left override and DEL, as a database of an older release may
 * hold them. */
static void what_steers_a_terminal_is_shown_as_such(void **state)
{
        static const char in[] = "a\033[2Jb\xc2\x9b"
                                 "c\xe2\x80\xae"
                                 "d\x7f";
        struct mfl_text text = {0};
        mfl_text_label(&text, in);
        is(&text, "a\xef\xbf\xbd[2Jb\xef\xbf\xbd"
                  "c\xef\xbf\xbd"
                  "d\xef\xbf\xbd");
        mfl_text_html(&text, in);
        is(&text, "a\xef\xbf\xbd[2Jb\xef\xbf\xbd"
                  "c\xef\xbf\xbd"
                  "d\xef\xbf\xbd");
}

/* Overlong, a surrogate, too large, cut off, alone: each byte that belongs to no character is replaced, and
 * what follows is not swallowed. */
static void what_is_no_utf8_becomes_so(void **state)
{
        static const struct {
                const char *in, *out;
        } cases[] = {
                {"a\xffz", "a\xef\xbf\xbdz"},
                {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                {"cut\xe2\x82", "cut\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xc3\"", "\xef\xbf\xbd\\\""},
                {"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xe0\xa0\x80", "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xe0\xa0\x80"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_text text = {0};
                mfl_text_label(&text, cases[i].in);
                is(&text, cases[i].out);
        }
}

static void families_and_samples(void **state)
{
        struct mfl_text text = {0};
        struct mfl_exposition out = {.text = &text};
        mfl_exposition_family(&out, MFL_METRIC_COUNTER, "x_total", "Help.");
        mfl_exposition_u64(&out, UINT64_MAX, MFL_NO_LABELS);
        mfl_exposition_family(&out, MFL_METRIC_GAUGE, "y", "Help.");
        mfl_exposition_double(&out, 0.1, MFL_LABELS("a", "1", "b", "\""));
        is(&text, "# HELP x_total Help.\n# TYPE x_total counter\nx_total 18446744073709551615\n"
                  "# HELP y Help.\n# TYPE y gauge\ny{a=\"1\",b=\"\\\"\"} 0.1\n");
}

static void numbers_read_back(void **state)
{
        static const double values[] = {0.1 + 0.2, 1.0 / 3, 1e-300, 1e300, 123456789.0, -0.5, 5e-324};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(values); i++) {
                struct mfl_text text = {0};
                struct mfl_exposition out = {.text = &text, .family = "x"};
                mfl_exposition_double(&out, values[i], MFL_NO_LABELS);
                assert_true(strtod(text.v + 2, NULL) == values[i]);
                mfl_text_deinit(&text);
        }
        struct mfl_text text = {0};
        struct mfl_exposition out = {.text = &text, .family = "x"};
        mfl_exposition_double(&out, NAN, MFL_NO_LABELS);
        mfl_exposition_double(&out, INFINITY, MFL_NO_LABELS);
        mfl_exposition_double(&out, -INFINITY, MFL_NO_LABELS);
        is(&text, "x NaN\nx +Inf\nx -Inf\n");
}

static void histograms_sum_up(void **state)
{
        static const struct mfl_bounds bounds = {3, {0.1, 1, 10}};
        struct mfl_histogram histogram = {{0}, 0};
        struct mfl_text text = {0};
        struct mfl_exposition out = {.text = &text};
        mfl_histogram_add(&histogram, &bounds, 0.1); /* a bound belongs to its bucket */
        mfl_histogram_add(&histogram, &bounds, 0.5);
        mfl_histogram_add(&histogram, &bounds, 99);
        mfl_histogram_add(&histogram, &bounds, NAN);
        mfl_exposition_family(&out, MFL_METRIC_HISTOGRAM, "h", "Help.");
        mfl_exposition_histogram(&out, &histogram, &bounds, MFL_LABELS("job", "j"));
        is(&text, "# HELP h Help.\n# TYPE h histogram\n"
                  "h_bucket{job=\"j\",le=\"0.1\"} 1\nh_bucket{job=\"j\",le=\"1\"} 2\n"
                  "h_bucket{job=\"j\",le=\"10\"} 2\nh_bucket{job=\"j\",le=\"+Inf\"} 4\n"
                  "h_sum{job=\"j\"} 99.6\nh_count{job=\"j\"} 4\n");
        mfl_exposition_histogram(&out, &histogram, &bounds, MFL_NO_LABELS);
        assert_non_null(strstr(text.v, "h_bucket{le=\"0.1\"} 1\n"));
        assert_non_null(strstr(text.v, "\nh_count 4\n"));
        mfl_text_deinit(&text);
}

static void memory_runs_out(void **state)
{
        char long_text[3000];
        memset(long_text, 'x', sizeof long_text - 1);
        long_text[sizeof long_text - 1] = '\0';
        for (long n = 0; n < 10; n++) {
                struct mfl_text text = {0};
                mfl_alloc_fail_at(n);
                mfl_text_put(&text, "begin");
                mfl_text_html(&text, long_text);
                mfl_text_format(&text, "%s %d", long_text, 7);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(text.failed, struck);
                if (!struck)
                        assert_int_equal(text.n, 5 + 2999 + 3001);
                mfl_text_deinit(&text);
                if (!struck)
                        return;
        }
        fail_msg("it never had enough memory");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(html_is_escaped),
                cmocka_unit_test(labels_are_escaped),
                cmocka_unit_test(what_steers_a_terminal_is_shown_as_such),
                cmocka_unit_test(what_is_no_utf8_becomes_so),
                cmocka_unit_test(families_and_samples),
                cmocka_unit_test(numbers_read_back),
                cmocka_unit_test(histograms_sum_up),
                cmocka_unit_test(memory_runs_out),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
