/* SPDX-License-Identifier: Apache-2.0 */
/* A convolution, grouped or transposed too, by oneDNN: its primitives, made once, and their execution.
 * Convolutions of few channels use the own loops of loops_conv.h instead, and in a bf16 network on a processor with
 * tiles, most use those of bf16/conv_tile.h.
 *
 * The library chooses the output's and the weights' layout; the input has that of the layer before. Backward
 * primitives are asked for these same layouts. Where no fast implementation takes them, the primitive gets
 * the layout that it wants, and the tensors are reordered around it (on AVX-512 only the weights of
 * backward-data: 16i16o against 16o16i). In a bf16 network, and where several layers share them, the weights lie as
 * in the flat vector. In a bf16 network each primitive gets its operands in bfloat16 through such reorders, or rounded in float (bf16.h); these copies
 * lie in memory that all convolutions share. Errors: MFL_INVALID for a convolution that the library does not
 * support; -ENOMEM; -EIO when a primitive fails.
 */
#ifndef MFL_KERNELS_CPU_CONV_H
#define MFL_KERNELS_CPU_CONV_H

#include "kernels/backend.h"
#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/layout.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/plan.h"

/* A tensor in the layout and type that a primitive wants, and the reorder between it and the tensor's own;
 * memory NULL: the tensor's own is right. rounded: a rounded copy in its own layout, used instead of the
 * tensor. The bytes are those to place in shared memory. */
struct mfl_cpu_staged {
        dnnl_memory_t memory, rounded;
        dnnl_primitive_t reorder;
        size_t memory_bytes, rounded_bytes;
};

struct mfl_cpu_conv {
        struct mfl_window window;
        struct mfl_md src, dst;      /* own layouts */
        struct mfl_md weights, bias; /* of forward; bias unused where the layer has none */
        bool has_bias;
        bool transposed;
        bool flat; /* the weights lie as in the flat vector */
        enum mfl_cpu_bf16 bf16;
        struct mfl_md low_src, low_dst; /* own layouts, in bfloat16 */
        bool shares_dst;            /* backward's two primitives read the output's gradient from one copy */
        bool dst_copied;            /* and the copy is there */
        dnnl_primitive_desc_t hint; /* the forward descriptor, until the backward ones are made */
        size_t scratch_bytes, staging_bytes;

        dnnl_primitive_t forward, data, gradient;
        struct mfl_cpu_staged forward_src, forward_weights, forward_dst, data_weights, data_src, data_dst,
                gradient_src, gradient_dst, gradient_weights;
        dnnl_memory_t m_src, m_dst, m_diff_src, m_diff_dst;   /* in the arena */
        dnnl_memory_t m_weights, m_bias, m_dweights, m_dbias; /* handles are set at each use */
        dnnl_memory_t m_flat;                                 /* OIHW; handle set at each use too */
        dnnl_memory_t s_forward, s_data, s_gradient;          /* scratchpads */
        dnnl_primitive_t to_flat;

        /* Own loops replace the primitives, and nothing above except window and weights is used: those of
         * `small`, or on_tiles those of `tile`; or block_loops compute the weights' gradients. */
        const struct mfl_loops *loops, *block_loops;
        bool on_tiles;
        struct mfl_small_conv small;
        struct mfl_tile_conv tile;
        struct mfl_block_conv block;
        const float *x, *dy;
        float *y, *dx;
};

/* The error for a status of the library: 0, MFL_INVALID, -ENOMEM or -EIO. */
int mfl_cpu_conv_fail(dnnl_status_t status, const char *what, struct mfl_error *err);

/* Makes the forward primitive for an input with that layout, and returns the output's layout. */
int mfl_cpu_conv_init(struct mfl_cpu_conv *conv, dnnl_engine_t engine, const struct mfl_loops *loops,
        const struct mfl_graph *graph, int layer, const struct mfl_net_options *options,
        enum mfl_cpu_bf16 bf16, const struct mfl_layout *in, bool relu, struct mfl_layout *ret_out,
        struct mfl_error *err);
/* Make the rest. From bind on, tensors lie at these addresses; scratch and staging have at least
 * scratch_bytes and staging_bytes, which init and mfl_cpu_conv_backward raise. */
int mfl_cpu_conv_backward(
        struct mfl_cpu_conv *conv, dnnl_engine_t engine, int64_t batch, struct mfl_error *err);
int mfl_cpu_conv_bind(struct mfl_cpu_conv *conv, dnnl_engine_t engine, void *src, void *dst, void *diff_src,
        void *diff_dst, void *scratch, char *staging, struct mfl_error *err);
void mfl_cpu_conv_deinit(struct mfl_cpu_conv *conv);

int mfl_cpu_conv_run_forward(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *weights,
        const float *bias, struct mfl_error *err);
/* Call data before gradient; either may be left out. */
/* The same of a primitive for one row, row by row, so that no row's bits depend on how many there are. in, out: floats of
 * a row. */
int mfl_cpu_conv_run_rows(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *weights,
        const float *bias, int64_t rows, int64_t in, int64_t out, struct mfl_error *err);
int mfl_cpu_conv_run_data(
        struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *weights, struct mfl_error *err);
int mfl_cpu_conv_run_gradient(struct mfl_cpu_conv *conv, dnnl_stream_t stream, float *dweights, float *dbias,
        struct mfl_error *err);
int mfl_cpu_conv_to_flat(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *wide, float *flat,
        struct mfl_error *err);

/* own_conv.c: whether the own loops take convolution `window` of an input with that layout. The rule is
 * fixed, so that bits depend only on the shape and the processor. */
bool mfl_small_conv_takes(const struct mfl_window *window, const struct mfl_layout *in, int lanes);
/* Replaces the rest of mfl_cpu_conv_init for these; window is already set. The floats of `work` are counted
 * in scratch_bytes. */
int mfl_small_conv_init(struct mfl_cpu_conv *conv, const struct mfl_loops *loops, const struct mfl_shape *out,
        const struct mfl_net_options *options, bool relu, struct mfl_layout *ret_out, struct mfl_error *err);
/* The same two for the loops on tiles. */
bool mfl_tile_conv_takes(const struct mfl_window *window, const struct mfl_loops *loops);
int mfl_tile_conv_init(struct mfl_cpu_conv *conv, const struct mfl_loops *loops, const struct mfl_layout *in,
        const struct mfl_shape *out, const struct mfl_net_options *options, bool relu,
        struct mfl_layout *ret_out, struct mfl_error *err);
/* The most bytes that layer `layer` works in on tiles, whatever its input's layout; 0 where it is not on tiles. */
uint64_t mfl_tile_conv_most(const struct mfl_graph *graph, int layer, const struct mfl_net_options *options);
/* Whether the own loops compute the gradients of the weights in the layout of forward's
 * primitive; the rule is fixed too. mfl_block_conv_init then sets them up; the floats of `work` are counted
 * in scratch_bytes. */
bool mfl_block_conv_takes(const struct mfl_cpu_conv *conv, const struct mfl_layout *in,
        const struct mfl_layout *out, int lanes);
void mfl_block_conv_init(
        struct mfl_cpu_conv *conv, const struct mfl_layout *out, const struct mfl_net_options *options);
void mfl_small_conv_to_flat(const struct mfl_window *v, const float *wide, float *flat);

#endif
