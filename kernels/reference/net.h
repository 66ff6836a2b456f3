/* SPDX-License-Identifier: Apache-2.0 */
/* A network of the reference backend; private to kernels/reference. */
#ifndef MFL_KERNELS_REFERENCE_NET_H
#define MFL_KERNELS_REFERENCE_NET_H

#include "kernels/grad_host.h"
#include "kernels/plan.h"
#include "kernels/reference/real.h"

struct mfl_net {
        const struct mfl_graph *graph;
        struct mfl_net_options options;
        struct mfl_plan *plan;
        struct mfl_map **maps; /* of MFL_OP_MAP layers */
        char *arena;
        /* G * n; momentum: SGD's, or Adam's first moment. A worker's network has params and grads alone. */
        mfl_real *params, *params_first, *momentum;
        mfl_real *second;          /* G * n: Adam's and Adagrad's sum of squares. Both are
                                                    NULL where options.moments does not have them */
        mfl_real *correction;      /* G * n: added to gradients; NULL without options.corrects */
        int64_t *sum;              /* n */
        mfl_real *grads;           /* n: of the step */
        mfl_real *part;            /* n: of one batch of a step that accumulates */
        mfl_real *extra;           /* n: gradients of one use of shared tensors */
        mfl_real *turned;          /* n: a transposed copy of a dense layer's weight. Both are
                                                    NULL where no tensor is shared */
        mfl_real *x;               /* G * batch * input: what forward was given */
        struct mfl_rng_key *keys;  /* G: what forward was given */
        bool dropout;              /* forward was given keys */
        uint64_t gather_ns;        /* spent on batches so far */
        struct mfl_grad_host host; /* training; without params */
};

/* One group's pass through the arena. */
struct pass {
        struct mfl_net *net;
        const mfl_real *params;
        mfl_real *running; /* params whose running statistics a forward updates, once; NULL: none */
        mfl_real *
                statistics; /* those of the rows, layer by layer, instead of running ones; NULL: not wanted */
        int64_t rows, first_row;           /* the rows of the step that pass now */
        const struct mfl_rng_key *dropout; /* NULL: inference */
        uint32_t step;
        enum mfl_moves moves;
};

/* What layer i keeps from its forward to its backward, for a whole batch. */
uint64_t mfl_ref_aux_bytes(const struct mfl_graph *graph, int i, int batch);
/* MFL_INVALID, with the layer's name, for an operator that this backend does not have. */
int mfl_ref_check_ops(const struct mfl_graph *graph, struct mfl_error *err);
mfl_real *mfl_ref_act(const struct mfl_net *net, int i);
mfl_real *mfl_ref_grad(const struct mfl_net *net, int i);
void mfl_ref_forward(const struct pass *pass);
void mfl_ref_layer_forward(const struct pass *pass, int i);
/* From the gradient of the last layer's output, in the arena, to grads (n floats). Params that are not
 * trained have gradient 0. Call it once for each forward. */
void mfl_ref_backward(const struct pass *pass, mfl_real *grads);

/* Copies samples into the first layer. key: the step's; NULL: samples as they are. */
void mfl_ref_gather(const struct pass *pass, const struct mfl_device_data *data,
        const struct mfl_rng_key *key, const uint32_t *index);
/* Whether the network can train on the data. */
int mfl_ref_check_step(const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err);

/* net_grad.c */
extern const struct mfl_grad_ops mfl_ref_grad_ops;

#endif
