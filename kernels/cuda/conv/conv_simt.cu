/* SPDX-License-Identifier: Apache-2.0 */
/* The fp32 family of conv.h: which kernels can do a problem, in the order of their guessed time, and how they
 * are started; and the kernel that sums split segments. */
#include "kernels/cuda/conv/conv_simt.h"

struct simt_choice {
        const struct mfl_simt_kernel *kernel;
        bool split;
        double clocks;
};

/* A pass as a product; 64-bit, because one batch may have more than 2^31 pixels. */
struct simt_sizes {
        int64_t m, n, red;
};

static struct simt_sizes sizes_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        int64_t in = (int64_t)conv->n * conv->h * conv->w, out = (int64_t)conv->n * conv->oh * conv->ow;
        int64_t taps = (int64_t)conv->r * conv->s;
        struct simt_sizes z = {out, conv->k, taps * conv->c};
        if (pass == MFL_CUDA_BACKWARD_DATA) {
                z.m = in;
                z.n = conv->c;
                z.red = taps * conv->k;
        }
        if (pass == MFL_CUDA_BACKWARD_WEIGHTS) {
                z.m = conv->k;
                z.n = taps * conv->c;
                z.red = out;
        }
        return z;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
        return (a + b - 1) / b;
}

/* Long reductions with few outputs are cut so that one client alone can fill a large device (about 256 tiles
 * of 32x32), but not below 128 steps. Sums of several thousand steps are cut for accuracy. Segments of pixels
 * are whole rows of the image where there are rows. This rule is part of the bits: a change of it changes
 * every model. */
static int64_t segment_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        struct simt_sizes z = sizes_of(conv, pass);
        int64_t tiles = ceil_div(z.m, 32) * ceil_div(z.n, 32), pieces = 1;
        if (z.red >= 256 && tiles < 128) {
                int64_t wanted = ceil_div(256, tiles), longest = ceil_div(z.red, 128);
                pieces = wanted < longest ? wanted : longest;
        }
        int64_t segment = ceil_div(z.red, pieces), unit = 32;
        if (pass == MFL_CUDA_BACKWARD_WEIGHTS && (int64_t)conv->oh * conv->ow > 1)
                unit = conv->ow;
        segment = segment < 4096 ? segment : 4096;
        segment = ceil_div(segment, unit) * unit;
        return segment < z.red ? segment : z.red;
}

/* A rough time, to rank by: lanes of arithmetic and loads, spread over 132 multiprocessors of 128 lanes; but
 * no faster than one block after another, where a block is limited by its own lanes and by the latency of its
 * steps. Only the order matters, and measuring overrules it. */
static double guess_clocks(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass,
        const struct mfl_simt_kernel *kernel, bool split)
{
        struct simt_sizes z = sizes_of(conv, pass);
        int64_t segment = segment_of(conv, pass), segments = ceil_div(z.red, segment);
        int64_t rounds = ceil_div(segments, kernel->slices);
        bool vector_a = (pass == MFL_CUDA_FORWARD ? conv->c : conv->k) % 4 == 0;
        bool vector_b = pass == MFL_CUDA_FORWARD ? z.red % 4 == 0 : conv->c % 4 == 0;
        if (kernel->direct) { /* threads of 4 pixels (taps) x 8 channels: 43 instructions a step */
                bool weights = pass == MFL_CUDA_BACKWARD_WEIGHTS;
                double threads = weights ? (double)ceil_div(z.n + 1, 4) * (double)ceil_div(z.m, 8)
                                         : (double)ceil_div(z.m, 4) * (double)ceil_div(z.n, 8);
                double all = (double)conv->groups * threads * (double)z.red * 45.0 / (132.0 * 128.0);
                double chain = (double)z.red * 60.0 + 4000.0;
                if (weights) { /* 256 threads per block and group, with little to hide the loads behind */
                        double waves = (double)conv->groups / (132.0 * 4.0);
                        all *= 1.3;
                        chain = threads * (double)z.red * 50.0 / 128.0 * (waves > 1.0 ? waves : 1.0);
                }
                return all > chain ? all : chain;
        }
        double blocks = (double)conv->groups * (double)ceil_div(z.m, kernel->bm) *
                        (double)ceil_div(z.n, kernel->bn) * (split ? (double)rounds : 1.0);
        double steps = (double)segment * (split ? 1.0 : (double)rounds);
        double lanes = kernel->slices *
                       ((double)kernel->bm * kernel->bn * 1.3 + kernel->bm * (vector_a ? 4.0 : 12.0) +
                               kernel->bn * (vector_b ? 4.0 : 12.0));
        double ends = (double)kernel->bm * kernel->bn * 12.0 + kernel->bm * 40.0; /* start and epilogue */
        double width = kernel->threads < 128 ? kernel->threads : 128.0;
        double alone = (steps * lanes + ends) / width;
        double latency = 1500.0 + steps / 16.0 * 500.0;
        double together = blocks * (steps * lanes + ends) / (132.0 * 128.0);
        double waves = blocks / (132.0 * 4.0);
        double chain = (alone > latency ? alone : latency) * (waves > 1.0 ? waves / 2.0 : 1.0);
        double clocks = together > chain ? together : chain;
        if (split) /* a second launch, and the segments' way through memory */
                clocks += 3500.0 + (double)conv->groups * (double)(segments * z.m * z.n) * 8.0 / 2000.0;
        return clocks;
}

static const struct mfl_simt_kernel *kernels_of(enum mfl_cuda_pass pass, int *ret_count)
{
        *ret_count = pass == MFL_CUDA_FORWARD         ? mfl_simt_forward_count
                     : pass == MFL_CUDA_BACKWARD_DATA ? mfl_simt_data_count
                                                      : mfl_simt_weights_count;
        return pass == MFL_CUDA_FORWARD         ? mfl_simt_forward
               : pass == MFL_CUDA_BACKWARD_DATA ? mfl_simt_data
                                                : mfl_simt_weights;
}

/* All choices, the one with the shortest guessed time first. */
static int choices_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct simt_choice *choices)
{
        int n_kernels, n = 0;
        const struct mfl_simt_kernel *kernels = kernels_of(pass, &n_kernels);
        struct mfl_simt_args shape;
        mfl_simt_shape(conv, pass, &shape);
        int64_t segments = shape.n_segments;
        for (int i = 0; i < 2 * n_kernels; i++) {
                const struct mfl_simt_kernel *kernel = &kernels[i / 2];
                bool split = i % 2 == 1;
                if ((kernel->can && !kernel->can(&shape)) ||
                        (split && (kernel->direct || segments <= kernel->slices)))
                        continue;
                struct simt_choice c = {kernel, split, guess_clocks(conv, pass, kernel, split)};
                int at = n++;
                for (; at > 0 && choices[at - 1].clocks > c.clocks; at--)
                        choices[at] = choices[at - 1];
                choices[at] = c;
        }
        return n;
}

static int count_variants(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        struct simt_choice choices[2 * MFL_SIMT_KERNELS_MAX];
        return choices_of(conv, pass, choices);
}

static struct simt_choice choice_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        struct simt_choice choices[2 * MFL_SIMT_KERNELS_MAX];
        int n = choices_of(conv, pass, choices);
        return choices[variant >= 0 && variant < n ? variant : 0];
}

static const char *name_variant(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        struct simt_choice c = choice_of(conv, pass, variant);
        return c.split ? c.kernel->name_split : c.kernel->name;
}

/* There is room for db whether it is wanted or not. */
static uint64_t count_workspace(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        if (!choice_of(conv, pass, variant).split)
                return 0;
        struct simt_sizes z = sizes_of(conv, pass);
        int64_t segments = ceil_div(z.red, segment_of(conv, pass));
        int64_t floats = z.m * z.n + (pass == MFL_CUDA_BACKWARD_WEIGHTS ? z.m : 0);
        return (uint64_t)conv->groups * (uint64_t)segments * (uint64_t)floats * sizeof(float);
}

static bool on_16_bytes(const void *p, uint64_t group_stride)
{
        return (uintptr_t)p % 16 == 0 && group_stride % 4 == 0;
}

void mfl_simt_shape(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct mfl_simt_args *a)
{
        struct simt_sizes z = sizes_of(conv, pass);
        bool data = pass == MFL_CUDA_BACKWARD_DATA;
        a->groups = conv->groups;
        a->m = z.m;
        a->n = (int)z.n;
        a->red = z.red;
        a->segment = segment_of(conv, pass);
        a->n_segments = ceil_div(z.red, a->segment);
        a->grid_w = data ? conv->w : conv->ow;
        a->grid_pixels = data ? conv->h * conv->w : conv->oh * conv->ow;
        a->sh = data ? conv->oh : conv->h;
        a->sw = data ? conv->ow : conv->w;
        a->sc = data ? conv->k : conv->c;
        a->s = conv->s;
        a->rs = conv->r * conv->s;
        a->c = conv->c;
        a->k = conv->k;
        for (int i = 0; i < 2; i++) {
                a->stride[i] = conv->stride[i];
                a->pad[i] = conv->pad[i];
                a->dilation[i] = conv->dilation[i];
        }
        a->by_grid_pixels = mfl_simt_divide_by(a->grid_pixels);
        a->by_grid_w = mfl_simt_divide_by(a->grid_w);
        a->by_sc = mfl_simt_divide_by(a->sc);
        a->by_s = mfl_simt_divide_by(a->s);
        a->by_stride_h = mfl_simt_divide_by(conv->stride[0]);
        a->by_stride_w = mfl_simt_divide_by(conv->stride[1]);
}

static void fill_tensors(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass,
        const struct mfl_cuda_conv_args *args, struct mfl_simt_args *a)
{
        int64_t x_group = (int64_t)conv->n * conv->h * conv->w * conv->c;
        int64_t y_group = (int64_t)conv->n * conv->oh * conv->ow * conv->k;
        const float *x = (const float *)args->x, *dy = (const float *)args->dy, *w = (const float *)args->w;
        bool forward = pass == MFL_CUDA_FORWARD, data = pass == MFL_CUDA_BACKWARD_DATA;
        a->a = forward ? x : dy;
        a->b = forward || data ? w : x;
        a->a_group = forward ? x_group : y_group;
        a->b_group = forward || data ? (int64_t)args->w_stride : x_group;
        a->out = forward ? (float *)args->y : data ? (float *)args->dx : args->dw;
        a->out_group = forward ? y_group : data ? x_group : (int64_t)args->p_stride;
        a->bias = forward ? args->bias : NULL;
        a->db = forward || data ? NULL : args->db;
        a->param_group = (int64_t)args->p_stride;
        a->act = forward || data ? args->act : MFL_CUDA_ACT_NONE;
        a->act_y = data ? (const float *)args->act_y : NULL;
        a->add = data && args->add;
        a->steps = args->steps;
        a->work = (float *)args->workspace;
        a->vector_a = (forward ? conv->c : conv->k) % 4 == 0 && on_16_bytes(a->a, (uint64_t)a->a_group);
        a->vector_b = (forward ? a->red : conv->c) % 4 == 0 && on_16_bytes(a->b, (uint64_t)a->b_group);
}

static cudaError_t run_variant(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant,
        const struct mfl_cuda_conv_args *args, cudaStream_t stream)
{
        struct mfl_simt_args a;
        struct simt_choice c = choice_of(conv, pass, variant);
        mfl_simt_shape(conv, pass, &a);
        fill_tensors(conv, pass, args, &a);
        a.m_tiles = ceil_div(a.m, c.kernel->bm);
        a.n_tiles = ceil_div(a.n, c.kernel->bn);
        a.n_splits = c.split ? ceil_div(a.n_segments, c.kernel->slices) : 1;
        int64_t blocks = a.m_tiles * a.n_tiles * a.n_splits;
        if (!c.kernel->direct && blocks > INT32_MAX / conv->groups)
                return cudaErrorInvalidConfiguration;
        cudaError_t status = c.kernel->run(&a, blocks * conv->groups, stream);
        if (status == cudaSuccess && c.split)
                status = mfl_simt_reduce(&a, pass, conv->groups, stream);
        return status;
}

const struct mfl_cuda_conv_family mfl_cuda_conv_simt = {
        count_variants,
        name_variant,
        count_workspace,
        segment_of,
        run_variant,
};

/* ---- the segments' sums ---- */

struct simt_reduce {
        struct mfl_simt_args a;
        enum mfl_cuda_pass pass;
        int64_t blocks; /* of one group */
};

#define REDUCE_THREADS 128
/* Loads are made eight at a time, because only the additions have to wait for each other. */
MFL_KERNEL_BOUNDS(simt_reduce_kernel, struct simt_reduce, REDUCE_THREADS, 8)
{
        int64_t group = blockIdx.x / a.blocks, outputs = a.a.m * a.a.n;
        int64_t floats = outputs + (a.a.db ? a.a.m : 0);
        int64_t i = (blockIdx.x - group * a.blocks) * REDUCE_THREADS + threadIdx.x;
        if (i >= floats || mfl_simt_is_left_out(&a.a.steps, group))
                return;
        const float *from = a.a.work + group * a.a.n_segments * floats + i;
        float sum = 0.0f;
        int64_t s = 0;
        for (; s + 8 <= a.a.n_segments; s += 8) {
                float v[8];
                MFL_UNROLL
                for (int j = 0; j < 8; j++)
                        v[j] = from[(s + j) * floats];
                MFL_UNROLL
                for (int j = 0; j < 8; j++)
                        sum += v[j];
        }
        for (; s < a.a.n_segments; s++)
                sum += from[s * floats];
        if (i >= outputs)
                a.a.db[group * a.a.param_group + (i - outputs)] = sum;
        else
                a.a.out[group * a.a.out_group + i] =
                        mfl_simt_finish(&a.a, a.pass, group, i, (int)(i % a.a.n), sum);
}

cudaError_t mfl_simt_reduce(
        const struct mfl_simt_args *a, enum mfl_cuda_pass pass, int groups, cudaStream_t stream)
{
        struct simt_reduce r = {*a, pass, 0};
        r.blocks = mfl_blocks(a->m * a->n + (a->db ? a->m : 0), REDUCE_THREADS);
        if (r.blocks > INT32_MAX / groups)
                return cudaErrorInvalidConfiguration;
        return MFL_LAUNCH(simt_reduce_kernel, r.blocks * groups, 1, 1, REDUCE_THREADS, 0, stream, &r);
}
