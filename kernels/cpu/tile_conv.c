/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the convolutions of bf16 networks that the loops of loops_conv_tile.h take, and sizes the memory that they need. */
#include "kernels/cpu/conv.h"

bool mfl_tile_conv_takes(const struct mfl_window *v, const struct mfl_loops *loops)
{
        for (int a = 0; a < 2; a++)
                if (v->d[a] != 1 || v->p[a] >= v->k[a])
                        return false;
        return loops->products.tile_work && v->groups == 1 && v->s[0] == v->s[1];
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
