/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of sparse linear maps beside loops that say the same. */
#include <math.h>

#include "common/model/graph.h"
#include "tests/lib/test.h"

static struct mfl_graph *graph_of(const struct mfl_shape *in, const struct mfl_layer *layer)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = *in}, *layer};
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        if (mfl_graph_build("m", layers, 2, 0, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static void apply(const struct mfl_map *map, const struct mfl_map_rows *rows, const double *x, double *y)
{
        int64_t n_in = rows == &map->y ? map->n_in : map->n_out;
        for (int64_t a = 0; a < map->outer; a++)
                for (int64_t r = 0; r < rows->n; r++)
                        for (int64_t b = 0; b < map->inner; b++) {
                                int64_t t = rows->first ? rows->first[r] : r,
                                        end = rows->first ? rows->first[r + 1] : r + 1;
                                double sum = t == end && rows == &map->y ? (double)map->fill : 0;
                                for (; t < end; t++)
                                        sum += (rows->weight ? (double)rows->weight[t] : 1) *
                                               x[(a * n_in + rows->index[t]) * map->inner + b];
                                y[(a * rows->n + r) * map->inner + b] = sum;
                        }
}

#define ELEMENTS 4096

/* The layer's output for x[i] = sin(i), by its table. <y, A x> = <A' y, x> holds for the transposed one. */
static void output_of(const struct mfl_graph *graph, double *y)
{
        static double x[ELEMENTS], back[ELEMENTS], plain[ELEMENTS];
        struct mfl_map *map = NULL;
        struct mfl_error err;
        double forward = 0, backward = 0;
        int64_t n = mfl_shape_count(&graph->input), n_out = mfl_shape_count(&graph->layers[1].out);
        assert_true(n <= ELEMENTS && n_out <= ELEMENTS);
        assert_int_equal(mfl_map_new(graph, 1, &map, &err), 0);
        assert_int_equal(map->outer * map->n_in * map->inner, n);
        assert_int_equal(map->outer * map->n_out * map->inner, n_out);
        assert_true(map->bytes <= mfl_map_bytes(graph, 1));
        for (int64_t i = 0; i < n; i++)
                x[i] = sin((double)i);
        apply(map, &map->y, x, y);
        map->fill = 0;
        apply(map, &map->y, x, plain);
        apply(map, &map->x, y, back);
        for (int64_t o = 0; o < n_out; o++)
                forward += y[o] * plain[o];
        for (int64_t i = 0; i < n; i++)
                backward += back[i] * x[i];
        assert_true(fabs(forward - backward) <= 1e-9 * (1 + fabs(forward)));
        mfl_map_free(map);
}

static double at(int64_t i)
{
        return sin((double)i);
}

/* float weights */
static void assert_near(double a, double b)
{
        if (fabs(a - b) > 1e-6)
                fail_msg("%.9g, not %.9g", a, b);
}

static void a_pixel_shuffle_is_a_view(void **state)
{
        static double y[ELEMENTS];
        struct mfl_shape in = {3, {12, 3, 5}};
        struct mfl_layer layer = {.op = MFL_OP_MAP,
                .shape = {3, {3, 6, 10}},
                .map = {.kind = MFL_MAP_VIEW,
                        .n_digits = 5,
                        .size = {3, 3, 2, 5, 2},
                        .stride = {60, 5, 30, 1, 15}}};
        struct mfl_graph *graph = graph_of(&in, &layer);
        output_of(graph, y);
        for (int64_t c = 0; c < 3; c++)
                for (int64_t h = 0; h < 6; h++)
                        for (int64_t w = 0; w < 10; w++)
                                assert_near(y[(c * 6 + h) * 10 + w],
                                        at(((c * 4 + h % 2 * 2 + w % 2) * 3 + h / 2) * 5 + w / 2));
        mfl_graph_free(graph);
}

static void shifts_roll_as_torch_does(void **state)
{
        static double y[ELEMENTS];
        struct mfl_shape in = {2, {5, 7}};
        struct mfl_layer layer = {.op = MFL_OP_MAP,
                .shape = in,
                .map = {.kind = MFL_MAP_VIEW,
                        .n_digits = 2,
                        .size = {5, 7},
                        .stride = {7, 1},
                        .shift = {2, -3}}};
        struct mfl_graph *graph = graph_of(&in, &layer);
        output_of(graph, y);
        for (int64_t i = 0; i < 5; i++)
                for (int64_t j = 0; j < 7; j++)
                        assert_near(y[(i + 2) % 5 * 7 + (j - 3 + 7) % 7], at(i * 7 + j));
        mfl_graph_free(graph);
}

/* Where padding reads: -1 is the constant. */
static int64_t padded(enum mfl_map_mode mode, int64_t i, int64_t n)
{
        if (i >= 0 && i < n)
                return i;
        switch (mode) {
        case MFL_MAP_REFLECT:
                return i < 0 ? -i : 2 * n - 2 - i;
        case MFL_MAP_REPLICATE:
                return i < 0 ? 0 : n - 1;
        case MFL_MAP_CIRCULAR:
                return i < 0 ? i + n : i - n;
        default:
                return -1;
        }
}

static void padding_of_all_modes(void **state)
{
        static double y[ELEMENTS];
        struct mfl_shape in = {3, {2, 4, 5}};
        for (int mode = MFL_MAP_CONSTANT; mode <= MFL_MAP_CIRCULAR; mode++) {
                struct mfl_layer layer = {.op = MFL_OP_MAP,
                        .map = {.kind = MFL_MAP_PAD,
                                .mode = (enum mfl_map_mode)mode,
                                .before = {0, 3, 1},
                                .after = {0, 2, 4},
                                .value = mode == MFL_MAP_CONSTANT ? -2 : 0}};
                struct mfl_graph *graph = graph_of(&in, &layer);
                output_of(graph, y);
                for (int64_t e = 0; e < 2 * 9 * 10; e++) {
                        int64_t c = e / 90, h = padded((enum mfl_map_mode)mode, e / 10 % 9 - 3, 4),
                                w = padded((enum mfl_map_mode)mode, e % 10 - 1, 5);
                        assert_near(y[e], h < 0 || w < 0 ? -2 : at((c * 4 + h) * 5 + w));
                }
                mfl_graph_free(graph);
        }
}

static void bilinear_is_linear_twice(void **state)
{
        static double y[ELEMENTS];
        struct mfl_shape in = {3, {2, 4, 5}};
        struct mfl_layer layer = {
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_RESIZE, .mode = MFL_MAP_BILINEAR, .to = {7, 3}}};
        struct mfl_graph *graph = graph_of(&in, &layer);
        output_of(graph, y);
        for (int64_t e = 0; e < 2 * 7 * 3; e++) {
                double u = fmax((double)(e / 3 % 7 * 2 + 1) * 4 / 14 - 0.5, 0),
                       v = fmax((double)(e % 3 * 2 + 1) * 5 / 6 - 0.5, 0), want = 0;
                int64_t h = (int64_t)u, w = (int64_t)v, c = e / 21;
                for (int64_t k = 0; k < 4; k++) {
                        int64_t hh = MFL_MIN(h + k / 2, 3), ww = MFL_MIN(w + k % 2, 4);
                        want += (k / 2 ? u - (double)h : 1 - u + (double)h) *
                                (k % 2 ? v - (double)w : 1 - v + (double)w) * at((c * 4 + hh) * 5 + ww);
                }
                assert_near(y[e], want);
        }
        mfl_graph_free(graph);
}

static void sums_and_pools(void **state)
{
        static double y[ELEMENTS];
        struct mfl_shape in = {3, {2, 7, 5}};
        struct mfl_layer sum = {.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_SUM, .axes = 5}};
        struct mfl_graph *graph = graph_of(&in, &sum);
        assert_int_equal(graph->layers[1].out.rank, 1);
        output_of(graph, y);
        for (int64_t h = 0; h < 7; h++) {
                double want = 0;
                for (int64_t k = 0; k < 10; k++)
                        want += at((k / 5 * 7 + h) * 5 + k % 5);
                assert_near(y[h], want);
        }
        mfl_graph_free(graph);
        struct mfl_layer adaptive = {
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_ADAPTIVE_AVGPOOL2D, .to = {3, 1}}};
        graph = graph_of(&in, &adaptive);
        output_of(graph, y);
        static const int64_t from[] = {0, 2, 4}, end[] = {3, 5, 7};
        for (int64_t e = 0; e < 6; e++) {
                double want = 0;
                for (int64_t k = from[e % 3] * 5; k < end[e % 3] * 5; k++)
                        want += at(e / 3 * 35 + k) / 15;
                assert_near(y[e], want);
        }
        mfl_graph_free(graph);
}

static void mistakes_are_named(void **state)
{
        static const struct {
                struct mfl_layer layer;
                const char *says;
        } cases[] = {
                {{.op = MFL_OP_MAP,
                         .shape = {1, {6}},
                         .map = {.kind = MFL_MAP_VIEW, .n_digits = 1, .size = {6}, .stride = {8}}},
                        "reads elements 0 to 40; its input 2x4x5 has elements 0 to 39"},
                {{.op = MFL_OP_MAP,
                         .shape = {1, {7}},
                         .map = {.kind = MFL_MAP_VIEW, .n_digits = 1, .size = {6}, .stride = {1}}},
                        "its sizes give 6 numbers, its shape 7 has 7"},
                {{.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_PAD, .mode = MFL_MAP_REFLECT, .before = {0, 4}}},
                        "adds 4 to dimension 1, which has 4: reflect adds less than the dimension has"},
                {{.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_RESIZE, .mode = MFL_MAP_NEAREST}},
                        "needs a size, or a scale_factor"},
                {{.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_SUM, .axes = 8}}, "has dimensions 0 to 2"},
                {{.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_CUMSUM, .axes = 3}}, "adds along one dimension"},
                {{.op = MFL_OP_MAP,
                         .kernel = {3, 3},
                         .dilation = {2, 1},
                         .padding = {1, 1},
                         .map = {.kind = MFL_MAP_AVGPOOL2D}},
                        "dilation"},
                {{.op = MFL_OP_MAP, .map = {.kind = MFL_MAP_GATHER}, .shape = {1, {1}}},
                        "needs 1 to 65536 indices"},
        };
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_layer layers[] = {
                        {.op = MFL_OP_INPUT, .input = -1, .out = {3, {2, 4, 5}}}, cases[i].layer};
                int at_layer = 0;
                assert_int_equal(mfl_graph_check(layers, 2, 0, &at_layer, &err), MFL_INVALID);
                if (!strstr(err.text, cases[i].says))
                        fail_msg("'%s' lacks '%s'", err.text, cases[i].says);
                assert_int_equal(at_layer, 1);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_pixel_shuffle_is_a_view),
                cmocka_unit_test(shifts_roll_as_torch_does),
                cmocka_unit_test(padding_of_all_modes),
                cmocka_unit_test(bilinear_is_linear_twice),
                cmocka_unit_test(sums_and_pools),
                cmocka_unit_test(mistakes_are_named),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
