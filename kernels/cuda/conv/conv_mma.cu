/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of the tensor-core family (conv_mma.h): the variants and their order, their arguments and
 * launches; and the kernel that adds the segments of a split launch. */
#include "kernels/cuda/conv/conv_mma_tile.h"

/* ---- the second launch of a split variant ---- */

MFL_KERNEL(sum_segments, struct mfl_mma_args)
{
        int64_t outputs = (int64_t)a.m * a.n, i = MFL_GLOBAL_INDEX;
        int group = (int)blockIdx.z;
        if (mfl_cuda_rows(&a.steps, (uint32_t)group) == 0)
                return;
        const float *sums = a.workspace;
        int64_t apart = outputs, at = i;
        if (i >= outputs) { /* rows of db come after the outputs */
                at = i - outputs;
                if (!a.db || at >= a.m)
                        return;
                sums = a.workspace_db;
                apart = a.m;
        }
        sums += (int64_t)group * a.segments * apart + at;
        float v = sums[0];
        for (int segment = 1; segment < a.segments; segment++)
                v += sums[segment * apart];
        if (i >= outputs)
                a.db[(int64_t)group * (int64_t)a.p_stride + at] = v;
        else
                mma_finish(&a, a.pass, a.type, group, at, (int)((uint32_t)at % (uint32_t)a.n), v);
}

static cudaError_t launch_sum(const struct mfl_mma_args *a, int groups, cudaStream_t stream)
{
        int64_t n = (int64_t)a->m * a->n + (a->db ? a->m : 0);
        return MFL_LAUNCH(sum_segments, mfl_blocks(n, 256), 1, groups, 256, 0, stream, a);
}

/* ---- sizes ---- */

struct product {
        int64_t m, n, kk;
};

static struct product product_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        int64_t rows_in = (int64_t)conv->n * conv->h * conv->w,
                rows_out = (int64_t)conv->n * conv->oh * conv->ow;
        int64_t taps = (int64_t)conv->r * conv->s;
        struct product forward = {rows_out, conv->k, taps * conv->c};
        struct product data = {rows_in, conv->c, taps * conv->k};
        struct product weights = {conv->k, taps * conv->c, rows_out};
        return pass == MFL_CUDA_FORWARD ? forward : pass == MFL_CUDA_BACKWARD_DATA ? data : weights;
}

static int64_t divide_up(int64_t a, int64_t b)
{
        return (a + b - 1) / b;
}

enum {
        SEGMENT_MIN = 512,
        SEGMENT_MAX = 4096,
        BLOCKS_WANTED = 128, /* of one client, when its weight gradient is split */
};

/* A function of the shape alone. Forward and backward data: a length that lets a dense layer of one client
 * spread over a GPU. Backward weights: long where there are enough tiles, since every segment writes all of
 * dw. */
static int64_t mma_segment(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        if (pass != MFL_CUDA_BACKWARD_WEIGHTS)
                return SEGMENT_MIN;
        struct product p = product_of(conv, pass);
        int64_t tiles = divide_up(p.m, 64) * divide_up(p.n, 64), length = SEGMENT_MIN;
        while (length < SEGMENT_MAX && length * 2 * BLOCKS_WANTED <= p.kk * tiles)
                length *= 2;
        return length;
}

static int64_t segments_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        return divide_up(product_of(conv, pass).kk, mma_segment(conv, pass));
}

/* ---- variants ---- */

struct candidate {
        struct mfl_mma_kernel kernel;
        bool split;
        double cost;
};
enum {
        CANDIDATES_MAX = 16,
        GRID_MAX = 65535,        /* blocks along y and z */
        SPLIT_BLOCKS_MAX = 1024, /* this many tiles keep any GPU busy: splitting them would only cost
                                    memory */
};

static bool kernel_of(
        enum mfl_precision precision, enum mfl_cuda_pass pass, int tile, struct mfl_mma_kernel *ret)
{
        return precision == MFL_PRECISION_TF32   ? mfl_cuda_mma_kernel_tf32(pass, tile, ret)
               : precision == MFL_PRECISION_BF16 ? mfl_cuda_mma_kernel_bf16(pass, tile, ret)
               : precision == MFL_PRECISION_FP16 ? mfl_cuda_mma_kernel_f16(pass, tile, ret)
                                                 : false;
}

/* A guess of the time, in units of 1/32 clock of a multiprocessor: the throughput of all blocks on 132
 * multiprocessors or the latency of the waves they come in, whichever is longer, plus the workspace's
 * traffic. Only the order matters. A k-tile's products cost bm * bn; its copies and fragments cost about 24
 * for each row. */
static double cost_of(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, const struct candidate *c)
{
        const double multiprocessors = 132, k_tile_min = 8192, startup_k_tiles = 5;
        const struct mfl_mma_kernel *k = &c->kernel;
        struct product p = product_of(conv, pass);
        int64_t segments = c->split ? segments_of(conv, pass) : 1;
        double depth = (double)divide_up(divide_up(p.kk, segments), MFL_MMA_BK) + startup_k_tiles;
        double blocks =
                (double)(divide_up(p.m, k->bm) * divide_up(p.n, k->bn) * segments) * (double)conv->groups;
        double k_tile = (double)(k->bm * k->bn + 24 * (k->bm + k->bn));
        double resident = 512.0 / k->threads, waves = blocks / (multiprocessors * resident);
        double alone = k_tile * 256 / k->threads, latency = alone > k_tile_min ? alone : k_tile_min;
        double throughput = blocks * depth * k_tile / multiprocessors;
        double waiting = (waves < 1 ? 1 : waves) * depth * latency;
        double sums =
                c->split ? 110000 + 0.11 * (double)p.m * (double)p.n * (double)(segments * conv->groups) : 0;
        return (throughput > waiting ? throughput : waiting) + sums;
}

static bool may_split(
        const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, const struct mfl_mma_kernel *k)
{
        struct product p = product_of(conv, pass);
        int64_t segments = segments_of(conv, pass);
        int64_t blocks = divide_up(p.m, k->bm) * divide_up(p.n, k->bn) * conv->groups;
        return segments > 1 && segments <= GRID_MAX && blocks < SPLIT_BLOCKS_MAX;
}

/* Cheapest first; an insertion sort keeps equal ones in the order of the tiles. */
static int candidates_of(
        const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct candidate ret[CANDIDATES_MAX])
{
        int n = 0;
        struct candidate c;
        for (int i = 0; i / 2 < CANDIDATES_MAX / 2 && kernel_of(conv->precision, pass, i / 2, &c.kernel);
                i++) {
                c.split = i % 2;
                if (c.split && !may_split(conv, pass, &c.kernel))
                        continue;
                c.cost = cost_of(conv, pass, &c);
                int at = n++;
                for (; at > 0 && ret[at - 1].cost > c.cost; at--)
                        ret[at] = ret[at - 1];
                ret[at] = c;
        }
        return n;
}

static int mma_variants(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        struct candidate all[CANDIDATES_MAX];
        return candidates_of(conv, pass, all);
}

static const char *mma_variant_name(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        struct candidate all[CANDIDATES_MAX];
        int n = candidates_of(conv, pass, all);
        return variant >= 0 && variant < n ? all[variant].kernel.name[all[variant].split] : "none";
}

static uint64_t mma_workspace(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        struct candidate all[CANDIDATES_MAX];
        int n = candidates_of(conv, pass, all);
        if (variant < 0 || variant >= n || !all[variant].split)
                return 0;
        struct product p = product_of(conv, pass);
        int64_t rows_db = pass == MFL_CUDA_BACKWARD_WEIGHTS ? p.m : 0;
        return (uint64_t)(conv->groups * segments_of(conv, pass) * (p.m * p.n + rows_db)) * sizeof(float);
}

/* ---- arguments ---- */

static struct mfl_mma_div div_of(int64_t d)
{
        struct mfl_mma_div r = {(uint32_t)d, 0, 0};
        uint32_t bits = 0;
        while ((int64_t)1 << bits < d)
                bits++;
        if (d > 1) {
                r.mul = (uint32_t)((((uint64_t)1 << (31 + bits)) + (uint64_t)d - 1) / (uint64_t)d);
                r.shift = bits - 1;
        }
        return r;
}

/* The widest copy that is possible for a row of `elements` from `p` on, with groups `stride` apart. */
static int width_of(const void *p, uint64_t stride, int64_t elements, int bytes)
{
        uint64_t all = (uint64_t)(uintptr_t)p | stride * (uint64_t)bytes | (uint64_t)(elements * bytes);
        return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}

static void set_gather(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct mfl_mma_gather *g)
{
        bool data = pass == MFL_CUDA_BACKWARD_DATA;
        int lines = data ? conv->h : conv->oh, columns = data ? conv->w : conv->ow;
        g->h = data ? conv->oh : conv->h;
        g->w = data ? conv->ow : conv->w;
        g->c = data ? conv->k : conv->c;
        g->image = div_of((int64_t)lines * columns);
        g->line = div_of(columns);
        g->channels = div_of(g->c);
        g->columns = div_of(conv->s);
        g->stride_i = div_of(conv->stride[0]);
        g->stride_j = div_of(conv->stride[1]);
        g->strided = data && (conv->stride[0] > 1 || conv->stride[1] > 1);
        g->positions = conv->n * lines * columns;
        g->taps = conv->r * conv->s * g->c;
        g->mul_i = data ? 1 : conv->stride[0];
        g->mul_j = data ? 1 : conv->stride[1];
        g->add_i = data ? conv->pad[0] : -conv->pad[0];
        g->add_j = data ? conv->pad[1] : -conv->pad[1];
        g->step_i = data ? -conv->dilation[0] : conv->dilation[0];
        g->step_j = data ? -conv->dilation[1] : conv->dilation[1];
}

static void set_operands(const struct mfl_cuda_conv *conv, const struct mfl_cuda_conv_args *args,
        struct mfl_mma_args *a, int bytes)
{
        uint64_t image_in = (uint64_t)conv->n * conv->h * conv->w * conv->c;
        uint64_t image_out = (uint64_t)conv->n * conv->oh * conv->ow * conv->k;
        bool forward = a->pass == MFL_CUDA_FORWARD, data = a->pass == MFL_CUDA_BACKWARD_DATA;
        a->a = forward ? args->x : args->dy;
        a->a_stride = forward ? image_in : image_out;
        a->a_width = width_of(a->a, a->a_stride, forward ? conv->c : conv->k, bytes);
        a->b = forward || data ? args->w : args->x;
        a->b_stride = forward || data ? args->w_stride : image_in;
        a->b_width = width_of(a->b, a->b_stride, forward ? a->row_weights : conv->c, bytes);
        a->out = forward ? args->y : data ? args->dx : (void *)args->dw;
        a->out_stride = forward ? image_out : data ? image_in : args->p_stride;
        a->bias = forward ? args->bias : NULL;
        a->db = forward || data ? NULL : args->db;
        a->act = forward || data ? args->act : MFL_CUDA_ACT_NONE;
        a->act_y = data ? args->act_y : NULL;
        a->add = data && args->add;
}

/* Whether four adjacent outputs may be read and written at once. */
static bool is_wide(const struct mfl_mma_args *a, int out_bytes)
{
        uint64_t at = (uint64_t)(uintptr_t)a->out | (uint64_t)(uintptr_t)a->act_y |
                      a->out_stride * (uint64_t)out_bytes;
        if (a->workspace)
                return a->n % 4 == 0;
        return a->n % 4 == 0 && at % (4 * (uint64_t)out_bytes) == 0 && a->act <= MFL_CUDA_ACT_RELU;
}

static void set_args(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, const struct candidate *c,
        const struct mfl_cuda_conv_args *args, struct mfl_mma_args *a)
{
        struct product p = product_of(conv, pass);
        int bytes = mfl_cuda_type_bytes(mfl_cuda_type_of(conv->precision));
        a->pass = pass;
        a->type = mfl_cuda_type_of(conv->precision);
        a->m = (int)p.m;
        a->n = (int)p.n;
        a->kk = (int)p.kk;
        a->segment = (int)mma_segment(conv, pass);
        a->segments = (int)segments_of(conv, pass);
        a->row_weights = conv->r * conv->s * conv->c;
        a->c = conv->c;
        a->channels_out = div_of(conv->k);
        a->p_stride = args->p_stride;
        a->steps = args->steps;
        set_gather(conv, pass, &a->gather);
        set_operands(conv, args, a, bytes);
        if (c->split) {
                a->workspace = (float *)args->workspace;
                a->workspace_db = a->workspace + conv->groups * (p.m * p.n * a->segments);
        }
        a->wide = is_wide(a, pass == MFL_CUDA_BACKWARD_WEIGHTS ? 4 : bytes);
}

/* Kernels count the elements of one group in int. */
static bool fits(const struct mfl_cuda_conv *conv)
{
        const int64_t most = INT32_MAX - 4096;
        int64_t in = (int64_t)conv->n * conv->h * conv->w, out = (int64_t)conv->n * conv->oh * conv->ow;
        int64_t taps = (int64_t)conv->r * conv->s;
        return in <= most / conv->c && out <= most / conv->k && taps <= most / conv->c / conv->k &&
               conv->groups <= GRID_MAX;
}

static cudaError_t mma_run_variant(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant,
        const struct mfl_cuda_conv_args *args, cudaStream_t stream)
{
        struct candidate all[CANDIDATES_MAX];
        int n = candidates_of(conv, pass, all);
        if (variant < 0 || variant >= n || !fits(conv) || (all[variant].split && !args->workspace))
                return cudaErrorInvalidValue;
        const struct candidate *c = &all[variant];
        const struct mfl_mma_kernel *k = &c->kernel;
        struct mfl_mma_args a = {0};
        set_args(conv, pass, c, args, &a);
        if (k->shared_bytes > 48 << 10) { /* the limit of a launch unless the kernel was told */
                cudaError_t e = cudaFuncSetAttribute(
                        k->function, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared_bytes);
                if (e != cudaSuccess)
                        return e;
        }
        int64_t tiles = divide_up(a.m, k->bm) * divide_up(a.n, k->bn);
        cudaError_t e = MFL_LAUNCH(k->function, tiles, c->split ? a.segments : 1, conv->groups, k->threads,
                k->shared_bytes, stream, &a);
        return e == cudaSuccess && c->split ? launch_sum(&a, conv->groups, stream) : e;
}

const struct mfl_cuda_conv_family mfl_cuda_conv_mma = {
        mma_variants, mma_variant_name, mma_workspace, mma_segment, mma_run_variant};
