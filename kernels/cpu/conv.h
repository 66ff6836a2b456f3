/* SPDX-License-Identifier: Apache-2.0 */
/* A convolution, grouped or transposed too, by oneDNN: its primitives, made once, and their execution; or,
 * where it has few channels, by the own loops of loops_conv.h, see small_conv.c.
 *
 * The library chooses the output's and the weights' layout; the input's is that of the layer before. Backward
 * primitives are asked for these same layouts; one that has no fast implementation for them gets what it
 * wants instead, and the tensors are reordered around it (on AVX-512 that is the weights of backward-data
 * only: 16i16o against 16o16i). In a bf16 network the weights lie as in the flat vector, and each primitive
 * gets its operands in bfloat16 through such reorders, or rounded in float (bf16.h); these copies lie in
 * memory that all convolutions share. Errors: MFL_INVALID for a convolution that the library does not do;
 * -ENOMEM; -EIO when a primitive fails.
 */
#ifndef MFL_KERNELS_CPU_CONV_H
#define MFL_KERNELS_CPU_CONV_H

#include "kernels/backend.h"
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/loops.h"
#include "kernels/plan.h"

/* A tensor in the layout and type that a primitive wants, and the way there from the tensor's own; memory
 * NULL: its own will do. rounded: a copy in its own layout, rounded, which then takes its place. Bytes are of
 * what is to be placed in shared memory. */
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
        enum mfl_cpu_bf16 bf16;
        struct mfl_md low_src, low_dst; /* own layouts, in bfloat16 */
        bool shares_dst;            /* backward's two primitives read the output's gradient from one copy */
        bool dst_copied;            /* which is there */
        dnnl_primitive_desc_t hint; /* the forward descriptor, until the backward ones are made */
        size_t scratch_bytes, staging_bytes;

        dnnl_primitive_t forward, data, gradient;
        struct mfl_cpu_staged forward_src, forward_weights, forward_dst, data_weights, data_src, data_dst,
                gradient_src, gradient_dst, gradient_weights;
        dnnl_memory_t m_src, m_dst, m_diff_src, m_diff_dst;   /* in the arena */
        dnnl_memory_t m_weights, m_bias, m_dweights, m_dbias; /* handles are set at each use */
        dnnl_memory_t m_flat;                                 /* OIHW, the same */
        dnnl_memory_t s_forward, s_data, s_gradient;          /* scratchpads */
        dnnl_primitive_t to_wide, to_flat;

        /* Own loops do it, and nothing above but window and weights is used; or block_loops do the weights'
         * gradients. */
        const struct mfl_loops *loops, *block_loops;
        struct mfl_small_conv small;
        struct mfl_block_conv block;
        const float *x, *dy;
        float *y, *dx;
};

/* What a status of the library means as an error: 0, MFL_INVALID, -ENOMEM or -EIO. */
int mfl_cpu_conv_fail(dnnl_status_t status, const char *what, struct mfl_error *err);

/* Makes the forward primitive for an input of that layout, and tells the output's. */
int mfl_cpu_conv_init(struct mfl_cpu_conv *conv, dnnl_engine_t engine, const struct mfl_loops *loops,
        const struct mfl_graph *graph, int layer, const struct mfl_net_options *options,
        enum mfl_cpu_bf16 bf16, const struct mfl_layout *in, bool relu, struct mfl_layout *ret_out,
        struct mfl_error *err);
/* Makes the rest. Tensors lie at these addresses from now on; scratch and staging have at least scratch_bytes
 * and staging_bytes (which init and mfl_cpu_conv_backward raise). */
int mfl_cpu_conv_backward(
        struct mfl_cpu_conv *conv, dnnl_engine_t engine, int64_t batch, struct mfl_error *err);
int mfl_cpu_conv_bind(struct mfl_cpu_conv *conv, dnnl_engine_t engine, void *src, void *dst, void *diff_src,
        void *diff_dst, void *scratch, char *staging, struct mfl_error *err);
void mfl_cpu_conv_deinit(struct mfl_cpu_conv *conv);

int mfl_cpu_conv_run_forward(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *weights,
        const float *bias, struct mfl_error *err);
/* In this order: data may be left out, or the gradient. */
int mfl_cpu_conv_run_data(
        struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *weights, struct mfl_error *err);
int mfl_cpu_conv_run_gradient(struct mfl_cpu_conv *conv, dnnl_stream_t stream, float *dweights, float *dbias,
        struct mfl_error *err);
int mfl_cpu_conv_to_wide(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *flat, float *wide,
        struct mfl_error *err);
int mfl_cpu_conv_to_flat(struct mfl_cpu_conv *conv, dnnl_stream_t stream, const float *wide, float *flat,
        struct mfl_error *err);

/* small_conv.c: whether the own loops take convolution `window` of an input of that layout. A fixed rule, so
 * that bits depend on the shape and the processor alone. */
bool mfl_small_conv_takes(const struct mfl_window *window, const struct mfl_layout *in, int lanes);
/* What mfl_cpu_conv_init does then, window being set; floats of `work` are in scratch_bytes. */
int mfl_small_conv_init(struct mfl_cpu_conv *conv, const struct mfl_loops *loops, const struct mfl_shape *out,
        const struct mfl_net_options *options, bool relu, struct mfl_layout *ret_out, struct mfl_error *err);
/* block_conv.c: whether the own loops compute the gradients of the weights as forward's primitive has laid
 * them out; a fixed rule too. Then what they need, floats of `work` in scratch_bytes. */
bool mfl_block_conv_takes(const struct mfl_cpu_conv *conv, const struct mfl_layout *in,
        const struct mfl_layout *out, int lanes);
void mfl_block_conv_init(
        struct mfl_cpu_conv *conv, const struct mfl_layout *out, const struct mfl_net_options *options);
/* Between the flat vector's [o][c][r][s] and [c][r][s][o]. */
void mfl_small_conv_to_wide(const struct mfl_window *v, const float *flat, float *wide);
void mfl_small_conv_to_flat(const struct mfl_window *v, const float *wide, float *flat);

#endif
