/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers say: which characters are replaced, and that nothing else is. */
#include "tests/lib/test.h"

#include "common/base/plain.h"

static void check(const char *text, bool lines, const char *expected)
{
        char *copy = strdup(text);
        uint32_t code;
        mfl_plain_clean(copy, lines);
        if (strcmp(copy, expected) != 0)
                fail_msg("\"%s\", expected \"%s\"", copy, expected);
        assert_true((mfl_plain_find(text, lines, &code) != NULL) == (strcmp(text, expected) != 0));
        assert_null(mfl_plain_find(copy, lines, &code));
        free(copy);
}

static void what_steers_a_terminal_is_replaced(void **state)
{
        check("\033]52;c;Zm9v\a", false, "?]52;c;Zm9v?");
        check("\033[2J\033[31mroot\033[0m", false, "?[2J?[31mroot?[0m");
        check("a\x7f"
              "b\r\nfaked: line\tx\b",
                false, "a?b??faked: line?x?");
        check("a\x7f"
              "b\r\nline\tx",
                true, "a?b?\nline\tx");
        check("\xc2\x9b"
              "31m \xc2\x85 \xc2\x80",
                false, "?31m ? ?"); /* CSI, NEL, PAD of C1 */
}

static void what_changes_the_order_of_text_is_replaced(void **state)
{
        for (uint32_t code = 0x2028; code <= 0x202e; code++) {
                char text[] = {'a', (char)0xe2, (char)0x80, (char)(0x80 + (code & 0x3f)), 'b', 0};
                check(text, false, "a?b");
                check(text, true, "a?b");
        }
        check("\xe2\x81\xa6x\xe2\x81\xa9", false, "?x?");        /* U+2066, U+2069 */
        check("\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", false, "???"); /* U+200E, U+200F, U+061C */
        check("\xef\xbb\xbf"
              "a\xe2\x80\x8b\xe2\x81\xa0",
                true, "?a??");                                  /* BOM, U+200B, U+2060 */
        check("\xf3\xa0\x80\x81\xf3\xa0\x81\xbf", false, "??"); /* tags */
}

static void what_is_no_utf8_is_replaced(void **state)
{
        check("\xff\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82", false, "??? ??? ???? ??");
        assert_true(mfl_plain_utf8("\xf0\x9f\x92\xbb"));
        assert_false(mfl_plain_utf8("\xe0\x80\xaf"));
        assert_false(mfl_plain_utf8("a\xc3"));
}

static void all_other_text_stays(void **state)
{
        const char *texts[] = {"", "fashion-mnist", "Universit\xc3\xa4t Z\xc3\xbcrich",
                "\xd8\xb3\xd9\x84\xd8\xa7\xd9\x85",
                "\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae\xd9\x88\xd8\xa7\xd9\x87\xd9\x85",
                "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac", "\xef\xbf\xbd",
                "\xe2\x80\xa6 \xc2\xb1 \xe2\x89\x88"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++)
                check(texts[i], false, texts[i]);
        /* Every character: the code that comes out is the one that went in. */
        for (uint32_t c = 1; c < 0x110000; c += c < 0x3000 ? 1 : 7) {
                char s[5] = {0};
                uint32_t code = 0;
                size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
                for (size_t i = n; i-- > 1;)
                        s[i] = (char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3f));
                s[0] = (char)(n == 1 ? c : (0xf0u << (4 - n)) | c >> (6 * (n - 1)));
                bool surrogate = c >= 0xd800 && c < 0xe000;
                assert_int_equal(mfl_plain_character(s, &code), surrogate ? 0 : n);
                assert_true(surrogate || code == c);
        }
}

static void names_are_printable_ascii(void **state)
{
        const char *good[] = {"", "a", "GPU-5d3c", "0000:65:00.0", "MIG-GPU-1/2/3", "two words"};
        const char *bad[] = {" a", "a ", "a\tb", "a\n", "\xc3\xa9", "\033[m", "a\xe2\x80\x8b", "\x7f"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(good); i++)
                assert_true(mfl_plain_name(good[i]));
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++)
                assert_false(mfl_plain_name(bad[i]));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_steers_a_terminal_is_replaced),
                cmocka_unit_test(what_changes_the_order_of_text_is_replaced),
                cmocka_unit_test(what_is_no_utf8_is_replaced),
                cmocka_unit_test(all_other_text_stays),
                cmocka_unit_test(names_are_printable_ascii),
        };
        return cmocka_run_group_tests_name("plain", tests, NULL, NULL);
}
