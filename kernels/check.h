/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares. Pure; the texts say what would be right. */
#ifndef MFL_KERNELS_CHECK_H
#define MFL_KERNELS_CHECK_H

#include "kernels/backend.h"

/* MFL_INVALID where the samples are not of the graph's input size, have more classes, another number of
 * labels or targets, or a larger vocabulary. */
int mfl_check_data(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err);

/* MFL_INVALID for the first layer whose operator is not among `ops` (bits 1 << enum mfl_op), or that asks of
 * one what `backend` has not got: groups of channels, LoRA, a repeated second input. */
struct mfl_backend_can {
        const char *backend;
        uint64_t ops;
        bool conv_groups, lora, repeats,
                sequences;       /* sequences: dense on {T,F}, outputs of several positions */
        bool losses, accumulate; /* others than cross entropy without smoothing */
};
int mfl_check_graph(const struct mfl_backend_can *can, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_error *err);
/* MFL_INVALID for an optimizer other than SGD, clipping, or a learning rate that changes. */
int mfl_check_plain_steps(const char *backend, const struct mfl_optimizer *opt,
        const struct mfl_group_steps *groups, int n_groups, struct mfl_error *err);

#endif
