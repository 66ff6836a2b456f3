/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend: a network as plain loops, one group after another through one arena. */
#include "kernels/bodies.h"
#include "kernels/host.h"
#include "kernels/reference/net.h"

struct mfl_device {
        char unused;
};

static int device_open(struct mfl_device **ret_device, struct mfl_error *err)
{
        struct mfl_device *device = mfl_calloc(1, sizeof *device);
        if (!device)
                return mfl_fail_memory(err, sizeof *device, "reference device");
        *ret_device = device;
        return 0;
}

static void device_close(struct mfl_device *device)
{
        free(device);
}

static void device_info(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        *ret_info = (struct mfl_device_info){.backend = "reference", .library = "plain loops"};
        mfl_host_device_info(ret_info);
}

/* The plan of a network that does not exist yet. Errors: -ENOMEM. */
static int make_plan(const struct mfl_graph *graph, const struct mfl_net_options *options,
        struct mfl_plan **ret_plan, struct mfl_error *err)
{
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc((size_t)graph->n_layers, sizeof *needs);
        if (!needs)
                return mfl_fail_memory(err, sizeof *needs, "plan of a network");
        mfl_plan_plain_needs(graph, options->batch, needs);
        for (int i = 0; i < graph->n_layers; i++)
                needs[i].aux_bytes = mfl_ref_aux_bytes(graph, i, options->batch);
        return mfl_plan_new(graph, options, needs, ret_plan, err);
}

static uint64_t net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t groups = (uint64_t)options->groups, batch = (uint64_t)options->batch;
        struct mfl_plan *plan = NULL;
        uint64_t input = (uint64_t)mfl_shape_count(&graph->input) * batch * groups;
        uint64_t floats = options->worker ? graph->n * (options->sibling || options->lent ? 1 : 2)
                                          : input + graph->n * groups * 2;
        if (options->training && !options->worker)
                floats += graph->n * ((mfl_net_has_first(options) + mfl_net_has_second(options) +
                                              (uint64_t)options->corrects) *
                                                     groups +
                                             4); /* the sum counts double */
        if (make_plan(graph, options, &plan, NULL))
                return 0; /* net_new reports the error */
        uint64_t bytes = plan->arena_bytes + floats * sizeof(float);
        for (int i = 0; i < graph->n_layers; i++)
                bytes += mfl_map_bytes(graph, i);
        mfl_plan_free(plan);
        return bytes;
}

static void net_plan(const struct mfl_net *net, struct mfl_net_plan *ret_plan)
{
        *ret_plan = (struct mfl_net_plan){
                .tensor_bytes = net->plan->arena_bytes, .segments = net->plan->n_segments};
}

static void net_free(struct mfl_net *net)
{
        if (!net)
                return;
        mfl_grad_host_deinit(&net->host);
        mfl_plan_free(net->plan);
        mfl_maps_free(net->graph, net->maps);
        free(net->arena);
        if (!net->options.sibling && !net->options.lent)
                free(net->params);
        free(net->params_first);
        free(net->momentum);
        free(net->second);
        free(net->correction);
        free(net->part);
        free(net->extra);
        free(net->turned);
        free(net->sum);
        free(net->grads);
        free(net->x);
        free(net->keys);
        free(net);
}

/* The params of n floats and the optimizer's state, or the sibling's. */
static bool allocate_params(struct mfl_net *net, size_t n)
{
        const struct mfl_net *sibling = net->options.sibling;
        bool first = mfl_net_has_first(&net->options), second = mfl_net_has_second(&net->options);
        bool lent = net->options.lent; /* the caller lends it later */
        mfl_assert(!lent || (net->options.worker && !sibling));
        net->params = sibling ? sibling->params : lent ? NULL : mfl_calloc(n, sizeof(float));
        net->params_first = mfl_calloc(net->options.worker ? 1 : n, sizeof(float));
        net->momentum = first ? mfl_calloc(n, sizeof(float)) : NULL;
        net->second = second ? mfl_calloc(n, sizeof(float)) : NULL;
        return (net->params || lent) && net->params_first && (net->momentum || !first) &&
               (net->second || !second);
}

static int allocate(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        size_t groups = (size_t)net->options.groups, n = (size_t)graph->n * groups;
        size_t input = (size_t)mfl_shape_count(&graph->input) * (size_t)net->options.batch;
        int rc = make_plan(graph, &net->options, &net->plan, err);
        if (!rc)
                rc = mfl_maps_new(graph, &net->maps, err);
        if (rc)
                return rc;
        net->arena = mfl_alloc_aligned(net->plan->arena_bytes);
        bool has_params = allocate_params(net, n);
        net->x = mfl_calloc(net->options.worker ? 1 : input * groups, sizeof(float));
        net->keys = mfl_calloc(groups, sizeof *net->keys);
        if (net->options.training) {
                rc = mfl_grad_host_init(&net->host, graph, err);
                if (rc)
                        return rc;
                net->grads = mfl_calloc((size_t)graph->n, sizeof(float));
                net->part = mfl_calloc(net->options.worker ? 1 : (size_t)graph->n, sizeof(float));
                net->sum = mfl_calloc(net->options.worker ? 1 : (size_t)graph->n, sizeof *net->sum);
                if (net->options.corrects && !(net->correction = mfl_calloc(n, sizeof(float))))
                        return mfl_fail_memory(err, (size_t)net_bytes(graph, &net->options), "network");
        }
        if (mfl_graph_is_tied(graph)) {
                net->extra = mfl_calloc((size_t)graph->n, sizeof(float));
                net->turned = mfl_calloc((size_t)graph->n, sizeof(float));
                if (!net->extra || !net->turned)
                        return mfl_fail_memory(err, (size_t)net_bytes(graph, &net->options), "network");
        }
        bool training_memory = !net->options.training || (net->grads && net->part && net->sum);
        if (!net->arena || !has_params || !net->x || !net->keys || !training_memory)
                return mfl_fail_memory(err, (size_t)net_bytes(graph, &net->options), "network");
        return 0;
}

static int net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        int rc = mfl_host_check_options(options, err);
        if (!rc)
                rc = mfl_ref_check_ops(graph, err);
        if (rc)
                return rc;
        struct mfl_net *net = mfl_calloc(1, sizeof *net);
        if (!net)
                return mfl_fail_memory(err, sizeof *net, "network");
        net->graph = graph;
        net->options = *options;
        rc = allocate(net, err);
        if (rc) {
                net_free(net);
                return rc;
        }
        *ret_net = net;
        return 0;
}

static int params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n, at = n * (size_t)group, n_frozen = (size_t)net->graph->n_frozen;
        mfl_assert(group >= 0 && group < net->options.groups);
        if (net->options.lent && !moving) /* whoever set the moving ones has set the frozen ones, too */
                return 0;
        if (n_frozen)
                memcpy(net->params + at, frozen, n_frozen * sizeof(float));
        memcpy(net->params + at + n_frozen, moving, (n - n_frozen) * sizeof(float));
        if (!net->options.worker)
                memcpy(net->params_first + at, net->params + at, n * sizeof(float));
        if (net->momentum)
                memset(net->momentum + at, 0, n * sizeof(float));
        if (net->second)
                memset(net->second + at, 0, n * sizeof(float));
        if (net->correction)
                memset(net->correction + at, 0, n * sizeof(float));
        return 0;
}

static int correction_set(struct mfl_net *net, int group, const float *moving, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n, n_frozen = (size_t)net->graph->n_frozen;
        float *to = net->correction + n * (size_t)group + n_frozen;
        mfl_assert(net->correction && group >= 0 && group < net->options.groups);
        if (moving)
                memcpy(to, moving, (n - n_frozen) * sizeof(float));
        else
                memset(to, 0, (n - n_frozen) * sizeof(float));
        return 0;
}

static int params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n;
        mfl_assert(group >= 0 && group < net->options.groups && first <= n);
        memcpy(params, net->params + n * (size_t)group + first, (n - (size_t)first) * sizeof(float));
        return 0;
}

static uint64_t count_bad(
        const struct mfl_graph *graph, const struct mfl_fixed *fixed, const float *params, const float *first)
{
        uint64_t n_bad = 0;
        for (uint64_t i = 0; i < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, &graph->statistics, i, graph->n_moving);
                for (; i < part.end; i++)
                        n_bad += !(fabsf(params[i] - first[i]) <= part.fixed.delta_max);
        }
        return n_bad;
}

static int sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        mfl_assert(!net->options.worker);
        for (int g = 0; g < net->options.groups; g++) {
                size_t at = (size_t)(graph->n * (uint64_t)g + graph->n_frozen);
                const float *params = net->params + at, *first = net->params_first + at;
                n_bad[g] = weight[g] ? count_bad(graph, fixed, params, first) : 0;
                int rc = weight[g] && !n_bad[g]
                                 ? mfl_fixed_parts_add_delta(fixed, &graph->statistics, 0, weight[g], params,
                                           first, (size_t)graph->n_moving, net->sum + graph->n_frozen, err)
                                 : 0;
                if (rc)
                        return rc;
        }
        return 0;
}

static int sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        for (uint64_t i = 0; acc && i < net->graph->n_moving; i++) {
                int64_t own = net->sum[net->graph->n_frozen + i];
                acc[i] = add ? acc[i] + own : own;
                if ((i + 1) % MFL_SUM_RANGE == 0 || i + 1 == net->graph->n_moving)
                        mfl_comm_advance(control, i + 1);
        }
        memset(net->sum, 0, (size_t)net->graph->n * sizeof *net->sum);
        return 0;
}

static float norm_of_grads(const struct mfl_net *net)
{
        double sum = 0;
        for (uint64_t i = 0; i < net->graph->n; i++)
                sum += (double)net->grads[i] * (double)net->grads[i];
        return (float)sqrt(sum);
}

static void add_correction(struct mfl_net *net, size_t at)
{
        for (int t = 0; t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                size_t end = (size_t)(param->offset + param->count);
                for (size_t i = (size_t)param->offset; param->trained && i < end; i++)
                        net->grads[i] += net->correction[at + i];
        }
}

/* FedProx's term as a part of the gradient. */
static void add_prox(struct mfl_net *net, size_t at, float mu)
{
        for (int t = 0; t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                size_t end = (size_t)(param->offset + param->count);
                for (size_t i = (size_t)param->offset; param->trained && i < end; i++)
                        net->grads[i] += mu * (net->params[at + i] - net->params_first[at + i]);
        }
}

/* Tensors that stay have no gradient. */
static void hold(struct mfl_net *net, enum mfl_moves moves)
{
        for (int t = 0; t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                if (mfl_param_stays(param, moves))
                        memset(net->grads + param->offset, 0, (size_t)param->count * sizeof(float));
        }
}

static void update(
        struct mfl_net *net, int group, const struct mfl_optimizer *options, const struct mfl_rate *rate)
{
        size_t at = (size_t)net->graph->n * (size_t)group;
        struct mfl_optimizer one = *options, *opt = &one;
        if (net->correction)
                add_correction(net, at);
        if (mfl_optimizer_clips_prox(opt)) {
                add_prox(net, at, opt->prox_mu);
                one.prox_mu = 0;
        }
        hold(net, opt->moves);
        float factor = opt->clip_norm > 0 ? mfl_clip_factor(opt->clip_norm, norm_of_grads(net)) : 1.0f;
        for (int t = 0; t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                bool moves = param->trained && !mfl_param_stays(param, opt->moves);
                size_t end = (size_t)(param->offset + param->count);
                for (size_t i = (size_t)param->offset; moves && i < end; i++)
                        mfl_optimizer_update(&net->params[at + i],
                                net->momentum ? &net->momentum[at + i] : NULL,
                                net->second ? &net->second[at + i] : NULL, &net->params_first[at + i], opt,
                                rate, factor == 1.0f ? net->grads[i] : net->grads[i] * factor);
        }
}

void mfl_ref_gather(const struct pass *pass, const struct mfl_device_data *data,
        const struct mfl_rng_key *key, const uint32_t *index)
{
        struct mfl_net *net = pass->net;
        struct mfl_shape image;
        float *x = mfl_ref_act(net, 0);
        uint32_t rows = (uint32_t)pass->rows;
        uint64_t start_ns = mfl_now_ns();
        if (!key || !mfl_host_augments(&net->options.augment) ||
                mfl_host_image_shape(net->graph, data, &image, NULL))
                mfl_host_gather(data, index, rows, x);
        else
                mfl_host_gather_augmented(
                        data, &image, &net->options.augment, *key, (uint32_t)pass->first_row, index, rows, x);
        net->gather_ns += mfl_now_ns() - start_ns;
}

/* One batch of a step: adds its share of the gradient to net->grads. */
static void step_part(struct pass *pass, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        const uint32_t *index, const struct mfl_loss_share *share)
{
        struct mfl_net *net = pass->net;
        int last = net->graph->n_layers - 1;
        struct mfl_rng_key key = mfl_rng_augment_key(steps->augment, pass->step);
        mfl_ref_gather(pass, data, &key, index);
        mfl_ref_forward(pass);
        struct mfl_host_loss loss = {
                data, net->graph, &net->options.loss, index, (uint32_t)pass->rows, share, NULL, NULL};
        mfl_host_loss(&loss, mfl_ref_act(net, last), mfl_ref_grad(net, last), &steps->score);
        if (pass->first_row == 0) {
                mfl_ref_backward(pass, net->grads);
                return;
        }
        mfl_ref_backward(pass, net->part);
        for (uint64_t i = 0; i < net->graph->n; i++)
                net->grads[i] += net->part[i];
}

static void step_group(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        int group, uint32_t t, const struct mfl_optimizer *opt)
{
        uint32_t rows = steps->count[t], batch = (uint32_t)net->options.batch;
        uint32_t parts = (uint32_t)MFL_MAX(net->options.accumulate, 1);
        const uint32_t *index = steps->index + (size_t)t * batch * parts;
        float *params = net->params + net->graph->n * (uint64_t)group;
        struct pass pass = {.net = net,
                .params = params,
                .running = params,
                .dropout = &steps->dropout,
                .step = steps->step_first + t,
                .moves = opt->moves};
        struct mfl_rate rate =
                mfl_rate_of(opt, (uint64_t)pass.step + 1, steps->lr_scale ? steps->lr_scale[t] : 1.0f);
        mfl_assert(rows <= batch * parts);
        struct mfl_loss_share share =
                mfl_loss_share_of(data->dataset, data->split, &net->options.loss, index, rows);
        for (uint32_t first = 0; first < rows; first += batch) {
                pass.first_row = first;
                pass.rows = MFL_MIN(rows - first, batch);
                step_part(&pass, data, steps, index + first, &share);
        }
        steps->n_samples += rows;
        if (rows)
                update(net, group, opt, &rate);
}

int mfl_ref_check_step(const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err)
{
        struct mfl_shape image;
        int rc = mfl_check_data(net->graph, &net->options.loss, data->dataset, err);
        mfl_assert(net->options.training);
        if (!rc && mfl_host_augments(&net->options.augment))
                rc = mfl_host_image_shape(net->graph, data, &image, err);
        return rc;
}

static int step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        int rc = mfl_ref_check_step(net, data, err);
        mfl_assert(!net->options.worker && mfl_moments_hold(net->options.moments, opt));
        for (uint32_t t = 0; !rc && t < n_steps; t++)
                for (int g = 0; g < net->options.groups; g++)
                        step_group(net, data, &groups[g], g, t, opt);
        return rc;
}

static int eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err)
{
        struct mfl_loss loss = mfl_loss_plain(&net->options.loss);
        int rc = mfl_check_data(net->graph, &loss, data->dataset, err);
        struct mfl_score score = {.tally = ret_score->tally};
        if (rc)
                return rc;
        for (uint32_t at = 0, rows; at < n; at += rows) {
                rows = MFL_MIN(n - at, (uint32_t)net->options.batch);
                struct pass pass = {
                        .net = net, .params = net->params + net->graph->n * (uint64_t)group, .rows = rows};
                mfl_ref_gather(&pass, data, NULL, index + at);
                mfl_ref_forward(&pass);
                struct mfl_host_loss batch = {
                        data, net->graph, &loss, index + at, rows, NULL, NULL, NULL, net->options.tally};
                mfl_host_loss(&batch, mfl_ref_act(net, net->graph->n_layers - 1), NULL, &score);
        }
        *ret_score = score;
        return 0;
}

static int infer(struct mfl_net *net, const struct mfl_rows *x, uint32_t n, float *y, struct mfl_error *err)
{
        int last = net->graph->n_layers - 1;
        struct pass pass = {.net = net, .params = net->params, .rows = n};
        mfl_assert(net->options.infer && n <= (uint32_t)net->options.batch);
        mfl_host_read_rows(x, n, mfl_ref_act(net, 0));
        mfl_ref_forward(&pass);
        memcpy(y, mfl_ref_act(net, last), (size_t)net->plan->layers[last].out_count * n * sizeof *y);
        return 0;
}

static uint64_t gather_ns(struct mfl_net *net)
{
        return net->gather_ns;
}

/* Group g's forward over the samples in net->x; only the first call updates the running statistics. */
static struct pass forward_kept(struct mfl_net *net, int g, bool first)
{
        float *params = net->params + net->graph->n * (uint64_t)g;
        size_t input = (size_t)(net->plan->layers[0].out_count * net->options.batch);
        struct pass pass = {.net = net,
                .params = params,
                .running = first ? params : NULL,
                .rows = net->options.batch,
                .dropout = net->dropout ? &net->keys[g] : NULL};
        memcpy(mfl_ref_act(net, 0), net->x + input * (size_t)g, input * sizeof(float));
        mfl_ref_forward(&pass);
        return pass;
}

static int forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err)
{
        size_t groups = (size_t)net->options.groups, batch = (size_t)net->options.batch;
        int last = net->graph->n_layers - 1;
        size_t output = (size_t)net->plan->layers[last].out_count * batch;
        memcpy(net->x, x, (size_t)net->plan->layers[0].out_count * batch * groups * sizeof(float));
        net->dropout = dropout != NULL;
        if (dropout)
                memcpy(net->keys, dropout, groups * sizeof *dropout);
        for (size_t g = 0; g < groups; g++) {
                forward_kept(net, (int)g, true);
                memcpy(y + g * output, mfl_ref_act(net, last), output * sizeof(float));
        }
        return 0;
}

/* The arena holds one group at a time, so each group's forward is repeated here. */
static int backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        size_t batch = (size_t)net->options.batch, input = (size_t)net->plan->layers[0].out_count * batch;
        int last = net->graph->n_layers - 1;
        size_t output = (size_t)net->plan->layers[last].out_count * batch;
        mfl_assert(net->options.training && (!dx || net->options.input_grad));
        for (size_t g = 0; g < (size_t)net->options.groups; g++) {
                struct pass pass = forward_kept(net, (int)g, false);
                memcpy(mfl_ref_grad(net, last), dy + g * output, output * sizeof(float));
                mfl_ref_backward(&pass, dparams + g * net->graph->n);
                if (dx)
                        memcpy(dx + g * input, mfl_ref_grad(net, 0), input * sizeof(float));
        }
        return 0;
}

const struct mfl_backend_ops mfl_backend_reference = {
        .abi = MFL_BACKEND_ABI,
        .name = "reference",
        .device_open = device_open,
        .device_close = device_close,
        .device_info = device_info,
        .data_new = mfl_host_data_new,
        .data_free = mfl_host_data_free,
        .net_new = net_new,
        .net_free = net_free,
        .net_bytes = net_bytes,
        .net_plan = net_plan,
        .params_set = params_set,
        .params_get = params_get,
        .correction_set = correction_set,
        .sum_add = sum_add,
        .sum_take = sum_take,
        .step = step,
        .grad = &mfl_ref_grad_ops,
        .eval = eval,
        .infer = infer,
        .gather_ns = gather_ns,
        .forward = forward,
        .backward = backward,
};
