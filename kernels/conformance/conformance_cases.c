/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the conformance program: operators of images and vectors, and what backends fuse of them. */
#include "kernels/conformance/conformance_cases.h"

static const struct conf_case image_cases[] = {
        {"conv 1x1", IMAGE(3, 5, 4), {CONV(4, K1, K1, P0, K1)}},
        {"conv 3x3", IMAGE(3, 7, 6), {CONV(5, PAIR(3, 3), K1, P0, K1)}},
        {"conv 3x3 same", IMAGE(16, 6, 6), {SAME(32, 3)}, .batch = 2},
        {"conv 5x5 one channel", IMAGE(1, 9, 9), {SAME(8, 5)}},
        {"conv 5x5 same", IMAGE(32, 7, 7), {SAME(16, 5)}, .batch = 7},
        {"conv stride", IMAGE(2, 9, 8), {CONV(3, PAIR(3, 3), PAIR(2, 3), PAIR(1, 0), K1)}},
        {"conv dilation", IMAGE(2, 11, 9), {CONV(3, PAIR(3, 2), K1, PAIR(2, 1), PAIR(2, 3))}},
        {"conv odd", IMAGE(17, 5, 3), {CONV(19, PAIR(3, 1), PAIR(2, 1), PAIR(1, 0), K1)}, .batch = 7},
        {"conv no bias", IMAGE(3, 6, 5), {CONV_PLAIN(7, 3)}},
        {"conv whole image", IMAGE(4, 5, 5), {CONV_PLAIN(6, 5)}},
        {"dense", VECTOR(37), {DENSE(11)}},
        {"dense 1 to 1", VECTOR(1), {DENSE(1)}},
        {"dense wide", VECTOR(200), {DENSE(130)}, .batch = 32},
        {"dense no bias", VECTOR(16), {{.op = MFL_OP_DENSE, .out_channels = 10}}},
        {"dense of image", IMAGE(3, 4, 5), {DENSE(9)}},
        {"relu", IMAGE(3, 5, 7), {OP(MFL_OP_RELU)}, .exact = true},
        {"tanh", IMAGE(3, 5, 7), {OP(MFL_OP_TANH)}},
        {"sigmoid", VECTOR(33), {OP(MFL_OP_SIGMOID)}},
        {"flatten", IMAGE(3, 5, 7), {OP(MFL_OP_FLATTEN)}, .exact = true},
        {"dropout", IMAGE(3, 5, 7), {{.op = MFL_OP_DROPOUT, .rate = 0.25f}}, .exact = true},
        {"dropout half", VECTOR(130), {{.op = MFL_OP_DROPOUT, .rate = 0.5f}}, .exact = true},
        {"maxpool 2x2", IMAGE(3, 6, 8), {MAX2}, .exact = true},
        {"maxpool odd", IMAGE(5, 7, 5), {MAX2}, .exact = true},
        {"maxpool ceil", IMAGE(5, 7, 5), {{POOL_CEIL(2, 2, 0)}}, .exact = true},
        {"maxpool ceil overlap", IMAGE(2, 8, 6), {{POOL_CEIL(3, 2, 0)}}, .batch = 3},
        {"maxpool ceil padded", IMAGE(2, 8, 6), {{POOL_CEIL(4, 3, 1)}}},
        {"conv relu maxpool ceil", IMAGE(3, 7, 5), {SAME(17, 3), OP(MFL_OP_RELU), {POOL_CEIL(2, 2, 0)}}},
        {"maxpool overlap", IMAGE(2, 7, 8), {POOL(MFL_OP_MAXPOOL2D, PAIR(3, 3), PAIR(2, 2), K1)}},
        {"maxpool ties", IMAGE(4, 6, 6), {MAX2}, .ties = true, .exact = true},
        {"maxpool overlap ties", IMAGE(2, 7, 7), {POOL(MFL_OP_MAXPOOL2D, PAIR(3, 2), K1, PAIR(1, 1))},
                .ties = true},
        {"maxpool dilation", IMAGE(2, 9, 9),
                {{.op = MFL_OP_MAXPOOL2D, .kernel = {2, 2}, .stride = {1, 2}, .dilation = {3, 2}}}},
        {"avgpool 2x2", IMAGE(3, 6, 8), {AVG2}},
        {"avgpool padded", IMAGE(2, 7, 5), {POOL(MFL_OP_AVGPOOL2D, PAIR(3, 3), PAIR(2, 1), K1)}},
        {"conv relu", IMAGE(3, 6, 6), {SAME(17, 3), OP(MFL_OP_RELU)}},
        {"conv relu maxpool", IMAGE(3, 8, 8), {SAME(16, 3), OP(MFL_OP_RELU), MAX2}},
        {"conv relu maxpool conv", IMAGE(1, 8, 8),
                {SAME(8, 5), OP(MFL_OP_RELU), MAX2, SAME(20, 3), OP(MFL_OP_RELU)}, .batch = 7},
        {"conv conv 3x3 odd blocks", IMAGE(3, 12, 11), {SAME(16, 3), SAME(24, 3)}, .batch = 3},
        {"conv conv 5x5 one block", IMAGE(2, 7, 8), {SAME(16, 3), SAME(8, 5)}, .batch = 2},
        {"conv conv 7x7 stride", IMAGE(2, 9, 11),
                {SAME(8, 3), CONV(16, PAIR(7, 4), PAIR(2, 3), PAIR(3, 1), K1)}, .batch = 3},
        {"conv conv 1x1 relu maxpool", IMAGE(3, 6, 8), {SAME(8, 3), BARE(1, 16, 1, 1), RELU, MAX2},
                .batch = 2},
        {"conv tanh avgpool conv", IMAGE(1, 9, 9), {SAME(6, 5), OP(MFL_OP_TANH), AVG2, CONV_PLAIN(9, 3)}},
        {"conv sigmoid conv", IMAGE(2, 5, 5), {SAME(5, 3), OP(MFL_OP_SIGMOID), SAME(6, 3)}, .batch = 2},
        {"conv dropout dense", IMAGE(2, 6, 6),
                {SAME(6, 3), OP(MFL_OP_RELU), {.op = MFL_OP_DROPOUT, .rate = 0.25f}, OP(MFL_OP_FLATTEN),
                        DENSE(10)}},
        {"conv maxpool overlap relu", IMAGE(2, 7, 7),
                {SAME(19, 3), POOL(MFL_OP_MAXPOOL2D, PAIR(3, 3), PAIR(2, 2), K1), OP(MFL_OP_RELU)},
                .batch = 2},
        {"conv maxpool odd", IMAGE(3, 7, 9), {SAME(17, 3), MAX2}, .batch = 7},
        {"conv relu avgpool overlap", IMAGE(3, 7, 9),
                {SAME(17, 3), OP(MFL_OP_RELU), POOL(MFL_OP_AVGPOOL2D, PAIR(3, 3), PAIR(2, 2), K1)},
                .batch = 2},
        {"dense relu dense", VECTOR(50), {DENSE(33), OP(MFL_OP_RELU), DENSE(10)}},
        {"dense tanh dropout dense", VECTOR(20),
                {DENSE(24), OP(MFL_OP_TANH), {.op = MFL_OP_DROPOUT, .rate = 0.5f}, DENSE(10)}, .batch = 7},
        {"add", IMAGE(3, 5, 7), {OP(MFL_OP_RELU), ADD(CONF_READS_INPUT, 1)}, .exact = true},
        {"add of vectors", VECTOR(33), {OP(MFL_OP_TANH), ADD(1, 0)}},
        {"add of branches", IMAGE(3, 6, 5), {SAME(17, 3), BARE(CONF_READS_INPUT, 17, 1, 1), ADD(1, 2)}},
        {"add relu", IMAGE(8, 5, 5), {SAME(8, 3), ADD(1, 0), RELU}},
        {"add reversed", IMAGE(8, 5, 5), {SAME(8, 3), RELU, ADD(2, 1), SAME(4, 3)}, .batch = 7},
        {"read three times", IMAGE(4, 5, 6),
                {SAME(12, 3), OP(MFL_OP_TANH), BARE(1, 12, 3, 1), FROM(1, MFL_OP_SIGMOID), ADD(2, 3),
                        ADD(5, 4)}},
        {"input read three times", VECTOR(19),
                {DENSE(19), FROM(CONF_READS_INPUT, MFL_OP_TANH), ADD(2, 0), ADD(1, 3), DENSE(10)}},
        {"conv and pools of one tensor", IMAGE(3, 9, 8),
                {SAME(16, 3), BARE(1, 8, 3, 1),
                        {.op = MFL_OP_MAXPOOL2D,
                                .input = 1,
                                .kernel = {3, 3},
                                .stride = {1, 1},
                                .padding = {1, 1}},
                        BARE(3, 8, 1, 1),
                        {.op = MFL_OP_AVGPOOL2D,
                                .input = 1,
                                .kernel = {3, 3},
                                .stride = {1, 1},
                                .padding = {1, 1}},
                        BARE(5, 8, 1, 1), ADD(2, 4), ADD(7, 6)}},
        {"dense and dropout of one tensor", VECTOR(24),
                {DENSE(24), {.op = MFL_OP_DROPOUT, .rate = 0.25f}, FROM(1, MFL_OP_RELU), ADD(2, 3),
                        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 24}, ADD(4, 5)}},
        {"flatten read twice", IMAGE(3, 4, 5), {SAME(5, 3), OP(MFL_OP_FLATTEN), DENSE(100), ADD(3, 2)}},
        {"global avgpool", IMAGE(5, 6, 7), {OP(MFL_OP_GLOBAL_AVGPOOL2D)}},
        {"conv global avgpool dense", IMAGE(3, 6, 6),
                {SAME(20, 3), RELU, OP(MFL_OP_GLOBAL_AVGPOOL2D), DENSE(10)}},
        {"global avgpool read twice", IMAGE(6, 5, 5),
                {SAME(18, 3), FROM(1, MFL_OP_GLOBAL_AVGPOOL2D), BARE(1, 18, 5, 5),
                        {.op = MFL_OP_AVGPOOL2D, .input = 1, .kernel = {5, 5}}, ADD(2, 4), ADD(5, 3)},
                .batch = 7},
        {"batchnorm", IMAGE(5, 6, 7), {BN}},
        {"batchnorm one channel", IMAGE(1, 8, 9), {BN}},
        {"batchnorm inference", IMAGE(5, 6, 7), {BN}, .inference = true},
        {"batchnorm of vectors", VECTOR(33), {BN}, .batch = 7},
        {"batchnorm of 32 vectors", VECTOR(33), {BN}, .batch = 32},
        {"batchnorm momentum", IMAGE(4, 5, 5), {{.op = MFL_OP_BATCHNORM, .momentum = 0.75f, .eps = 0.01f}}},
        {"groupnorm", IMAGE(6, 5, 7), {GN(3)}},
        {"groupnorm one group", IMAGE(18, 3, 5), {GN(1)}},
        {"groupnorm of each channel", IMAGE(16, 5, 5), {GN(16)}},
        {"groupnorm inference", IMAGE(6, 5, 7), {GN(2)}, .inference = true},
        {"groupnorm of vectors", VECTOR(48), {GN(4)}},
        {"conv batchnorm relu", IMAGE(3, 7, 6), {BARE(0, 17, 3, 1), BN, RELU}},
        {"conv groupnorm relu", IMAGE(3, 7, 6), {BARE(0, 24, 3, 2), GN(6), RELU}},
        {"conv batchnorm tanh dense", IMAGE(3, 6, 6), {SAME(20, 3), BN, OP(MFL_OP_TANH), DENSE(10)}},
        {"conv batchnorm inference", IMAGE(3, 7, 6), {BARE(0, 17, 3, 1), BN, RELU}, .inference = true},
        {"dense batchnorm dense", VECTOR(20), {DENSE(30), BN, OP(MFL_OP_TANH), DENSE(10)}, .batch = 32},
        /* The second divides by the first one's weights, and some of those are near 0. */
        {"batchnorm batchnorm", IMAGE(4, 6, 6), {BN, BN}, .only_fp32 = true},
        {"batchnorm and groupnorm of one tensor", IMAGE(4, 6, 5),
                {SAME(16, 3), BN, FROM(1, MFL_OP_TANH),
                        {.op = MFL_OP_GROUPNORM, .input = 1, .norm_groups = 4}, ADD(2, 3), ADD(5, 4)}},
        {"residual block", IMAGE(16, 6, 6),
                {BARE(0, 16, 3, 1), BN, RELU, BARE(0, 16, 3, 1), BN, ADD(5, 0), RELU}},
        {"residual block projection", IMAGE(16, 8, 7),
                {RELU, BARE(1, 24, 3, 2), BN, RELU, BARE(0, 24, 3, 1), BN, BARE(1, 24, 1, 2), BN, ADD(6, 8),
                        RELU}},
        {"residual block groupnorm", IMAGE(16, 7, 7),
                {RELU, BARE(1, 32, 3, 2), GN(8), RELU, BARE(0, 32, 3, 1), GN(8), BARE(1, 32, 1, 2), GN(8),
                        ADD(6, 8), RELU, OP(MFL_OP_GLOBAL_AVGPOOL2D), DENSE(10)}},
        {"residual block tanh", IMAGE(4, 5, 6),
                {BARE(0, 8, 3, 2), BN, OP(MFL_OP_TANH), BARE(0, 8, 3, 1), BN, BARE(CONF_READS_INPUT, 8, 1, 2),
                        BN, ADD(5, 7), OP(MFL_OP_TANH)},
                .batch = 7},
        /* Few channels, which backends may handle separately: rows of pixels that are shorter than a vector
         * or no multiple of it; windows that reach into padding with all but one row; and shapes that the
         * general way handles. */
        {"few channels 1->6", IMAGE(1, 12, 28), {SAME(6, 5)}, .batch = 2},
        {"few channels 3->6", IMAGE(3, 9, 23), {CONV_PLAIN(6, 5)}, .batch = 7},
        {"few channels 6->16", IMAGE(6, 14, 14), {CONV_PLAIN(16, 5)}, .batch = 2},
        {"few channels 8->8", IMAGE(8, 7, 6), {SAME(8, 3)}},
        {"few channels 5->11", IMAGE(5, 7, 11), {CONV(11, PAIR(4, 2), K1, PAIR(3, 1), K1)}, .batch = 7},
        {"few channels narrow", IMAGE(2, 9, 2), {CONV(7, PAIR(2, 7), K1, PAIR(1, 3), K1)}, .batch = 2},
        {"few channels one pixel", IMAGE(4, 3, 5), {CONV_PLAIN(7, 3), CONV(5, PAIR(1, 3), K1, P0, K1)}},
        {"few channels no bias", IMAGE(4, 6, 17), {CONV_PLAIN(16, 3)}, .batch = 2},
        {"few channels relu maxpool", IMAGE(3, 9, 21), {SAME(6, 3), RELU, MAX2, SAME(16, 3), RELU, MAX2},
                .batch = 7},
        {"few channels tanh avgpool", IMAGE(1, 21, 26),
                {SAME(6, 5), OP(MFL_OP_TANH), AVG2, CONV_PLAIN(16, 5), OP(MFL_OP_TANH), AVG2,
                        OP(MFL_OP_FLATTEN), DENSE(10)},
                .batch = 7},
        {"few channels padded beyond", IMAGE(2, 4, 5), {CONV(3, PAIR(2, 2), K1, PAIR(3, 4), K1)}, .batch = 2},
        {"few channels far apart", IMAGE(2, 5, 6), {CONV(3, PAIR(2, 3), PAIR(90, 7), P0, K1)}, .batch = 2},
        {"few channels of a frozen layer", IMAGE(3, 6, 9),
                {SAME(6, 3), OP(MFL_OP_TANH),
                        {.op = MFL_OP_CONV2D,
                                .out_channels = 5,
                                .kernel = {3, 3},
                                .bias = true,
                                .frozen = true}},
                .batch = 2},
        {"maxpool plain", IMAGE(3, 6, 25), {MAX2}, .ties = true, .exact = true, .batch = 2},
        {"avgpool plain odd", IMAGE(3, 7, 25), {AVG2}, .batch = 2},
        {"relu relu", VECTOR(20), {OP(MFL_OP_RELU), OP(MFL_OP_RELU)}, .batch = 2, .exact = true},
};

const struct conf_case *mfl_conf_case_at(int i)
{
        const struct {
                const struct conf_case *cases;
                int n;
        } tables[] = {{image_cases, MFL_ARRAY_SIZE(image_cases)},
                {mfl_conf_more_cases, mfl_conf_n_more_cases}, {mfl_conf_unary_cases, mfl_conf_n_unary_cases},
                {mfl_conf_joined_cases, mfl_conf_n_joined_cases},
                {mfl_conf_shared_cases, mfl_conf_n_shared_cases}, {mfl_conf_map_cases, mfl_conf_n_map_cases}};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(tables); i -= tables[k++].n)
                if (i < tables[k].n)
                        return &tables[k].cases[i];
        return NULL;
}

#define TWICE(from, mode_)                                                                                   \
        {                                                                                                    \
                .op = MFL_OP_MAP, .input = from,                                                             \
                .map = {.kind = MFL_MAP_RESIZE,                                                              \
                        .mode = mode_,                                                                       \
                        .scale_factor = {2, 2} }                                                             \
        }

const struct conf_case mfl_conf_perf_cases[] = {
        {"conv 5x5 1->32 28x28", IMAGE(1, 28, 28), {SAME(32, 5)}, .batch = 32},
        {"conv 5x5 32->64 14x14", IMAGE(32, 14, 14), {SAME(64, 5)}, .batch = 32},
        {"conv 3x3 32->64 30x30", IMAGE(32, 30, 30), {SAME(64, 3)}, .batch = 10},
        {"conv 5x5 1->6 28x28", IMAGE(1, 28, 28), {SAME(6, 5)}, .batch = 10},
        {"conv 5x5 3->6 32x32", IMAGE(3, 32, 32), {CONV_PLAIN(6, 5)}, .batch = 10},
        {"conv 5x5 6->16 14x14", IMAGE(6, 14, 14), {CONV_PLAIN(16, 5)}, .batch = 10},
        {"conv 5x5 1->10 28x28", IMAGE(1, 28, 28), {CONV_PLAIN(10, 5)}, .batch = 10},
        {"conv 3x3 3->16 32x32", IMAGE(3, 32, 32), {SAME(16, 3)}, .batch = 10},
        {"conv 3x3 8->16 16x16", IMAGE(8, 16, 16), {SAME(16, 3)}, .batch = 10},
        {"conv 3x3 4->12 16x16", IMAGE(4, 16, 16), {SAME(12, 3)}, .batch = 10},
        {"avgpool 6x28x28", IMAGE(6, 28, 28), {AVG2}, .batch = 10},
        {"maxpool 6x28x28", IMAGE(6, 28, 28), {MAX2}, .batch = 10},
        {"dense 3136->512", VECTOR(3136), {DENSE(512)}, .batch = 32},
        {"dense 784->200", VECTOR(784), {DENSE(200)}, .batch = 10},
        {"dense 512->10", VECTOR(512), {DENSE(10)}, .batch = 32},
        {"maxpool 32x28x28", IMAGE(32, 28, 28), {MAX2}, .batch = 32},
        {"tanh 6x28x28", IMAGE(6, 28, 28), {OP(MFL_OP_TANH)}, .batch = 10},
        {"batchnorm 64 32x32", IMAGE(64, 32, 32), {BN}, .batch = 32},
        {"groupnorm 64 32x32", IMAGE(64, 32, 32), {GN(32)}, .batch = 32},
        {"add 64 32x32", IMAGE(64, 32, 32), {OP(MFL_OP_RELU), ADD(1, 0)}, .batch = 32},
        {"conv 1x1/2 64->128 32x32", IMAGE(64, 32, 32), {BARE(0, 128, 1, 2)}, .batch = 32},
        {"depthwise 96 16x16", IMAGE(96, 16, 16),
                {{.op = MFL_OP_CONV2D,
                        .out_channels = 96,
                        .kernel = {3, 3},
                        .padding = {1, 1},
                        .conv_groups = 96}},
                .batch = 32},
        {"dense 64x128->512", SEQUENCE(64, 128), {DENSE(512)}, .batch = 8},
        /* Products of char-gpt and vit-tiny, and the product of scores that a graph without attention would
         * have. */
        {"attention 80x128 4 heads", SEQUENCE(80, 384), {ATTEND(4, true)}, .batch = 10, .many = true},
        {"attention 65x192 3 heads", SEQUENCE(65, 576), {ATTEND(3, false)}, .batch = 10, .many = true},
        {"matmul 4x80x32 x 32x80", IMAGE(4, 80, 32),
                {TRANSPOSE(0, 2, 1), JOIN(MFL_OP_MATMUL, CONF_READS_INPUT, 1)}, .batch = 10, .many = true},
        {"matmul 3x65x64 x 64x65", IMAGE(3, 65, 64),
                {TRANSPOSE(0, 2, 1), JOIN(MFL_OP_MATMUL, CONF_READS_INPUT, 1)}, .batch = 10, .many = true},
        {"layernorm 64x128", SEQUENCE(64, 128), {LN}, .batch = 8},
        {"gelu 64x512", SEQUENCE(64, 512), {OP(MFL_OP_GELU)}, .batch = 8},
        {"lstm 80x8->256", SEQUENCE(80, 8), {RECURRENT(MFL_OP_LSTM, 256)}, .batch = 10},
        {"lstm 80x256->256", SEQUENCE(80, 256), {RECURRENT(MFL_OP_LSTM, 256)}, .batch = 10},
        {"lstm 80x64->64", SEQUENCE(80, 64), {RECURRENT(MFL_OP_LSTM, 64)}, .batch = 10},
        {"gru 80x256->256", SEQUENCE(80, 256), {RECURRENT(MFL_OP_GRU, 256)}, .batch = 10},
        {"resize nearest 16 32x32", IMAGE(16, 32, 32), {TWICE(0, MFL_MAP_NEAREST)}, .batch = 8},
        {"resize bilinear 16 32x32", IMAGE(16, 32, 32), {TWICE(0, MFL_MAP_BILINEAR)}, .batch = 8},
        {"pixel shuffle 64 32x32", IMAGE(64, 32, 32),
                {{.op = MFL_OP_MAP,
                        .shape = IMAGE(16, 64, 64),
                        .map = {.kind = MFL_MAP_VIEW,
                                .n_digits = 5,
                                .size = {16, 32, 2, 32, 2},
                                .stride = {4096, 32, 2048, 1, 1024}}}},
                .batch = 8},
        {"unet joint 32 32x32", IMAGE(3, 32, 32),
                {SAME(32, 3), RELU, MAX2, SAME(64, 3), RELU, TWICE(5, MFL_MAP_BILINEAR),
                        JOIN(MFL_OP_CONCAT, 2, 6), SAME(32, 3)},
                .batch = 8},
        {"unet up 32 32x32", IMAGE(3, 32, 32),
                {SAME(32, 3), RELU, MAX2, SAME(64, 3), RELU, TWICE(5, MFL_MAP_BILINEAR), SAME(32, 3)},
                .batch = 8},
        {"dropout 9216", VECTOR(9216), {{.op = MFL_OP_DROPOUT, .rate = 0.25f}}, .batch = 10},
};
const int mfl_conf_n_perf_cases = MFL_ARRAY_SIZE(mfl_conf_perf_cases);

static int build(const struct conf_case *kase, bool flatten, int classes, struct mfl_graph **ret_graph,
        struct mfl_error *err)
{
        struct mfl_layer layers[CONF_LAYERS_MAX + 2] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = kase->input}};
        int n = 1;
        for (int i = 0; i < CONF_LAYERS_MAX && kase->layers[i].op != MFL_OP_INPUT; i++, n++) {
                layers[n] = kase->layers[i];
                if (layers[n].input2 == CONF_READS_INPUT)
                        layers[n].input2 = 0;
                if (layers[n].input == CONF_READS_INPUT)
                        layers[n].input = 0;
                else if (!layers[n].input)
                        layers[n].input = n - 1;
        }
        if (flatten) {
                layers[n] = (struct mfl_layer){.op = MFL_OP_FLATTEN, .input = n - 1};
                n++;
        }
        return mfl_graph_build(kase->name, layers, n, classes, ret_graph, err);
}

/* Built twice: the output of the last layer gives the number of classes. */
struct mfl_graph *mfl_conf_graph_new(const struct conf_case *kase)
{
        struct mfl_error err;
        struct mfl_graph *graph = NULL;
        mfl_conf_must(build(kase, false, 0, &graph, &err), &err);
        struct mfl_shape out = graph->layers[graph->n_layers - 1].out;
        mfl_graph_free(graph);
        mfl_conf_must(
                build(kase, out.rank == 3,
                        (int)(out.rank == 3 ? mfl_shape_count(&out) : out.dim[out.rank - 1]), &graph, &err),
                &err);
        return graph;
}
