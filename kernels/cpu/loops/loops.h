/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's own loops, compiled for several instruction sets and chosen once at start.
 *
 * Dense layers run here and not in oneDNN. None of the three products needs its weights repacked, which for a
 * batch of 10 or 32 costs as much as the product; and the optimizer's step is taken while the gradient is
 * still in registers. The order in which an element is summed depends only on the layer's sizes, so results
 * depend neither on the other rows nor on the threads. No allocation; `threads` > 1 divides outputs among
 * OpenMP threads.
 */
#ifndef MFL_KERNELS_CPU_LOOPS_LOOPS_H
#define MFL_KERNELS_CPU_LOOPS_LOOPS_H

#include "kernels/backend.h"
#include "kernels/bodies.h"
#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/layout.h"
#include "kernels/plan.h"

struct mfl_dense {
        int64_t n_in, n_out, rows; /* x: rows * n_in, w: in panels, y: rows * n_out */
        bool relu;                 /* y = max(y, 0) */
        int threads;
};

/* Dense weights lie in panels: the first 64 columns of all outputs, output by output, then the next 64. The
 * last panel is narrower where n_in is no multiple of 64. The products work through one panel at a time, so
 * that they read weights in the order in which they lie. */
#define MFL_DENSE_PANEL 64

/* Where a gradient goes: to grad or sum if one is given, else into the step of opt on p (m, p0 as in bodies.h). sum: as
 * `round_add` adds it, for one thread of dense_backward; *largest grows. */
struct mfl_apply {
        const struct mfl_optimizer *opt;
        float lr;             /* of this step */
        struct mfl_rate rate; /* the same, for optimizers other than SGD; only `update` takes their steps */
        float *grad, *p, *m, *v;
        const float *p0;
        int64_t *sum;
        double factor;
        bool first;
        float *largest;
};

/* Elements [first, end) of a dense layer's weights, in the order in which they lie: their gradients by several grains of `rows` rows
 * each, rounded and added as `round_add` does, and then made floats again: out[0 .. end - first). factor 0: those of one grain, as
 * they are. One thread. */
struct mfl_dense_products {
        int64_t first, end, n_grains, stride;
        const float *
                operands; /* rows * n_in of x, rows * n_out of dy; those of the next grain `stride` floats further */
        double factor, inverse; /* inverse = 1 / factor */
        float *largest;         /* grows */
        float *out;
};

/* c[i * ldc + j] (+)= bias[j] + the sum over k of a[i * a_i + k * a_k] * b[k * b_k + j * b_j]; bias may be
 * NULL. Fast where each side has a stride of 1. */
struct mfl_gemm {
        int64_t m, n, k;
        const float *a, *b;
        int64_t a_i, a_k, b_k, b_j;
        float *c;
        int64_t ldc;
        const float *bias;
        bool add;
};
#define MFL_GEMM_DEPTH 256
#define MFL_GEMM_HEIGHT 96
#define MFL_GEMM_WIDTH 576
#define MFL_GEMM_PANEL_MAX 32
/* Floats that a product works in, and floats of k x n packed ones. */
#define MFL_GEMM_WORK (MFL_GEMM_DEPTH * (MFL_GEMM_HEIGHT + MFL_GEMM_WIDTH))
static inline int64_t mfl_gemm_packed_floats(int64_t k, int64_t n)
{
        return k * (n + MFL_GEMM_PANEL_MAX);
}

/* A convolution of few channels: all strides and dilations 1, one group, padding smaller than the window. Its
 * input is plain; its output is plain or in blocks that are a multiple of a vector. w and dw lie as
 * [c][r][s][o]. The loops work in `work`, mfl_small_conv_work floats for each thread. */
struct mfl_small_conv {
        struct mfl_window window;
        struct mfl_layout out;
        int64_t rows;
        bool relu; /* y = max(y, 0) */
        int threads;
        float *work;
        int64_t work_floats;
};

/* The gradients of a convolution's weights and biases. Input and output lie in blocks of as many channels as
 * a vector has lanes; no groups, no dilation. dw[o / b][c / b][r][s][c % b][o % b] = the sum over samples and
 * pixels of x * dy. `part` samples are padded at once in `work`, which serves all threads and is unused where
 * there is no padding. */
struct mfl_block_conv {
        struct mfl_window window;
        struct mfl_layout out;
        int64_t rows, part;
        int threads;
        float *work;
};

/* A convolution of operands rounded to bfloat16: no groups, no dilation, equal strides, padding smaller than the
 * window. Any layouts; fast where channels lie in blocks of 16. w and dw lie as [o][c][r][s]. The loops work in `work`, which has the
 * bytes that tile_work says. */
struct mfl_tile_conv {
        struct mfl_window window;
        struct mfl_layout in, out;
        int64_t rows;
        bool relu; /* y = max(y, 0) */
        int threads;
        void *work;
};

struct mfl_pool {
        struct mfl_window window;
        struct mfl_layout in, out; /* of equal block */
        int64_t rows;
        int threads;
};

/* The tensors of batch and group norm: `rows` samples of `count` floats. Element (c, p) of a sample is at (c
 * / block * pixels + p) * block + c % block. */
struct mfl_norm_loop {
        int64_t rows, count;
        int64_t channels, logical; /* channels with the lanes past the last one; without */
        int64_t block, pixels;
        int64_t groups; /* group norm; 0 for batch norm */
        float eps;
        int threads;
};

/* mean and rstd = 1 / sqrt(var + eps): one per channel; for group norm one per row and channel, with the
 * values of the channel's group. */
struct mfl_norm_vectors {
        const float *mean, *rstd, *weight, *bias;
};

struct mfl_norm_grad {
        const float *x, *y, *dy; /* y: dy counts only where y > 0, since a ReLU made y; NULL: dy as is */
        bool constant;           /* mean and rstd do not depend on x: the running statistics */
        float *dx;               /* may be NULL */
        float *dweight, *dbias;
        float *work; /* group norm: 4 * rows * channels */
};

/* Layer norm (without `centred`: RMS norm) of n rows of `width`. kept: mean and 1 / deviation of each. */
struct mfl_rownorm {
        int64_t n, width;
        float eps;
        bool centred;
        int threads;
};

/* Attention as in graph.h over rows of {positions, 3 width}. The softmax is not kept. Backward computes it
 * again from the largest score and the sum of each query, two floats in `kept`: what a head works on fits the
 * caches, and its softmax in memory would not. */
struct mfl_attention {
        int64_t first_row, positions, width; /* first_row: number of the first row within the step */
        int heads;
        bool causal;
        float rate;
        const struct mfl_rng_key *dropout; /* of the layer and step; NULL: none */
        const float *mask;                 /* rows * positions, added to the scores of keys; NULL: none */
        const float *x, *dy;
        float *kept, *y, *dx; /* kept: 2 * rows * heads * positions */
};
#define MFL_ATTENTION_ROWS 48 /* queries at a time; what a causal mask hides is skipped in steps of it */
static inline int64_t mfl_attention_work(int64_t positions, int64_t size)
{
        return MFL_GEMM_WORK + 4 * MFL_ATTENTION_ROWS * positions + 8 +
               3 * MFL_MAX(mfl_gemm_packed_floats(size, positions), mfl_gemm_packed_floats(positions, size));
}

/* The state of a recurrent layer. gates: 4 hidden floats for each row and position. Before a forward they hold the
 * input's share; after it the gates (GRU: r, z, n, and the hidden share of n); after backward their
 * gradients. */
struct mfl_recurrent {
        int64_t rows, positions, hidden;
        enum mfl_cell kind;
        bool last_cell;
        float *gates, *cells, *y;
        const float *before, *zeros; /* before: the hidden share of each row's gates at this position */
        float *dh, *dc;              /* of each row, from later positions */
};

/* One prediction; scale: the factor of its gradient. */
struct mfl_logits {
        int classes, label;
        float smoothing, scale;
};
/* From here on, classes use vector exponentials; below it, the bits of bodies.h. */
#define MFL_CLASSES_MANY 1025

/* x and x2 of add and multiply as three dimensions each; a dimension of x2 is x's or 1. */
struct mfl_join {
        int64_t rows, dim[3], dim2[3];
};

/* A tensor seen from one of its dimensions; the rows are among the outer ones. */
struct mfl_axis {
        int64_t outer, n, inner;
};

/* A sparse linear map of `blocks` blocks; backward has the transposed table, and no fill. */
struct mfl_map_loop {
        int64_t blocks, n_in, inner;
        const struct mfl_map_rows *rows;
        float fill;
        int threads;
};

/* Matrix products and what uses them: all that differs in a bfloat16 network. */
struct mfl_products {
        void (*gemm)(const struct mfl_gemm *g, float *work);
        /* The same with b packed once for many products, as packed_k x n; a product uses its first columns,
         * and its rows from `row` on. g->b is not read. */
        void (*gemm_pack)(int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_j, float *packed);
        void (*gemm_packed)(
                const struct mfl_gemm *g, const float *packed, int64_t packed_k, int64_t row, float *work);
        /* Pairs of row and head [begin, end); work: mfl_attention_work floats for the thread. */
        void (*attention_forward)(const struct mfl_attention *v, int64_t begin, int64_t end, float *work);
        void (*attention_backward)(const struct mfl_attention *v, int64_t begin, int64_t end, float *work);
        /* Convolutions on tiles; NULL where there are none. bias, dbias: NULL where the layer has none. */
        size_t (*tile_work)(const struct mfl_tile_conv *v, bool training);
        void (*tile_forward)(
                const struct mfl_tile_conv *v, const float *x, const float *w, const float *bias, float *y);
        void (*tile_data)(const struct mfl_tile_conv *v, const float *w, const float *dy, float *dx);
        void (*tile_gradient)(
                const struct mfl_tile_conv *v, const float *x, const float *dy, float *dw, float *dbias);
};

struct mfl_loops {
        const char *name;
        int lanes; /* floats of a vector */
        void (*dense_forward)(
                const struct mfl_dense *d, const float *x, const float *w, const float *bias, float *y);
        /* dx (NULL: not wanted) is computed from the weights before their step. apply NULL: dx alone. */
        void (*dense_backward)(const struct mfl_dense *d, const float *dy, const float *x, const float *w,
                float *dx, const struct mfl_apply *apply);
        void (*dense_products)(const struct mfl_dense *d, const struct mfl_dense_products *v);
        void (*dense_backward_bias)(
                const struct mfl_dense *d, const float *dy, const struct mfl_apply *apply);
        /* The step of n parameters with gradient g. */
        void (*update)(int64_t n, const float *g, const struct mfl_apply *apply, int threads);

        struct mfl_products products;

        /* bias, dbias: NULL where there is none. */
        void (*small_forward)(
                const struct mfl_small_conv *v, const float *x, const float *w, const float *bias, float *y);
        void (*small_data)(const struct mfl_small_conv *v, const float *w, const float *dy, float *dx);
        void (*small_gradient)(
                const struct mfl_small_conv *v, const float *x, const float *dy, float *dw, float *dbias);
        /* dbias may be NULL. */
        void (*block_gradient)(
                const struct mfl_block_conv *v, const float *x, const float *dy, float *dw, float *dbias);

        /* argmax: which tap of the window was largest, one per output float. relu: backward takes the
         * gradient only where y > 0. */
        void (*maxpool_forward)(const struct mfl_pool *p, const float *x, float *y, uint16_t *argmax);
        void (*maxpool_backward)(const struct mfl_pool *p, const float *dy, const float *y,
                const uint16_t *argmax, bool relu, float *dx);
        void (*avgpool_forward)(const struct mfl_pool *p, const float *x, float *y);
        void (*avgpool_backward)(const struct mfl_pool *p, const float *dy, float *dx);

        /* The statistics of x; var (batch norm only): the biased variance. */
        void (*norm_moments)(
                const struct mfl_norm_loop *v, const float *x, float *mean, float *rstd, float *var);
        void (*norm_forward)(const struct mfl_norm_loop *v, const float *x, const struct mfl_norm_vectors *p,
                bool relu, float *y);
        void (*norm_backward)(const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p,
                const struct mfl_norm_grad *g);

        void (*rownorm_forward)(const struct mfl_rownorm *v, const float *x, const float *weight,
                const float *bias, float *kept, float *y); /* bias may be NULL */
        void (*rownorm_grad)(const struct mfl_rownorm *v, const float *x, const float *kept, const float *dy,
                const float *weight, float *dx);
        /* dbias may be NULL. */
        void (*rownorm_params)(const struct mfl_rownorm *v, const float *x, const float *kept,
                const float *dy, float *dweight, float *dbias);
        void (*column_sums)(int64_t n, int64_t width, int64_t stride, const float *x, float *sums);
        /* Of n rows. */
        void (*softmax)(int64_t n, int64_t width, const float *x, float *y, int threads);
        void (*softmax_grad)(
                int64_t n, int64_t width, const float *y, const float *dy, float *dx, int threads);
        /* Position t of all rows. grad: dh becomes the part that reaches the position before through GRU's z
         * alone. */
        void (*recurrent_cells)(const struct mfl_recurrent *v, int64_t t);
        void (*recurrent_cells_grad)(const struct mfl_recurrent *v, const float *dy, int64_t t);
        void (*join)(const struct mfl_join *v, enum mfl_op op, const float *x, const float *x2, float *y);
        void (*join_grad2)(const struct mfl_join *v, const float *x, const float *dy, float *dx2);
        void (*mean)(const struct mfl_axis *v, const float *x, float *y);
        void (*mean_grad)(const struct mfl_axis *v, const float *dy, float *dx);
        void (*map)(const struct mfl_map_loop *v, const float *x, float *y);
        /* Softmax cross entropy of one position, for many classes: bodies.h in vectors, with label smoothing
         * too. dz may be NULL. */
        float (*cross_entropy)(const struct mfl_logits *v, const float *z, float *dz, bool *ret_hit);
        /* The sum of squares, in double. */
        double (*squares)(int64_t n, const float *x);
        /* sum[i] += (first: =) g[i] * factor, a power of two, rounded to an integer; the largest |g[i]|, infinity for
         * what is not finite. */
        float (*round_add)(int64_t n, const float *g, double factor, bool first, int64_t *sum);
        /* g[i] = sum[i] * factor, a power of two */
        void (*unround)(int64_t n, const int64_t *sum, double factor, float *g);
        /* x[i] *= factor */
        void (*scale)(int64_t n, float factor, float *x);

        /* Elementwise; x and y, and dy and dx, may be the same. */
        void (*add)(int64_t n, const float *a, const float *b, bool relu, float *y, int threads);
        /* dx = dy where y > 0; other = or += the same: the backward of add and ReLU together. */
        void (*join_grad)(
                int64_t n, const float *y, const float *dy, float *dx, float *other, bool sum, int threads);
        /* A function of one variable with parameters a and b. v: what mfl_unaries says that its derivative
         * reads. */
        void (*curve)(
                enum mfl_curve curve, float a, float b, int64_t n, const float *x, float *y, int threads);
        void (*curve_grad)(enum mfl_curve curve, float a, float b, int64_t n, const float *v, const float *dy,
                float *dx, int threads);
        void (*multiply)(int64_t n, const float *x, const float *factor, float *y, int threads);
        /* factor[i] for elements [first, first + n) of a dropout mask; first is a multiple of 4. */
        void (*dropout)(struct mfl_rng_key key, uint64_t first, int64_t n, float rate, float *factor);
        /* x[i] = src[i] * scale + shift */
        void (*gather_u8)(int64_t n, const uint8_t *src, float scale, float shift, float *x);
};

extern const struct mfl_loops mfl_loops_base;
extern const struct mfl_products mfl_products_base_bf16, mfl_products_base_tile;
#if defined(__x86_64__)
extern const struct mfl_loops mfl_loops_avx2, mfl_loops_avx512;
extern const struct mfl_products mfl_products_avx512_bf16, mfl_products_amx_bf16;
#endif
/* The best loops that this processor runs. */
const struct mfl_loops *mfl_loops_choose(void);
/* The same loops with matrix products of bfloat16, or the base's where they are for tests. */
void mfl_loops_bf16(const struct mfl_loops *loops, enum mfl_cpu_bf16 bf16, struct mfl_loops *ret_loops);

#endif
