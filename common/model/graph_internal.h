/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that build a graph share; private to common/model. */
#ifndef MFL_COMMON_MODEL_GRAPH_INTERNAL_H
#define MFL_COMMON_MODEL_GRAPH_INTERNAL_H

#include "common/model/graph.h"

#define MFL_GRAPH_SIZE_MAX 65536 /* of kernels, channels, features, vocabularies, classes */

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
/* out_channels, called `what` in the message, and init. */
int mfl_graph_check_outputs(const struct mfl_layer *layer, const char *what, struct mfl_error *err);
const char *mfl_op_stem(enum mfl_op op); /* what the name of a layer without one starts with */

/* Lays out the parameter table of a graph whose shapes are known. *ret_at: the layer that a failure is about.
 * MFL_INVALID when there are more than MFL_PARAMS_MAX parameters; -ENOMEM. */
int mfl_graph_build_params(struct mfl_graph *graph, int *ret_at, struct mfl_error *err);

#endif
