/* SPDX-License-Identifier: Apache-2.0 */
/* First parameter values from a seed, with the same bits on every machine. */
#include "common/model/graph.h"
#include "common/base/rng.h"

#include <math.h>

/* Half width of the uniform distribution; 0 for constant zero. Division and square root are correctly rounded
 * by IEEE 754, so the bound is the same everywhere. */
static double init_bound(const struct mfl_graph *graph, int t)
{
        const struct mfl_param *param = &graph->params[t];
        const struct mfl_layer *layer = &graph->layers[param->layer];
        double fan_in = (double)param->fan_in, fan_out = (double)param->fan_out;
        enum mfl_init init = layer->init;
        bool table = layer->op == MFL_OP_EMBEDDING || layer->op == MFL_OP_WEIGHT;
        if (layer->op == MFL_OP_DENSE && t == layer->param_weight2)
                init = MFL_INIT_TORCH;
        if (layer->op == MFL_OP_DENSE && t == layer->param_bias2)
                init = MFL_INIT_ZERO;
        if (table && init != MFL_INIT_GPT2 && init != MFL_INIT_ZERO)
                return sqrt(3.0);
        if (init == MFL_INIT_TORCH)
                return 1.0 / sqrt(fan_in);
        if (param->is_bias)
                return 0;
        switch (init) {
        case MFL_INIT_HE:
                return sqrt(6.0 / fan_in);
        case MFL_INIT_GLOROT:
                return sqrt(6.0 / (fan_in + fan_out));
        case MFL_INIT_GPT2:
                return 0.02 * sqrt(3.0);
        default:
                return 0;
        }
}

static bool is_norm(const struct mfl_graph *graph, const struct mfl_param *param)
{
        enum mfl_op op = graph->layers[param->layer].op;
        return op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM || op == MFL_OP_LAYERNORM ||
               op == MFL_OP_RMSNORM;
}

/* Norms start as the identity for a normalised input: weight 1, bias 0, running mean 0, running variance 1. */
static void init_norm(const struct mfl_graph *graph, int t, float *out)
{
        const struct mfl_param *param = &graph->params[t];
        const struct mfl_layer *layer = &graph->layers[param->layer];
        float v = t == layer->param_weight || t == layer->param_var ? 1.0f : 0.0f;
        for (uint64_t i = 0; i < param->count; i++)
                out[i] = v;
}

void mfl_graph_init_params(const struct mfl_graph *graph, uint64_t seed, float *params)
{
        mfl_graph_init_parts(graph, seed, params, params + graph->n_frozen);
}

void mfl_graph_init_parts(const struct mfl_graph *graph, uint64_t seed, float *frozen, float *moving)
{
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_INIT, (uint64_t)param->number, 0);
                double bound = init_bound(graph, t);
                float *out = t < graph->i_moving ? frozen + param->offset
                                                 : moving + (param->offset - graph->n_frozen);
                if (is_norm(graph, param)) {
                        init_norm(graph, t, out);
                        continue;
                }
                if (bound == 0) {
                        memset(out, 0, param->count * sizeof *out);
                        continue;
                }
                for (uint64_t i = 0; i < param->count; i++) {
                        /* The middle of one of 2^24 equal parts of (-1, 1), exact in double; then one product
                         * and one cast, each rounded once. */
                        double k = (double)(mfl_rng_u32(&rng) >> 8);
                        out[i] = (float)((2 * k + 1 - 0x1p24) * 0x1p-24 * bound);
                }
                const struct mfl_layer *layer = &graph->layers[param->layer];
                if (layer->op == MFL_OP_EMBEDDING && layer->has_padding)
                        memset(out + (uint64_t)layer->padding_idx * (uint64_t)layer->out_channels, 0,
                                (size_t)layer->out_channels * sizeof *out);
        }
}
