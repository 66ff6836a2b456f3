/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps: one operator, MFL_OP_MAP, for everything that copies, repeats or averages elements by a fixed
 * table.
 *
 *     y[o] = sum over k of weight[o, k] * x[index[o, k]], or `fill` where o has no terms
 *
 * A layer only describes its map (struct mfl_map_spec). Whoever computes it builds the table with mfl_map_new, once for
 * each network. Backward uses the transposed table: each dx[i] is a sum over outputs in ascending order, so no two
 * threads add to the same number and the result does not depend on their timing.
 *
 * The kinds, as PyTorch defines them:
 *   view                as_strided: output element e is split into digits over `size` (the last varies fastest) and
 *                       reads x[offset + sum of ((digit - shift) mod size) * stride]. A stride of 0 repeats (expand),
 *                       a negative one reverses (flip), a shift rolls. Pixel shuffle and unshuffle, channel shuffle,
 *                       windows and their inverse are views.
 *   gather              output element e reads x[index[e]]
 *   pad                 nn.functional.pad
 *   resize              nn.functional.interpolate, without antialias
 *   sum, mean, cumsum   over dimensions of the sample
 *   avgpool2d           with count_include_pad=False
 *   adaptive_avgpool2d  nn.AdaptiveAvgPool2d
 *
 * Threads: pure functions; a map is immutable once built.
 */
#ifndef MFL_COMMON_MODEL_GRAPH_MAP_H
#define MFL_COMMON_MODEL_GRAPH_MAP_H

#include "common/base/base.h"

#define MFL_MAP_DIGITS_MAX 8
#define MFL_MAP_TERMS_MAX ((int64_t)1 << 26) /* of one table */
#define MFL_MAP_GATHER_MAX 65536             /* indices in a description */

enum mfl_map_kind {
        MFL_MAP_VIEW,
        MFL_MAP_GATHER,
        MFL_MAP_PAD,
        MFL_MAP_RESIZE,
        MFL_MAP_SUM,
        MFL_MAP_MEAN,
        MFL_MAP_CUMSUM,
        MFL_MAP_AVGPOOL2D,
        MFL_MAP_ADAPTIVE_AVGPOOL2D,
        MFL_MAP_COUNT_
};
const char *mfl_map_name(enum mfl_map_kind kind); /* as in job files: "view", "pad", ... */

enum mfl_map_mode {
        MFL_MAP_CONSTANT, /* pad */
        MFL_MAP_REFLECT,
        MFL_MAP_REPLICATE,
        MFL_MAP_CIRCULAR,
        MFL_MAP_NEAREST, /* resize */
        MFL_MAP_NEAREST_EXACT,
        MFL_MAP_BILINEAR,
        MFL_MAP_BICUBIC,
};

struct mfl_map_spec {
        enum mfl_map_kind kind;
        int n_digits; /* view */
        int64_t size[MFL_MAP_DIGITS_MAX], stride[MFL_MAP_DIGITS_MAX], shift[MFL_MAP_DIGITS_MAX], offset;
        const int32_t *index; /* gather: n_index elements of the input. A graph keeps its own copy */
        int n_index;
        int before[3],
                after[3]; /* pad: elements added to each dimension of the sample, at its start and end */
        float value;      /* pad: of mode constant */
        enum mfl_map_mode mode; /* pad, resize */
        int to[2];              /* resize, adaptive_avgpool2d: rows and columns; 0: by scale_factor */
        double scale_factor[2]; /* resize: gives the coordinates too, as in PyTorch; 0: sizes give them */
        bool align_corners;     /* resize: bilinear, bicubic */
        unsigned axes;          /* sum, mean, cumsum: bit d for dimension d of the sample */
        bool keepdim;           /* sum, mean */
};

/* Row r is the sum of terms [first[r], first[r + 1]). first NULL: each row has the one term r. */
struct mfl_map_rows {
        int64_t n, n_terms;
        const int32_t *first, *index;
        const float *weight; /* NULL: all 1 */
};

/* y = f(x) as `outer` blocks, each a matrix of n_out x n_in that maps vectors of `inner` floats: element (a, o, b) of
 * y, of outer x n_out x inner, is fill or the sum of weight * x[a][index][b]. */
struct mfl_map {
        int64_t outer, n_in, n_out, inner;
        float fill;
        struct mfl_map_rows y, x; /* by outputs; the transposed table, by inputs */
        uint64_t bytes;           /* of the tables */
};

struct mfl_graph;
struct mfl_layer;
struct mfl_shape;

/* Upper bound of the terms of the layer's table, given its shapes. */
uint64_t mfl_map_terms(const struct mfl_layer *layer, const struct mfl_shape *in);
/* Upper bound of the bytes of layer i's tables; 0 for other operators. */
uint64_t mfl_map_bytes(const struct mfl_graph *graph, int i);
/* The map of layer i, an MFL_OP_MAP. -ENOMEM. */
int mfl_map_new(const struct mfl_graph *graph, int i, struct mfl_map **ret_map, struct mfl_error *err);
void mfl_map_free(struct mfl_map *map); /* accepts NULL */
/* The maps of all layers: n_layers entries, NULL for other operators. -ENOMEM. */
int mfl_maps_new(const struct mfl_graph *graph, struct mfl_map ***ret_maps, struct mfl_error *err);
void mfl_maps_free(const struct mfl_graph *graph, struct mfl_map **maps); /* accepts NULL */
/* The number of terms in the longest row of both tables. */
int64_t mfl_map_longest(const struct mfl_map *map);

/* Where element e of a plain sample lies in a tensor whose channels vary fastest: at e % pixels * channels + e /
 * pixels. pixels 1: where it is. */
struct mfl_map_order {
        int64_t channels, pixels;
};
/* Replaces *map by the same map between tensors in these orders. MFL_INVALID when its table would have more than
 * MFL_MAP_TERMS_MAX terms; -ENOMEM. */
int mfl_map_reorder(
        struct mfl_map **map, struct mfl_map_order in, struct mfl_map_order out, struct mfl_error *err);

#endif
