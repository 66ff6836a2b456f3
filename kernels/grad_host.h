/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers (kernels/grad.h) where params lie in the host's memory, in the order of the flat vector: what the
 * reference does, and a backend whose device only computes gradients. Plain loops; pure functions on the caller's memory. */
#ifndef MFL_KERNELS_GRAD_HOST_H
#define MFL_KERNELS_GRAD_HOST_H

#include "kernels/backend.h"

struct mfl_grad_host {
        const struct mfl_graph *graph;
        struct mfl_grad_tensor *tensors; /* those that are trained */
        int n_tensors;
        float *params; /* those that move; NULL: not yet */
};

/* -ENOMEM. */
int mfl_grad_host_init(struct mfl_grad_host *host, const struct mfl_graph *graph, struct mfl_error *err);
void mfl_grad_host_deinit(struct mfl_grad_host *host); /* not params */
/* Where layer i's floats begin among those that a grain leaves for running statistics: first the means, then the variances;
 * i = n_layers: how many there are. */
uint64_t mfl_grad_host_statistics_at(const struct mfl_graph *graph, int i);
void mfl_grad_host_layout(const struct mfl_grad_host *host, struct mfl_grad_layout *ret_layout);
/* Elements [at, at + n) of tensor t's gradient, times a power of two, go to the sink; false: it takes no more of them. */
bool mfl_grad_host_take(const struct mfl_grad_host *host, const struct mfl_grad_sink *sink, int t,
        uint64_t at, uint64_t n, const float *grads, float times);
/* As in struct mfl_grad_ops. */
void mfl_grad_host_round(const struct mfl_grad_host *host, const struct mfl_grad_rounding *how,
        uint64_t first, uint64_t n, const float *grads, bool set, int64_t *sum);
void mfl_grad_host_squares(const struct mfl_grad_host *host, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, double *ret_squares);
void mfl_grad_host_apply(const struct mfl_grad_host *host, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, const struct mfl_rate *rate, float factor);
void mfl_grad_host_statistics(const struct mfl_grad_host *host, const float *of_grain);

#endif
