/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers: kernels/grad.h. The gradient has the order of a wide vector. A tensor's
 * gradient is rounded as soon as it exists, while it lies in the cache; the total becomes floats again block by block,
 * right before the optimizer takes them. */
#include "kernels/bodies.h"
#include "kernels/cpu/pass.h"

/* As mfl_cpu_operands says, with what the layer's input takes here, where channels may be padded. */
static uint64_t operands_of(const struct mfl_net *net, int param)
{
        const struct mfl_layer *layer = &net->graph->layers[net->graph->params[param].layer];
        if (!net->options.worker || !mfl_cpu_operands(net->graph, &net->options, param))
                return 0;
        return (uint64_t)layer->out_channels + (uint64_t)net->layers[layer->input].layout.count;
}

int mfl_cpu_grad_new(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        if (net->options.lent && net->n_wide > mfl_cpu_wide_most(graph)) /* callers lend so much */
                return mfl_fail(err, MFL_INVALID,
                        "the params take %llu floats here, more than the %llu that members of a team lend: "
                        "this model can't be trained with `parallel` over several daemons",
                        (unsigned long long)net->n_wide, (unsigned long long)mfl_cpu_wide_most(graph));
        net->tensors = mfl_calloc((size_t)graph->n_params + 1, sizeof *net->tensors);
        if (!net->tensors)
                return mfl_fail_memory(err, (size_t)graph->n_params * sizeof *net->tensors, "network");
        for (int t = 0; t < graph->n_params; t++) {
                net->wide[t].tensor = graph->params[t].trained ? net->n_tensors : -1;
                if (graph->params[t].trained)
                        net->tensors[net->n_tensors++] = (struct mfl_grad_tensor){
                                t, net->wide[t].at, net->wide[t].count, operands_of(net, t)};
        }
        for (int i = 0; i < graph->n_layers; i++) {
                int mean = graph->layers[i].param_mean;
                net->layers[i].statistics = net->n_statistics;
                net->n_statistics += mean < 0 ? 0 : 2 * graph->params[mean].count;
        }
        return 0;
}

static uint64_t elements(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        return mfl_cpu_wide_most(graph);
}

static void layout(const struct mfl_net *net, struct mfl_grad_layout *ret_layout)
{
        *ret_layout = (struct mfl_grad_layout){.n = net->n_wide,
                .n_tensors = net->n_tensors,
                .tensors = net->tensors,
                .params = net->params,
                .n_statistics = net->n_statistics};
}

static int grain(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_grain *g,
        const struct mfl_grad_sink *sink, struct mfl_score *score, struct mfl_error *err)
{
        struct pass pass = {.net = net,
                .rows = g->rows,
                .first_row = g->first_row,
                .dropout = &g->dropout,
                .step = g->step,
                .sink = sink,
                .statistics = sink->statistics,
                .grads = net->grads,
                .err = err};
        mfl_assert(net->options.worker && g->rows <= (uint32_t)net->options.batch);
        if (sink->statistics)
                memset(sink->statistics, 0, (size_t)net->n_statistics * sizeof(float));
        return mfl_cpu_run_grain(&pass, data, g, score);
}

static void round_floats(const struct mfl_net *net, const struct mfl_grad_rounding *how, uint64_t first,
        uint64_t n, const float *grads, bool set, int64_t *sum)
{
        for (int t = mfl_grad_tensor_at(net->tensors, net->n_tensors, first); t < net->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &net->tensors[t];
                uint64_t from = MFL_MAX(tensor->at, first),
                         end = MFL_MIN(tensor->at + tensor->count, first + n);
                if (from >= end)
                        return;
                float largest = net->device->loops->round_add((int64_t)(end - from), grads + (from - first),
                        ldexp(1.0, how->bits[t]), set, sum + (from - first));
                how->largest[t] = MFL_MAX(how->largest[t], largest);
        }
}

/* A part of a tensor within one block. */
struct piece {
        int tensor;
        uint64_t at, n; /* in the gradient */
};

/* The next piece of [total->first, + n) from *at on; pieces of a tensor come in order, and so do the tensors. */
static bool next_piece(const struct mfl_net *net, const struct mfl_grad_total *total, int *tensor,
        uint64_t *at, struct piece *ret_piece)
{
        uint64_t end = total->first + total->n;
        for (; *tensor < net->n_tensors; ++*tensor) {
                const struct mfl_grad_tensor *t = &net->tensors[*tensor];
                uint64_t first = MFL_MAX(MFL_MAX(t->at, total->first), *at),
                         last = MFL_MIN(t->at + t->count, end);
                if (first >= last)
                        continue;
                last = MFL_MIN(last, (first / MFL_GRAD_BLOCK + 1) * MFL_GRAD_BLOCK);
                *ret_piece = (struct piece){*tensor, first, last - first};
                *at = last;
                return true;
        }
        return false;
}

/* The piece's gradient times `factor`: where the total has it, or in `room`, a block. */
static const float *piece_floats(const struct mfl_net *net, const struct mfl_grad_total *total,
        const struct piece *piece, const struct mfl_optimizer *opt, float factor, float *room)
{
        const struct mfl_loops *loops = net->device->loops;
        uint64_t at = piece->at - total->first;
        int64_t n = (int64_t)piece->n;
        const float *p = net->params + piece->at;
        bool prox = mfl_optimizer_clips_prox(opt);
        if (total->floats && !prox && factor == 1.0f)
                return total->floats + at;
        if (total->floats)
                memcpy(room, total->floats + at, (size_t)n * sizeof *room);
        else
                loops->unround(n, total->sum + at, ldexp(1.0, -total->bits[piece->tensor]), room);
        for (int64_t i = 0; prox && i < n; i++)
                room[i] += opt->prox_mu * (p[i] - total->start[at + (uint64_t)i]);
        if (factor != 1.0f)
                loops->scale(n, factor, room);
        return room;
}

static int squares(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        double *ret_squares, struct mfl_error *err)
{
        _Alignas(64) float g[MFL_GRAD_BLOCK];
        struct piece piece;
        uint64_t at = 0;
        int tensor = 0;
        memset(ret_squares, 0,
                (size_t)((total->n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK) * sizeof *ret_squares);
        while (next_piece(net, total, &tensor, &at, &piece))
                ret_squares[(piece.at - total->first) / MFL_GRAD_BLOCK] += net->device->loops->squares(
                        (int64_t)piece.n, piece_floats(net, total, &piece, opt, 1.0f, g));
        return 0;
}

static int apply(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        const struct mfl_rate *rate, float factor, struct mfl_error *err)
{
        _Alignas(64) float g[MFL_GRAD_BLOCK];
        struct mfl_optimizer rest = *opt;
        struct piece piece;
        uint64_t at = 0;
        int tensor = 0;
        mfl_assert(opt->prox_mu == 0.0f || total->start);
        if (mfl_optimizer_clips_prox(opt))
                rest.prox_mu = 0;
        while (next_piece(net, total, &tensor, &at, &piece)) {
                uint64_t own = piece.at - total->first;
                float *p = net->params + piece.at, *v = total->second ? total->second + own : NULL;
                /* Loops go along both moments; Adagrad uses one for both. Without a proximal term nobody reads p0. */
                struct mfl_apply to = {.opt = &rest,
                        .lr = rate->lr,
                        .rate = *rate,
                        .p = p,
                        .m = total->momentum ? total->momentum + own : v,
                        .v = v,
                        .p0 = total->start ? total->start + own : p};
                net->device->loops->update(
                        (int64_t)piece.n, piece_floats(net, total, &piece, opt, factor, g), &to, 1);
        }
        return 0;
}

static int statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err)
{
        for (int i = 0; i < net->graph->n_layers; i++) {
                const struct mfl_layer *layer = &net->graph->layers[i];
                if (layer->param_mean < 0)
                        continue;
                uint64_t n = net->graph->params[layer->param_mean].count;
                const float *of_layer = of_grain + net->layers[i].statistics;
                mfl_running_update(
                        n, layer->momentum, of_layer, net->params + net->wide[layer->param_mean].at);
                mfl_running_update(
                        n, layer->momentum, of_layer + n, net->params + net->wide[layer->param_var].at);
        }
        return 0;
}

static void lend(struct mfl_net *net, float *params)
{
        mfl_assert(net->options.lent);
        net->params = params;
}

/* No tensor is smaller in the wide vector, so that each one's place in the flat vector has been read when it is written. */
static int flatten(struct mfl_net *net, struct mfl_error *err)
{
        float *flat = net->params;
        int rc = 0;
        for (int i = 0; !rc && i < net->graph->n_params; i++) {
                const struct mfl_param *param = &net->graph->params[i];
                size_t bytes = (size_t)param->count * sizeof(float);
                const float *from = net->params + net->wide[i].at;
                if (net->wide[i].home != MFL_CPU_WIDE)
                        continue;
                mfl_assert(flat <= from);
                if (mfl_cpu_is_flat(net, param)) {
                        memmove(flat, from, bytes);
                } else {
                        MFL_CLEANUP_FREE float *tensor = mfl_malloc(bytes);
                        rc = tensor ? mfl_cpu_tensor_to_flat(net, i, from, tensor, err)
                                    : mfl_fail_memory(err, bytes, "a tensor");
                        if (!rc)
                                memcpy(flat, tensor, bytes);
                }
                flat += param->count;
        }
        lend(net, NULL);
        return rc;
}

const struct mfl_grad_ops mfl_cpu_grad_ops = {
        .elements = elements,
        .layout = layout,
        .grain = grain,
        .round = round_floats,
        .operands = mfl_cpu_operands,
        .products = mfl_cpu_products,
        .squares = squares,
        .apply = apply,
        .statistics = statistics,
        .lend = lend,
        .flatten = flatten,
};
