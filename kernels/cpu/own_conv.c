/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the convolutions that the own loops take, and sizes the memory that they need: those of few channels (loops_conv.h), the
 * gradients of weights between blocks of channels (loops_conv_block.h), and those on tiles (bf16/conv_tile.h). */
#include "kernels/cpu/conv.h"

#define CHANNELS_MAX 8
#define OUTS_MAX 16
#define WINDOW_MAX 16
#define SIDE_MAX 4096  /* of an image: keeps products of sizes small */
#define WORK_MAX 65536 /* floats: a sample and its gradients stay in the second cache */

/* Floats of the output's blocks: at least a vector, and a layout that the library knows too; 1: plain. */
static int64_t block_of(const struct mfl_window *v, int lanes)
{
        int64_t block = lanes > 8 ? 16 : 8;
        return v->o % block == 0 ? block : 1;
}

/* The most floats that loops_conv.h lays side by side for one thread: the reversed weights, or their
 * gradients' sums in each lane; the output's gradient spread out; the padded input. */
static int64_t work_of(const struct mfl_window *v, int lanes)
{
        int64_t input = v->c * (v->h + 2 * v->p[0]) * (v->w + 2 * v->p[1]) + lanes;
        int64_t spread = v->o * (v->oh * (v->w + MFL_MAX(2 * v->p[1], v->k[1] - 1)) + lanes);
        int64_t sums = v->c * v->k[0] * v->k[1] * v->o * (block_of(v, lanes) > 1 ? 1 : lanes);
        return (input + spread + sums + 15) / 16 * 16;
}

/* The library has its own method for images of one to three channels, which fills vectors with 16 outputs;
 * otherwise it needs more than 8 channels to be worth its padding. Measured on AVX2, it takes 1.1 to 4 times
 * as long for the shapes here. */
bool mfl_small_conv_takes(const struct mfl_window *v, const struct mfl_layout *in, int lanes)
{
        for (int a = 0; a < 2; a++)
                if (v->s[a] != 1 || v->d[a] != 1 || v->p[a] >= v->k[a] || v->k[a] > WINDOW_MAX)
                        return false;
        if (in->tag != dnnl_nchw || v->groups != 1 || v->c > CHANNELS_MAX || v->o > OUTS_MAX)
                return false;
        if ((v->c < 4 && v->o == OUTS_MAX) || v->h > SIDE_MAX || v->w > SIDE_MAX)
                return false;
        return work_of(v, lanes) <= WORK_MAX;
}

int mfl_small_conv_init(struct mfl_cpu_conv *conv, const struct mfl_loops *loops, const struct mfl_shape *out,
        const struct mfl_net_options *options, bool relu, struct mfl_layout *ret_out, struct mfl_error *err)
{
        const struct mfl_window *v = &conv->window;
        const dnnl_dims_t weights = {v->o, v->c, v->k[0], v->k[1]};
        int64_t block = block_of(v, loops->lanes);
        if (mfl_md_by_tag(&conv->weights, 4, weights, dnnl_oihw))
                return mfl_fail(err, -ENOMEM, "cpu: convolution: out of memory");
        *ret_out = mfl_layout_of(out, block == 16 ? dnnl_nChw16c : block == 8 ? dnnl_nChw8c : dnnl_nchw);
        conv->loops = loops;
        conv->small = (struct mfl_small_conv){.window = *v,
                .out = *ret_out,
                .rows = options->batch,
                .relu = relu,
                .threads = options->threads,
                .work_floats = work_of(v, loops->lanes)};
        conv->scratch_bytes = (size_t)(conv->small.work_floats * options->threads) * sizeof(float);
        return 0;
}

void mfl_small_conv_to_flat(const struct mfl_window *v, const float *wide, float *flat)
{
        int64_t taps = v->c * v->k[0] * v->k[1];
        for (int64_t o = 0; o < v->o; o++)
                for (int64_t t = 0; t < taps; t++)
                        *flat++ = wide[t * v->o + o];
}

#define PART_FLOATS 262144    /* of padded input side by side: fits the second cache */
#define SAMPLE_FLOATS 1048576 /* the most that one sample may take there */

/* The library goes through the tensors once for each tap and keeps 8 sums in registers. Measured on AVX2, it
 * does 42 to 55 billion operations a second out of 110; these loops do 80 to 95. Its AVX-512 kernels reach
 * the processor's peak. */
bool mfl_block_conv_takes(
        const struct mfl_cpu_conv *conv, const struct mfl_layout *in, const struct mfl_layout *out, int lanes)
{
        const struct mfl_window *v = &conv->window;
        const dnnl_dims_t dims = {v->o, v->c, v->k[0], v->k[1]};
        struct mfl_md blocked = {0};
        int64_t sample = v->c * (v->h + 2 * v->p[0]) * (v->w + 2 * v->p[1]);
        if (lanes != 8 || conv->bf16 || conv->transposed || v->groups != 1 || v->d[0] != 1 || v->d[1] != 1)
                return false;
        if (in->tag != dnnl_nChw8c || out->tag != dnnl_nChw8c || v->c % 8 || v->o % 8 ||
                sample > SAMPLE_FLOATS)
                return false;
        bool same = !mfl_md_by_tag(&blocked, 4, dims, dnnl_ABcd8b8a) &&
                    mfl_md_same(mfl_md_in(&conv->weights), mfl_md_in(&blocked));
        mfl_md_free(&blocked);
        return same;
}

void mfl_block_conv_init(
        struct mfl_cpu_conv *conv, const struct mfl_layout *out, const struct mfl_net_options *options)
{
        const struct mfl_window *v = &conv->window;
        int64_t sample = v->c * (v->h + 2 * v->p[0]) * (v->w + 2 * v->p[1]);
        int64_t part = MFL_MIN(MFL_MAX(PART_FLOATS / sample, 1), options->batch);
        conv->block = (struct mfl_block_conv){
                .window = *v, .out = *out, .rows = options->batch, .part = part, .threads = options->threads};
        if (v->p[0] || v->p[1])
                conv->scratch_bytes = MFL_MAX(conv->scratch_bytes, (size_t)(part * sample) * sizeof(float));
}

bool mfl_tile_conv_takes(const struct mfl_window *v, const struct mfl_loops *loops)
{
        for (int a = 0; a < 2; a++)
                if (v->d[a] != 1 || v->p[a] >= v->k[a])
                        return false;
        /* The loops gather 16 outputs' weights by offsets of 32 bits. */
        if (v->c * v->k[0] * v->k[1] > INT32_MAX / 16)
                return false;
        return loops->products.tile_work && v->groups == 1 && v->s[0] == v->s[1];
}

uint64_t mfl_tile_conv_most(const struct mfl_graph *graph, int layer, const struct mfl_net_options *options)
{
        static const dnnl_format_tag_t tags[] = {
                dnnl_nchw, dnnl_nChw16c}; /* others pad channels as one of these */
        struct mfl_loops loops;
        uint64_t most = 0;
        if (graph->layers[layer].op != MFL_OP_CONV2D)
                return 0;
        struct mfl_tile_conv v = {.window = mfl_window_of(graph, layer),
                .out = mfl_layout_of(&graph->layers[layer].out, dnnl_nChw16c),
                .rows = options->batch,
                .threads = options->threads};
        mfl_loops_bf16(mfl_loops_choose(), mfl_cpu_bf16_choose(), &loops);
        if (!mfl_tile_conv_takes(&v.window, &loops))
                return 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tags); i++) {
                v.in = mfl_layout_of(&graph->layers[graph->layers[layer].input].out, tags[i]);
                most = MFL_MAX(most, loops.products.tile_work(&v, options->training));
        }
        return most;
}

int mfl_tile_conv_init(struct mfl_cpu_conv *conv, const struct mfl_loops *loops, const struct mfl_layout *in,
        const struct mfl_shape *out, const struct mfl_net_options *options, bool relu,
        struct mfl_layout *ret_out, struct mfl_error *err)
{
        const struct mfl_window *v = &conv->window;
        const dnnl_dims_t weights = {v->o, v->c, v->k[0], v->k[1]};
        if (mfl_md_by_tag(&conv->weights, 4, weights, dnnl_oihw))
                return mfl_fail(err, -ENOMEM, "cpu: convolution: out of memory");
        *ret_out = mfl_layout_of(out, dnnl_nChw16c);
        conv->loops = loops;
        conv->on_tiles = true;
        conv->tile = (struct mfl_tile_conv){.window = *v,
                .in = *in,
                .out = *ret_out,
                .rows = options->batch,
                .relu = relu,
                .threads = options->threads};
        conv->scratch_bytes = loops->products.tile_work(&conv->tile, options->training);
        return 0;
}
