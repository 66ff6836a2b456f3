/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the convolutions that the own loops of loops_conv.h take, and sizes the memory that they need. */
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
