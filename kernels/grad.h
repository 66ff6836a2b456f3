/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers: how one client is trained by several networks, the workers of a team (kernels/team/team.h).
 *
 * A step's rows are cut into grains, and the gradient of each grain is taken by itself. Each element of it is rounded
 * once, to round(g * 2^bits) with the bits of its tensor, and added as an integer; so the sum does not depend on who
 * took which grain, nor on the order. From the whole sum the optimizer takes its step, range by range, and a range may
 * be any worker's.
 *
 * The gradient has the order of the network's own vector of params that move: equal for networks of one graph, one
 * backend, one processor kind and equal options. Running statistics are part of that vector; their gradient is 0. What
 * they become is taken apart: each grain leaves the mean and the unbiased variance of its rows, and the statistics take
 * them grain by grain, in the grains' order.
 *
 * Such a network keeps params alone. The sum, the optimizer's state and, where there is a proximal term, what the params
 * were at the start belong to the caller, range by range; so who has only some ranges holds only these.
 *
 * Everything here belongs to a network with options.worker, of one group. No function allocates. */
#ifndef MFL_KERNELS_GRAD_H
#define MFL_KERNELS_GRAD_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif

#include "common/base/base.h"
#include "common/base/rng.h"

/* Elements of a block: the norm of a gradient is a sum over blocks, in order, and ranges of workers are whole blocks. */
#define MFL_GRAD_BLOCK ((uint64_t)4096)

struct mfl_device_data;
struct mfl_error;
struct mfl_graph;
struct mfl_loss_share;
struct mfl_net;
struct mfl_net_options;
struct mfl_optimizer;
struct mfl_rate;
struct mfl_score;

/* Where a tensor lies in the gradient. Those of untrained tensors and the places between tensors hold 0. */
struct mfl_grad_tensor {
        int param;          /* of the graph; it is trained */
        uint64_t at, count; /* ascending, and apart from each other */
        /* Its gradient is the product of two small matrices, with so many floats for each row, which a grain can leave in its
         * place; 0: it can't. */
        uint64_t operands;
};

/* The first tensor that has an element at or after `at`; n_tensors: none has. */
static inline int mfl_grad_tensor_at(const struct mfl_grad_tensor *tensors, int n_tensors, uint64_t at)
{
        int from = 0, to = n_tensors;
        while (from < to) {
                int middle = (from + to) / 2;
                if (tensors[middle].at + tensors[middle].count > at)
                        to = middle;
                else
                        from = middle + 1;
        }
        return from;
}

struct mfl_grad_layout {
        uint64_t n; /* elements */
        int n_tensors;
        const struct mfl_grad_tensor *tensors; /* the network's */
        float *params; /* n: the params in the same order, where the network reads them; with options.lent NULL until
                                  there is such memory. Of a network that resides on its device: there */
        uint64_t n_statistics; /* floats that a grain leaves for running statistics */
        bool scaled;           /* grains need a loss scale, and overflow now and then (fp16) */
};

/* Rows of a step: index[0] is its row first_row. */
struct mfl_grain {
        const uint32_t *index;
        uint32_t rows, first_row;
        uint32_t step;                       /* of the local training, for dropout and augmentation */
        struct mfl_rng_key dropout, augment; /* as in struct mfl_group_steps */
        const struct mfl_loss_share *share;  /* of the whole step */
        bool moved;                          /* params may have changed since the network's last grain */
        float loss_scale; /* a power of two: the loss is multiplied by it, and what goes to the sink is divided by it; 1 unless
                             the layout is `scaled` */
};

/* What a grain leaves of a tensor: in place of elements [first, end) of the gradient, inside the tensor, the operands of the product
 * that they are, for `products`. The tensor's other elements are added. */
struct mfl_grad_deferred {
        float *operands; /* options.batch * the tensor's operands, written, rows without samples too; NULL: nothing is deferred */
        uint64_t first, end;
};

/* Where a grain's gradient goes. */
struct mfl_grad_sink {
        int64_t *
                resident; /* of a network that resides on its device: the whole sum there, in place of `place`; no `ready` */
        /* Where the elements from `at` on are added, as int64_t or, with `floats`, as float. *n: elements of the tensor from
         * there on; becomes how many of them lie together. NULL: they are dropped, and the caller knows why. Places between
         * tensors are never written. Sums are meaningless after an element beyond their range. */
        void *(*place)(void *user, uint64_t at, uint64_t *n);
        bool first;      /* sum = instead of += */
        bool floats;     /* elements are added as they are, not rounded */
        const int *bits; /* of each tensor; not with `floats` */
        /* Of each tensor: becomes the largest of it and every |g|; infinity for what is not finite. Not with `floats`. */
        float *largest;
        float *statistics; /* n_statistics floats, written; NULL where there are none */
        const struct mfl_grad_deferred *deferred; /* of each tensor; NULL: of none */
        /* Called on the grain's thread as soon as a tensor's elements are added, in the order in which backward gives
         * them; NULL: not wanted. A tensor that backward does not reach has no call. */
        void (*ready)(void *user, int tensor);
        void *user;
};

/* Of each tensor, as in a sink. */
struct mfl_grad_rounding {
        const int *bits;
        float *largest;
};

/* Elements [first, first + n) of the gradient, inside what all grains of a step have deferred of a tensor. */
struct mfl_grad_products {
        int tensor;
        uint64_t first, n;
        const float *operands; /* of the first grain; those of the next one are `stride` floats further */
        uint64_t stride;
        uint32_t n_grains;
        struct mfl_grad_rounding rounding;
        float *total; /* n, written */
};

/* A range of a whole step's gradient, and what the optimizer keeps for it. Element first + i is sum[i] * 2^-bits, or
 * floats[i], whichever there is. */
struct mfl_grad_total {
        const int64_t *sum;
        const float *floats;
        uint64_t first, n; /* from the start of a block to the end of one, or to that of the gradient */
        const int *bits;   /* of each tensor */
        float *momentum, *second; /* n each; NULL where the optimizer keeps none */
        const float *start;       /* n: params at the start of the local training; NULL: prox_mu is 0 */
};

#ifndef __cplusplus
/* Where vectors of a device are copied. */
enum mfl_grad_copy { MFL_GRAD_TO_HOST, MFL_GRAD_TO_DEVICE, MFL_GRAD_ON_DEVICE };

/* Networks that reside on their device: the params that move, the sum and what the optimizer keeps lie in its memory, and so a
 * step sends nothing over the bus but a few numbers. The bits are those of a network that does not. Pointers of layout.params,
 * struct mfl_grad_total and a sink's sum are the device's then; the rest stays the host's. `floats` is not there, nor is `round`.
 *
 * Errors: MFL_INVALID where there is no room, or no such library; else as in backend.h. */
struct mfl_grad_device_ops {
        /* Device memory of a network that resides, beside what `alloc` gives. */
        uint64_t (*bytes)(const struct mfl_graph *graph, const struct mfl_net_options *options);
        /* The params go from the host's memory to the device, and params_set, params_get and flatten follow them. `on` false: they
         * are in the host's memory again, as params_set left them last; what training made of them is gone unless `flatten` was called.
         * First the caller frees what `alloc` gave. */
        int (*reside)(struct mfl_net *net, bool on, struct mfl_error *err);
        int (*alloc)(
                struct mfl_net *net, uint64_t bytes, void **ret_memory, struct mfl_error *err); /* zeros */
        void (*free)(struct mfl_net *net, void *memory); /* NULL is fine */
        int (*clear)(struct mfl_net *net, void *memory, uint64_t bytes, struct mfl_error *err);
        int (*copy)(struct mfl_net *net, enum mfl_grad_copy way, void *to, const void *from, uint64_t bytes,
                struct mfl_error *err);
        /* What was begun has ended. Call it before a mesh touches memory of `alloc` or params. */
        int (*settle)(struct mfl_net *net, struct mfl_error *err);
};
#endif

struct mfl_grad_ops {
        const struct mfl_grad_device_ops *device; /* NULL: vectors lie in the host's memory */
        /* Elements of the gradient of such a network, at most. */
        uint64_t (*elements)(const struct mfl_graph *graph, const struct mfl_net_options *options);
        void (*layout)(const struct mfl_net *net, struct mfl_grad_layout *ret_layout);
        /* Forward and backward of at most options.batch rows. Running statistics stay as they are. Adds to the score. */
        int (*grain)(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_grain *grain,
                const struct mfl_grad_sink *sink, struct mfl_score *score, struct mfl_error *err);
        /* Elements [first, first + n) of a grain's gradient, which a sink took as floats, are rounded and added to sum[0 .. n) as a
         * sink that rounds does it; `set`: sum = instead of +=. Places between tensors are neither read nor written. From any thread,
         * also while the network computes. */
        void (*round)(const struct mfl_net *net, const struct mfl_grad_rounding *how, uint64_t first,
                uint64_t n, const float *grads, bool set, int64_t *sum);
        /* The tensor's operands (struct mfl_grad_tensor) in such a network, beforehand. NULL: no tensor has any. */
        uint64_t (*operands)(const struct mfl_graph *graph, const struct mfl_net_options *options, int param);
        /* What the grains' elements are together, in floats: each grain's element is rounded, the integers are added, and the sum is
         * made a float as for `apply`. So a total's floats have the bits of its sum. NULL where `operands` is. */
        void (*products)(const struct mfl_net *net, const struct mfl_grad_products *how);
        /* The sum of squares of each block of the gradient that the optimizer clips: squares[0] is of block first /
         * MFL_GRAD_BLOCK. */
        int (*squares)(struct mfl_net *net, const struct mfl_grad_total *total,
                const struct mfl_optimizer *opt, double *squares, struct mfl_error *err);
        /* The optimizer's step of those params; the gradient is multiplied by `factor` first. */
        int (*apply)(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
                const struct mfl_rate *rate, float factor, struct mfl_error *err);
        /* The running statistics take those of one grain. */
        int (*statistics)(struct mfl_net *net, const float *statistics, struct mfl_error *err);
        /* Of a network with options.lent: from here on its params that move are in `params`, `elements` floats of the caller's
         * on a cache line, until it lends other memory or NULL. Networks of one graph, backend, processor kind and equal options
         * can have the same memory, also in several processes; nobody may change it while another one reads. It holds what
         * the caller put there; params_set with moving == NULL leaves it as it is, and takes the frozen params alone. */
        void (*lend)(struct mfl_net *net, float *params);
        /* The params that move become those of the flat vector, in order, at the beginning of the memory, which is the caller's
         * again: the network has none. Allocates as much as one tensor takes. */
        int (*flatten)(struct mfl_net *net, struct mfl_error *err);
};

#endif
