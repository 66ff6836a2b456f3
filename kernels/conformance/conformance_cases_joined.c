/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of what the readers of models make of several layers: steps and choices, sorting, products, powers with learned exponents,
 * one-hot tokens, and convolutions of volumes. */
#include "common/model/unary.h"
#include "kernels/conformance/conformance_cases.h"

#define IN CONF_READS_INPUT
#define MAPPED(from, map_, ...)                                                                              \
        {                                                                                                    \
                .op = MFL_OP_MAP, .input = from, .shape = __VA_ARGS__, .map = map_                           \
        }
#define TAKEN(n, index_)                                                                                     \
        {                                                                                                    \
                .kind = MFL_MAP_GATHER, .index = index_, .n_index = n                                        \
        }
#define CLAMPED(from, low, high)                                                                             \
        {                                                                                                    \
                .op = MFL_OP_HARDTANH, .input = from, .alpha = low, .beta = high                             \
        }

/* The larger and the smaller of neighbours, as one step of a sorting network has them. */
static const int32_t swapped[] = {1, 0, 3, 2, 5, 4, 7, 6};
/* The windows of a convolution of {2, 3, 3} by 2 x 2 x 2, in one dimension of 18. */
static const int32_t windows[] = {0, 1, 3, 4, 9, 10, 12, 13, 1, 2, 4, 5, 10, 11, 13, 14, 3, 4, 6, 7, 12, 13,
        15, 16, 4, 5, 7, 8, 13, 14, 16, 17};

const struct conf_case mfl_conf_joined_cases[] = {
        /* Steps behind parameters: only what goes around them is trained. */
        {"sign beside a dense layer", VECTOR(9),
                {DENSE(8), OP(MFL_OP_SIGN), JOIN(MFL_OP_MULTIPLY, 1, 2), DENSE(4)}, .batch = 7},
        {"gate of a dense layer", VECTOR(9), {DENSE(8), OP(MFL_OP_SIGN), JOIN(MFL_OP_GATE, 1, 2), DENSE(4)},
                .batch = 7},
        {"gate of an image", IMAGE(5, 4, 3), {SAME(6, 3), OP(MFL_OP_SIGN), JOIN(MFL_OP_GATE, 1, 2), DENSE(4)},
                .batch = 3},
        {"gate by a repeated flag", SEQUENCE(5, 8),
                {DENSE(8), SLICE(1, 1, 3, 4), OP(MFL_OP_SIGN), JOIN(MFL_OP_GATE, 1, 3), DENSE(4)},
                .batch = 3},
        {"round of a dense layer", VECTOR(9), {DENSE(8), OP(MFL_OP_ROUND), JOIN(MFL_OP_ADD, 2, 1), DENSE(4)},
                .batch = 7},
        {"floor and ceil", SEQUENCE(3, 8),
                {DENSE(8), OP(MFL_OP_FLOOR), FROM(1, MFL_OP_NEG), OP(MFL_OP_FLOOR), OP(MFL_OP_NEG), ADD(2, 5),
                        JOIN(MFL_OP_MULTIPLY, 1, 6), DENSE(4)},
                .batch = 3},
        {"detach of an image", IMAGE(5, 4, 3),
                {SAME(6, 3), OP(MFL_OP_DETACH), JOIN(MFL_OP_MULTIPLY, 1, 2), DENSE(4)}, .batch = 3},
        {"straight through", VECTOR(9),
                {DENSE(8), OP(MFL_OP_SIGN), FROM(1, MFL_OP_NEG), ADD(2, 3), OP(MFL_OP_DETACH), ADD(1, 5),
                        DENSE(4)},
                .batch = 7},
        /* where(x > c, a, b): a flag, and its opposite. */
        {"choice", VECTOR(9),
                {DENSE(8), OP(MFL_OP_SIGN), OP(MFL_OP_RELU), DENSE(8), JOIN(MFL_OP_MULTIPLY, 3, 4),
                        FROM(3, MFL_OP_NEG), JOIN(MFL_OP_MULTIPLY, 6, 1), ADD(5, 7), DENSE(4)},
                .batch = 7},
        /* max(a, b) = b + relu(a - b), and the smaller one, of neighbours. */
        {"sort of neighbours", VECTOR(9),
                {DENSE(8), MAPPED(1, TAKEN(8, swapped), VECTOR(8)), FROM(2, MFL_OP_NEG), ADD(1, 3),
                        OP(MFL_OP_RELU), ADD(5, 2), FROM(5, MFL_OP_NEG), ADD(7, 1),
                        JOIN(MFL_OP_MULTIPLY, 6, 8), DENSE(4)},
                .batch = 7},
        /* A product of neighbours, as prod() makes by halves. */
        {"product of slices", SEQUENCE(4, 6),
                {DENSE(6), SLICE(1, 0, 0, 2), SLICE(1, 0, 2, 4), JOIN(MFL_OP_MULTIPLY, 2, 3),
                        SLICE(4, 0, 0, 1), SLICE(4, 0, 1, 2), JOIN(MFL_OP_MULTIPLY, 5, 6), RESHAPE(VECTOR(6)),
                        DENSE(3)},
                .batch = 3},
        /* x^p = exp(p log(x)), with p a parameter. */
        {"learned exponents", SEQUENCE(3, 8),
                {DENSE(8), CLAMPED(1, 0.25f, 1e38f), OP(MFL_OP_LOG), WEIGHT(SEQUENCE(1, 8)),
                        JOIN(MFL_OP_MULTIPLY, 3, 4), OP(MFL_OP_EXP), DENSE(4)},
                .batch = 3, .only_fp32 = true},
        /* one_hot of tokens is an embedding of ones that is not trained. */
        {"one-hot tokens", VECTOR(5),
                {{.op = MFL_OP_EMBEDDING, .vocabulary = 7, .out_channels = 7, .frozen = true}, DENSE(6),
                        OP(MFL_OP_TANH), {.op = MFL_OP_MEAN, .axis = 0}, DENSE(3)},
                .batch = 3},
        /* A convolution of a volume as a product over its windows; and one in groups, with weights as a tensor. */
        {"conv of a volume", VECTOR(18),
                {MAPPED(IN, TAKEN(32, windows), VECTOR(32)), RESHAPE(SEQUENCE(4, 8)), DENSE(5),
                        OP(MFL_OP_RELU), DENSE(3)},
                .batch = 3},
        {"conv of a volume in groups", VECTOR(18),
                {MAPPED(IN, TAKEN(32, windows), VECTOR(32)), RESHAPE(IMAGE(2, 2, 8)), WEIGHT(IMAGE(2, 8, 3)),
                        JOIN(MFL_OP_MATMUL, 2, 3), OP(MFL_OP_RELU), DENSE(3)},
                .batch = 3},
        {"transposed conv of a volume", SEQUENCE(4, 6),
                {DENSE(8), RESHAPE(IMAGE(2, 2, 8)), TRANSPOSE(0, 2, 1), OP(MFL_OP_RELU), DENSE(3)},
                .batch = 3},
};
const int mfl_conf_n_joined_cases = MFL_ARRAY_SIZE(mfl_conf_joined_cases);
