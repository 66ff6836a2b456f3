/* SPDX-License-Identifier: Apache-2.0 */
/* A network of the CPU backend.
 *
 * Parameters are "wide": convolution weights have the layout of the forward primitive; dense weights have
 * their columns in the order in which the layer's input lies in memory, padded with zeros. They are converted
 * once when a local training starts and once when it ends. All groups share primitives, arena and gradients
 * and run one after another (a grouped convolution is slower on CPUs). Each group has its own wide params,
 * momentum and first params.
 *
 * A worker's network (options.worker) has wide params and nothing else of their size. Gradients of a layer lie in a place
 * that all layers use in turn, because each is taken as soon as it exists; only tensors of several layers have their own.
 *
 * Frozen params have no part in that: no gradient, no sum, no copy for each group. A frozen tensor that lies
 * in the flat vector as the primitives read it (weights of products, embeddings, vectors) is read from the
 * caller's memory, so that all networks of a process share it. Only convolutions' weights and padded vectors
 * are converted, once for all groups that start from the base.
 *
 * Dense layers of several groups are not batched. From a client's second step on, its weights are its own,
 * and products with different weights share nothing. Only the forward of first steps could be shared: one
 * step of five in bench/pfl_clients.py. There, all dense forwards take 29% of a client's time (logistic) and
 * 5% (lenet5), so even a free first forward would save 6% and 1%. A product of twice the rows saves only the
 * reading of the weights: 3% at most, as measured.
 */
#ifndef MFL_KERNELS_CPU_NET_H
#define MFL_KERNELS_CPU_NET_H

#include "kernels/backend.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/base/layout.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/host.h"
#include "kernels/plan.h"

#define MFL_CPU_WIDE_ALIGN 16 /* floats between tensors of a wide vector: a cache line */

struct mfl_device {
        dnnl_engine_t engine;
        const struct mfl_loops *loops;
        enum mfl_cpu_bf16 bf16; /* what its networks get */
};

enum mfl_cpu_home {
        MFL_CPU_WIDE,   /* in wide vectors */
        MFL_CPU_LENT,   /* frozen: in the caller's frozen floats */
        MFL_CPU_COPIED, /* frozen: in a group's copy of those that need another layout */
};

/* Where a parameter tensor lies in its home, in floats. One that several layers use lies as in the flat vector, so
 * that all of them can read it; each use but the last one has its gradient at `extra` of net->extra, and adds it. */
struct mfl_cpu_param {
        enum mfl_cpu_home home;
        uint64_t at, count, extra;
        uint64_t grad; /* where its gradient lies in net->grads */
        int tensor;    /* of the gradient's layout; -1: not trained */
        /* Where flat elements lie in a wide vector: all together, or `place` says it of each, or column[0][c] of those of
         * column c, which follow each other at column[1][c] floats. */
        uint32_t *place, *column[2];
};

/* A group's frozen params. */
struct mfl_cpu_frozen {
        const float *lent; /* the caller's; NULL: none */
        float *copy;       /* n_copied */
};

struct mfl_cpu_layer {
        struct mfl_layout layout; /* of the output */
        uint64_t statistics;      /* batch norm: where its floats begin among those that a grain leaves */
        bool plain;               /* reads its inputs in plain order, however they lie */
        bool gemm;                /* dense: by matrix products, with weights as in the flat vector */
        struct mfl_cpu_conv conv; /* conv2d, convtranspose2d only */
        bool relu;                /* conv2d, dense, norms, add: applies the ReLU that reads it */
        bool done;                /* relu: the layer before does its forward */
        /* relu: its backward happens in the max pool that reads it, or in the norm or add before it. The
         * others: do that backward */
        bool masked;
        uint64_t grads; /* of a worker's network: floats of its gradients in net->grads */
        bool pads; /* some of its trained tensors have more elements in a wide vector than in the flat one */
};

struct mfl_net {
        const struct mfl_graph *graph;
        struct mfl_net_options options;
        int64_t rows;                 /* that a pass computes: options.batch, or what `infer` was given */
        struct mfl_device *device;    /* own_device */
        struct mfl_device own_device; /* the engine, with the loops of the network's precision */
        struct mfl_loops own_loops;   /* bf16's */
        enum mfl_cpu_bf16 bf16;
        dnnl_stream_t stream;
        struct mfl_plan *plan;
        struct mfl_map **maps; /* of MFL_OP_MAP layers */
        struct mfl_cpu_layer *layers;
        struct mfl_cpu_param *wide; /* n_params */
        uint64_t n_wide, n_extra, n_copied;
        uint64_t n_grads;                /* n_wide; a worker's network: less */
        struct mfl_grad_tensor *tensors; /* training: the trained ones; grad.c */
        int n_tensors;
        uint64_t n_statistics;
        uint64_t *edges;                   /* of statistics */
        struct mfl_fixed_parts statistics; /* running statistics in a wide vector */
        uint32_t *copied; /* where the elements of the copied tensors, in order, lie in a copy */
        uint64_t n_copied_flat;
        struct mfl_cpu_frozen *frozen; /* G, and the base's */
        float *copies;         /* the groups' own and the base's; with options.shared_start the base's */
        char *arena, *scratch; /* scratch: the primitives' own */
        size_t scratch_bytes;
        char *staging; /* operands of a convolution in bfloat16 */
        size_t staging_bytes;
        float *params, *momentum, *second; /* G * n_wide; the optimizer's are NULL where it keeps none */
        /* What clients started from: G * n_wide; with options.shared_start only n_wide, the base of all. */
        float *first, *base;
        float *correction;  /* G * n_wide: added to gradients; NULL without options.corrects */
        bool *corrected;    /* G: whether the group has one */
        int64_t *sum;       /* n_wide: of updates, in the wide vector's order */
        uint64_t gather_ns; /* spent on batches so far */
        float *grads;       /* n_grads */
        float *part;        /* n_wide: of one batch of a step that accumulates */
        float *extra;       /* n_extra: gradients of one use of shared tensors */
        float *unused;      /* gradients of a norm that is not trained, which its loops give all the same */
        uint64_t n_unused;
        float *share[2];      /* an input's gradient, before it is added to what is there */
        float *plain[2];      /* an input in plain order, where it lies otherwise */
        float *plain_grad[2]; /* its gradient */
        float *work;          /* work_floats of each thread, then those of recurrent layers */
        int64_t work_floats;
        float *logits, *dlogits;  /* where the last layer's layout is not plain */
        float *x;                 /* G * batch * input: what forward was given */
        struct mfl_rng_key *keys; /* G: what forward was given */
        bool dropout;
};

int mfl_cpu_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err);
void mfl_cpu_net_free(struct mfl_net *net);
uint64_t mfl_cpu_net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options);
void mfl_cpu_net_plan(const struct mfl_net *net, struct mfl_net_plan *ret_plan);

/* norm.c: what batch and group norm of layer i keep between forward and backward. */
uint64_t mfl_cpu_norm_aux_bytes(const struct mfl_net *net, int i);
/* add.c: y = x + x2, and the gradients of both. */
void mfl_cpu_add_forward(struct mfl_net *net, int i);
/* first, second: whether its gradient is wanted. */
void mfl_cpu_add_backward(struct mfl_net *net, int i, bool first, bool second);

static inline bool mfl_cpu_is_trained(const struct mfl_graph *graph, int param)
{
        return param >= 0 && graph->params[param].trained;
}

/* Whether several layers use the tensor. */
static inline bool mfl_cpu_is_shared(const struct mfl_graph *graph, int param)
{
        return param >= 0 && graph->params[param].n_uses > 1;
}

/* memory.c: everything that net_new allocates, except what the library keeps; the plan exists already. */
int mfl_cpu_allocate(struct mfl_net *net, struct mfl_error *err);
/* Floats of a wide vector, at most. */
uint64_t mfl_cpu_wide_most(const struct mfl_graph *graph);
/* Floats of a sample's tensor at most: channels that it comes from may be padded to 16. */
uint64_t mfl_cpu_tensor_most(const struct mfl_graph *graph, int tensor);

static inline bool mfl_cpu_is_conv(enum mfl_op op)
{
        return op == MFL_OP_CONV2D || op == MFL_OP_CONVTRANSPOSE2D;
}

/* shape.c: whether concatenation i works in the layout of its inputs. */
bool mfl_cpu_concat_keeps_layout(const struct mfl_net *net, int i);
/* map.c: whether map i works in the layout of its input. */
bool mfl_cpu_map_keeps_layout(const struct mfl_net *net, int i);
/* Whether flatten or reshape i puts elements into another order. */
bool mfl_cpu_moves(const struct mfl_net *net, int i);

static inline float *mfl_cpu_act(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].act);
}

static inline float *mfl_cpu_grad(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].grad);
}

/* What group g started from. */
static inline const float *mfl_cpu_first(const struct mfl_net *net, int group)
{
        return net->options.shared_start ? net->base : net->first + net->n_wide * (uint64_t)group;
}

/* params.c: whether layer i is a dense one that runs as a matrix product, not in loops of its own. */
bool mfl_cpu_is_product(const struct mfl_graph *graph, int i);
/* Whether a tensor lies in the wide layout as in the flat vector. */
bool mfl_cpu_is_flat(const struct mfl_net *net, const struct mfl_param *param);
/* Column c of output 0 in the panels of a dense layer's weights, and how far apart outputs lie. */
int64_t mfl_cpu_column_at(int64_t n_in, int64_t n_out, int64_t c, int64_t *ret_stride);
/* Converts a tensor into floats in flat order. */
int mfl_cpu_tensor_to_flat(struct mfl_net *net, int i, const float *from, float *to, struct mfl_error *err);
/* Converts the tensors of one home, one after another. */
int mfl_cpu_params_to_flat(
        struct mfl_net *net, enum mfl_cpu_home home, const float *wide, float *flat, struct mfl_error *err);
/* The frozen floats of a group become these, or with group options.groups those of the base; a group takes the base's
 * with NULL. The caller's floats are read until the next call. */
void mfl_cpu_frozen_set(struct mfl_net *net, int group, const float *frozen);
/* Floats [first, graph->n_frozen). */
void mfl_cpu_frozen_get(const struct mfl_net *net, int group, uint64_t first, float *flat);

/* dense.c: as in struct mfl_grad_ops. */
uint64_t mfl_cpu_operands(const struct mfl_graph *graph, const struct mfl_net_options *options, int param);
void mfl_cpu_products(const struct mfl_net *net, const struct mfl_grad_products *how);

/* grad.c */
extern const struct mfl_grad_ops mfl_cpu_grad_ops;
int mfl_cpu_grad_new(struct mfl_net *net, struct mfl_error *err);

/* places.c: where the flat vector's elements that move lie in a wide one; also of the copied ones. */
int mfl_cpu_places_new(struct mfl_net *net, struct mfl_error *err);
void mfl_cpu_places_free(struct mfl_net *net);
struct mfl_cpu_places {
        const struct mfl_net *net;
        int tensor;
        uint64_t k; /* the next element of that tensor */
};
#define MFL_CPU_PLACES 1024u /* of one call, at most */
struct mfl_cpu_places mfl_cpu_places_from(const struct mfl_net *net, uint64_t first);
/* The places of the next n elements. */
void mfl_cpu_places_next(struct mfl_cpu_places *places, uint32_t n, uint32_t *ret_place);

/* sum.c: params and updates as whole vectors. */
int mfl_cpu_params_base(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err);
int mfl_cpu_params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err);
int mfl_cpu_correction_set(struct mfl_net *net, int group, const float *moving, struct mfl_error *err);
int mfl_cpu_params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err);
int mfl_cpu_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err);
int mfl_cpu_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err);
int mfl_cpu_check_step(const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err);
int mfl_cpu_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err);
uint64_t mfl_cpu_gather_ns(struct mfl_net *net);
int mfl_cpu_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err);
int mfl_cpu_infer(struct mfl_net *net, const struct mfl_rows *x, uint32_t n, float *y, struct mfl_error *err);
int mfl_cpu_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err);
int mfl_cpu_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err);

#endif
