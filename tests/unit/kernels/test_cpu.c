/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend beside the reference: operators of sequences and shapes, forward and backward, at sizes
 * that are no multiple of a vector; groups and threads; optimizers, losses, accumulation. */
#include "tests/lib/test.h"
#include "kernels/backend.h"

#include <float.h>
#include <math.h>

#define LAYERS_MAX 9
#define GROUPS 3

static const struct mfl_backend_ops *cpu;
static struct mfl_device *cpu_device, *reference_device;

static int open_devices(void **state)
{
        if (mfl_backend_open("cpu", &cpu, NULL))
                cpu = NULL; /* a build without oneDNN has nothing to test */
        else
                assert_int_equal(cpu->device_open(&cpu_device, NULL), 0);
        assert_int_equal(mfl_backend_reference.device_open(&reference_device, NULL), 0);
        return 0;
}

static int close_devices(void **state)
{
        if (cpu)
                cpu->device_close(cpu_device);
        mfl_backend_reference.device_close(reference_device);
        return 0;
}

struct op_case {
        const char *name;
        struct mfl_shape input;
        int terms; /* of the longest sum */
        struct mfl_layer layers[LAYERS_MAX];
        int tokens; /* the input is tokens below this */
};

#define IN1(a)                                                                                               \
        {                                                                                                    \
                1,                                                                                           \
                {                                                                                            \
                        a                                                                                    \
                }                                                                                            \
        }
#define IN2(a, b)                                                                                            \
        {                                                                                                    \
                2,                                                                                           \
                {                                                                                            \
                        a, b                                                                                 \
                }                                                                                            \
        }
#define IN3(a, b, c)                                                                                         \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        a, b, c                                                                              \
                }                                                                                            \
        }
#define CONV(from, n)                                                                                        \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .input = from, .out_channels = n, .kernel = {3, 3}, .padding = { 1, 1 } \
        }

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

static struct mfl_graph *graph_of(
        const struct mfl_shape *input, const struct mfl_layer *from, int n, int classes)
{
        struct mfl_layer layers[LAYERS_MAX + 1] = {{.op = MFL_OP_INPUT, .input = -1, .out = *input}};
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        for (int i = 0; i < n; i++)
                layers[i + 1] = from[i];
        if (mfl_graph_build("test", layers, n + 1, classes, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static int count_layers(const struct mfl_layer *layers)
{
        int n = 0;
        while (n < LAYERS_MAX && layers[n].op != MFL_OP_INPUT)
                n++;
        return n;
}

static void fill(float *v, size_t n, uint64_t which)
{
        struct mfl_rng rng = mfl_rng_new(9, MFL_RNG_TEST, which, 0);
        for (size_t i = 0; i < n; i++)
                v[i] = mfl_u32_to_unit(mfl_rng_u32(&rng)) * 2.0f - 1.0f;
}

static float *new_floats(size_t n)
{
        float *v = calloc(n + 1, sizeof *v);
        assert_non_null(v);
        return v;
}

/* Inputs, params and results of GROUPS groups. */
struct run {
        size_t in, out, n;
        float *x, *params, *dy, *y, *dx, *dparams;
        struct mfl_rng_key keys[GROUPS];
};

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

/* Groups [first, first + groups) of r, results at their places. */
static void execute(const struct mfl_backend_ops *ops, struct mfl_device *device,
        const struct mfl_graph *graph, struct run *r, int batch, size_t first, int groups, int threads)
{
        struct mfl_net_options options = {
                .batch = batch, .groups = groups, .threads = threads, .training = true};
        struct mfl_net *net = NULL;
        struct mfl_error err = {""};
        if (ops->net_new(device, graph, &options, &net, &err))
                fail_msg("%s", err.text);
        for (size_t g = 0; g < (size_t)groups; g++)
                assert_int_equal(ops->params_set(net, (int)g, r->params + (first + g) * r->n, &err), 0);
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

/* Rounding errors of sums of K terms grow like sqrt(K); every layer passes on and adds to those before it. */
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
                skip();
        for (size_t i = 0; i < MFL_ARRAY_SIZE(op_cases); i++)
                for (size_t k = 0; k < MFL_ARRAY_SIZE(batches); k++)
                        if (!only || strstr(op_cases[i].name, only))
                                test_op(&op_cases[i], batches[k]);
}

/* ---- training ---- */

#define BATCH 4
#define STEPS 5
#define SAMPLES 23
#define PARTS_MAX 3

struct train_case {
        const char *name;
        struct mfl_shape input;
        int classes, vocabulary, n_targets, parts;
        bool ignores; /* labels of -1 */
        struct mfl_optimizer opt;
        struct mfl_loss loss;
        bool schedule;
        struct mfl_layer layers[LAYERS_MAX];
};

#define HEAD(from, n)                                                                                        \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .input = from, .out_channels = n, .bias = true                           \
        }
#define ADAM .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f
#define MLP                                                                                                  \
        {                                                                                                    \
                HEAD(0, 17), {.op = MFL_OP_TANH, .input = 1}, HEAD(2, 5)                                     \
        }
#define LANGUAGE                                                                                             \
        {                                                                                                    \
                {.op = MFL_OP_EMBEDDING, .input = 0, .out_channels = 12, .vocabulary = 9},                   \
                        {.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {7, 12}}},                           \
                        {.op = MFL_OP_ADD, .input = 1, .input2 = 2},                                         \
                        {.op = MFL_OP_DROPOUT, .input = 3, .rate = 0.2f}, HEAD(4, 36),                       \
                        {.op = MFL_OP_ATTENTION, .input = 5, .heads = 2, .causal = true, .rate = 0.1f},      \
                        {.op = MFL_OP_LAYERNORM, .input = 6, .bias = true}, HEAD(7, 9)                       \
        }

static const struct train_case train_cases[] = {
        {.name = "Adam",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .weight_decay = 0.1f, ADAM}},
        {.name = "AdamW, proximal",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.kind = MFL_OPTIMIZER_ADAMW,
                        .lr = 0.01f,
                        .weight_decay = 0.1f,
                        .prox_mu = 0.1f,
                        ADAM}},
        {.name = "Adagrad",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.kind = MFL_OPTIMIZER_ADAGRAD, .lr = 0.05f, .eps = 1e-3f}},
        {.name = "SGD, clipped, scheduled",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.lr = 0.1f, .momentum = 0.9f, .clip_norm = 0.3f}},
        {.name = "SGD, scheduled",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.lr = 0.1f, .weight_decay = 0.1f}},
        {.name = "accumulated",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .parts = 3,
                .opt = {.lr = 0.1f, .momentum = 0.5f}},
        {.name = "Adam, accumulated and clipped",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .parts = 2,
                .opt = {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .clip_norm = 0.2f, ADAM}},
        {.name = "smoothing",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.smoothing = 0.1f}},
        {.name = "binary",
                .input = IN1(13),
                .classes = 5,
                .n_targets = 5,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.kind = MFL_LOSS_BINARY}},
        {.name = "squared, accumulated",
                .input = IN1(13),
                .classes = 5,
                .n_targets = 5,
                .parts = 3,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.kind = MFL_LOSS_SQUARED}},
        {.name = "language",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .ignores = true,
                .layers = LANGUAGE,
                .opt = {.lr = 0.1f}},
        {.name = "language, momentum",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .layers = LANGUAGE,
                .opt = {.lr = 0.1f, .momentum = 0.9f}},
        {.name = "language, AdamW, accumulated",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .ignores = true,
                .parts = 3,
                .layers = LANGUAGE,
                .opt = {.kind = MFL_OPTIMIZER_ADAMW,
                        .lr = 0.01f,
                        .weight_decay = 0.01f,
                        .clip_norm = 1,
                        ADAM}},
        {.name = "LSTM",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .opt = {.lr = 0.5f},
                .layers = {{.op = MFL_OP_EMBEDDING, .input = 0, .out_channels = 5, .vocabulary = 9},
                        {.op = MFL_OP_LSTM, .input = 1, .out_channels = 11, .bias = true}, HEAD(2, 9)}},
        {.name = "LoRA on a frozen model",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .opt = {.lr = 0.5f},
                .layers = {{.op = MFL_OP_EMBEDDING,
                                   .input = 0,
                                   .out_channels = 5,
                                   .vocabulary = 9,
                                   .frozen = true},
                        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 8, .lora_rank = 2},
                        {.op = MFL_OP_GELU, .input = 2}, HEAD(3, 9)}},
        {.name = "depthwise, accumulated",
                .input = IN3(3, 5, 5),
                .classes = 4,
                .parts = 2,
                .opt = {.lr = 0.1f},
                .layers = {CONV(0, 16),
                        {.op = MFL_OP_CONV2D,
                                .input = 1,
                                .out_channels = 16,
                                .kernel = {3, 3},
                                .conv_groups = 16},
                        {.op = MFL_OP_DROPOUT, .input = 2, .rate = 0.3f}, {.op = MFL_OP_SILU, .input = 3},
                        {.op = MFL_OP_FLATTEN, .input = 4}, HEAD(5, 4)}},
};

/* A data set, what each group does with it, and what comes of it. */
struct training {
        struct mfl_graph *graph;
        struct mfl_dataset set;
        uint32_t index[GROUPS][STEPS * BATCH * PARTS_MAX], count[GROUPS][STEPS];
        float lr_scale[STEPS], *first, *params;
        struct mfl_score score[GROUPS], eval;
};

static void make_set(struct training *t, const struct train_case *kase)
{
        size_t count = (size_t)mfl_shape_count(&kase->input), labels = (size_t)t->graph->positions;
        struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_TEST, 0, 0);
        float *targets = new_floats(SAMPLES * 8);
        int32_t *label = calloc(SAMPLES * labels, sizeof *label), *tokens = calloc(SAMPLES * count, 4);
        float *x = (float *)tokens;
        assert_true(label && tokens);
        t->set = (struct mfl_dataset){.name = "random",
                .shape = kase->input,
                .classes = kase->n_targets ? 0 : kase->classes,
                .vocabulary = kase->vocabulary,
                .n_targets = kase->n_targets,
                .labels_per_sample = (int)labels};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                t->set.scale[c] = 1;
        fill(x, SAMPLES * count, 4);
        for (size_t i = 0; kase->vocabulary && i < SAMPLES * count; i++)
                tokens[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)kase->vocabulary);
        for (size_t i = 0; i < SAMPLES * labels; i++)
                label[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)kase->classes) -
                           (kase->ignores && i % 3 == 1 ? kase->classes : 0);
        for (size_t i = 0; i < SAMPLES * 8; i++)
                targets[i] = (float)mfl_rng_below(&rng, 2);
        t->set.train = (struct mfl_split){.n = SAMPLES,
                .dtype = kase->vocabulary ? MFL_I32 : MFL_F32,
                .samples = tokens,
                .labels = label,
                .targets = targets};
}

static void training_new(struct training *t, const struct train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(12, MFL_RNG_TEST, 0, 0);
        uint32_t rows = BATCH * (uint32_t)MFL_MAX(kase->parts, 1);
        *t = (struct training){
                .graph = graph_of(&kase->input, kase->layers, count_layers(kase->layers), kase->classes)};
        make_set(t, kase);
        for (uint32_t g = 0; g < GROUPS; g++)
                for (uint32_t s = 0; s < STEPS; s++) {
                        t->count[g][s] = (s + g) % 4 == 2 ? 0 : (s + g) % 2 ? rows : rows - 1 - g;
                        for (uint32_t i = 0; i < rows; i++)
                                t->index[g][s * rows + i] = mfl_rng_below(&rng, SAMPLES);
                }
        for (int s = 0; s < STEPS; s++)
                t->lr_scale[s] = 1.0f / (float)(1 + s);
        t->first = new_floats(GROUPS * t->graph->n);
        t->params = new_floats(GROUPS * t->graph->n);
        for (uint64_t g = 0; g < GROUPS; g++)
                mfl_graph_init_params(t->graph, g, t->first + g * t->graph->n);
}

static void training_free(struct training *t)
{
        free(t->set.train.samples);
        free(t->set.train.labels);
        free(t->set.train.targets);
        free(t->first);
        free(t->params);
        mfl_graph_free(t->graph);
}

/* Groups [first, first + groups), in two calls; then group `first` is scored. */
static void train(const struct mfl_backend_ops *ops, struct mfl_device *device, struct training *t,
        const struct train_case *kase, size_t first, int groups)
{
        struct mfl_net_options options = {.batch = BATCH,
                .groups = groups,
                .threads = 1,
                .training = true,
                .loss = kase->loss,
                .accumulate = kase->parts};
        struct mfl_group_steps steps[GROUPS] = {0};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_error err = {""};
        uint32_t all[SAMPLES], rows = BATCH * (uint32_t)MFL_MAX(kase->parts, 1);
        if (ops->net_new(device, t->graph, &options, &net, &err) ||
                ops->data_new(device, &t->set, &t->set.train, true, &data, &err))
                fail_msg("%s", err.text);
        for (size_t g = 0; g < (size_t)groups; g++)
                assert_int_equal(ops->params_set(net, (int)g, t->first + (first + g) * t->graph->n, &err), 0);
        for (uint32_t s = 0; s < STEPS; s += 2) {
                for (size_t g = 0; g < (size_t)groups; g++) {
                        steps[g].index = t->index[first + g] + s * rows;
                        steps[g].count = t->count[first + g] + s;
                        steps[g].dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, first + g, 3);
                        steps[g].step_first = s;
                        steps[g].lr_scale = kase->schedule ? t->lr_scale + s : NULL;
                }
                if (ops->step(net, data, steps, MFL_MIN(2, STEPS - s), &kase->opt, &err))
                        fail_msg("%s: %s", kase->name, err.text);
        }
        for (size_t g = 0; g < (size_t)groups; g++) {
                t->score[first + g] = steps[g].score;
                assert_int_equal(
                        ops->params_get(net, (int)g, t->params + (first + g) * t->graph->n, &err), 0);
        }
        for (uint32_t i = 0; i < SAMPLES; i++)
                all[i] = i;
        assert_int_equal(ops->eval(net, 0, data, all, SAMPLES, &t->eval, &err), 0);
        ops->data_free(data);
        ops->net_free(net);
}

/* Over the largest move that training made. */
static double move_distance(const struct training *a, const struct training *b)
{
        double most = 0, moved = 1e-30;
        for (size_t i = 0; i < GROUPS * b->graph->n; i++) {
                double d = fabs((double)a->params[i] - (double)b->params[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)b->params[i] - (double)b->first[i]));
        }
        return most / moved;
}

static double loss_distance(const struct mfl_score *a, const struct mfl_score *b)
{
        return fabs(mfl_fixed_loss_to_double(a->loss_sum) - mfl_fixed_loss_to_double(b->loss_sum)) /
               (1e-30 + mfl_fixed_loss_to_double(b->loss_sum));
}

/* Rounding of a step, some 1e-6 of the largest gradient, grows a little over five of them; Adam divides by a
 * deviation, which is why its eps is no smaller here. */
static void test_training(const struct train_case *kase)
{
        struct training want, three, one;
        training_new(&want, kase);
        training_new(&three, kase);
        training_new(&one, kase);
        train(&mfl_backend_reference, reference_device, &want, kase, 0, GROUPS);
        train(cpu, cpu_device, &three, kase, 0, GROUPS);
        for (size_t g = GROUPS; g-- > 0;)
                train(cpu, cpu_device, &one, kase, g, 1);
        double params = move_distance(&three, &want), eval = loss_distance(&three.eval, &want.eval);
        if (!(params < 1e-4 && eval < 1e-5))
                fail_msg("%s: params %.1e eval %.1e", kase->name, params, eval);
        for (int g = 0; g < GROUPS; g++) {
                assert_true(loss_distance(&three.score[g], &want.score[g]) < 1e-5);
                assert_int_equal(three.score[g].n_correct, want.score[g].n_correct);
                assert_int_equal(three.score[g].n_scored, want.score[g].n_scored);
        }
        assert_memory_equal(one.params, three.params, GROUPS * want.graph->n * sizeof(float));
        assert_memory_equal(one.score, three.score, sizeof one.score);
        training_free(&want);
        training_free(&three);
        training_free(&one);
}

static void training_agrees(void **state)
{
        if (!cpu)
                skip();
        for (size_t i = 0; i < MFL_ARRAY_SIZE(train_cases); i++)
                test_training(&train_cases[i]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(operators_agree),
                cmocka_unit_test(training_agrees),
        };
        return cmocka_run_group_tests_name("cpu", tests, open_devices, close_devices);
}
