/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's own loops, compiled for several instruction sets and chosen once at start.
 *
 * Dense layers are done here and not by oneDNN: none of the three products needs its weights
 * repacked, which for a batch of 10 or 32 costs as much as the product, and the optimizer's step
 * is taken on the gradient while it is still in registers. Each element of a result is summed in an order
 * that depends on the layer's sizes only, so results depend neither on the rows beside nor on the threads. No
 * allocation; `threads` > 1 divides outputs among OpenMP threads.
 */
#ifndef MFL_KERNELS_CPU_LOOPS_H
#define MFL_KERNELS_CPU_LOOPS_H

#include "kernels/backend.h"
#include "kernels/cpu/layout.h"
#include "kernels/plan.h"

struct mfl_dense {
        int64_t n_in, n_out, rows; /* x: rows * n_in, w: in panels, y: rows * n_out */
        bool relu;                 /* y = max(y, 0) */
        int threads;
};

/* Dense weights lie in panels: the first 64 columns of all outputs, output by output, then the next 64; the
 * last panel is narrower where n_in is no multiple of 64. A panel is the block that the products work
 * through, so that weights are read in the order in which they lie. */
#define MFL_DENSE_PANEL 64

/* What becomes of a gradient: written to grad where that is given, else the step of opt on p (m, p0 as in
 * bodies.h). */
struct mfl_apply {
        const struct mfl_optimizer *opt;
        float lr; /* of this step */
        float *grad, *p, *m;
        const float *p0;
};

struct mfl_pool {
        struct mfl_window window;
        struct mfl_layout in, out; /* of equal block */
        int64_t rows;
        int threads;
};

/* What batch and group norm work on: `rows` samples of `count` floats; element (c, p) of one is at
 * (c / block * pixels + p) * block + c % block. */
struct mfl_norm_loop {
        int64_t rows, count;
        int64_t channels, logical; /* with the lanes past the last channel, without */
        int64_t block, pixels;
        int64_t groups; /* group norm; 0 for batch norm */
        float eps;
        int threads;
};

/* mean and rstd = 1 / sqrt(var + eps): one per channel; for group norm one per row and channel, those of the
 * channel's group. */
struct mfl_norm_vectors {
        const float *mean, *rstd, *weight, *bias;
};

struct mfl_norm_grad {
        const float *x, *y,
                *dy;   /* y: dy is taken only where it is above 0, which a ReLU made it; NULL: as is */
        bool constant; /* mean and rstd do not depend on x: the running ones */
        float *dx;     /* may be NULL */
        float *dweight, *dbias;
        float *work; /* group norm: 4 * rows * channels */
};

struct mfl_loops {
        const char *name;
        void (*dense_forward)(
                const struct mfl_dense *d, const float *x, const float *w, const float *bias, float *y);
        /* dx (NULL: not wanted) is computed from the weights before they are stepped. */
        void (*dense_backward)(const struct mfl_dense *d, const float *dy, const float *x, const float *w,
                float *dx, const struct mfl_apply *apply);
        void (*dense_backward_bias)(
                const struct mfl_dense *d, const float *dy, const struct mfl_apply *apply);
        /* The step of n parameters, g being their gradient. */
        void (*update)(int64_t n, const float *g, const struct mfl_apply *apply, int threads);

        /* argmax: which tap of the window won, one per output float. relu: backward takes the gradient only
         * where y > 0. */
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

        /* Elementwise; x and y, and dy and dx, may be the same. */
        void (*add)(int64_t n, const float *a, const float *b, bool relu, float *y, int threads);
        /* dx = dy where y > 0; other = or += the same: the backward of add and ReLU. */
        void (*join_grad)(
                int64_t n, const float *y, const float *dy, float *dx, float *other, bool sum, int threads);
        void (*relu)(int64_t n, const float *x, float *y, int threads);
        void (*relu_grad)(int64_t n, const float *y, const float *dy, float *dx, int threads);
        void (*tanh)(int64_t n, const float *x, float *y, int threads);
        void (*tanh_grad)(int64_t n, const float *y, const float *dy, float *dx, int threads);
        void (*sigmoid)(int64_t n, const float *x, float *y, int threads);
        void (*sigmoid_grad)(int64_t n, const float *y, const float *dy, float *dx, int threads);
        void (*multiply)(int64_t n, const float *x, const float *factor, float *y, int threads);
        /* factor[i] for elements [first, first + n) of a dropout mask; first is a multiple of 4. */
        void (*dropout)(struct mfl_rng_key key, uint64_t first, int64_t n, float rate, float *factor);
        /* x[i] = src[i] * scale + shift */
        void (*gather_u8)(int64_t n, const uint8_t *src, float scale, float shift, float *x);
};

extern const struct mfl_loops mfl_loops_base;
#if defined(__x86_64__)
extern const struct mfl_loops mfl_loops_avx2, mfl_loops_avx512;
#endif
/* The best that this processor runs. */
const struct mfl_loops *mfl_loops_choose(void);

#endif
