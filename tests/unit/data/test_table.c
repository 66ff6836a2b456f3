/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a partition, character by character. */
#include "tests/lib/test.h"
#include "common/partition/partition.h"

#include <stdio.h>

/* Three clients of 4, 3 and 1 samples of two classes. */
static const int32_t labels[8] = {0, 0, 0, 0, 1, 1, 1, 1};
static uint32_t start[4] = {0, 4, 7, 8}, indices[8] = {0, 1, 2, 4, 5, 6, 3, 7};
static const struct mfl_partition three = {.n_clients = 3, .start = start, .index = indices};

static void expect(uint32_t rows_max, int bar, bool colour, bool utf8, const char *text)
{
        struct mfl_partition_view view = {
                .rows_max = rows_max, .bar_columns = bar, .colour = colour, .utf8 = utf8};
        char *table = mfl_partition_table(&three, labels, 2, &view);
        assert_non_null(table);
        if (strcmp(table, text))
                print_message("%s\n", table);
        assert_string_equal(table, text);
        free(table);
}

#define SUMMARY                                                                                              \
        "samples  min 1, median 3, max 4 per client; 3 clients\n"                                            \
        "skew     mean 0.306 (0: clients have the class mix of all, 1: none of it)\n"

static void plain(void **state)
{
        expect(0, 8, false, false,
                "client   samples              classes    skew\n"
                "     0         4  ##########  00000011  0.250\n"
                "     1         3  ########    00011111  0.167\n"
                "     2         1  ###         11111111  0.500\n"
                "   all         8              00001111\n" SUMMARY);
}

static void utf8_has_eighths(void **state)
{
        expect(2, 8, false, true,
                "client   samples              classes    skew\n"
                "     0         4  ██████████  00000011  0.250\n"
                "     1         3  ███████▌    00011111  0.167\n"
                "   ...  and 1 more client\n"
                "   all         8              00001111\n" SUMMARY);
}

static void colours_cut_within_a_column(void **state)
{
        /* 3 samples over 64 eighths: class 0 has 21 of them, two columns and five eighths. */
        expect(0, 8, true, true,
                "client   samples              classes    skew\n"
                "     0         4  ██████████  \x1b[0;38;5;32m██████\x1b[0;38;5;208m██\x1b[0m  0.250\n"
                "     1         3  ███████▌    "
                "\x1b[0;38;5;32m██\x1b[0;38;5;32;48;5;208m▋\x1b[0;38;5;208m█████\x1b[0m"
                "  0.167\n"
                "     2         1  ██▌         \x1b[0;38;5;208m████████\x1b[0m  0.500\n"
                "   all         8              \x1b[0;38;5;32m████\x1b[0;38;5;208m████\x1b[0m\n"
                "classes  \x1b[38;5;32m█\x1b[0m 0  \x1b[38;5;208m█\x1b[0m 1\n" SUMMARY);
}

static void default_rows_fit_in_80_columns(void **state)
{
        struct mfl_partition_view view = {0};
        char *table = mfl_partition_table(&three, labels, 12, &view);
        for (char *line = strtok(table, "\n"); line; line = strtok(NULL, "\n"))
                assert_true(strlen(line) < 80 || (print_message("%s\n", line), false));
        free(table);
}

static void no_table_without_memory(void **state)
{
        struct mfl_partition_view view = {.colour = true, .utf8 = true};
        for (long i = 0;; i++) {
                mfl_alloc_fail_at(i);
                char *table = mfl_partition_table(&three, labels, 2, &view);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_true(struck == !table);
                free(table);
                if (!struck) {
                        assert_true(i >= 4);
                        break;
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(plain),
                cmocka_unit_test(utf8_has_eighths),
                cmocka_unit_test(colours_cut_within_a_column),
                cmocka_unit_test(default_rows_fit_in_80_columns),
                cmocka_unit_test(no_table_without_memory),
        };
        return cmocka_run_group_tests_name("partition table", tests, NULL, NULL);
}
