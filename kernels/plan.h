/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a graph: which layers matter, in what order gradients meet, and where each tensor lies in
 * one arena.
 *
 * Time runs over one training step of a graph of L layers: layer i computes forward at time i, the loss at
 * time L, step k of backward at time L + 1 + k. A tensor occupies its range of the arena only from its first
 * to its last use; tensors whose times do not overlap share memory. Pure functions; a plan is one heap
 * object; any thread may read it.
 *
 * Segments (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). The layers of a training step
 * may be cut into segments of neighbours. Backward goes from the last segment to the first. The last
 * segment's backward follows its forward directly; before any other segment's backward, its layers are
 * computed again as far as that backward needs them. What a later segment still needs is kept from forward
 * on, and so are the input and the last segment. Any other activation has its place in the arena twice, at
 * the same offset: while forward reads it, and from its second computation to its last use in backward.
 * Between the two, other tensors lie there. Layers that share memory (alias) are in one segment and are
 * computed again together, because each changes what the one before it left.
 *
 * The gradients that the readers of a tensor give are added. Backward runs the layers from the last to the
 * first, so the reader with the largest number comes first: it writes the gradient (writes_grad is true), and
 * every other one adds its share (false). An add passes its gradient to both of its inputs, which are
 * different layers, and has one flag for each. When layer i's backward begins, all readers of i have run, so
 * its own gradient is complete.
 *
 * Backward visits only layers that want a gradient: layers whose own params are trained, and those behind
 * them. Layers before the first trained one (frozen layers, and a base before its first LoRA adapter) have no
 * gradient, keep nothing for backward, and are never computed a second time: what a trained layer reads of
 * them stays from forward on.
 */
#ifndef MFL_KERNELS_PLAN_H
#define MFL_KERNELS_PLAN_H

#include "common/base/base.h"
#include "common/model/graph.h"
#include "kernels/backend.h"

#define MFL_PLAN_ALIGN 64

/* Geometry of the sliding window of a convolution or pool. For pools o = c. */
struct mfl_window {
        int64_t c, h, w, o, oh, ow;
        int64_t groups; /* of channels; 1 for pools */
        int64_t k[2], s[2], p[2], d[2];
};

/* What a backend says about each layer before planning, for a whole batch. */
struct mfl_plan_need {
        uint64_t act_bytes; /* of the layer's output */
        uint64_t aux_bytes; /* kept from its forward to its backward (without training: during its
                               forward): argmax, dropout mask, statistics */
        int alias; /* the layer whose output memory (and gradient's) this one shares: an input that no
                      other layer reads; or -1 */
        bool uses_input, uses_input2; /* backward reads the activation of `input`, of `input2` */
        bool uses_output;             /* backward reads the output activation */
};

struct mfl_plan_layer {
        int64_t in_count, out_count; /* floats per sample */
        bool live;                   /* the last layer depends on it, as on every layer of a valid graph */
        bool wants_grad;             /* backward visits it: the gradient of its output is needed */
        bool writes_grad;  /* in backward order, the first that gives the gradient of `input`: it writes,
                             others add */
        bool writes_grad2; /* the same for `input2`; false where there is none */
        int n_readers;     /* live layers that read it */
        int segment;       /* from 0 on */
        bool again;        /* computed twice: in forward, and before its segment's backward */
        uint64_t act, grad, aux; /* offsets in the arena */
};

struct mfl_plan_step {
        int layer;
        bool again; /* its forward again; false: its backward */
};

struct mfl_plan {
        int n_layers, n_segments;
        int n_backward; /* training; else 0 */
        uint64_t arena_bytes;
        struct mfl_plan_layer *layers;
        struct mfl_plan_step *backward; /* what follows the loss, in order: live layers that want a
                                           gradient, without the input */
};

/* needs has graph->n_layers entries. Of the options, training, input_grad and segments count; the last two
 * only with training. An alias must have a single reader (mfl_plan_readers). Where an alias wants a gradient,
 * so does the layer whose memory it is in: a backend may do the backward of both at once. Errors: -ENOMEM. */
int mfl_plan_new(const struct mfl_graph *graph, const struct mfl_net_options *options,
        const struct mfl_plan_need *needs, struct mfl_plan **ret_plan, struct mfl_error *err);
void mfl_plan_free(struct mfl_plan *plan);

/* The needs of plain float tensors of `batch` samples, no aliases; n_layers entries. */
void mfl_plan_plain_needs(const struct mfl_graph *graph, int batch, struct mfl_plan_need *needs);

/* How many layers read layer i. */
int mfl_plan_readers(const struct mfl_graph *graph, int i);

/* Geometry of a convolution or pool layer; c, h, w are the input's; o, oh, ow the output's. */
struct mfl_window mfl_window_of(const struct mfl_graph *graph, int i);

#endif
