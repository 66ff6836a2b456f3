/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "common/model/graph.h"

#include <math.h>
#include <stdio.h>

static const struct mfl_shape image28 = {3, {1, 28, 28}}, image32 = {3, {3, 32, 32}};

static struct mfl_layer input(int64_t c, int64_t h, int64_t w)
{
        return (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {3, {c, h, w}}};
}

static struct mfl_layer conv(int reads, int filters, int kernel)
{
        return (struct mfl_layer){.op = MFL_OP_CONV2D,
                .input = reads,
                .out_channels = filters,
                .kernel = {kernel, kernel},
                .bias = true};
}

static struct mfl_layer dense(int reads, int units)
{
        return (struct mfl_layer){.op = MFL_OP_DENSE, .input = reads, .out_channels = units, .bias = true};
}

static void assert_shape(const struct mfl_layer *layer, const char *want)
{
        char text[96];
        assert_string_equal(mfl_shape_text(&layer->out, text, sizeof text), want);
}

static void assert_refused(const struct mfl_layer *layers, int n, int classes, const char *want)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_graph_build("m", layers, n, classes, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
        assert_null(graph);
}

static void assert_preset(const char *name, const struct mfl_shape *shape, int classes, uint64_t n)
{
        struct mfl_graph *graph;
        struct mfl_error err = {""};
        if (mfl_graph_preset(name, shape, classes, &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n, n);
        assert_string_equal(graph->name, name);
        uint64_t end = 0;
        for (int i = 0; i < graph->n_params; i++) {
                assert_int_equal(graph->params[i].offset, end);
                assert_int_equal(graph->params[i].count, mfl_shape_count(&graph->params[i].shape));
                end += graph->params[i].count;
        }
        assert_int_equal(end, n);
        mfl_graph_free(graph);
}

static void presets_have_the_published_sizes(void **state)
{
        assert_preset("logistic", &image28, 10, 7850);
        assert_preset("mlp", &image28, 10, 199210); /* McMahan et al. 2017, section 3 */
        assert_preset("lenet5", &image28, 10, 61706);
        assert_preset("lenet5", &(struct mfl_shape){3, {1, 32, 32}}, 10, 61706);
        assert_preset("lenet5", &image32, 10, 62006);
        assert_preset("fedavg-cnn", &image28, 10, 1663370); /* McMahan et al. 2017, section 3 */
        assert_preset("fedavg-cnn", &image28, 62, 1690046);
        assert_preset("pfl-cnn", &image32, 10, 1626442);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(presets_have_the_published_sizes),
        };
        (void)assert_shape, (void)assert_refused, (void)input, (void)conv, (void)dense;
        return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
