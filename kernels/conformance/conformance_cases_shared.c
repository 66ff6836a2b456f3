/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the conformance program: layers that use the tensors of an earlier layer. */
#include "kernels/conformance/conformance_cases.h"

#define SIZE(n)                                                                                              \
        {                                                                                                    \
                1,                                                                                           \
                {                                                                                            \
                        n                                                                                    \
                }                                                                                            \
        }
#define SIZE2(a, b)                                                                                          \
        {                                                                                                    \
                2,                                                                                           \
                {                                                                                            \
                        a, b                                                                                 \
                }                                                                                            \
        }
#define SIZE3(a, b, c)                                                                                       \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        a, b, c                                                                              \
                }                                                                                            \
        }
/* The operator of layer `with` again. */
#define AGAIN(with, op_, ...)                                                                                \
        {                                                                                                    \
                .op = op_, .shares = with, __VA_ARGS__                                                       \
        }
#define DENSE_AGAIN(with, o) AGAIN(with, MFL_OP_DENSE, .out_channels = o, .bias = true)
#define SAME_AGAIN(with, o, k)                                                                               \
        AGAIN(with, MFL_OP_CONV2D, .out_channels = o, .bias = true, .kernel = {k, k},                        \
                .padding = {k / 2, k / 2})
#define WITH_WEIGHT(with, ...)                                                                               \
        {                                                                                                    \
                .shares = with, .sharing = MFL_SHARES_WEIGHT, __VA_ARGS__                                    \
        }
#define TURNED(with, o, ...)                                                                                 \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .out_channels = o, .shares = with, .sharing = MFL_SHARES_TRANSPOSED,     \
                __VA_ARGS__                                                                                  \
        }

const struct conf_case mfl_conf_shared_cases[] = {
        {"dense twice", VECTOR(19), {DENSE(19), OP(MFL_OP_TANH), DENSE_AGAIN(1, 19)}},
        {"dense four times", SEQUENCE(3, 12),
                {DENSE(12), OP(MFL_OP_TANH), DENSE_AGAIN(1, 12), OP(MFL_OP_SILU), DENSE_AGAIN(3, 12),
                        OP(MFL_OP_TANH), DENSE_AGAIN(1, 12)},
                .batch = 3},
        {"dense twice, weight only", VECTOR(11),
                {DENSE(11), OP(MFL_OP_TANH),
                        WITH_WEIGHT(1, .op = MFL_OP_DENSE, .out_channels = 11, .bias = true)},
                .batch = 7},
        {"dense behind an image and a vector", IMAGE(2, 2, 3),
                {SAME(2, 3), DENSE(12), OP(MFL_OP_TANH), DENSE_AGAIN(2, 12)}, .batch = 3},
        {"dense transposed", VECTOR(19), {DENSE(7), OP(MFL_OP_TANH), TURNED(1, 19, .bias = true)}},
        {"dense of sequences transposed", SEQUENCE(5, 12),
                {DENSE(7), OP(MFL_OP_TANH), TURNED(1, 12), OP(MFL_OP_TANH), DENSE_AGAIN(1, 7),
                        TURNED(5, 12, .bias = true)},
                .batch = 3},
        {"dense behind an image transposed", IMAGE(4, 3, 5),
                {SAME(4, 3), DENSE(7), OP(MFL_OP_TANH), TURNED(2, 60, .bias = true)}, .batch = 3},
        {"lora twice", VECTOR(10),
                {{.op = MFL_OP_DENSE, .out_channels = 10, .bias = true, .lora_rank = 2}, OP(MFL_OP_TANH),
                        AGAIN(1, MFL_OP_DENSE, .out_channels = 10, .bias = true, .lora_rank = 2)},
                .batch = 7},
        {"lora on a tied head", SIZE(6),
                {{.op = MFL_OP_EMBEDDING, .vocabulary = 11, .out_channels = 8, .frozen = true},
                        OP(MFL_OP_TANH),
                        WITH_WEIGHT(1, .op = MFL_OP_DENSE, .out_channels = 11, .lora_rank = 3)},
                .batch = 3},
        {"embedding and head", SIZE(6),
                {EMBED(11, 8), OP(MFL_OP_TANH), WITH_WEIGHT(1, .op = MFL_OP_DENSE, .out_channels = 11)},
                .batch = 7},
        {"embedding, embedding and head", SIZE(6),
                {EMBED(11, 8),
                        AGAIN(1, MFL_OP_EMBEDDING, .input = CONF_READS_INPUT, .vocabulary = 11,
                                .out_channels = 8),
                        JOIN(MFL_OP_MULTIPLY, 1, 2),
                        WITH_WEIGHT(1, .op = MFL_OP_DENSE, .out_channels = 11, .bias = true)},
                .batch = 3},
        {"embedding transposed", SIZE(6),
                {EMBED(9, 13), OP(MFL_OP_TANH), DENSE(9), OP(MFL_OP_TANH), TURNED(1, 13)}, .batch = 3},
        {"weight and dense", SEQUENCE(5, 6),
                {DENSE(5), OP(MFL_OP_TANH), WITH_WEIGHT(1, .op = MFL_OP_WEIGHT, .shape = SIZE2(5, 6)),
                        JOIN(MFL_OP_MATMUL, 2, 3)},
                .batch = 3},
        {"dense and its weight as a value", VECTOR(6),
                {DENSE(6), OP(MFL_OP_TANH), DENSE(36), WITH_WEIGHT(1, .op = MFL_OP_WEIGHT, .shape = SIZE(36)),
                        JOIN(MFL_OP_MULTIPLY, 3, 4)},
                .batch = 3},
        {"conv and its weight as a value", IMAGE(2, 5, 5),
                {SAME(3, 3), DENSE(54), WITH_WEIGHT(1, .op = MFL_OP_WEIGHT, .shape = SIZE(54)),
                        JOIN(MFL_OP_MULTIPLY, 2, 3)},
                .batch = 3},
        {"a value and dense transposed", IMAGE(1, 5, 6),
                {{.op = MFL_OP_WEIGHT, .shape = SIZE3(1, 5, 6)}, JOIN(MFL_OP_MULTIPLY, CONF_READS_INPUT, 1),
                        DENSE(5), OP(MFL_OP_TANH), TURNED(1, 6, .bias = true)},
                .batch = 3},
        {"conv twice", IMAGE(16, 6, 5), {SAME(16, 3), OP(MFL_OP_TANH), SAME_AGAIN(1, 16, 3)}},
        {"conv at two sizes", IMAGE(3, 8, 9), {SAME(3, 3), OP(MFL_OP_TANH), AVG2, SAME_AGAIN(1, 3, 3)},
                .batch = 7},
        {"conv on a small and a wide layer", IMAGE(32, 6, 6),
                {SAME(32, 3), RELU, MAX2, SAME_AGAIN(1, 32, 3), RELU, SAME_AGAIN(1, 32, 3)}, .batch = 7},
        {"depthwise twice", IMAGE(19, 7, 6),
                {{.op = MFL_OP_CONV2D,
                         .out_channels = 19,
                         .kernel = {3, 3},
                         .padding = {1, 1},
                         .conv_groups = 19},
                        OP(MFL_OP_TANH),
                        AGAIN(1, MFL_OP_CONV2D, .out_channels = 19, .kernel = {3, 3}, .padding = {1, 1},
                                .conv_groups = 19)},
                .batch = 3},
        {"conv and its convtranspose", IMAGE(4, 7, 6),
                {{.op = MFL_OP_CONV2D,
                         .out_channels = 9,
                         .bias = true,
                         .kernel = {3, 3},
                         .stride = {2, 2},
                         .padding = {1, 1}},
                        OP(MFL_OP_TANH),
                        WITH_WEIGHT(1, .op = MFL_OP_CONVTRANSPOSE2D, .out_channels = 4, .bias = true,
                                .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1})},
                .batch = 3},
        {"batchnorm twice", IMAGE(5, 4, 5),
                {SAME(5, 3), BN, OP(MFL_OP_TANH), SAME(5, 3), AGAIN(2, MFL_OP_BATCHNORM, .momentum = 0.3f)},
                .batch = 7},
        {"batchnorm twice, blocked and plain", IMAGE(3, 6, 6),
                {SAME(16, 3), BN, OP(MFL_OP_TANH), DENSE(16), AGAIN(2, MFL_OP_BATCHNORM, .eps = 1e-3f)},
                .batch = 7},
        {"batchnorm twice in inference", IMAGE(5, 4, 5), {BN, OP(MFL_OP_TANH), AGAIN(1, MFL_OP_BATCHNORM)},
                .batch = 7, .inference = true},
        {"groupnorm twice", IMAGE(8, 5, 5),
                {SAME(8, 3), GN(4), OP(MFL_OP_TANH), AGAIN(2, MFL_OP_GROUPNORM, .norm_groups = 2)},
                .batch = 7},
        {"layernorm twice", SEQUENCE(5, 12),
                {LN, DENSE(12), OP(MFL_OP_TANH), AGAIN(1, MFL_OP_LAYERNORM, .bias = true)}, .batch = 3},
        {"rmsnorm has layernorm's weight", SEQUENCE(5, 12),
                {LN, DENSE(12), OP(MFL_OP_TANH), WITH_WEIGHT(1, .op = MFL_OP_RMSNORM)}, .batch = 3},
        {"lstm twice", SEQUENCE(5, 7),
                {RECURRENT(MFL_OP_LSTM, 7), AGAIN(1, MFL_OP_LSTM, .out_channels = 7, .bias = true)},
                .batch = 3},
        {"gru twice", SEQUENCE(4, 6),
                {RECURRENT(MFL_OP_GRU, 6), DENSE(6), AGAIN(1, MFL_OP_GRU, .out_channels = 6, .bias = true)},
                .batch = 3},
        {"shared and frozen", VECTOR(9),
                {DENSE(9), OP(MFL_OP_TANH),
                        {.op = MFL_OP_DENSE, .out_channels = 9, .bias = true, .frozen = true},
                        OP(MFL_OP_TANH),
                        AGAIN(3, MFL_OP_DENSE, .out_channels = 9, .bias = true, .frozen = true)},
                .batch = 7},
        {"weight twice", SEQUENCE(4, 5),
                {WEIGHT(SIZE2(4, 5)), JOIN(MFL_OP_MULTIPLY, CONF_READS_INPUT, 1), OP(MFL_OP_TANH),
                        WITH_WEIGHT(1, .op = MFL_OP_WEIGHT, .shape = SIZE2(4, 5)), JOIN(MFL_OP_ADD, 3, 4)},
                .batch = 3},
};
const int mfl_conf_n_shared_cases = MFL_ARRAY_SIZE(mfl_conf_shared_cases);
