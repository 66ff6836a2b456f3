/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a network: forward, backward with the optimizer's step in it, training, evaluation. */
#include <omp.h>

#include "kernels/cpu/net.h"

/* One group's pass through the arena. */
struct pass {
        struct mfl_net *net;
        int group;
        int64_t rows;                      /* that hold samples */
        const struct mfl_rng_key *dropout; /* NULL: inference */
        bool running;                      /* running statistics are updated */
        uint32_t step;
        const struct mfl_optimizer *opt; /* NULL: gradients are wanted, in net->grads */
        bool input_too;                  /* the gradient of the input, too */
        struct mfl_error *err;
};

static void *aux_of(const struct mfl_net *net, int i)
{
        return net->arena + net->plan->layers[i].aux;
}

static float *group_params(const struct mfl_net *net, int group)
{
        return net->params + net->n_wide * (uint64_t)group;
}

static const float *param_of(const struct pass *pass, int param)
{
        return param < 0 ? NULL : group_params(pass->net, pass->group) + pass->net->wide[param].at;
}

static int64_t floats_of(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.count * net->options.batch;
}

static struct mfl_dense dense_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_dense){.n_in = net->layers[layer->input].layout.count,
                .n_out = layer->out_channels,
                .rows = net->options.batch,
                .relu = net->layers[i].relu,
                .threads = net->options.threads};
}

/* A global pool is one window over the whole plane. */
static struct mfl_window window_of(const struct mfl_net *net, int i)
{
        struct mfl_window window = mfl_window_of(net->graph, i);
        if (net->graph->layers[i].op == MFL_OP_GLOBAL_AVGPOOL2D) {
                window.k[0] = window.s[0] = window.h;
                window.k[1] = window.s[1] = window.w;
        }
        return window;
}

static struct mfl_pool pool_of(const struct mfl_net *net, int i)
{
        return (struct mfl_pool){.window = window_of(net, i),
                .in = net->layers[net->graph->layers[i].input].layout,
                .out = net->layers[i].layout,
                .rows = net->options.batch,
                .threads = net->options.threads};
}

/* Factors are numbered in NCHW order over the batch; in a blocked layout they move to their element's place,
 * plane by plane: `k` is the number of the first one, counted over the batch. */
static void place_factors(const struct mfl_layout *l, int64_t k, int64_t n, const float *from, float *mask)
{
        int64_t plane = l->h * l->w, c = k / plane, i = k % plane;
        while (n > 0) {
                int64_t run = MFL_MIN(n, plane - i), row = c / l->c, channel = c % l->c, block = l->block;
                float *to = mask + row * l->count + channel / block * l->stride_block + channel % block +
                            i * block;
                for (int64_t j = 0; j < run; j++)
                        to[j * block] = from[j];
                from += run;
                n -= run;
                i = 0;
                c++;
        }
}

static void make_mask(const struct pass *pass, int i, float *mask)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layout *l = &net->layers[i].layout;
        float rate = net->graph->layers[i].rate, part[1024];
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        int64_t n = l->logical * net->options.batch;
        if (l->identity) {
                net->device->loops->dropout(key, 0, n, rate, mask);
                return;
        }
        mfl_layout_clear_padding(l, net->options.batch, mask);
        for (int64_t e = 0; e < n; e += (int64_t)MFL_ARRAY_SIZE(part)) {
                int64_t count = MFL_MIN((int64_t)MFL_ARRAY_SIZE(part), n - e);
                net->device->loops->dropout(key, (uint64_t)e, count, rate, part);
                place_factors(l, e, count, part, mask);
        }
}

static void elementwise_forward(const struct pass *pass, int i, const float *x, float *y)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        int64_t n = floats_of(net, i);
        int threads = net->options.threads;
        switch (net->graph->layers[i].op) {
        case MFL_OP_RELU:
                if (!net->layers[i].done)
                        loops->relu(n, x, y, threads);
                break;
        case MFL_OP_TANH:
                loops->tanh(n, x, y, threads);
                break;
        case MFL_OP_SIGMOID:
                loops->sigmoid(n, x, y, threads);
                mfl_layout_clear_padding(&net->layers[i].layout, net->options.batch, y);
                break;
        default: /* dropout */
                if (pass->dropout) {
                        make_mask(pass, i, aux_of(net, i));
                        loops->multiply(n, x, aux_of(net, i), y, threads);
                } else if (x != y) {
                        memcpy(y, x, (size_t)n * sizeof *y);
                }
        }
}

static bool moves_elements(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.identity != net->layers[net->graph->layers[i].input].layout.identity;
}

static void flatten_forward(const struct mfl_net *net, int i, const float *x, float *y)
{
        if (moves_elements(net, i))
                mfl_layout_to_plain(
                        &net->layers[net->graph->layers[i].input].layout, net->options.batch, x, y);
        else
                memcpy(y, x, (size_t)floats_of(net, i) * sizeof *y);
}

static int layer_forward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = mfl_cpu_act(net, layer->input), *w = param_of(pass, layer->param_weight);
        const float *b = param_of(pass, layer->param_bias);
        float *y = mfl_cpu_act(net, i);
        struct mfl_pool pool;
        struct mfl_dense dense;
        switch (layer->op) {
        case MFL_OP_CONV2D:
                return mfl_cpu_conv_run_forward(&net->layers[i].conv, net->stream, w, b, pass->err);
        case MFL_OP_DENSE:
                dense = dense_of(net, i);
                loops->dense_forward(&dense, x, w, b, y);
                return 0;
        case MFL_OP_MAXPOOL2D:
                pool = pool_of(net, i);
                loops->maxpool_forward(&pool, x, y, net->options.training ? aux_of(net, i) : NULL);
                return 0;
        case MFL_OP_AVGPOOL2D:
        case MFL_OP_GLOBAL_AVGPOOL2D:
                pool = pool_of(net, i);
                loops->avgpool_forward(&pool, x, y);
                return 0;
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                mfl_cpu_norm_forward(net, i, pass->rows, pass->dropout != NULL, pass->running,
                        group_params(net, pass->group));
                return 0;
        case MFL_OP_ADD:
                mfl_cpu_add_forward(net, i);
                return 0;
        case MFL_OP_FLATTEN:
                if (x != y)
                        flatten_forward(net, i, x, y);
                return 0;
        default:
                elementwise_forward(pass, i, x, y);
                return 0;
        }
}

static int run_forward(const struct pass *pass)
{
        int rc = 0;
        for (int i = 1; !rc && i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        rc = layer_forward(pass, i);
        return rc;
}

static struct mfl_apply apply_of(const struct pass *pass, int param)
{
        struct mfl_net *net = pass->net;
        uint64_t at = net->wide[param].at, group = net->n_wide * (uint64_t)pass->group;
        return (struct mfl_apply){.opt = pass->opt,
                .lr = pass->opt ? pass->opt->lr : 0.0f,
                .grad = pass->opt ? NULL : net->grads + at,
                .p = net->params + group + at,
                .m = net->momentum + group + at,
                .p0 = net->first + group + at};
}

static int conv_backward(const struct pass *pass, int i, bool data)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_cpu_conv *conv = &net->layers[i].conv;
        int params[] = {layer->param_weight, layer->param_bias}, rc = 0;
        float *grads[2] = {NULL, NULL};
        for (int k = 0; k < 2; k++)
                if (params[k] >= 0)
                        grads[k] = net->grads + net->wide[params[k]].at;
        if (data)
                rc = mfl_cpu_conv_run_data(conv, net->stream, param_of(pass, layer->param_weight), pass->err);
        if (!rc)
                rc = mfl_cpu_conv_run_gradient(conv, net->stream, grads[0], grads[1], pass->err);
        for (int k = 0; !rc && pass->opt && k < 2; k++) {
                if (params[k] < 0)
                        continue;
                struct mfl_apply apply = apply_of(pass, params[k]);
                net->device->loops->update(
                        (int64_t)net->wide[params[k]].count, grads[k], &apply, net->options.threads);
        }
        return rc;
}

static void dense_backward(const struct pass *pass, int i, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i);
        struct mfl_dense dense = dense_of(net, i);
        struct mfl_apply apply = apply_of(pass, layer->param_weight);
        loops->dense_backward(
                &dense, dy, mfl_cpu_act(net, layer->input), param_of(pass, layer->param_weight), dx, &apply);
        if (layer->param_bias < 0)
                return;
        apply = apply_of(pass, layer->param_bias);
        loops->dense_backward_bias(&dense, dy, &apply);
}

static void norm_backward(const struct pass *pass, int i, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const int params[] = {layer->param_weight, layer->param_bias};
        mfl_cpu_norm_backward(
                net, i, pass->rows, pass->dropout != NULL, group_params(net, pass->group), dx, net->grads);
        for (int k = 0; pass->opt && k < 2; k++) {
                struct mfl_apply apply = apply_of(pass, params[k]);
                net->device->loops->update((int64_t)net->wide[params[k]].count,
                        net->grads + net->wide[params[k]].at, &apply, net->options.threads);
        }
}

static void elementwise_backward(const struct pass *pass, int i, const float *dy, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const float *y = mfl_cpu_act(net, i);
        int64_t n = floats_of(net, i);
        int threads = net->options.threads;
        switch (net->graph->layers[i].op) {
        case MFL_OP_RELU:
                if (!net->layers[i].masked)
                        loops->relu_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_TANH:
                loops->tanh_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_SIGMOID:
                loops->sigmoid_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_DROPOUT:
                if (pass->dropout)
                        loops->multiply(n, dy, aux_of(net, i), dx, threads);
                else if (dx != dy)
                        memcpy(dx, dy, (size_t)n * sizeof *dx);
                break;
        default: /* flatten */
                if (moves_elements(net, i))
                        mfl_layout_from_plain(
                                &net->layers[net->graph->layers[i].input].layout, net->options.batch, dy, dx);
                else if (dx != dy)
                        memcpy(dx, dy, (size_t)n * sizeof *dx);
        }
}

static int add_backward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        mfl_cpu_add_backward(pass->net, i, pass->input_too || net->plan->layers[layer->input].wants_grad,
                pass->input_too || net->plan->layers[layer->input2].wants_grad);
        return 0;
}

/* dx is written; NULL: not wanted. A convolution's goes where its primitive was bound to. */
static int layer_backward_to(const struct pass *pass, int i, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        enum mfl_op op = net->graph->layers[i].op;
        const float *dy = mfl_cpu_grad(net, i);
        struct mfl_pool pool;
        if (op == MFL_OP_CONV2D)
                return conv_backward(pass, i, dx != NULL);
        if (op == MFL_OP_DENSE) {
                dense_backward(pass, i, dx);
        } else if (op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM) {
                norm_backward(pass, i, dx);
        } else if (!dx) {
                return 0;
        } else if (op == MFL_OP_MAXPOOL2D) {
                pool = pool_of(net, i);
                loops->maxpool_backward(
                        &pool, dy, mfl_cpu_act(net, i), aux_of(net, i), net->layers[i].masked, dx);
        } else if (op == MFL_OP_AVGPOOL2D || op == MFL_OP_GLOBAL_AVGPOOL2D) {
                pool = pool_of(net, i);
                loops->avgpool_backward(&pool, dy, dx);
        } else {
                elementwise_backward(pass, i, dy, dx);
        }
        return 0;
}

/* A layer that is not the first to give a gradient gives its share apart, which is then added. */
static int layer_backward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        int input = net->graph->layers[i].input;
        bool data = pass->input_too || net->plan->layers[input].wants_grad;
        bool writes = net->plan->layers[i].writes_grad;
        float *dx = mfl_cpu_grad(net, input);
        if (net->graph->layers[i].op == MFL_OP_ADD)
                return add_backward(pass, i);
        int rc = layer_backward_to(pass, i, !data ? NULL : writes ? dx : net->share);
        if (!rc && data && !writes)
                net->device->loops->add(
                        floats_of(net, input), dx, net->share, false, dx, net->options.threads);
        return rc;
}

static int run_backward(const struct pass *pass)
{
        int rc = 0;
        for (int i = pass->net->graph->n_layers - 1; !rc && i > 0; i--)
                if (pass->net->plan->layers[i].live)
                        rc = layer_backward(pass, i);
        return rc;
}

/* Samples into the first layer; rows that a partial batch lacks are zero. key: of the step; NULL: samples as
 * they are. */
static void gather(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_rng_key *key,
        const uint32_t *index, uint32_t rows)
{
        struct mfl_shape image;
        float *x = mfl_cpu_act(net, 0);
        const uint8_t *samples = data->split->samples;
        const struct mfl_dataset *set = data->dataset;
        size_t missing = (size_t)net->options.batch - rows;
        memset(x + (int64_t)rows * data->count, 0, missing * (size_t)data->count * sizeof *x);
        if (key && mfl_host_augments(&net->options.augment) &&
                !mfl_host_image_shape(net->graph, data, &image, NULL)) {
                mfl_host_gather_augmented(data, &image, &net->options.augment, *key, 0, index, rows, x);
                return;
        }
        if (data->split->dtype != MFL_U8) {
                mfl_host_gather(data, index, rows, x);
                return;
        }
        for (uint32_t r = 0; r < rows; r++) {
                mfl_assert(index[r] < data->split->n);
                const uint8_t *from = samples + (int64_t)index[r] * data->count;
                for (int64_t c = 0; c < data->n_planes; c++, from += data->plane, x += data->plane)
                        net->device->loops->gather_u8(data->plane, from, set->scale[c], set->shift[c], x);
        }
}

/* The loss of the last layer's output, and its gradient in the arena where dz is wanted; both pass through
 * NCHW. */
static void take_loss(struct mfl_net *net, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t rows, bool gradient, struct mfl_score *score)
{
        int last = net->graph->n_layers - 1, classes = net->graph->classes;
        const struct mfl_layout *l = &net->layers[last].layout;
        const float *z = mfl_cpu_act(net, last);
        float *dz = !gradient ? NULL : l->identity ? mfl_cpu_grad(net, last) : net->dlogits;
        if (!l->identity) {
                mfl_layout_to_plain(l, net->options.batch, z, net->logits);
                z = net->logits;
        }
        mfl_host_loss(data, net->graph, &net->options.loss, index, rows, rows ? 1.0f / (float)rows : 0.0f, z,
                dz, score);
        if (!gradient)
                return;
        size_t missing = ((size_t)net->options.batch - rows) * (size_t)classes;
        memset(dz + (size_t)rows * (size_t)classes, 0, missing * sizeof *dz);
        if (!l->identity)
                mfl_layout_from_plain(l, net->options.batch, dz, mfl_cpu_grad(net, last));
}

static int step_group(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        int group, uint32_t t, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        uint32_t rows = steps->count[t];
        const uint32_t *index = steps->index + (size_t)t * (size_t)net->options.batch;
        struct pass pass = {.net = net,
                .group = group,
                .rows = rows,
                .dropout = &steps->dropout,
                .running = true,
                .step = steps->step_first + t,
                .opt = opt,
                .err = err};
        mfl_assert(rows <= (uint32_t)net->options.batch);
        if (rows == 0)
                return 0;
        struct mfl_rng_key key = mfl_rng_augment_key(steps->augment, steps->step_first + t);
        gather(net, data, &key, index, rows);
        int rc = run_forward(&pass);
        if (rc)
                return rc;
        take_loss(net, data, index, rows, true, &steps->score);
        steps->n_samples += rows;
        return run_backward(&pass);
}

int mfl_cpu_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        struct mfl_shape image;
        int rc = mfl_check_data(net->graph, &net->options.loss, data->dataset, err);
        mfl_assert(net->options.training);
        if (!rc)
                rc = mfl_check_plain_steps("cpu", opt, groups, net->options.groups, err);
        if (!rc && mfl_host_augments(&net->options.augment))
                rc = mfl_host_image_shape(net->graph, data, &image, err);
        omp_set_num_threads(net->options.threads);
        /* All steps of a client before the next one's: its params stay in the cache. */
        for (int g = 0; g < net->options.groups; g++)
                for (uint32_t t = 0; !rc && t < n_steps; t++)
                        rc = step_group(net, data, &groups[g], g, t, opt, err);
        return rc;
}

int mfl_cpu_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err)
{
        struct pass pass = {.net = net, .group = group, .err = err};
        struct mfl_score score = {0};
        int rc = mfl_check_data(net->graph, &net->options.loss, data->dataset, err);
        omp_set_num_threads(net->options.threads);
        for (uint32_t at = 0, rows; !rc && at < n; at += rows) {
                rows = MFL_MIN(n - at, (uint32_t)net->options.batch);
                gather(net, data, NULL, index + at, rows);
                pass.rows = rows;
                rc = run_forward(&pass);
                if (!rc)
                        take_loss(net, data, index + at, rows, false, &score);
        }
        if (rc)
                return rc;
        *ret_score = score;
        return 0;
}

/* Group g's forward over the samples kept in net->x. */
static int forward_kept(struct pass *pass)
{
        struct mfl_net *net = pass->net;
        size_t input = (size_t)floats_of(net, 0);
        pass->dropout = net->dropout ? &net->keys[pass->group] : NULL;
        pass->rows = net->options.batch;
        memcpy(mfl_cpu_act(net, 0), net->x + input * (size_t)pass->group, input * sizeof(float));
        return run_forward(pass);
}

int mfl_cpu_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err)
{
        size_t groups = (size_t)net->options.groups;
        int last = net->graph->n_layers - 1, rc = 0;
        const struct mfl_layout *l = &net->layers[last].layout;
        omp_set_num_threads(net->options.threads);
        memcpy(net->x, x, (size_t)floats_of(net, 0) * groups * sizeof *x);
        net->dropout = dropout != NULL;
        if (dropout)
                memcpy(net->keys, dropout, groups * sizeof *dropout);
        for (int g = 0; !rc && g < net->options.groups; g++) {
                struct pass pass = {.net = net, .group = g, .running = true, .err = err};
                rc = forward_kept(&pass);
                mfl_layout_to_plain(l, net->options.batch, mfl_cpu_act(net, last), y);
                y += l->logical * net->options.batch;
        }
        return rc;
}

/* The arena holds one group at a time, so each group's forward is repeated here. */
int mfl_cpu_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        int last = net->graph->n_layers - 1, rc = 0;
        int64_t batch = net->options.batch;
        const struct mfl_layout *in = &net->layers[0].layout, *out = &net->layers[last].layout;
        mfl_assert(net->options.training);
        omp_set_num_threads(net->options.threads);
        for (int g = 0; !rc && g < net->options.groups; g++) {
                struct pass pass = {.net = net, .group = g, .input_too = dx != NULL, .err = err};
                rc = forward_kept(&pass);
                mfl_layout_from_plain(
                        out, batch, dy + (int64_t)g * out->logical * batch, mfl_cpu_grad(net, last));
                if (!rc)
                        rc = run_backward(&pass);
                if (!rc && dx)
                        mfl_layout_to_plain(
                                in, batch, mfl_cpu_grad(net, 0), dx + (int64_t)g * in->logical * batch);
                if (!rc)
                        rc = mfl_cpu_params_to_flat(
                                net, net->grads, dparams + (uint64_t)g * net->graph->n, err);
        }
        return rc;
}
