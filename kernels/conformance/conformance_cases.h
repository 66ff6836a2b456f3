/* SPDX-License-Identifier: Apache-2.0 */
/* Short words for the tables of cases of the conformance program. */
#ifndef MFL_KERNELS_CONFORMANCE_CONFORMANCE_CASES_H
#define MFL_KERNELS_CONFORMANCE_CONFORMANCE_CASES_H

#include "kernels/conformance/conformance.h"

#define IMAGE(c, h, w)                                                                                       \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        c, h, w                                                                              \
                }                                                                                            \
        }
#define VECTOR(n)                                                                                            \
        {                                                                                                    \
                1,                                                                                           \
                {                                                                                            \
                        n                                                                                    \
                }                                                                                            \
        }
#define PAIR(a, b)                                                                                           \
        {                                                                                                    \
                a, b                                                                                         \
        }
#define CONV(o, k, s, p, d)                                                                                  \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .out_channels = o, .bias = true, .kernel = k, .stride = s,              \
                .padding = p, .dilation = d                                                                  \
        }
#define CONV_PLAIN(o, k)                                                                                     \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .out_channels = o, .kernel = { k, k }                                   \
        }
#define SAME(o, k)                                                                                           \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .out_channels = o, .bias = true, .kernel = {k, k}, .padding = {         \
                        k / 2,                                                                               \
                        k / 2                                                                                \
                }                                                                                            \
        }
#define DENSE(o)                                                                                             \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .out_channels = o, .bias = true                                          \
        }
#define POOL(kind, k, s, p)                                                                                  \
        {                                                                                                    \
                .op = kind, .kernel = k, .stride = s, .padding = p                                           \
        }
#define POOL_CEIL(k, s, p)                                                                                   \
        .op = MFL_OP_MAXPOOL2D, .kernel = {k, k}, .stride = {s, s}, .padding = {p, p}, .ceil_mode = true
#define MAX2 POOL(MFL_OP_MAXPOOL2D, PAIR(2, 2), PAIR(2, 2), PAIR(0, 0))
#define AVG2 POOL(MFL_OP_AVGPOOL2D, PAIR(2, 2), PAIR(2, 2), PAIR(0, 0))
#define BN                                                                                                   \
        {                                                                                                    \
                .op = MFL_OP_BATCHNORM                                                                       \
        }
#define GN(g)                                                                                                \
        {                                                                                                    \
                .op = MFL_OP_GROUPNORM, .norm_groups = g                                                     \
        }
#define ADD(a, b)                                                                                            \
        {                                                                                                    \
                .op = MFL_OP_ADD, .input = a, .input2 = b                                                    \
        }
#define FROM(i, op_)                                                                                         \
        {                                                                                                    \
                .op = op_, .input = i                                                                        \
        }
#define BARE(from, o, k, s)                                                                                  \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .input = from, .out_channels = o, .kernel = {k, k}, .stride = {s, s},   \
                .padding = {                                                                                 \
                        k / 2,                                                                               \
                        k / 2                                                                                \
                }                                                                                            \
        }
#define RELU OP(MFL_OP_RELU)
#define OP(o)                                                                                                \
        {                                                                                                    \
                .op = o                                                                                      \
        }

#define K1 PAIR(1, 1)
#define P0 PAIR(0, 0)
#define SEQUENCE(t, f)                                                                                       \
        {                                                                                                    \
                2,                                                                                           \
                {                                                                                            \
                        t, f                                                                                 \
                }                                                                                            \
        }
#define WEIGHT(...)                                                                                          \
        {                                                                                                    \
                .op = MFL_OP_WEIGHT, .shape = __VA_ARGS__                                                    \
        }
#define SLICE(from, axis_, start_, end_)                                                                     \
        {                                                                                                    \
                .op = MFL_OP_SLICE, .input = from, .axis = axis_, .start = start_, .end = end_               \
        }
#define JOIN(op_, a, b)                                                                                      \
        {                                                                                                    \
                .op = op_, .input = a, .input2 = b                                                           \
        }
#define RESHAPE(...)                                                                                         \
        {                                                                                                    \
                .op = MFL_OP_RESHAPE, .shape = __VA_ARGS__                                                   \
        }
#define TRANSPOSE(...)                                                                                       \
        {                                                                                                    \
                .op = MFL_OP_TRANSPOSE, .order = { __VA_ARGS__ }                                             \
        }
#define LN                                                                                                   \
        {                                                                                                    \
                .op = MFL_OP_LAYERNORM, .bias = true                                                         \
        }
#define EMBED(v, f)                                                                                          \
        {                                                                                                    \
                .op = MFL_OP_EMBEDDING, .vocabulary = v, .out_channels = f                                   \
        }
#define LAST_CELL(h)                                                                                         \
        {                                                                                                    \
                .op = MFL_OP_LSTM, .out_channels = h, .bias = true, .last_cell = true                        \
        }
#define RECURRENT(op_, h)                                                                                    \
        {                                                                                                    \
                .op = op_, .out_channels = h, .bias = true                                                   \
        }
#define ATTEND(heads_, causal_)                                                                              \
        {                                                                                                    \
                .op = MFL_OP_ATTENTION, .heads = heads_, .causal = causal_                                   \
        }

#endif
