/* SPDX-License-Identifier: Apache-2.0 */
/* Batch and group norm of a layer: which statistics it uses, where they are kept, and how the missing rows of
 * a partial batch are handled. */
#include <math.h>

#include "kernels/cpu/pass.h"

static bool is_batch_norm(const struct mfl_net *net, int i)
{
        return net->graph->layers[i].op == MFL_OP_BATCHNORM;
}

/* A vector is one place with all of its features side by side. */
static struct mfl_norm_loop loop_of(const struct mfl_net *net, int i, int64_t rows)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_layout *l = &net->layers[i].layout;
        bool vector = l->h * l->w == 1;
        return (struct mfl_norm_loop){.rows = rows,
                .count = l->count,
                .channels = vector ? l->count : l->n_blocks * l->block,
                .logical = l->c,
                .block = vector ? l->count : l->block,
                .pixels = l->h * l->w,
                .groups = is_batch_norm(net, i) ? 0 : layer->norm_groups,
                .eps = layer->eps,
                .threads = net->options.threads};
}

/* Floats of each kept vector: mean, rstd. */
static uint64_t vector_floats(const struct mfl_norm_loop *v)
{
        return (uint64_t)(v->channels * (v->groups ? v->rows : 1));
}

/* mean, rstd; then var (batch norm), or room for sums and coefficients. */
uint64_t mfl_cpu_norm_aux_bytes(const struct mfl_net *net, int i)
{
        struct mfl_norm_loop v = loop_of(net, i, net->rows);
        return vector_floats(&v) * (v.groups ? 6 : 3) * sizeof(float);
}

static float *aux_of(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].aux);
}

/* Running statistics, which always move. */
static float *statistics_of(const struct pass *pass, int param)
{
        const struct mfl_net *net = pass->net;
        return param < 0 ? NULL : mfl_cpu_group_params(net, pass->group) + net->wide[param].at;
}

static struct mfl_norm_vectors vectors_of(const struct pass *pass, int i, const struct mfl_norm_loop *v)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        float *kept = aux_of(pass->net, i);
        return (struct mfl_norm_vectors){.mean = kept,
                .rstd = kept + vector_floats(v),
                .weight = mfl_cpu_param(pass, layer->param_weight),
                .bias = mfl_cpu_param(pass, layer->param_bias)};
}

/* The rows that a partial batch lacks are zero, so that they add nothing to any later gradient. */
static void clear_missing(const struct mfl_net *net, int i, int64_t rows, float *y)
{
        int64_t count = net->layers[i].layout.count;
        memset(y + rows * count, 0, (size_t)((net->rows - rows) * count) * sizeof *y);
}

static void take_running(const struct mfl_norm_loop *v, const float *mean, const float *var, float *kept)
{
        for (int64_t c = 0; c < v->channels; c++) {
                kept[c] = mean[c];
                kept[v->channels + c] = (float)(1.0 / sqrt((double)var[c] + (double)v->eps));
        }
}

static void update_running(
        const struct mfl_norm_loop *v, float momentum, const float *kept, float *mean, float *var)
{
        double count = (double)(v->rows * v->pixels), share = (double)momentum;
        double unbiased = count > 1 ? count / (count - 1) : 1;
        for (int64_t c = 0; c < v->logical; c++) {
                double of_batch = (double)kept[2 * v->channels + c] * unbiased;
                mean[c] = (float)((1 - share) * (double)mean[c] + share * (double)kept[c]);
                var[c] = (float)((1 - share) * (double)var[c] + share * of_batch);
        }
}

void mfl_cpu_norm_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        int64_t rows = pass->rows;
        bool training = pass->dropout != NULL;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_loops *loops = net->device->loops;
        const float *x = mfl_cpu_act(net, layer->input);
        float *y = mfl_cpu_act(net, i), *kept = aux_of(net, i);
        float *mean = statistics_of(pass, layer->param_mean), *var = statistics_of(pass, layer->param_var);
        struct mfl_norm_loop v = loop_of(net, i, rows);
        if (v.groups || training)
                loops->norm_moments(&v, x, kept, kept + vector_floats(&v), kept + 2 * vector_floats(&v));
        else
                take_running(&v, mean, var, kept);
        bool stays = !v.groups && mfl_param_stays(&net->graph->params[layer->param_mean], pass->moves);
        if (!v.groups && training && pass->running && !stays)
                update_running(&v, layer->momentum, kept, mean, var);
        if (!v.groups && training && pass->statistics) { /* zeros become what the rows have */
                float *seen = pass->statistics + net->layers[i].statistics;
                update_running(&v, 1.0f, kept, seen, seen + v.logical);
        }
        struct mfl_norm_vectors p = vectors_of(pass, i, &v);
        loops->norm_forward(&v, x, &p, net->layers[i].relu, y);
        clear_missing(net, i, rows, y);
}

void mfl_cpu_norm_backward(const struct pass *pass, int i, float *dx, float *const grads[2])
{
        const struct mfl_net *net = pass->net;
        int64_t rows = pass->rows;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_norm_loop v = loop_of(net, i, rows);
        struct mfl_norm_vectors p = vectors_of(pass, i, &v);
        struct mfl_norm_grad g = {.x = mfl_cpu_act(net, layer->input),
                .y = net->layers[i].masked ? mfl_cpu_act(net, i) : NULL,
                .dy = mfl_cpu_grad(net, i),
                .constant = !v.groups && !pass->dropout,
                .dx = dx,
                .dweight = grads[0],
                .dbias = grads[1],
                .work = aux_of(net, i) + 2 * vector_floats(&v)};
        net->device->loops->norm_backward(&v, &p, &g);
        if (dx)
                clear_missing(net, layer->input, rows, dx);
}
