/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/grad_host.h"

#include "kernels/bodies.h"

int mfl_grad_host_init(struct mfl_grad_host *host, const struct mfl_graph *graph, struct mfl_error *err)
{
        size_t bytes = ((size_t)graph->n_params + 1) * sizeof *host->tensors;
        *host = (struct mfl_grad_host){.graph = graph, .tensors = mfl_calloc(1, bytes)};
        if (!host->tensors)
                return mfl_fail_memory(err, bytes, "network");
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].trained)
                        host->tensors[host->n_tensors++] = (struct mfl_grad_tensor){
                                t, graph->params[t].offset - graph->n_frozen, graph->params[t].count};
        return 0;
}

void mfl_grad_host_deinit(struct mfl_grad_host *host)
{
        free(host->tensors);
        *host = (struct mfl_grad_host){0};
}

uint64_t mfl_grad_host_statistics_at(const struct mfl_graph *graph, int i)
{
        uint64_t at = 0;
        for (int k = 0; k < i; k++)
                if (graph->layers[k].param_mean >= 0)
                        at += 2 * graph->params[graph->layers[k].param_mean].count;
        return at;
}

void mfl_grad_host_layout(const struct mfl_grad_host *host, struct mfl_grad_layout *ret_layout)
{
        *ret_layout = (struct mfl_grad_layout){.n = host->graph->n_moving,
                .n_tensors = host->n_tensors,
                .tensors = host->tensors,
                .params = host->params,
                .n_statistics = mfl_grad_host_statistics_at(host->graph, host->graph->n_layers)};
}

static void round_elements(
        const float *grads, uint64_t n, float times, double factor, bool first, int64_t *sum, float *largest)
{
        for (uint64_t i = 0; i < n; i++) {
                float g = grads[i] * times, size = fabsf(g);
                *largest = size > *largest ? size : isnan(size) ? INFINITY : *largest;
                uint64_t before = first ? 0 : (uint64_t)sum[i];
                sum[i] = (int64_t)(before + mfl_fixed_round((double)g * factor));
        }
}

static void add_elements(const float *grads, uint64_t n, float times, bool first, float *sum)
{
        for (uint64_t i = 0; i < n; i++)
                sum[i] = first ? grads[i] * times : sum[i] + grads[i] * times;
}

bool mfl_grad_host_take(const struct mfl_grad_host *host, const struct mfl_grad_sink *sink, int t,
        uint64_t at, uint64_t n, const float *grads, float times)
{
        const struct mfl_grad_tensor *tensor = &host->tensors[t];
        for (uint64_t i = 0, part; i < n; i += part) {
                part = tensor->count - at - i;
                void *to = sink->place(sink->user, tensor->at + at + i, &part);
                if (!to)
                        return false;
                part = MFL_MIN(part, n - i);
                if (sink->floats)
                        add_elements(grads + i, part, times, sink->first, to);
                else
                        round_elements(grads + i, part, times, ldexp(1.0, sink->bits[t]), sink->first, to,
                                &sink->largest[t]);
        }
        return true;
}

void mfl_grad_host_round(const struct mfl_grad_host *host, const struct mfl_grad_rounding *how,
        uint64_t first, uint64_t n, const float *grads, bool set, int64_t *sum)
{
        for (int t = mfl_grad_tensor_at(host->tensors, host->n_tensors, first); t < host->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &host->tensors[t];
                uint64_t from = MFL_MAX(tensor->at, first),
                         end = MFL_MIN(tensor->at + tensor->count, first + n);
                if (from >= end)
                        return;
                round_elements(grads + (from - first), end - from, 1.0f, ldexp(1.0, how->bits[t]), set,
                        sum + (from - first), &how->largest[t]);
        }
}

/* The step's element i as a float; unit: that of the tensor's integers. */
static float element(const struct mfl_grad_host *host, const struct mfl_grad_total *total, double unit,
        uint64_t i, float prox_mu)
{
        uint64_t own = i - total->first;
        float g = total->floats ? total->floats[own] : (float)((double)total->sum[own] * unit);
        return prox_mu != 0.0f ? g + prox_mu * (host->params[i] - total->start[own]) : g;
}

/* A tensor's elements within a total. */
struct part {
        uint64_t first, end;
        double unit;
};

static struct part part_of(const struct mfl_grad_host *host, const struct mfl_grad_total *total, int t)
{
        const struct mfl_grad_tensor *tensor = &host->tensors[t];
        return (struct part){MFL_MAX(tensor->at, total->first),
                MFL_MIN(tensor->at + tensor->count, total->first + total->n),
                total->floats ? 1.0 : ldexp(1.0, -total->bits[t])};
}

void mfl_grad_host_squares(const struct mfl_grad_host *host, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, double *ret_squares)
{
        float prox_mu = mfl_optimizer_clips_prox(opt) ? opt->prox_mu : 0.0f;
        memset(ret_squares, 0,
                (size_t)((total->n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK) * sizeof *ret_squares);
        for (int t = 0; t < host->n_tensors; t++) {
                struct part part = part_of(host, total, t);
                for (uint64_t i = part.first; i < part.end; i++) {
                        double g = (double)element(host, total, part.unit, i, prox_mu);
                        ret_squares[(i - total->first) / MFL_GRAD_BLOCK] += g * g;
                }
        }
}

void mfl_grad_host_apply(const struct mfl_grad_host *host, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, const struct mfl_rate *rate, float factor)
{
        struct mfl_optimizer rest = *opt;
        float prox_mu = mfl_optimizer_clips_prox(opt) ? opt->prox_mu : 0.0f;
        if (prox_mu != 0.0f)
                rest.prox_mu = 0;
        for (int t = 0; t < host->n_tensors; t++) {
                struct part part = part_of(host, total, t);
                for (uint64_t i = part.first; i < part.end; i++) {
                        float g = element(host, total, part.unit, i, prox_mu);
                        uint64_t own = i - total->first;
                        mfl_optimizer_update(&host->params[i], total->momentum ? &total->momentum[own] : NULL,
                                total->second ? &total->second[own] : NULL,
                                total->start ? &total->start[own] : NULL, &rest, rate,
                                factor == 1.0f ? g : g * factor);
                }
        }
}

void mfl_grad_host_statistics(const struct mfl_grad_host *host, const float *of_grain)
{
        const struct mfl_graph *graph = host->graph;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                if (layer->param_mean < 0)
                        continue;
                float *mean = host->params + (graph->params[layer->param_mean].offset - graph->n_frozen);
                float *var = host->params + (graph->params[layer->param_var].offset - graph->n_frozen);
                uint64_t n = graph->params[layer->param_mean].count;
                mfl_running_update(n, layer->momentum, of_grain, mean);
                mfl_running_update(n, layer->momentum, of_grain + n, var);
                of_grain += 2 * n;
        }
}
