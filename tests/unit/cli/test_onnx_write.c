/* SPDX-License-Identifier: Apache-2.0 */
/* What `mfl pull --format onnx` writes, `mfl submit` reads: the same layers, names and bits, for every
 * preset. */
#include <stdio.h>
#include <unistd.h>

#include "cli/onnx/onnx.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "tests/lib/test.h"

/* In memory, where there is such a folder: each file is synced. */
static char path[64];

/* By the way of the job file, as the server and the daemons go. */
static struct mfl_graph *graph_of(const struct mfl_onnx_model *model)
{
        struct mfl_error err;
        struct mfl_job *job;
        struct mfl_graph *graph;
        MFL_CLEANUP_FREE char *text = mfl_asprintf(
                "name: t\nrounds: 1\nmodel:\n  layers:\n%sdata: {name: d, partition: iid, clients: 1}\n"
                "training: {lr: 0.1, epochs: 1, batch: 1}\n",
                model->text);
        if (mfl_job_parse(text, strlen(text), "read back", &job, &err))
                fail_msg("%s", err.text);
        if (mfl_job_graph(job, &model->input, model->classes, &graph, &err))
                fail_msg("%s", err.text);
        mfl_job_free(job);
        return graph;
}

/* Flattening is the dense layer's, dropout of nothing is nothing, and a reshape may be on either side of a
 * transposition. */
static bool is_told(const struct mfl_layer *l)
{
        return l->op != MFL_OP_FLATTEN && l->op != MFL_OP_RESHAPE && (l->op != MFL_OP_DROPOUT || l->rate > 0);
}

static void check_layers(const struct mfl_graph *a, const struct mfl_graph *b)
{
        int k = 0;
        for (int i = 0; i < a->n_layers; i++) {
                if (!is_told(&a->layers[i]))
                        continue;
                while (k < b->n_layers && !is_told(&b->layers[k]))
                        k++;
                assert_true(k < b->n_layers);
                const struct mfl_layer *x = &a->layers[i], *y = &b->layers[k++];
                bool shaped = x->op == MFL_OP_TRANSPOSE || mfl_shape_equal(&x->out, &y->out);
                if (x->op != y->op || !shaped)
                        fail_msg("%s: layer %s (%s) is read as %s (%s)", a->name, x->name, mfl_op_name(x->op),
                                y->name, mfl_op_name(y->op));
                assert_memory_equal(x->kernel, y->kernel, sizeof x->kernel);
                assert_memory_equal(x->stride, y->stride, sizeof x->stride);
                assert_memory_equal(x->padding, y->padding, sizeof x->padding);
                assert_memory_equal(&x->eps, &y->eps, sizeof x->eps);
                assert_memory_equal(&x->rate, &y->rate, sizeof x->rate);
                assert_memory_equal(&x->momentum, &y->momentum, sizeof x->momentum);
                assert_int_equal(x->norm_groups, y->norm_groups);
                assert_int_equal(x->conv_groups, y->conv_groups);
                assert_int_equal(x->heads, y->heads);
                assert_int_equal(x->causal, y->causal);
                assert_int_equal(x->approximate, y->approximate);
                assert_int_equal(x->relu, y->relu);
                if (!(x->alpha == y->alpha && x->beta == y->beta))
                        fail_msg("%s: %.9g, %.9g are read as %.9g, %.9g", a->name, (double)x->alpha,
                                (double)x->beta, (double)y->alpha, (double)y->beta);
                assert_int_equal(x->ceil_mode, y->ceil_mode);
                assert_int_equal(x->axis, y->axis);
        }
        while (k < b->n_layers && !is_told(&b->layers[k]))
                k++;
        assert_int_equal(k, b->n_layers);
}

/* pb: in the order of layers, as the reader gives them. */
static void check_params(
        const struct mfl_graph *a, const struct mfl_graph *b, const float *pa, const float *pb)
{
        assert_int_equal(a->n_params, b->n_params);
        assert_int_equal(a->n, b->n);
        for (int i = 0; i < a->n_params; i++) {
                assert_string_equal(a->params[i].name, b->params[i].name);
                assert_true(mfl_shape_equal(&a->params[i].shape, &b->params[i].shape));
                assert_int_equal(a->params[i].trained, b->params[i].trained);
                assert_memory_equal(
                        pa + a->params[i].offset, pb + b->params[i].place, a->params[i].count * sizeof *pa);
        }
}

static void check_reads_back(const struct mfl_graph *graph)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        char *bytes = NULL;
        size_t n = 0;
        MFL_CLEANUP_FREE float *params = mfl_calloc((size_t)graph->n, sizeof *params);
        /* Unlike those of a start, no two are equal. */
        for (uint64_t i = 0; i < graph->n; i++)
                params[i] = (float)(i + 1) * 0x1p-24f;
        if (mfl_onnx_write(path, graph, params, &err) || mfl_fs_read(path, (size_t)1 << 30, &bytes, &n, &err))
                fail_msg("%s: %s", graph->name, err.text);
        if (mfl_onnx_convert((uint8_t *)bytes, n, graph->name, NULL, &model, &err))
                fail_msg("%s", err.text);
        free(bytes);
        struct mfl_graph *again = graph_of(&model);
        check_layers(graph, again);
        check_params(graph, again, params, model.params);
        mfl_graph_free(again);
        mfl_onnx_model_deinit(&model);
}

static void test_presets(void **state)
{
        for (int i = 0; mfl_presets[i].name; i++) {
                const char *name = mfl_presets[i].name;
                struct mfl_shape input = {3, {3, 32, 32}};
                struct mfl_graph *graph;
                struct mfl_error err;
                if (!strncmp(name, "char-", 5))
                        input = (struct mfl_shape){1, {16}};
                if (mfl_graph_preset(name, &input, 10, &graph, &err))
                        fail_msg("%s: %s", name, err.text);
                check_reads_back(graph);
                mfl_graph_free(graph);
        }
}

/* Each function of one variable, between two dense layers. */
static void test_functions(void **state)
{
#define PARAM(member, key, otherwise, low, high, open) .member = 1.25f * (otherwise)
#define NEEDED(member, key, low, high, example) .member = example
        static const struct mfl_layer functions[] = {
#define UNARY(symbol, body, stem, reads, n, cost, since, edges, low, high, onnx, ...)                        \
        {.op = MFL_OP_##symbol, .input = 1, __VA_ARGS__},
#define UNARY_VARIANT(symbol, variant, ...) {.op = MFL_OP_##symbol, .input = 1, .approximate = true},
#include "common/model/unary.def"
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(functions); i++) {
                const struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {5}}},
                        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 4, .bias = true}, functions[i],
                        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 3, .bias = true}};
                struct mfl_graph *graph;
                struct mfl_error err;
                if (mfl_graph_build(mfl_op_name(functions[i].op), layers, 4, 3, &graph, &err))
                        fail_msg("%s", err.text);
                check_reads_back(graph);
                mfl_graph_free(graph);
        }
}

/* Operators that no preset has. */
static void test_other_operators(void **state)
{
        static const struct mfl_layer image[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {3, {4, 8, 8}}},
                {.op = MFL_OP_CONVTRANSPOSE2D,
                        .input = 0,
                        .out_channels = 6,
                        .kernel = {3, 2},
                        .stride = {2, 2},
                        .padding = {1, 0},
                        .output_padding = {1, 0},
                        .bias = true},
                {.op = MFL_OP_SIGMOID, .input = 1},
                {.op = MFL_OP_GROUPNORM, .input = 2, .norm_groups = 3, .eps = 1e-3f},
                {.op = MFL_OP_MULTIPLY, .input = 3, .input2 = 2},
                {.op = MFL_OP_SLICE, .input = 4, .axis = 1, .start = 1, .end = 9},
                {.op = MFL_OP_SILU, .input = 5}, {.op = MFL_OP_GLOBAL_MAXPOOL2D, .input = 6},
                {.op = MFL_OP_DENSE, .input = 7, .out_channels = 8}, {.op = MFL_OP_BATCHNORM, .input = 8},
                {.op = MFL_OP_GROUPNORM, .input = 9, .norm_groups = 2, .frozen = true},
                {.op = MFL_OP_RMSNORM, .input = 10, .eps = 1e-6f, .frozen = true},
                {.op = MFL_OP_DROPOUT, .input = 11, .rate = 0.25f}, {.op = MFL_OP_SOFTMAX, .input = 12},
                {.op = MFL_OP_DENSE, .input = 13, .out_channels = 5, .bias = true}};
        static const struct mfl_layer text[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {6}}},
                {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 9, .out_channels = 12},
                {.op = MFL_OP_GRU, .input = 1, .out_channels = 8, .bias = true},
                {.op = MFL_OP_LSTM, .input = 2, .out_channels = 12}, {.op = MFL_OP_LAYERNORM, .input = 3},
                {.op = MFL_OP_WEIGHT, .shape = {2, {6, 12}}},
                {.op = MFL_OP_MULTIPLY, .input = 4, .input2 = 5},
                {.op = MFL_OP_DENSE, .input = 6, .out_channels = 36},
                {.op = MFL_OP_ATTENTION, .input = 7, .heads = 3, .rate = 0.1f},
                {.op = MFL_OP_RNN, .input = 8, .out_channels = 12, .bias = true},
                {.op = MFL_OP_RNN, .input = 9, .out_channels = 7, .relu = true},
                {.op = MFL_OP_TRANSPOSE, .input = 10, .order = {1, 0}},
                {.op = MFL_OP_MEAN, .input = 11, .axis = 1},
                {.op = MFL_OP_DENSE, .input = 12, .out_channels = 9}};
        static const struct mfl_layer curves[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {3, {2, 9, 8}}},
                {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 3, .kernel = {2, 2}, .bias = true},
                {.op = MFL_OP_LEAKY_RELU, .input = 1, .alpha = 0.2f},
                {.op = MFL_OP_MAXPOOL2D, .input = 2, .kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true},
                {.op = MFL_OP_WEIGHT, .shape = {3, {1, 1, 1}}, .frozen = true},
                {.op = MFL_OP_DROPOUT, .input = 4, .rate = 0.25f},
                {.op = MFL_OP_MULTIPLY, .input = 3, .input2 = 5}, {.op = MFL_OP_BATCHNORM, .input = 6},
                {.op = MFL_OP_ELU, .input = 7, .alpha = 1.6732632f}, {.op = MFL_OP_BATCHNORM, .input = 8},
                {.op = MFL_OP_HARDSWISH, .input = 9}, {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 10},
                {.op = MFL_OP_HARDSIGMOID, .input = 11}, {.op = MFL_OP_MULTIPLY, .input = 10, .input2 = 12},
                {.op = MFL_OP_DENSE, .input = 13, .out_channels = 7}, {.op = MFL_OP_SOFTPLUS, .input = 14},
                {.op = MFL_OP_DENSE, .input = 15, .out_channels = 4, .bias = true},
                {.op = MFL_OP_LEAKY_RELU, .input = 16}, {.op = MFL_OP_DENSE, .input = 17, .out_channels = 3}};
        struct mfl_graph *graph;
        struct mfl_error err;
        if (mfl_graph_build("curves", curves, MFL_ARRAY_SIZE(curves), 3, &graph, &err))
                fail_msg("%s", err.text);
        check_reads_back(graph);
        mfl_graph_free(graph);
        if (mfl_graph_build("image", image, MFL_ARRAY_SIZE(image), 5, &graph, &err))
                fail_msg("%s", err.text);
        check_reads_back(graph);
        mfl_graph_free(graph);
        if (mfl_graph_build("text", text, MFL_ARRAY_SIZE(text), 9, &graph, &err))
                fail_msg("%s", err.text);
        check_reads_back(graph);
        mfl_graph_free(graph);
}

static int make_file(void **state)
{
        snprintf(path, sizeof path, "%s/mfl-onnx-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
        int fd = mkstemp(path);
        return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
        return unlink(path);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_presets),
                cmocka_unit_test(test_other_operators),
                cmocka_unit_test(test_functions),
        };
        return cmocka_run_group_tests(tests, make_file, remove_file);
}
