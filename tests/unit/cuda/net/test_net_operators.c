/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences, joins and shapes as small networks on the emulated device: values and gradients
 * near the reference's, single groups with the bits of groups together, in all precisions. */
#include "tests/unit/cuda/net/net_test.h"

#include <math.h>

#define BATCH 3
#define LAYERS_MAX 8

struct op_case {
        const char *name;
        struct mfl_shape input;
        struct mfl_layer
                layers[LAYERS_MAX]; /* op 0 ends the list; input 0: the layer before, FIRST: the input */
};
#define FIRST (-2)
#define VECTOR(n)                                                                                            \
        {                                                                                                    \
                1,                                                                                           \
                {                                                                                            \
                        n                                                                                    \
                }                                                                                            \
        }
#define SEQUENCE(t, f)                                                                                       \
        {                                                                                                    \
                2,                                                                                           \
                {                                                                                            \
                        t, f                                                                                 \
                }                                                                                            \
        }
#define IMAGE(c, h, w)                                                                                       \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        c, h, w                                                                              \
                }                                                                                            \
        }
#define OP(o)                                                                                                \
        {                                                                                                    \
                .op = o                                                                                      \
        }
#define DENSE(o)                                                                                             \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .out_channels = o, .bias = true                                          \
        }
#define SAME(o)                                                                                              \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .out_channels = o, .kernel = {3, 3}, .padding = {1, 1}, .bias = true    \
        }
#define MAP(kind_, ...)                                                                                      \
        {                                                                                                    \
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_##kind_, __VA_ARGS__ }                             \
        }
#define WEIGHT(...)                                                                                          \
        {                                                                                                    \
                .op = MFL_OP_WEIGHT, .shape = __VA_ARGS__                                                    \
        }
#define JOIN(o, a, b)                                                                                        \
        {                                                                                                    \
                .op = o, .input = a, .input2 = b                                                             \
        }

/* Of unary.def; those that need positive numbers get them from a sigmoid, or numbers above 1. */
#define PARAM(member, key, otherwise, low, high, open) .member = otherwise
#define NEEDED(member, key, low, high, example) .member = example
#define UNARY(symbol, body, stem, reads, n, cost, since, edges, low, high, onnx, ...)                        \
        {"function " #body, IMAGE(3, 4, 5),                                                                  \
                {{.op = (low) > 0 ? MFL_OP_SIGMOID : MFL_OP_NEG},                                            \
                        {.op = (low) > 1 ? MFL_OP_EXP : MFL_OP_ABS}, {.op = MFL_OP_##symbol, __VA_ARGS__}}},

/* clang-format off: a table */
static const struct op_case cases[] = {
#include "common/model/unary.def"
        {"relu6", IMAGE(3, 4, 5), {SAME(5), OP(MFL_OP_RELU6)}},
        {"gelu", VECTOR(33), {DENSE(24), OP(MFL_OP_GELU), DENSE(5)}},
        {"gelu approximate", SEQUENCE(5, 7), {{.op = MFL_OP_GELU, .approximate = true}}},
        {"silu of branches", VECTOR(16), {DENSE(16), OP(MFL_OP_SILU), JOIN(MFL_OP_ADD, 1, 2)}},
        {"dense of positions", SEQUENCE(5, 6), {DENSE(8), OP(MFL_OP_RELU), DENSE(3)}},
        {"dense of positions wide", SEQUENCE(9, 32), {DENSE(48)}},
        {"layer norm", SEQUENCE(4, 37), {{.op = MFL_OP_LAYERNORM, .bias = true}}},
        {"layer norm of a vector", VECTOR(70), {{.op = MFL_OP_LAYERNORM}, DENSE(4)}},
        {"layer norm of a flattened image", IMAGE(3, 4, 2),
                {SAME(4), OP(MFL_OP_FLATTEN), {.op = MFL_OP_LAYERNORM, .bias = true}, DENSE(5)}},
        {"rms norm", SEQUENCE(7, 16), {OP(MFL_OP_RMSNORM)}},
        {"transformer mlp", SEQUENCE(5, 16),
                {{.op = MFL_OP_LAYERNORM, .bias = true}, DENSE(32), OP(MFL_OP_GELU), DENSE(16),
                        JOIN(MFL_OP_ADD, 4, FIRST), {.op = MFL_OP_DROPOUT, .rate = 0.25f}}},
        {"softmax", VECTOR(40), {OP(MFL_OP_SOFTMAX)}},
        {"softmax of positions", SEQUENCE(5, 9), {OP(MFL_OP_SOFTMAX)}},
        {"softmax of an image", IMAGE(3, 4, 6), {OP(MFL_OP_SOFTMAX)}},
        {"multiply", VECTOR(20), {DENSE(20), JOIN(MFL_OP_MULTIPLY, 1, FIRST)}},
        {"multiply by channels", IMAGE(8, 5, 7),
                {SAME(6), OP(MFL_OP_GLOBAL_AVGPOOL2D), OP(MFL_OP_SIGMOID), JOIN(MFL_OP_MULTIPLY, 1, 3)}},
        {"add repeated rows", SEQUENCE(40, 3), {WEIGHT(SEQUENCE(1, 3)), JOIN(MFL_OP_ADD, FIRST, 1)}},
        {"add repeated columns", SEQUENCE(4, 33),
                {WEIGHT(SEQUENCE(4, 1)), JOIN(MFL_OP_ADD, FIRST, 1), OP(MFL_OP_RELU)}},
        {"multiply a flattened image", IMAGE(3, 2, 4),
                {OP(MFL_OP_FLATTEN), DENSE(24), JOIN(MFL_OP_MULTIPLY, 1, 2), DENSE(3)}},
        {"position embedding", SEQUENCE(6, 8),
                {WEIGHT(SEQUENCE(6, 8)), JOIN(MFL_OP_ADD, FIRST, 1), DENSE(3)}},
        {"weights of an image", IMAGE(3, 2, 5), {WEIGHT(IMAGE(3, 2, 5)), JOIN(MFL_OP_MULTIPLY, FIRST, 1)}},
        {"concat rows", SEQUENCE(5, 8),
                {WEIGHT(SEQUENCE(1, 8)), {.op = MFL_OP_CONCAT, .input = 1, .input2 = FIRST, .axis = 0},
                        DENSE(4)}},
        {"concat columns", SEQUENCE(5, 8),
                {DENSE(3), {.op = MFL_OP_CONCAT, .input = 1, .input2 = FIRST, .axis = 1}}},
        {"concat channels", IMAGE(3, 5, 4),
                {SAME(4), SAME(5), {.op = MFL_OP_CONCAT, .input = 1, .input2 = 2}, SAME(2)}},
        {"concat image columns", IMAGE(2, 3, 4),
                {SAME(2), {.op = MFL_OP_CONCAT, .input = FIRST, .input2 = 1, .axis = 2}}},
        {"slices", SEQUENCE(6, 10),
                {DENSE(10), {.op = MFL_OP_SLICE, .input = 1, .axis = 1, .start = 2, .end = 7},
                        {.op = MFL_OP_SLICE, .input = 1, .axis = 1, .start = 5}, JOIN(MFL_OP_ADD, 2, 3)}},
        {"slice of an image", IMAGE(5, 3, 4),
                {SAME(5), {.op = MFL_OP_SLICE, .start = 1, .end = 4},
                        {.op = MFL_OP_SLICE, .axis = 1, .start = 1}}},
        {"transpose", SEQUENCE(5, 7), {{.op = MFL_OP_TRANSPOSE, .order = {1, 0}}, DENSE(4)}},
        {"transpose image", IMAGE(3, 4, 5), {SAME(6), {.op = MFL_OP_TRANSPOSE, .order = {1, 2, 0}}}},
        {"reshape image to rows", IMAGE(4, 3, 2),
                {SAME(4), {.op = MFL_OP_RESHAPE, .shape = SEQUENCE(4, 6)}, DENSE(3)}},
        {"reshape rows to image", SEQUENCE(6, 8),
                {DENSE(8), {.op = MFL_OP_RESHAPE, .shape = IMAGE(3, 4, 4)}, SAME(2)}},
        {"reshape rows to a vector", SEQUENCE(6, 8),
                {DENSE(4), {.op = MFL_OP_RESHAPE, .shape = VECTOR(24)}, DENSE(3)}},
        {"patches", IMAGE(6, 3, 4),
                {{.op = MFL_OP_RESHAPE, .shape = SEQUENCE(6, 12)}, {.op = MFL_OP_TRANSPOSE, .order = {1, 0}},
                        DENSE(5)}},
        {"mean of rows", SEQUENCE(7, 12), {DENSE(9), {.op = MFL_OP_MEAN, .axis = 0}, DENSE(4)}},
        {"mean of columns", SEQUENCE(7, 12), {{.op = MFL_OP_MEAN, .axis = 1}}},
        {"mean of an image", IMAGE(3, 4, 5), {SAME(3), {.op = MFL_OP_MEAN, .axis = 1}}},
        {"mean of channels", IMAGE(3, 4, 5), {{.op = MFL_OP_MEAN, .axis = 0}}},
        {"global maxpool", IMAGE(5, 4, 3), {SAME(8), OP(MFL_OP_GLOBAL_MAXPOOL2D), DENSE(4)}},
        {"pad", IMAGE(3, 4, 5),
                {SAME(6), MAP(PAD, .before = {0, 1, 2}, .after = {0, 2, 0}, .value = 0.5f), SAME(3)}},
        {"pad channels", IMAGE(3, 4, 5), {MAP(PAD, .before = {1, 0, 2}, .after = {2, 1, 0}), SAME(3)}},
        {"pad rows", SEQUENCE(5, 6),
                {DENSE(4), MAP(PAD, .mode = MFL_MAP_REFLECT, .before = {3}, .after = {1, 2})}},
        {"resize", IMAGE(3, 4, 5),
                {SAME(6), OP(MFL_OP_RELU), MAP(RESIZE, .mode = MFL_MAP_BILINEAR, .to = {7, 9}), SAME(3)}},
        {"resize twice read", IMAGE(3, 4, 4),
                {SAME(6), MAP(RESIZE, .mode = MFL_MAP_NEAREST, .scale_factor = {2, 2}),
                        MAP(ADAPTIVE_AVGPOOL2D, .to = {4, 4}), JOIN(MFL_OP_ADD, 1, 3)}},
        {"resize to a pixel", IMAGE(3, 4, 4), {SAME(6), MAP(ADAPTIVE_AVGPOOL2D, .to = {1, 1}), SAME(3)}},
        {"resize of a pixel", IMAGE(3, 4, 4),
                {SAME(5), OP(MFL_OP_GLOBAL_AVGPOOL2D), MAP(RESIZE, .mode = MFL_MAP_BILINEAR, .to = {3, 2}),
                        SAME(3)}},
        {"pixel shuffle", IMAGE(3, 3, 5),
                {SAME(12),
                        {.op = MFL_OP_MAP,
                                .shape = IMAGE(3, 6, 10),
                                .map = {.kind = MFL_MAP_VIEW,
                                        .n_digits = 5,
                                        .size = {3, 3, 2, 5, 2},
                                        .stride = {60, 5, 30, 1, 15}}},
                        SAME(2)}},
        {"view of channels", IMAGE(3, 5, 4),
                {SAME(4),
                        {.op = MFL_OP_MAP,
                                .shape = SEQUENCE(8, 3),
                                .map = {.kind = MFL_MAP_VIEW,
                                        .n_digits = 2,
                                        .size = {8, 3},
                                        .stride = {4, 1},
                                        .offset = 7}},
                        DENSE(3)}},
        {"sum of planes", IMAGE(5, 4, 3), {SAME(6), MAP(SUM, .axes = 6), DENSE(4)}},
        {"mean of rows and channels", IMAGE(5, 4, 3), {SAME(6), MAP(MEAN, .axes = 3), DENSE(4)}},
        {"matmul", SEQUENCE(5, 7),
                {DENSE(6), {.op = MFL_OP_TRANSPOSE, .input = 1, .order = {1, 0}}, JOIN(MFL_OP_MATMUL, 1, 2)}},
        {"matmul transposed", SEQUENCE(35, 7),
                {DENSE(33), DENSE(33), {.op = MFL_OP_MATMUL, .input = 1, .input2 = 2, .transposed = true}}},
        {"matmul of images", IMAGE(3, 4, 5),
                {{.op = MFL_OP_TRANSPOSE, .order = {0, 2, 1}}, JOIN(MFL_OP_MATMUL, FIRST, 1)}},
        {"embedding", VECTOR(9), {{.op = MFL_OP_EMBEDDING, .vocabulary = 5, .out_channels = 8}, DENSE(3)}},
        {"embedding with padding", VECTOR(9),
                {{.op = MFL_OP_EMBEDDING,
                         .vocabulary = 5,
                         .out_channels = 8,
                         .has_padding = true,
                         .padding_idx = 1},
                        DENSE(3)}},
        {"attention without padding", VECTOR(9),
                {{.op = MFL_OP_EMBEDDING, .input = FIRST, .vocabulary = 4, .out_channels = 24},
                        {.op = MFL_OP_PADDING_MASK, .input = FIRST, .padding_idx = 1},
                        {.op = MFL_OP_ATTENTION, .input = 1, .input2 = 2, .heads = 2}, DENSE(3)}},
        {"mean without padding", VECTOR(12),
                {{.op = MFL_OP_EMBEDDING, .input = FIRST, .vocabulary = 4, .out_channels = 6},
                        {.op = MFL_OP_PADDING_MASK, .input = FIRST, .padding_idx = 1}, OP(MFL_OP_SOFTMAX),
                        {.op = MFL_OP_RESHAPE, .shape = SEQUENCE(1, 12)}, JOIN(MFL_OP_MATMUL, 4, 1)}},
        {"embeddings of columns", VECTOR(4),
                {{.op = MFL_OP_SLICE, .input = FIRST, .axis = 0, .start = 0, .end = 2},
                        {.op = MFL_OP_EMBEDDING, .vocabulary = 5, .out_channels = 6},
                        {.op = MFL_OP_SLICE, .input = FIRST, .axis = 0, .start = 2, .end = 4},
                        {.op = MFL_OP_EMBEDDING, .vocabulary = 3, .out_channels = 6},
                        JOIN(MFL_OP_ADD, 2, 4)}},
        {"two embeddings", VECTOR(40),
                {{.op = MFL_OP_EMBEDDING, .input = FIRST, .vocabulary = 7, .out_channels = 3},
                        {.op = MFL_OP_EMBEDDING, .input = FIRST, .vocabulary = 7, .out_channels = 3},
                        JOIN(MFL_OP_MULTIPLY, 1, 2)}},
        {"attention", SEQUENCE(5, 24), {{.op = MFL_OP_ATTENTION, .heads = 2}}},
        {"attention causal", SEQUENCE(7, 6),
                {DENSE(12), {.op = MFL_OP_ATTENTION, .heads = 1, .causal = true}, DENSE(5)}},
        {"attention with dropout", SEQUENCE(35, 8),
                {DENSE(24), {.op = MFL_OP_ATTENTION, .heads = 4, .causal = true, .rate = 0.25f},
                        JOIN(MFL_OP_ADD, FIRST, 2)}},
        {"lstm", SEQUENCE(5, 6), {{.op = MFL_OP_LSTM, .out_channels = 7, .bias = true}, DENSE(3)}},
        {"lstm of one position", SEQUENCE(1, 6), {{.op = MFL_OP_LSTM, .out_channels = 4}}},
        {"two lstms", SEQUENCE(4, 3),
                {{.op = MFL_OP_LSTM, .out_channels = 5, .bias = true},
                        {.op = MFL_OP_LSTM, .out_channels = 4, .bias = true}, DENSE(4)}},
        {"lstm with its last cell", SEQUENCE(4, 6),
                {{.op = MFL_OP_LSTM, .out_channels = 7, .bias = true, .last_cell = true}, DENSE(3)}},
        {"rnn", SEQUENCE(5, 6), {{.op = MFL_OP_RNN, .out_channels = 7, .bias = true}, DENSE(3)}},
        {"rnn of relu", SEQUENCE(2, 6), {{.op = MFL_OP_RNN, .out_channels = 7, .relu = true}, DENSE(3)}},
        {"gru", SEQUENCE(5, 6), {{.op = MFL_OP_GRU, .out_channels = 7, .bias = true}, DENSE(3)}},
        {"gru without biases", SEQUENCE(6, 33), {{.op = MFL_OP_GRU, .out_channels = 34}}},
        {"lora", VECTOR(20),
                {{.op = MFL_OP_DENSE, .out_channels = 12, .bias = true, .lora_rank = 3}, OP(MFL_OP_RELU),
                        DENSE(4)}},
        {"lora of positions", SEQUENCE(5, 9),
                {DENSE(8), OP(MFL_OP_TANH),
                        {.op = MFL_OP_DENSE, .out_channels = 6, .lora_rank = 2, .lora_alpha = 5.0f}}},
        {"lora of an image", IMAGE(3, 2, 4),
                {SAME(3), OP(MFL_OP_RELU),
                        {.op = MFL_OP_DENSE, .out_channels = 6, .bias = true, .lora_rank = 2}}},
        {"depthwise", IMAGE(6, 5, 4),
                {SAME(6),
                        {.op = MFL_OP_CONV2D,
                                .out_channels = 6,
                                .conv_groups = 6,
                                .kernel = {3, 3},
                                .stride = {2, 1},
                                .padding = {1, 1},
                                .bias = true},
                        OP(MFL_OP_TANH), SAME(3)}},
        {"conv of channel groups", IMAGE(6, 7, 4),
                {{.op = MFL_OP_CONV2D,
                         .out_channels = 4,
                         .conv_groups = 2,
                         .kernel = {3, 2},
                         .dilation = {2, 1}},
                        OP(MFL_OP_RELU)}},
        {"conv transposed", IMAGE(3, 4, 5),
                {SAME(4),
                        {.op = MFL_OP_CONVTRANSPOSE2D,
                                .out_channels = 5,
                                .kernel = {3, 3},
                                .stride = {2, 2},
                                .padding = {1, 1},
                                .output_padding = {1, 1},
                                .bias = true},
                        SAME(2)}},
        {"conv transposed groups", IMAGE(4, 3, 4),
                {{.op = MFL_OP_CONVTRANSPOSE2D,
                         .out_channels = 6,
                         .conv_groups = 2,
                         .kernel = {2, 3},
                         .dilation = {1, 2}},
                        OP(MFL_OP_TANH)}},
        {"frozen", VECTOR(9),
                {{.op = MFL_OP_DENSE, .out_channels = 6, .bias = true, .frozen = true}, OP(MFL_OP_TANH),
                        {.op = MFL_OP_LAYERNORM, .bias = true, .frozen = true}, DENSE(3)}},
};
/* clang-format on */

static struct mfl_graph *graph_of(const struct op_case *c)
{
        struct mfl_layer layers[LAYERS_MAX + 1] = {{.op = MFL_OP_INPUT, .input = -1, .out = c->input}};
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        int n = 1;
        for (; n <= LAYERS_MAX && c->layers[n - 1].op != MFL_OP_INPUT; n++) {
                layers[n] = c->layers[n - 1];
                if (layers[n].op == MFL_OP_WEIGHT)
                        layers[n].input = -1;
                else if (layers[n].input <= 0)
                        layers[n].input = layers[n].input == FIRST ? 0 : n - 1;
                if (layers[n].input2 == FIRST)
                        layers[n].input2 = 0;
        }
        if (mfl_graph_build(c->name, layers, n, 0, &graph, &err))
                fail_msg("%s: %s", c->name, err.text);
        return graph;
}

struct sizes {
        size_t in, out, n;
};

struct outputs {
        float *y, *dx, *dparams;
};

static void outputs_free(struct outputs *o)
{
        free(o->y);
        free(o->dx);
        free(o->dparams);
}

static void must(int rc, const struct mfl_error *err, const char *what)
{
        if (rc)
                fail_msg("%s: %d: %s", what, rc, err->text);
}

/* Whole tokens, or numbers in +-1 that are exact in bf16. */
static float *numbers(size_t n, uint64_t seed, int vocabulary)
{
        struct mfl_rng rng = mfl_rng_new(77, MFL_RNG_TEST, seed, 0);
        float *v = mfl_malloc(n * sizeof *v);
        assert_non_null(v);
        for (size_t i = 0; i < n; i++)
                v[i] = vocabulary ? (float)mfl_rng_below(&rng, (uint32_t)vocabulary)
                                  : ((float)mfl_rng_below(&rng, 255) - 127.0f) / 128.0f;
        return v;
}

/* Groups [first, first + groups) of three. */
static struct outputs run(const struct mfl_backend_ops *ops, struct mfl_device *device,
        const struct mfl_graph *graph, enum mfl_precision precision, int first, int groups)
{
        struct mfl_net_options options = {
                .batch = BATCH, .groups = groups, .threads = 1, .training = true, .precision = precision};
        options.input_grad = true;
        struct sizes s = {(size_t)mfl_shape_count(&graph->input) * BATCH,
                (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * BATCH, (size_t)graph->n};
        size_t all = NET_GROUPS, own = (size_t)groups, at = (size_t)first;
        struct mfl_rng_key keys[NET_GROUPS];
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        float *x = numbers(s.in * all, 1, graph->vocabulary), *dy = numbers(s.out * all, 2, 0);
        float *params = numbers(s.n * all + 1, 3, 0);
        struct outputs o = {mfl_calloc(s.out * own, sizeof(float)), mfl_calloc(s.in * own, sizeof(float)),
                mfl_calloc(s.n * own + 1, sizeof(float))};
        for (uint32_t g = 0; g < NET_GROUPS; g++)
                keys[g] = mfl_rng_derive(5, MFL_RNG_DROPOUT, g, 1);
        must(ops->net_new(device, graph, &options, &net, &err), &err, graph->name);
        for (int g = 0; g < groups; g++)
                must(mfl_backend_set(ops, net, graph, g, params + (at + (size_t)g) * s.n, &err), &err,
                        graph->name);
        must(ops->forward(net, x + at * s.in, keys + first, o.y, &err), &err, graph->name);
        must(ops->backward(net, dy + at * s.out, o.dx, o.dparams, &err), &err, graph->name);
        ops->net_free(net);
        free(x);
        free(dy);
        free(params);
        return o;
}

static void assert_near(
        const char *name, const char *what, const float *got, const float *want, size_t n, double bound)
{
        double most = 0, scale = 1e-6;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)got[i] - (double)want[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                scale = fmax(scale, fabs((double)want[i]));
        }
        if (!(most <= bound * scale))
                fail_msg("%s: %s: %g of %g, bound %g", name, what, most, scale, bound);
}

static void values_are_the_references(void **state)
{
        /* fp32: sums of up to about a hundred terms in another order, a few layers deep. In smaller formats
         * every layer and weight is rounded by 2^-8 or 2^-11, and a norm divides by a deviation below 1. */
        static const double bounds[MFL_PRECISION_COUNT_] = {1e-5, 2e-2, 8e-2, 1e-2};
        struct mfl_device *reference = NULL;
        assert_int_equal(mfl_backend_reference.device_open(&reference, NULL), 0);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_graph *graph = graph_of(&cases[i]);
                size_t in = (size_t)mfl_shape_count(&graph->input) * BATCH * NET_GROUPS;
                size_t out =
                        (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * BATCH * NET_GROUPS;
                struct outputs want =
                        run(&mfl_backend_reference, reference, graph, MFL_PRECISION_FP32, 0, NET_GROUPS);
                for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                        /* tf32 and fp16 take turns: only the products of their kernels differ. */
                        if (p == (i % 2 ? MFL_PRECISION_TF32 : MFL_PRECISION_FP16))
                                continue;
                        struct outputs got = run(&mfl_backend_module, net_device(), graph,
                                (enum mfl_precision)p, 0, NET_GROUPS);
                        assert_near(cases[i].name, "y", got.y, want.y, out, bounds[p]);
                        assert_near(cases[i].name, "dx", got.dx, want.dx, in, bounds[p]);
                        assert_near(cases[i].name, "dparams", got.dparams, want.dparams,
                                (size_t)graph->n * NET_GROUPS, bounds[p]);
                        outputs_free(&got);
                }
                outputs_free(&want);
                mfl_graph_free(graph);
        }
        mfl_backend_reference.device_close(reference);
}

static void groups_do_not_matter(void **state)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_graph *graph = graph_of(&cases[i]);
                enum mfl_precision precision = i % 2 ? MFL_PRECISION_FP32 : MFL_PRECISION_BF16;
                size_t in = (size_t)mfl_shape_count(&graph->input) * BATCH, n = (size_t)graph->n;
                size_t out = (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out) * BATCH;
                struct outputs all = run(&mfl_backend_module, net_device(), graph, precision, 0, NET_GROUPS);
                struct outputs one = run(&mfl_backend_module, net_device(), graph, precision, 1, 1);
                assert_memory_equal(one.y, all.y + out, out * sizeof(float));
                assert_memory_equal(one.dx, all.dx + in, in * sizeof(float));
                assert_memory_equal(one.dparams, all.dparams + n, n * sizeof(float));
                outputs_free(&all);
                outputs_free(&one);
                mfl_graph_free(graph);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(values_are_the_references),
                cmocka_unit_test(groups_do_not_matter),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
