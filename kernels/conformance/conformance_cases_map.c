/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of sparse linear maps. Images of 5 channels with convolutions around them test the layouts of backends. */
#include "kernels/conformance/conformance_cases.h"

#define IN CONF_READS_INPUT
#define LIST(...)                                                                                            \
        {                                                                                                    \
                __VA_ARGS__                                                                                  \
        }
#define VIEW(n_digits_, size_, stride_, offset_, ...)                                                        \
        {                                                                                                    \
                .op = MFL_OP_MAP, .shape = __VA_ARGS__,                                                      \
                .map = {.kind = MFL_MAP_VIEW,                                                                \
                        .n_digits = n_digits_,                                                               \
                        .size = size_,                                                                       \
                        .stride = stride_,                                                                   \
                        .offset = offset_ }                                                                  \
        }
#define PAD(mode_, before_, after_)                                                                          \
        {                                                                                                    \
                .op = MFL_OP_MAP,                                                                            \
                .map = {.kind = MFL_MAP_PAD,                                                                 \
                        .mode = mode_,                                                                       \
                        .before = before_,                                                                   \
                        .after = after_,                                                                     \
                        .value = (mode_) == MFL_MAP_CONSTANT ? 0.75f : 0.0f }                                \
        }
#define RESIZE(mode_, h, w, corners)                                                                         \
        {                                                                                                    \
                .op = MFL_OP_MAP,                                                                            \
                .map = {.kind = MFL_MAP_RESIZE,                                                              \
                        .mode = mode_,                                                                       \
                        .to = {h, w},                                                                        \
                        .align_corners = corners }                                                           \
        }
#define SCALE(mode_, h, w)                                                                                   \
        {                                                                                                    \
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_RESIZE, .mode = mode_, .scale_factor = {h, w} }    \
        }
#define OVER(kind_, axes_)                                                                                   \
        {                                                                                                    \
                .op = MFL_OP_MAP, .map = {.kind = kind_, .axes = axes_ }                                     \
        }
#define INSIDE(k, s, p)                                                                                      \
        {                                                                                                    \
                .op = MFL_OP_MAP, .kernel = k, .stride = s, .padding = p,                                    \
                .map = {.kind = MFL_MAP_AVGPOOL2D }                                                          \
        }
#define ADAPTIVE(h, w)                                                                                       \
        {                                                                                                    \
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_ADAPTIVE_AVGPOOL2D, .to = {h, w} }                 \
        }

static const int32_t some[] = {3, 3, 11, 0, 7, 3, 12};

const struct conf_case mfl_conf_map_cases[] = {
        /* Views. */
        {"view pixel shuffle", IMAGE(12, 3, 5),
                {VIEW(5, LIST(3, 3, 2, 5, 2), LIST(60, 5, 30, 1, 15), 0, IMAGE(3, 6, 10))}, .exact = true},
        {"view pixel shuffle of a conv", IMAGE(3, 4, 5),
                {SAME(12, 3), VIEW(5, LIST(3, 4, 2, 5, 2), LIST(80, 5, 40, 1, 20), 0, IMAGE(3, 8, 10)),
                        SAME(4, 3)},
                .batch = 3},
        {"view pixel unshuffle", IMAGE(2, 6, 4),
                {VIEW(5, LIST(2, 2, 2, 3, 2), LIST(24, 4, 1, 8, 2), 0, IMAGE(8, 3, 2))}, .batch = 3,
                .exact = true},
        {"view channel shuffle", IMAGE(6, 3, 2), {VIEW(3, LIST(3, 2, 6), LIST(6, 18, 1), 0, IMAGE(6, 3, 2))},
                .exact = true},
        {"view windows", SEQUENCE(36, 5),
                {VIEW(5, LIST(2, 2, 3, 3, 5), LIST(90, 15, 30, 5, 1), 0, IMAGE(4, 9, 5))}, .batch = 2,
                .exact = true},
        {"view expand", SEQUENCE(4, 6), {VIEW(4, LIST(2, 3, 4, 3), LIST(3, 0, 6, 1), 0, IMAGE(6, 4, 3))}},
        {"view flip", IMAGE(3, 4, 5), {VIEW(3, LIST(3, 4, 5), LIST(20, -5, -1), 19, IMAGE(3, 4, 5))},
                .batch = 2, .exact = true},
        {"view roll", IMAGE(3, 4, 5),
                {{.op = MFL_OP_MAP,
                        .shape = IMAGE(3, 4, 5),
                        .map = {.kind = MFL_MAP_VIEW,
                                .n_digits = 3,
                                .size = {3, 4, 5},
                                .stride = {20, 5, 1},
                                .shift = {0, 1, -2}}}},
                .batch = 2, .exact = true},
        {"view of a vector", VECTOR(13), {VIEW(2, LIST(4, 3), LIST(3, 1), 1, SEQUENCE(4, 3))}, .exact = true},
        {"view of a weight", VECTOR(9),
                {WEIGHT(SEQUENCE(5, 3)), VIEW(3, LIST(3, 3, 3), LIST(3, 3, 1), 0, IMAGE(3, 3, 3)),
                        FROM(2, MFL_OP_TANH), RESHAPE(VECTOR(27)), DENSE(9), ADD(IN, 5)},
                .batch = 2},
        {"gather", VECTOR(13),
                {{.op = MFL_OP_MAP,
                        .shape = VECTOR(7),
                        .map = {.kind = MFL_MAP_GATHER, .index = some, .n_index = 7}}},
                .batch = 3},
        {"gather from a flattened conv", IMAGE(2, 3, 4),
                {SAME(3, 3), OP(MFL_OP_FLATTEN),
                        {.op = MFL_OP_MAP,
                                .shape = VECTOR(7),
                                .map = {.kind = MFL_MAP_GATHER, .index = some, .n_index = 7}}},
                .batch = 3},
        /* Padding. */
        {"pad constant", IMAGE(5, 4, 3), {PAD(MFL_MAP_CONSTANT, LIST(0, 1, 2), LIST(0, 3, 0))}},
        {"pad constant of a conv", IMAGE(3, 4, 3),
                {SAME(5, 3), PAD(MFL_MAP_CONSTANT, LIST(0, 1, 2), LIST(0, 3, 0)), SAME(4, 3)}, .batch = 3},
        {"pad channels", IMAGE(3, 4, 3),
                {SAME(5, 3), PAD(MFL_MAP_CONSTANT, LIST(1, 0, 0), LIST(2, 0, 1)), SAME(4, 3)}, .batch = 3},
        {"pad reflect", IMAGE(5, 4, 3), {PAD(MFL_MAP_REFLECT, LIST(0, 3, 2), LIST(0, 1, 2))}, .batch = 3},
        {"pad replicate", SEQUENCE(4, 5), {PAD(MFL_MAP_REPLICATE, LIST(2, 0), LIST(1, 3))}, .batch = 3},
        {"pad circular", VECTOR(7), {PAD(MFL_MAP_CIRCULAR, LIST(7), LIST(3))}, .batch = 3},
        {"pad reflect of a conv", IMAGE(3, 5, 4),
                {SAME(8, 3), PAD(MFL_MAP_REFLECT, LIST(0, 1, 1), LIST(0, 1, 1)), CONV_PLAIN(8, 3)},
                .batch = 3},
        /* Interpolation. */
        {"resize nearest", IMAGE(5, 3, 4), {RESIZE(MFL_MAP_NEAREST, 6, 8, false)}},
        {"resize nearest of a conv", IMAGE(3, 3, 4), {SAME(20, 3), SCALE(MFL_MAP_NEAREST, 2, 2), SAME(5, 3)},
                .batch = 3},
        {"resize nearest odd", IMAGE(2, 5, 7), {RESIZE(MFL_MAP_NEAREST, 3, 11, false)}, .batch = 3},
        {"resize nearest-exact", IMAGE(2, 5, 7), {RESIZE(MFL_MAP_NEAREST_EXACT, 3, 11, false)}, .batch = 3},
        {"resize bilinear", IMAGE(3, 4, 5), {RESIZE(MFL_MAP_BILINEAR, 7, 3, false)}, .batch = 3},
        {"resize bilinear by factors", IMAGE(3, 4, 5), {SCALE(MFL_MAP_BILINEAR, 1.7, 0.8)}, .batch = 3},
        {"resize bilinear corners", IMAGE(3, 4, 5), {RESIZE(MFL_MAP_BILINEAR, 7, 9, true)}, .batch = 3},
        {"resize bilinear of a conv", IMAGE(3, 4, 5),
                {SAME(20, 3), RESIZE(MFL_MAP_BILINEAR, 8, 10, true), RELU, SAME(4, 1)}, .batch = 3},
        {"resize bicubic", IMAGE(2, 4, 5), {RESIZE(MFL_MAP_BICUBIC, 7, 3, false)}, .batch = 3},
        {"resize of one row", IMAGE(4, 1, 9), {RESIZE(MFL_MAP_BILINEAR, 1, 14, false)}, .batch = 3},
        {"resize to one pixel", IMAGE(4, 3, 3),
                {SAME(16, 3), RESIZE(MFL_MAP_BILINEAR, 1, 1, true), SAME(3, 1)}, .batch = 3},
        {"resize from one pixel", IMAGE(4, 3, 3),
                {SAME(16, 3), OP(MFL_OP_GLOBAL_AVGPOOL2D), RESIZE(MFL_MAP_BILINEAR, 3, 3, false), SAME(3, 1)},
                .batch = 3},
        {"unet joint", IMAGE(3, 6, 6),
                {SAME(8, 3), RELU, MAX2, SAME(8, 3), SCALE(MFL_MAP_BILINEAR, 2, 2), JOIN(MFL_OP_CONCAT, 2, 5),
                        SAME(4, 3)},
                .batch = 3},
        {"unet joint of blocks", IMAGE(3, 6, 6),
                {SAME(32, 3), RELU, MAX2, SAME(20, 3), SCALE(MFL_MAP_BILINEAR, 2, 2),
                        JOIN(MFL_OP_CONCAT, 2, 5), SAME(16, 3)},
                .batch = 3},
        /* Sums. */
        {"sum of channels", IMAGE(5, 4, 3), {OVER(MFL_MAP_SUM, 1)}, .batch = 3},
        {"sum of planes", IMAGE(5, 4, 3), {SAME(6, 3), OVER(MFL_MAP_SUM, 6)}, .batch = 3},
        {"sum of all", SEQUENCE(5, 7), {OVER(MFL_MAP_SUM, 3)}, .batch = 3},
        {"mean of planes and channels", IMAGE(5, 4, 3), {OVER(MFL_MAP_MEAN, 5)}, .batch = 3},
        {"cumsum", SEQUENCE(9, 4), {OVER(MFL_MAP_CUMSUM, 1)}, .batch = 3},
        {"cumsum of features", SEQUENCE(4, 9), {OVER(MFL_MAP_CUMSUM, 2)}, .batch = 3},
        /* Pools. */
        {"avgpool inside", IMAGE(5, 7, 6), {INSIDE(LIST(3, 3), LIST(2, 2), LIST(1, 1))}, .batch = 3},
        {"avgpool inside of a conv", IMAGE(3, 7, 6),
                {SAME(9, 3), INSIDE(LIST(3, 2), LIST(1, 2), LIST(1, 0)), SAME(4, 3)}, .batch = 3},
        {"adaptive avgpool", IMAGE(5, 7, 6), {ADAPTIVE(3, 4)}, .batch = 3},
        {"adaptive avgpool of a conv", IMAGE(3, 7, 6), {SAME(20, 3), ADAPTIVE(2, 5), DENSE(4)}, .batch = 3},
        {"adaptive avgpool to more", IMAGE(2, 3, 2), {ADAPTIVE(5, 3)}, .batch = 3},
};
const int mfl_conf_n_map_cases = MFL_ARRAY_SIZE(mfl_conf_map_cases);
