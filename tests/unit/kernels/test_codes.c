/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of codes: a code counts with what the model adds to it, where each column's rows begin in a table of all columns. */
#include "tests/lib/test.h"

#include "kernels/check.h"

#define ROWS 12
#define WIDTH 5
static const float first[3] = {0, 4, 8};

static struct mfl_graph *graph_of(bool added)
{
        const struct mfl_layer layers[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {1, {WIDTH}}},
                {.op = MFL_OP_SLICE, .input = 0, .start = 1, .end = 4},
                {.op = MFL_OP_WEIGHT, .input = -1, .shape = {1, {3}}, .frozen = true},
                {.op = MFL_OP_ADD, .input = 1, .input2 = 2},
                {.op = MFL_OP_EMBEDDING, .name = "codes", .input = 3, .vocabulary = ROWS, .out_channels = 2},
                {.op = MFL_OP_FLATTEN, .input = 4},
                {.op = MFL_OP_DENSE, .input = 5, .out_channels = 2, .bias = true},
        };
        const struct mfl_layer plain[] = {layers[0], layers[1],
                {.op = MFL_OP_EMBEDDING, .name = "codes", .input = 1, .vocabulary = ROWS, .out_channels = 2},
                {.op = MFL_OP_FLATTEN, .input = 2},
                {.op = MFL_OP_DENSE, .input = 3, .out_channels = 2, .bias = true}};
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        if (added ? mfl_graph_build("t", layers, 7, 2, &graph, &err)
                  : mfl_graph_build("t", plain, 5, 2, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

enum numbers { NO_NUMBERS, PARTS, BY_LAYERS };

/* What is said of a sample with these codes. */
static int check(bool added, enum numbers given, const float codes[3], struct mfl_error *err)
{
        struct mfl_graph *graph = graph_of(added);
        float samples[2][WIDTH] = {{0.5f, 0, 0, 0, -7}, {0.5f, codes[0], codes[1], codes[2], -7}};
        struct mfl_dataset set = {
                .name = "d", .shape = {1, {WIDTH}}, .train = {.n = 2, .dtype = MFL_F32, .samples = samples}};
        float *params = calloc(graph->n, sizeof *params);
        set.scale[0] = 1;
        if (added) {
                const struct mfl_param *offsets = &graph->params[graph->layers[2].param_weight];
                memcpy(params + (given == BY_LAYERS ? offsets->place : offsets->offset), first, sizeof first);
        }
        const struct mfl_model_numbers parts = {.frozen = params, .moving = params + graph->n_frozen},
                                       all = {.by_layers = params};
        int r = mfl_check_codes(graph,
                given == NO_NUMBERS ? NULL
                : given == PARTS    ? &parts
                                    : &all,
                &set, err);
        free(params);
        mfl_graph_free(graph);
        return r;
}

static void test_a_code_counts_with_its_offset(void **state)
{
        static const struct {
                float codes[3];
                const char *says;
        } cases[] = {
                {{3, 7, 3}, NULL},
                {{11, -4, -8}, NULL}, /* rows that PyTorch reads, too */
                {{0, 0, 4}, "data set d: feature 3 of sample 1 is 4, and 12 with the 8 that the model adds "
                            "to it, but "
                            "layer codes reads categories there: whole numbers from 0 to 11"},
                {{0, -5, 0}, "feature 2 of sample 1 is -5, and -1 with the 4 that the model adds to it, but "
                             "layer codes"},
                {{-1, 0, 0}, "feature 1 of sample 1 is -1, but layer codes reads"},
                {{0, 0.5f, 0}, "feature 2 of sample 1 is 0.5, and 4.5 with the 4"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                for (enum numbers given = PARTS; given <= BY_LAYERS; given++) {
                        struct mfl_error err = {""};
                        assert_int_equal(
                                check(true, given, cases[i].codes, &err), cases[i].says ? MFL_INVALID : 0);
                        if (cases[i].says)
                                assert_non_null(strstr(err.text, cases[i].says));
                }
}

static void test_columns_without_offsets(void **state)
{
        struct mfl_error err = {""};
        const float good[3] = {11, 0, 5}, bad[3] = {0, 0, 12};
        for (enum numbers given = NO_NUMBERS; given <= BY_LAYERS; given++) {
                assert_int_equal(check(false, given, good, &err), 0);
                assert_int_equal(check(false, given, bad, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, "feature 3 of sample 1 is 12, but layer codes reads"));
        }
        /* Before the offsets are known, nothing can be said of a column that has one. */
        assert_int_equal(check(true, NO_NUMBERS, bad, &err), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_code_counts_with_its_offset),
                cmocka_unit_test(test_columns_without_offsets),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
