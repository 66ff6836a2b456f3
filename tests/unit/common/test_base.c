/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "common/base/base.h"
#include "common/base/rng.h"

static void allocation_fails_once_where_asked(void **state)
{
        mfl_alloc_fail_at(1);
        void *a = mfl_malloc(1);
        void *b = mfl_malloc(1);
        void *c = mfl_malloc(1);
        assert_non_null(a);
        assert_null(b);
        assert_true(mfl_alloc_failed());
        assert_non_null(c);
        mfl_alloc_fail_at(-1);
        free(a);
        free(c);
}

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds). */
static void philox_gives_the_published_numbers(void **state)
{
        struct mfl_philox zero = {{0, 0, 0, 0}}, r = mfl_philox4x32(zero, 0, 0);
        assert_int_equal(r.v[0], 0x6627e8d5u);
        assert_int_equal(r.v[1], 0xe169c58du);
        assert_int_equal(r.v[2], 0xbc57ac4cu);
        assert_int_equal(r.v[3], 0x9b00dbd8u);
        struct mfl_philox pi = {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}};
        r = mfl_philox4x32(pi, 0xa4093822u, 0x299f31d0u);
        assert_int_equal(r.v[0], 0xd16cfe09u);
        assert_int_equal(r.v[1], 0x94fdccebu);
        assert_int_equal(r.v[2], 0x5001e420u);
        assert_int_equal(r.v[3], 0x24126ea1u);
}

/* What is cut ends with a whole character: half of one is no UTF-8. */
static void formatted_text_is_never_half_a_character(void **state)
{
        (void)state;
        char text[8];
        assert_int_equal(mfl_snprintf(text, sizeof text, "%.4s", "abc\u00e9"), 3);
        assert_string_equal(text, "abc");
        assert_int_equal(mfl_snprintf(text, sizeof text, "%.5s", "abc\u00e9"), 5);
        assert_string_equal(text, "abc\u00e9");
        assert_int_equal(mfl_snprintf(text, sizeof text, "%s", "abcde\U0001f600"), 9); /* as it would be */
        assert_string_equal(text, "abcde");
        assert_int_equal(mfl_snprintf(text, sizeof text, "%.6s", "abc\U0001f600"), 3);
        assert_string_equal(text, "abc");
        assert_int_equal(mfl_snprintf(text, sizeof text, "%s", "abc\U0001f600"), 7);
        assert_string_equal(text, "abc\U0001f600");
        assert_int_equal(mfl_snprintf(text, sizeof text, "%.2s", "\u20ac"), 0);
        assert_string_equal(text, "");
        assert_int_equal(mfl_snprintf(text, 0, "%s", "abc"), 3);
}

static void numbers_are_as_short_as_they_may_be(void **state)
{
        static const struct {
                double value;
                const char *text;
        } rows[] = {{0.8648, "0.8648"}, {0.1, "0.1"}, {0.1 + 0.2, "0.30000000000000004"},
                {1.0 / 3, "0.3333333333333333"}, {0, "0"}, {-2.5, "-2.5"}, {100, "100"}, {1e300, "1e+300"},
                {5e-324, "4.94065645841247e-324"}};
        char text[MFL_DOUBLE_BYTES];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                assert_string_equal(mfl_double_text(rows[i].value, text), rows[i].text);
                assert_true(strtod(text, NULL) == rows[i].value);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(allocation_fails_once_where_asked),
                cmocka_unit_test(formatted_text_is_never_half_a_character),
                cmocka_unit_test(numbers_are_as_short_as_they_may_be),
                cmocka_unit_test(philox_gives_the_published_numbers),
        };
        return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
