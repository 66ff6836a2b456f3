/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that build a graph share; private to common/model. */
#ifndef MFL_COMMON_MODEL_GRAPH_INTERNAL_H
#define MFL_COMMON_MODEL_GRAPH_INTERNAL_H

#include "common/model/graph.h"

#define MFL_GRAPH_SIZE_MAX 65536 /* of windows and sizes of maps; widths: MFL_WIDTH_MAX */

/* The product, or UINT64_MAX when it does not fit. */
static inline uint64_t mfl_graph_multiply(uint64_t a, uint64_t b)
{
        uint64_t r;
        return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Infers layer i's output from its inputs', whose shapes are known, and gives unset settings their defaults.
 * MFL_INVALID. */
int mfl_graph_infer(struct mfl_graph *graph, int i, struct mfl_error *err);
int mfl_graph_infer_conv(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err);
int mfl_graph_infer_pool(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err);
int mfl_graph_infer_map(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err);
/* Checks layer->shape: the sizes of 1 to 3 dimensions. MFL_INVALID. */
int mfl_graph_check_shape(const struct mfl_layer *layer, struct mfl_error *err);
/* Checks out_channels, which the message calls `what`, and init. */
int mfl_graph_check_outputs(const struct mfl_layer *layer, const char *what, struct mfl_error *err);

/* Where a layer may have a tensor: the offsets of its indices in struct mfl_layer. */
#define MFL_LAYER_PARAMS 6
extern const size_t mfl_layer_params[MFL_LAYER_PARAMS];
static inline int *mfl_layer_param(struct mfl_layer *layer, int k)
{
        return (int *)(void *)((char *)layer + mfl_layer_params[k]);
}

/* graph_share.c: whether layer i may use tensors of another one. MFL_INVALID. */
int mfl_graph_check_sharing(const struct mfl_graph *graph, int i, struct mfl_error *err);
/* Whether the tensor with the index *index, a member of the layer, is the other's. */
bool mfl_graph_shares(const struct mfl_layer *layer, const int *index);
/* Makes *index that of the other layer's tensor, which must fit `what`. MFL_INVALID. */
int mfl_graph_share(struct mfl_graph *graph, int i, const char *suffix, const struct mfl_param *what,
        int *index, struct mfl_error *err);

/* Lays out the parameter table of a graph whose shapes are known. *ret_at: the layer that a failure is about.
 * MFL_INVALID when there are more than MFL_PARAMS_MAX parameters; -ENOMEM. */
int mfl_graph_build_params(struct mfl_graph *graph, int *ret_at, struct mfl_error *err);
/* *ret_twin: a name that the list has twice, one of its texts; NULL: none. -ENOMEM. */
int mfl_graph_find_twin(const char *const *names, int n, const char **ret_twin, struct mfl_error *err);
/* The second half of it: what does not move comes first, and running statistics are found. -ENOMEM. */
int mfl_graph_part_params(struct mfl_graph *graph, struct mfl_error *err);

#endif
