/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps. A map of each channel's plane by itself works in the layout of convolutions; every other map
 * works in plain order. */
#include "kernels/cpu/op.h"

bool mfl_cpu_map_keeps_layout(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = &net->graph->layers[layer->input].out, *out = &layer->out;
        const struct mfl_map *map = net->maps[i];
        /* NHWC and blocks of channels alike: a block is a plane of vectors. */
        return in->rank == 3 && out->rank == 3 && in->dim[0] == out->dim[0] && map->outer % in->dim[0] == 0;
}

static struct mfl_map_loop loop_of(const struct mfl_net *net, int i)
{
        const struct mfl_map *map = net->maps[i];
        const struct mfl_layout *l = &net->layers[net->graph->layers[i].input].layout;
        struct mfl_map_loop v = {.blocks = net->rows * map->outer,
                .n_in = map->n_in,
                .inner = map->inner,
                .rows = &map->y,
                .fill = map->fill,
                .threads = net->options.threads};
        if (!net->layers[i].plain) {
                v.blocks = net->rows * l->n_blocks * (map->outer / l->c);
                v.inner *= l->block;
        }
        return v;
}

static int map_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_cpu_layer *own = &net->layers[i];
        int input = net->graph->layers[i].input;
        struct mfl_map_loop v = loop_of(net, i);
        net->device->loops->map(
                &v, own->plain ? mfl_cpu_plain(net, input, 0) : mfl_cpu_act(net, input), mfl_cpu_act(net, i));
        if (v.fill != 0)
                mfl_layout_clear_padding(&own->layout, net->rows, mfl_cpu_act(net, i));
        return 0;
}

static int map_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        struct mfl_map_loop v = loop_of(net, i);
        v.n_in = net->maps[i]->n_out;
        v.rows = &net->maps[i]->x;
        v.fill = 0;
        if (dx)
                net->device->loops->map(&v, mfl_cpu_grad(net, i), dx);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_map = {MFL_CPU_YIELDS, map_forward, map_backward};
