/* SPDX-License-Identifier: Apache-2.0 */
/* Converts parameters between the flat vector of the graph and this backend's layouts, and keeps the frozen ones. */
#include "kernels/cpu/net.h"

int64_t mfl_cpu_column_at(int64_t n_in, int64_t n_out, int64_t c, int64_t *ret_stride)
{
        int64_t first = c / MFL_DENSE_PANEL * MFL_DENSE_PANEL;
        *ret_stride = MFL_MIN(MFL_DENSE_PANEL, n_in - first);
        return first * n_out + c - first;
}

static void dense_to_flat(const struct mfl_layout *in, int64_t n_out, const float *wide, float *flat)
{
        for (int64_t k = 0; k < in->logical; k++) {
                int64_t stride, at = mfl_cpu_column_at(in->count, n_out, mfl_layout_at(in, k), &stride);
                for (int64_t o = 0; o < n_out; o++)
                        flat[o * in->logical + k] = wide[at + o * stride];
        }
}

/* Dense layers of vectors that train weights of their own have their own loops; the others are matrix products. */
bool mfl_cpu_is_product(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return layer->op == MFL_OP_DENSE &&
               (layer->out.rank == 2 || layer->lora_rank || !graph->params[layer->param_weight].trained ||
                       mfl_cpu_is_shared(graph, layer->param_weight));
}

bool mfl_cpu_is_flat(const struct mfl_net *net, const struct mfl_param *param)
{
        const struct mfl_layer *layer = &net->graph->layers[param->layer];
        if (param->n_uses > 1)
                return true;
        if (layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_CONVTRANSPOSE2D)
                return param->shape.rank == 1;
        return layer->op != MFL_OP_DENSE || net->layers[param->layer].gemm || param->shape.rank == 1;
}

int mfl_cpu_tensor_to_flat(struct mfl_net *net, int i, const float *from, float *to, struct mfl_error *err)
{
        const struct mfl_param *param = &net->graph->params[i];
        const struct mfl_layer *layer = &net->graph->layers[param->layer];
        if (mfl_cpu_is_flat(net, param))
                memcpy(to, from, (size_t)param->count * sizeof *to);
        else if (layer->op != MFL_OP_DENSE)
                return mfl_cpu_conv_to_flat(&net->layers[param->layer].conv, net->stream, from, to, err);
        else
                dense_to_flat(&net->layers[layer->input].layout, layer->out_channels, from, to);
        return 0;
}

int mfl_cpu_params_to_flat(
        struct mfl_net *net, enum mfl_cpu_home home, const float *wide, float *flat, struct mfl_error *err)
{
        int rc = 0;
        for (int i = 0; !rc && i < net->graph->n_params; i++) {
                if (net->wide[i].home != home)
                        continue;
                rc = mfl_cpu_tensor_to_flat(net, i, wide + net->wide[i].at, flat, err);
                flat += net->graph->params[i].count;
        }
        return rc;
}

void mfl_cpu_frozen_set(struct mfl_net *net, int group, const float *frozen)
{
        struct mfl_cpu_frozen *own = &net->frozen[group];
        const uint32_t *place = net->copied;
        if (!frozen) {
                *own = net->frozen[net->options.groups];
                return;
        }
        size_t at = net->options.shared_start ? 0 : (size_t)group;
        *own = (struct mfl_cpu_frozen){frozen, net->copies + at * net->n_copied};
        for (int i = 0; i < net->graph->n_params; i++) {
                const struct mfl_param *param = &net->graph->params[i];
                if (net->wide[i].home != MFL_CPU_COPIED)
                        continue;
                for (uint64_t k = 0; k < param->count; k++)
                        own->copy[place[k]] = frozen[param->offset + k];
                place += param->count;
        }
}

void mfl_cpu_frozen_get(const struct mfl_net *net, int group, uint64_t first, float *flat)
{
        for (uint64_t i = first; i < net->graph->n_frozen; i++)
                flat[i - first] = net->frozen[group].lent[i];
}
