/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend: a network as plain loops, one group after another through one arena. */
#include "kernels/backend.h"
#include "kernels/bodies.h"
#include "kernels/host.h"
#include "kernels/plan.h"
#include "kernels/reference/ops.h"

struct mfl_device {
        char unused;
};

struct mfl_net {
        const struct mfl_graph *graph;
        struct mfl_net_options options;
        struct mfl_plan *plan;
        char *arena;
        float *params, *params_first, *momentum; /* G * n */
        int64_t *sum;                            /* n */
        float *grads;                            /* n */
        float *x;                                /* G * batch * input: what forward was given */
        struct mfl_rng_key *keys;                /* G: what forward was given */
        bool dropout;                            /* forward was given keys */
};

/* One group's pass through the arena. */
struct pass {
        struct mfl_net *net;
        const float *params;
        float *running; /* params whose running statistics are updated; NULL: they stay */
        int64_t rows;
        const struct mfl_rng_key *dropout; /* NULL: inference */
        uint32_t step;
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

static uint64_t net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t groups = (uint64_t)options->groups, batch = (uint64_t)options->batch, activations = 0;
        for (int i = 0; i < graph->n_layers; i++)
                activations += (uint64_t)mfl_shape_count(&graph->layers[i].out) * batch;
        uint64_t input = (uint64_t)mfl_shape_count(&graph->input) * batch * groups;
        uint64_t floats = activations * (options->training ? 2 : 1) + input + graph->n * groups * 2;
        if (options->training)
                floats += graph->n * (groups + 3); /* the sum counts double */
        return floats * sizeof(float);
}

static void net_free(struct mfl_net *net)
{
        if (!net)
                return;
        mfl_plan_free(net->plan);
        free(net->arena);
        free(net->params);
        free(net->params_first);
        free(net->momentum);
        free(net->sum);
        free(net->grads);
        free(net->x);
        free(net->keys);
        free(net);
}

static int allocate(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        size_t groups = (size_t)net->options.groups, n = (size_t)graph->n * groups;
        size_t input = (size_t)mfl_shape_count(&graph->input) * (size_t)net->options.batch;
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc((size_t)graph->n_layers, sizeof *needs);
        if (!needs)
                return mfl_fail_memory(err, sizeof *needs, "plan of a network");
        mfl_plan_plain_needs(graph, net->options.batch, needs);
        int rc = mfl_plan_new(graph, net->options.training, needs, &net->plan, err);
        if (rc)
                return rc;
        net->arena = mfl_alloc_aligned(net->plan->arena_bytes);
        net->params = mfl_calloc(n, sizeof(float));
        net->params_first = mfl_calloc(n, sizeof(float));
        net->x = mfl_calloc(input * groups, sizeof(float));
        net->keys = mfl_calloc(groups, sizeof *net->keys);
        if (net->options.training) {
                net->momentum = mfl_calloc(n, sizeof(float));
                net->grads = mfl_calloc((size_t)graph->n, sizeof(float));
                net->sum = mfl_calloc((size_t)graph->n, sizeof *net->sum);
        }
        bool training_memory = !net->options.training || (net->momentum && net->grads && net->sum);
        if (!net->arena || !net->params || !net->params_first || !net->x || !net->keys || !training_memory)
                return mfl_fail_memory(err, (size_t)net_bytes(graph, &net->options), "network");
        return 0;
}

static int net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        int rc = mfl_host_check_options(options, err);
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

static int params_set(struct mfl_net *net, int group, const float *params, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n, at = n * (size_t)group;
        mfl_assert(group >= 0 && group < net->options.groups);
        memcpy(net->params + at, params, n * sizeof(float));
        memcpy(net->params_first + at, params, n * sizeof(float));
        if (net->momentum)
                memset(net->momentum + at, 0, n * sizeof(float));
        return 0;
}

static int params_get(struct mfl_net *net, int group, float *params, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n;
        mfl_assert(group >= 0 && group < net->options.groups);
        memcpy(params, net->params + n * (size_t)group, n * sizeof(float));
        return 0;
}

static uint64_t count_bad(const float *params, const float *first, size_t n, float delta_max)
{
        uint64_t n_bad = 0;
        for (size_t i = 0; i < n; i++)
                n_bad += !(fabsf(params[i] - first[i]) <= delta_max);
        return n_bad;
}

static int sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n;
        for (int g = 0; g < net->options.groups; g++) {
                const float *params = net->params + n * (size_t)g, *first = net->params_first + n * (size_t)g;
                n_bad[g] = weight[g] ? count_bad(params, first, n, fixed->delta_max) : 0;
                int rc = weight[g] && !n_bad[g]
                                 ? mfl_fixed_add_delta(fixed, weight[g], params, first, n, net->sum, err)
                                 : 0;
                if (rc)
                        return rc;
        }
        return 0;
}

static int sum_take(struct mfl_net *net, int64_t *acc, struct mfl_error *err)
{
        for (uint64_t i = 0; acc && i < net->graph->n; i++)
                acc[i] += net->sum[i];
        memset(net->sum, 0, (size_t)net->graph->n * sizeof *net->sum);
        return 0;
}

static float *act_of(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].act);
}

static float *grad_of(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].grad);
}

/* The tensor's place in a flat vector, NULL for none. */
static const float *param_of(const struct mfl_net *net, const float *flat, int param)
{
        return param < 0 ? NULL : flat + net->graph->params[param].offset;
}

static void dropout_forward(const struct pass *pass, int i, int64_t n, const float *x, float *y)
{
        float rate = pass->net->graph->layers[i].rate;
        if (!pass->dropout) {
                memcpy(y, x, (size_t)n * sizeof(float));
                return;
        }
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; e < n; e++)
                y[e] = x[e] * mfl_dropout_at(key, (uint64_t)e, rate);
}

/* In inference the statistics are the running ones. */
static struct mfl_norm norm_of(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_norm v = mfl_norm_of(pass->net->graph, i);
        if (!pass->dropout) {
                v.mean = param_of(pass->net, pass->params, layer->param_mean);
                v.var = param_of(pass->net, pass->params, layer->param_var);
        }
        return v;
}

static void norm_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_graph *graph = pass->net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        struct mfl_norm v = norm_of(pass, i);
        mfl_ref_norm_forward(&v, pass->rows, x, param_of(pass->net, pass->params, layer->param_weight),
                param_of(pass->net, pass->params, layer->param_bias), y);
        if (pass->dropout && pass->running && layer->param_mean >= 0)
                mfl_ref_norm_running(&v, pass->rows, x, layer->momentum,
                        pass->running + graph->params[layer->param_mean].offset,
                        pass->running + graph->params[layer->param_var].offset);
}

static void layer_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        const float *x = act_of(net, layer->input);
        const float *w = param_of(net, pass->params, layer->param_weight);
        const float *b = param_of(net, pass->params, layer->param_bias);
        float *y = act_of(net, i);
        int64_t n = pass->rows * plan->out_count;
        struct mfl_window window;
        switch (layer->op) {
        case MFL_OP_CONV2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_conv_forward(&window, pass->rows, x, w, b, y);
                break;
        case MFL_OP_DENSE:
                mfl_ref_dense_forward(plan->in_count, plan->out_count, pass->rows, x, w, b, y);
                break;
        case MFL_OP_MAXPOOL2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_maxpool_forward(&window, pass->rows, x, y);
                break;
        case MFL_OP_AVGPOOL2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_avgpool_forward(&window, pass->rows, x, y);
                break;
        case MFL_OP_GLOBAL_AVGPOOL2D:
                mfl_ref_global_avgpool_forward(n, plan->in_count / plan->out_count, x, y);
                break;
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                norm_forward(pass, i, x, y);
                break;
        case MFL_OP_ADD:
                for (int64_t e = 0; e < n; e++)
                        y[e] = x[e] + act_of(net, layer->input2)[e];
                break;
        case MFL_OP_DROPOUT:
                dropout_forward(pass, i, n, x, y);
                break;
        case MFL_OP_RELU:
                for (int64_t e = 0; e < n; e++)
                        y[e] = mfl_relu(x[e]);
                break;
        case MFL_OP_TANH:
                for (int64_t e = 0; e < n; e++)
                        y[e] = tanhf(x[e]);
                break;
        case MFL_OP_SIGMOID:
                for (int64_t e = 0; e < n; e++)
                        y[e] = mfl_sigmoid(x[e]);
                break;
        default:
                memcpy(y, x, (size_t)n * sizeof(float));
        }
}

static void run_forward(const struct pass *pass)
{
        for (int i = 1; i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        layer_forward(pass, i);
}

/* dx (+)= body(e) for elementwise operators, y being the output. */
static void elementwise_backward(
        const struct pass *pass, int i, const float *y, const float *dy, bool add, float *dx)
{
        int64_t n = pass->rows * pass->net->plan->layers[i].out_count;
        enum mfl_op op = pass->net->graph->layers[i].op;
        struct mfl_rng_key key = {0};
        if (op == MFL_OP_DROPOUT && pass->dropout)
                key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; e < n; e++) {
                float d = dy[e];
                if (op == MFL_OP_RELU)
                        d = mfl_relu_grad(y[e], d);
                else if (op == MFL_OP_TANH)
                        d = mfl_tanh_grad(y[e], d);
                else if (op == MFL_OP_SIGMOID)
                        d = mfl_sigmoid_grad(y[e], d);
                else if (op == MFL_OP_DROPOUT && pass->dropout)
                        d = d * mfl_dropout_at(key, (uint64_t)e, pass->net->graph->layers[i].rate);
                dx[e] = (add ? dx[e] : 0.0f) + d;
        }
}

/* Gradient of the layer's input from that of its output. */
static void layer_backward_data(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        const float *w = param_of(net, pass->params, layer->param_weight), *dy = grad_of(net, i);
        float *dx = grad_of(net, layer->input);
        bool add = !plan->writes_grad;
        struct mfl_window window;
        struct mfl_norm norm;
        switch (layer->op) {
        case MFL_OP_CONV2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_conv_backward_data(&window, pass->rows, dy, w, add, dx);
                break;
        case MFL_OP_DENSE:
                mfl_ref_dense_backward_data(plan->in_count, plan->out_count, pass->rows, dy, w, add, dx);
                break;
        case MFL_OP_MAXPOOL2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_maxpool_backward(&window, pass->rows, act_of(net, layer->input), dy, add, dx);
                break;
        case MFL_OP_AVGPOOL2D:
                window = mfl_window_of(net->graph, i);
                mfl_ref_avgpool_backward(&window, pass->rows, dy, add, dx);
                break;
        case MFL_OP_GLOBAL_AVGPOOL2D:
                mfl_ref_global_avgpool_backward(
                        pass->rows * plan->out_count, plan->in_count / plan->out_count, dy, add, dx);
                break;
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                norm = norm_of(pass, i);
                mfl_ref_norm_backward(
                        &norm, pass->rows, act_of(net, layer->input), dy, w, add, dx, NULL, NULL);
                break;
        default:
                elementwise_backward(pass, i, act_of(net, i), dy, add, dx);
        }
}

/* The gradient of an add's second input. */
static void add_backward_second(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        int64_t n = pass->rows * net->plan->layers[i].out_count;
        const float *dy = grad_of(net, i);
        float *dx = grad_of(net, net->graph->layers[i].input2);
        for (int64_t e = 0; e < n; e++)
                dx[e] = (net->plan->layers[i].writes_grad2 ? 0.0f : dx[e]) + dy[e];
}

static void layer_backward_params(const struct pass *pass, int i, float *grads)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        if (layer->param_weight < 0)
                return;
        const float *x = act_of(net, layer->input), *dy = grad_of(net, i);
        float *dw = grads + net->graph->params[layer->param_weight].offset;
        float *db = layer->param_bias < 0 ? NULL : grads + net->graph->params[layer->param_bias].offset;
        if (layer->op == MFL_OP_CONV2D) {
                struct mfl_window window = mfl_window_of(net->graph, i);
                mfl_ref_conv_backward_params(&window, pass->rows, x, dy, dw, db);
        } else if (layer->op == MFL_OP_BATCHNORM || layer->op == MFL_OP_GROUPNORM) {
                struct mfl_norm norm = norm_of(pass, i);
                mfl_ref_norm_backward(&norm, pass->rows, x, dy, NULL, false, NULL, dw, db);
        } else {
                mfl_ref_dense_backward_params(plan->in_count, plan->out_count, pass->rows, x, dy, dw, db);
        }
}

/* From the gradient of the last layer's output, in the arena, to grads (n floats); what is not trained has
 * gradient 0. */
static void run_backward(const struct pass *pass, bool input_too, float *grads)
{
        const struct mfl_net *net = pass->net;
        memset(grads, 0, (size_t)net->graph->n * sizeof(float));
        for (int i = net->graph->n_layers - 1; i > 0; i--) {
                const struct mfl_layer *layer = &net->graph->layers[i];
                if (!net->plan->layers[i].live)
                        continue;
                layer_backward_params(pass, i, grads);
                if (input_too || net->plan->layers[layer->input].wants_grad)
                        layer_backward_data(pass, i);
                if (layer->input2 >= 0 && (input_too || net->plan->layers[layer->input2].wants_grad))
                        add_backward_second(pass, i);
        }
}

static void update(struct mfl_net *net, int group, const struct mfl_sgd *sgd)
{
        size_t at = (size_t)net->graph->n * (size_t)group;
        for (int t = 0; t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                size_t end = (size_t)(param->offset + param->count);
                for (size_t i = (size_t)param->offset; param->trained && i < end; i++)
                        mfl_sgd_update(sgd, &net->params[at + i], &net->momentum[at + i],
                                &net->params_first[at + i], net->grads[i]);
        }
}

static void gather(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_rng_key key,
        const uint32_t *index, uint32_t rows)
{
        struct mfl_shape image;
        if (!mfl_host_augments(&net->options.augment) || mfl_host_image_shape(net->graph, data, &image, NULL))
                mfl_host_gather(data, index, rows, act_of(net, 0));
        else
                mfl_host_gather_augmented(
                        data, &image, &net->options.augment, key, index, rows, act_of(net, 0));
}

static void step_group(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        int group, uint32_t t, const struct mfl_sgd *sgd)
{
        int last = net->graph->n_layers - 1;
        uint32_t rows = steps->count[t];
        const uint32_t *index = steps->index + (size_t)t * (size_t)net->options.batch;
        float *params = net->params + net->graph->n * (uint64_t)group;
        struct pass pass = {.net = net,
                .params = params,
                .running = params,
                .rows = rows,
                .dropout = &steps->dropout,
                .step = steps->step_first + t};
        mfl_assert(rows <= (uint32_t)net->options.batch);
        if (rows == 0)
                return;
        gather(net, data, mfl_rng_augment_key(steps->augment, steps->step_first + t), index, rows);
        run_forward(&pass);
        mfl_host_loss(data, index, rows, act_of(net, last), net->graph->classes, grad_of(net, last),
                &steps->loss_sum, &steps->n_correct);
        steps->n_samples += rows;
        run_backward(&pass, false, net->grads);
        update(net, group, sgd);
}

static int step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_sgd *sgd, struct mfl_error *err)
{
        struct mfl_shape image;
        int rc = mfl_host_check_data(net->graph, data, err);
        mfl_assert(net->options.training);
        if (!rc && mfl_host_augments(&net->options.augment))
                rc = mfl_host_image_shape(net->graph, data, &image, err);
        for (uint32_t t = 0; !rc && t < n_steps; t++)
                for (int g = 0; g < net->options.groups; g++)
                        step_group(net, data, &groups[g], g, t, sgd);
        return rc;
}

static int eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, int64_t *ret_loss_sum, uint64_t *ret_correct, struct mfl_error *err)
{
        int rc = mfl_host_check_data(net->graph, data, err);
        int64_t loss_sum = 0;
        uint64_t n_correct = 0;
        if (rc)
                return rc;
        for (uint32_t at = 0, rows; at < n; at += rows) {
                rows = MFL_MIN(n - at, (uint32_t)net->options.batch);
                struct pass pass = {
                        .net = net, .params = net->params + net->graph->n * (uint64_t)group, .rows = rows};
                mfl_host_gather(data, index + at, rows, act_of(net, 0));
                run_forward(&pass);
                mfl_host_loss(data, index + at, rows, act_of(net, net->graph->n_layers - 1),
                        net->graph->classes, NULL, &loss_sum, &n_correct);
        }
        *ret_loss_sum = loss_sum;
        *ret_correct = n_correct;
        return 0;
}

/* Group g's forward over the samples kept in net->x; only the first time are the running statistics updated.
 */
static struct pass forward_kept(struct mfl_net *net, int g, bool first)
{
        float *params = net->params + net->graph->n * (uint64_t)g;
        size_t input = (size_t)(net->plan->layers[0].out_count * net->options.batch);
        struct pass pass = {.net = net,
                .params = params,
                .running = first ? params : NULL,
                .rows = net->options.batch,
                .dropout = net->dropout ? &net->keys[g] : NULL};
        memcpy(act_of(net, 0), net->x + input * (size_t)g, input * sizeof(float));
        run_forward(&pass);
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
                memcpy(y + g * output, act_of(net, last), output * sizeof(float));
        }
        return 0;
}

/* The arena holds one group at a time, so each group's forward is repeated here. */
static int backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        size_t batch = (size_t)net->options.batch, input = (size_t)net->plan->layers[0].out_count * batch;
        int last = net->graph->n_layers - 1;
        size_t output = (size_t)net->plan->layers[last].out_count * batch;
        mfl_assert(net->options.training);
        for (size_t g = 0; g < (size_t)net->options.groups; g++) {
                struct pass pass = forward_kept(net, (int)g, false);
                memcpy(grad_of(net, last), dy + g * output, output * sizeof(float));
                run_backward(&pass, dx != NULL, dparams + g * net->graph->n);
                if (dx)
                        memcpy(dx + g * input, grad_of(net, 0), input * sizeof(float));
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
        .params_set = params_set,
        .params_get = params_get,
        .sum_add = sum_add,
        .sum_take = sum_take,
        .step = step,
        .eval = eval,
        .forward = forward,
        .backward = backward,
};
