/* SPDX-License-Identifier: Apache-2.0 */
/* The operators that a backend in C has a body for: X(symbol of enum mfl_op, name). Functions of one variable are not here: they share
 * one body (common/model/unary.def). */
#ifndef MFL_KERNELS_OPERATORS_H
#define MFL_KERNELS_OPERATORS_H

/* clang-format off: one for each line */
#define MFL_OPERATORS(X)                                                                                     \
        X(CONV2D, conv2d)                                                                                    \
        X(DENSE, dense)                                                                                      \
        X(MAXPOOL2D, maxpool2d)                                                                              \
        X(AVGPOOL2D, avgpool2d)                                                                              \
        X(DROPOUT, dropout)                                                                                  \
        X(FLATTEN, flatten)                                                                                  \
        X(ADD, add)                                                                                          \
        X(GLOBAL_AVGPOOL2D, global_avgpool2d)                                                                \
        X(BATCHNORM, batchnorm)                                                                              \
        X(GROUPNORM, groupnorm)                                                                              \
        X(CONVTRANSPOSE2D, convtranspose2d)                                                                  \
        X(GLOBAL_MAXPOOL2D, global_maxpool2d)                                                                \
        X(MULTIPLY, multiply)                                                                                \
        X(CONCAT, concat)                                                                                    \
        X(RESHAPE, reshape)                                                                                  \
        X(TRANSPOSE, transpose)                                                                              \
        X(SLICE, slice)                                                                                      \
        X(MEAN, mean)                                                                                        \
        X(WEIGHT, weight)                                                                                    \
        X(EMBEDDING, embedding)                                                                              \
        X(LAYERNORM, layernorm)                                                                              \
        X(RMSNORM, rmsnorm)                                                                                  \
        X(SOFTMAX, softmax)                                                                                  \
        X(MATMUL, matmul)                                                                                    \
        X(ATTENTION, attention)                                                                              \
        X(LSTM, lstm)                                                                                        \
        X(GRU, gru)                                                                                          \
        X(RNN, rnn)                                                                                          \
        X(PADDING_MASK, padding_mask)                                                                        \
        X(MAP, map)                                                                                          \
        X(GATE, gate)
/* clang-format on */

#endif
