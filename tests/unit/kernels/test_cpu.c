/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend against the reference: operators of sequences and shapes, forward and backward, at sizes
 * that are no multiple of a vector; groups and threads. */
#include "tests/unit/kernels/cpu_beside.h"

#include <malloc.h>

struct op_case {
        const char *name;
        struct mfl_shape input;
        int terms; /* of the longest sum */
        struct mfl_layer layers[LAYERS_MAX];
        int tokens; /* the input is tokens below this */
};

static const struct op_case op_cases[] = {
        {"relu6", IN1(37), 1, {{.op = MFL_OP_RELU6}}},
        {"gelu", IN1(131), 4, {{.op = MFL_OP_GELU}}},
        {"gelu by tanh", IN1(131), 4, {{.op = MFL_OP_GELU, .approximate = true}}},
        {"silu", IN2(3, 19), 4, {{.op = MFL_OP_SILU}}},
        {"gelu in a blocked image", IN3(3, 5, 5), 27, {CONV(0, 17), {.op = MFL_OP_GELU, .input = 1}}},
        {"silu of two readers", IN3(3, 5, 4), 200,
                {CONV(0, 17), {.op = MFL_OP_SILU, .input = 1}, CONV(2, 17),
                        {.op = MFL_OP_MULTIPLY, .input = 3, .input2 = 2}}},
        {"relu6 behind a convolution", IN3(3, 5, 4), 27, {CONV(0, 5), {.op = MFL_OP_RELU6, .input = 1}}},
        {"elu", IN1(131), 4, {{.op = MFL_OP_ELU, .alpha = 0.7f}}},
        {"leaky relu behind a convolution", IN3(3, 5, 4), 27,
                {CONV(0, 5), {.op = MFL_OP_LEAKY_RELU, .input = 1, .alpha = 0.2f}}},
        {"softplus and hardsigmoid in a blocked image", IN3(3, 5, 4), 200,
                {CONV(0, 17), {.op = MFL_OP_SOFTPLUS, .input = 1}, CONV(2, 17),
                        {.op = MFL_OP_HARDSIGMOID, .input = 3}, CONV(4, 5)}},
        {"hardswish of two readers", IN3(3, 5, 4), 200,
                {CONV(0, 17), {.op = MFL_OP_HARDSWISH, .input = 1}, CONV(2, 17),
                        {.op = MFL_OP_MULTIPLY, .input = 3, .input2 = 2}}},
        {"multiply", IN2(4, 13), 13,
                {{.op = MFL_OP_DENSE, .input = 0, .out_channels = 13, .bias = true},
                        {.op = MFL_OP_MULTIPLY, .input = 0, .input2 = 1}}},
        {"multiply by channels", IN3(5, 3, 7), 21,
                {{.op = MFL_OP_GLOBAL_AVGPOOL2D}, {.op = MFL_OP_MULTIPLY, .input = 0, .input2 = 1}}},
        {"blocked image times its channels", IN3(3, 5, 7), 60,
                {CONV(0, 18), {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 1},
                        {.op = MFL_OP_MULTIPLY, .input = 1, .input2 = 2}}},
        {"add a repeated row", IN2(6, 11), 6,
                {{.op = MFL_OP_SLICE, .input = 0, .axis = 0, .start = 2, .end = 3},
                        {.op = MFL_OP_ADD, .input = 0, .input2 = 1}}},
        {"add a repeated column", IN3(3, 4, 5), 12,
                {{.op = MFL_OP_SLICE, .input = 0, .axis = 2, .start = 4},
                        {.op = MFL_OP_ADD, .input = 0, .input2 = 1}}},
        {"weight that is added", IN2(5, 9), 8,
                {{.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {5, 9}}},
                        {.op = MFL_OP_ADD, .input = 0, .input2 = 1}}},
        {"weight that scales", IN2(5, 9), 45,
                {{.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {1, 9}}},
                        {.op = MFL_OP_MULTIPLY, .input = 0, .input2 = 1}}},
        {"class token ahead", IN2(5, 9), 8,
                {{.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {1, 9}}},
                        {.op = MFL_OP_CONCAT, .input = 1, .input2 = 0, .axis = 0},
                        {.op = MFL_OP_SLICE, .input = 2, .axis = 0, .end = 1}}},
        {"concat of channels", IN3(3, 4, 4), 30,
                {CONV(0, 16), {.op = MFL_OP_CONCAT, .input = 1, .input2 = 0, .axis = 0}, CONV(2, 7)}},
        {"slice of channels", IN3(3, 4, 4), 30,
                {CONV(0, 20), {.op = MFL_OP_SLICE, .input = 1, .axis = 0, .start = 3, .end = 19}}},
        {"patches", IN3(3, 6, 6), 30,
                {{.op = MFL_OP_CONV2D, .input = 0, .out_channels = 16, .kernel = {2, 2}, .stride = {2, 2}},
                        {.op = MFL_OP_RESHAPE, .input = 1, .shape = {2, {16, 9}}},
                        {.op = MFL_OP_TRANSPOSE, .input = 2, .order = {1, 0}}}},
        {"transpose of three", IN3(3, 5, 4), 1, {{.op = MFL_OP_TRANSPOSE, .order = {2, 0, 1}}}},
        {"reshape", IN2(6, 5), 1, {{.op = MFL_OP_RESHAPE, .shape = {3, {5, 2, 3}}}}},
        {"mean of positions", IN2(9, 21), 9, {{.op = MFL_OP_MEAN, .axis = 0}}},
        {"mean of features", IN2(9, 21), 21, {{.op = MFL_OP_MEAN, .axis = 1}}},
        {"mean of an image's rows", IN3(3, 5, 6), 30,
                {CONV(0, 16), {.op = MFL_OP_MEAN, .input = 1, .axis = 1}}},
        {"global max pool", IN3(3, 5, 6), 30, {CONV(0, 17), {.op = MFL_OP_GLOBAL_MAXPOOL2D, .input = 1}}},
        {"softmax", IN2(3, 37), 37, {{.op = MFL_OP_SOFTMAX}}},
        {"softmax of one", IN1(1), 1, {{.op = MFL_OP_SOFTMAX}}},
        {"layer norm", IN2(7, 33), 60, {{.op = MFL_OP_LAYERNORM, .bias = true}}},
        {"layer norm of a vector, without bias", IN1(65), 65, {{.op = MFL_OP_LAYERNORM}}},
        {"layer norm of a flattened image", IN3(3, 4, 4), 270,
                {CONV(0, 17), {.op = MFL_OP_FLATTEN, .input = 1},
                        {.op = MFL_OP_LAYERNORM, .input = 2, .bias = true}}},
        {"RMS norm", IN2(5, 19), 40, {{.op = MFL_OP_RMSNORM}}},
        {"dense of positions", IN2(13, 37), 100, {{.op = MFL_OP_DENSE, .out_channels = 45, .bias = true}}},
        {"dense of positions, ReLU", IN2(3, 5), 20,
                {{.op = MFL_OP_DENSE, .out_channels = 7, .bias = true}, {.op = MFL_OP_RELU, .input = 1}}},
        {"dense of positions, deep", IN2(70, 300), 600, {{.op = MFL_OP_DENSE, .out_channels = 530}}},
        {"LoRA of positions", IN2(5, 19), 40,
                {{.op = MFL_OP_DENSE, .out_channels = 23, .bias = true, .lora_rank = 3, .lora_alpha = 5}}},
        {"LoRA of a flattened image", IN3(3, 4, 4), 300,
                {CONV(0, 17), {.op = MFL_OP_FLATTEN, .input = 1},
                        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 5, .lora_rank = 2}}},
        {"frozen dense", IN1(19), 40,
                {{.op = MFL_OP_DENSE, .out_channels = 23, .bias = true},
                        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 9, .bias = true, .frozen = true}}},
        {"frozen norms and convolutions", IN3(3, 5, 5), 200,
                {CONV(0, 17), {.op = MFL_OP_BATCHNORM, .input = 1, .frozen = true},
                        {.op = MFL_OP_CONV2D,
                                .input = 2,
                                .out_channels = 6,
                                .kernel = {3, 3},
                                .bias = true,
                                .frozen = true}}},
        {"embedding", IN1(29), 29, {{.op = MFL_OP_EMBEDDING, .out_channels = 21, .vocabulary = 11}}, 11},
        {"matmul", IN3(2, 5, 7), 20,
                {{.op = MFL_OP_TRANSPOSE, .input = 0, .order = {0, 2, 1}}, {.op = MFL_OP_TANH, .input = 1},
                        {.op = MFL_OP_MATMUL, .input = 0, .input2 = 2}}},
        {"matmul, transposed", IN2(5, 7), 20,
                {{.op = MFL_OP_DENSE, .input = 0, .out_channels = 7},
                        {.op = MFL_OP_MATMUL, .input = 0, .input2 = 1, .transposed = true}}},
        {"attention", IN2(9, 36), 60, {{.op = MFL_OP_ATTENTION, .heads = 2}}},
        {"attention, causal", IN2(101, 30), 200, {{.op = MFL_OP_ATTENTION, .heads = 2, .causal = true}}},
        {"attention with dropout", IN2(51, 3 * 34), 100,
                {{.op = MFL_OP_ATTENTION, .heads = 1, .causal = true, .rate = 0.3f}}},
        {"attention of one position", IN2(1, 6), 4, {{.op = MFL_OP_ATTENTION, .heads = 2}}},
        {"LSTM", IN2(6, 5), 150, {{.op = MFL_OP_LSTM, .out_channels = 19, .bias = true}}},
        {"LSTM of one position, no bias", IN2(1, 3), 40, {{.op = MFL_OP_LSTM, .out_channels = 5}}},
        {"two LSTMs", IN2(11, 4), 300,
                {{.op = MFL_OP_LSTM, .out_channels = 33, .bias = true},
                        {.op = MFL_OP_LSTM, .input = 1, .out_channels = 7, .bias = true}}},
        {"RNN", IN2(6, 5), 150, {{.op = MFL_OP_RNN, .out_channels = 19, .bias = true}}},
        {"RNN of relu", IN2(5, 5), 40, {{.op = MFL_OP_RNN, .out_channels = 9, .relu = true}}},
        {"GRU", IN2(6, 5), 150, {{.op = MFL_OP_GRU, .out_channels = 19, .bias = true}}},
        {"frozen GRU", IN2(4, 5), 100,
                {{.op = MFL_OP_DENSE, .out_channels = 6},
                        {.op = MFL_OP_GRU, .input = 1, .out_channels = 4, .frozen = true}}},
        {"depthwise", IN3(5, 6, 7), 130,
                {{.op = MFL_OP_CONV2D,
                        .out_channels = 5,
                        .kernel = {3, 3},
                        .padding = {1, 1},
                        .conv_groups = 5,
                        .bias = true}}},
        {"depthwise in blocks, strided", IN3(3, 9, 9), 200,
                {CONV(0, 32),
                        {.op = MFL_OP_CONV2D,
                                .input = 1,
                                .out_channels = 32,
                                .kernel = {3, 3},
                                .padding = {1, 1},
                                .stride = {2, 2},
                                .conv_groups = 32},
                        {.op = MFL_OP_BATCHNORM, .input = 2}, {.op = MFL_OP_RELU6, .input = 3}}},
        {"two outputs of a group", IN3(6, 5, 5), 60,
                {{.op = MFL_OP_CONV2D,
                        .out_channels = 12,
                        .kernel = {3, 2},
                        .dilation = {2, 1},
                        .conv_groups = 6}}},
        {"groups of four", IN3(8, 5, 5), 130,
                {{.op = MFL_OP_CONV2D, .out_channels = 12, .kernel = {3, 3}, .conv_groups = 2, .bias = true},
                        {.op = MFL_OP_RELU, .input = 1}}},
        {"frozen depthwise", IN3(3, 5, 5), 100,
                {CONV(0, 16), {.op = MFL_OP_CONV2D,
                                      .input = 1,
                                      .out_channels = 16,
                                      .kernel = {3, 3},
                                      .conv_groups = 16,
                                      .frozen = true}}},
        {"transposed convolution", IN3(5, 4, 3), 100,
                {{.op = MFL_OP_CONVTRANSPOSE2D, .out_channels = 7, .kernel = {3, 3}, .bias = true}}},
        {"transposed convolution, strided", IN3(3, 5, 4), 300,
                {CONV(0, 17),
                        {.op = MFL_OP_CONVTRANSPOSE2D,
                                .input = 1,
                                .out_channels = 6,
                                .kernel = {3, 3},
                                .stride = {2, 2},
                                .padding = {1, 1},
                                .output_padding = {1, 1}},
                        CONV(2, 3)}},
        {"transposed convolution in groups", IN3(6, 4, 5), 100,
                {{.op = MFL_OP_CONVTRANSPOSE2D,
                        .out_channels = 4,
                        .kernel = {2, 3},
                        .stride = {1, 2},
                        .dilation = {2, 1},
                        .conv_groups = 2,
                        .bias = true}}},
        {"a transformer's block", IN2(21, 24), 400,
                {{.op = MFL_OP_LAYERNORM, .input = 0, .bias = true},
                        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 72, .bias = true},
                        {.op = MFL_OP_ATTENTION, .input = 2, .heads = 3, .causal = true},
                        {.op = MFL_OP_DENSE, .input = 3, .out_channels = 24, .bias = true},
                        {.op = MFL_OP_ADD, .input = 0, .input2 = 4},
                        {.op = MFL_OP_LAYERNORM, .input = 5, .bias = true},
                        {.op = MFL_OP_DENSE, .input = 6, .out_channels = 96, .bias = true},
                        {.op = MFL_OP_GELU, .input = 7}, {.op = MFL_OP_DROPOUT, .input = 8, .rate = 0.1f}}},
};

/* Inputs, params and results of GROUPS groups. */
struct run {
        size_t in, out, n;
        float *x, *params, *dy, *y, *dx, *dparams;
        struct mfl_rng_key keys[GROUPS];
};

/* A device whose networks are bf16, whatever the processor has: see kernels/cpu/base/bf16.h. */
/* Of each kind of arithmetic that every processor has. */
static struct mfl_device *bf16_devices[2];
static const char *const bf16_kinds[] = {"rounded", "tiles"};

static bool is_bf16(const struct mfl_device *device)
{
        return device == bf16_devices[0] || device == bf16_devices[1];
}

static void run_new(struct run *r, const struct mfl_graph *graph, int batch)
{
        *r = (struct run){
                .in = (size_t)mfl_shape_count(&graph->input) * (size_t)batch, .n = (size_t)graph->n};
        r->out = (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * (size_t)batch;
        r->x = new_floats(GROUPS * r->in);
        r->params = new_floats(GROUPS * r->n);
        r->dy = new_floats(GROUPS * r->out);
        r->y = new_floats(GROUPS * r->out);
        r->dx = new_floats(GROUPS * r->in);
        r->dparams = new_floats(GROUPS * r->n);
        fill(r->x, GROUPS * r->in, 1);
        fill(r->params, GROUPS * r->n, 2);
        fill(r->dy, GROUPS * r->out, 3);
        for (uint64_t g = 0; g < GROUPS; g++)
                r->keys[g] = mfl_rng_derive(5, MFL_RNG_DROPOUT, g, 1);
}

static void run_free(struct run *r)
{
        float *all[] = {r->x, r->params, r->dy, r->y, r->dx, r->dparams};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
}

/* Runs groups [first, first + groups) of r; results go to their places. */
static void execute(const struct mfl_backend_ops *ops, struct mfl_device *device,
        const struct mfl_graph *graph, struct run *r, int batch, size_t first, int groups, int threads)
{
        struct mfl_net_options options = {.batch = batch,
                .groups = groups,
                .threads = threads,
                .training = true,
                .input_grad = true,
                .precision = is_bf16(device) ? MFL_PRECISION_BF16 : MFL_PRECISION_FP32};
        struct mfl_net *net = NULL;
        struct mfl_error err = {""};
        if (ops->net_new(device, graph, &options, &net, &err))
                fail_msg("%s", err.text);
        for (size_t g = 0; g < (size_t)groups; g++)
                assert_int_equal(
                        mfl_backend_set(ops, net, graph, (int)g, r->params + (first + g) * r->n, &err), 0);
        assert_int_equal(
                ops->forward(net, r->x + first * r->in, r->keys + first, r->y + first * r->out, &err), 0);
        assert_int_equal(ops->backward(net, r->dy + first * r->out, r->dx + first * r->in,
                                 r->dparams + first * r->n, &err),
                0);
        ops->net_free(net);
}

static double distance(const float *a, const float *b, size_t n)
{
        double most = 0, scale = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)a[i] - (double)b[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                scale = fmax(scale, fabs((double)b[i]));
        }
        return n ? most / scale : 0;
}

static void assert_close(const char *name, const struct run *got, const struct run *want, double bound)
{
        double y = distance(got->y, want->y, GROUPS * want->out),
               dx = distance(got->dx, want->dx, GROUPS * want->in),
               dp = distance(got->dparams, want->dparams, GROUPS * want->n);
        if (!(y <= bound && dx <= bound && dp <= bound))
                fail_msg("%s: y %.1e dx %.1e dparams %.1e, bound %.1e", name, y, dx, dp, bound);
}

static void assert_same(const char *name, const struct run *a, const struct run *b)
{
        if (memcmp(a->y, b->y, GROUPS * a->out * sizeof(float)) ||
                memcmp(a->dx, b->dx, GROUPS * a->in * sizeof(float)) ||
                memcmp(a->dparams, b->dparams, GROUPS * a->n * sizeof(float)))
                fail_msg("%s: other bits", name);
}

static void make_tokens(struct run *r, int vocabulary)
{
        for (size_t i = 0; vocabulary && i < GROUPS * r->in; i++)
                r->x[i] = floorf((r->x[i] + 1.0f) * 0.5f * (float)(vocabulary + 2)) - 1.0f;
}

/* Rounding errors of sums of K terms grow like sqrt(K); every layer passes on those before it and adds its
 * own. */
static void test_op(const struct op_case *kase, int batch)
{
        struct mfl_graph *graph = graph_of(&kase->input, kase->layers, count_layers(kase->layers), 0);
        double bound = 4 * FLT_EPSILON * sqrt(kase->terms * batch) * (graph->n_layers > 2 ? 6 : 2);
        struct run want, three, one, two;
        struct run *runs[] = {&want, &three, &one, &two};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(runs); i++) {
                run_new(runs[i], graph, batch);
                make_tokens(runs[i], kase->tokens);
        }
        execute(&mfl_backend_reference, reference_device, graph, &want, batch, 0, GROUPS, 1);
        execute(cpu, cpu_device, graph, &three, batch, 0, GROUPS, 1);
        execute(cpu, cpu_device, graph, &two, batch, 0, GROUPS, 2);
        for (size_t g = 0; g < GROUPS; g++)
                execute(cpu, cpu_device, graph, &one, batch, g, 1, 1);
        assert_close(kase->name, &three, &want, bound);
        assert_close(kase->name, &two, &want, bound);
        assert_same(kase->name, &one, &three);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(runs); i++)
                run_free(runs[i]);
        mfl_graph_free(graph);
}

static void operators_agree(void **state)
{
        static const int batches[] = {1, 3, 8};
        const char *only = getenv("MFL_TEST_CASE");
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(op_cases); i++)
                for (size_t k = 0; k < MFL_ARRAY_SIZE(batches); k++)
                        if (!only || strstr(op_cases[i].name, only))
                                test_op(&op_cases[i], batches[k]);
}

/* Convolutions of few channels have their own loops, whose bits depend neither on the threads nor on the
 * other rows. */
static void few_channels_keep_their_bits(void **state)
{
        static const struct op_case cases[] = {
                {"plain", IN3(3, 9, 21), 0, {CONV(0, 6), {.op = MFL_OP_RELU, .input = 1}, CONV(2, 5)}},
                {"blocks", IN3(5, 7, 11), 0, {CONV(0, 16), {.op = MFL_OP_TANH, .input = 1}}},
        };
        enum { batch = 7 };
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const struct op_case *kase = &cases[i];
                struct mfl_graph *graph = graph_of(&kase->input, kase->layers, count_layers(kase->layers), 0);
                struct run one, more, alone;
                run_new(&one, graph, batch);
                run_new(&more, graph, batch);
                run_new(&alone, graph, 1);
                execute(cpu, cpu_device, graph, &one, batch, 0, GROUPS, 1);
                for (int threads = 2; threads <= 6; threads += 2) {
                        execute(cpu, cpu_device, graph, &more, batch, 0, GROUPS, threads);
                        assert_same(kase->name, &more, &one);
                }
                execute(cpu, cpu_device, graph, &alone, 1, 0, 1, 1);
                assert_memory_equal(alone.y, one.y, alone.out * sizeof(float));
                run_free(&one);
                run_free(&more);
                run_free(&alone);
                mfl_graph_free(graph);
        }
}

/* What net_new takes from the heap is within the estimate that budgets use. (Under a sanitizer the heap
 * cannot be measured, and this checks nothing.) */
static void check_estimate(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, const char *name)
{
        struct mfl_net *net = NULL;
        struct mallinfo2 before = mallinfo2(), after;
        assert_int_equal(cpu->net_new(device, graph, options, &net, NULL), 0);
        after = mallinfo2();
        uint64_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        if (taken > cpu->net_bytes(graph, options))
                fail_msg("%s: %zu bytes, estimate %zu", name, (size_t)taken,
                        (size_t)cpu->net_bytes(graph, options));
        cpu->net_free(net);
}

static void check_estimates(struct mfl_device *device)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(op_cases); i++) {
                const struct op_case *kase = &op_cases[i];
                struct mfl_graph *graph = graph_of(&kase->input, kase->layers, count_layers(kase->layers), 0);
                struct mfl_net_options options = {
                        .batch = 8, .groups = GROUPS, .threads = 2, .training = true, .accumulate = 2};
                options.precision = is_bf16(device) ? MFL_PRECISION_BF16 : MFL_PRECISION_FP32;
                check_estimate(device, graph, &options, kase->name);
                mfl_graph_free(graph);
        }
}

static void estimates_hold(void **state)
{
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        check_estimates(cpu_device);
        for (int i = 0; i < 2; i++)
                check_estimates(bf16_devices[i]);
}

/* What convolutions on tiles lay out depends on their shape in other ways than tensors do. */
static void estimates_hold_on_tiles(void **state)
{
        static const struct {
                struct mfl_shape input;
                int outs, kernel, stride, batch, threads;
        } cases[] = {{IN3(512, 4, 4), 512, 3, 1, 32, 2}, {IN3(1, 5, 5), 1, 5, 1, 1, 8},
                {IN3(2048, 1, 1), 8, 1, 1, 2, 1}, {IN3(8, 1, 1), 2048, 1, 1, 2, 1},
                {IN3(3, 224, 224), 64, 7, 2, 2, 4}, {IN3(64, 56, 56), 64, 3, 3, 1, 16},
                {IN3(1024, 14, 14), 17, 1, 2, 8, 1}, {IN3(2, 1, 3000), 1, 1, 1, 3, 2},
                {IN3(3, 64, 64), 768, 16, 16, 64, 64}, {IN3(16, 224, 224), 1, 224, 224, 1, 1},
                {IN3(1, 160, 160), 4, 1, 1, 1, 64}, {IN3(2, 7, 7), 2, 1, 1, 256, 256},
                {IN3(16, 96, 96), 16, 1, 64, 1, 1}, {IN3(3, 25, 25), 33, 5, 3, 9, 4}};
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        assert_int_equal(setenv("MFL_CPU_BF16", "tiles", 1), 0);
        for (size_t i = 0; i < 2 * MFL_ARRAY_SIZE(cases); i++) {
                const size_t n = i / 2;
                const int k = cases[n].kernel, s = cases[n].stride;
                const struct mfl_layer layer = {.op = MFL_OP_CONV2D,
                        .out_channels = cases[n].outs,
                        .kernel = {k, k},
                        .stride = {s, s}};
                struct mfl_graph *graph = graph_of(&cases[n].input, &layer, 1, 0);
                struct mfl_net_options options = {.batch = cases[n].batch,
                        .groups = 1,
                        .threads = cases[n].threads,
                        .training = i % 2,
                        .precision = MFL_PRECISION_BF16};
                check_estimate(bf16_devices[1], graph, &options, "tiles");
                mfl_graph_free(graph);
        }
        assert_int_equal(unsetenv("MFL_CPU_BF16"), 0);
}

/* The same where activations are computed again: the estimate follows the plan, and stays above what is
 * taken. */
static void estimates_follow_segments(void **state)
{
        static const int segments[] = {0, 2, MFL_SEGMENTS_AUTO};
        struct mfl_shape shape = {3, {3, 32, 32}};
        struct mfl_graph *graph = NULL;
        uint64_t last = UINT64_MAX;
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        assert_int_equal(mfl_graph_preset("resnet20", &shape, 10, &graph, NULL), 0);
        for (size_t k = 0; k < MFL_ARRAY_SIZE(segments); k++) {
                struct mfl_net_options options = {
                        .batch = 32, .groups = 1, .threads = 1, .training = true, .segments = segments[k]};
                struct mfl_net *net = NULL;
                struct mfl_net_plan plan;
                struct mallinfo2 before = mallinfo2(), after;
                assert_int_equal(cpu->net_new(cpu_device, graph, &options, &net, NULL), 0);
                after = mallinfo2();
                uint64_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
                uint64_t estimate = cpu->net_bytes(graph, &options);
                cpu->net_plan(net, &plan);
                assert_true(plan.tensor_bytes < estimate && taken <= estimate && estimate < last);
                assert_int_equal(plan.segments > 1, segments[k] != 0);
                last = estimate;
                cpu->net_free(net);
        }
        mfl_graph_free(graph);
}

static void memory_may_run_out(void **state)
{
        static const struct mfl_layer layers[] = {{.op = MFL_OP_DENSE, .out_channels = 12, .lora_rank = 2},
                {.op = MFL_OP_ATTENTION, .input = 1, .heads = 2},
                {.op = MFL_OP_LSTM, .input = 2, .out_channels = 3, .bias = true}};
        struct mfl_shape input = IN2(5, 6);
        struct mfl_graph *graph = graph_of(&input, layers, MFL_ARRAY_SIZE(layers), 0);
        struct mfl_net_options options = {
                .batch = 2, .groups = 1, .threads = 1, .training = true, .accumulate = 2};
        bool struck = cpu != NULL;
        for (long n = 0; struck; n++) {
                struct mfl_net *net = NULL;
                mfl_alloc_fail_at(n);
                int rc = cpu->net_new(cpu_device, graph, &options, &net, NULL);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(rc, struck ? -ENOMEM : 0);
                assert_true(struck == !net);
                cpu->net_free(net);
        }
        mfl_graph_free(graph);
}

static int open_all(void **state)
{
        int rc = open_devices(state);
        for (int i = 0; cpu && i < 2; i++) {
                assert_int_equal(setenv("MFL_CPU_BF16", bf16_kinds[i], 1), 0);
                assert_int_equal(cpu->device_open(&bf16_devices[i], NULL), 0);
        }
        assert_int_equal(unsetenv("MFL_CPU_BF16"), 0);
        return rc;
}

static int close_all(void **state)
{
        for (int i = 0; cpu && i < 2; i++)
                cpu->device_close(bf16_devices[i]);
        return close_devices(state);
}

/* One weight and one input, neither of them a bfloat16 number: y = w x, dx = w dy and dw = x dy are products
 * of the nearest bfloat16 numbers. 1 + 2^-8 and 1 + 3 2^-8 are half way between two, and the even ones are 1
 * and 1 + 2^-6. */
static void check_rounding(
        struct mfl_device *device, const struct mfl_layer *layer, const struct mfl_shape *input)
{
        struct mfl_graph *graph = graph_of(input, layer, 1, 0);
        struct run r;
        run_new(&r, graph, 1);
        for (size_t g = 0; g < GROUPS; g++) {
                r.params[g] = 1 + 3 * 0x1p-8f;
                r.x[g] = g ? -1 - 0x1p-8f : 1 + 0x1p-8f;
                r.dy[g] = 3 + 0x1p-6f + 0x1p-20f; /* slightly too much */
        }
        execute(cpu, device, graph, &r, 1, 0, GROUPS, 1);
        for (size_t g = 0; g < GROUPS; g++) {
                float w = 1 + 0x1p-6f, x = g ? -1 : 1, dy = 3 + 0x1p-6f;
                assert_true(r.y[g] == w * x && r.dx[g] == w * dy && r.dparams[g] == x * dy);
        }
        r.x[0] = NAN;
        r.x[1] = INFINITY;
        r.x[2] = 0x1.ffp127f; /* the nearest is 2^128, which does not exist */
        execute(cpu, device, graph, &r, 1, 0, GROUPS, 1);
        assert_true(isnan(r.y[0]) && r.y[1] == INFINITY && r.y[2] == INFINITY);
        run_free(&r);
        mfl_graph_free(graph);
}

static void bf16_operands_are_rounded(void **state)
{
        static const struct mfl_layer conv = {.op = MFL_OP_CONV2D, .out_channels = 1, .kernel = {1, 1}};
        static const struct mfl_layer dense = {.op = MFL_OP_DENSE, .out_channels = 1};
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        for (int i = 0; i < 2; i++) {
                check_rounding(bf16_devices[i], &conv, &(struct mfl_shape)IN3(1, 1, 1));
                check_rounding(bf16_devices[i], &dense, &(struct mfl_shape)IN2(1, 1));
        }
}

/* Every thread count gives the bits of one thread. Widths and lengths are odd: one pair lacks its second
 * element. */
static void bf16_products_do_not_depend_on_threads(void **state)
{
        static const struct mfl_layer layers[] = {{.op = MFL_OP_DENSE, .out_channels = 3 * 66, .bias = true},
                {.op = MFL_OP_ATTENTION, .input = 1, .heads = 2, .causal = true},
                {.op = MFL_OP_GRU, .input = 2, .out_channels = 35, .bias = true}};
        struct mfl_shape input = IN2(57, 31);
        struct run one, three;
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        struct mfl_graph *graph = graph_of(&input, layers, MFL_ARRAY_SIZE(layers), 0);
        run_new(&one, graph, 5);
        run_new(&three, graph, 5);
        for (int i = 0; i < 2; i++) {
                execute(cpu, bf16_devices[i], graph, &one, 5, 0, GROUPS, 1);
                execute(cpu, bf16_devices[i], graph, &three, 5, 0, GROUPS, 3);
                assert_same(bf16_kinds[i], &three, &one);
        }
        run_free(&one);
        run_free(&three);
        mfl_graph_free(graph);
}

/* Without the tests' variable the processor decides, and the device reports the result. */
static void bf16_needs_a_processor_that_has_it(void **state)
{
        struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .precision = MFL_PRECISION_BF16};
        struct mfl_shape input = IN2(5, 6);
        struct mfl_layer layer = {.op = MFL_OP_DENSE, .out_channels = 2};
        struct mfl_device_info info;
        struct mfl_net *net = NULL;
        struct mfl_error err = {""};
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        struct mfl_graph *graph = graph_of(&input, &layer, 1, 0);
        cpu->device_info(bf16_devices[0], &info);
        assert_non_null(strstr(info.library, ", bf16 rounded"));
        cpu->device_info(bf16_devices[1], &info);
        assert_non_null(strstr(info.library, ", bf16 as tiles"));
        cpu->device_info(cpu_device, &info);
        int rc = cpu->net_new(cpu_device, graph, &options, &net, &err);
        assert_int_equal(rc, strstr(info.library, ", bf16 a") ? 0 : MFL_INVALID);
        assert_true(!rc || strstr(err.text, "precision bf16 needs "));
        assert_true(!rc || strstr(err.text, "avx512_bf16 or amx_bf16"));
        cpu->net_free(net);
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(operators_agree),
                cmocka_unit_test(few_channels_keep_their_bits),
                cmocka_unit_test(estimates_hold),
                cmocka_unit_test(estimates_hold_on_tiles),
                cmocka_unit_test(estimates_follow_segments),
                cmocka_unit_test(memory_may_run_out),
                cmocka_unit_test(bf16_operands_are_rounded),
                cmocka_unit_test(bf16_products_do_not_depend_on_threads),
                cmocka_unit_test(bf16_needs_a_processor_that_has_it),
        };
        return cmocka_run_group_tests_name("cpu", tests, open_all, close_all);
}
