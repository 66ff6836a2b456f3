/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters between the flat vector of the graph and the wide one of this backend. */
#include <omp.h>

#include "kernels/cpu/net.h"

/* Column c of output 0 in the panels of a dense layer's weights, and how far apart outputs lie. */
static int64_t column_at(int64_t n_in, int64_t n_out, int64_t c, int64_t *ret_stride)
{
        int64_t first = c / MFL_DENSE_PANEL * MFL_DENSE_PANEL;
        *ret_stride = MFL_MIN(MFL_DENSE_PANEL, n_in - first);
        return first * n_out + c - first;
}

/* Column k of a dense layer's weights belongs to NCHW element k of its input. */
static void dense_to_wide(const struct mfl_layout *in, int64_t n_out, const float *flat, float *wide)
{
        memset(wide, 0, (size_t)(n_out * in->count) * sizeof *wide);
        for (int64_t k = 0; k < in->logical; k++) {
                int64_t stride, at = column_at(in->count, n_out, mfl_layout_at(in, k), &stride);
                for (int64_t o = 0; o < n_out; o++)
                        wide[at + o * stride] = flat[o * in->logical + k];
        }
}

static void dense_to_flat(const struct mfl_layout *in, int64_t n_out, const float *wide, float *flat)
{
        for (int64_t k = 0; k < in->logical; k++) {
                int64_t stride, at = column_at(in->count, n_out, mfl_layout_at(in, k), &stride);
                for (int64_t o = 0; o < n_out; o++)
                        flat[o * in->logical + k] = wide[at + o * stride];
        }
}

/* Whether a tensor lies as in the flat vector. */
static bool is_flat(const struct mfl_net *net, const struct mfl_param *param)
{
        const struct mfl_layer *layer = &net->graph->layers[param->layer];
        if (layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_CONVTRANSPOSE2D)
                return param->shape.rank == 1;
        return layer->op != MFL_OP_DENSE || net->layers[param->layer].gemm || param->shape.rank == 1;
}

int mfl_cpu_params_to_wide(struct mfl_net *net, const float *flat, float *wide, struct mfl_error *err)
{
        int rc = 0;
        for (int i = 0; !rc && i < net->graph->n_params; i++) {
                const struct mfl_param *param = &net->graph->params[i];
                const struct mfl_layer *layer = &net->graph->layers[param->layer];
                const float *from = flat + param->offset;
                float *to = wide + net->wide[i].at;
                if (is_flat(net, param))
                        memcpy(to, from, (size_t)param->count * sizeof *to);
                else if (layer->op != MFL_OP_DENSE)
                        rc = mfl_cpu_conv_to_wide(
                                &net->layers[param->layer].conv, net->stream, from, to, err);
                else
                        dense_to_wide(&net->layers[layer->input].layout, layer->out_channels, from, to);
        }
        return rc;
}

int mfl_cpu_params_to_flat(struct mfl_net *net, const float *wide, float *flat, struct mfl_error *err)
{
        int rc = 0;
        for (int i = 0; !rc && i < net->graph->n_params; i++) {
                const struct mfl_param *param = &net->graph->params[i];
                const struct mfl_layer *layer = &net->graph->layers[param->layer];
                const float *from = wide + net->wide[i].at;
                float *to = flat + param->offset;
                if (is_flat(net, param))
                        memcpy(to, from, (size_t)param->count * sizeof *to);
                else if (layer->op != MFL_OP_DENSE)
                        rc = mfl_cpu_conv_to_flat(
                                &net->layers[param->layer].conv, net->stream, from, to, err);
                else
                        dense_to_flat(&net->layers[layer->input].layout, layer->out_channels, from, to);
        }
        return rc;
}

int mfl_cpu_params_set(struct mfl_net *net, int group, const float *params, struct mfl_error *err)
{
        size_t at = (size_t)net->n_wide * (size_t)group, bytes = (size_t)net->n_wide * sizeof(float);
        mfl_assert(group >= 0 && group < net->options.groups);
        omp_set_num_threads(net->options.threads);
        int rc = mfl_cpu_params_to_wide(net, params, net->params + at, err);
        if (rc || !net->options.training)
                return rc;
        memcpy(net->first + at, net->params + at, bytes);
        memset(net->momentum + at, 0, bytes);
        if (net->second_used)
                memset(net->second + at, 0, bytes);
        return 0;
}

int mfl_cpu_params_get(struct mfl_net *net, int group, float *params, struct mfl_error *err)
{
        mfl_assert(group >= 0 && group < net->options.groups);
        omp_set_num_threads(net->options.threads);
        return mfl_cpu_params_to_flat(net, net->params + net->n_wide * (uint64_t)group, params, err);
}
