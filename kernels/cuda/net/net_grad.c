/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers (kernels/grad.h). The device computes a grain's gradient; the sum, the optimizer's state and the params
 * lie in the host's memory, and so does a team's traffic (as in Ren et al. 2021, "ZeRO-Offload"). So every stage, every mesh
 * and every way to go on after a loss is the same as on a CPU, and a GPU holds no optimizer's state. Where a network resides on the
 * device, all of that is there: net_resident.c.
 *
 *     host       params of the step |                            | takes and rounds piece k (the last comes first)
 *     bus        4 bytes per param  |                            | 4 bytes per param
 *     device                        | forward, backward, reorder |
 *
 * Ways to fail: data that does not fit the model, or too many grains (MFL_INVALID); the device (negative). */
#include "kernels/check.h"
#include "kernels/cuda/net/net.h"

int mfl_cuda_grad_init(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_net_options *options = &net->model.options;
        uint64_t n = net->model.flat->n_moving;
        int rc = mfl_grad_host_init(&net->host, net->model.flat, err);
        if (rc || options->lent)
                return rc;
        net->host.params =
                options->sibling ? options->sibling->host.params : mfl_alloc_aligned(n * sizeof(float) + 1);
        return net->host.params ? 0 : mfl_fail_memory(err, n * sizeof(float), "a worker's params");
}

void mfl_cuda_grad_deinit(struct mfl_net *net)
{
        mfl_cuda_resident_free(net);
        if (!net->model.options.sibling && !net->model.options.lent)
                free(net->host.params);
        mfl_grad_host_deinit(&net->host);
}

static uint64_t elements(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        return graph->n_moving;
}

static void layout(const struct mfl_net *net, struct mfl_grad_layout *ret_layout)
{
        mfl_grad_host_layout(&net->host, ret_layout);
        if (net->resident)
                ret_layout->params = mfl_cuda_resident_params(net);
        ret_layout->scaled = net->model.options.precision == MFL_PRECISION_FP16;
}

/* ---- params ---- */

/* Elements [first, first + n) of the flat vector to the wide one: of the host's memory, or (params NULL) of the device's. */
static int send(struct mfl_net *net, uint64_t first, uint64_t n, const float *params, struct mfl_error *err)
{
        struct mfl_cuda_reorder a = {.n = n,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + first,
                .from = params ? mfl_cuda_at(net, MFL_CUDA_FLAT) : mfl_cuda_resident_params(net),
                .to = mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .scatter = true,
                .low = mfl_cuda_at(net, MFL_CUDA_LOW),
                .low_type = net->model.type};
        int rc = 0;
        if (!n)
                return 0;
        if (params)
                rc = mfl_cuda_pipe_send(&net->pipe, net->main.stream, mfl_cuda_at(net, MFL_CUDA_FLAT), params,
                        n * sizeof(float), "copy params to the device", err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder params", err);
        return rc ? rc : mfl_cuda_tie_params(net, 1, a.to, a.low, true, err);
}

int mfl_cuda_grad_set(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->model.flat;
        mfl_assert(!net->model.options.sibling);
        if (moving)
                memcpy(net->host.params, moving, (size_t)graph->n_moving * sizeof(float));
        int rc = send(net, 0, graph->n_frozen, frozen, err);
        if (!rc && net->resident)
                rc = mfl_cuda_resident_set(net, net->host.params, err);
        return rc ? rc : mfl_cuda_sync(net, "copy frozen params to the device", err); /* siblings read them */
}

int mfl_cuda_grad_get(struct mfl_net *net, uint64_t first, float *params, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->model.flat;
        mfl_assert(first >= graph->n_frozen);
        if (net->resident)
                return mfl_cuda_resident_get(net, first - graph->n_frozen, graph->n - first, params, err);
        memcpy(params, net->host.params + (first - graph->n_frozen),
                (size_t)(graph->n - first) * sizeof(float));
        return 0;
}

/* Frozen params are there since params_set; a sibling's come from the network that had it. */
static int refresh(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->model.flat;
        static const enum mfl_cuda_region regions[] = {MFL_CUDA_PARAMS, MFL_CUDA_LOW};
        const struct mfl_net *sibling = graph->n_frozen ? net->model.options.sibling : NULL;
        int rc = 0;
        for (size_t i = 0; !rc && sibling && i < MFL_ARRAY_SIZE(regions); i++)
                if (mfl_cuda_at(net, regions[i]))
                        rc = mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_at(net, regions[i]),
                                                    mfl_cuda_at(sibling, regions[i]),
                                                    (size_t)net->model.region_bytes[regions[i]],
                                                    cudaMemcpyDeviceToDevice, net->main.stream),
                                "copy frozen params", err);
        return rc ? rc
                  : send(net, graph->n_frozen, graph->n_moving, net->resident ? NULL : net->host.params, err);
}

static void lend(struct mfl_net *net, float *params)
{
        mfl_assert(net->model.options.lent);
        net->host.params = params;
}

static int flatten(struct mfl_net *net, struct mfl_error *err)
{
        int rc = net->resident
                         ? mfl_cuda_resident_get(net, 0, net->model.flat->n_moving, net->host.params, err)
                         : 0;
        mfl_cuda_resident_free(net);
        lend(net, NULL);
        return rc;
}

/* ---- a grain ---- */

/* Its entry of the tables is that of its place in the step, from which rows are numbered. */
static void fill(struct mfl_net *net, const struct mfl_grain *g, uint32_t at)
{
        const struct mfl_cuda_control *control = &net->model.control;
        uint32_t batch = (uint32_t)net->model.options.batch;
        *(uint32_t *)mfl_cuda_pinned(net, control->step_first) = g->step;
        *(struct mfl_rng_key *)mfl_cuda_pinned(net, control->dropout) = g->dropout;
        *(struct mfl_rng_key *)mfl_cuda_pinned(net, control->augment) = g->augment;
        ((uint32_t *)mfl_cuda_pinned(net, control->count))[at] = g->rows;
        ((struct mfl_loss_share *)mfl_cuda_pinned(net, control->share))[at] = *g->share;
        memcpy((uint32_t *)mfl_cuda_pinned(net, control->index) + (size_t)at * batch, g->index,
                g->rows * sizeof *g->index);
}

/* The gradient on its way, piece by piece from its end on. */
struct gradient {
        struct mfl_net *net;
        const struct mfl_grad_sink *sink;
        float times; /* 1 / its loss scale */
        uint64_t bytes;
        int tensor; /* the next one that is not all here */
        bool dropped;
};

static int find_piece(void *arg, uint64_t at, uint64_t n, const void **ret_from, struct mfl_error *err)
{
        const struct gradient *gradient = arg;
        *ret_from = (const char *)mfl_cuda_at(gradient->net, MFL_CUDA_FLAT) + (gradient->bytes - at - n);
        return 0;
}

/* Where [first, first + n) and a tensor's elements meet. */
static uint64_t meet(uint64_t first, uint64_t n, uint64_t at, uint64_t count, uint64_t *ret_from)
{
        uint64_t from = MFL_MAX(first, at), end = MFL_MIN(first + n, at + count);
        *ret_from = from;
        return from < end ? end - from : 0;
}

static void take_statistics(const struct gradient *gradient, uint64_t first, uint64_t n, const float *values)
{
        const struct mfl_graph *graph = gradient->net->model.flat;
        float *to = gradient->sink->statistics;
        for (int i = 0; to && i < graph->n_layers; i++) {
                const int tensors[] = {graph->layers[i].param_mean, graph->layers[i].param_var};
                for (size_t k = 0; tensors[0] >= 0 && k < MFL_ARRAY_SIZE(tensors); k++) {
                        const struct mfl_param *param = &graph->params[tensors[k]];
                        uint64_t at = param->offset - graph->n_frozen, from;
                        uint64_t part = meet(first, n, at, param->count, &from);
                        if (part)
                                memcpy(to + (from - at), values + (from - first), (size_t)part * sizeof *to);
                        to += param->count;
                }
        }
}

static void take_piece(void *arg, uint64_t at, uint64_t bytes, const void *piece)
{
        struct gradient *gradient = arg;
        const struct mfl_grad_host *host = &gradient->net->host;
        const struct mfl_grad_sink *sink = gradient->sink;
        const float *values = piece;
        uint64_t n = bytes / sizeof *values, first = (gradient->bytes - at - bytes) / sizeof *values, from;
        take_statistics(gradient, first, n, values);
        while (gradient->tensor >= 0) {
                const struct mfl_grad_tensor *tensor = &host->tensors[gradient->tensor];
                uint64_t part = meet(first, n, tensor->at, tensor->count, &from);
                if (part && !mfl_grad_host_take(host, sink, gradient->tensor, from - tensor->at, part,
                                    values + (from - first), gradient->times))
                        gradient->dropped = true;
                if (tensor->at < first) /* the next piece has more of it, or all */
                        return;
                if (sink->ready && !gradient->dropped)
                        sink->ready(sink->user, gradient->tensor);
                gradient->tensor--;
                gradient->dropped = false;
        }
}

static int take_gradient(struct mfl_net *net, const struct mfl_grain *g, const struct mfl_grad_sink *sink,
        struct mfl_error *err)
{
        const struct mfl_graph *graph = net->model.flat;
        struct gradient gradient = {net, sink, 1.0f / g->loss_scale, graph->n_moving * sizeof(float),
                net->host.n_tensors - 1, false};
        struct mfl_cuda_landing landing = {
                "copy a gradient to the host", gradient.bytes, find_piece, take_piece, &gradient};
        struct mfl_cuda_reorder a = {.n = graph->n_moving,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + graph->n_frozen,
                .from = mfl_cuda_at(net, MFL_CUDA_GRADS),
                .to = mfl_cuda_at(net, MFL_CUDA_FLAT)};
        if (!landing.bytes)
                return 0;
        if (net->resident)
                return mfl_cuda_resident_take(net, gradient.times, sink, err);
        int rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder a gradient", err);
        return rc ? rc : mfl_cuda_pipe_land(&net->pipe, net->main.stream, &landing, err);
}

/* Batch norms leave their statistics where the gradients of the running ones would lie. */
static int clear_statistics(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &net->model;
        if (model->n_own == model->n_trained)
                return 0;
        return mfl_cuda_check(
                cudaMemsetAsync((float *)mfl_cuda_at(net, MFL_CUDA_GRADS) + model->n_trained, 0,
                        (size_t)(model->n_own - model->n_trained) * sizeof(float), net->main.stream),
                "clear statistics", err);
}

static int send_scale(struct mfl_net *net, const struct mfl_grain *g, struct mfl_error *err)
{
        const struct mfl_cuda_scale scale = {.scale = g->loss_scale};
        void *to = mfl_cuda_at(net, MFL_CUDA_SCALE);
        return to ? mfl_cuda_pipe_send(
                            &net->pipe, net->main.stream, to, &scale, sizeof scale, "set the loss scale", err)
                  : 0;
}

static int grain(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_grain *g,
        const struct mfl_grad_sink *sink, struct mfl_score *score, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        const struct mfl_cuda_work work = {.net = net, .data = data, .grain = true};
        uint32_t batch = (uint32_t)net->model.options.batch, at = g->first_row / batch;
        mfl_assert(net->model.options.worker && g->rows <= batch && g->first_row % batch == 0);
        if (at >= net->model.steps_max)
                return mfl_fail(err, MFL_INVALID,
                        "the cuda backend takes at most %u grains of %u rows per step; let training.batch or "
                        "accumulate be smaller",
                        net->model.steps_max, batch);
        int rc = mfl_cuda_check_data_of(net, data, err);
        if (!rc)
                rc = mfl_cuda_enter(net, err);
        if (!rc && g->moved)
                rc = refresh(net, err);
        if (!rc)
                rc = clear_statistics(net, err);
        if (!rc)
                rc = send_scale(net, g, err);
        if (rc)
                return rc;
        fill(net, g, at);
        rc = mfl_cuda_run_tables(&work, at, 1, err);
        if (rc)
                return rc;
        score->loss_sum =
                mfl_fixed_loss_add(score->loss_sum, *(int64_t *)mfl_cuda_pinned(net, control->loss_sum));
        score->n_correct += *(uint64_t *)mfl_cuda_pinned(net, control->n_correct);
        score->n_scored += *(uint64_t *)mfl_cuda_pinned(net, control->n_scored);
        return take_gradient(net, g, sink, err);
}

static void round_floats(const struct mfl_net *net, const struct mfl_grad_rounding *how, uint64_t first,
        uint64_t n, const float *grads, bool set, int64_t *sum)
{
        mfl_grad_host_round(&net->host, how, first, n, grads, set, sum);
}

static int squares(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        double *ret_squares, struct mfl_error *err)
{
        if (net->resident)
                return mfl_cuda_resident_squares(net, total, opt, ret_squares, err);
        mfl_grad_host_squares(&net->host, total, opt, ret_squares);
        return 0;
}

static int apply(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        const struct mfl_rate *rate, float factor, struct mfl_error *err)
{
        if (net->resident)
                return mfl_cuda_resident_apply(net, total, opt, rate, factor, err);
        mfl_grad_host_apply(&net->host, total, opt, rate, factor);
        return 0;
}

static int statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err)
{
        if (net->resident)
                return mfl_cuda_resident_statistics(net, of_grain, err);
        mfl_grad_host_statistics(&net->host, of_grain);
        return 0;
}

const struct mfl_grad_ops mfl_cuda_grad_ops = {
        .device = &mfl_cuda_grad_device_ops,
        .elements = elements,
        .layout = layout,
        .grain = grain,
        .round = round_floats,
        .squares = squares,
        .apply = apply,
        .statistics = statistics,
        .lend = lend,
        .flatten = flatten,
};
