/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that build a graph share; private to common/model. */
#ifndef MFL_COMMON_MODEL_GRAPH_INTERNAL_H
#define MFL_COMMON_MODEL_GRAPH_INTERNAL_H

#include "common/model/graph.h"

/* The product, or UINT64_MAX when it does not fit. */
static inline uint64_t mfl_graph_multiply(uint64_t a, uint64_t b)
{
        uint64_t r;
        return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Lays out the parameter table of a graph whose shapes are known. *ret_at: the layer that a failure is about.
 * MFL_INVALID when there are more than MFL_PARAMS_MAX parameters; -ENOMEM. */
int mfl_graph_build_params(struct mfl_graph *graph, int *ret_at, struct mfl_error *err);

#endif
