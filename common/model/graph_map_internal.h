/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of sparse linear maps share; private to common/model. */
#ifndef MFL_COMMON_MODEL_GRAPH_MAP_INTERNAL_H
#define MFL_COMMON_MODEL_GRAPH_MAP_INTERNAL_H

#include "common/model/graph_internal.h"

/* A map of one dimension: row r has the terms [first[r], first[r + 1]). Weights are double until the maps of all
 * dimensions are joined. */
struct mfl_map_axis {
        int64_t n_in, n_out;
        int32_t *first, *index;
        double *weight;
};

/* Whether dimension d of the sample passes through the layer unchanged. Not for view and gather. */
bool mfl_map_keeps(const struct mfl_layer *layer, const struct mfl_shape *in, int d);
/* The size of dimension d of the output, before sums and means drop it. */
int64_t mfl_map_size(const struct mfl_layer *layer, const struct mfl_shape *in, int d);
/* Upper bound of the terms of dimension d. */
uint64_t mfl_map_axis_terms(const struct mfl_layer *layer, const struct mfl_shape *in, int d);
/* -ENOMEM. */
int mfl_map_axis_new(const struct mfl_layer *layer, const struct mfl_shape *in, int d,
        struct mfl_map_axis **ret_axis, struct mfl_error *err);
void mfl_map_axis_free(struct mfl_map_axis *axis);
/* Without terms; n_terms of them have room. -ENOMEM. */
int mfl_map_axis_empty(
        int64_t n_in, int64_t n_out, int64_t n_terms, struct mfl_map_axis **ret_axis, struct mfl_error *err);

#endif
